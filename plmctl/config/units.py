"""Numbers as people write them: ``2B``, ``10k``, ``500MB``, ``6%``."""

import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    WithJsonSchema,
    model_validator,
)

from plmctl.errors import ConfigError

_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_NUMBER = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,2})?)\s*([a-zA-Z]*)")


def _scaled(value: Any, units: dict[str, int], example: str) -> Any:
    """A number with its unit multiplied out; other types are left to pydantic's own check.

    Raises:
        ValueError: Not such a number, or not a whole one.
    """
    if isinstance(value, bool) or not isinstance(value, (str, float)):
        return value
    match = _NUMBER.fullmatch(str(value).strip())
    unit = units.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"expected {example}")
    number = Decimal(match[1].replace("_", "")) * unit
    if number != number.to_integral_value():
        raise ValueError(f"expected {example}")
    return int(number)


def _share(value: Any, example: str = "a share such as 1% or 0.01") -> Any:
    """``6%`` as 0.06."""
    if not isinstance(value, str):
        return value
    number = value.strip().removesuffix("%").strip()
    if not value.strip().endswith("%") or not re.fullmatch(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", number):
        raise ValueError(f"expected {example}")
    # Through Decimal, so that 7% is 0.07 and not 0.07000000000000001.
    return float(Decimal(number) / 100)


def _schema(kind: str, minimum: int, pattern: str, examples: list[Any]) -> WithJsonSchema:
    """How editors see it: a plain number, or text with a unit."""
    return WithJsonSchema(
        {
            "anyOf": [{"type": kind, "minimum": minimum}, {"type": "string", "pattern": pattern}],
            "examples": examples,
        }
    )


Count = Annotated[
    int,
    BeforeValidator(
        lambda value: _scaled(value, _COUNTS, "a whole number such as 10_000, 10k or 2B")
    ),
    Field(ge=0),
    _schema("integer", 0, r"^[0-9][0-9_.]*\s*[kKmMbBtT]?$", ["10_000", "10k", "2B"]),
]
Bytes = Annotated[
    int,
    BeforeValidator(lambda value: _scaled(value, _BYTES, "a size such as 500MB or 2GB")),
    Field(ge=1),
    _schema("integer", 1, r"^[0-9][0-9_.]*\s*([kKmMgGtT]?[bB])?$", ["500MB", "2GB"]),
]
Share = Annotated[
    float,
    BeforeValidator(_share),
    Field(ge=0, lt=1),
    _schema("number", 0, r"^[0-9.]+\s*%$", ["1%", 0.01]),
]


class StepsOrShare(RootModel[int | float | str]):
    """A number of steps (an integer), a share of all of them (a float of 0 to 1), or tokens."""

    model_config = ConfigDict(
        frozen=True,
        json_schema_extra={
            "anyOf": [
                {"type": "number", "minimum": 0},
                {"type": "string", "pattern": r"^[0-9][0-9_.]*\s*([kKmM%]|[kKmMbBtT]?\s*tokens)?$"},
            ],
            "examples": [1000, "6%", "375M tokens"],
        },
    )

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        example = "steps such as 1000, a share such as 6%, or tokens such as 375M tokens"
        if isinstance(value, str) and value.strip().endswith("tokens"):
            count = _scaled(value.strip().removesuffix("tokens"), _COUNTS, example)
            return f"{count} tokens"
        if isinstance(value, str):
            percent = value.strip().endswith("%")
            value = _share(value, example) if percent else _scaled(value, _COUNTS, example)
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if not whole and not (isinstance(value, float) and 0 <= value <= 1):
            raise ValueError(f"expected {example}")
        return value

    @property
    def tokens(self) -> int | None:
        """The number of tokens, if it is one of tokens."""
        return int(self.root.removesuffix(" tokens")) if isinstance(self.root, str) else None

    def of(self, steps: int) -> int:
        """As a number of steps of a run of ``steps``.

        Raises:
            ConfigError: It is one of tokens, which only pretraining counts.
        """
        if isinstance(self.root, str):
            raise ConfigError(f"{self.root}: tokens are counted in pretraining only", "give steps")
        return self.root if isinstance(self.root, int) else round(self.root * steps)
