"""Numbers as people write them: ``2B``, ``10k``, ``500MB``, ``6%``, ``100M tokens``, ``2h``."""

import re
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    ValidationError,
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
    Field(ge=0, le=2**63 - 1),
    _schema("integer", 0, r"^[0-9][0-9_.]*\s*[kKmMbBtT]?$", ["10_000", "10k", "2B"]),
]
Bytes = Annotated[
    int,
    BeforeValidator(lambda value: _scaled(value, _BYTES, "a size such as 500MB or 2GB")),
    Field(ge=1, le=2**63 - 1),
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
        """The number of steps that it is in a run of ``steps``.

        Raises:
            ConfigError: It is one of tokens, which only pretraining counts.
        """
        if isinstance(self.root, str):
            raise ConfigError(f"{self.root}: tokens are counted in pretraining only", "give steps")
        return self.root if isinstance(self.root, int) else round(self.root * steps)


# --- Amounts of training: steps, time, tokens, words, floating-point operations ---


Unit = Literal["steps", "seconds", "tokens", "words", "FLOPs"]

_SECONDS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86_400}
_TIME = re.compile(r"(?:[0-9][0-9_]*(?:\.[0-9]+)?\s*(?:min|[smhd])\s*)+")
_TIME_PART = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*(min|[smhd])")
_AMOUNT = re.compile(
    r"([0-9][0-9_]*(?:\.[0-9]+)?(?:e\+?[0-9]{1,2})?)\s*([kmbt]?)\s*(tokens?|words?|w|flops?)",
    re.IGNORECASE,
)
_NAMES: dict[str, Unit] = {"t": "tokens", "w": "words", "f": "FLOPs"}  # by their first letter

_MOST: dict[Unit, Decimal] = {  # more is a slip of the pen
    "steps": Decimal(10**12),
    "seconds": Decimal(10 * 366 * 86_400),
    "tokens": Decimal(10**16),
    "words": Decimal(10**16),
    "FLOPs": Decimal(10**30),
}


class Amount(RootModel[int | str]):
    """An amount of training with its unit; the root is a number of steps, or text as it is kept.

    ``2h`` is kept as ``7200 seconds``, ``10Mw`` as ``10000000 words``, ``1e17 FLOPs`` as itself.
    """

    UNITS: ClassVar[tuple[Unit, ...]] = ("steps", "seconds", "tokens", "words", "FLOPs")
    EXAMPLE: ClassVar[str] = "steps such as 1000, 2h, 100M tokens, 10M words or 1e17 FLOPs"

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(f"expected {cls.EXAMPLE}")
        if isinstance(value, str) and re.fullmatch(r"\s*[0-9.eE_+]+\s*[kKmMbBtT]?\s*", value):
            if "steps" in cls.UNITS:
                value = _scaled(value, _COUNTS, cls.EXAMPLE)
            elif not _TIME.fullmatch(value.strip()):
                raise ValueError(f"expected a unit: {cls.EXAMPLE}")
        number, unit = _amount(value, cls.EXAMPLE)
        if unit not in cls.UNITS:
            raise ValueError(f"expected {cls.EXAMPLE}")
        if number <= 0:
            raise ValueError(f"expected more than 0 {unit}")
        if number > _MOST[unit]:
            raise ValueError(f"expected at most {_MOST[unit]:.0e} {unit}".replace("e+", "e"))
        if unit == "steps":
            return int(number)
        # Whole numbers but for seconds and FLOPs, in digits as short as they are exact.
        short = f"{number.normalize():f}"
        return f"{number.normalize():e} {unit}" if unit == "FLOPs" else f"{short} {unit}"

    @property
    def unit(self) -> Unit:
        """What is counted."""
        return "steps" if isinstance(self.root, int) else self.root.split()[1]  # type: ignore[return-value]  # a unit

    @property
    def number(self) -> float:
        """How many; exact up to 2^53."""
        if isinstance(self.root, int):
            return self.root
        number = Decimal(self.root.split()[0])
        return int(number) if number == number.to_integral_value() else float(number)

    @property
    def written(self) -> str:
        """In config notation, with times in the largest units: ``1h30m``."""
        if self.unit != "seconds":
            return str(self.root)
        text, left = "", Decimal(str(self.number))
        for name, size in (("d", 86_400), ("h", 3600), ("m", 60)):
            count, left = divmod(left, size)
            text += f"{count:f}{name}" if count else ""
        return f"{text}{left.normalize():f}s" if left else text

    def __str__(self) -> str:
        """``2h``, ``100,000,000 tokens``, ``1e+17 FLOPs``."""
        if self.unit == "seconds":
            return self.written
        if self.unit == "FLOPs":
            return f"{self.number:.6g} FLOPs"
        return f"{self.number:,} {self.unit}"

    @classmethod
    def of(cls, text: str, option: str) -> Self:
        """The amount in the text of an option of a command.

        Raises:
            ConfigError: It is none.
        """
        try:
            return cls.model_validate(text)
        except ValidationError as error:
            message = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise ConfigError(f"{option}: {message}, not {text!r}") from None


def _amount(value: int | str, example: str) -> tuple[Decimal, Unit]:
    """A number and its unit.

    Raises:
        ValueError: It is not written like one.
    """
    if isinstance(value, int):
        return Decimal(value), "steps"
    text = value.strip()
    negative, text = text.startswith("-"), text.removeprefix("-")
    if text.endswith("seconds"):  # as it is kept
        text = text.removesuffix("econds")
    if _TIME.fullmatch(text):
        parts = _TIME_PART.findall(text)
        number = sum((Decimal(n.replace("_", "")) * _SECONDS[u] for n, u in parts), Decimal(0))
        return -number if negative else number, "seconds"
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise ValueError(f"expected {example}")
    number = Decimal(match[1].replace("_", "")) * _COUNTS[match[2].lower()]
    unit = _NAMES[match[3][0].lower()]
    if unit != "FLOPs" and number != number.to_integral_value():
        raise ValueError(f"expected a whole number of {unit}")
    return -number if negative else number, unit


def _amount_schema(pattern: str, examples: list[Any], *, steps: bool) -> ConfigDict:
    text = {"type": "string", "pattern": pattern}
    kinds: list[Any] = [{"type": "integer", "minimum": 1}, text] if steps else [text]
    return ConfigDict(frozen=True, json_schema_extra={"anyOf": kinds, "examples": examples})


_OF_TEXT = r"[0-9][0-9_.]*([eE]\+?[0-9]+)?\s*[kKmMbBtT]?\s*([tT]okens?|[wW]ords?|[wW])"


class Budget(Amount):
    """How much a run may use: time, tokens, words or FLOPs."""

    UNITS: ClassVar[tuple[Unit, ...]] = ("seconds", "tokens", "words", "FLOPs")
    EXAMPLE = "a time such as 2h or 90m, or 100M tokens, 10M words, 1e17 FLOPs"

    model_config = _amount_schema(
        rf"^\s*([0-9][0-9_.]*\s*(s|m|min|h|d|seconds)\s*)+$|^\s*{_OF_TEXT}\s*$"
        r"|^\s*[0-9][0-9_.]*([eE]\+?[0-9]+)?\s*[kKmMbBtT]?\s*[fF][lL][oO][pP][sS]?\s*$",
        ["2h", "90m", "100M tokens", "10M words", "1e17 FLOPs"],
        steps=False,
    )


class Duration(Amount):
    """A time."""

    UNITS = ("seconds",)
    EXAMPLE = "a time such as 90s, 5m or 1h"

    model_config = _amount_schema(
        r"^\s*([0-9][0-9_.]*\s*(s|m|min|h|d|seconds)\s*)+$", ["90s", "5m", "1h"], steps=False
    )


class Mark(Amount):
    """A place in a run: steps, tokens or words."""

    UNITS = ("steps", "tokens", "words")
    EXAMPLE = "steps such as 1000, or 5M tokens, 10M words"

    model_config = _amount_schema(
        rf"^\s*[0-9][0-9_.]*\s*[kKmMbBtT]?\s*$|^\s*{_OF_TEXT}\s*$",
        [1000, "5M tokens", "10M words"],
        steps=True,
    )


Words = Annotated[
    int,
    BeforeValidator(
        lambda value: _scaled(
            re.sub(r"\s*(words?|w)\s*$", "", value, flags=re.IGNORECASE)
            if isinstance(value, str)
            else value,
            _COUNTS,
            "a number of words such as 100M",
        )
    ),
    Field(ge=1),
    _schema("integer", 1, r"^[0-9][0-9_.]*\s*[kKmMbBtT]?\s*([wW]ords?|[wW])?$", ["100M", "1B"]),
]
