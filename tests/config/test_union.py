"""The folder is the union: a file more is a choice more, and none or one is fine."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import TypeAdapter, ValidationError

import plmctl
from plmctl import registry
from plmctl.config.base import MembersOf, TaskConfig, members_in, models_in
from plmctl.run.configs import configs_of

MEMBER = """\
from typing import Literal
from plmctl.config.base import TaskConfig
class Config(TaskConfig):
    name: Literal["{name}"] = "{name}"
    {field}: int = 1
"""
Folder = Callable[..., MembersOf]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """``folder(name, member=field, ...)``: a folder of the package with these members."""
    monkeypatch.setattr(plmctl, "__path__", [*plmctl.__path__, str(tmp_path)])

    def make(name: str, **members: str) -> MembersOf:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / "_shared.py").write_text("raise ImportError")
        for member, field in members.items():
            text = MEMBER.format(name=member.replace("_and_", "+"), field=field)
            (tmp_path / name / f"{member}.py").write_text(text)
        return MembersOf(partial(configs_of, name), "name")

    return make


def read(members: MembersOf, data: object) -> TaskConfig:
    adapter: TypeAdapter[TaskConfig] = TypeAdapter(Annotated[TaskConfig, members])
    return adapter.validate_json(json.dumps(data), strict=True)


def test_the_tag_decides_the_member(folder: Folder) -> None:
    members = folder("union_of_two", one="depth", one_and_two="width")
    assert read(members, {"name": "one", "depth": 3}).model_dump() == {"name": "one", "depth": 3}
    assert type(read(members, {"name": "one+two"})).__module__ == "plmctl.union_of_two.one_and_two"
    with pytest.raises(ValidationError, match="extra_forbidden"):
        read(members, {"name": "one", "width": 3})


def test_one_member_asks_for_its_tag_too(folder: Folder) -> None:
    members = folder("union_of_one", only="depth")
    assert read(members, {"name": "only"}).name == "only"
    for wrong in ({}, {"name": "other"}):
        with pytest.raises(ValidationError, match="union_tag"):
            read(members, wrong)


def test_no_member_yet(folder: Folder) -> None:
    members = folder("union_of_none")
    assert members.models() == {}
    assert read(members, {"name": "anything"}) == TaskConfig(name="anything")


def test_a_config_object_is_used_as_it_is(folder: Folder) -> None:
    members = folder("union_in_code", one="depth", two="width")
    adapter: TypeAdapter[TaskConfig] = TypeAdapter(Annotated[TaskConfig, members])
    config = registry.load("union_in_code", "two").Config(width=5)
    assert adapter.validate_python(config) is config


def test_members_are_found_in_a_fields_type(folder: Folder) -> None:
    members = folder("union_in_types", one="depth")
    many = tuple[Annotated[TaskConfig, members], ...] | None
    assert members_in(many) is members
    assert members_in(TaskConfig, (members,)) is members
    assert members_in(int | str) is None
    assert [model.__module__ for model in models_in(many)] == ["plmctl.union_in_types.one"]
    assert list(models_in(TaskConfig | int)) == [TaskConfig]
