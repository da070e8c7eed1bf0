"""Replaced-token detection of DeBERTa's third version: losses, shared embeddings, folders."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    embedding,
    gelu,
    layer_norm,
)
from transformers import AutoModel, AutoModelForMaskedLM, DebertaV2Model

from plmctl.corpus.store import TokenStore
from plmctl.errors import DataError
from plmctl.families.base import get_family
from plmctl.models.batch import Batch
from plmctl.models.deberta import DebertaPair
from plmctl.models.network import Network
from plmctl.models.pair import Pair, drawn_tokens
from plmctl.models.parameters import extend_vocabulary
from plmctl.objectives.base import ObjectiveExamples
from plmctl.tokenization.load import Vocab
from plmctl.training.shapes import fixed
from tests.builders import make_examples, make_model, random_documents

VOCAB = Vocab(size=120, pad=0, unk=1, cls=2, sep=3, mask=4)
HEADS = ("mlm", "rtd")
SMALL = {
    "size": "tiny", "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 4,
    "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0,
}  # fmt: skip
# transformers' bodies with 128,100 tokens: discriminator, layers of the generator.
BODIES = {
    "xsmall": (70_682_112, 6),
    "small": (141_304_320, 3),
    "base": (183_831_552, 6),
    "large": (434_012_160, 12),
}


def pair(**fields: object) -> DebertaPair:
    model = make_model("deberta", 120, HEADS, pad_id=0, seed=1, **(SMALL | fields))
    assert isinstance(model, DebertaPair)
    return model


def network(model: DebertaPair) -> Network:
    return Network(model, get_family("deberta").forward)


@pytest.fixture(scope="module")
def examples() -> ObjectiveExamples:
    store = TokenStore.from_lists(random_documents(40), vocab_size=120)
    options = {"mask_share": 1.0, "rtd_weight": 10}
    return make_examples("mlm+rtd", store, VOCAB, 32, 1, **options)


def some(examples: ObjectiveExamples, rows: int = 8) -> Batch:
    return examples.collate(np.zeros(rows, int), np.arange(rows))


def tables(model: DebertaPair) -> tuple[Tensor, Tensor]:
    """The generator's, and what is the discriminator's own."""
    own = model.discriminator.deberta.embeddings.word_embeddings
    return model.generator.get_input_embeddings().weight, own.weight


@pytest.mark.parametrize("size", BODIES)
def test_parameter_counts(size: str) -> None:
    with torch.device("meta"):
        model = make_model("deberta", 128_100, HEADS, pad_id=0, seed=None, size=size)
    assert isinstance(model, DebertaPair)
    body, layers = BODIES[size]
    assert sum(p.numel() for p in model.discriminator.deberta.parameters()) == body
    hidden = model.config.hidden_size
    head = hidden * hidden + hidden + 2 * hidden + hidden + 1
    assert sum(p.numel() for p in model.discriminator.mask_predictions.parameters()) == head
    assert model.generator.config.num_hidden_layers == layers
    assert model.generator.config.hidden_size == hidden


def test_every_predicted_token_is_masked(examples: ObjectiveExamples) -> None:
    batch = some(examples, 30)
    assert (batch.inputs["input_ids"].flatten()[batch.inputs["positions"]] == VOCAB.mask).all()


@pytest.mark.parametrize("sharing", ["gradient_disentangled", "shared", "none"])
def test_losses_are_those_of_the_original(examples: ObjectiveExamples, sharing: str) -> None:
    """A transcription: the discriminator reads E_G + E_Delta, and adds [CLS] to each state."""
    model = pair(initializer_range=0.3, embedding_sharing=sharing).eval()
    theirs, own = tables(model)
    with torch.no_grad():
        if sharing == "gradient_disentangled":
            own.normal_(std=0.1)
    batch = some(examples)
    inputs, mask = batch.inputs, batch.inputs["attention_mask"]
    sums = examples.loss(network(model), batch)
    logits = model.generator(inputs["input_ids"], mask).logits.flatten(0, 1)[inputs["positions"]]
    expected = cross_entropy(logits, batch.targets["mlm"], reduction="sum")
    torch.testing.assert_close(sums["mlm"], expected)
    original = inputs["original_ids"]
    corrupted = original.flatten().clone()
    corrupted[inputs["positions"]] = drawn_tokens(logits, inputs["draws"])
    corrupted = corrupted.view_as(original)
    table = theirs + own if sharing == "gradient_disentangled" else own
    body: DebertaV2Model = model.discriminator.deberta
    embedded = embedding(corrupted, table)
    states = body(inputs_embeds=embedded, attention_mask=mask).last_hidden_state
    head = model.discriminator.mask_predictions
    norm = head.LayerNorm
    x = layer_norm(states + states[:, 0][:, None], (32,), norm.weight, norm.bias, 1e-7)
    x = gelu(x @ head.dense.weight.T + head.dense.bias)
    judged = (x @ head.classifier.weight.T + head.classifier.bias)[..., 0]
    labels = (corrupted != original).float()
    losses = binary_cross_entropy_with_logits(judged, labels, reduction="none")
    torch.testing.assert_close(sums["rtd"], losses[mask == 1].sum())
    assert examples.weights == {"mlm": 1, "rtd": 10}


def test_losses_at_the_start(examples: ObjectiveExamples) -> None:
    batch = some(examples)
    sums, counts = examples.loss(network(pair()), batch), batch.counts()
    means = {term: (sums[term] / counts[term]).item() for term in HEADS}
    assert means["mlm"] == pytest.approx(math.log(120), rel=0.03)
    assert means["rtd"] == pytest.approx(math.log(2), rel=0.05)


def gradients(examples: ObjectiveExamples, term: str, sharing: str) -> dict[str, float]:
    """How large the gradient of a loss is, by parameter; 0 or none: left out."""
    model = pair(embedding_sharing=sharing)
    examples.loss(network(model), some(examples))[term].backward()
    sizes = {n: p.grad.norm().item() for n, p in model.named_parameters() if p.grad is not None}
    return {name: size for name, size in sizes.items() if size > 0}


def test_no_gradient_of_the_discriminators_loss_reaches_the_generator(
    examples: ObjectiveExamples,
) -> None:
    table = "discriminator.deberta.embeddings.word_embeddings.weight"
    replaced = gradients(examples, "rtd", "gradient_disentangled")
    assert table in replaced
    assert all(name.startswith("discriminator.") for name in replaced)
    masked = gradients(examples, "mlm", "gradient_disentangled")
    assert "generator.deberta.embeddings.word_embeddings.weight" in masked
    assert all(name.startswith("generator.") for name in masked)
    both = gradients(examples, "rtd", "shared")  # the table has the name of its first owner
    assert both.keys() == replaced.keys()
    assert gradients(examples, "rtd", "none").keys() == replaced.keys()


@pytest.mark.parametrize("term", HEADS)
def test_a_step_on_one_loss_moves_one_table(examples: ObjectiveExamples, term: str) -> None:
    model = pair()
    theirs, own = tables(model)
    before, words = theirs.detach().clone(), model.discriminator.deberta.embeddings.word_embeddings
    assert (own == 0).all()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    examples.loss(network(model), some(examples))[term].backward()
    optimizer.step()
    assert torch.equal(theirs, before) == (term == "rtd")
    assert bool((own == 0).all()) == (term == "mlm")
    assert torch.equal(words.whole(), theirs + own)


def test_who_owns_which_table() -> None:
    shared, apart = pair(embedding_sharing="shared"), pair(embedding_sharing="none")
    assert tables(shared)[0] is tables(shared)[1]
    assert not torch.equal(*tables(apart))
    disentangled = pair()
    parameters = sum(p.numel() for p in disentangled.parameters())
    assert parameters == sum(p.numel() for p in apart.parameters())
    assert parameters - sum(p.numel() for p in shared.parameters()) == 120 * 32


def test_the_head_reads_each_token_beside_the_first() -> None:
    """A permutation of the other tokens permutes its logits."""
    head = pair().discriminator.mask_predictions
    states, order = torch.randn(2, 9, 32), torch.tensor([0, 5, 3, 8, 1, 2, 7, 4, 6])
    torch.testing.assert_close(head(states[:, order]), head(states)[:, order])
    before = head(states)
    states[:, 0] = torch.randn(2, 32)
    assert ((head(states) - before).abs() > 1e-6).all()


def test_a_padded_batch_has_the_same_losses(examples: ObjectiveExamples) -> None:
    model, batch = pair(initializer_range=0.3).eval(), some(examples)
    wide = fixed(batch, 40)
    assert wide.inputs["positions"].shape != batch.inputs["positions"].shape
    ours, again = (examples.loss(network(model), one) for one in (batch, wide))
    for term in HEADS:
        torch.testing.assert_close(again[term], ours[term])


@pytest.mark.parametrize("sharing", ["gradient_disentangled", "shared", "none"])
def test_its_folder_is_a_plain_body_with_the_sum_as_its_table(
    examples: ObjectiveExamples, tmp_path: Path, sharing: str
) -> None:
    model = pair(embedding_sharing=sharing).eval()
    theirs, own = tables(model)
    with torch.no_grad():
        own.normal_(std=0.02)
    model.save_pretrained(tmp_path)
    ids = torch.randint(5, 120, (2, 9))
    body = AutoModel.from_pretrained(tmp_path).eval()
    assert type(body) is DebertaV2Model
    table = theirs + own if sharing == "gradient_disentangled" else own
    assert torch.equal(body.get_input_embeddings().weight, table)
    expected = model.discriminator.deberta(ids).last_hidden_state
    assert torch.equal(body(ids).last_hidden_state, expected)
    generator = AutoModelForMaskedLM.from_pretrained(tmp_path / "generator")
    assert torch.equal(generator.get_input_embeddings().weight, theirs)
    family = get_family("deberta")()
    masked = family.load(str(tmp_path), ("mlm",)).eval()
    assert torch.equal(masked(ids).logits, model.generator(ids).logits)
    again = family.load(str(tmp_path), HEADS).eval()
    assert isinstance(again, DebertaPair)
    losses = (examples.loss(network(one), some(examples)) for one in (again, model))
    for one, other in zip(*(loss.values() for loss in losses), strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(tables(again), (theirs, own))
    assert (tables(again)[0] is tables(again)[1]) == (sharing == "shared")


def test_a_folder_without_a_generator(tmp_path: Path) -> None:
    """The discriminator begins as it was, and a new generator with its table."""
    model = pair()
    model.discriminator.save_pretrained(tmp_path)
    family = get_family("deberta")()
    with pytest.raises(DataError, match="generator"):
        family.load(str(tmp_path), HEADS)
    said: list[str] = []
    again = family.load(str(tmp_path), HEADS, new_heads=said.append)
    assert "new, with random weights: generator" in said[0]
    assert isinstance(again, DebertaPair)
    theirs, own = tables(again)
    assert torch.equal(theirs, tables(model)[0])
    assert (own == 0).all()


@pytest.mark.parametrize("family", ["deberta", "electra"])
@pytest.mark.parametrize("sharing", ["gradient_disentangled", "shared", "none"])
def test_new_tokens_are_means_in_both_networks(family: str, sharing: str, tmp_path: Path) -> None:
    fields = {"embedding_sharing": sharing} if family == "deberta" else {}
    model = make_model(family, 50, HEADS, pad_id=0, seed=1, size="tiny", **fields)
    assert isinstance(model, Pair)
    with torch.no_grad():
        model.discriminator.get_input_embeddings().weight.normal_()
    extend_vocabulary(model, {50: [7, 9], 51: []})
    model.save_pretrained(tmp_path)
    for folder in (tmp_path, tmp_path / "generator"):
        table = AutoModel.from_pretrained(folder).get_input_embeddings().weight
        assert len(table) == 52
        torch.testing.assert_close(table[50], table[[7, 9]].mean(0))
        torch.testing.assert_close(table[51], table[:50].mean(0))
    assert model.generator.config.vocab_size == model.config.vocab_size == 52
