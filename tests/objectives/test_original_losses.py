"""Losses of SpanBERT, ELMo and DistilBERT beside the originals', said again in float64.

From the hidden states of a small network the heads and losses are computed in NumPy. Sources:
facebookresearch/SpanBERT (``BertPairTargetPredictionHead``), allenai/bilm-tf (``_build_loss``, and
TensorFlow's ``sampled_softmax_loss``), huggingface/distillation (``Distiller.step``).
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import erf, log_softmax, softmax
from transformers import BertForMaskedLM

from plmctl.config.sections import ComputeConfig
from plmctl.corpus.store import TokenStore
from plmctl.examples.keys import fold
from plmctl.models.base import Examples
from plmctl.models.batch import Batch
from plmctl.models.network import Network
from plmctl.objectives.bilm import log_uniform
from plmctl.tokenization.load import Vocab
from plmctl.training.engine import make_accelerator
from tests.builders import make_examples, make_model, make_network, random_documents

VOCAB = Vocab(size=120, pad=0, unk=1, cls=2, sep=3, mask=4)
SMALL = {"hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 64}
Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def store() -> TokenStore:
    return TokenStore.from_lists(random_documents(3), vocab_size=120)


def weight(module: torch.nn.Module, name: str) -> Array:
    return module.get_parameter(name).detach().double().numpy()


def stirred(network: Network) -> Network:
    """With weights that are neither small nor 0 nor 1."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network


def total(examples: Examples, network: Network, batch: Batch) -> float:
    """The loss of a step: means by their weights."""
    with torch.no_grad():
        sums, counts = examples.loss(network, batch), batch.counts()
    weights = getattr(examples, "weights", {})
    return sum(weights.get(name, 1) * sums[name].item() / counts[name] for name in sums)


def entropy(logits: Array, targets: Array) -> float:
    return -log_softmax(logits, axis=-1)[np.arange(len(targets)), targets].mean()


def test_spanbert(store: TokenStore) -> None:
    """Masked tokens, and the spans from the two tokens around each and a place."""
    fields = SMALL | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    network = stirred(make_network("spanbert", 120, ("mlm", "sbo"), size="tiny", **fields))
    examples = make_examples("mlm+sbo", store, VOCAB, 48)
    batch = examples.collate(np.zeros(12, int), np.arange(12))
    inputs = {name: tensor.numpy() for name, tensor in batch.inputs.items()}

    model = network.model.eval()
    names = ("input_ids", "attention_mask", "token_type_ids")
    with torch.no_grad():
        output = model.bert(**{name: batch.inputs[name] for name in names})
        masked = model.cls(output.last_hidden_state).flatten(0, 1)[inputs["positions"]]
    hidden = output.last_hidden_state.flatten(0, 1).double().numpy()

    def layer(x: Array, number: int) -> Array:
        x = x @ weight(model, f"sbo.linear{number}.weight").T
        x = x + weight(model, f"sbo.linear{number}.bias")
        x = 0.5 * x * (1 + erf(x / np.sqrt(2)))
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * weight(model, f"sbo.norm{number}.weight") + weight(
            model, f"sbo.norm{number}.bias"
        )

    place = weight(model, "sbo.position_embeddings.weight")[inputs["place"]]
    pair = np.concatenate([hidden[inputs["left"]], hidden[inputs["right"]], place], axis=-1)
    words = weight(model, "bert.embeddings.word_embeddings.weight")
    logits = layer(layer(pair, 1), 2) @ words.T + weight(model, "sbo.bias")
    expected = entropy(masked.double().numpy(), batch.targets["mlm"].numpy())
    expected += entropy(logits, batch.targets["sbo"].numpy())
    assert len(batch.targets["sbo"]) > 50
    assert total(examples, network, batch) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("softmax_of", ["full", "sampled"])
def test_elmo(softmax_of: str) -> None:
    """Half of each direction's mean; of candidates, minus the log of their expected counts."""
    size = 60
    words = ("<S>", "</S>", "<UNK>", *(f"w{number}" for number in range(3, size)))
    vocab = Vocab(size=size, unk=2, bos=0, eos=1, words=words)
    documents = random_documents(5, (3, size), documents=25, sentences=(1, 8), tokens=(1, 9))
    store = TokenStore.from_lists(documents, size)
    fields = {"softmax": softmax_of, "samples": 20} if softmax_of == "sampled" else {}
    examples = make_examples("bilm", store, vocab, 10, 3, **fields)
    fields = {"projection_size": 16, "cell_size": 24, "dropout": 0.0}
    network = stirred(make_network("elmo", size, ("forward", "backward"), size="tiny", **fields))
    batch = examples.collate(np.zeros(8, int), np.arange(8))

    model = network.model
    with torch.no_grad():
        top, _ = model.top(batch.inputs["characters"], batch.inputs["words"], None)
    table, bias = weight(model, "head.weight"), weight(model, "head.bias")
    chance = np.log((np.arange(size) + 2) / (np.arange(size) + 1)) / np.log(size + 1)
    expected = 0.0
    for direction, name in enumerate(("forward", "backward")):
        logits = top[direction].double().flatten(0, 1).numpy() @ table.T + bias
        targets = batch.targets[name].flatten().numpy()
        if softmax_of == "sampled":
            ids, tries = drawn(examples, direction, size)
            logits = logits - np.log(-np.expm1(tries * np.log1p(-chance)))
            truth = np.arange(len(targets)), targets
            others = np.where(ids == targets[:, None], -np.inf, logits[:, ids])
            logits = np.concatenate([logits[truth][:, None], others], axis=1)
            targets = np.zeros_like(targets)
        expected += 0.5 * entropy(logits, targets)
    assert total(examples, network, batch) == pytest.approx(expected, rel=1e-5)


def drawn(examples: Examples, direction: int, size: int) -> tuple[NDArray[np.int64], int]:
    """The candidates of the first window."""
    return log_uniform(fold(examples.key, 0, direction), size, 20)


def test_distilbert(store: TokenStore, tmp_path: Path) -> None:
    """5 x the divergence at temperature 2, times its square, 2 x masked tokens, 1 x the cosine."""
    make_accelerator(ComputeConfig(device="cpu", precision="fp32"))  # of the teacher too
    teacher = stirred(Network(make_model("bert", 120, ("mlm",), size="tiny", **SMALL), None))
    teacher.model.save_pretrained(tmp_path)
    fields = {"dim": 32, "n_heads": 2, "max_position_embeddings": 64}
    fields |= {"dropout": 0.0, "attention_dropout": 0.0}
    network = stirred(make_network("distilbert", 120, ("mlm",), size="tiny", **fields))
    examples = make_examples("distillation", store, VOCAB, 32, 1, teacher=str(tmp_path))
    batch = examples.collate(np.zeros(12, int), np.arange(12))

    inputs = {name: batch.inputs[name] for name in ("input_ids", "attention_mask")}
    real, labels = inputs["attention_mask"].bool(), batch.targets["mlm"].numpy()
    bert = BertForMaskedLM.from_pretrained(tmp_path).eval()
    sides = []
    for model in (network.model.eval(), bert):
        with torch.no_grad():
            output = model(**inputs, output_hidden_states=True)
        pair = output.logits[real], output.hidden_states[-1][real]
        sides.append([side.double().numpy() for side in pair])
    (student, state), (master, wanted) = sides
    p, q = softmax(master / 2, axis=-1), softmax(student / 2, axis=-1)
    divergence = (p * (np.log(p) - np.log(q))).sum(-1).mean() * 2**2
    norms = np.linalg.norm(state, axis=-1) * np.linalg.norm(wanted, axis=-1)
    cosine = (1 - (state * wanted).sum(-1) / norms).mean()
    chosen = labels >= 0
    expected = 5 * divergence + 2 * entropy(student[chosen], labels[chosen]) + cosine
    assert 20 < chosen.sum() < 0.25 * len(labels)
    assert total(examples, network, batch) == pytest.approx(expected, rel=1e-5)
