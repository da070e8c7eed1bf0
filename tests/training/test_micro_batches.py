"""Loss and gradient do not depend on how a step is cut: RoBERTa, SpanBERT, DistilBERT."""

import pytest
import torch

from plmctl import families, objectives, registry
from plmctl.corpus.store import TokenStore
from plmctl.modeling.network import Network
from plmctl.training.data import Slicing, Step, StepBatches, weight
from plmctl.training.loop import update
from tests.training.conftest import VOCAB, tiny_engine, weights

CASES = {
    "roberta, full sentences": ("roberta", "mlm", {"packing": "full_sentences"}),
    "roberta, as published": (
        "roberta",
        "mlm",
        {"packing": "doc_sentences", "count": "probabilistic", "mask_specials": True},
    ),
    "roberta, pairs": ("roberta", "mlm", {"packing": "segment_pair"}),
    "spanbert": ("spanbert", "mlm+sbo", {"sbo_weight": 0.5}),
    "spanbert, masked tokens": ("spanbert", "mlm", {}),
    "distilbert, masked tokens": ("distilbert", "mlm", {}),
    "distilbert": ("distilbert", "distillation", {}),
    "distilbert, taught alone": ("distilbert", "distillation", {"mlm_weight": 0.0}),
    "distilbert, masked only": ("distilbert", "distillation", {"kl_tokens": "masked"}),
}
SMALL = {"hidden_size": 32, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("teacher")
    config = registry.load("families", "bert").Config(size="tiny", **SMALL)
    model = families.get("bert").build(config, vocab_size=VOCAB.size, pad_id=0, parts=("mlm",))
    with torch.no_grad():  # a teacher with opinions
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return str(folder)


def network_of(family: str, objective: str) -> Network:
    torch.manual_seed(0)
    fields = (
        {"dim": 32, "n_heads": 2, "dropout": 0.0, "attention_dropout": 0.0}
        if family == "distilbert"
        else {**SMALL, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    )
    config = registry.load("families", family).Config(size="tiny", **fields)
    parts = objectives.get(objective).PARTS
    assert set(parts) <= set(families.get(family).HEADS)
    model = families.get(family).build(config, vocab_size=VOCAB.size, pad_id=0, parts=parts)
    return Network(model, families.get(family).forward)


def step_of(objective: str, fields: dict, store: TokenStore, teacher: str) -> Step:
    member = objectives.get(objective)
    if objective == "distillation":
        fields = {**fields, "teacher": teacher}
    return member.make(member.Config(name=objective, **fields), store, VOCAB, 48, 7)


@pytest.mark.parametrize("case", CASES)
def test_a_step_cut_up_is_the_same_step(case: str, store: TokenStore, teacher: str) -> None:
    family, objective, fields = CASES[case]
    step = step_of(objective, fields, store, teacher)
    found = {}
    for micro in (16, 8, 5, 1):
        engine = tiny_engine(network_of(family, objective))
        gradients: dict[str, torch.Tensor] = {}
        for name, parameter in engine.trained().network.named_parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda p, name=name, into=gradients: into.__setitem__(name, p.grad.double())
            )
        batches = StepBatches(step, Slicing(16, micro), 7)[0]
        done = update(engine, step, batches, None, 1, False)
        found[micro] = (done.loss, gradients, weights(engine))
    loss, gradients, _ = found[16]
    size = torch.stack([g.norm() for g in gradients.values()]).norm()
    assert size > 0.01
    for micro in (8, 5, 1):
        got = found[micro]
        assert got[0] == pytest.approx(loss, rel=1e-6)
        off = torch.stack([(got[1][n] - g).norm() for n, g in gradients.items()]).norm()
        assert off / size < 1e-6, f"{micro}: {off / size}"


@pytest.mark.parametrize(
    "case", ["roberta, full sentences", "spanbert", "distilbert, taught alone"]
)
def test_the_loss_falls(case: str, store: TokenStore, teacher: str) -> None:
    """A few steps on one batch: the heads are connected to what they are scored on."""
    family, objective, fields = CASES[case]
    step = step_of(objective, fields, store, teacher)
    engine = tiny_engine(network_of(family, objective), lr=3e-3)
    batches = StepBatches(step, Slicing(16, 16), 7)[0]
    losses = [update(engine, step, batches, None, 1, False).losses for _ in range(25)]
    for part in (part for part in step.parts if weight(step, part)):
        assert losses[-1][part] < 0.9 * losses[0][part], part
