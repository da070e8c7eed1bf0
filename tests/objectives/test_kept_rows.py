"""Rows that are read from files beside a store are those that are found in memory."""

from pathlib import Path

import numpy as np
import pytest

from plmctl.corpus import store as module
from plmctl.corpus.store import TokenStore
from plmctl.objectives.base import get_objective
from plmctl.tokenization.load import Vocab
from tests.corpus.test_store import write

SENTINELS = tuple(range(119, 99, -1))
WORDS = ("<S>", "</S>", "<UNK>", *(f"word{n}" for n in range(117)))
VOCAB = Vocab(
    size=120, pad=0, unk=1, cls=2, sep=3, mask=4, bos=5, eos=5, sentinels=SENTINELS, words=WORDS
)
CASES = [
    ("mlm", {}),
    ("mlm", {"packing": "full_sentences"}),
    ("mlm", {"packing": "doc_sentences"}),
    ("mlm", {"packing": "segment_pair"}),
    ("mlm+nsp", {}),
    ("mlm+sop", {"single_sentence": "skip"}),
    ("mlm+sop", {}),
    ("mlm+sbo", {}),
    ("clm", {}),
    ("clm", {"separator": "none"}),
    ("span_corruption", {}),
    ("prefix_lm", {}),
    ("bilm", {}),
    ("bilm", {"shuffle": False}),
]


def documents() -> list[list[list[int]]]:
    rng = np.random.default_rng(0)
    return [
        [rng.integers(6, 99, rng.integers(3, 15)).tolist() for _ in range(rng.integers(2, 12))]
        for _ in range(30)
    ]


def batches(name: str, options: dict[str, object], store: TokenStore) -> list[object]:
    """All that is in two epochs."""
    member = get_objective(name)
    objective = member.make(member.Config(name=name, **options), store, VOCAB, 32, 7)
    contents: list[object] = [len(objective)]
    for epoch in (0, 1):
        batch = objective.collate(np.full(len(objective), epoch), np.arange(len(objective)))
        contents += [
            tensor.tolist() for tensor in (*batch.inputs.values(), *batch.targets.values())
        ]
    return contents


@pytest.mark.parametrize(("name", "options"), CASES)
def test_rows_from_files_are_those_in_memory(
    name: str, options: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = documents()
    flat = [token for document in texts for sentence in document for token in sentence]
    in_memory = TokenStore.from_lists(texts, 100, [token % 3 == 0 for token in flat])
    write(tmp_path / "store", [texts[:11], texts[11:]])
    expected = batches(name, options, in_memory)
    assert batches(name, options, TokenStore.open(tmp_path / "store")) == expected
    # The second time nothing is found anew.
    monkeypatch.setattr(module, "_file_bytes", None)
    monkeypatch.setattr(module, "_join_parts", None)
    assert batches(name, options, TokenStore.open(tmp_path / "store")) == expected
    assert 1 <= len(list((tmp_path / "store" / "rows").iterdir())) <= 8
