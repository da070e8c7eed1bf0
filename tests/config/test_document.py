"""YAML: what is a number and what is text, where each key is, and what is refused."""

import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from plmctl.config.document import (
    Builder,
    ConfigFile,
    Loader,
    Place,
    override,
    read_document,
    to_yaml,
)
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


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("9223372036854775808", "beyond 9,223,372,036,854,775,807, the largest whole number"),
        ("-1" + "0" * 400, "beyond 9,223,372,036,854,775,807, the largest whole number"),
        ("1e300", "beyond 1e+38, the largest number"),
        ('"a\\0b"', "cannot be read as str"),
    ],
)
def test_values_that_no_machine_can_use(tmp_path: Path, value: str, what: str) -> None:
    assert faults(document(tmp_path, f"key: {value}\n")) == [f"c.yaml:1:6: key: {what}"]


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


def test_an_alias_bomb_is_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    with pytest.raises(ConfigError, match="more than 50,000 values, those of aliases"):
        document(tmp_path, "\n".join(lines))


@pytest.mark.parametrize("levels", [31, 500, 10_000])
def test_levels_are_bounded(tmp_path: Path, levels: int) -> None:
    value = "[" * levels + "]" * levels
    with pytest.raises(ConfigError, match="more than 30 levels of keys and lists"):
        document(tmp_path, f"x: {value}")
    config = document(tmp_path, "x: 1\n")
    if levels == 31:  # refused by plmctl, the deeper ones already by PyYAML
        with pytest.raises(ConfigError, match="x=.*more than 30 levels of keys and lists"):
            override(config, [f"x={value}"])
    else:
        override(config, [f"x={value}"])
        assert "more than 30 levels of keys and lists" in faults(config)[0]


def test_a_file_that_is_too_long(tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_bytes(b"a: 1\n" * 1_000_000)
    with pytest.raises(ConfigError, match="too long for a config"):
        read_document(tmp_path / "long.yaml")
    with pytest.raises(ConfigError, match="too long for a config"):
        read_document("/dev/zero")


# KEY=VALUE: where values land, which one wins, and which are refused.


FILE = "a: 1\nb:\n  c: old\n  d: [x, {e: 1}]\n"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["a=2"], {"a": 2}),
        (["a=2", "a=3"], {"a": 3}),
        (["b.c=1e-3"], {"b": {"c": 1e-3, "d": ["x", {"e": 1}]}}),
        (["b.d=[a.txt, b.txt]"], {"b": {"c": "old", "d": ["a.txt", "b.txt"]}}),
        (["b.d.0=y", "b.d.1.e=2"], {"b": {"c": "old", "d": ["y", {"e": 2}]}}),
        (["b={f: [1, {g: yes}]}"], {"b": {"f": [1, {"g": "yes"}]}}),
        (["new.deep.key=v"], {"new": {"deep": {"key": "v"}}}),
        (["a.b=2"], {"a": {"b": 2}}),
        (["a="], {"a": None}),
        (["a=x=y"], {"a": "x=y"}),
        (["a='10'"], {"a": "10"}),
        (["a=10%"], {"a": "10%"}),
        (["0=zero"], {"0": "zero"}),
    ],
)
def test_values_are_yaml_and_later_wins(
    tmp_path: Path, overrides: list[str], expected: dict[str, object]
) -> None:
    before = document(tmp_path, FILE).data
    config = document(tmp_path, FILE, *overrides)
    assert config.faults == []
    assert config.data == {**before, **expected}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("a", "override a: expected KEY=VALUE, as in optim.lr=1e-3"),
        ("=1", "override =1: expected KEY=VALUE, as in optim.lr=1e-3"),
        ("b..c=1", "override b..c=1: expected KEY=VALUE, as in optim.lr=1e-3"),
        ("a=[1", "override a=[1: the value is not YAML; put it in quotes, as in 'a=\"...\"'"),
        ("a=@x", "override a=@x: the value is not YAML; put it in quotes, as in 'a=\"...\"'"),
        ("a={b: 1, b: 2}", "override a={b: 1, b: 2}: a.b: this key is here twice"),
        ("b.d.2=1", "override b.d.2=1: the list has no such item"),
        ("b.d.first=1", "override b.d.first=1: the list has no such item"),
        ("b.d.7.e=1", "override b.d.7.e=1: the list has no such item"),
    ],
)
def test_what_cannot_be_put_in(tmp_path: Path, override: str, message: str) -> None:
    assert [str(fault) for fault in document(tmp_path, FILE, override).faults] == [message]


def test_places_say_who_wrote_a_value(tmp_path: Path) -> None:
    config = document(tmp_path, FILE, "b.c=new", "new={x: 1}")
    assert config.place(("b", "c")).text == "override b.c=new"
    assert config.place(("new", "x")).text == "override new={x: 1}"
    assert config.place(("b",)).text.endswith("c.yaml:2:1")  # the mapping itself is the file's
    # What stood inside of a value that was replaced has no place of its own any more.
    replaced = document(tmp_path, FILE, "b={c: 1}")
    for key in ("c", "d"):
        assert replaced.place(("b", key)).text == "override b={c: 1}"


def test_a_long_override_is_shortened(tmp_path: Path) -> None:
    config = document(tmp_path, FILE, f"b.c={'x' * 100}")
    assert config.place(("b", "c")).text == f"override b.c={'x' * 53}..."


override_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(-1e38, 1e38),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
override_keys = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=3)


@settings(deadline=None)  # other programs may be running
@given(st.lists(st.tuples(override_keys, override_values), min_size=1, max_size=5))
def test_the_last_override_is_what_is_there(overrides: list[tuple[list[str], object]]) -> None:
    import yaml

    config = ConfigFile("c.yaml", {})
    override(
        config,
        [f"{'.'.join(key)}={yaml.safe_dump(v, default_flow_style=True)}" for key, v in overrides],
    )
    key, value = overrides[-1]
    at: object = config.data
    for part in key:
        if isinstance(at, list):  # an earlier override put a list in the way: said, not set
            assert [str(f) for f in config.faults if "no such item" in str(f)]
            return
        assert isinstance(at, dict)
        at = at[part]
    assert at == value


# Any plain data survives being written, whichever version of YAML reads it.


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
keys = st.text(st.characters(exclude_categories=["C", "Z"]))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(-1e38, 1e38)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(keys, values, min_size=1, max_size=3))
def test_what_is_written_is_read(data: dict[str, object]) -> None:
    written = to_yaml(data)
    builder = Builder(lambda node: Place(0, 0, ""), {}, [])
    assert builder.build(yaml.compose(written, Loader), ()) == data
    assert builder.faults == []
    assert yaml.safe_load(written) == data


def test_lists_of_scalars_stand_in_a_line() -> None:
    assert to_yaml({"a": [1, "x"], "b": [{"c": []}]}) == "a: [1, x]\nb:\n- c: []\n"
