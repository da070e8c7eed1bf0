"""A device that is not there: what a run, a validation and the commands of a model make on it."""

from pathlib import Path

import pytest

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
