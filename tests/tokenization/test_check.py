"""A tokenizer folder carries texts with their ids, and is refused where they come out otherwise."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
import transformers

from plmctl.errors import DataError
from plmctl.tokenization.check import PROBE, check_tokenizer, write_probe
from plmctl.tokenization.encode import Encoder
from plmctl.tokenization.load import Vocab, load_tokenizer

Saved = Callable[[str, str], str]


@pytest.mark.parametrize(
    ("algorithm", "family"),
    [("wordpiece", "bert"), ("byte_bpe", "gpt2"), ("unigram", "t5"), ("word", "elmo")],
)
def test_other_ids_are_refused(algorithm: str, family: str, saved: Saved, tmp_path: Path) -> None:
    folder = shutil.copytree(saved(algorithm, family), tmp_path / "tok")
    check_tokenizer(str(folder))  # a published one, without probes
    write_probe(folder)
    check_tokenizer(str(folder))
    probe = json.loads((folder / PROBE).read_text(encoding="utf-8"))
    row = next(row for row in probe["texts"] if len(row["plain"]) > 3)
    row["plain"][2] += 1
    probe |= {"transformers": "4.0.1", "tokenizers": "0.9.9"}
    (folder / PROBE).write_text(json.dumps(probe), encoding="utf-8")
    for opener in (load_tokenizer, Vocab.from_folder, Encoder):
        with pytest.raises(DataError) as refused:
            opener(str(folder))
        message = str(refused.value)
        assert row["text"][:40] in message
        assert "with transformers 4.0.1 and tokenizers 0.9.9" in message
        now = f"transformers {transformers.__version__} and tokenizers {tokenizers.__version__}"
        assert now in message
        assert "from token 2 on" in message


def test_both_ways_of_encoding_are_probed(saved: Saved, tmp_path: Path) -> None:
    """Inputs have special tokens and know those of the text; token stores do neither."""
    folder = shutil.copytree(saved("wordpiece", "bert"), tmp_path / "tok")
    write_probe(folder)
    rows = json.loads((folder / PROBE).read_text(encoding="utf-8"))["texts"]
    assert all(row["ids"] != row["plain"] for row in rows)
    tokenizer = load_tokenizer(str(folder))
    named = next(row for row in rows if "[MASK]" in row["text"])
    assert tokenizer.mask_token_id in named["ids"]
    assert tokenizer.mask_token_id not in named["plain"]
    saved_template = (folder / "tokenizer.json").read_text(encoding="utf-8")
    settings = json.loads(saved_template)
    settings["normalizer"]["lowercase"] = not settings["normalizer"]["lowercase"]
    (folder / "tokenizer.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(DataError, match="gives other ids than when it was saved"):
        load_tokenizer(str(folder))


def test_a_broken_file_of_probes(saved: Saved, tmp_path: Path) -> None:
    folder = shutil.copytree(saved("wordpiece", "bert"), tmp_path / "tok")
    for number, text in enumerate(("{", "[]", '{"texts": 3}')):
        (folder / PROBE).write_text(text + " " * number)
        with pytest.raises(DataError, match="not a file of probes"):
            check_tokenizer(str(folder))
