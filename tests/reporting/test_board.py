"""The documents of the board, and the board as files."""

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmctl.reporting.board import Board, newest_run, read_config, settings_of, status_of, thinned
from plmctl.reporting.board_server import write_board
from tests.builders import json_lines
from tests.reporting import sample_runs

HOSTILE = "<img src=x onerror=alert(1)>\x1b]0;title\x07"


def fresh(board: Board) -> dict[str, Any]:
    """The rows, though they were read a moment ago."""
    board._scanned = -1e9
    return board.rows()


def by_name(board: Board) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in fresh(board)["rows"]}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    sample_runs.pretrain(root / "bert", steps=400)
    sample_runs.pretrain(root / "half", steps=400, upto=200, seed=1)
    sample_runs.finetune(root / "era" / "one")
    sample_runs.grid(root / "grid", status="finished")
    (root / "grid" / "report.html").write_text("")
    return root


def test_every_run_below_the_folder_has_a_row(runs: Path) -> None:
    rows = by_name(Board(runs))
    assert set(rows) == {
        "bert", "half", "era/one", "grid",
        "grid/lr=0.001/seed=10", "grid/lr=0.001/seed=9",
        "grid/lr=0.003/seed=10", "grid/lr=0.003/seed=9",
    }  # fmt: skip
    bert, half, era = rows["bert"], rows["half"], rows["era/one"]
    assert (bert["kind"], bert["family"], bert["objective"]) == ("pretrain", "bert", "mlm+nsp")
    assert (bert["state"], bert["step"], bert["total"], bert["share"]) == ("finished", 400, 400, 1)
    assert (half["state"], half["step"], half["total"], half["share"]) == ("stopped", 200, 400, 0.5)
    assert half["eta"] is None  # nobody works
    assert (era["kind"], era["objective"]) == ("finetune", "classification")
    assert era["scores"][0] == ["accuracy", 0.72]
    assert rows["grid"]["scores"][0] == ["accuracy, median of 2", 0.72]
    assert rows["grid"]["members"] == [4, 4]
    assert bert["members"] is None
    records = map(json.loads, (runs / "bert" / "metrics.jsonl").read_text().splitlines())
    losses = {r["valid/loss"]: r["step"] for r in records if "valid/loss" in r}
    assert bert["best"] == pytest.approx(min(losses), rel=1e-5)
    assert bert["best_step"] == losses[min(losses)]


def test_a_row_names_what_is_special_in_its_config(runs: Path) -> None:
    sample_runs.pretrain(runs / "third", steps=400)
    rows = by_name(Board(runs))
    assert rows["half"]["settings"] == [["optim.lr", "0.003"]]
    assert rows["bert"]["settings"] == []


def test_runs_that_differ_by_their_seed_are_a_group(runs: Path) -> None:
    rows = by_name(Board(runs))
    one, two = rows["grid/lr=0.001/seed=9"], rows["grid/lr=0.001/seed=10"]
    assert one["group"] == two["group"]
    assert rows["half"]["group"] != rows["bert"]["group"]  # another learning rate


def test_an_answer_has_only_what_changed(runs: Path) -> None:
    board = Board(runs)
    first = board.rows()
    assert board.rows(first["version"])["rows"] == []
    with (runs / "half" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 210, "loss": 2.5, "time": 14.0, "tokens": 1}) + "\n")
    board._scanned = -1e9
    again = board.rows(first["version"])
    assert [row["name"] for row in again["rows"]] == ["half"]
    assert again["rows"][0]["step"] == 210
    assert again["ids"] == first["ids"]


def test_folders_that_appear_and_vanish(runs: Path) -> None:
    board = Board(runs)
    before = set(board.rows()["ids"])
    sample_runs.finetune(runs / "new")
    (runs / "half").rename(runs.parent / "elsewhere")
    names = by_name(board)
    assert "new" in names
    assert len(fresh(board)["ids"]) == len(before)
    gone = before - set(fresh(board)["ids"])
    assert board.details(gone.pop()) is None


@pytest.mark.parametrize(
    ("text", "state", "says"),
    [
        ("a: [", "damaged", "config.yaml is damaged"),
        ("", "foreign", "not a config of plmctl"),
        ("theme: dark\n", "foreign", "not a config of plmctl"),
        ("- 1\n", "foreign", "not a config of plmctl"),
        ("\x00\x01", "damaged", "config.yaml is damaged"),
        ("[" * 5000, "damaged", "config.yaml is damaged"),
        ("[" * 900_000, "damaged", "config.yaml is damaged"),
        ("- " * 400_000, "damaged", "config.yaml is damaged"),
        ("? " * 400_000, "damaged", "config.yaml is damaged"),
        (None, "damaged", "config.yaml is missing"),
    ],
)
def test_damaged_and_foreign_folders(
    tmp_path: Path, text: str | None, state: str, says: str
) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    if text is None:
        (folder / "metrics.jsonl").write_text("")
    else:
        (folder / "config.yaml").write_text(text)
    (row,) = Board(tmp_path).rows()["rows"]
    assert row["state"] == state
    assert says in row["message"]


def test_documents_of_odd_types_break_nothing(tmp_path: Path) -> None:
    run = sample_runs.finetune(tmp_path / "run")
    odd = [None, [], "text", 7, {"results": []}, {"results": {"per_class": 3, "confusion": []}}]
    odd += [{"settings": [{"setting": 3}, 4], "chosen": 5}, {"items": [1, {"predictions": 2}]}]
    odd += [{"results": {"per_class": [1], "confusion": {"labels": ["a"], "matrix": [3]}}}]
    for name in ("valid", "protocol", "samples"):
        for document in odd:
            sample_runs.evaluation(run, name, document)  # type: ignore[arg-type]
            board = Board(tmp_path)
            (id,) = board.rows()["ids"]
            assert json.dumps(board.details(id), allow_nan=False) != "null"


def test_samples_of_some_validations(tmp_path: Path) -> None:
    run = sample_runs.pretrain(tmp_path / "run", steps=400, upto=300)
    sample_runs.samples_by_step(run, list(range(10, 310, 10)))
    with (run / "samples.jsonl").open("a") as file:
        file.write('[1]\n{"step": "x", "items": [{}]}\n{"step": 310, "items": 5}\n{"step": 3')
    board = Board(tmp_path)
    (id,) = board.rows()["ids"]
    lines = board.details(id)["samples_by_step"]  # type: ignore[index]
    steps = [line["step"] for line in lines]
    assert steps[0] == 10
    assert steps == sorted(set(steps))
    assert 5 <= len(steps) <= 8
    assert lines[0]["items"][0]["predictions"][0] == ["treasury", 0.01]
    (run / "samples.jsonl").unlink()
    (run / "samples.jsonl").symlink_to("/etc/passwd")
    assert board.details(id)["samples_by_step"] == []  # type: ignore[index]


def test_links_to_elsewhere_are_not_followed(tmp_path: Path) -> None:
    outside = sample_runs.pretrain(tmp_path / "outside", steps=100)
    root = tmp_path / "runs"
    root.mkdir()
    (root / "link").symlink_to(outside)
    (root / "half").mkdir()
    (root / "half" / "config.yaml").symlink_to(outside / "config.yaml")
    rows = by_name(Board(root))
    assert set(rows) == {"half"}
    assert rows["half"]["state"] == "damaged"


def test_text_from_outside_has_no_control_characters(tmp_path: Path) -> None:
    run = sample_runs.finetune(tmp_path / "a\x1b[31m<b>")
    sample_runs.evaluation(run, "valid", {"results": {HOSTILE: 1.0, "per_class": []}})
    sample_runs.evaluation(run, "samples", {"items": [{"text": HOSTILE, "answer": HOSTILE}]})
    sample_runs.samples_by_step(run, [1], items=[{"text": HOSTILE, "prompt": HOSTILE}])
    board = Board(tmp_path)
    answer = board.rows()
    details = board.details(answer["ids"][0])
    text = json.dumps([answer, details], ensure_ascii=False)
    assert "\x1b" not in text
    assert "\\u001b" not in text
    assert "\\\\x1b" in text
    assert HOSTILE[:28] in text  # the page sets it as text


def test_a_name_that_is_no_utf8_is_shown(tmp_path: Path) -> None:
    folder = Path(str(tmp_path) + "/bad\udcff")
    try:
        sample_runs.finetune(folder)
    except (OSError, UnicodeError):
        pytest.skip("this file system takes only UTF-8")
    answer = Board(tmp_path).rows()
    json.dumps(answer, ensure_ascii=False).encode()
    assert answer["rows"][0]["name"] == "bad?"


def test_curves_are_thin_and_lose_no_spike(tmp_path: Path) -> None:
    run = sample_runs.pretrain(tmp_path / "run", steps=20_000)
    board = Board(tmp_path)
    (id,) = board.rows()["ids"]
    began = time.perf_counter()
    curves = board.curves(id)
    assert curves is not None
    assert time.perf_counter() - began < 5
    train = curves["train"]
    assert 250 < len(train["step"]) <= 300
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if "loss" in record]
    assert max(train["keys"]["loss"]["high"]) == pytest.approx(max(losses), rel=1e-5)
    assert min(train["keys"]["loss"]["low"]) == pytest.approx(min(losses), rel=1e-5)
    assert train["step"][-1] == 20_000
    assert train["hours"][-1] == pytest.approx(20_000 * 0.066 / 3600, rel=1e-4)
    assert curves["valid"]["tokens"][0] == 2048 * 100


def test_few_points_are_kept_as_they_are() -> None:
    steps = np.arange(1.0, 6.0)
    values = np.array([1.0, np.nan, 3.0, 4.0, 5.0])
    table = {"step": steps, "tokens": steps, "hours": steps, "loss": values}
    curve = thinned(table)
    assert curve["keys"]["loss"] == {"mean": [1.0, None, 3.0, 4.0, 5.0]}
    assert thinned({"step": np.zeros(0)})["keys"] == {}


def test_a_config_whose_aliases_multiply_is_bounded(tmp_path: Path) -> None:
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}" for n in range(1, 40)]
    (tmp_path / "config.yaml").write_text("\n".join([*lines, "task: {name: classification}"]))
    config, fault = read_config(tmp_path / "config.yaml")
    assert not fault
    assert len(settings_of(config)) == 2000
    (row,) = Board(tmp_path).rows()["rows"]
    assert row["kind"] == "finetune"


def test_the_board_as_files_needs_no_server(runs: Path, tmp_path: Path) -> None:
    board = Board(runs)
    files = write_board(board, tmp_path / "site")
    assert [file.name for file in files] == [
        "index.html", "board.css", "board.js", "data.js", "vega.js"
    ]  # fmt: skip
    text = (tmp_path / "site" / "data.js").read_text()
    data = json.loads(text.removeprefix("window.BOARD = ").rstrip().removesuffix(";"))
    assert set(data["details"]) == set(data["curves"]) == set(data["runs"]["ids"])
    assert str(runs) not in text
    assert not re.search(r'"[^"]*(?<![\w.:/~])/(?:home|root|tmp|opt|usr|srv|work)/', text)


def test_commands_name_a_run_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sample_runs.pretrain(tmp_path / "runs" / "bert", steps=100)
    (run / "status.json").write_text('{"status": "finished"}')
    for here, name in ((tmp_path, "runs/bert"), (tmp_path / "runs", "bert"), (Path("/"), None)):
        monkeypatch.chdir(here)
        board = Board(tmp_path / "runs")
        details = board.details(board.rows()["rows"][0]["id"])
        assert details is not None
        if name is not None:
            assert details["command"] == f"plmctl report {name}"
        else:
            assert str(run.relative_to("/")) in str(details["command"])


def test_the_loss_of_frequencies_is_with_the_curves(tmp_path: Path) -> None:
    run = sample_runs.pretrain(tmp_path / "runs" / "bert", steps=100)
    facts = {
        "frequency_loss": {"mlm": 6.5, "loss": 7.19, "nsp": "damaged"},
        "counted_loss": {"5-gram": {"lm": 4.4}, "x": "damaged"},
    }
    (run / "environment.json").write_text(json.dumps(facts))
    board = Board(tmp_path / "runs")
    (row,) = board.rows()["rows"]
    assert row["curves"]
    curves = board.curves(row["id"])
    assert curves is not None
    assert curves["levels"] == {
        "token frequencies alone": {"loss/mlm": 6.5, "loss": 7.19, "loss/nsp": None},
        "5-gram": {"loss/lm": 4.4},
    }
    assert newest_run(tmp_path / "runs") == run


def test_the_board_as_files_has_the_best_validation_of_a_long_log(tmp_path: Path) -> None:
    sample_runs.pretrain(tmp_path / "runs" / "long", steps=20_000)
    write_board(Board(tmp_path / "runs"), tmp_path / "site")
    text = (tmp_path / "site" / "data.js").read_text()
    runs = json.loads(text.removeprefix("window.BOARD = ").rstrip().removesuffix(";"))["runs"]
    assert runs["reading"] == 0
    records = json_lines(tmp_path / "runs" / "long" / "metrics.jsonl")
    best = min(record["valid/loss"] for record in records if "valid/loss" in record)
    assert runs["rows"][0]["best"] == pytest.approx(best, rel=1e-5)


def test_the_status_of_one_run(runs: Path) -> None:
    status = status_of(runs / "half")
    assert (status["state"], status["step"], status["total"]) == ("stopped", 200, 400)
    assert status["next"] == "The same command resumes it."
    assert status["command"] == "plmctl pretrain configs/demo/pretrain.yaml"
    assert set(status["terms"]) == {"loss/mlm", "loss/nsp"}


def test_a_tokenizer_shows_its_cuts(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    run = tmp_path / "tok"
    (run / "eval").mkdir(parents=True)
    (run / "config.yaml").write_text("run: tok\nalgorithm: wordpiece\n")
    (run / "eval" / "held_out.txt").write_text("playing 中文\n\nplays\n", encoding="utf-8")
    words = {"[UNK]": 0, "play": 1, "##ing": 2, "##s": 3, "中": 4, "##文": 5}
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(run / "tokenizer.json"))
    board = Board(tmp_path)
    (id,) = board.rows()["ids"]
    details = board.details(id)
    assert details is not None
    assert details["pieces"] == [["play", "ing", " 中", "文"], ["play", "s"]]
    (run / "tokenizer.json").write_text("{")
    assert (board.details(id) or {})["pieces"] == []


def test_an_evaluation_of_checkpoints_is_a_curve(tmp_path: Path) -> None:
    run = tmp_path / "eval-run"
    config = {"run": "eval-run", "model": "m", "measures": [{"name": "mlm"}, {"name": "nsp"}]}
    sample_runs.write(run, config, [])
    (run / "metrics.jsonl").unlink()
    for step in (100, 200, 1000):
        results = {"accuracy/mlm": step / 1000, "accuracy/mlm_se": 0.01, "sequences": 9, "loss": 3}
        sample_runs.evaluation(run, f"mlm-step-{step:06d}", {"kind": "eval", "results": results})
    board = Board(tmp_path)
    (row,) = board.rows()["rows"]
    assert (row["kind"], row["objective"], row["step"]) == ("eval", "mlm, nsp", 1000)
    assert row["scores"] == [["mlm-step-001000: accuracy/mlm", 1.0]]
    curves, details = board.curves(row["id"]), board.details(row["id"])
    assert curves is not None
    assert details is not None
    assert curves["valid"]["step"] == [100, 200, 1000]
    assert curves["valid"]["keys"] == {"valid/mlm: accuracy/mlm": {"mean": [0.1, 0.2, 1.0]}}
    assert [one["name"] for one in details["evaluations"]] == ["mlm-step-001000"]
