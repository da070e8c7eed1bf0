"""KEY=VALUE: where values land, which one wins, and which are refused."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plmctl.config.document import ConfigFile, override
from tests.config.test_document import document

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


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
keys = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=3)


@settings(deadline=None)  # other programs may be running
@given(st.lists(st.tuples(keys, values), min_size=1, max_size=5))
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
