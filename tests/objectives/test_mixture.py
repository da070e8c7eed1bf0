"""Mixtures of objectives: which step has which, names of terms, epochs, what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from plmctl.corpus.store import TokenStore
from plmctl.errors import ConfigError
from plmctl.evaluation.scoring import score
from plmctl.objectives.base import get_objective
from plmctl.objectives.mixture import Alternating
from plmctl.tokenization.load import Vocab
from plmctl.training.data import mixture, scoring_batches
from plmctl.training.plan import Slicing
from plmctl.training.shapes import fixed
from tests.builders import cpu_engine, make_examples, make_network, random_documents

SENTINELS = tuple(range(119, 99, -1))
VOCAB = Vocab(size=120, pad=0, mask=4, eos=9, sentinels=SENTINELS)
HYBRID = [{"name": "clm", "weight": 3}, {"name": "mntp", "rate": {"start": 0.4, "end": 0.2}}]
UL2 = [
    {"name": "span_corruption", "density": 0.15, "mean_span": 3},
    {"name": "span_corruption", "density": 0.5, "mean_span": 8, "weight": 2},
    {"name": "prefix_lm"},
]


@pytest.fixture(scope="module")
def store() -> TokenStore:
    documents = random_documents(0, (10, 90), documents=80, sentences=(1, 7), tokens=(1, 9))
    return TokenStore.from_lists(documents, vocab_size=120)


def mixed(store: TokenStore, of: list[dict[str, Any]], seed: int = 7) -> Alternating:
    return make_examples("mixture", store, VOCAB, 32, seed, of=of)


def order(examples: Alternating, steps: int) -> list[int | None]:
    return [examples.at_step(step, steps).current for step in range(steps)]


# --- Which step has which ---


@pytest.mark.parametrize(
    ("steps", "counts"), [(40, [30, 10]), (42, [32, 10]), (43, [32, 11]), (1, [1, 0])]
)
def test_steps_have_their_shares_exactly(store: TokenStore, steps: int, counts: list[int]) -> None:
    """3:1, by largest remainders: 31.5 and 10.5 of 42 steps are 32 and 10."""
    examples = mixed(store, HYBRID)
    found = order(examples, steps)
    assert [found.count(number) for number in range(2)] == counts
    assert found == order(mixed(store, HYBRID), steps)  # of seed and step alone


def test_the_seed_decides_the_order(store: TokenStore) -> None:
    orders = {tuple(order(mixed(store, HYBRID, seed), 60)) for seed in range(5)}
    assert len(orders) == 5
    half = [sum(n == 0 for n in one[:30]) for one in orders]
    assert 18 <= np.mean(half) <= 27  # of 22.5: no half of the run is of one objective


def test_a_step_is_that_of_its_objective_alone(store: TokenStore) -> None:
    examples, epochs = mixed(store, HYBRID), np.array([0, 0, 3, 5])
    samples = np.array([1, 4, 0, 2])
    network = make_network("llama", 120, ("lm",), size="tiny")
    steps = 20
    for step in (order(examples, steps).index(0), order(examples, steps).index(1)):
        now = examples.at_step(step, steps)
        name = HYBRID[now.current]["name"]
        fields = {k: v for k, v in HYBRID[now.current].items() if k not in ("name", "weight")}
        alone = make_examples(name, store, VOCAB, 32, **fields).at_step(step, steps)
        batch, expected = now.collate(epochs, samples), alone.collate(epochs, samples)
        assert now.loss_terms == (f"{name}/lm",) == tuple(batch.targets)
        assert now.weights == {f"{name}/lm": 1.0}
        for key, tensor in expected.inputs.items():
            assert torch.equal(batch.inputs[key], tensor)
        with torch.no_grad():
            loss, plain = now.loss(network, batch), alone.loss(network, expected)
        assert loss[f"{name}/lm"].item() == plain["lm"].item()


# --- Several of one name, and objectives whose epochs have other numbers of samples ---


def test_several_of_one_name_are_numbered(store: TokenStore) -> None:
    examples = mixed(store, UL2)
    names = ["span_corruption-1", "span_corruption-2", "prefix_lm"]
    assert list(examples.alternatives()) == names
    terms = [f"{name}/{term}" for name in names for term in ("lm", "z_loss")]
    assert list(examples.loss_terms) == terms
    assert list(examples.counted_terms) == terms[::2]
    assert sum(examples.weights.values()) == pytest.approx(2)  # the shares, for each of two terms


def test_every_objective_has_all_of_its_samples_before_one_again(store: TokenStore) -> None:
    examples = mixed(store, UL2)
    sizes = [len(part) for part in examples.parts]
    assert len(set(sizes)) > 1
    assert len(examples) == round(4 / sum(w / n for w, n in zip((1, 2, 1), sizes, strict=True)))
    numbers = np.arange(3 * len(examples))
    for current, size in enumerate(sizes):
        one = replace(examples, current=current)
        epochs, samples = one._located(*np.divmod(numbers, len(examples)))
        assert (epochs * size + samples == numbers).all()
        assert (samples < size).all()


@pytest.mark.parametrize(("family", "of"), [("llama", HYBRID), ("t5", UL2)])
def test_a_validation_has_each_of_them_on_the_same_text(
    family: str, of: list[dict[str, Any]], store: TokenStore
) -> None:
    examples = mixed(store, of)
    heads = get_objective(of[0]["name"]).LOSS_TERMS
    network = make_network(family, 120, heads, size="tiny")
    engine, slicing = cpu_engine(network), Slicing(8, 4)
    scores = score(engine.accelerator, network, examples, scoring_batches(examples, slicing, 16))
    total = 0.0
    for (name, one), part, share in zip(
        examples.alternatives().items(), examples.parts, examples.shares, strict=True
    ):
        alone = score(engine.accelerator, network, part, scoring_batches(part, slicing, 16))
        assert len(part) == len(one)
        assert scores[f"loss/{name}/lm"] == alone["loss/lm"]
        assert scores[f"accuracy/{name}/lm"] == alone["accuracy/lm"]
        own = sum(scores[f"loss/{name}/{term}"] for term in part.loss_terms)
        total += own * share / sum(examples.shares)
    assert scores["loss"] == pytest.approx(total)


def test_with_several_corpora(store: TokenStore) -> None:
    other = TokenStore.from_lists(random_documents(1, (10, 90), documents=40), vocab_size=120)
    parts = [mixed(store, HYBRID), mixed(other, HYBRID)]
    examples = mixture(("a", "b"), parts, (1, 1), 3)
    assert list(examples.alternatives()) == ["clm", "mntp"]
    steps = 20
    for step in range(steps):
        now = examples.at_step(step, steps)
        assert now.loss_terms == parts[0].at_step(step, steps).loss_terms
        for piece in now.split(np.stack([np.zeros(8, dtype=np.int64), np.arange(8)])):
            assert tuple(now.collate(*piece).targets) == now.loss_terms


# --- What is refused ---


def refusal(of: object) -> str:
    with pytest.raises(ValidationError) as error:
        get_objective("mixture").Config(name="mixture", of=of)
    return str(error.value)


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ([], "at least 1"),
        ([{"name": "clm", "weight": 0}], "greater than 0"),
        ([{"name": "clm", "weight": -1}], "greater than 0"),
        ([{"name": "mixture", "of": [{"name": "clm"}]}], "does not match any of the expected tags"),
        ([{"name": "clm"}, {"name": "mlm"}], "different networks; what fits clm: mntp"),
        ([{"name": "bilm"}, {"name": "clm"}], "what fits bilm: no other objective"),
        ([{"name": "mlm"}, {"name": "mlm+nsp"}], "different networks; what fits mlm: no other"),
        ([{"name": "span_corruption"}, {"name": "clm"}], "deshuffling, iid_denoising, prefix_lm"),
        ([{"name": "distillation", "teacher": "x"}], "does not match any of the expected tags"),
    ],
)
def test_what_is_no_mixture(of: object, words: str) -> None:
    assert words in refusal(of)


def test_streams_are_no_mixture() -> None:
    words = tuple(f"w{number}" for number in range(120))
    vocab = replace(VOCAB, unk=1, bos=2, eos=3, words=words)
    text = TokenStore.from_lists(random_documents(0, (10, 90), documents=80), vocab_size=120)
    with pytest.raises(ConfigError, match="streams that continue"):
        make_examples("mixture", text, vocab, 10, of=[{"name": "bilm"}])


def test_each_token_that_one_of_them_needs(store: TokenStore) -> None:
    member = get_objective("mixture")
    hybrid = member(member.Config(name="mixture", of=HYBRID))
    with pytest.raises(ConfigError, match="no mask token"):
        hybrid.over(store, replace(VOCAB, mask=None), 32, 1)
    assert hybrid.BOTH_SIDES
    ul2 = member(member.Config(name="mixture", of=UL2))
    assert ul2.ENCODER_DECODER
    assert set(ul2.TOKENS) >= {"pad", "eos"}
    assert ul2.SAMPLES == "fill-span"


def test_a_mixture_of_one_is_that_one(store: TokenStore, tmp_path: Path) -> None:
    """`of: [{name: clm}]` makes the steps of `clm`, to the last bit."""
    alone, one = make_examples("clm", store, VOCAB, 32), mixed(store, [{"name": "clm"}])
    assert len(alone) == len(one)
    batch = one.at_step(3, 9).collate(np.array([2]), np.array([5]))
    assert torch.equal(batch.targets["clm/lm"], alone.one(2, 5).targets["lm"])
    assert order(one, 5) == [0] * 5


def test_a_padded_batch_has_the_same_loss(store: TokenStore) -> None:
    """The lists of a batch name its terms as the mixture does."""
    examples = mixed(store, HYBRID).at_step(0, 1)
    examples = replace(examples, current=1)
    network = make_network("llama", 120, ("lm",), size="tiny")
    batch = examples.collate(np.zeros(7, dtype=np.int64), np.arange(7))
    wide = fixed(batch, 32)
    assert len(wide.inputs["positions"]) > len(batch.inputs["positions"])
    with torch.no_grad():
        losses = [examples.loss(network, one)["mntp/lm"].item() for one in (batch, wide)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
