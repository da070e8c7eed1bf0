"""Replaced-token detection: examples, draws, labels, losses and gradients of ELECTRA."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, PreTrainedModel

from plmctl.arrays import IGNORE
from plmctl.corpus.store import TokenStore
from plmctl.errors import DataError
from plmctl.families.base import get_family
from plmctl.models.batch import Batch
from plmctl.models.electra import ElectraPair
from plmctl.models.network import Network
from plmctl.models.pair import drawn_tokens, replaced_tokens
from plmctl.objectives.base import ObjectiveExamples
from plmctl.tokenization.load import Vocab
from plmctl.training.shapes import fixed
from tests.builders import make_examples, make_model, random_documents

VOCAB = Vocab(size=120, pad=0, unk=1, cls=2, sep=3, mask=4)
HEADS = ("mlm", "rtd")
SMALL = {
    "size": "tiny", "hidden_size": 32, "embedding_size": 16, "num_attention_heads": 2,
    "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0,
}  # fmt: skip
# google-research/electra, 30,522 tokens: discriminator, generator, both with one table.
COUNTS = {
    "small": (13_549_057, 4_620_026, 14_196_219),
    "base": (109_483_009, 33_740_602, 119_386_427),
    "large": (335_142_913, 51_295_290, 354_655_291),
}


def pair(vocab_size: int = 120, **fields: object) -> ElectraPair:
    model = make_model("electra", vocab_size, HEADS, pad_id=0, seed=1, **(SMALL | fields))
    assert isinstance(model, ElectraPair)
    return model


def network(model: PreTrainedModel) -> Network:
    return Network(model, get_family("electra").forward)


@pytest.fixture(scope="module")
def examples() -> ObjectiveExamples:
    store = TokenStore.from_lists(random_documents(40), vocab_size=120)
    return make_examples("mlm+rtd", store, VOCAB, 32, 1)


def some(examples: ObjectiveExamples, rows: int = 8) -> Batch:
    return examples.collate(np.zeros(rows, int), np.arange(rows))


def count(model: PreTrainedModel) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("size", COUNTS)
def test_parameter_counts(size: str) -> None:
    with torch.device("meta"):
        both = make_model("electra", 30_522, HEADS, pad_id=0, seed=None, size=size)
    assert isinstance(both, ElectraPair)
    assert (count(both.discriminator), count(both.generator), count(both)) == COUNTS[size]


def test_examples(examples: ObjectiveExamples) -> None:
    """15 % of a row are predicted; 85 % of those are masked, and the others stay."""
    batch = some(examples, len(examples))
    ids, original = batch.inputs["input_ids"], batch.inputs["original_ids"]
    mask, positions = batch.inputs["attention_mask"], batch.inputs["positions"]
    assert torch.equal(original.flatten()[positions], batch.targets["mlm"])
    changed = ids != original
    assert (ids[changed] == VOCAB.mask).all()
    assert set(changed.flatten().nonzero().squeeze(1).tolist()) <= set(positions.tolist())
    assert changed.sum().item() / len(positions) == pytest.approx(0.85, abs=0.05)
    draws = batch.inputs["draws"]
    assert draws.dtype == torch.float32
    assert draws.min() > 0
    assert draws.max() <= 1
    assert draws.mean().item() == pytest.approx(0.5, abs=0.05)
    assert torch.equal(batch.targets["rtd"] != IGNORE, mask == 1)  # [CLS] and [SEP] are judged, too


def test_draws_have_the_distribution_of_the_generator() -> None:
    """Chi-squared of 100,000 draws, 19 degrees of freedom: below 43.8 but once in a thousand."""
    logits = torch.randn(20, generator=torch.Generator().manual_seed(0)) * 1.5
    draws = 1 - torch.rand(100_000, generator=torch.Generator().manual_seed(1))
    tokens = drawn_tokens(logits.expand(len(draws), -1), draws)
    expected = logits.softmax(-1) * len(draws)
    assert ((torch.bincount(tokens, minlength=20) - expected) ** 2 / expected).sum() < 43.8


def test_a_draw_by_hand() -> None:
    logits = torch.tensor([[0.2, 0.5, 0.3]]).log().expand(5, -1)
    draws = torch.tensor([0.1, 0.2001, 0.69, 0.71, 1.0])
    assert drawn_tokens(logits, draws).tolist() == [0, 1, 1, 2, 2]


def test_tokens_are_replaced_by_hand() -> None:
    """A slot that only fills a list up changes nothing."""
    original = torch.tensor([[5, 6, 7], [8, 9, 10]])
    got = replaced_tokens(
        original,
        torch.tensor([1, 3, 0]),
        torch.tensor([20, 8, 30]),
        torch.tensor([True, True, False]),
    )
    assert got.tolist() == [[5, 20, 7], [8, 9, 10]]


def test_losses_are_those_of_the_original(examples: ObjectiveExamples) -> None:
    """Masked tokens: cross-entropy. All tokens: the logistic loss of "is replaced"."""
    model, batch = pair(initializer_range=0.3).eval(), some(examples)
    inputs, original = batch.inputs, batch.inputs["original_ids"]
    sums = examples.loss(network(model), batch)
    read = {name: inputs[name] for name in ("attention_mask", "token_type_ids")}
    logits = model.generator(inputs["input_ids"], **read).logits.flatten(0, 1)[inputs["positions"]]
    expected = cross_entropy(logits, batch.targets["mlm"], reduction="sum")
    torch.testing.assert_close(sums["mlm"], expected)
    corrupted = original.flatten().clone()
    corrupted[inputs["positions"]] = drawn_tokens(logits, inputs["draws"])
    corrupted = corrupted.view_as(original)
    labels = (corrupted != original).float()
    assert 0 < labels.sum() <= len(inputs["positions"])
    judged = model.discriminator(corrupted, **read).logits
    losses = binary_cross_entropy_with_logits(judged, labels, reduction="none")
    real = inputs["attention_mask"] == 1
    torch.testing.assert_close(sums["rtd"], losses[real].sum())
    # transformers' own mean over the same tokens
    own = model.discriminator(corrupted, labels=labels.long(), **read).loss
    torch.testing.assert_close(sums["rtd"] / batch.counts()["rtd"], own)
    scored = examples.score(network(model), batch)
    assert scored["rtd/correct"] == ((judged > 0) == labels.bool())[real].sum()


def test_losses_at_the_start(examples: ObjectiveExamples) -> None:
    batch = some(examples)
    sums, counts = examples.loss(network(pair()), batch), batch.counts()
    means = {term: (sums[term] / counts[term]).item() for term in HEADS}
    assert means["mlm"] == pytest.approx(math.log(120), rel=0.02)
    assert means["rtd"] == pytest.approx(math.log(2), rel=0.05)
    assert examples.weights == {"mlm": 1, "rtd": 50}


def test_the_discriminators_loss_teaches_the_table_alone(examples: ObjectiveExamples) -> None:
    """Nothing goes back through a draw: of the generator only what is shared has a gradient."""
    model = pair()
    examples.loss(network(model), some(examples))["rtd"].backward()
    names = {name for name, p in model.generator.named_parameters() if p.grad is not None}
    assert all("embeddings." in name for name in names), names
    assert model.get_input_embeddings().weight.grad.abs().sum() > 0  # type: ignore[union-attr]


def test_a_padded_batch_has_the_same_losses(examples: ObjectiveExamples) -> None:
    model, batch = pair(initializer_range=0.3).eval(), some(examples)
    wide = fixed(batch, 40)
    assert wide.inputs["positions"].shape != batch.inputs["positions"].shape
    ours, again = (examples.loss(network(model), one) for one in (batch, wide))
    for term in HEADS:
        torch.testing.assert_close(again[term], ours[term])


def test_its_folder_is_a_discriminator_with_its_generator(
    examples: ObjectiveExamples, tmp_path: Path
) -> None:
    model = pair().eval()
    model.save_pretrained(tmp_path)
    ids = torch.randint(5, 120, (2, 9))
    discriminator = AutoModelForPreTraining.from_pretrained(tmp_path).eval()
    assert torch.equal(discriminator(ids).logits, model.discriminator(ids).logits)
    generator = AutoModelForMaskedLM.from_pretrained(tmp_path / "generator").eval()
    assert torch.equal(generator(ids).logits, model.generator(ids).logits)
    again = get_family("electra")().load(str(tmp_path), HEADS).eval()
    same_tables(again)
    for term, value in examples.loss(network(again), some(examples)).items():
        assert value == examples.loss(network(model), some(examples))[term]


def test_a_folder_without_a_generator(tmp_path: Path) -> None:
    pair().discriminator.save_pretrained(tmp_path)
    with pytest.raises(DataError, match="generator"):
        get_family("electra")().load(str(tmp_path), HEADS)
    said: list[str] = []
    same_tables(get_family("electra")().load(str(tmp_path), HEADS, new_heads=said.append))
    assert "new, with random weights: generator" in said[0]


def same_tables(model: PreTrainedModel) -> None:
    assert isinstance(model, ElectraPair)
    tables: list[Tensor] = [
        model.get_input_embeddings().weight,  # type: ignore[list-item]
        model.generator.get_input_embeddings().weight,
        model.generator.generator_lm_head.weight,
    ]
    assert len({table.data_ptr() for table in tables}) == 1
