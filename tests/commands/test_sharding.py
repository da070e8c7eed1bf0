"""``launch.strategy=fsdp`` as a user meets it."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.commands.conftest import Cli, run_in, run_in_two, write
from tests.commands.test_bad_input import finetune_config, refused
from tests.commands.test_main_job import records
from tests.commands.test_question_answering import config as question_answering
from tests.commands.test_question_answering import squad
from tests.commands.test_t5 import tokenizer
from tests.commands.test_tagging import config as tagging
from tests.commands.test_tagging import tagged
from tests.commands.test_text_to_text import finetuning as writing
from tests.commands.test_text_to_text import rows

__all__ = ["rows", "tokenizer", "writing"]  # fixtures

# Without dropout: its draws are a process's own.
QUIET = ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"]


def test_two_processes_with_parts_give_the_run_of_one(cli: Cli, tmp_path: Path) -> None:
    """Losses, validation, checkpoints and the model."""
    settings = [*QUIET, "launch.processes=2", "launch.strategy=fsdp"]
    run_in_two(tmp_path, "pretrain", "bert.yaml", "run=parts", *settings)
    assert cli("pretrain", "bert.yaml", "run=no-parts", *QUIET)[0] == 0
    one, two = records(Path("no-parts")), records(Path("parts"))
    for a, b in zip(one, two, strict=True):
        for key in a.keys() & {"loss", "valid/loss", "tokens", "grad_norm"}:
            assert a[key] == pytest.approx(b[key], rel=5e-6), key
    for file in ("model", "optimizer"):
        last = f"checkpoints/step-000006/{file}.safetensors"
        sharded = load_file(f"parts/{last}")
        for key, value in load_file(f"no-parts/{last}").items():
            torch.testing.assert_close(sharded[key], value, rtol=1e-3, atol=1e-5)
    model = load_file("parts/model/model.safetensors")
    for key, value in load_file("parts/checkpoints/step-000006/model.safetensors").items():
        assert torch.equal(model[key], value), key


@pytest.mark.slow
def test_the_initial_weights_are_the_same_bits(cli: Cli, tmp_path: Path) -> None:
    """Of one process and of two, whole or in parts: a rate this small changes no weight."""
    still = ["optim.lr=1e-30", "train.phases=[{seq_len: 32, steps: 1}]", *QUIET]
    command = ["pretrain", "bert.yaml", *still]
    assert cli(*command, "run=first-1")[0] == 0
    for strategy in ("ddp", "fsdp"):
        run_in_two(tmp_path, *command, f"run=first-{strategy}", f"launch.strategy={strategy}")
    last = "checkpoints/step-000001/model.safetensors"
    weights = load_file(f"first-1/{last}")
    for strategy in ("ddp", "fsdp"):
        others = load_file(f"first-{strategy}/{last}")
        assert others.keys() == weights.keys()
        for key, value in weights.items():
            torch.testing.assert_close(others[key], value, rtol=0, atol=1e-28, msg=key)
        # What differs from here on is the order of sums.
        one, two = records(Path("first-1"))[0], records(Path(f"first-{strategy}"))[0]
        assert one["loss"] == pytest.approx(two["loss"], rel=5e-7)
        assert one["grad_norm"] == pytest.approx(two["grad_norm"], rel=5e-6)


@pytest.mark.parametrize(
    ("arguments", "reason"), [(["optim.name=muon"], "muon"), (["compute.precision=fp16"], "fp16")]
)
def test_what_cannot_be_cut_up_is_refused(
    cli: Cli, pretrained: dict[str, Path], arguments: list[str], reason: str
) -> None:
    write("not-cut.yaml", finetune_config(pretrained["bert"]))
    for command in (["pretrain", "bert.yaml"], ["finetune", "not-cut.yaml"]):
        result = cli(*command, "run=not-cut", "launch.strategy=fsdp", *arguments)
        refused(result, 2, "launch.strategy: fsdp is not supported", reason, "ddp")
        assert not Path("not-cut").exists()
    result = cli("pretrain", "bert.yaml", "run=not-cut", "compute.gather=bf16")
    refused(result, 2, "compute.gather: bf16 is for launch.strategy=fsdp")


def finetuning(pretrained: dict[str, Path], name: str = "parts") -> list[str]:
    """A finetuning in which the order of sums is all that processes can change."""
    config = finetune_config(pretrained["bert"])
    config["train"] |= {"dropout": 0.0, "layer_decay": 0.9, "freeze": "embeddings", "epochs": 0.5}
    config["train"] |= {"keep": "best", "metric": "loss", "validate_every": 2}
    config |= {"log": {"every": 1}, "optim": {"lr": 0.001}}
    write(f"{name}.yaml", config)
    return ["finetune", f"{name}.yaml"]


def same_losses(run: str, expected: str, until: int | None = None) -> None:
    """Two runs logged the same, up to the order of sums; ``until``: up to this step."""
    ours, others = records(Path(run)), records(Path(expected))
    others = [one for one in others if until is None or one["step"] <= until]
    assert len(ours) == len(others)
    for one, other in zip(ours, others, strict=True):
        for key in one.keys() & {"loss", "valid/loss", "valid/judged", "grad_norm", "tokens"}:
            assert one[key] == pytest.approx(other[key], rel=2e-6, abs=1e-8), (
                run,
                one["step"],
                key,
            )


@pytest.mark.slow
def test_a_finetuning_with_parts_continues_in_one_process(
    cli: Cli, pretrained: dict[str, Path], tmp_path: Path
) -> None:
    command = finetuning(pretrained)
    parts = [*command, "run=tuned-parts", "launch.strategy=fsdp"]
    run_in(2, tmp_path, *parts, "--until=3", code=75)
    code, out, err = cli(*parts, "--json")
    assert code == 0, err
    assert "fsdp has one process" in err
    code, expected, _ = cli(*command, "run=tuned-whole", "--json")
    assert code == 0
    same_losses("tuned-parts", "tuned-whole")
    results, others = json.loads(out), json.loads(expected)
    for key in ("accuracy", "f1", "best_step", "steps", "rows"):
        assert results[key] == pytest.approx(others[key], rel=1e-5), key


@pytest.mark.slow
@pytest.mark.parametrize("task", ["question_answering", "tagging", "lora"])
def test_tasks_with_parts_give_the_run_of_one(
    task: str,
    cli: Cli,
    pretrained: dict[str, Path],
    tmp_path: Path,
) -> None:
    """Training, the metric that keeps the best weights, and the results at the end."""
    metric = {"tagging": "f1", "lora": "f1"}.get(task, "exact_match")
    if task == "question_answering":
        Path("squad.json").write_text(json.dumps(squad(6, version2=False)))
        config = question_answering(pretrained["bert"])
    elif task == "tagging":
        lines = ["\n".join(f"{w} {t}" for w, t in zip(*tagged(n), strict=True)) for n in range(40)]
        Path("train.conll").write_text("\n\n".join(lines) + "\n")
        config = tagging(pretrained["bert"])  # GPT-2 has a dropout of its head besides
    else:
        config = finetune_config(pretrained["bert"]) | {"lora": {"rank": 4}}
    train = {"dropout": 0.0, "epochs": 0.5, "keep": "best", "metric": metric, "validate_every": 2}
    config |= {"log": {"every": 1}, "train": {**config["train"], **train}, "optim": {"lr": 0.001}}
    write("parts.yaml", config)
    command = ["finetune", "parts.yaml"]
    # First the one of this process: the forked ones then have what it imports.
    assert cli(*command, f"run=whole-{task}")[0] == 0
    run_in(2, tmp_path, *command, f"run=parts-{task}", "launch.strategy=fsdp")
    same_losses(f"parts-{task}", f"whole-{task}")
    ours, others = (
        json.loads(Path(f"{run}-{task}/eval/valid.json").read_text())["results"]
        for run in ("parts", "whole")
    )
    assert ours[metric] == pytest.approx(others[metric])
    assert ours["best_step"] == others["best_step"]


@pytest.mark.slow
@pytest.mark.parametrize("settings", ["t5", "gpt2", "beam", "rank"])
def test_a_network_with_parts_writes_texts(
    settings: str,
    cli: Cli,
    writing: dict,
    pretrained: dict[str, Path],
    tmp_path: Path,
) -> None:
    """Validation writes texts with sharded weights, and they decide which weights are best."""
    metric = "accuracy" if settings == "rank" else "exact_match"
    train = {"dropout": 0.0, "epochs": 1, "keep": "best", "metric": metric, "validate_every": 2}
    config = {**writing, "log": {"every": 1}, "train": {**writing["train"], **train}}
    task = {**writing["task"]}
    if settings == "gpt2":
        config["model"] = str(pretrained["gpt2"] / "model")
        task["source"] = "{question} Answer:"
    elif settings == "beam":
        task |= {"decoding": "beam", "beams": 2}
    elif settings == "rank":
        task = {
            "name": "text_to_text", "cast": "sst2", "source": "sst2 sentence: {question}",
            "decoding": "rank", "max_target_length": 4,
        }  # fmt: skip
    write("writes.yaml", {**config, "task": task})
    command = ["finetune", "writes.yaml"]
    assert cli(*command, f"run=whole-{settings}")[0] == 0
    run_in(2, tmp_path, *command, f"run=parts-{settings}", "launch.strategy=fsdp")
    same_losses(f"parts-{settings}", f"whole-{settings}")
    ours, others = (
        json.loads(Path(f"{run}-{settings}/eval/valid.json").read_text())["results"]
        for run in ("parts", "whole")
    )
    assert ours[metric] == pytest.approx(others[metric])
    assert ours["best_step"] == others["best_step"]


# --- A run that was stopped, and one of another kind that continues it ---


# In one process fsdp is ddp: it keeps all weights. Each continues the one before it.
KINDS = [("ddp", 2), ("fsdp", 4), ("ddp", 4), ("fsdp", 2)]


@pytest.mark.sweep
@pytest.mark.parametrize("task", ["pretrain", "finetune"])
def test_runs_of_each_kind_continue_those_of_others(
    task: str, cli: Cli, pretrained: dict[str, Path], tmp_path: Path
) -> None:
    """ddp and fsdp in 1, 2 and 4 processes, with the losses of one process.

    All leave the same checkpoint, up to the order of sums. So that each kind continues the one of a
    single process, here to the end, and that of one other kind stands for all pairings.
    """
    steps = "train.phases=[{seq_len: 32, steps: 4}]"
    command = ["pretrain", "bert.yaml", *QUIET, "log.every=1", steps]
    if task == "finetune":
        command = finetuning(pretrained, "matrix")
    alone = f"{task}-alone"
    assert cli(*command, f"run={alone}")[0] == 0

    def go_on(stopped: str, strategy: str, count: int, *more: str, code: int = 0) -> str:
        run = f"{stopped}-to-{strategy}-{count}"
        shutil.copytree(stopped, run)
        again = [*command, f"run={run}", f"launch.strategy={strategy}", *more]
        run_in(count, tmp_path, *again, code=code)
        same_losses(run, alone, until=3 if more else None)
        return run

    single = f"{task}-1"
    run_in(1, tmp_path, *command, f"run={single}", "--until=2", code=75)
    for strategy, count in [("ddp", 1), *KINDS]:
        same_weights(go_on(single, strategy, count), alone, "model")
    (saved,) = (path.name for path in Path(single, "checkpoints").glob("step-*"))
    for (before, earlier), (strategy, count) in zip(KINDS, [*KINDS[1:], KINDS[0]], strict=True):
        stopped = f"{task}-{before}-{earlier}"
        first = [*command, f"run={stopped}", f"launch.strategy={before}"]
        run_in(earlier, tmp_path, *first, "--until=2", code=75)
        assert files_of(stopped) == files_of(single)
        same_weights(stopped, single, f"checkpoints/{saved}")
        go_on(stopped, strategy, count, "--until=3", code=75)


def files_of(run: str) -> set[str]:
    """Of its checkpoints."""
    folder = Path(run, "checkpoints")
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def same_weights(run: str, expected: str, folder: str) -> None:
    ours, others = (load_file(f"{one}/{folder}/model.safetensors") for one in (run, expected))
    assert ours.keys() == others.keys()
    for key, value in others.items():
        torch.testing.assert_close(ours[key], value, rtol=1e-3, atol=1e-5, msg=run)
