"""What every config model is: frozen, and without room for a misspelt key."""

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """A part of a config. A field's docstring is its help text."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
