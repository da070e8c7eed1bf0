"""T5 through the commands, with a tokenizer made by hand: words, and sentinels as the last ids."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerFast

from plmctl.tokenization.load import Vocab
from tests.builders import json_lines
from tests.commands.conftest import NAMES, PLACES, VERBS, Cli, run_main, write

WORDS = ["at", "the", "on", "day", ".", *NAMES, *VERBS, *PLACES, *map(str, range(31))]
SENTINELS = [f"<extra_id_{number}>" for number in reversed(range(20))]
CONFIG = {
    "tokenizer": "tok-t5",
    "model": {"family": "t5", "size": "tiny", "d_model": 32, "d_ff": 48, "num_heads": 1},
    "data": {"train": ["text.txt"], "valid": 0.1},
    "train": {"batch_size": 8, "phases": [{"seq_len": 32, "steps": 6}]},
    "optim": {"lr": 0.003},
    "log": {"every": 2},
    "compute": {"device": "cpu", "precision": "fp32"},
}


@pytest.fixture(scope="module")
def tokenizer(world: Path) -> Path:
    folder = world / "tok-t5"
    words = ["<pad>", "</s>", "<unk>", *WORDS, *SENTINELS]
    inner = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="<unk>"))
    inner.normalizer = normalizers.NFKC()
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(
        "$A </s>", "$A </s> $B </s>", [("</s>", 1)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        extra_special_tokens=SENTINELS,
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def finished(world: Path, tokenizer: Path) -> Callable[..., Path]:
    """``finished(objective, version)``: the folder of a finished tiny run."""
    runs: dict[tuple[str, str], Path] = {}

    def run(objective: str, version: str) -> Path:
        if (objective, version) not in runs:
            name = f"t5-{objective}-{version}"
            model = {**CONFIG["model"], "version": version}
            write(
                f"{name}.yaml",
                {**CONFIG, "run": name, "model": model, "objective": {"name": objective}},
            )
            assert run_main("pretrain", f"{name}.yaml") == 0
            runs[objective, version] = world / name
        return runs[objective, version]

    return run


def test_sentinels_are_found_in_their_order(tokenizer: Path) -> None:
    vocab = Vocab.from_folder(str(tokenizer))
    assert (vocab.pad, vocab.eos, vocab.unk) == (0, 1, 2)
    assert vocab.sentinels == tuple(range(vocab.size - 1, vocab.size - 21, -1))


@pytest.mark.parametrize(
    ("objective", "version", "kind"),
    [
        ("span_corruption", "v1.0", "fill-span"),
        ("span_corruption", "v1.1", "fill-span"),
        ("prefix_lm", "v1.1", "generation"),
        ("deshuffling", "v1.0", "deshuffle"),
        ("iid_denoising", "v1.0", "fill-span"),
    ],
)
def test_a_run_leaves_a_model_that_the_auto_class_loads(
    finished: Callable[..., Path], objective: str, version: str, kind: str
) -> None:
    run = finished(objective, version)
    lines = json_lines(run / "metrics.jsonl")
    last = [line for line in lines if "loss" in line][-1]
    assert last["step"] == 6
    assert last["loss"] == pytest.approx(last["loss/lm"] + last["loss/z_loss"])
    assert 0 < last["loss/lm"] < 7
    samples = json.loads((run / "eval" / "samples.json").read_text())
    assert samples["kind"] == kind
    assert all(item["prompt"] and item["answer"] for item in samples["items"])
    assert ("<extra_id_0>" in samples["items"][0]["prompt"]) == (kind == "fill-span")

    model = AutoModelForSeq2SeqLM.from_pretrained(run / "model").eval()
    assert (model.lm_head.weight is model.shared.weight) == (version == "v1.0")
    assert model.config.scale_decoder_outputs == (version == "v1.0")
    config = json.loads((run / "model" / "config.json").read_text())
    assert config["tie_word_embeddings"] == (version == "v1.0")
    assert model.generation_config.eos_token_id == 1
    assert model.generation_config.decoder_start_token_id == 0
    words = AutoTokenizer.from_pretrained(run / "model")
    ids = words("Anna sees <extra_id_0> at the garden", return_tensors="pt").input_ids
    assert ids[0, -1] == 1
    with torch.inference_mode():
        output = model.generate(ids, max_new_tokens=5, do_sample=False)
    assert output.shape[1] <= 6
    assert "AutoModelForSeq2SeqLM" in (run / "model" / "README.md").read_text()


@pytest.mark.parametrize("version", ["v1.0", "v1.1"])
def test_a_run_that_was_cut_short_is_the_whole_run(
    cli: Cli, world: Path, tokenizer: Path, version: str
) -> None:
    """Dropout on; the same losses and weights, tied or not, after going on from step 2 of 6."""
    model = {**CONFIG["model"], "version": version, "dropout_rate": 0.1}
    run = world / f"t5-cut-{version}"
    name = f"{run.name}.yaml"
    write(name, {**CONFIG, "run": run.name, "model": model, "checkpoint": {"every": 2, "keep": 9}})
    assert cli("pretrain", name)[0] == 0
    whole = json_lines(run / "metrics.jsonl")
    weights = load_file(run / "model" / "model.safetensors")
    shutil.rmtree(run / "model")
    for later in ("step-000004", "step-000006"):
        shutil.rmtree(run / "checkpoints" / later)
    assert cli("pretrain", name)[0] == 0
    again = json_lines(run / "metrics.jsonl")
    keys = ("step", "loss", "loss/lm", "loss/z_loss", "grad_norm", "valid/loss")
    assert [{k: r.get(k) for k in keys} for r in again] == [
        {k: r.get(k) for k in keys} for r in whole
    ]
    got = load_file(run / "model" / "model.safetensors")
    assert weights.keys() == got.keys()
    assert all(torch.equal(got[key], value) for key, value in weights.items())


def test_a_model_is_continued_and_measured(
    cli: Cli, world: Path, finished: Callable[..., Path]
) -> None:
    """LM adaptation: prefix language modeling from a model of span corruption."""
    start = finished("span_corruption", "v1.1") / "model"
    write(
        "t5-adapt.yaml",
        {
            **CONFIG,
            "run": "t5-adapt",
            "model": {**CONFIG["model"], "version": "v1.1", "init_from": str(start)},
            "objective": {"name": "prefix_lm"},
        },
    )
    code, _, err = cli("pretrain", "t5-adapt.yaml")
    assert code == 0, err
    model = AutoModelForSeq2SeqLM.from_pretrained(world / "t5-adapt" / "model")
    assert model.lm_head.weight is not model.shared.weight
    assert cli("export", "t5-adapt", "t5-adapt-export")[0] == 0
    rows = [{"text": f"{name} sees", "label": name} for name in ("Anna", "Bela")] * 4
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (world / "t5-rows.jsonl").write_text(lines, encoding="utf-8")
    finetuning = {
        "run": "t5-tuned",
        "model": "t5-adapt/model",
        "task": {"name": "text_to_text", "source": "{text}", "target": "label"},
        "data": {"train": ["t5-rows.jsonl"], "valid": ["t5-rows.jsonl"]},
        "train": {"epochs": 1, "batch_size": 4, "max_length": 16},
        "compute": {"device": "cpu", "precision": "fp32"},
    }
    write("t5-tuned.yaml", finetuning)
    assert cli("finetune", "t5-tuned.yaml")[0] == 0
    # Each writer says what the tensors are: 1.1 has two matrices.
    for folder in (start, "t5-adapt/model", "t5-adapt-export", "t5-tuned/model"):
        weights = load_file(world / folder / "model.safetensors")
        assert not torch.equal(weights["shared.weight"], weights["lm_head.weight"])
        saved = json.loads((world / folder / "config.json").read_text())
        assert saved["tie_word_embeddings"] is False
        assert (world / folder / "tokenizer_probe.json").is_file()
    measures = [
        {"name": name, "data": ["text.txt"], "seq_len": 32, "max_samples": 50}
        for name in ("span_corruption", "prefix_lm")
    ]
    write("t5-eval.yaml", {"run": "t5-eval", "model": "t5-adapt/model", "measures": measures})
    code, out, err = cli("eval", "t5-eval.yaml", "--json")
    assert code == 0, err
    for name in ("span_corruption", "prefix_lm"):
        (result,) = (
            json.loads(path.read_text())["results"]
            for path in (world / "t5-eval").rglob("*.json")
            if json.loads(path.read_text()).get("measure", {}).get("name") == name
        )
        assert result["perplexity/lm"] > 1
        assert result["sequences"] == 50
        assert result["loss"] == result["loss/lm"]
    foreign = [{"name": "clm", "data": ["text.txt"], "seq_len": 32}]
    write("t5-foreign.yaml", {"run": "t5-none", "model": "t5-adapt/model", "measures": foreign})
    code, _, err = cli("eval", "t5-foreign.yaml")
    assert code == 2
    assert "clm cannot measure a model of type 't5'" in " ".join(err.split())


def test_predict_fills_sentinels(cli: Cli, finished: Callable[..., Path]) -> None:
    model = str(finished("span_corruption", "v1.1") / "model")
    text = "Anna <extra_id_0> Bela at the <extra_id_1> ."
    code, out, err = cli("predict", model, text, "--json")
    assert code == 0, err
    (answer,) = json.loads(out)["answers"]
    assert [one["sentinel"] for one in answer["answers"]] == ["<extra_id_0>", "<extra_id_1>"]
    network = AutoModelForSeq2SeqLM.from_pretrained(model)
    words = AutoTokenizer.from_pretrained(model)
    with torch.inference_mode():
        written = network.generate(
            words(text, return_tensors="pt").input_ids, max_new_tokens=80, do_sample=False
        )
    output = words.decode(written[0].tolist()).removeprefix("<pad>").split("</s>")[0]
    after = output.partition("<extra_id_0>")[2].split("<extra_id_")[0].strip()
    assert (answer["answers"][0]["token"] or "") == after
    code, _, err = cli("predict", model, "Anna sees")
    assert code == 2
    assert "no <extra_id_0> in 'Anna sees'" in err
    assert f"plmctl generate {model}" in err


def test_preview_shows_spans(cli: Cli, tokenizer: Path) -> None:
    write("t5-preview.yaml", {**CONFIG, "run": "t5-preview"})
    code, out, err = cli("preview", "t5-preview.yaml", "--count", "200", "--json")
    assert code == 0, err
    figures = json.loads(out)
    assert figures["mean_length"] == pytest.approx(32, abs=0.5)
    assert figures["noise_share"] == pytest.approx(0.15, abs=0.01)
    code, out, err = cli("preview", "t5-preview.yaml", "--count", "10")
    assert code == 0, err
    assert "<extra_id_0>" in out


def test_a_tokenizer_without_sentinels_is_refused(cli: Cli, world: Path, tokenizer: Path) -> None:
    write("t5-bert-tok.yaml", {**CONFIG, "run": "t5-wrong", "tokenizer": "tok-bert"})
    code, _, err = cli("pretrain", "t5-bert-tok.yaml")
    assert code == 2
    assert "tok-bert has no end-of-text token, sentinels (<extra_id_0>" in err
    assert "algorithm: unigram" in err
    write(
        "t5-long.yaml",
        {**CONFIG, "run": "t5-wrong", "train": {"phases": [{"seq_len": 512, "steps": 1}]}},
    )
    code, _, err = cli("pretrain", "t5-long.yaml")
    assert code == 2
    assert "needs 28 sentinels" in err
    assert not (world / "t5-wrong").exists()


@pytest.mark.parametrize(
    ("name", "objective", "message"),
    [
        ("t5", "clm", "clm needs one stack of layers; the family t5 has an encoder and a decoder"),
        ("t5", "mlm", "mlm needs heads for mlm; the family t5 has lm and z_loss"),
        ("gpt2", "prefix_lm", "needs heads for lm and z_loss; the family gpt2 has lm"),
    ],
)
def test_objectives_of_other_networks_are_refused(
    cli: Cli, tokenizer: Path, name: str, objective: str, message: str
) -> None:
    config = CONFIG if name == "t5" else {**CONFIG, "model": {"family": name, "size": "tiny"}}
    write("t5-foreign.yaml", {**config, "run": "t5-wrong", "objective": {"name": objective}})
    code, _, err = cli("pretrain", "t5-foreign.yaml")
    assert code == 2
    assert message in " ".join(err.split())
    fitting = "deshuffling, iid_denoising, prefix_lm, span_corruption"
    assert (fitting in " ".join(err.split())) == (name == "t5")
