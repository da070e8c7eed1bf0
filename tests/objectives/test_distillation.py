"""The triple loss, held to a direct computation with transformers' models."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity, kl_div
from transformers import BertForMaskedLM, DistilBertForMaskedLM

from plmctl.arrays import IGNORE
from plmctl.config.sections import ComputeConfig
from plmctl.corpus.store import TokenStore
from plmctl.models.network import Network
from plmctl.models.teacher import load_teacher
from plmctl.objectives.base import get_objective
from plmctl.tokenization.load import Vocab
from plmctl.training.engine import make_accelerator
from tests.builders import make_examples, make_model, make_network

VOCAB = Vocab(size=120, pad=0, unk=1, cls=2, sep=3, mask=4)


@pytest.fixture(autouse=True)
def float32() -> None:
    """The teacher computes in the precision of the process's last accelerator."""
    make_accelerator(ComputeConfig(device="cpu", precision="fp32"))


@pytest.fixture(scope="module")
def store() -> TokenStore:
    rng = np.random.default_rng(0)
    weights = 1 / np.arange(1, 115)  # some tokens are rare
    documents = [
        [
            (6 + rng.choice(114, rng.integers(3, 15), p=weights / weights.sum())).tolist()
            for _ in range(rng.integers(2, 25))
        ]
        for _ in range(30)
    ]
    return TokenStore.from_lists(documents, vocab_size=120)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("teacher")
    small = {"hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 64}
    model = make_model("bert", 120, ("mlm",), seed=5, size="tiny", **small)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def network() -> Network:
    small = {"dim": 32, "n_heads": 2, "dropout": 0.0, "attention_dropout": 0.0}
    small |= {"max_position_embeddings": 64}
    return make_network("distilbert", 120, ("mlm",), seed=6, size="tiny", **small)


def make_objective(store: TokenStore, teacher: str, **fields: object):
    return make_examples("distillation", store, VOCAB, 32, 1, teacher=teacher, **fields)


def batch_of(objective, count: int = 12):
    return objective.collate(np.zeros(count, dtype=int), np.arange(count))


@pytest.mark.parametrize("kl_tokens", ["all", "masked"])
def test_triple_loss(kl_tokens: str, store: TokenStore, teacher: str, network: Network) -> None:
    objective = make_objective(store, teacher, kl_tokens=kl_tokens)
    batch = batch_of(objective)
    sums, counts = objective.loss(network, batch), batch.counts()
    ours = {part: sums[part].item() / counts[part] for part in objective.loss_terms}

    student: DistilBertForMaskedLM = network.model
    bert = BertForMaskedLM.from_pretrained(teacher).eval()
    inputs = {name: batch.inputs[name] for name in ("input_ids", "attention_mask")}
    real = inputs["attention_mask"].bool()
    labels = torch.full_like(inputs["input_ids"], IGNORE)
    labels[real] = batch.targets["mlm"]
    theirs = student(**inputs, labels=labels, output_hidden_states=True)
    with torch.no_grad():
        teacher_output = bert(**inputs, output_hidden_states=True)
    where = real if kl_tokens == "all" else labels != IGNORE
    divergence = kl_div(
        (theirs.logits[where] / 2).log_softmax(-1),
        (teacher_output.logits[where] / 2).softmax(-1),
        reduction="batchmean",
    )
    cosine = cosine_similarity(
        theirs.hidden_states[-1][real], teacher_output.hidden_states[-1][real], dim=-1
    )
    expected = {
        "mlm": theirs.loss.item(),  # transformers' own loss
        "kl": divergence.item(),
        "cosine": (1 - cosine).mean().item(),
    }
    assert ours == pytest.approx(expected, rel=1e-5)
    assert objective.weights == {"mlm": 2, "kl": 5 * 2**2, "cosine": 1}
    assert divergence.item() > 0.01


def test_a_student_that_is_its_teacher_has_no_distance(store: TokenStore, teacher: str) -> None:
    objective = make_objective(store, teacher)
    bert = BertForMaskedLM.from_pretrained(teacher).eval()

    class Same(torch.nn.Module):
        def forward(self, input_ids, attention_mask, token_type_ids, positions):
            output = bert(input_ids, attention_mask=attention_mask, output_hidden_states=True)
            return {
                "mlm": output.logits.flatten(0, 1)[positions],
                "hidden": output.hidden_states[-1].flatten(0, 1)[positions],
            }

    sums = objective.loss(Same(), batch_of(objective))
    assert sums["kl"].item() == pytest.approx(0, abs=1e-3)
    assert sums["cosine"].item() == pytest.approx(0, abs=1e-3)
    assert sums["mlm"].item() > 1


def test_the_teacher_is_frozen(store: TokenStore, teacher: str, network: Network) -> None:
    objective = make_objective(store, teacher)
    batch = batch_of(objective)
    before = {
        n: p.clone() for n, p in load_teacher(teacher, torch.device("cpu")).named_parameters()
    }
    sum(objective.loss(network, batch).values()).backward()
    loaded = load_teacher(teacher, torch.device("cpu"))
    assert not loaded.training  # no dropout: the same answer every time
    assert loaded is load_teacher(teacher, torch.device("cpu"))
    for name, parameter in loaded.named_parameters():
        assert not parameter.requires_grad
        assert parameter.grad is None
        assert torch.equal(parameter, before[name])
    grads = [p.grad for p in network.parameters() if p.grad is not None]
    assert len(grads) > 10
    assert not [name for name, _ in network.named_parameters() if "bert.encoder" in name]


def test_targets_and_counts(store: TokenStore, teacher: str) -> None:
    objective = make_objective(store, teacher)
    batch = batch_of(objective)
    lengths = batch.inputs["attention_mask"].sum(1).tolist()
    masked = sum(max(1, round(0.15 * length)) for length in lengths)
    assert batch.counts() == {"mlm": masked, "kl": sum(lengths), "cosine": sum(lengths)}
    few = batch_of(make_objective(store, teacher, kl_tokens="masked"))
    assert few.counts()["kl"] == masked


def test_rare_tokens_are_masked_more_often(store: TokenStore, teacher: str) -> None:
    """A token's share of the predictions over its share of the text grows as count ** -0.7 does."""
    rates = {}
    frequent = np.bincount(store.tokens(np.arange(store.num_tokens)), minlength=120).argsort()[::-1]
    for smoothing in (0.0, 0.7):
        objective = make_objective(store, teacher, smoothing=smoothing)
        masked, seen = np.zeros(120), np.zeros(120)
        for epoch in range(8):
            batch = objective.collate(np.full(len(objective), epoch), np.arange(len(objective)))
            target = batch.targets["mlm"].numpy()
            masked += np.bincount(target[target >= 0], minlength=120)
        seen = 8 * np.bincount(store.tokens(np.arange(store.num_tokens)), minlength=120)
        assert masked[:6].sum() == 0  # special tokens are never targets
        rates[smoothing] = (masked / np.maximum(seen, 1))[frequent]
    assert rates[0.0][0] == pytest.approx(rates[0.0][20:60].mean(), rel=0.2)
    assert rates[0.7][20:60].mean() > 2 * rates[0.7][0]


def test_options_that_do_not_go_together() -> None:
    member = get_objective("distillation")
    with pytest.raises(ValueError, match="smoothing: 0"):
        member.Config(name="distillation", teacher="x", unit="word")
    assert member.Config(name="distillation", teacher="x", unit="word", smoothing=0).unit == "word"


def test_scores_have_no_accuracy_where_nothing_is_right(
    store: TokenStore, teacher: str, network: Network
) -> None:
    from accelerate import Accelerator

    from plmctl.evaluation.scoring import score
    from plmctl.training.data import scoring_batches
    from plmctl.training.plan import Slicing

    objective = make_objective(store, teacher)
    batches = scoring_batches(objective, Slicing(8, 8), 16)
    scores = score(Accelerator(cpu=True), network, objective, batches)
    assert set(scores) == {"loss", "loss/mlm", "loss/kl", "loss/cosine", "accuracy/mlm"}
    assert all(np.isfinite(value) for value in scores.values())


def test_a_teacher_that_scoring_loads_can_be_trained_with(
    store: TokenStore, teacher: str, network: Network, tmp_path: Path
) -> None:
    import shutil

    fresh = shutil.copytree(teacher, tmp_path / "fresh")
    objective = make_objective(store, str(fresh))
    batch = batch_of(objective)
    with torch.inference_mode():
        objective.score(network, batch)
    sum(objective.loss(network, batch).values()).backward()
    assert any(p.grad is not None and p.grad.any() for p in network.parameters())


def test_own_loss_of_the_student_and_of_roberta(store: TokenStore) -> None:
    """Gathered positions give transformers' own loss over all of them."""
    objective = make_examples("mlm", store, VOCAB, 32, 1, packing="full_sentences")
    batch = batch_of(objective)
    labels = torch.full_like(batch.inputs["input_ids"], IGNORE).flatten()
    labels[batch.inputs["positions"]] = batch.targets["mlm"]
    labels = labels.view_as(batch.inputs["input_ids"])
    inputs = {name: batch.inputs[name] for name in ("input_ids", "attention_mask")}
    for family in ("distilbert", "roberta", "spanbert"):
        network = make_network(family, 120, ("mlm",), size="tiny").eval()
        ours = objective.loss(network, batch)["mlm"].item() / batch.counts()["mlm"]
        # The padding token among the input would move RoBERTa's positions in transformers.
        assert not ((inputs["input_ids"] == 0) & (inputs["attention_mask"] == 1)).any()
        assert ours == pytest.approx(network.model(**inputs, labels=labels).loss.item(), rel=1e-6)
        assert ours == pytest.approx(np.log(120), rel=0.05)  # it knows nothing yet
