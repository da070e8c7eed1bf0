"""Any plain data survives being written, whichever version of YAML reads it."""

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from plmctl.config.document import Builder, Loader, Place, to_yaml

text = st.text(st.characters(exclude_categories=["Cs"]))
keys = st.text(st.characters(exclude_categories=["C", "Z"]))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
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
