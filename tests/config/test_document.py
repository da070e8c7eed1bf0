"""YAML: what is a number and what is text, where each key is, and what is refused."""

import math
from pathlib import Path

import pytest
import yaml

from plmctl.config.document import ConfigFile, override, read_document
from plmctl.errors import ConfigError


def document(tmp_path: Path, text: str, *overrides: str) -> ConfigFile:
    file = tmp_path / "c.yaml"
    file.write_text(text, encoding="utf-8")
    read_in = read_document(file)
    override(read_in, overrides)
    return read_in


def faults(config: ConfigFile) -> list[str]:
    folder = config.name.removesuffix("c.yaml")
    return [str(fault).removeprefix(folder) for fault in config.faults]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-4", 1e-4),
        ("1e6", 1e6),
        ("1.", 1.0),
        (".5", 0.5),
        ("-3", -3),
        ("+3", 3),
        ("10_000", 10_000),
        ("010", 10),
        ("007", 7),
        ("0x1F", 31),
        ("0o17", 15),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("", None),
        # YAML 1.1 reads each of these as something else.
        ("yes", "yes"),
        ("No", "No"),
        ("on", "on"),
        ("off", "off"),
        ("12:30:45", "12:30:45"),
        ("2024-01-31", "2024-01-31"),
        ("0b11", "0b11"),
        ("6%", "6%"),
        ("10k", "10k"),
        ("1_0e", "1_0e"),
        ("'1'", "1"),
        ('"true"', "true"),
        ("文本/*.txt", "文本/*.txt"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(tmp_path: Path, written: str, value: object) -> None:
    scalar = document(tmp_path, f"key: {written}\n").data["key"]
    assert scalar == value
    assert type(scalar) is type(value)


def test_not_a_number(tmp_path: Path) -> None:
    assert math.isnan(document(tmp_path, "key: .nan").data["key"])


def test_agrees_with_pyyaml_where_the_versions_of_yaml_agree(tmp_path: Path) -> None:
    text = """\
a: {b: [1, 2.5, text], c: "quoted: yes"}
d:
- e: |
    two
    lines
- []
- {}
f: &anchor {g: 1}
h: *anchor
"""
    assert document(tmp_path, text).data == yaml.safe_load(text)


def test_every_key_and_item_has_its_place(tmp_path: Path) -> None:
    config = document(tmp_path, "a: 1\nb:\n  c: [x, y]\n  d:\n  - {e: 1}\n")
    at = {key: (place.line, place.column) for key, place in config.places.items()}
    assert at == {
        ("a",): (1, 1),
        ("b",): (2, 1),
        ("b", "c"): (3, 3),
        ("b", "c", 0): (3, 7),
        ("b", "c", 1): (3, 10),
        ("b", "d"): (4, 3),
        ("b", "d", 0): (5, 5),
        ("b", "d", 0, "e"): (5, 6),
    }
    assert config.place(("b", "d", 0, "missing")).line == 5  # the nearest key around it
    assert config.place(("nowhere",)).text == str(tmp_path / "c.yaml")


def test_duplicate_keys_are_all_named(tmp_path: Path) -> None:
    config = document(tmp_path, "a: 1\nb: {c: 1, c: 2}\na: 3\n")
    assert faults(config) == [
        "c.yaml:2:11: b.c: this key is here twice",
        "c.yaml:3:1: a: this key is here twice",
    ]


def test_keys_are_text(tmp_path: Path) -> None:
    config = document(tmp_path, '1: a\ntrue: b\n? [x]\n: c\n"a\\ud800": 1\n')
    assert config.data == {"1": "a", "true": "b"}
    assert faults(config) == [
        "c.yaml:3:3: a key is text in one line",
        "c.yaml:5:1: a key is text in one line",
    ]


@pytest.mark.parametrize(
    ("value", "tag"),
    [
        ("!!python/object/apply:os.getcwd []", "python/object/apply:os.getcwd"),
        ("!!python/name:os.system ''", "python/name:os.system"),
        ("!!set {a, b}", "set"),
        ("!!binary aGk=", "binary"),
        ("!env HOME", "!env"),
        ("!!int ten", "int"),
        ('"half a character: \\ud800"', "str"),
    ],
)
def test_what_makes_no_plain_data(tmp_path: Path, value: str, tag: str) -> None:
    config = document(tmp_path, f"a: 1\nkey: {value}\n")
    assert faults(config) == [f"c.yaml:2:6: key: cannot be read as {tag}"]
    assert config.data == {"a": 1, "key": None}


def test_an_alias_of_what_it_is_in(tmp_path: Path) -> None:
    config = document(tmp_path, "a: &a\n  b: *a\n")
    assert faults(config) == ["c.yaml:1:4: a.b: an alias (`*`) of what it is in"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n\tb: 1\n", "c.yaml:2:1: not YAML: a tab; YAML indents with spaces"),
        ("a: b: c\n", "c.yaml:1:5: not YAML: a second `: ` in a line"),
        ("a:\n  - x\n b: 1\n", "c.yaml:3:2: not YAML: a wrong indentation"),
        ("a: [1, 2\nb: 1\n", "c.yaml:2:2: not YAML: a `[` without its `]`"),
        ("a: 1\nb: 'open\n", "c.yaml:2:4: not YAML: a quote that is not closed"),
        ("a: 1\n---\nb: 2\n", "c.yaml:2:1: not YAML: a second document (`---`)"),
        ("a: @x\n", "c.yaml:1:4: not YAML: a character that has a meaning in YAML"),
        ("a: *.txt\n", "c.yaml:1:4: not YAML: a value that begins with `*` or `&`; put it in"),
        ("a: *x\n", "c.yaml:1:4: not YAML: a value that begins with `*`; put it in quotes"),
        ("a: 1\nb: \x07\n", "c.yaml:2: not YAML: a control character"),
        ("", "c.yaml: the file is empty"),
        ("# only a comment\n", "c.yaml: the file is empty"),
        ("- a\n- b\n", "c.yaml: expected `key: value` lines"),
        ("just text\n", "c.yaml: expected `key: value` lines"),
    ],
)
def test_what_is_no_config(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        document(tmp_path, text)
    assert message in raised.value.message


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    config = document(tmp_path, "\ufeffa: 1\n")
    assert config.data == {"a": 1}
    assert config.place(("a",)).column == 1


def test_bad_bytes_are_named_by_line(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(ConfigError, match=r"c\.yaml:2: not UTF-8"):
        read_document(tmp_path / "c.yaml")


def test_a_folder_is_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_document(tmp_path)
