"""``plmctl predict --input``: rows in, answers out, whole or not at all."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from plmctl.commands import predict as predict_rows
from tests.builders import json_lines
from tests.commands.conftest import Cli, run_main, sentence, write
from tests.commands.test_bad_input import finetune_config, refused

ROWS = [{"text": sentence(n), "id": n} for n in range(23)]


@pytest.fixture(scope="module")
def model(pretrained: dict[str, Path]) -> str:
    config = finetune_config(pretrained["bert"]) | {"run": "to-predict"}
    config["train"] |= {"epochs": 1}
    write("to-predict.yaml", config)
    assert run_main("finetune", "to-predict.yaml") == 0
    return "to-predict/model"


def lines(path: str) -> list[dict]:
    return json_lines(path)


def test_every_format_gives_the_same_answers_in_the_order_of_the_rows(
    cli: Cli, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict_rows, "_CHUNK", 5)  # several chunks, the last one short
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    table = io.StringIO()
    writer = csv.DictWriter(table, ["text", "id"])
    writer.writeheader()
    writer.writerows(ROWS)
    Path("in.csv").write_text(table.getvalue())
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), "in.parquet")
    for kind in ("jsonl", "csv", "parquet"):
        assert cli("predict", model, "--input", f"in.{kind}", "--output", f"{kind}.out")[0] == 0
        predictions = lines(f"{kind}.out")
        assert [int(row["id"]) for row in predictions] == list(range(23))
        for row in predictions:
            assert sum(row["probabilities"].values()) == pytest.approx(1)
            assert row["prediction"] == max(row["probabilities"], key=row["probabilities"].get)
    assert lines("jsonl.out") == lines("parquet.out")
    one = json.loads(cli("predict", model, ROWS[7]["text"], "--json")[1])["answers"][0]["answers"]
    there = lines("jsonl.out")[7]["probabilities"]
    assert {a["token"]: a["score"] for a in one} == pytest.approx(there, abs=1e-4)


def test_an_output_that_is_there_is_kept(cli: Cli, model: str) -> None:
    Path("few.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    Path("mine.jsonl").write_text("precious")
    line = ("predict", model, "--input", "few.jsonl", "--output", "mine.jsonl")
    refused(cli(*line), 2, "mine.jsonl: this is there already", "--fresh")
    assert Path("mine.jsonl").read_text() == "precious"
    assert cli(*line, "--fresh")[0] == 0
    assert len(lines("mine.jsonl")) == 1
    assert [p.read_text() for p in Path().glob("mine.jsonl.old-*")] == ["precious"]


def test_columns_of_the_rows_that_an_answer_has_too(cli: Cli, model: str) -> None:
    row = {**ROWS[0], "prediction": "mine", "input_prediction": "also mine"}
    Path("own.jsonl").write_text(json.dumps(row) + "\n")
    code, _, err = cli("predict", model, "--input", "own.jsonl", "--output", "own.out")
    assert code == 0
    assert "are there as input_input_prediction" in err
    (answer,) = lines("own.out")
    kept = {answer["input_prediction"], answer["input_input_prediction"]}
    assert kept == {"mine", "also mine"}
    assert answer["prediction"] in answer["probabilities"]


def test_bad_rows_leave_no_output(cli: Cli, model: str) -> None:
    Path("bad.jsonl").write_text(json.dumps(ROWS[0]) + '\n{"text": " "}\n')
    out = ("--output", "bad.out")
    refused(cli("predict", model, "--input", "bad.jsonl", *out), 3, "bad.jsonl:2", "no text")
    Path("other.jsonl").write_text('{"review": "a b"}\n')
    refused(cli("predict", model, "--input", "other.jsonl", *out), 3, "other.jsonl:1", "'text'")
    Path("none.jsonl").write_text("\n")
    refused(cli("predict", model, "--input", "none.jsonl", *out), 3, "no rows in none.jsonl")
    assert not list(Path().glob("*bad.out*"))
    assert not list(Path().glob(".bad.out*"))
    assert cli("predict", model, "--input", "other.jsonl", "--column", "text=review", *out)[0] == 0


def test_wrong_usage(cli: Cli, model: str, pretrained: dict[str, Path]) -> None:
    refused(cli("predict", model), 2, "needs either texts, or --input")
    refused(cli("predict", model, "a text", "--output", "x"), 2, "need --input")
    refused(cli("predict", model, "--input", "in.jsonl", "--column", "text"), 2, "FIELD=COLUMN")
    encoder = str(pretrained["bert"] / "model")
    refused(cli("predict", encoder, "--input", "in.jsonl"), 2, "not finetuned for a task")


def test_through_a_pipe(model: str) -> None:
    text = "".join(json.dumps(row) + "\n" for row in ROWS[:2])
    command = [sys.executable, "-m", "plmctl", "predict", model, "--input", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [0, 1]
