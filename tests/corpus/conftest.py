from pathlib import Path

import pytest


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Some 1.4 MB in two files, of which one is larger than a shard."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    texts = [f"Document {n} is here. It has {n * n} words! Or not?\n\n" for n in range(24_000)]
    (folder / "a.txt").write_text("".join(texts[:3_000]), encoding="utf-8")
    (folder / "b.txt").write_text("".join(texts[3_000:]), encoding="utf-8")
    return folder
