"""Numbers as people write them: ``2B``, ``10k``, ``500MB``, ``6%``."""

import re
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_serializer,
    model_validator,
)

_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_NUMBER = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE]\+?[0-9]+)?)\s*([a-zA-Z]*)\s*")


def _scaled(value: Any, units: dict[str, int], example: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, (str, float)):
        return value
    match = _NUMBER.fullmatch(str(value))
    unit = units.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"expected a number such as {example}")
    number = float(match[1].replace("_", "")) * unit
    if number != int(number):
        raise ValueError(f"expected a whole number such as {example}")
    return int(number)


def _share(value: Any) -> Any:
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return float(value.strip()[:-1]) / 100
        except ValueError:
            raise ValueError("expected a share such as 1% or 0.01") from None
    return value


Count = Annotated[
    int, BeforeValidator(lambda v: _scaled(v, _COUNTS, "10_000, 10k or 2B")), Field(ge=0)
]
Bytes = Annotated[int, BeforeValidator(lambda v: _scaled(v, _BYTES, "500MB or 2GB")), Field(ge=1)]
Share = Annotated[float, BeforeValidator(_share), Field(ge=0, lt=1)]


class StepsOrShare(BaseModel):
    """A number of steps, or a share of all of them."""

    model_config = ConfigDict(frozen=True)

    value: int | float

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return value
        if isinstance(value, str) and value.strip().endswith("%"):
            return {"value": _share(value)}
        return {"value": _scaled(value, _COUNTS, "1000 or 6%") if isinstance(value, str) else value}

    @model_serializer
    def _write(self) -> int | str:
        return self.value if isinstance(self.value, int) else f"{self.value * 100:g}%"

    def of(self, steps: int) -> int:
        """As a number of steps of a run of ``steps``."""
        return self.value if isinstance(self.value, int) else round(self.value * steps)
