"""Whatever is written in a config, it loads or is refused in words: never a traceback."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plmctl.config.document import to_yaml
from plmctl.config.load import KINDS, Kind, dump, parse
from plmctl.errors import ConfigError
from plmctl.run.configs import load
from tests.config.conftest import LEAST

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["mlm", "bert", "auto", "1%", "2k", "-1", "", "name", "\ud800"])
    | st.text()
)
keys = st.sampled_from(["name", "family", "size", "run", "train", "rate", "mlm", "bert", "0", "zz"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=5,
)


def places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in the data with each of its keys."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        yield data, key
        if isinstance(value, dict | list):
            yield from places(value)


@pytest.mark.parametrize("kind", KINDS)
@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(drawn=st.data())
def test_any_values_anywhere(tmp_path: Path, kind: Kind, drawn: st.DataObject) -> None:
    data = copy.deepcopy(yaml.safe_load(LEAST[kind]))
    for _ in range(drawn.draw(st.integers(1, 3))):
        container, key = drawn.draw(st.sampled_from(list(places(data))))
        change = drawn.draw(st.sampled_from(["replace", "add", "remove"]))
        if change == "remove" and isinstance(container, dict) and len(data) > 1:
            del container[key]
        elif change == "add" and isinstance(container, dict):
            container[drawn.draw(keys)] = drawn.draw(values)
        else:
            container[key] = drawn.draw(values)
    path = tmp_path / "c.yaml"
    path.write_text(to_yaml(data), encoding="utf-8", errors="surrogatepass")
    try:
        config = load(kind, path)
    except ConfigError:
        return
    path.write_text(dump(config), encoding="utf-8")
    assert parse(type(config), path) == config


@settings(deadline=None, max_examples=300)
@given(text=st.text(st.sampled_from("ab:-[]{}#&*!|>'\"%@`, \n\t\\?~1.")), tail=st.text())
def test_any_text(tmp_path_factory: pytest.TempPathFactory, text: str, tail: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text + tail, encoding="utf-8")
    with pytest.raises(ConfigError):
        load("pretrain", path, [f"a={text}", tail])


@pytest.mark.parametrize("text", ["!a {a: 1}", "!!set {a}", "!a\na: 1"])
def test_a_tag_on_the_whole_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tagged.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be read as"):
        load("pretrain", path, ["seed=1"])
