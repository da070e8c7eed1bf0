"""Tagging by the command line: files of columns to a folder that answers, and its figures."""

import json
from pathlib import Path

import pytest

from tests.commands.conftest import NAMES, PLACES, Cli, pretrain_config, run_main, sentence, write

OF = dict.fromkeys(NAMES, "B-PER") | dict.fromkeys(PLACES, "B-LOC")


def tagged(number: int) -> tuple[list[str], list[str]]:
    words = sentence(number).removesuffix(".").split() + ["."]
    return words, [OF.get(word, "O") for word in words]


@pytest.fixture(scope="module")
def rows(world: Path) -> Path:
    """Sentences in columns, and the same as lists."""
    both = [tagged(number) for number in range(160)]
    text = "\n\n".join(
        "\n".join(f"{w} {t}" for w, t in zip(words, tags, strict=True)) for words, tags in both
    )
    Path("train.conll").write_text(f"-DOCSTART- O\n\n{text}\n", encoding="utf-8")
    lines = [json.dumps({"words": words, "ner": tags}) for words, tags in both[:40]]
    Path("dev.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return world


def config(model: Path, **task: object) -> dict:
    return {
        "run": "tags",
        "model": str(model / "model"),
        "task": {"name": "tagging", **task},
        "data": {"train": ["train.conll"], "valid": 0.2},
        "train": {"epochs": 12, "batch_size": 16, "max_length": 32},
        "optim": {"lr": 0.003},
        "compute": {"device": "cpu", "precision": "fp32"},
    }


def evaluated(cli: Cli, model: str) -> dict:
    measure = {"name": "task", "data": ["dev.jsonl"], "columns": {"tokens": "words", "tags": "ner"}}
    device = {"device": "cpu", "precision": "fp32"}
    write(
        "ev-tags.yaml",
        {"run": f"ev-{model}", "model": f"{model}/model", "measures": [measure], "compute": device},
    )
    code, out, err = cli("eval", "ev-tags.yaml", "--json")
    assert code == 0, err
    return dict(json.loads(out)["results"]["task"])


@pytest.mark.parametrize(
    ("name", "layers"),
    [("bert", "last"), pytest.param("bert", "mix", marks=pytest.mark.slow), ("gpt2", "last")],
)
def test_finetune_and_evaluate(
    name: str, layers: str, cli: Cli, rows: Path, pretrained: dict[str, Path]
) -> None:
    run = f"tags-{name}-{layers}"
    piece = "last" if name == "gpt2" else "first"
    write("tags.yaml", config(pretrained[name], layers=layers, piece=piece) | {"run": run})
    code, out, err = cli("finetune", "tags.yaml", "--json")
    assert code == 0, err
    results = json.loads(out)
    assert results["f1"] > 0.6
    assert {row["label"] for row in results["per_class"]} == {"PER", "LOC"}
    page = (Path(run) / "report.html").read_text(encoding="utf-8")
    assert "LOC" in page
    figures = evaluated(cli, run)
    assert figures["rows"] == 40
    assert figures["f1"] > 0.6


def test_the_folder_answers_in_transformers_pipeline(
    cli: Cli, rows: Path, pretrained: dict[str, Path]
) -> None:
    from transformers import pipeline

    write("tags.yaml", config(pretrained["bert"]) | {"run": "piped"})
    assert cli("finetune", "tags.yaml")[0] == 0
    tag = pipeline("token-classification", "piped/model", aggregation_strategy="first")
    entities = tag("Anna sees Emil at the garden on day 3.")
    assert {entity["entity_group"] for entity in entities} <= {"PER", "LOC"}
    assert ("anna", "PER") in {(e["word"].lower(), e["entity_group"]) for e in entities}


@pytest.mark.slow
def test_elmo_learns_to_tag(cli: Cli, rows: Path) -> None:
    data = {"train": ["text.txt"]}
    tokenizer = {"algorithm": "word", "family": "elmo", "vocab_size": 100, "data": data}
    write("tok-tags.yaml", {"run": "tok-tags", **tokenizer})
    assert run_main("train-tokenizer", "tok-tags.yaml") == 0
    tiny = {"family": "elmo", "size": "tiny", "projection_size": 16, "cell_size": 24}
    phases = {"batch_size": 8, "phases": [{"seq_len": 20, "steps": 4}]}
    more = {"run": "run-tags", "tokenizer": "tok-tags", "model": tiny, "train": phases}
    write("elmo-tags.yaml", pretrain_config("bert") | more)
    assert run_main("pretrain", "elmo-tags.yaml") == 0
    quick = {
        "train": {"epochs": 6, "batch_size": 16, "max_length": 32, "dropout": 0},
        "optim": {"lr": 0.01},
    }
    write("tags.yaml", config(Path("run-tags")) | quick | {"run": "tags-elmo"})
    code, out, err = cli("finetune", "tags.yaml", "--json")
    assert code == 0, err
    assert json.loads(out)["f1"] > 0.6
    saved = json.loads(Path("tags-elmo/model/config.json").read_text())
    assert saved["architectures"] == ["ElmoForTokenClassification"]
    assert evaluated(cli, "tags-elmo")["f1"] > 0.6

    data = {"train": ["rows.tsv"], "valid": 0.2, "max_rows": 16}
    task = {"task": {"name": "classification"}, "data": data}
    write("class.yaml", config(Path("run-tags")) | quick | task | {"run": "class-elmo"})
    code, out, err = cli("finetune", "class.yaml", "--json")
    assert code == 0, err
    assert [row["label"] for row in json.loads(out)["per_class"]] == ["False", "True"]
    saved = json.loads(Path("class-elmo/model/config.json").read_text())
    assert saved["architectures"] == ["ElmoForSequenceClassification"]


def test_wrong_rows_stop_before_anything_is_written(
    cli: Cli, rows: Path, pretrained: dict[str, Path]
) -> None:
    write("tags.yaml", config(pretrained["bert"]) | {"run": "wrong"})
    Path("uneven.jsonl").write_text(
        '{"tokens": ["a", "b"], "tags": ["O", "B-X"]}\n{"tokens": ["a"], "tags": ["O", "O"]}\n'
    )
    Path("unknown.conll").write_text("Anna B-PERS\n")
    for changes, code, words in (
        (["data.train=[uneven.jsonl]"], 3, "uneven.jsonl:2: 1 words in 'tokens', but 2 tags"),
        (["data.valid=[unknown.conll]"], 3, "unknown.conll:1: tag 'B-PERS' of word 1, 'Anna'"),
        (["data.train=[text.txt]"], 3, "text.txt:1: tag "),
        (["task.tags=nertags"], 3, "no column 'nertags'"),
        (["task.scheme=iob"], 2, "task.scheme"),
    ):
        got, out, err = cli("finetune", "tags.yaml", *changes)
        assert (got, out) == (code, ""), err
        assert words in err
        assert "Traceback" not in err
    assert not Path("wrong").exists()
