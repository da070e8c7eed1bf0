"""A member is the one class in its file that extends the base class of its folder."""

from abc import ABC, abstractmethod
from types import ModuleType

import pytest

from plmctl import registry
from plmctl.errors import ConfigError


class Shape(ABC):
    """A base class of members."""

    @abstractmethod
    def area(self) -> float:
        """What every member must have."""


def _define(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    module = ModuleType("plmctl.shapes.file")
    module.__dict__["Shape"] = Shape
    exec(source, module.__dict__)
    monkeypatch.setattr(registry, "load", lambda folder, name: module)


def test_the_class_that_the_file_defines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an imported class, nor an abstract one, nor one of another kind."""
    _define(
        monkeypatch,
        "class Config: ...\n"
        "class Round(Shape): ...\n"
        "class Circle(Round):\n    def area(self): return 3.14\n",
    )
    assert registry.member("shapes", "circle", Shape).__name__ == "Circle"


@pytest.mark.parametrize("names", [(), ("Circle", "Square")])
def test_none_or_several_is_an_error(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the classes that were found."""
    lines = [f"class {name}(Shape):\n    def area(self): return 1\n" for name in names]
    _define(monkeypatch, "".join(lines))
    with pytest.raises(TypeError, match="exactly one class that extends Shape"):
        registry.member("shapes", "circle", Shape)


def test_an_unknown_name_has_its_nearest() -> None:
    """As ``load``."""
    with pytest.raises(ConfigError, match="mlm"):
        registry.member("objectives", "mlmm", Shape)


def test_the_message_names_one_member() -> None:
    for folder, what in (("measures", "measure"), ("families", "family")):
        with pytest.raises(ConfigError, match=f"unknown {what} 'gleu'"):
            registry.load(folder, "gleu")
