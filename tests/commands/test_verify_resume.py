"""The oracle: a run that is killed at random moments equals an uninterrupted one, bit for bit.

Real processes and a real SIGKILL, while text is prepared, in steps, and in the middle of saves.
"""

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from plmctl import registry
from plmctl.commands.verify_resume import (
    Kill,
    Options,
    _adapted,
    compare_logs,
    compare_states,
    missing,
    moments,
    records,
)
from plmctl.objectives.base import get_objective
from plmctl.run.configs import PretrainConfig
from tests.commands.conftest import pretrain_config, run_main, write
from tests.commands.test_bad_input import finetune_config

VERIFY = [sys.executable, "-m", "plmctl", "verify-resume"]
BERT = {"family": "bert", "size": "tiny", "hidden_size": 32, "num_attention_heads": 2}
TEXT = "Anna sees Bela at the river."


def tokenizer(name: str, algorithm: str, size: int, **more: object) -> str:
    folder = f"tok-{name}"
    if not Path(folder).is_dir():
        data = {"train": ["text.txt"]}
        config = {"run": folder, "algorithm": algorithm, "family": name, "vocab_size": size}
        write(f"{folder}.yaml", config | {"data": data} | more)
        assert run_main("train-tokenizer", f"{folder}.yaml") == 0
    return folder


def bert() -> dict:
    return pretrain_config("bert") | {
        "objective": {"name": "mlm+nsp"},
        "train": {
            "batch_size": 8,
            "micro_batch_size": 4,
            "phases": [{"seq_len": 32, "steps": 10}, {"seq_len": 48, "steps": 90}],
            "average": {"name": "ema", "decay": 0.9, "every": 3},
        },
        "log": {"validate_every": 7, "validate_samples": 16},
    }


def albert() -> dict:
    model = BERT | {"family": "albert", "embedding_size": 16, "hidden_dropout_prob": 0.1}
    return pretrain_config("bert") | {
        "model": model,
        "objective": {
            "name": "mlm+sop",
            "unit": "ngram",
            "max_ngram": 3,
            "rate": {"start": 0.4, "end": 0.1},
        },
        "train": {
            "batch_size": 8,
            "phases": [{"seq_len": 32, "steps": 100}],
            "average": {"name": "last", "over": 0.9, "every": 2},
        },
    }


def t5(objective: str = "span_corruption") -> dict:
    return pretrain_config("bert") | {
        "tokenizer": tokenizer("t5", "unigram", 200),
        "model": {"family": "t5", "size": "tiny", "d_model": 32, "d_ff": 48, "num_heads": 1},
        "objective": {"name": objective},
        "train": {"batch_size": 8, "phases": [{"seq_len": 32, "steps": 100}]},
        "compute": {"device": "cpu"},  # in bf16, where the processor has it
    }


def masked(family: str, objective: dict, **more: object) -> dict:
    return pretrain_config("bert") | {
        "model": BERT | {"family": family},
        "objective": objective,
        "train": {"batch_size": 8, "phases": [{"seq_len": 32, "steps": 100}]},
        **more,
    }


def roberta() -> dict:
    objective = {"name": "mlm", "packing": "full_sentences", "count": "probabilistic"}
    byte_bpe = tokenizer("roberta", "byte_bpe", 400)
    return masked("roberta", objective | {"mask_specials": True}, tokenizer=byte_bpe)


def distilbert() -> dict:
    """A student of a BERT that is trained for two steps."""
    if not Path("teacher").is_dir():
        phases = [{"seq_len": 32, "steps": 2}]
        train = {"batch_size": 8, "phases": phases}
        write("teacher.yaml", pretrain_config("bert") | {"run": "teacher", "train": train})
        assert run_main("pretrain", "teacher.yaml") == 0
    student = {"family": "distilbert", "size": "tiny", "dim": 32, "n_heads": 2}
    objective = {"name": "distillation", "teacher": "teacher/model"}
    return masked("distilbert", objective, model=student)


def gpt1() -> dict:
    model = {"family": "gpt1", "size": "tiny", "n_embd": 32, "n_head": 2}
    return pretrain_config("gpt2") | {
        "tokenizer": tokenizer("gpt1", "bpe", 300),
        "model": model,
        "objective": {"name": "clm", "separator": "none"},
        "optim": {"lr": 1e-3, "bias_correction": "rate"},
        "train": {"batch_size": 8, "phases": [{"seq_len": 32, "steps": 100}]},
    }


def gpt3() -> dict:
    model = {"family": "gpt3", "size": "tiny", "n_embd": 32, "n_head": 2}
    objective = {"name": "clm", "attention": "within"}
    return gpt() | {"model": model, "objective": objective}


def gpt() -> dict:
    ramp = {"start": 2, "tokens": 2000}
    return pretrain_config("gpt2") | {
        "checkpoint": {"background": True},
        "train": {
            "batch_size": 8,
            "batch_ramp": ramp,
            "phases": [{"seq_len": 32, "steps": 100}],
        },
        "compute": {"device": "cpu"},  # in bf16, where the processor has it
    }


def llama(family: str = "llama") -> dict:
    model = {"family": family, "size": "tiny", "hidden_size": 32, "num_attention_heads": 2}
    return gpt() | {"model": model, "objective": {"name": "clm", "attention": "within"}}


def modernbert() -> dict:
    model = {"family": "modernbert", "size": "tiny", "hidden_size": 32, "num_attention_heads": 2}
    return pretrain_config("bert") | {
        "tokenizer": tokenizer("modernbert", "byte_bpe", 300),
        "model": model,
        "objective": {"name": "mlm"},
        "optim": {"name": "stable_adamw"},
        "train": {"batch_size": 8, "phases": [{"seq_len": 32, "steps": 100}]},
    }


def any_encoder() -> dict:
    model = {"family": "auto", "architecture": "xlm-roberta", "hidden_size": 32}
    model |= {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return pretrain_config("bert") | {
        "tokenizer": tokenizer("roberta", "byte_bpe", 300),
        "model": model,
        "objective": {"name": "mlm"},
        "train": {"batch_size": 8, "phases": [{"seq_len": 32, "steps": 100}]},
    }


def electra() -> dict:
    model = BERT | {"family": "electra", "embedding_size": 16, "hidden_dropout_prob": 0.1}
    return pretrain_config("bert") | {
        "model": model,
        "objective": {"name": "mlm+rtd"},
        "train": {"batch_size": 8, "phases": [{"seq_len": 32, "steps": 100}]},
    }


def deberta(objective: str = "mlm") -> dict:
    return pretrain_config("bert") | {
        "tokenizer": tokenizer("deberta", "unigram", 200),
        "model": BERT | {"family": "deberta", "hidden_dropout_prob": 0.1},
        "objective": {"name": objective},
        "train": {"batch_size": 8, "phases": [{"seq_len": 32, "steps": 100}]},
    }


def elmo() -> dict:
    sizes = {"projection_size": 16, "cell_size": 24}
    return pretrain_config("bert") | {
        "tokenizer": tokenizer("elmo", "word", 100),
        "model": {"family": "elmo", "size": "tiny", **sizes},
        "objective": {"name": "bilm"},
        "checkpoint": {"background": True},
        "train": {"batch_size": 8, "phases": [{"seq_len": 20, "steps": 100}]},
    }


def hybrid(objective: dict) -> dict:
    """A decoder that sees both sides, in two phases with batches of other sizes."""
    return llama() | {
        "tokenizer": tokenizer("llama", "byte_bpe", 400, special_tokens=["<mask>"]),
        "objective": objective,
        "train": {
            "batch_size": 12,
            "phases": [
                {"seq_len": 24, "steps": 10},
                {"seq_len": 48, "batch_size": 6, "steps": 90},
            ],
        },
    }


GPT_BERT = {"name": "mixture", "of": [{"name": "clm", "weight": 3}, {"name": "mntp"}]}
CONFIGS = {"bert": bert, "albert": albert, "t5": t5, "gpt2": gpt, "elmo": elmo}
OTHERS = {
    "roberta": roberta,
    "spanbert": lambda: masked("spanbert", {"name": "mlm+sbo"}),
    "distilbert": distilbert,
    "gpt1": gpt1,
    "gpt3": gpt3,
    "llama": llama,
    "auto": any_encoder,
    "qwen3": lambda: llama("qwen3"),
    "modernbert": modernbert,
    "electra": electra,
    "deberta": deberta,
    "deberta-rtd": lambda: deberta("mlm+rtd"),
    "mntp": lambda: hybrid({"name": "mntp", "attention": "within"}),
    "mixture": lambda: hybrid(GPT_BERT),
    **{
        f"t5-{name}": partial(t5, name)
        for name in registry.names("objectives")
        if get_objective(name).ENCODER_DECODER and name != "span_corruption"
    },
}


def test_every_family_is_verified() -> None:
    assert set(registry.names("families")) <= CONFIGS.keys() | OTHERS.keys()


@pytest.mark.slow
def test_every_objective_is_verified(world: Path) -> None:
    configs = [make() for make in (CONFIGS | OTHERS).values()]
    named = {config.get("objective", {"name": "clm"})["name"] for config in configs}
    assert named == set(registry.names("objectives"))


def verified(name: str, kills: int, steps: int) -> dict:
    command = [*VERIFY, f"oracle-{name}.yaml", f"--kills={kills}", f"--steps={steps}", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*CONFIGS, *(pytest.param(name, marks=pytest.mark.sweep) for name in OTHERS)]
)
def test_pretraining_survives_kills(name: str, world: Path) -> None:
    write(f"oracle-{name}.yaml", (CONFIGS | OTHERS)[name]() | {"run": f"oracle-{name}"})
    assert run_main("preview", f"oracle-{name}.yaml", "--examples=1") == 0
    report = verified(name, kills=5, steps=24)
    assert report["proved"]
    assert not missing(moments(5, 1), [Kill(**kill) for kill in report["kills"]])
    assert {kill["moment"] for kill in report["kills"]} == {"preparing", "step", "saving"}
    checks = {check["name"]: check for check in report["checks"]}
    assert not any(check["different"] for check in checks.values())
    assert checks["logged losses"]["compared"] % 24 == 0
    assert checks["examples, 2 processes"]["compared"] == 24
    assert checks["model"]["compared"] > 10
    assert ("samples" in checks) == (name == "bert")  # it validates while it trains
    assert ("carried" in checks) == (name == "elmo")
    assert not list(Path().glob(f"oracle-{name}.verify*"))


@pytest.mark.slow
def test_finetuning_survives_kills(pretrained: dict[str, Path]) -> None:
    config = finetune_config(pretrained["bert"]) | {"run": "oracle-finetune"}
    config["train"] |= {"epochs": 3, "batch_size": 8, "dropout": 0.1}
    write("oracle-finetune.yaml", config)
    report = verified("finetune", kills=5, steps=24)
    assert len(report["kills"]) >= 5
    assert report["proved"]


@pytest.mark.slow
def test_it_finds_a_resume_that_is_not_exact(world: Path) -> None:
    """The moments of the optimizer are forgotten on purpose."""
    write("oracle-broken.yaml", gpt() | {"run": "oracle-broken"})
    broken = (
        "import sys\n"
        "from plmctl.training import loop\n"
        "from plmctl.__main__ import main\n"
        "sound = loop.restore\n"
        "def restore(folder, trained):\n"
        "    saved = sound(folder, trained)\n"
        "    trained.optimizer.state.clear()\n"
        "    return saved\n"
        "loop.restore = restore\n"
        "sys.argv = ['plmctl', 'verify-resume', 'oracle-broken.yaml', '--kills=3', '--steps=20',\n"
        "            '--seed=3']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", broken], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "THE RUNS DIFFER" in done.stdout
    assert "optimizer" in done.stdout
    assert re.search(r"killed-\d+: step", done.stdout)  # the run that differs
    assert list(Path().glob("oracle-broken.verify*"))


def test_a_difference_is_named(pretrained: dict[str, Path], tmp_path: Path) -> None:
    """One bit of one weight, and one figure of one line."""
    from safetensors.torch import load_file, save_file

    run = pretrained["bert"]
    state = run / "checkpoints" / "step-000006"
    assert not any(check.different for check in compare_states(state, state))
    for path in state.glob("*.safetensors"):
        tensors = load_file(path)
        if path.stem == "model":
            changed = next(iter(sorted(tensors)))
            tensors[changed].view(-1)[0] *= -1
        save_file(tensors, tmp_path / path.name)
    checks = {check.name: check for check in compare_states(state, tmp_path)}
    assert (checks["model"].different, checks["model"].first) == (1, changed)
    assert not checks["optimizer"].different

    whole = records(run)
    assert not any(check.different for check in compare_logs(whole, whole))
    other = [dict(line) for line in whole]
    other[1]["loss"] += 1e-12
    losses, _ = compare_logs(whole, other)
    assert losses.different == 1
    assert losses.first.startswith("step 4: loss ")
    losses, _ = compare_logs(whole, whole[1:])
    assert losses.different == 3
    assert "step 2" in losses.first


def test_moments_hit_preparation_steps_and_saves() -> None:
    drawn = moments(10, seed=4)
    assert drawn[:2] == ["preparing"] * 2
    assert {drawn.count("step"), drawn.count("saving")} == {4}
    assert moments(10, seed=4) == drawn
    assert moments(0, seed=4) == []


def test_a_kill_that_missed_its_moment_is_made_again() -> None:
    wanted = moments(10, seed=4)

    def kills(*hit: str) -> list[Kill]:
        return [Kill(moment, 1.0, 2, 2) for moment in hit]

    assert missing(wanted, []) == wanted
    assert missing(wanted, kills(*wanted)) == []
    assert missing(wanted, kills("step", *wanted[:-1])) == wanted[-1:]
    assert missing(wanted, kills(*["step"] * 20)) == [m for m in wanted if m != "step"]
    assert sorted(missing(wanted, kills("saving"))) == sorted(
        wanted[:2] + ["step"] * 4 + ["saving"] * 3
    )


def test_a_gpu_repeats_its_bits_in_both_runs() -> None:
    options = Options(kills=1, steps=4, seed=1, processes=2, keep=False)
    for written, expected in (("auto", True), (True, True), (False, False)):
        config = bert() | {"run": "r", "compute": {"deterministic": written}}
        adapted = _adapted(PretrainConfig.model_validate(config), Path("r.verify"), options)
        assert adapted.compute.deterministic is expected


def test_it_takes_configs_of_trainings(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_main("verify-resume", "tok-bert.yaml") == 2
    assert "give a pretrain or finetune config" in capfd.readouterr().err
