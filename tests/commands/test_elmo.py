"""ELMo by the command line: a word tokenizer, pretraining, a stop, two processes, evaluation."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.builders import json_lines
from tests.commands.conftest import Cli, run_in_two, run_main, write
from tests.commands.test_bad_input import finetune_config

TINY = {"family": "elmo", "size": "tiny", "projection_size": 16, "cell_size": 24, "dropout": 0}


@pytest.fixture(scope="module")
def run(world: Path) -> Path:
    """A finished run."""
    data = {"train": ["text.txt"]}
    tokenizer = {"algorithm": "word", "family": "elmo", "vocab_size": 100, "data": data}
    write("tok-elmo.yaml", {"run": "tok-elmo", **tokenizer})
    assert run_main("train-tokenizer", "tok-elmo.yaml") == 0
    config = {
        "run": "run-elmo",
        "tokenizer": "tok-elmo",
        "model": TINY,
        "data": {"train": ["text.txt"], "valid": 0.1},
        "train": {"batch_size": 8, "phases": [{"seq_len": 20, "steps": 8}]},
        "optim": {"lr": 0.01},
        "log": {"every": 2},
        "compute": {"device": "cpu", "precision": "fp32"},
    }
    write("elmo.yaml", config)
    assert run_main("pretrain", "elmo.yaml") == 0
    return world / "run-elmo"


def records(folder: Path) -> list[dict]:
    return json_lines(folder / "metrics.jsonl")


def test_the_model_folder_loads_through_the_auto_classes(run: Path) -> None:
    from transformers import AutoModel, AutoModelForPreTraining, AutoTokenizer

    from plmctl.models.elmo import ElmoForPreTraining, encode_sentences

    model = AutoModelForPreTraining.from_pretrained(run / "model")
    assert type(model) is ElmoForPreTraining
    words = AutoTokenizer.from_pretrained(run / "model").tokenize("Anna sees Bela .")
    layers = AutoModel.from_pretrained(run / "model")(torch.from_numpy(encode_sentences([words])))
    assert layers.last_hidden_state.shape == (1, 4, 32)
    assert len(layers.hidden_states) == 3
    assert records(run)[0]["loss"] > records(run)[-2]["loss"]
    assert (run / "report.html").is_file()


@pytest.mark.parametrize("command", ["pretrain", "doctor"])
def test_activations_are_not_computed_twice(
    command: str, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Refused before a run folder is made."""
    settings = ("run=run-elmo-again", "compute.checkpoint_activations=true")
    assert run_main(command, "elmo.yaml", *settings) == 2
    assert "not supported for ELMo" in capfd.readouterr().err
    assert not Path("run-elmo-again").exists()


def test_its_weights_are_not_cut_up(run: Path, cli: Cli) -> None:
    """Refused before a run folder is made."""
    write("ft-elmo-cut.yaml", finetune_config(run))
    for command in (["pretrain", "elmo.yaml"], ["finetune", "ft-elmo-cut.yaml"]):
        code, _, err = cli(*command, "run=run-elmo-cut", "launch.strategy=fsdp")
        assert code == 2
        assert "fsdp is not supported for ELMo" in err
        assert not Path("run-elmo-cut").exists()


def test_two_processes_give_the_run_of_one(run: Path, tmp_path: Path) -> None:
    """the recurrent state too, whose rows each process has a part of."""
    run_in_two(tmp_path, "pretrain", "elmo.yaml", "run=two-elmo", "launch.processes=2")
    one, two = records(run), records(Path("two-elmo"))
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        for key in a.keys() & {"loss", "tokens", "grad_norm", "valid/loss"}:
            assert a[key] == pytest.approx(b[key], rel=2e-6), key
    folders = (run / "checkpoints" / "step-000008", Path("two-elmo/checkpoints/step-000008"))
    for name in ("carried.safetensors", "model.safetensors"):
        ours, theirs = (load_file(folder / name) for folder in folders)
        for key, value in ours.items():
            # As a whole: what a single element comes to depends on the processor's kernels.
            assert (value - theirs[key]).norm() <= 5e-6 * value.norm(), key


def test_evaluation(cli: Cli, run: Path) -> None:
    measure = {"name": "bilm", "data": ["text.txt"], "max_samples": 64}
    write(
        "eval-elmo.yaml",
        {
            "run": "eval-elmo",
            "model": "run-elmo/model",
            "measures": [measure],
            "compute": {"device": "cpu", "precision": "fp32"},
        },
    )
    code, out, err = cli("eval", "eval-elmo.yaml", "--json")
    assert code == 0, err
    figures = json.loads(out)["results"]["bilm"]
    both = figures["loss/forward"], figures["loss/backward"]
    assert figures["loss"] == pytest.approx(sum(both) / 2)
    assert figures["perplexity"] == pytest.approx(
        (figures["perplexity/forward"] * figures["perplexity/backward"]) ** 0.5
    )
    assert figures["perplexity"] < 80  # of 81 ids


def test_preview_shows_both_directions(cli: Cli, run: Path) -> None:
    code, out, err = cli("preview", "elmo.yaml", "--count", "16", "--examples", "1")
    assert code == 0, err
    shown = " ".join(out.split("\n\n")[0].split())
    forward, backward = (text.split() for text in shown[len("forward: ") :].split(" backward: "))
    assert len(forward) == len(backward) == 20  # words, with spaces between them
    assert "mean_targets_backward" in out


def test_what_cannot_train_is_refused(cli: Cli, run: Path) -> None:
    code, _, err = cli("pretrain", "elmo.yaml", "run=x", "tokenizer=tok-bert")
    assert code == 2
    assert "requires a tokenizer of words" in err
    code, _, err = cli("pretrain", "elmo.yaml", "run=x", "train.batch_size=100000")
    assert code == 3
    assert "100,000 streams, but the corpus has" in err
    code, _, err = cli(
        "pretrain", "elmo.yaml", "run=x", "objective={name: bilm, target_words: 5000}"
    )
    assert code == 2
    assert "objective.target_words: 5,000, but the tokenizer has" in err
    parts = ", ".join(f"{{name: {name}, train: [text.txt], weight: 1}}" for name in "ab")
    mixed = f"data={{mixture: [{parts}], valid: 0.1}}"
    code, _, err = cli("pretrain", "elmo.yaml", "run=x", "data.train=[]", mixed)
    assert code == 2
    assert "data.mixture is not supported for this objective" in err
    assert not Path("x").exists()


def test_fewer_words_are_predicted_than_read(cli: Cli, run: Path) -> None:
    code, _, err = cli(
        "pretrain", "elmo.yaml", "run=few", "objective={name: bilm, target_words: 30}"
    )
    assert code == 0, err
    assert load_file("few/model/model.safetensors")["head.weight"].shape == (30, 16)
    more = [
        "run=more-elmo",
        "model.init_from=few/model",
        "objective={name: bilm, target_words: 30}",
    ]
    assert cli("pretrain", "elmo.yaml", *more)[0] == 0
