"""What every config model is: frozen, and without room for a misspelt key."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(min_length=1)]
"""A name or a path: an empty one is a mistake."""


class Model(BaseModel):
    """A part of a config. A field's docstring is its help text."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )
