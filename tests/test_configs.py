"""Every shipped config is valid, and is for the command that its place says."""

from pathlib import Path

import pytest

from plmctl.config.load import dump, kind_of, load

ROOT = Path(__file__).parents[1] / "configs"
FILES = sorted(ROOT.rglob("*.yaml"))


def test_there_are_configs() -> None:
    assert len(FILES) > 10


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_config_is_valid(path: Path, tmp_path: Path) -> None:
    kind = kind_of(path)
    place = path.relative_to(ROOT)
    assert kind == (path.stem if place.parts[0] == "demo" else place.parts[0])
    config = load(kind, path)
    again = tmp_path / "resolved.yaml"
    again.write_text(dump(config), encoding="utf-8")
    assert load(kind, again) == config
