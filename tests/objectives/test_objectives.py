"""What every objective promises, and the statistics of BERT's masks through the whole objective."""

from pathlib import Path

import numpy as np
import pytest
import torch

from plmctl import registry
from plmctl.corpus import store as module
from plmctl.corpus.store import TokenStore
from plmctl.errors import ConfigError, DataError
from plmctl.models.base import Examples
from plmctl.models.network import Network
from plmctl.objectives.base import get_objective
from plmctl.tokenization.load import Vocab
from tests.builders import make_examples, make_network, random_documents
from tests.corpus.test_store import write

SENTINELS = tuple(range(499, 439, -1))
WORDS = tuple(f"w{number}" for number in range(500))
VOCAB = Vocab(
    size=500, pad=0, unk=1, cls=2, sep=3, mask=4, bos=5, eos=5, sentinels=SENTINELS, words=WORDS
)
NAMES = [  # a mixture has what its objectives have
    name for name in registry.names("objectives") if get_objective(name).LOSS_TERMS
]
REQUIRED = {"distillation": {"teacher": "not-asked-for-examples"}}


@pytest.fixture(scope="module")
def store() -> TokenStore:
    documents = random_documents(3, (6, 500), documents=60, sentences=(1, 40), tokens=(4, 20))
    return TokenStore.from_lists(documents, vocab_size=500)


def make_objective(
    name: str, store: TokenStore, seq_len: int = 64, seed: int = 1, **fields: object
) -> Examples:
    return make_examples(name, store, VOCAB, seq_len, seed, **REQUIRED.get(name, {}), **fields)


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
            member(member.Config(name=name)).over(store, bare, 64, 1)


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


# The loss contract: a batch's summed losses and gradients are the sums of its micro-batches'.


SMALL_VOCAB = Vocab(
    size=120, pad=0, unk=1, cls=2, sep=3, mask=4, bos=5, eos=5,
    sentinels=tuple(range(119, 99, -1)),
    words=("<S>", "</S>", "<UNK>", *(f"word{n}" for n in range(117))),
)  # fmt: skip
GPTS = ("gpt1", "gpt2", "gpt3")
TINY = {
    "albert": {"hidden_size": 32, "embedding_size": 16, "num_attention_heads": 2},
    "bert": {
        "hidden_size": 32, "num_attention_heads": 2,
        "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0,
    },
    "t5": {"d_model": 32, "d_ff": 48, "dropout_rate": 0},
    **dict.fromkeys(
        GPTS,
        {"n_embd": 32, "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0},
    ),
}  # fmt: skip
CASES = [
    ("bert", "mlm", {}),
    ("bert", "mlm", {"unit": "word", "mask_specials": True, "count": "probabilistic"}),
    ("bert", "mlm+nsp", {"unit": "word"}),
    ("albert", "mlm", {"unit": "word"}),
    ("albert", "mlm+sop", {}),
    ("albert", "mlm+sop", {"unit": "ngram", "favor_shorter": False, "single_sentence": "skip"}),
    *((family, "clm", {"attention": a}) for family in GPTS for a in ("across", "within")),
]
ENCODER_DECODER = [
    ("t5", "span_corruption", {}),
    ("t5", "span_corruption", {"density": 0.5, "mean_span": 1.5, "z_loss": 0.01}),
    ("t5", "prefix_lm", {}),
    ("t5", "deshuffling", {}),
    *(("t5", "iid_denoising", {"style": s}) for s in ("replace_spans", "bert", "mass")),
    ("t5", "iid_denoising", {"style": "drop_tokens"}),
]
SAMPLES = 16
Sums = tuple[dict[str, float], dict[str, int], torch.Tensor]


@pytest.fixture(scope="module")
def small_store() -> TokenStore:
    documents = random_documents(0)
    size = sum(len(sentence) for document in documents for sentence in document)
    starts = np.random.default_rng(0).random(size) < 0.7
    return TokenStore.from_lists(documents, vocab_size=120, word_starts=starts.tolist())


def network_of(family: str, loss_terms: tuple[str, ...]) -> Network:
    return make_network(family, SMALL_VOCAB.size, loss_terms, size="tiny", **TINY[family])


def sums(examples: Examples, network: Network, splits: list[np.ndarray]) -> Sums:
    """Losses and counts summed over micro-batches, and the gradient of the sum of the losses."""
    network.zero_grad()
    losses = dict.fromkeys(examples.loss_terms, 0.0)
    counts = dict.fromkeys(examples.loss_terms, 0)
    for samples in splits:
        batch = examples.collate(np.zeros(len(samples), dtype=np.int64), samples)
        sums_of_terms = examples.loss(network, batch)
        sum(sums_of_terms.values()).backward()
        for part in examples.loss_terms:
            losses[part] += sums_of_terms[part].item()
            counts[part] += batch.counts()[part]
    gradients = [p.grad.flatten() for p in network.parameters() if p.grad is not None]
    return losses, counts, torch.cat(gradients).clone()


@pytest.mark.parametrize(("family", "objective", "fields"), CASES + ENCODER_DECODER)
def test_sums_do_not_depend_on_micro_batches(
    family: str, objective: str, fields: dict, small_store: TokenStore
) -> None:
    examples = make_examples(objective, small_store, SMALL_VOCAB, 48, **fields)
    network = network_of(family, get_objective(objective).LOSS_TERMS)
    samples = np.arange(SAMPLES) * 3
    losses, counts, gradient = sums(examples, network, [samples])
    assert all(count > 0 for count in counts.values())
    for size in (8, 5, 2):
        got = sums(examples, network, np.array_split(samples, -(-SAMPLES // size)))
        assert got[1] == counts
        for part, loss in losses.items():
            assert got[0][part] == pytest.approx(loss, rel=1e-6)
        assert (got[2] - gradient).norm() < 1e-6 * gradient.norm()


@pytest.mark.parametrize(("family", "objective", "fields"), CASES)
def test_the_loss_starts_near_that_of_guessing(
    family: str, objective: str, fields: dict, small_store: TokenStore
) -> None:
    """ln(classes) a target: of the vocabulary for tokens, of two for pairs."""
    examples = make_examples(objective, small_store, SMALL_VOCAB, 48, **fields)
    network = network_of(family, get_objective(objective).LOSS_TERMS)
    losses, counts, _ = sums(examples, network, [np.arange(SAMPLES)])
    for part, loss in losses.items():
        classes = 2 if part in ("nsp", "sop") else SMALL_VOCAB.size
        assert loss / counts[part] == pytest.approx(np.log(classes), rel=0.03)


# Rows that are read from files beside a store are those that are found in memory.


KEPT = [
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


def contents_of_epochs(name: str, options: dict[str, object], store: TokenStore) -> list[object]:
    """All that is in two epochs."""
    objective = make_examples(name, store, SMALL_VOCAB, 32, **options)
    contents: list[object] = [len(objective)]
    for epoch in (0, 1):
        batch = objective.collate(np.full(len(objective), epoch), np.arange(len(objective)))
        contents += [
            tensor.tolist() for tensor in (*batch.inputs.values(), *batch.targets.values())
        ]
    return contents


@pytest.mark.parametrize(("name", "options"), KEPT)
def test_rows_from_files_are_those_in_memory(
    name: str, options: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = random_documents(0, (6, 99), sentences=(2, 12))
    flat = [token for document in texts for sentence in document for token in sentence]
    in_memory = TokenStore.from_lists(texts, 100, [token % 3 == 0 for token in flat])
    write(tmp_path / "store", [texts[:11], texts[11:]])
    expected = contents_of_epochs(name, options, in_memory)
    assert contents_of_epochs(name, options, TokenStore.open(tmp_path / "store")) == expected
    # The second time nothing is found anew.
    monkeypatch.setattr(module, "_file_bytes", None)
    monkeypatch.setattr(module, "_join_parts", None)
    assert contents_of_epochs(name, options, TokenStore.open(tmp_path / "store")) == expected
    assert 1 <= len(list((tmp_path / "store" / "rows").iterdir())) <= 8


# Segments and labels of sentence order agree: a network learns it, for new documents too.


ORDER_VOCAB = Vocab(size=60, pad=0, unk=1, cls=2, sep=3, mask=4)


def step_of(documents: int, seed: int) -> Examples:
    """Sentence s of every document has words of its own: which comes first can be learned."""
    rng = np.random.default_rng(seed)
    text = [
        [(6 + 5 * s + rng.integers(0, 5, rng.integers(3, 7))).tolist() for s in range(10)]
        for _ in range(documents)
    ]
    fields = {"single_sentence": "skip", "short_seq_prob": 0}
    store = TokenStore.from_lists(text, 60)
    return make_examples("mlm+sop", store, ORDER_VOCAB, 32, seed, **fields)


@pytest.mark.slow
def test_order_is_learned() -> None:
    train, held_out = step_of(200, 1), step_of(60, 2)
    size = {"hidden_size": 64, "num_attention_heads": 2, "embedding_size": 32}
    network = make_network("albert", 60, ("mlm", "sop"), size="tiny", **size)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    rng = np.random.default_rng(0)
    for number in range(180):
        batch = train.collate(np.full(32, number // 10), rng.integers(0, len(train), 32))
        counts, losses = batch.counts(), train.loss(network, batch)
        optimizer.zero_grad()
        sum(losses[part] / counts[part] for part in train.loss_terms).backward()
        optimizer.step()
    network.eval()
    batch = held_out.collate(np.zeros(len(held_out), int), np.arange(len(held_out)))
    with torch.no_grad():
        scores = held_out.score(network, batch)
    swapped = batch.targets["sop"].float().mean().item()
    assert 0.35 < swapped < 0.65
    assert scores["sop/correct"].item() / len(held_out) > 0.8
