"""One member through all commands, in a working directory with a corpus: tiny, two steps."""

from __future__ import annotations

import json
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from plmctl.commands.try_model import Question, TriedModel
from plmctl.corpus.labelled import read_rows
from plmctl.families.base import Family, get_family, make_family
from plmctl.objectives.base import get_objective, make_objective
from plmctl.tasks.base import get_task
from plmctl.tokenization.load import open_tokenizer
from tests.commands.conftest import run_in
from tests.conftest import run_main

TEXT = "Anna sees Bela at the garden on day 3."
TINY = (
    "train.budget=null", "train.batch_size=8", "train.phases=[{seq_len: 24, steps: 2}]",
    "schedule={warmup: 1}", "checkpoint={every: 1}", "log={every: 1, validate_samples: 4}",
    "compute={device: cpu, precision: fp32, workers: 0}",
)  # fmt: skip
BUDGETED = ("train.budget=10m", "train.phases=[{seq_len: 24}]")


OBJECTIVES = {
    "distillation": {"name": "distillation", "teacher": "unused"},
    "mixture": {"name": "mixture", "of": [{"name": "clm", "weight": 3}, {"name": "mntp"}]},
}
"""The configs of those that need more than a name."""


def bound(name: str) -> Any:
    """An objective with the least of a config."""
    config = get_objective(name).Config.model_validate(OBJECTIVES.get(name, {"name": name}))
    return make_objective(config)


def done(*arguments: str) -> str:
    """What a command line prints, which must succeed."""
    code, out, err = ended(*arguments)
    assert code == 0, f"{' '.join(arguments)}: {code}\n{err}"
    return out


def refused(*arguments: str) -> str:
    """The error of a command line, which must say in one line what the member cannot do."""
    code, _, err = ended(*arguments)
    lines = [line for line in err.splitlines() if line.startswith("plmctl: ")]
    assert code == 2, f"{' '.join(arguments)}: {code}\n{err}"
    assert len(lines) == 1, err
    assert "Traceback" not in err
    return lines[0]


def ended(*arguments: str) -> tuple[int, str, str]:
    """The code, stdout and stderr of a command line."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = run_main(*arguments)
    return code, out.getvalue(), err.getvalue()


def walk(
    name: str,
    objective: str | None = None,
    bert: str = "done-bert",
    network: dict[str, Any] | None = None,
) -> None:
    """Take a family, and perhaps an objective that is not its paper's, through all commands.

    Args:
        bert: A run folder of a BERT, which teaches a family or objective that needs a teacher.
        network: Options of a family that has no sizes, so that `init` does not propose it.
    """
    family: Any = get_family(name)
    if network is not None:
        family = make_family(family.Config.model_validate({"family": name, **network}))
    folder = f"{network['architecture'] if network else name}-{objective or family.OBJECTIVE}"
    changes = (*TINY, f"run={folder}/pretrained")
    if network is not None:
        configured = configure_by_hand(family, network, folder)
    else:
        configured = configure(family, objective, folder, bert)
    pretraining = (configured, *changes)
    assert json.loads(done("plan", *pretraining, "--json"))["parameters"] > 0
    timed = json.loads(done("plan", *pretraining, *BUDGETED, "--json"))
    assert "estimated from one layer" in timed["reason"]
    assert done("preview", *pretraining, "--examples", "1")
    done("prepare", *pretraining)
    done("pretrain", *pretraining)
    check_samples(family, objective, Path(folder, "pretrained"))
    still = [f"model.{key}=0" for key in family.DROPOUT if key in family.Config.model_fields]
    check_processes(family, "pretrain", *pretraining, *still, folder=folder)
    done("export", f"{folder}/pretrained", f"{folder}/early", "--step", "1")
    measure = {"name": "bits_per_byte", "data": ["text.txt"], "held_out": "10%"}
    measure |= {"max_bytes": 500, "max_document_bytes": 200}
    settings = {"run": f"{folder}/eval", "model": f"{folder}/early", "measures": [measure]}
    write(f"{folder}/eval.yaml", settings | {"compute": {"device": "cpu"}})
    done("eval", f"{folder}/eval.yaml")
    check_answers(family, f"{folder}/pretrained")
    check_tried(f"{folder}/pretrained")
    finetune(family, folder)
    more = ("train.phases=[{seq_len: 24, steps: 12}]", f"run={folder}/verified")
    printed = done("verify-resume", configured, *TINY, *more, "--kills", "1", "--steps", "12")
    assert "the killed run equals the uninterrupted run" in printed


def configure(family: type[Family], objective: str | None, folder: str, bert: str) -> str:
    """The config of a pretraining: that of `init`, or one by hand for what has a teacher."""
    own = get_objective(objective or family.OBJECTIVE)
    proposal = ("init", "text.txt", "--no-smoke", "--budget", "10k tokens", "--out", folder)
    teacher = "teacher" in own.Config.model_fields
    if teacher:
        if objective is None:
            assert "learns from a larger model" in refused(*proposal, "--family", family.name)
        settings = {
            "tokenizer": "tok-bert",
            "model": {"family": family.name, "size": next(iter(family.SIZES))},
            "data": {"train": ["text.txt"], "valid": 0.1},
            "objective": {"name": objective or family.OBJECTIVE, "teacher": f"{bert}/model"}
            | {"init": "random", "cosine_weight": 0},
        }
        Path(folder).mkdir()
        write(f"{folder}/pretrain.yaml", settings)
        return f"{folder}/pretrain.yaml"
    done(*proposal, "--family", family.name)
    both_sides = objective is not None and bound(objective).BOTH_SIDES
    mask = ('special_tokens=["<mask>"]',) if both_sides else ()
    done("train-tokenizer", f"{folder}/tokenizer.yaml", "vocab_size=400", *mask)
    if objective is not None:
        config = Path(folder, "pretrain.yaml")
        text = config.read_text(encoding="utf-8")
        begin, end = text.index("\nobjective:"), text.index("\ntrain:")
        named = json.dumps(OBJECTIVES.get(objective, {"name": objective}))
        config.write_text(f"{text[:begin]}\nobjective: {named}{text[end:]}")
    return f"{folder}/pretrain.yaml"


def configure_by_hand(family: Family, network: dict[str, Any], folder: str) -> str:
    """The config of a pretraining of a family that `init` does not propose."""
    assert "none can be proposed" in refused("init", "text.txt", "--family", family.name)
    template = "t5" if family.ENCODER_DECODER else "roberta"
    tokenizer = {"run": f"{folder}/tok", "family": template, "data": {"train": ["text.txt"]}}
    tokenizer |= {"algorithm": get_family(template).TOKENIZER.ALGORITHM, "vocab_size": 300}
    settings = {
        "run": f"{folder}/pretrained",
        "tokenizer": f"{folder}/tok",
        "model": {"family": family.name, **network},
        "data": {"train": ["text.txt"], "valid": 0.1},
        "train": {"phases": [{"seq_len": 24, "steps": 2}]},
    }
    Path(folder).mkdir()
    write(f"{folder}/tokenizer.yaml", tokenizer)
    done("train-tokenizer", f"{folder}/tokenizer.yaml")
    write(f"{folder}/pretrain.yaml", settings)
    return f"{folder}/pretrain.yaml"


def check_samples(family: type[Family], objective: str | None, run: Path) -> None:
    """A run has samples if its objective and its family have some."""
    wanted = family.SAMPLES and bound(objective or family.OBJECTIVE).SAMPLES is not None
    assert (run / "eval" / "samples.json").is_file() == wanted


def check_processes(family: type[Family], *command: str, folder: str) -> None:
    """The losses of one process are those of two, and of four that each have a part of the weights.

    Args:
        command: A training without dropout; its optimizer is replaced by one that shards.
    """
    losses, last = [], "fsdp" if family.FSDP else "ddp"
    for count, strategy in ((1, "ddp"), (2, "ddp"), (4, last)):
        run = f"{folder}/of-{count}"
        optimizer = "optim={name: adamw, lr: 0.001}"
        arguments = (*command, optimizer, f"run={run}", f"launch.strategy={strategy}")
        if count == 1:
            done(*arguments)
        else:
            run_in(count, Path(folder), *arguments)
        lines = Path(run, "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        losses.append([one["loss"] for line in lines if "loss" in (one := json.loads(line))])
    assert losses[0]
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=2e-5), losses


def check_answers(family: type[Family], run: str) -> None:
    """`predict` and `generate` answer, or refuse in one line."""
    mask = getattr(open_tokenizer(f"{run}/model"), "mask_token", None)
    heads = family.HEADS
    generating = ("generate", run, "--prompt", "Anna sees <extra_id_0>", "--max-new-tokens", "3")
    if "lm" in heads:
        done(*generating, "--device", "cpu")
        done("predict", run, TEXT.replace("Bela", "<extra_id_0>"))
        return
    refused(*generating, "--device", "cpu")
    if "mlm" in heads:
        answers = json.loads(done("predict", run, TEXT.replace("Bela", str(mask)), "--json"))
        assert len(answers["answers"][0]["answers"]) == 5
    else:
        refused("predict", run, TEXT)


def check_tried(run: str) -> None:
    """The page of `plmctl try` answers in each way that the model has, an example of the run."""
    Path("uses.txt").write_text(f"{TEXT} The garden is old.\n", encoding="utf-8")
    model = TriedModel(run, ["uses.txt"])
    about, examples = model.about(), model.examples
    text = TEXT.replace("Bela", str(about["mask"] or "<extra_id_0>"))
    for way in model.ways:
        own = ["garden"] if way == "neighbours" else [text]
        for texts in [one["texts"] for one in examples.get(way, ())][:2] or [own]:
            question = Question(model=0, way=way, texts=tuple(texts), max_new_tokens=3)
            answer = model.answer(question, lambda piece: None)
            assert answer["command"].startswith("plmctl ")
    assert model.ways


def finetune(family: type[Family], folder: str) -> None:
    """Finetune the model on labelled texts, evaluate it, and let it answer."""
    task: dict[str, Any] = {"name": "classification"}
    model = f"{folder}/pretrained/model"
    if "text" in family.ANSWERS:
        write(f"{folder}/no.yaml", finetuning(f"{folder}/no", model, task, "rows.tsv"))
        refused("finetune", f"{folder}/no.yaml")
        task = {"name": "text_to_text", "source": "text", "target": "label"}
    write(f"{folder}/own.yaml", finetuning(f"{folder}/finetuned", model, task, "rows.tsv"))
    done("finetune", f"{folder}/own.yaml")
    measure_and_predict(folder, "rows.tsv")


def walk_task(task: dict[str, Any], model: str, rows: str) -> None:
    """Take a task through all commands, on rows that it can read."""
    folder = str(task["name"])
    Path(folder).mkdir()
    config = f"{folder}/own.yaml"
    write(config, finetuning(f"{folder}/finetuned", model, task, rows))
    done("finetune", config)
    own = get_task(folder).Config.model_fields
    still = [
        *(f"task.{key}=0" for key in own if "dropout" in key),
        "train.dropout=0",
        "log.every=1",
    ]
    check_processes(get_family("bert"), "finetune", config, *still, folder=folder)
    measure_and_predict(folder, rows)
    generating = ("generate", f"{folder}/finetuned", "--prompt", TEXT, "--max-new-tokens", "3")
    if get_task(folder).WRITES:
        done(*generating, "--device", "cpu")
    else:
        refused(*generating, "--device", "cpu")
    more = (f"run={folder}/verified", "train.epochs=6", "--kills", "1", "--steps", "12")
    printed = done("verify-resume", config, *more)
    assert "the killed run equals the uninterrupted run" in printed


def measure_and_predict(folder: str, rows: str) -> None:
    """`eval` and `predict` of a finetuned model, which is no checkpoint to export."""
    settings = {"run": f"{folder}/scores", "model": f"{folder}/finetuned/model"}
    measures = [{"name": "task", "data": [rows]}]
    settings |= {"measures": measures, "compute": {"device": "cpu"}}
    write(f"{folder}/scores.yaml", settings)
    done("eval", f"{folder}/scores.yaml")
    lines = done("predict", f"{folder}/finetuned", "--input", rows).splitlines()
    assert all("prediction" in json.loads(line) for line in lines)
    assert len(lines) == len(read_rows([rows]))
    check_tried(f"{folder}/finetuned")
    refused("export", f"{folder}/finetuned", f"{folder}/never")


def finetuning(run: str, model: str, task: dict[str, Any], rows: str) -> dict[str, Any]:
    """A finetuning of two steps."""
    return {
        "run": run,
        "model": model,
        "task": task,
        "data": {"train": [rows], "valid": [rows], "max_rows": 16},
        "train": {"epochs": 1, "batch_size": 8, "max_length": 32},
        "compute": {"device": "cpu", "precision": "fp32"},
    }


def write(path: str, settings: dict[str, Any]) -> None:
    Path(path).write_text(json.dumps(settings), encoding="utf-8")
