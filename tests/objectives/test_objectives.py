"""What every objective promises, and the statistics of BERT's masks through the whole objective."""

import numpy as np
import pytest
import torch

from plmctl import registry
from plmctl.corpus.store import TokenStore
from plmctl.errors import ConfigError, DataError
from plmctl.models.base import Examples
from plmctl.objectives.base import get_objective
from plmctl.tokenization.load import Vocab

SENTINELS = tuple(range(499, 439, -1))
WORDS = tuple(f"w{number}" for number in range(500))
VOCAB = Vocab(
    size=500, pad=0, unk=1, cls=2, sep=3, mask=4, bos=5, eos=5, sentinels=SENTINELS, words=WORDS
)
NAMES = registry.names("objectives")
REQUIRED = {"distillation": {"teacher": "not-asked-for-examples"}}


@pytest.fixture(scope="module")
def store() -> TokenStore:
    rng = np.random.default_rng(3)
    documents = [
        [rng.integers(6, 500, rng.integers(4, 20)).tolist() for _ in range(rng.integers(1, 40))]
        for _ in range(60)
    ]
    return TokenStore.from_lists(documents, vocab_size=500)


def make_objective(
    name: str, store: TokenStore, seq_len: int = 64, seed: int = 1, **fields: object
) -> Examples:
    member = get_objective(name)
    config = member.Config(name=name, **REQUIRED.get(name, {}), **fields)
    return member.make(config, store, VOCAB, seq_len, seed)


def collate(objective: Examples, epoch: int, samples: np.ndarray):
    return objective.collate(np.full(len(samples), epoch), samples)


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_a_pure_function(name: str, store: TokenStore) -> None:
    objective, again = make_objective(name, store), make_objective(name, store)
    samples = np.arange(min(20, len(objective)))
    first = collate(objective, 2, samples)
    collate(objective, 0, samples[::-1])  # what else is drawn makes no difference
    second = collate(again, 2, samples)
    for key, tensor in first.inputs.items():
        assert torch.equal(tensor, second.inputs[key])
    assert all(torch.equal(t, second.targets[k]) for k, t in first.targets.items())


@pytest.mark.parametrize("name", NAMES)
def test_parts_have_targets_and_counts(name: str, store: TokenStore) -> None:
    objective = make_objective(name, store)
    batch = collate(objective, 0, np.arange(8))
    assert tuple(batch.targets) == tuple(objective.loss_terms) == get_objective(name).LOSS_TERMS
    assert all(count > 0 for count in batch.counts().values())
    assert 0 < batch.tokens <= batch.padded_tokens


@pytest.mark.parametrize("name", ["mlm", "mlm+nsp"])
def test_masked_positions_hold_the_originals(name: str, store: TokenStore) -> None:
    objective = make_objective(name, store)
    batch = collate(objective, 0, np.arange(64))
    ids, lengths = batch.inputs["input_ids"], batch.inputs["attention_mask"].sum(1)
    targets, positions = batch.targets["mlm"], batch.inputs["positions"]
    counts = torch.bincount(positions // ids.shape[1], minlength=64)
    expected = [max(1, round(0.15 * int(length))) for length in lengths]
    assert counts.tolist() == expected
    assert targets.min() >= 6  # special tokens and padding are never asked for
    inputs = ids.flatten()[positions]
    mask, kept = (inputs == 4).float().mean(), (inputs == targets).float().mean()
    assert mask.item() == pytest.approx(0.8, abs=0.05)
    assert kept.item() == pytest.approx(0.1, abs=0.04)


def test_shares_over_many_rows(store: TokenStore) -> None:
    objective = make_objective("mlm+nsp", store, seq_len=128)
    masked = total = mask = kept = chosen = 0
    for epoch in range(12):
        batch = collate(objective, epoch, np.arange(len(objective)))
        inputs = batch.inputs["input_ids"].flatten()[batch.inputs["positions"]]
        chosen += len(inputs)
        total += batch.tokens
        mask += int((inputs == 4).sum())
        kept += int((inputs == batch.targets["mlm"]).sum())
        masked += len(batch.targets["mlm"])
    assert masked / total == pytest.approx(0.1486, abs=0.002)
    assert mask / chosen == pytest.approx(0.8 + 0.1 / 500, abs=0.01)
    assert kept / chosen == pytest.approx(0.1 + 0.1 / 500, abs=0.01)


def test_dynamic_masks_differ_between_epochs_and_static_ones_come_back(store: TokenStore) -> None:
    samples = np.arange(16)
    dynamic = make_objective("mlm", store)
    assert not torch.equal(
        collate(dynamic, 0, samples).inputs["input_ids"],
        collate(dynamic, 1, samples).inputs["input_ids"],
    )
    for name in ("mlm", "mlm+nsp"):
        static = make_objective(name, store, masking="static", duplicates=3)
        first, other, again = (collate(static, e, samples).inputs["input_ids"] for e in (1, 2, 4))
        assert torch.equal(first, again)
        assert not (first.shape == other.shape and torch.equal(first, other))


def test_segments_and_labels_of_pairs(store: TokenStore) -> None:
    objective = make_objective("mlm+nsp", store)
    batch = collate(objective, 0, np.arange(len(objective)))
    segments, real = batch.inputs["token_type_ids"], batch.inputs["attention_mask"]
    assert set(batch.targets["nsp"].tolist()) == {0, 1}
    assert ((segments == 1) & (real == 0)).sum() == 0
    assert ((segments[:, 1:] < segments[:, :-1]) & (real[:, 1:] == 1)).sum() == 0
    assert (segments.sum(1) >= 2).all()  # B and its [SEP]


def test_a_batch_over_two_epochs_is_that_of_each(store: TokenStore) -> None:
    objective = make_objective("mlm+nsp", store)
    both = objective.collate(np.array([0, 1]), np.array([3, 5]))
    alone = [collate(objective, 0, np.array([3])), collate(objective, 1, np.array([5]))]
    for row, batch in enumerate(alone):
        length = batch.tokens
        ids = both.inputs["input_ids"][row, :length]
        assert torch.equal(ids, batch.inputs["input_ids"][0, :length])


def test_causal_windows_predict_every_token_once(store: TokenStore) -> None:
    objective = make_objective("clm", store, seq_len=50)
    batch = collate(objective, 0, np.arange(len(objective)))
    text = store.tokens(np.arange(store.num_tokens))
    bounds = store.sentences[store.documents]
    stream = np.concatenate([[*text[a:b], 5] for a, b in zip(bounds, bounds[1:], strict=False)])
    used = len(objective) * 50
    assert batch.inputs["input_ids"].flatten().tolist() == stream[:used].tolist()
    assert batch.targets["lm"].flatten().tolist() == stream[1 : used + 1].tolist()


def test_a_tokenizer_without_what_is_needed(store: TokenStore) -> None:
    bare = Vocab(size=500)
    for name, word in (("mlm", r"\[MASK\]"), ("clm", "end-of-text")):
        member = get_objective(name)
        with pytest.raises(ConfigError, match=word):
            member.make(member.Config(name=name), store, bare, 64, 1)


def test_one_document_has_no_other_to_draw_from() -> None:
    store = TokenStore.from_lists([[[7, 8, 9], [10, 11]]], vocab_size=500)
    with pytest.raises(DataError, match="two documents"):
        make_objective("mlm+nsp", store)


def test_static_needs_no_torch() -> None:
    """Validating a config must not pay for torch: the members import it when they run."""
    import subprocess
    import sys

    code = (
        "import sys; from plmctl.run.configs import KINDS, json_schema;"
        "[json_schema(kind) for kind in KINDS];"
        "print([m for m in ('torch', 'transformers', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
