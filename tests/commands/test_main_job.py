"""The main job on a small corpus: every command, the folders it leaves, and what they hold."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.builders import json_lines
from tests.commands.conftest import Cli, at_work, run_in_two, write
from tests.commands.test_bad_input import finetune_config


def records(run: Path) -> list[dict]:
    return json_lines(run / "metrics.jsonl")


def test_the_run_folder_holds_what_is_promised(pretrained: dict[str, Path]) -> None:
    for run in pretrained.values():
        names = {path.name for path in run.iterdir()}
        assert names >= {
            "config.yaml", "environment.json", "metrics.jsonl", "events", "checkpoints", "model",
            "eval", "report.html",
        }  # fmt: skip
        environment = json.loads((run / "environment.json").read_text())
        assert environment["versions"]["torch"] == torch.__version__
        assert environment["hashes"]["data"]
        assert environment["hashes"]["tokenizer"]
        steps = [r for r in records(run) if "loss" in r]
        assert [r["step"] for r in steps] == [2, 4, 6]
        promised = {
            "phase", "epoch", "tokens", "lr", "grad_norm", "tokens_per_second", "data_wait",
            "memory_gb", "padding", "time", "samples_per_second",
        }  # fmt: skip
        assert promised <= steps[-1].keys()


def test_model_folders_load_with_the_auto_classes(pretrained: dict[str, Path]) -> None:
    from safetensors.torch import load_file
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
        AutoModelForPreTraining,
        AutoTokenizer,
    )

    bert, gpt2 = pretrained["bert"] / "model", pretrained["gpt2"] / "model"
    tokenizer = AutoTokenizer.from_pretrained(bert)
    assert type(tokenizer).__name__ == "BertTokenizer"
    batch = tokenizer("Anna sees [MASK] at the river.", return_tensors="pt")
    whole = AutoModelForPreTraining.from_pretrained(bert).eval()
    assert type(whole).__name__ == "BertForPreTraining"
    masked = AutoModelForMaskedLM.from_pretrained(bert).eval()
    with torch.no_grad():
        assert torch.equal(whole(**batch).prediction_logits, masked(**batch).logits)
    checkpoint = pretrained["bert"] / "checkpoints" / "step-000006" / "model.safetensors"
    for name, value in load_file(checkpoint).items():
        assert torch.equal(whole.state_dict()[name], value), name

    tokenizer = AutoTokenizer.from_pretrained(gpt2)
    assert type(tokenizer).__name__ == "GPT2Tokenizer"
    batch = tokenizer("Anna sees", return_tensors="pt")
    causal = AutoModelForCausalLM.from_pretrained(gpt2).eval()
    again = AutoModelForPreTraining.from_pretrained(gpt2).eval()
    with torch.no_grad():
        assert torch.equal(causal(**batch).logits, again(**batch).logits)


def test_a_validation_has_the_sequence_length_of_its_phase(cli: Cli) -> None:
    """A run of one phase up to a step scores as a run of two phases does there."""

    def losses(name: str, phases: list[dict]) -> list[float]:
        schedule = "schedule={name: constant, warmup: 0}"
        options = (f"train.phases={json.dumps(phases)}", schedule, "log.validate_every=3")
        assert cli("pretrain", "bert.yaml", f"run={name}", *options)[0] == 0
        return [r["valid/loss"] for r in records(Path(name)) if "valid/loss" in r]

    short, long = {"seq_len": 16, "steps": 6}, {"seq_len": 48, "steps": 3}
    alone, both = losses("short", [short]), losses("growing", [short, long])
    assert both[:2] == alone
    assert len(both) == 3


def test_a_finished_run_is_left_alone(cli: Cli, pretrained: dict[str, Path]) -> None:
    run = pretrained["bert"]
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    code, _, err = cli("pretrain", "bert.yaml", f"run={run.name}", "log.every=5")
    assert code == 0
    assert "is finished" in err
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before


def test_fresh_moves_the_old_run_aside(cli: Cli) -> None:
    assert cli("pretrain", "gpt2.yaml", "run=twice")[0] == 0
    code, out, _ = cli("pretrain", "gpt2.yaml", "run=twice", "seed=9", "--fresh", "--json")
    assert code == 0
    assert json.loads(out)["steps"] == 6
    old = list(Path().glob("twice.old-*"))
    assert len(old) == 1
    assert (old[0] / "model").is_dir()


# Without dropout: its draws are a process's own, the examples are not.
DROPOUT = {
    "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    "gpt2": ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
}


def same_run(one: Path, two: Path) -> None:
    """Losses and weights of two runs are the same but for rounding."""
    from safetensors.torch import load_file

    for a, b in zip(records(one), records(two), strict=True):
        for key in a.keys() & {"loss", "valid/loss", "tokens", "grad_norm"}:
            assert a[key] == pytest.approx(b[key], rel=2e-6), key
    last = "checkpoints/step-000006/model.safetensors"
    weights = load_file(two / last)
    for key, value in load_file(one / last).items():
        assert torch.allclose(value, weights[key], atol=2e-6), key


@pytest.mark.parametrize("name", DROPOUT)
def test_two_processes_give_the_run_of_one(name: str, cli: Cli, tmp_path: Path) -> None:
    """GPT-2's embeddings start from counts, which the main process makes."""
    command = ["pretrain", f"{name}.yaml", *(f"model.{field}=0" for field in DROPOUT[name])]
    if name == "gpt2":
        command.append("model.initial_embeddings=cooccurrence")
    run_in_two(tmp_path, *command, f"run=two-{name}", "launch.processes=2")
    assert cli(*command, f"run=one-{name}")[0] == 0
    same_run(Path(f"one-{name}"), Path(f"two-{name}"))


@pytest.mark.slow
def test_plmctl_starts_the_two_processes_itself(cli: Cli) -> None:
    command = ["pretrain", "bert.yaml", *(f"model.{field}=0" for field in DROPOUT["bert"])]
    whole = [sys.executable, "-m", "plmctl", *command, "run=started", "launch.processes=2"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(whole, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert cli(*command, "run=alone-again")[0] == 0
    same_run(Path("alone-again"), Path("started"))


def test_a_closed_terminal_saves_and_the_same_command_goes_on(cli: Cli, tmp_path: Path) -> None:
    """So many steps that a busy machine does not finish them before it sends the signal."""
    steps = 5000
    command = ["pretrain", "bert.yaml", "run=cut", "log.every=1"]
    command += [f"train.phases=[{{seq_len: 32, steps: {steps}}}]"]
    with at_work(tmp_path / "log", *command) as child:
        os.kill(child.pid, signal.SIGHUP)  # SIGTERM: test_faults.py
        assert child.wait() == 75, (tmp_path / "log").read_text()
    assert "run the same command again" in (tmp_path / "log").read_text()
    stopped = records(Path("cut"))[-1]["step"]
    assert 1 <= stopped < steps
    assert cli(*command, f"--until={stopped + 20}")[0] == 75
    assert [r["step"] for r in records(Path("cut"))] == list(range(1, stopped + 21))
    events = [event["event"] for event in json_lines("cut/events")]
    assert [event for event in events if event != "saved"] == ["started", "resumed"]


def test_under_nohup_a_closed_terminal_stops_nothing(cli: Cli, tmp_path: Path) -> None:
    command = ["pretrain", "bert.yaml", "run=nohup", "train.phases=[{seq_len: 32, steps: 60}]"]
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does; the child inherits it
    try:
        with at_work(tmp_path / "log", *command) as child:
            os.kill(child.pid, signal.SIGHUP)
            assert child.wait() == 0, (tmp_path / "log").read_text()
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize("name", ["bert", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_finetune_evaluate_predict_report(name: str, cli: Cli, pretrained: dict[str, Path]) -> None:
    config = finetune_config(pretrained[name]) | {"run": f"tuned-{name}", "optim": {"lr": 0.001}}
    config["train"] |= {"epochs": 20}
    write("ft.yaml", config)
    code, out, _ = cli("finetune", "ft.yaml", "--json")
    assert code == 0
    results = json.loads(out)
    assert results["accuracy"] > results["majority"] + 0.1
    assert [row["label"] for row in results["per_class"]] == ["False", "True"]
    model = f"tuned-{name}/model"
    labels = json.loads((Path(model) / "config.json").read_text())["id2label"]
    assert labels == {"0": "False", "1": "True"}

    write(
        "ev.yaml",
        {
            "run": f"ev-{name}",
            "model": model,
            "measures": [{"name": "task", "data": ["rows.tsv"], "max_length": 32}],
            "compute": {"device": "cpu"},
        },
    )
    code, out, _ = cli("eval", "ev.yaml", "--json")
    assert code == 0
    assert json.loads(out)["results"]["task"]["rows"] == 200

    code, out, _ = cli("predict", model, "Anna sees Bela.", "Carl paints Ida.", "--json")
    assert code == 0
    assert {a["token"] for a in json.loads(out)["answers"][0]["answers"]} == {"False", "True"}
    code, out, _ = cli("report", f"tuned-{name}", str(pretrained[name]), "--out", "both.html")
    assert code == 0
    page = Path("both.html").read_text(encoding="utf-8")
    assert f"tuned-{name}" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_language_measures(cli: Cli, pretrained: dict[str, Path]) -> None:
    for name, measures in (("bert", ["mlm", "nsp"]), ("gpt2", ["clm"])):
        write(
            "ev.yaml",
            {
                "run": f"lm-{name}",
                "model": str(pretrained[name] / "model"),
                "measures": [{"name": m, "data": ["text.txt"], "seq_len": 32} for m in measures],
                "compute": {"device": "cpu"},
            },
        )
        code, out, err = cli("eval", "ev.yaml", "--json")
        assert code == 0, err
        results = json.loads(out)["results"]
        again = json.loads(cli("eval", "ev.yaml", "--json", "run=again", "batch_size=5")[1])
        for measure in measures:
            for key, value in results[measure].items():
                assert again["results"][measure][key] == pytest.approx(value, rel=1e-5)
        Path("again").rename(f"again-{name}")


def test_static_masks_and_mlm_alone(cli: Cli) -> None:
    code, out, err = cli(
        "pretrain", "bert.yaml", "run=alone", "--json",
        "objective={name: mlm, masking: static, duplicates: 2}",
    )  # fmt: skip
    assert code == 0, err
    assert "valid/loss/nsp" not in json.loads(out)
    assert json.loads(Path("alone/model/config.json").read_text())["architectures"] == [
        "BertForMaskedLM"
    ]


def test_continued_pretraining(cli: Cli, pretrained: dict[str, Path]) -> None:
    model = f"model={{family: gpt2, init_from: {pretrained['gpt2'] / 'model'}}}"
    code, out, err = cli("pretrain", "gpt2.yaml", "run=further", model, "--json")
    assert code == 0, err
    first = records(pretrained["gpt2"])[0]["loss"]
    assert records(Path("further"))[0]["loss"] < first


def test_the_card_says_what_the_model_was_trained_on(pretrained: dict[str, Path]) -> None:
    run = pretrained["bert"]
    card = (run / "model/README.md").read_text()
    facts = json.loads((run / "environment.json").read_text())
    train = facts["text"]["train"]
    assert train["documents"] > 1
    assert f"| documents | {train['documents']:,} |" in card
    assert f"| words | {train['words']:,} |" in card
    for name, digest in facts["text"]["sources"].items():
        assert hashlib.sha256(Path(name).read_bytes()).hexdigest() == digest
        assert f"| {name} | `{digest}` |" in card
    assert "| CPU processes | 1 |" in card
    assert "| device hours of training | " in card
    assert "## Use and limits\n\nIt fills in masked words" in card
