"""GPT-1, GPT-2 and GPT-3 from the command line: contiguous text, a growing batch, a mixture."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from plmctl.corpus.store import TokenStore
from plmctl.run import pretraining
from tests.builders import json_lines, stopping_at
from tests.commands.conftest import Cli, pretrain_config, run_main, sentence, write
from tests.commands.test_bad_input import finetune_config, refused

EXACT = ("step", "epoch", "tokens", "loss", "lr", "grad_norm")
TINY = {"size": "tiny", "n_embd": 32, "n_head": 2}


def records(run: Path) -> list[dict]:
    lines = json_lines(run / "metrics.jsonl")
    return [{key: line[key] for key in EXACT} for line in lines if "loss" in line]


@pytest.fixture(scope="module")
def configs(world: Path) -> dict[str, dict]:
    """A config of each kind, and what they need."""
    tokenizer = {"algorithm": "bpe", "family": "gpt1", "vocab_size": 300}
    write("tok-gpt1.yaml", {"run": "tok-gpt1", **tokenizer, "data": {"train": ["text.txt"]}})
    assert run_main("train-tokenizer", "tok-gpt1.yaml") == 0
    other = "\n\n".join("\n".join(sentence(d * 5 + s).upper() for s in range(9)) for d in range(25))
    (world / "other.txt").write_text(other, encoding="utf-8")
    base = pretrain_config("gpt2") | {"log": {"every": 1}, "checkpoint": {"every": 3}}
    phases = {"phases": [{"seq_len": 32, "steps": 9}]}
    gpt1 = {
        "tokenizer": "tok-gpt1",
        "model": {"family": "gpt1", **TINY},
        "objective": {"name": "clm", "separator": "none"},
        "train": {"batch_size": 8, **phases},
    }
    gpt3 = {
        "model": {"family": "gpt3", **TINY},
        "objective": {"name": "clm", "attention": "within"},
        "train": {
            "batch_size": 12,
            "batch_ramp": {"start": 2, "tokens": 600},
            **phases,
        },
        "schedule": {
            "name": "cosine",
            "warmup": "300 tokens",
            "min_lr_ratio": 0.1,
            "decay_until": "1.2k tokens",
        },
    }
    mixture = {
        "model": base["model"] | {"initial_embeddings": "cooccurrence"},
        "data": {
            "mixture": [
                {"name": "lower", "train": ["text.txt"], "weight": 1},
                {"name": "upper", "train": ["other.txt"], "weight": 3},
            ],
            "valid": 0.1,
        },
        "train": {"batch_size": 8, **phases},
    }
    changes = {"gpt1": gpt1, "gpt3": gpt3, "mixture": mixture}
    return {name: {**base, **fields} for name, fields in changes.items()}


@pytest.fixture(scope="module")
def whole(configs: dict[str, dict]) -> Callable[[str], Path]:
    """A finished run of each config, made when it is first needed."""

    @cache
    def run(name: str) -> Path:
        write(f"{name}.yaml", configs[name])
        assert run_main("pretrain", f"{name}.yaml", f"run=whole-{name}") == 0
        return Path(f"whole-{name}")

    return run


@pytest.mark.parametrize("name", [pytest.param("gpt1", marks=pytest.mark.slow), "gpt3", "mixture"])
def test_an_interrupted_run_is_the_uninterrupted_one(
    name: str, whole: Callable[[str], Path], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run; the same stopped by SIGTERM and gone on with; the same in other micro-batches."""
    expected, cut = records(whole(name)), Path(f"cut-{name}")
    assert len(expected) == 9
    planned = pretraining.make_plan

    def stopping(*arguments: Any) -> Any:
        return stopping_at(4, planned(*arguments))

    with monkeypatch.context() as patch:
        patch.setattr(pretraining, "make_plan", stopping)
        assert cli("pretrain", f"{name}.yaml", f"run={cut}")[0] == 75
    assert records(cut)[-1]["step"] == 5
    assert cli("pretrain", f"{name}.yaml", f"run={cut}", "--until=8")[0] == 75
    assert records(cut) == expected[:8]

    pieces = f"pieces-{name}"
    override = ("model.resid_pdrop=0", "model.embd_pdrop=0", "model.attn_pdrop=0")
    logs = []
    for micro in (12, 3):
        run = f"{pieces}-{micro}"
        arguments = (f"run={run}", f"train.micro_batch_size={micro}", *override)
        assert cli("pretrain", f"{name}.yaml", *arguments, "--until=8")[0] == 75
        logs.append(records(Path(run)))
    for one, other in zip(*logs, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert one["tokens"] == other["tokens"]


@pytest.mark.parametrize(("name", "kind"), [("gpt1", "openai-gpt"), ("gpt3", "gpt2")])
def test_the_folder_loads_and_generates(name: str, kind: str, whole: Callable[[str], Path]) -> None:
    folder = whole(name) / "model"
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.model_type == kind
    ids = tokenizer("Anna sees", return_tensors="pt").input_ids
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert out.shape[1] > ids.shape[1]


def test_the_ramp_and_the_schedule_are_in_the_log(whole: Callable[[str], Path]) -> None:
    lines = records(whole("gpt3"))
    tokens = [0] + [line["tokens"] for line in lines]
    sizes = [(b - a) // 32 for a, b in zip(tokens, tokens[1:], strict=False)]
    expected = [2 + 10 * min(seen, 600) // 600 for seen in tokens[:-1]]
    assert sizes == expected
    assert (sizes[0], sizes[-1]) == (2, 12)
    assert lines[0]["lr"] == pytest.approx(0.001 * 64 / 300)
    assert lines[-1]["lr"] == pytest.approx(0.0001)


def test_prepare_and_preview_of_a_mixture(configs: dict[str, dict], cli: Cli) -> None:
    write("mixture.yaml", configs["mixture"])
    code, out, err = cli("prepare", "mixture.yaml", "--json")
    assert code == 0, err
    assert len(json.loads(out)["folder"].split(", ")) == 2
    assert "exist already; nothing was built" in cli("prepare", "mixture.yaml")[2]
    code, out, err = cli("preview", "mixture.yaml", "--json")
    assert code == 0, err
    figures = json.loads(out)
    assert figures["share_upper"] == pytest.approx(0.75, abs=0.02)
    assert figures["share_lower"] == pytest.approx(0.25, abs=0.02)


def test_weights_by_size(configs: dict[str, dict], cli: Cli) -> None:
    """XLM-R's: the shares of the tokens to the power of alpha, over their sum."""
    sources = [{"name": name, "train": [f"{name}.txt"]} for name in ("text", "small")]
    Path("small.txt").write_text(Path("other.txt").read_text()[:3500], encoding="utf-8")
    data = {"mixture": sources, "mixture_alpha": 0.3, "valid": None}
    write("alpha.yaml", {**configs["mixture"], "data": data})
    code, out, err = cli("prepare", "alpha.yaml", "--json")
    assert code == 0, err
    folders = json.loads(out)["folder"].split(", ")
    sizes = [TokenStore.open(Path(folder)).num_tokens for folder in folders]
    share = 1 / (1 + (sizes[1] / sizes[0]) ** 0.3)
    assert sizes[0] / sum(sizes) > share + 0.05
    passes = [share * sum(sizes) / sizes[0], (1 - share) * sum(sizes) / sizes[1]]
    for name, part, number in zip(("text", "small"), (share, 1 - share), passes, strict=True):
        assert f"{part:.1%} of the samples: an epoch reads it {number:.2f} times" in err, name
    preview = json.loads(cli("preview", "alpha.yaml", "--json")[1])
    assert preview["share_text"] == pytest.approx(share, abs=0.02)
    code, out, err = cli("pretrain", "alpha.yaml", "run=alpha", "--json")
    assert code == 0, err
    card = Path("alpha/model/README.md").read_text(encoding="utf-8")
    assert "training, weight by size to the power 0.3" in card
    code, _, err = cli("verify-resume", "alpha.yaml", "run=alpha-verify", "--kills", "1")
    assert code == 0, err


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["objective.separator=end_of_text"], "end-of-text"),
        (["train.phases.0.seq_len=600"], "512 positions"),
        (["train.batch_ramp={start: 9, tokens: 1k}"], "train.batch_ramp"),
        (["data.mixture=[{name: a, train: [text.txt], weight: 1}]"], "mixture"),
        (["data.train=[]"], "train"),
        (["data.mixture_alpha=0.3"], "mixture_alpha: expected a `mixture`"),
        (
            ["data={mixture: [{name: a, train: [text.txt]}]}"],
            "expected a `weight` for each source",
        ),
        (
            ["data={mixture: [{name: a, train: [text.txt], weight: 2}], mixture_alpha: 0.3}"],
            "and not both",
        ),
        (["objective={name: mlm+nsp}"], "clm"),
    ],
    ids=str,
)
def test_refused(overrides: list[str], message: str, configs: dict[str, dict], cli: Cli) -> None:
    write("gpt1.yaml", configs["gpt1"])
    code, _, err = cli("pretrain", "gpt1.yaml", "run=refused", *overrides)
    assert code == 2
    assert message in err
    assert not Path("refused").exists()


def test_a_gpt1_folder_is_measured(whole: Callable[[str], Path], cli: Cli) -> None:
    measure = {"name": "clm", "data": ["text.txt"], "seq_len": 32, "separator": "none"}
    model = str(whole("gpt1") / "model")
    write("ev-gpt1.yaml", {"run": "ev-gpt1", "model": model, "measures": [measure]})
    code, out, err = cli("eval", "ev-gpt1.yaml", "--json")
    assert code == 0, err
    assert '"perplexity/lm"' in out


# --- A decoder that sees both sides ---


def test_finetuned_with_both_sides(cli: Cli, pretrained: dict[str, Path]) -> None:
    """The folder says so: plain transformers has plmctl's answers, each of which reads the end."""
    run = "both-sides"
    write("both.yaml", finetune_config(pretrained["gpt2"]) | {"run": run, "both_sides": True})
    assert cli("finetune", "both.yaml")[0] == 0
    folder = Path(run) / "model"
    assert json.loads((folder / "config.json").read_text())["is_causal"] is False
    texts = [sentence(n) for n in range(3)] + ["Anna sees Bela."]
    rows = "\n".join(json.dumps({"text": text}) for text in texts)
    Path("texts.jsonl").write_text(rows + "\n", encoding="utf-8")
    assert cli("predict", run, "--input", "texts.jsonl", "--output", "both.out")[0] == 0
    given = [list(row["probabilities"].values()) for row in json_lines(Path("both.out"))]
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        expected = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits.softmax(-1)
    torch.testing.assert_close(torch.tensor(given), expected, rtol=1e-4, atol=1e-5)
    assert "| both_sides | true |" in (folder / "README.md").read_text()
    again = cli("finetune", "both.yaml", f"model={run}", "run=both-again", "both_sides=false")
    assert f"{run}/model sees both sides of each token" in again[2]
    measure = {"name": "task", "data": ["rows.tsv"]}
    write("task.yaml", {"run": "both-task", "model": run, "measures": [measure]})
    assert cli("eval", "task.yaml")[0] == 0
    refused(
        cli("eval", "task.yaml", "run=other", "both_sides=true"), 2, "is finetuned", "leave it out"
    )


def test_a_head_of_its_own_over_both_sides(cli: Cli, pretrained: dict[str, Path]) -> None:
    """The encoder's config inside the folder's says it, and is read and changed."""
    task = {"name": "tagging", "scheme": "pos", "layers": "mix"}
    words = [sentence(n).split() for n in range(20)]
    rows = [
        {"tokens": one, "tags": ["A", "B"] * (len(one) // 2) + ["A"] * (len(one) % 2)}
        for one in words
    ]
    Path("tags.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    fields = finetune_config(pretrained["gpt2"]) | {"run": "mixed", "task": task}
    fields["data"] = {"train": ["tags.jsonl"], "valid": 0.2}
    write("mixed.yaml", fields)
    code, _, err = cli("finetune", "mixed.yaml")
    assert code == 0, err
    again = ("finetune", "mixed.yaml", "model=mixed", "run=mixed-both", "both_sides=true")
    code, _, err = cli(*again)
    assert code == 0, err
    config = json.loads(Path("mixed-both/model/config.json").read_text())
    assert config["encoder"]["is_causal"] is False
    _, _, err = cli("finetune", "mixed.yaml", "model=mixed-both", "run=mixed-third")
    assert "mixed-both/model sees both sides of each token" in err


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("bert", {}, ("both_sides", "is a bert", "gpt2, llama")),
        (
            "gpt2",
            {"task": {"name": "text_to_text", "source": "text", "target": "label"}},
            ("task.name: text_to_text writes text", "leave out both_sides"),
        ),
        ("gpt2", {"compute": {"attention": "flash_attention_2"}}, ("with both_sides",)),
    ],
)
def test_who_cannot_be_finetuned_with_both_sides(
    name: str,
    changes: dict[str, Any],
    words: tuple[str, ...],
    cli: Cli,
    pretrained: dict[str, Path],
) -> None:
    fields = finetune_config(pretrained[name]) | {"run": "never", "both_sides": True, **changes}
    write("never.yaml", fields)
    refused(cli("finetune", "never.yaml"), 2, *words)
    assert not Path("never").exists()


@pytest.mark.parametrize(
    ("name", "measure", "words"),
    [
        ("gpt2", {"name": "perplexity", "data": ["text.txt"]}, ("masked", "leave out both_sides")),
        ("gpt2", {"name": "clm", "data": ["text.txt"]}, ("clm cannot measure", "both_sides")),
        ("gpt2", {"name": "bits_per_byte", "data": ["text.txt"]}, ("no [MASK]",)),
        ("bert", {"name": "bits_per_byte", "data": ["text.txt"]}, ("is a bert", "gpt2, llama")),
    ],
)
def test_what_cannot_be_measured_with_both_sides(
    name: str, measure: dict[str, Any], words: tuple[str, ...], cli: Cli,
    pretrained: dict[str, Path],
) -> None:  # fmt: skip
    model = str(pretrained[name])
    write("no.yaml", {"run": "no", "model": model, "measures": [measure], "both_sides": True})
    refused(cli("eval", "no.yaml"), 2, *words)
