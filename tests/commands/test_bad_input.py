"""Wrong input gives one clear message, the right exit code, and nothing is lost or overwritten."""

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from plmctl.corpus.document import share_of
from plmctl.run.configs import load
from tests.commands.conftest import Cli, corpus_text, pretrain_config, run_main, write


def refused(result: tuple[int, str, str], code: int, *words: str) -> None:
    got, out, err = result
    assert got == code, err
    assert out == ""
    assert "Traceback" not in err
    for word in words:
        assert word in err, err


def test_unknown_keys_are_all_named_with_their_places(cli: Cli) -> None:
    Path("bad.yaml").write_text(
        "run: x\ntokenizer: tok-bert\nmodel: {family: bert}\ndata:\n  train: [text.txt]\n"
        "  trian: 1\ntrain:\n  phases: [{seq_len: 32, steps: 2}]\n"
        "objective: {name: mlm, rat: 0.2}\n"
    )
    refused(
        cli("pretrain", "bad.yaml"),
        2,
        "bad.yaml:6:3: data.trian: unknown key; did you mean 'train'?",
        "bad.yaml:9:24: objective.rat: unknown key; did you mean 'rate'?",
    )
    assert not Path("x").exists()


def test_wrong_type(cli: Cli) -> None:
    refused(cli("pretrain", "bert.yaml", "run=x", "optim.lr=fast"), 2, "optim.lr", '"fast"')
    assert not Path("x").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.batch_size=1000000000000", "train.batch_size: the ids of a step take"),
        ("model.hidden_size=1000000000000", "model.hidden_size: 1,000,000,000,000; at most"),
        ("model.hidden_size=6400000", "model: weights, gradients and optimizer of"),
        ("model.num_hidden_layers=1000000000", "at most 10,000 can be computed"),
        ("compute.workers=100000", "compute.workers: 100,000 processes, and this machine has"),
    ],
)
def test_what_no_machine_can_hold(cli: Cli, override: str, message: str) -> None:
    refused(cli("pretrain", "bert.yaml", "run=x", override), 2, message)
    assert not Path("x").exists()


def test_missing_config_file(cli: Cli) -> None:
    refused(cli("pretrain", "brt.yaml"), 2, "brt.yaml", "did you mean", "bert.yaml")


def test_missing_text_file(cli: Cli) -> None:
    refused(
        cli("pretrain", "bert.yaml", "run=x", "data.train=[texx.txt]"),
        3,
        "texx.txt: no such file",
        "text.txt",
    )


def test_missing_tokenizer(cli: Cli) -> None:
    refused(cli("pretrain", "bert.yaml", "run=x", "tokenizer=./nowhere"), 2, "./nowhere")


def test_empty_corpus(cli: Cli) -> None:
    Path("empty.txt").write_text("\n\n  \n")
    refused(cli("pretrain", "bert.yaml", "run=x", "data.train=[empty.txt]"), 3, "no text")
    refused(
        cli("train-tokenizer", "tok-bert.yaml", "run=x", "data.train=[empty.txt]"), 3, "no text"
    )


@pytest.mark.parametrize("packed", [False, True])
def test_invalid_utf8_names_file_and_line(cli: Cli, packed: bool) -> None:
    content = b"one line.\nsecond \xff line.\n"
    name = "latin.txt.gz" if packed else "latin.txt"
    Path(name).write_bytes(gzip.compress(content) if packed else content)
    refused(cli("pretrain", "bert.yaml", "run=x", f"data.train=[{name}]"), 3, f"{name}:2", "UTF-8")


def test_a_corpus_shorter_than_one_sequence(cli: Cli) -> None:
    Path("short.txt").write_text("Anna sees Bela.\n")
    refused(
        cli("pretrain", "gpt2.yaml", "run=x", "data.train=[short.txt]", "data.valid=null"),
        3,
        "tokens",
        "32",
    )
    refused(
        cli("pretrain", "bert.yaml", "run=x", "data.train=[short.txt]", "data.valid=null"),
        3,
        "two documents",
    )


def test_ids_over_the_models_vocabulary(cli: Cli, pretrained: dict[str, Path]) -> None:
    model = pretrained["bert"] / "model"
    config = pretrain_config("bert") | {"run": "x", "tokenizer": "tok-large"}
    config["model"] = {"family": "bert", "init_from": str(model)}
    write("continue.yaml", config)
    words = [f"{a}{b}{c}" for a in "bcdfg" for b in "aeiou" for c in ("nt", "rk", "ll", "st")]
    Path("words.txt").write_text("\n".join(" ".join(words[k::7]) for k in range(7)) * 3)
    source = "data.train=[words.txt, text.txt]"
    assert cli("train-tokenizer", "tok-bert.yaml", "run=tok-large", source)[0] == 0
    refused(cli("pretrain", "continue.yaml"), 2, "tok-large has", "vocabulary of", "190")


def test_a_sequence_longer_than_the_positions(cli: Cli) -> None:
    refused(
        cli("pretrain", "bert.yaml", "run=x", "model.max_position_embeddings=16"),
        2,
        "seq_len 32",
        "16 positions",
    )


def test_a_sequence_longer_than_the_positions_is_refused_before_text_is_read(cli: Cli) -> None:
    settings = ["data.store=unread-store", "train.phases.0.seq_len=1024"]
    refused(cli("pretrain", "bert.yaml", "run=x", *settings), 2, "seq_len 1024", "512 positions")
    assert not Path("unread-store").exists()


MIXED = "data={train: [], mixture: [%s, {name: small, train: [nine.txt], weight: 1}], valid: 0.1}"


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("bert", ["data.valid=[one.txt]"], ["the validation text:", "at least two documents"]),
        ("bert", ["data.valid=0.004"], ["the validation text:", "increase data.valid"]),
        (
            "bert",
            [MIXED % "{name: big, train: [text.txt], weight: 1}"],
            ["the validation text of the source 'small'", "increase data.valid"],
        ),
        ("gpt2", ["data.valid=[word.txt]"], ["the validation text:", "one sequence of 32"]),
    ],
)
def test_a_validation_text_that_cannot_be_scored_is_refused_before_the_first_step(
    cli: Cli, name: str, settings: list[str], words: list[str]
) -> None:
    Path("one.txt").write_text(corpus_text(1), encoding="utf-8")
    documents = sorted(corpus_text(9).split("\n\n"), key=share_of)[1:]  # one of them is held out
    Path("nine.txt").write_text("\n\n".join(documents), encoding="utf-8")
    Path("word.txt").write_text("Anna.\n", encoding="utf-8")
    refused(cli("pretrain", f"{name}.yaml", "run=x", *settings), 3, "data.valid: ", *words)
    assert not Path("x").exists()


@pytest.mark.parametrize("keep", ["best", "last"])
def test_a_metric_that_the_task_lacks_is_refused_before_the_first_step(
    cli: Cli, pretrained: dict[str, Path], keep: str
) -> None:
    config = finetune_config(pretrained["bert"]) | {"run": f"unknown-metric-{keep}"}
    config["train"] |= {"metric": "acuracy", "keep": keep}
    write("metric.yaml", config)
    refused(cli("finetune", "metric.yaml"), 2, "'acuracy'; did you mean 'accuracy'?")
    assert not Path(f"unknown-metric-{keep}/metrics.jsonl").exists()


def test_an_objective_that_the_family_has_no_heads_for(cli: Cli) -> None:
    for name, objective, needed, fitting in (
        ("gpt2", "mlm+nsp", "mlm and nsp", "clm"),
        ("bert", "mlm+sop", "mlm and sop", "mlm"),
    ):
        refused(
            cli("pretrain", f"{name}.yaml", "run=x", f"objective.name={objective}"),
            2,
            f"objective.name: {objective} needs heads for {needed}",
            f"the family {name} has",
            f"objectives that fit it: {fitting}",
        )
    assert not Path("x").exists()


def test_a_tokenizer_without_the_objectives_tokens(cli: Cli) -> None:
    Path("unread.txt").write_text("Anna sees Bela.\n\nCarl likes Ida.\n")
    before = sorted(Path("stores").glob("*"))
    refused(
        cli("pretrain", "bert.yaml", "run=x", "tokenizer=tok-gpt2", "data.train=[unread.txt]"),
        2,
        "tokenizer: tok-gpt2 has no [MASK], [CLS], [SEP], [PAD]",
        "algorithm: wordpiece",
    )
    assert sorted(Path("stores").glob("*")) == before  # no text was read


@pytest.mark.parametrize("rate", ["0", "1", "1.5", "-0.1"])
def test_a_mask_rate_that_is_none(cli: Cli, rate: str) -> None:
    refused(
        cli("pretrain", "bert.yaml", "run=x", "objective.name=mlm", f"objective.rate={rate}"),
        2,
        "objective.rate: expected",
    )


def test_word_masking_where_every_token_is_a_word(cli: Cli) -> None:
    Path("letters.txt").write_text("A b c.\nD e f.\n\nG h i.\nJ k l.\n" * 30)
    letters = ["data.train=[letters.txt]", "data.documents=blank_line", "objective.name=mlm"]
    refused(
        cli("pretrain", "bert.yaml", "run=x", *letters, "objective.unit=word"),
        2,
        "objective.unit: word, but 100.0% of the tokens are whole words",
        "unit: token",
    )
    assert not Path("x").exists()


def test_a_label_unseen_in_training(cli: Cli, pretrained: dict[str, Path]) -> None:
    Path("odd.tsv").write_text("text\tlabel\nAnna sees Bela.\tTrue\nCarl likes Ida.\tPerhaps\n")
    write("ft.yaml", finetune_config(pretrained["bert"]) | {"run": "x"})
    refused(cli("finetune", "ft.yaml", "data.valid=[odd.tsv]"), 3, "odd.tsv:3", "'Perhaps'")


def test_a_column_that_is_not_there(cli: Cli, pretrained: dict[str, Path]) -> None:
    write("ft.yaml", finetune_config(pretrained["bert"]) | {"run": "x2"})
    refused(cli("finetune", "ft.yaml", "task.text=txet"), 3, "rows.tsv:2", "'txet'", "'text'")


def test_a_run_folder_of_another_config(cli: Cli, pretrained: dict[str, Path]) -> None:
    folder = pretrained["bert"]
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    refused(
        cli("pretrain", "bert.yaml", f"run={folder.name}", "optim.lr=0.5"),
        2,
        "made from another config",
        "optim.lr: 0.001 -> 0.5",
        "--fresh",
    )
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_a_folder_that_is_no_run(cli: Cli) -> None:
    Path("precious").mkdir()
    Path("precious/thesis.txt").write_text("years of work")
    refused(cli("pretrain", "bert.yaml", "run=precious"), 2, "precious", "not a run folder")
    assert Path("precious/thesis.txt").read_text() == "years of work"


def test_a_run_stands_for_its_model_and_a_model_for_its_run(
    cli: Cli, pretrained: dict[str, Path]
) -> None:
    write("ft.yaml", finetune_config(pretrained["bert"]) | {"run": "x"})
    run = pretrained["bert"].name
    assert load("finetune", "ft.yaml", [f"model={run}"]).model == f"{run}/model"
    measures = [{"name": "perplexity", "data": ["text.txt"]}]
    write("measure.yaml", {"run": "x", "model": run, "measures": measures})
    assert load("eval", "measure.yaml").model == f"{run}/model"
    assert load("pretrain", "bert.yaml", [f"tokenizer={run}"]).tokenizer == f"{run}/model"
    assert load("tokenizer", "tok-bert.yaml", [f"extend={run}"]).extend == f"{run}/model"
    code, out, err = cli("predict", run, "Anna [MASK] Bela")
    assert (code, "Anna" in out) == (0, True), err
    for command in ("status", "report"):
        assert cli(command, f"{run}/model")[0] == 0
    shutil.copytree(run, "runs/new")
    code, out, err = cli("status")
    assert (code, "runs/new" in out) == (0, True), err
    shutil.move("runs", "project/runs")  # as `init` and `run` have them
    code, out, err = cli("status", "project")
    assert (code, "project/runs/new" in out) == (0, True), err
    for command in (("predict", "project", "x"), ("try", "project"), ("report", "project")):
        refused(cli(*command), 2, "did you mean project/runs/new?")
    refused(cli("resume", run), 2, "run the same command again")
    shutil.copytree(run, "unfinished", ignore=shutil.ignore_patterns("model"))
    refused(cli("predict", "unfinished", "x"), 2, "has no model/ yet", "plmctl export unfinished")


@pytest.mark.parametrize(
    ("command", "overrides", "message"),
    [
        (
            "pretrain",
            ["train.batch_ramp={start: 1, tokens: 400}"],
            "with train.batch_ramp they differ",
        ),
        ("pretrain", ["launch.processes=2"], "reduce-overhead is for one process"),
        ("finetune", [], "the rows of a finetuning have many lengths"),
    ],
)
def test_steps_that_differ_are_not_recorded(
    cli: Cli, pretrained: dict[str, Path], command: str, overrides: list[str], message: str
) -> None:
    write("ft.yaml", finetune_config(pretrained["bert"]))
    name = {"pretrain": "bert.yaml", "finetune": "ft.yaml"}[command]
    result = cli(command, name, "run=x", "compute.compile=reduce-overhead", *overrides)
    refused(result, 2, "compute.compile: reduce-overhead", message, "use compute.compile=true")


def test_where_padding_cannot_be_left_out(
    cli: Cli, pretrained: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("ft.yaml", finetune_config(pretrained["bert"]))
    unpadded = "run=x", "compute.attention=unpadded"

    def told(command: tuple[str, ...], *words: str) -> None:
        refused(cli(*command, *unpadded), 2, "compute.attention: unpadded", *words)

    told(("pretrain", "gpt2.yaml"), "is not for a network of the type gpt2")
    told(("pretrain", "bert.yaml"), "needs a CUDA device", "leaves padding out on a CPU")
    device = "compute.device=auto", "compute.precision=bf16"
    ft, bert = ("finetune", "ft.yaml", *device), ("pretrain", "bert.yaml", *device)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (7, 5))
    told(ft, "since RTX 30 or A100")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (8, 0))
    told((*bert[:3], "compute.precision=fp32"), "needs bf16 or fp16")
    told((*bert, "launch.strategy=fsdp"), "is not for launch.strategy=fsdp")
    told(
        (*bert, "model.attention_probs_dropout_prob=0.1"),
        "has no dropout of attention",
        "set that of model",
    )
    told((*ft, "train.dropout=0.1"), "set train.dropout to 0")
    assert not Path("x").exists()


def test_a_run_folder_of_another_command(cli: Cli, pretrained: dict[str, Path]) -> None:
    write("ft.yaml", finetune_config(pretrained["bert"]) | {"run": pretrained["gpt2"].name})
    refused(cli("finetune", "ft.yaml"), 2, "made by another command")


def test_a_run_of_an_older_version_with_an_option_that_was_removed(
    cli: Cli, pretrained: dict[str, Path]
) -> None:
    """The message names the line; after the change the run is recognised as finished."""
    saved = pretrained["bert"] / "config.yaml"
    before = saved.read_text()
    run = f"run={pretrained['bert'].name}"
    saved.write_text(before.replace("attention: auto", "attention: varlen"))
    refused(cli("pretrain", "bert.yaml", run), 2, "config.yaml:", '"varlen" was removed', "auto")
    saved.write_text(before)


def test_nothing_is_left_of_a_run_that_was_refused(cli: Cli) -> None:
    assert not Path("x").exists()


def test_a_share_that_holds_nothing_out_is_told_of(cli: Cli) -> None:
    """Two documents, and neither is in a thousandth of them; said once, and the run goes on."""
    Path("few.txt").write_text("Anna sees Bela.\n" * 40 + "\n" + "Carl greets Dora.\n" * 40)
    settings = ["data.train=[few.txt]", "data.valid=0.001", "train.batch_size=2"]
    code, _, err = cli("pretrain", "bert.yaml", "run=held-out-nothing", *settings)
    assert code == 0
    assert err.count("the validation split (0.001 of the documents) is empty") == 1


def finetune_config(run: Path) -> dict:
    return {
        "run": "tuned",
        "model": str(run / "model"),
        "task": {"name": "classification"},
        "data": {"train": ["rows.tsv"], "valid": 0.2},
        "train": {"epochs": 1, "batch_size": 16, "max_length": 32},
        "compute": {"device": "cpu", "precision": "fp32"},
    }


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_more_tokens_than_the_network_has_positions_for(
    name: str, cli: Cli, pretrained: dict[str, Path]
) -> None:
    write("long.yaml", finetune_config(pretrained[name]) | {"run": "too-long"})
    there = 512 if name == "bert" else 1024
    refused(
        cli("finetune", "long.yaml", "train.max_length=2000"),
        2,
        "train.max_length: 2,000 tokens",
        f"positions for {there:,}",
        f"{there} at most",
    )
    assert not Path("too-long").exists()


@pytest.fixture(scope="module")
def damaged(
    world: Path, pretrained: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], str]:
    """``damaged(folder, part)``: a copy of a model folder without the tensors named so."""
    root = tmp_path_factory.mktemp("damaged")
    finetuning = {
        "run": "whole-tuned",
        "model": str(pretrained["bert"] / "model"),
        "task": {"name": "classification"},
        "data": {"train": ["rows.tsv"], "valid": ["rows.tsv"]},
        "train": {"epochs": 0.1, "batch_size": 8, "max_length": 16},
        "compute": {"device": "cpu", "precision": "fp32"},
    }
    write("whole-tuned.yaml", finetuning)
    assert run_main("finetune", "whole-tuned.yaml") == 0
    sources = {**pretrained, "tuned": world / "whole-tuned"}

    def make(source: str, part: str) -> str:
        folder = root / f"{source}-{part}"
        if not folder.exists():
            shutil.copytree(sources[source] / "model", folder)
            weights = load_file(sources[source] / "model" / "model.safetensors")
            left = {name: weight for name, weight in weights.items() if part not in name}
            assert left.keys() < weights.keys()
            save_file(left, folder / "model.safetensors", {"format": "pt"})
        return str(folder)

    return make


EVAL = "measures=[{name: %s, data: [%s]}]"
COMMANDS = {
    "predict a mask": ("bert", "layer.1.", ["predict", "{}", "Anna sees [MASK]"]),
    "predict a class": ("tuned", "classifier.weight", ["predict", "{}", "Anna sees"]),
    "predict rows": ("tuned", "pooler", ["predict", "{}", "--input", "rows.tsv"]),
    "predict a text": ("gpt2", "wpe", ["predict", "{}", "Anna sees"]),
    "eval text": (
        "bert", "word_embeddings", ["eval", "e.yaml", "model={}", EVAL % ("mlm", "text.txt")]
    ),
    "eval sentences": (
        "gpt2", "h.1.", ["eval", "e.yaml", "model={}", EVAL % ("perplexity", "text.txt")]
    ),
    "eval a task": (
        "tuned", "layer.0.", ["eval", "e.yaml", "model={}", EVAL % ("task", "rows.tsv")]
    ),
    "finetune": ("bert", "layer.1.", ["finetune", "whole-tuned.yaml", "run=lost", "model={}"]),
    "finetune again": (
        "tuned", "classifier.bias", ["finetune", "whole-tuned.yaml", "run=lost2", "model={}"]
    ),
    "pretrain": ("bert", "cls.predictions.transform", ["pretrain", "bert.yaml", "run=lost3",
        "model={family: bert, init_from: {}}"]),
    "pretrain with a teacher": ("bert", "layer.0.", ["pretrain", "student.yaml",
        "objective.teacher={}"]),
    "generate": ("gpt2", "h.0.", ["generate", "{}", "--prompt", "Anna"]),
    "neighbours": ("bert", "LayerNorm.bias", ["neighbours", "{}", "text.txt", "--word", "Anna"]),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_a_model_folder_that_lacks_weights(
    name: str, cli: Cli, damaged: Callable[[str, str], str]
) -> None:
    source, part, arguments = COMMANDS[name]
    write("e.yaml", {"run": f"e-{name}", "model": "m", "measures": [{"name": "nsp", "data": ["t"]}],
        "compute": {"device": "cpu", "precision": "fp32"}})  # fmt: skip
    student = pretrain_config("bert") | {
        "run": "student",
        "model": {"family": "distilbert", "size": "tiny", "n_layers": 1, "dim": 32, "n_heads": 2,
            "hidden_dim": 128},
        "objective": {"name": "distillation", "teacher": "x"},
    }  # fmt: skip
    write("student.yaml", student)
    folder = damaged(source, part)
    result = cli(*(argument.replace("{}", folder) for argument in arguments))
    refused(result, 3, f"{folder}: the weights do not fit the model", "missing", part)


def test_a_head_that_a_command_creates_is_named(cli: Cli, pretrained: dict[str, Path]) -> None:
    model = str(pretrained["bert"] / "model")
    Path("new.tsv").write_text("text\tlabel\nAnna\ta\nBela\tb\nCarl\ta\nDora\tb\n")
    finetuning = {
        "run": "new-head", "model": model, "task": {"name": "classification"},
        "data": {"train": ["new.tsv"], "valid": ["new.tsv"]},
        "train": {"epochs": 1, "batch_size": 4, "max_length": 16},
        "compute": {"device": "cpu", "precision": "fp32"},
    }  # fmt: skip
    write("new-head.yaml", finetuning)
    code, _, err = cli("finetune", "new-head.yaml")
    assert code == 0, err
    assert err.count(f"{model}: new, with random weights: ") == 1
    again = json.dumps("new-head/model")
    code, _, err = cli("finetune", "new-head.yaml", "run=new-again", f"model={again}")
    assert code == 0, err
    assert "random weights" not in err


ODD = "\x1b[31mred\x1b]0;title\x07\x9b2J"


def test_control_sequences_of_data_do_not_reach_the_terminal(
    cli: Cli, pretrained: dict[str, Path]
) -> None:
    rows = [{"text": f"Anna sees {n}", "label": (ODD, "b\x1b[2J")[n % 2]} for n in range(40)]
    Path("odd-labels.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    Path(f"odd{ODD}.txt").write_text("\xff", encoding="latin-1")
    Path("odd.txt").write_text(f"Anna sees {ODD} and Bela.\n" * 40, encoding="utf-8")
    config = {
        "run": "odd-labels",
        "model": str(pretrained["bert"] / "model"),
        "task": {"name": "classification"},
        "data": {"train": ["odd-labels.jsonl"], "valid": "50%"},
        "train": {"epochs": 1, "batch_size": 8, "max_length": 16},
    }
    write("odd-labels.yaml", config)
    text = json.dumps(f"odd{ODD}.txt")
    for code, *arguments in (
        (0, "finetune", "odd-labels.yaml"),
        (0, "predict", "odd-labels/model", f"Anna {ODD}"),
        (0, "predict", "odd-labels/model", "--input", "odd-labels.jsonl"),
        (0, "report", "odd-labels", "done-bert"),
        (3, "finetune", "odd-labels.yaml", "run=odd2", f"task.text={json.dumps(ODD)}"),
        (3, "pretrain", "bert.yaml", "run=odd3", f"data.train=[{text}]"),
        (0, "preview", "gpt2.yaml", "data.train=[odd.txt]", "data.valid=null"),
        (0, "generate", str(pretrained["gpt2"] / "model"), "--prompt", ODD),
        (2, "config", "show", f"a{ODD}.yaml"),
    ):
        got, out, err = cli(*arguments)
        assert got == code, err
        assert not set(out + err) & set("\x1b\x07\x9b"), arguments


def test_files_outside_of_a_folder_are_not_read(cli: Cli, pretrained: dict[str, Path]) -> None:
    shutil.copytree(pretrained["bert"] / "model", "outside")
    Path("outside/model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {"a": "../done-bert/model/model.safetensors"}}
    Path("outside/model.safetensors.index.json").write_text(json.dumps(index))
    write("outside.yaml", finetune_config(Path()) | {"run": "no-ft", "model": "outside"})
    refused(cli("finetune", "outside.yaml"), 3, "which is not beside it")
    Path("saved").mkdir()
    state = {"_data_files": [{"filename": "../secret/data-00000-of-00001.arrow"}]}
    Path("saved/state.json").write_text(json.dumps(state))
    refused(cli("pretrain", "bert.yaml", "run=no", "data.train=[saved]"), 3, "not beside it")
    os.mkfifo("pipe.txt")
    refused(cli("pretrain", "bert.yaml", "run=no", "data.train=[pipe.txt]"), 3, "a pipe or")


def test_weights_that_are_not_numbers(cli: Cli, pretrained: dict[str, Path]) -> None:
    shutil.copytree(pretrained["bert"] / "model", "diverged")
    weights = load_file("diverged/model.safetensors")
    next(iter(weights.values())).fill_(float("nan"))
    save_file(weights, "diverged/model.safetensors", {"format": "pt"})
    write("diverged.yaml", finetune_config(Path()) | {"run": "no-ft2", "model": "diverged"})
    refused(cli("finetune", "diverged.yaml"), 3, "with NaN or infinite values")
