from pathlib import Path

import pytest

from plmctl.corpus import build


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Some 0.1 MB in two files, of which one is larger than a shard."""
    monkeypatch.setattr(build, "_MIN_PIECE", 50_000)
    folder = tmp_path / "corpus"
    folder.mkdir()
    texts = [f"Document {n} is here. It has {n * n} words! Or not?\n\n" for n in range(2_400)]
    (folder / "a.txt").write_text("".join(texts[:300]), encoding="utf-8")
    (folder / "b.txt").write_text("".join(texts[300:]), encoding="utf-8")
    return folder
