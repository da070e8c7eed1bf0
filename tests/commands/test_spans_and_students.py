"""RoBERTa, SpanBERT and DistilBERT through the commands: folders, resuming, what is refused."""

import json
import shutil
from pathlib import Path

import pytest

from tests.builders import json_lines
from tests.commands.conftest import Cli, pretrain_config, run_main, write
from tests.commands.test_bad_input import finetune_config, refused

SMALL = {"hidden_size": 32, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def configs(world: Path, pretrained: dict[str, Path]) -> dict[str, dict]:
    tokenizer = {
        "run": "tok-roberta",
        "algorithm": "byte_bpe",
        "family": "roberta",
        "vocab_size": 400,
        "data": {"train": ["text.txt"]},
    }
    write("tok-roberta.yaml", tokenizer)
    assert run_main("train-tokenizer", "tok-roberta.yaml") == 0
    base = pretrain_config("bert")
    all_configs = {
        "roberta": base
        | {
            "tokenizer": "tok-roberta",
            "model": {"family": "roberta", "size": "tiny", **SMALL},
            "objective": {"name": "mlm", "packing": "full_sentences", "count": "probabilistic"},
        },
        "spanbert": base | {"model": {"family": "spanbert", "size": "tiny", **SMALL}},
        "distilbert": base
        | {
            "model": {"family": "distilbert", "size": "tiny", "dim": 32, "n_heads": 2},
            "objective": {
                "name": "distillation",
                "teacher": str(pretrained["bert"] / "model"),
            },
        },
    }
    for name, config in all_configs.items():
        write(f"{name}.yaml", config | {"run": f"run-{name}"})
    return all_configs


@pytest.fixture(scope="module")
def done(configs: dict[str, dict], world: Path) -> dict[str, Path]:
    """A finished run of each."""
    for name in configs:
        assert run_main("pretrain", f"{name}.yaml", f"run=done-{name}") == 0
    return {name: world / f"done-{name}" for name in configs}


def losses(run: Path) -> list[dict[str, float]]:
    records = json_lines(run / "metrics.jsonl")
    return [{k: v for k, v in r.items() if k.startswith("loss")} for r in records if "loss" in r]


@pytest.mark.parametrize(
    ("name", "model", "tokenizer"),
    [
        ("roberta", "RobertaForMaskedLM", "RobertaTokenizer"),
        ("spanbert", "BertForMaskedLM", "BertTokenizer"),
        ("distilbert", "DistilBertForMaskedLM", "BertTokenizer"),
    ],
)
def test_folders_load_with_the_auto_classes(
    name: str, model: str, tokenizer: str, done: dict[str, Path]
) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline

    folder = done[name] / "model"
    loaded = AutoModelForMaskedLM.from_pretrained(folder)
    opened = AutoTokenizer.from_pretrained(folder)
    assert type(loaded).__name__ == model
    assert type(opened).__name__ == tokenizer
    fill = pipeline("fill-mask", model=str(folder), tokenizer=str(folder))
    assert len(fill(f"Anna sees {opened.mask_token} at the river.")) == 5
    assert (done[name] / "report.html").is_file()


def test_parts_of_the_losses_are_logged(done: dict[str, Path]) -> None:
    assert losses(done["spanbert"])[-1].keys() == {"loss", "loss/mlm", "loss/sbo"}
    assert losses(done["distilbert"])[-1].keys() == {"loss", "loss/mlm", "loss/kl", "loss/cosine"}


def test_the_teacher_is_in_no_checkpoint(done: dict[str, Path]) -> None:
    from safetensors.torch import load_file

    checkpoint = done["distilbert"] / "checkpoints" / "step-000006" / "model.safetensors"
    assert all(name.startswith(("distilbert.", "vocab_")) for name in load_file(checkpoint))


@pytest.mark.parametrize("name", ["spanbert", "distilbert"])
def test_a_run_cut_short_goes_on_bit_for_bit(name: str, cli: Cli, done: dict[str, Path]) -> None:
    """The boundary head comes back from the checkpoint, and the teacher from its folder."""
    run = Path(f"cut-{name}")
    options = (f"run={run}", "checkpoint.every=4")
    assert cli("pretrain", f"{name}.yaml", *options)[0] == 0
    whole = losses(run)
    shutil.rmtree(run / "model")
    shutil.rmtree(run / "checkpoints" / "step-000006")
    (run / "metrics.jsonl").write_text(
        "\n".join((run / "metrics.jsonl").read_text().splitlines()[:2]) + "\n"
    )
    assert cli("pretrain", f"{name}.yaml", *options)[0] == 0
    assert '"resumed", "step": 4' in (run / "events").read_text()
    assert losses(run) == whole


def test_spanbert_goes_on_from_its_folder_with_its_head(
    cli: Cli, done: dict[str, Path], configs: dict[str, dict]
) -> None:
    from plmctl.families.base import get_family

    folder = done["spanbert"] / "model"
    trained = get_family("spanbert")().load(str(folder), ("mlm", "sbo"))
    assert trained.sbo.bias.abs().sum() > 0  # it was zero when it was fresh
    code, _, err = cli(
        "pretrain", "spanbert.yaml", "run=more-spanbert", f"model.init_from={folder}"
    )
    assert code == 0, err
    fresh, more = (losses(run)[0]["loss/sbo"] for run in (done["spanbert"], Path("more-spanbert")))
    assert more < fresh


def test_a_student_begins_as_its_teacher_unless_told(
    cli: Cli, done: dict[str, Path], world: Path
) -> None:
    code, _, err = cli("pretrain", "distilbert.yaml", "run=random", "objective.init=random")
    assert code == 0, err
    begun, random = (losses(run)[0]["loss/kl"] for run in (done["distilbert"], Path("random")))
    assert begun != random


@pytest.mark.parametrize("name", ["roberta", "spanbert", "distilbert"])
def test_they_are_finetuned_like_any_model(name: str, cli: Cli, done: dict[str, Path]) -> None:
    write(f"tune-{name}.yaml", finetune_config(done[name]) | {"run": f"tuned-{name}"})
    code, _, err = cli("finetune", f"tune-{name}.yaml")
    assert code == 0, err


def test_what_cannot_work_is_refused_before_any_text_is_read(
    cli: Cli, done: dict[str, Path], configs: dict[str, dict]
) -> None:
    teacher = configs["distilbert"]["objective"]["teacher"]
    unpublished = {k: v for k, v in configs["distilbert"].items() if k != "objective"}
    write("no-teacher.yaml", unpublished | {"run": "x"})
    for part in ("weights", "tokenizer"):
        shutil.copytree(teacher, f"no-{part}")
        for path in Path(f"no-{part}").glob("*.safetensors" if part == "weights" else "tok*"):
            path.unlink()
    cases = [
        ("no-teacher", [], "objective: this key is needed"),
        ("distilbert", ["objective.teacher=no-weights"], "no weights in this folder"),
        ("distilbert", ["objective.teacher=no-tokenizer"], "no tokenizer in this folder"),
        ("distilbert", ["objective.teacher=some/model"], "some/model cannot be loaded"),
        ("distilbert", ["objective.teacher=./nowhere"], "./nowhere", "no model in this folder"),
        ("distilbert", ["objective.teacher=tok-bert"], "tok-bert", "no model in this folder"),
        (
            "distilbert",
            [f"objective.teacher={done['roberta'] / 'model'}"],
            "objective.teacher", "another vocabulary", "use the teacher's tokenizer",
        ),
        ("distilbert", ["tokenizer=tok-roberta"], "another vocabulary", f"tokenizer: {teacher}"),
        ("distilbert", ["model.dim=64"], "model.dim: 64, but the teacher has 32"),
        ("distilbert", ["model.n_layers=3"], "model.n_layers: 3, but the teacher has 2"),
        ("distilbert", ["model.n_heads=4"], "model.n_heads: 4, but the teacher has 2"),
        ("distilbert", [f"objective.teacher={done['spanbert'] / 'model'}", "model.hidden_dim=8"],
         "model.hidden_dim"),
        ("distilbert", ["model.max_position_embeddings=64"], "max_position_embeddings"),
        ("distilbert", [f"objective.teacher={done['distilbert'] / 'model'}"], "alternate"),
        ("distilbert", ["train.phases=[{seq_len: 600, steps: 2}]"], "seq_len 600"),
        ("roberta", ["train.phases=[{seq_len: 513, steps: 2}]"], "513", "512 positions"),
        ("roberta", ["objective={name: mlm+nsp}"], "mlm+nsp", "roberta"),
        ("spanbert", ["tokenizer=tok-gpt2"], "[MASK]", "[CLS]", "[SEP]"),
        ("roberta", ["tokenizer=tok-gpt2"], "[MASK]", "[PAD]"),
        ("spanbert", ["objective={name: mlm+sbo, rate: 1.5}"], "objective.rate"),
        ("roberta", ["objective.packing=full"], "objective.packing", "full_sentences"),
        ("roberta", ["model.num_attention_heads=3"], "model"),
    ]  # fmt: skip
    for name, options, *words in cases:
        before = set(Path().iterdir())
        refused(cli("pretrain", f"{name}.yaml", "run=refused", *options), 2, *words)
        assert set(Path().iterdir()) == before, options


def test_preview_of_each(cli: Cli, configs: dict[str, dict]) -> None:
    for name in configs:
        code, out, err = cli("preview", f"{name}.yaml", "--count", "50", "--json")
        assert code == 0, err
        assert json.loads(out)["masked_share"] == pytest.approx(0.15, abs=0.03)
