"""What configs are built from: the class of every section, and the configs of members.

A config model is frozen and refuses unknown keys. Objectives, families, optimizers, tasks and
measures each define their own config beside their code; here are the base classes of those configs
and the type of a field that accepts the config of any member (``MembersOf``). The lists of members
are in ``plmctl/run/configs.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
)
from pydantic_core import CoreSchema, core_schema

from plmctl.files import model_of_run

# --- Every config model ---


Text = Annotated[str, Field(min_length=1)]
"""A name or a path; it must not be empty."""
AnyFolder = Annotated[Text, AfterValidator(model_of_run)]
"""A folder or Hub id of a model or tokenizer; a run folder means the ``model/`` in it."""


class Model(BaseModel):
    """A config or a section of one. The docstring of a field is its help text."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )


def _at_home(path: str) -> str:
    """A path with ``~`` as the home folder: the shell leaves it as it is in ``run=~/x``.

    Raises:
        ValueError: There is no home folder.
    """
    if path != "~" and not path.startswith("~/"):
        return path
    expanded = os.path.expanduser(path)
    if expanded == path:
        raise ValueError(f"{path!r}: no home folder is known; write the whole path")
    return expanded


NewPath = Annotated[Text, AfterValidator(_at_home)]
"""A folder that plmctl writes; ``~`` is the home folder."""


# --- Base classes of the configs that members define beside their code ---


class ObjectiveConfig(Model):
    """Config of an objective (``plmctl/objectives``)."""

    name: str

    reads_sentences: ClassVar[bool] = True
    """Whether its examples are made of sentences; otherwise it reads text as it is."""


class ModelConfig(Model):
    """Config of a family's network (``plmctl/families``)."""

    family: str
    init_from: Annotated[str, AfterValidator(model_of_run)] | None = None
    """Continue from this pretrained folder or Hub id instead of fresh weights."""
    extend_vocab: Literal["mean", "subtokens"] | None = None
    """init_from only: add embeddings for ids that its tokenizer does not have. subtokens: the mean
    of the tokens that its tokenizer splits the new token into; mean: the mean of all tokens."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The config without sizes that ``init_from`` decides: the defaults are not the model's."""
        document: dict[str, Any] = handler(self)
        if self.init_from is None:
            return document
        fields = type(self).model_fields
        return {
            key: value
            for key, value in document.items()
            if key not in fields
            or key in ModelConfig.model_fields
            or getattr(self, key) != fields[key].default
        }


class TaskConfig(Model):
    """Config of a finetuning task (``plmctl/tasks``)."""

    name: str


class MeasureConfig(Model):
    """Config of an evaluation measure (``plmctl/measures``)."""

    name: str
    data: tuple[Text, ...] = Field(min_length=1)
    """Rows: jsonl, csv, tsv, parquet, folders saved by `datasets`, `hf:NAME`, `ms:NAME`."""


class OptimizerConfig(Model):
    """What every optimizer has (``plmctl/optimizers``)."""

    name: str
    lr: float = Field(default=1e-4, gt=0)
    """Peak learning rate."""
    clip: float | None = Field(default=1.0, gt=0)
    """Maximum global norm of the gradient; empty: no clipping."""


# --- A field that accepts the config of any member of a folder; a tag names the member ---


@dataclass(frozen=True)
class MembersOf:
    """Stands beside a base class in ``Annotated``: any member's ``Config`` fits, by its tag.

    The tag is required even if there is one member only, so that a config stays valid when a
    second one is added. Only a default makes it optional.

    Attributes:
        models: Returns the config model of each member, by its name; it may import them.
        tag: The key that names the member.
        default: The member if the key is left out; None: the key is required.
    """

    models: Callable[[], dict[str, type[BaseModel]]]
    tag: str
    default: str | None = None

    def named(self, value: Any) -> Any:
        """The name in a mapping or a config."""
        if isinstance(value, dict):
            return value.get(self.tag, self.default)
        return getattr(value, self.tag, self.default)

    def model(self, value: Any) -> type[BaseModel]:
        """The config model of the member that a mapping names."""
        return self.models()[self.named(value)]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        choices = {name: handler.generate_schema(m) for name, m in self.models().items()}
        if not choices:
            return handler(source)
        if self.default is None:
            return core_schema.tagged_union_schema(choices, discriminator=self.tag)
        return core_schema.tagged_union_schema(choices, discriminator=self._discriminator())

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        json_schema: dict[str, Any] = handler(schema)
        if self.default is not None:  # pydantic names no key where a function decides
            names = dict(
                zip(self.models(), (part["$ref"] for part in json_schema["oneOf"]), strict=True)
            )
            json_schema["discriminator"] = {
                "propertyName": self.tag,
                "mapping": names,
                "defaultMapping": names[self.default],
            }
        return json_schema

    def _discriminator(self) -> Any:
        def named(value: Any) -> Any:
            name = self.named(value)
            return name if isinstance(name, str) else str(name)

        named.__name__ = self.tag  # what pydantic calls it in its errors
        return named


def members_in(annotation: Any, metadata: tuple[Any, ...] = ()) -> MembersOf | None:
    """The members that a field's type accepts, if any; also within ``tuple[AnyMeasure, ...]``."""
    for extra in metadata:
        if isinstance(extra, MembersOf):
            return extra
    inner, *extras = get_args(annotation) or (None,)
    if get_origin(annotation) is Annotated:
        return members_in(inner, tuple(extras))
    return next(filter(None, map(members_in, get_args(annotation))), None)


def models_in(annotation: Any, metadata: tuple[Any, ...] = ()) -> Iterator[type[BaseModel]]:
    """The models that the mapping in a field may have."""
    members = members_in(annotation, metadata)
    if members:
        yield from members.models().values()
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    else:
        for part in get_args(annotation):
            yield from models_in(part)
