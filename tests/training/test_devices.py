"""A device that is not there: what a run, a validation and the commands of a model make on it."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from plmctl.config.sections import ComputeConfig, OptimConfig
from plmctl.corpus.store import TokenStore
from plmctl.evaluation.scoring import score
from plmctl.training.data import StepBatches, scoring_batches
from plmctl.training.engine import make_engine
from plmctl.training.loop import take_step
from plmctl.training.plan import Slicing
from tests.builders import fitting_pairs, random_documents, tiny_world
from tests.devices import on_a_device


@pytest.fixture(scope="module")
def texts() -> TokenStore:
    return TokenStore.from_lists(random_documents(0, (6, 100)), vocab_size=120)


QUICK = ("bert", "mlm+nsp")
CASES = [
    pytest.param(*pair, marks=[] if pair == QUICK else pytest.mark.slow) for pair in fitting_pairs()
]


@pytest.mark.parametrize(("family", "objective"), CASES)
def test_no_float64_in_a_step_or_a_validation(
    family: str, objective: str, texts: TokenStore, tmp_path: Path
) -> None:
    options = {"softmax": "sampled", "samples": 16} if objective == "bilm" else {}
    network, examples = tiny_world(family, objective, texts, tmp_path, **options)
    compute = ComputeConfig(compile=False)
    with on_a_device() as accelerator:
        engine = make_engine(accelerator, network, OptimConfig(), compute)
        engine.network.train()
        take_step(engine, examples, StepBatches(examples, Slicing(4, 4), 7)[0], 1.0, 3)
        batches = scoring_batches(examples, Slicing(4, 4), 4)
        scores = score(accelerator, engine.unwrapped, examples, batches)
    assert "loss" in scores


def test_rows_without_their_padding_take_the_kernel_of_a_gpu(
    texts: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = pytest.importorskip("torch.nn.attention.varlen", reason="needs PyTorch 2.10")
    calls, whole = list[tuple[int, int]](), kernel.varlen_attn

    def counted(query: Tensor, *rest: Any, **options: Any) -> Any:
        calls.append((len(query), rest[-1]))
        return whole(query, *rest, **options)

    monkeypatch.setattr(kernel, "varlen_attn", counted)
    network, examples = tiny_world("bert", "mlm+nsp", texts, tmp_path)
    slicing = Slicing(4, 4, width=64, unpadded=True)
    batches = StepBatches(examples, slicing, 7)[0]
    with on_a_device() as accelerator:
        compute = ComputeConfig(compile=False, attention="unpadded")
        engine = make_engine(accelerator, network, OptimConfig(), compute)
        engine.network.train()
        take_step(engine, examples, batches, 1.0, 3)
    positions = len(batches[0].inputs["unpadded_positions"])
    assert positions < batches[0].padded_tokens
    assert calls == [(positions, 64)] * network.model.config.num_hidden_layers
