"""Measures, tasks and commands on a device that is not there: no 64-bit float is made on it."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from plmctl import registry
from plmctl.config.sections import ComputeConfig, OptimConfig
from plmctl.errors import ConfigError
from plmctl.evaluation.model import LoadedModel
from plmctl.evaluation.scoring import answers
from plmctl.measures.base import get_measure
from plmctl.models.load import HeadSource, config_of
from plmctl.models.network import Network
from plmctl.tasks.base import get_task
from plmctl.training.data import StepBatches
from plmctl.training.engine import make_accelerator, make_engine
from plmctl.training.loop import take_step
from plmctl.training.plan import Slicing
from tests.commands.conftest import corpus_text
from tests.conftest import run_main
from tests.devices import DEVICE, on_a_device
from tests.evaluation.models import FAMILIES as FAMILIES_WITH_FOLDERS
from tests.evaluation.test_age_of_acquisition import cdi
from tests.evaluation.test_reading_times import reading_rows, table
from tests.processes import in_two_processes
from tests.tasks.conftest import Folder, folder, rows_of  # noqa: F401  # a fixture

Folders = Callable[[str], Path]
TEXT = {"data": ["text.txt"]}
LONG = {**TEXT, "seq_len": 16, "max_samples": 2}
ITEMS = {"data": ["items.jsonl"]}
MEASURES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "age_of_acquisition": (("bert", "gpt2"), {"data": ["cdi/cdi_*"]}),
    "bilm": (("elmo",), LONG),
    "bits_per_byte": (("bert", "gpt2", "t5", "elmo"), {**TEXT, "max_bytes": 90}),
    "closed_book_qa": (("gpt2", "t5"), {**ITEMS, "max_new_tokens": 2}),
    "clm": (("gpt2",), LONG),
    "lambada": (("gpt2",), ITEMS),
    "minimal_pairs": (("bert", "gpt2", "t5", "elmo"), ITEMS),
    "mlm": (("bert",), LONG),
    "multiple_choice": (("gpt2", "t5"), {**ITEMS, "template": "{question}", "answer": "right"}),
    "ngram": ((), {}),  # no network
    "nsp": ((), {}),  # its loss is scored as every other in the test of objectives
    "perplexity": (("gpt2",), {**TEXT, "max_bytes": 90}),
    "prefix_lm": (("t5",), LONG),
    "pseudo_perplexity": (("bert",), {**TEXT, "max_bytes": 90}),
    "ranked_completions": (
        ("bert", "gpt2"), {**ITEMS, "context": "{question}", "options": "options"}
    ),
    "reading_times": (("bert", "gpt2"), {"data": ["reading.csv"]}),
    "sop": ((), {}),
    "span_corruption": (("t5",), LONG),
    "task": ((), {}),  # the test of tasks
}  # fmt: skip
ITEM = {
    "question": "who sees the bank?", "answers": ["Anna"], "options": ["Anna", "the bank"],
    "right": 0, "text": "Anna sees the bank", "sentence_good": "Anna sees the bank.",
    "sentence_bad": "the bank Anna sees.",
}  # fmt: skip


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(corpus_text(4, 3), encoding="utf-8")
    Path("items.jsonl").write_text(json.dumps(ITEM) + "\n")
    table(Path("reading.csv"), reading_rows())
    cdi(Path("cdi"), 1)


@contextmanager
def the_only_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every command takes it."""
    with on_a_device() as accelerator:
        monkeypatch.setattr(
            "plmctl.training.engine.make_accelerator", lambda *args, **fields: accelerator
        )
        yield


SLOW = [
    pytest.param(name, marks=[] if name == "mlm" else pytest.mark.slow)
    for name in registry.names("measures")
]


@pytest.mark.parametrize("name", SLOW)
def test_measures(name: str, folder_of: Folders, texts: None) -> None:
    families, fields = MEASURES[name]
    for family in families:
        measure = get_measure(name)
        config = measure.Config.model_validate({"name": name, **fields})
        place = str(folder_of(family))
        with on_a_device() as accelerator:
            model = LoadedModel(place, accelerator, 4)
            assert model.device == DEVICE
            assert measure(config).measure(model, 7).results


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("generate", "gpt2", "--prompt", "Anna", "--max-new-tokens", "2", "--temperature", "2"),
        ("generate", "t5", "--prompt", "Anna", "--max-new-tokens", "2", "--top-k", "3"),
        ("predict", "bert", "Anna sees [MASK]."),
        ("neighbours", "elmo", "text.txt", "--word", "Anna"),
    ],
)
def test_commands(
    command: tuple[str, ...], folder_of: Folders, texts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, family, *options = command
    place = str(folder_of(family))
    with the_only_device(monkeypatch):
        assert run_main(name, place, *options) == 0


WORDS = "a b c d e f g h"
ROWS = rows_of(
    *(
        {
            "text": WORDS, "label": "xyz"[n % 3], "several": ["x", "y"][: n % 3], "score": n / 4,
            "question": "a b", "options": ["c", "d e"], "right": n % 2, "context": WORDS,
            "answers": {"text": ["c d"], "answer_start": [4]}, "tokens": WORDS.split(),
            "tags": ["O", "B-X"] * 4, "target": "h g",
            "head": [2, 0, 2, 2, 7, 7, 2, 7], "deprel": ["x", "root", *"yxyxyx"],
        }
        for n in range(4)
    )
)  # fmt: skip
TASKS = {
    "classification": [
        {},
        {"problem": "multi_label", "label": "several", "class_weights": "balanced"},
        {"problem": "regression", "label": "score"},
        {"pooling": "mean"},
    ],
    "multiple_choice": [{"label": "right"}],
    "lemmas": [{"tags": "tags"}],
    "parsing": [{}, {"layers": "mix", "piece": "first"}],
    "question_answering": [{}],
    "tagging": [{}, {"layers": "mix"}],
    "text_to_text": [{"source": "text", "max_target_length": 3}],
}


FAMILIES = {"multiple_choice": ("bert", "gpt2"), "text_to_text": ("gpt2", "gpt1")}


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.names("tasks"))
def test_tasks(name: str, folder: Folder) -> None:  # noqa: F811
    for fields in TASKS[name]:
        task = get_task(name)(get_task(name).Config(name=name, **fields))
        for family in FAMILIES.get(name, ("bert",)):
            tokenizer = task.tokenizer(folder(family))
            labels = task.labels(ROWS)
            model = task.load(HeadSource(folder(family), tokenizer, labels, new_heads=print))
            examples = {
                use: task.make(ROWS, tokenizer, labels, 40, use) for use in ("train", "predict")
            }
            with on_a_device() as accelerator:
                network = Network(model, task.forward)
                engine = make_engine(accelerator, network, OptimConfig(), ComputeConfig())
                engine.network.train()
                batches = StepBatches(examples["train"], Slicing(4, 4), 7)[0]
                take_step(engine, examples["train"], batches, 1.0, 3)
                with torch.inference_mode():
                    examples["train"].score(engine.unwrapped.eval(), batches[0].to(DEVICE))
                assert len(answers(engine.unwrapped, examples["predict"], DEVICE)) == len(ROWS)


# --- Every head on every family: two processes, with whole weights and with parts of them ---

Steps = list[tuple[float, float]]


def steps_of(
    case: tuple[str, dict[str, Any]], place: str, rank: int, world: int, **engine: Any
) -> Steps:
    """Losses and gradient norms of three steps without dropout."""
    name, fields = case
    task = get_task(name)(get_task(name).Config(name=name, **fields))
    task.check(place, config_of(place))
    tokenizer, labels = task.tokenizer(place), task.labels(ROWS)
    torch.manual_seed(5)
    model: Any = task.load(HeadSource(place, tokenizer, labels, new_heads=lambda line: None))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for owner in (module, getattr(module, "config", None)):
            for key in [key for key in vars(owner or module) if "drop" in key]:
                if isinstance(getattr(owner, key), float):
                    setattr(owner, key, 0.0)
    compute = ComputeConfig(device="cpu", precision="fp32")
    made = make_engine(
        make_accelerator(compute), Network(model, task.forward), OptimConfig(), compute, **engine
    )
    made.network.train()
    examples = task.make(ROWS, tokenizer, labels, 40, "train")
    source = StepBatches(examples, Slicing(4, 1, rank, world), 7)
    done = (take_step(made, examples, source[number], 1.0, number) for number in range(3))
    return [(step.loss, step.grad_norm) for step in done]


def _as_one(
    expected: list[tuple[tuple[str, dict[str, Any]], Steps]], place: str, rank: int
) -> None:
    for case, steps in expected:
        for sharded in (False, True):
            several = steps_of(case, place, rank, 2, sharded=sharded)
            for one, other in zip(steps, several, strict=True):
                assert other == pytest.approx(one, rel=1e-4, abs=2e-5), (case, sharded)


@pytest.mark.sweep
@pytest.mark.parametrize("family", FAMILIES_WITH_FOLDERS)
def test_heads_in_two_processes(family: str, folder_of: Folders, tmp_path: Path) -> None:
    place, expected = str(folder_of(family)), []
    for name, several in TASKS.items():
        for fields in several:
            with suppress(ConfigError):  # it has no such head
                expected.append(((name, fields), steps_of((name, fields), place, 0, 1)))
    assert expected
    in_two_processes(partial(_as_one, expected, place), tmp_path)
