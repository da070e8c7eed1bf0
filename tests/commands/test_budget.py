"""Budgets, words and checkpoints at words: real runs of seconds."""

import json
from pathlib import Path

import pytest

from plmctl.commands.verify_resume import compare_states, records
from tests.builders import json_lines
from tests.commands.conftest import Cli, corpus_text, pretrain_config, run_in_two, write


def config(budget: str | None = None, **more: object) -> dict:
    found = pretrain_config("bert") | {"log": {"every": 1, "validate_samples": 20}}
    phases = [{"seq_len": 32}] if budget else [{"seq_len": 32, "steps": 6}]
    found["train"] = {"batch_size": 8, "phases": phases} | ({"budget": budget} if budget else {})
    found["train"] |= more
    return found


def words_of_text() -> int:
    return len(corpus_text().split())


def test_words_are_counted_and_budgeted(cli: Cli) -> None:
    write("words.yaml", config("800 words") | {"run": "words", "checkpoint": {"at": ["400w", 1]}})
    code, out, err = cli("prepare", "words.yaml", "--json")
    assert code == 0
    prepared = json.loads(out)
    assert "words: split by white space" in err
    assert 0.7 * words_of_text() < prepared["words"] < words_of_text()  # a tenth is held out
    assert cli("plan", "words.yaml")[0] == 0
    code, out, err = cli("pretrain", "words.yaml")
    assert code == 0, err
    decision = json.loads(Path("words/budget.json").read_text())
    last = [line for line in records(Path("words")) if "words" in line][-1]
    assert last["words"] == decision["words"] <= 800
    assert last["words"] == pytest.approx(last["epoch"] * prepared["words"], abs=2)
    assert f"train.budget: {decision['words']} words of 800 words used" in err
    saved = {path.name: path for path in Path("words/checkpoints").iterdir()}
    at = min(saved, key=lambda name: abs(_state(saved[name])["words"] - 400))
    assert {"step-000001", at, f"step-{last['step']:06d}"} == set(saved)
    events = json_lines("words/events")
    assert [e["steps"] for e in events if e["event"] == "budget"] == [last["step"]]
    code, _, err = cli("pretrain", "words.yaml", "run=refused", "train.max_words=700w")
    assert code == 2
    assert "train.max_words: the run would see" in err
    assert not Path("refused").exists()


def _state(folder: Path) -> dict:
    return json.loads((folder / "state.json").read_text())


def test_an_older_store_gets_its_words_from_prepare(cli: Cli) -> None:
    from plmctl.files import read_checked, write_checked

    settings = ["data.store=older", "run=older-run"]
    write("older.yaml", config("800 words"))
    assert cli("prepare", "older.yaml", *settings)[0] == 0
    (manifest,) = Path("older").glob("*/manifest.json")
    whole = read_checked(manifest)
    assert whole is not None
    write_checked(manifest, {k: v for k, v in whole.items() if k not in ("words", "checksum")})
    code, _, err = cli("pretrain", "older.yaml", *settings)
    assert code == 2
    assert "plmctl prepare" in err
    assert cli("prepare", "older.yaml", *settings)[0] == 0
    assert (read_checked(manifest) or {})["words"] == whole["words"]


def test_jieba_counts_chinese_words_if_they_are_needed(cli: Cli) -> None:
    pytest.importorskip("jieba")
    text = "\u6211\u6765\u5230\u5317\u4eac\u6e05\u534e\u5927\u5b66\u3002\n\n"  # 5 words
    Path("chinese.txt").write_text(text * 300, encoding="utf-8")
    own = ["run=tok-zh", "data.train=[chinese.txt]", "vocab_size=100"]
    assert cli("train-tokenizer", "tok-bert.yaml", *own)[0] == 0
    chinese = {"tokenizer": "tok-zh", "data": {"train": ["chinese.txt"], "valid": None}}
    write("chinese.yaml", config() | chinese)
    plain, capped = (
        ["data.store=zh-stores", "run=plain-zh"],
        ["data.store=zh-capped", "run=capped-zh"],
    )
    assert cli("pretrain", "chinese.yaml", *plain)[0] == 0
    assert not any("words" in line for line in records(Path("plain-zh")))
    code, out, err = cli("prepare", "chinese.yaml", *plain, "--json")
    assert code == 0
    assert "words: split by jieba" in err
    counted = json.loads(out)["words"]
    assert counted >= 300 * 5
    assert cli("pretrain", "chinese.yaml", *capped, "train.max_words=1M")[0] == 0
    assert any("words" in line for line in records(Path("capped-zh")))
    code, out, _ = cli("prepare", "chinese.yaml", *capped, "--json")
    assert json.loads(out)["words"] == counted


def test_an_interrupted_run_has_the_steps_of_its_measurement(cli: Cli) -> None:
    write("timed.yaml", config("1m", max_words="600") | {"schedule": {"warmup": "10%"}})
    assert cli("preview", "timed.yaml", "run=timed", "--batch", "1")[0] == 2  # not measured yet
    code, _, err = cli("pretrain", "timed.yaml", "run=timed")
    assert code == 0, err
    assert "measured here: a step takes" in err
    assert "of 1m used" in err
    decision = json.loads(Path("timed/budget.json").read_text())
    # The same steps without a measurement, interrupted: the measurement left no trace.
    steps = f"train.phases=[{{seq_len: 32, steps: {decision['steps'][0]}}}]"
    plain = ["train.budget=null", "train.max_words=null", steps, "run=plain"]
    assert cli("pretrain", "timed.yaml", *plain, "--until", "2")[0] == 75
    assert cli("pretrain", "timed.yaml", *plain)[0] == 0
    last = f"checkpoints/step-{decision['steps'][0]:06d}"
    checks = compare_states(Path("timed") / last, Path("plain") / last)
    assert checks
    assert not any(check.different for check in checks)
    Path("timed/budget.json").unlink()
    Path("timed/status.json").unlink()
    (Path("timed") / "model" / "config.json").unlink()
    code, _, err = cli("pretrain", "timed.yaml", "run=timed")
    assert code == 3
    assert "budget.json: missing or damaged" in err


@pytest.mark.slow
def test_a_measured_run_with_an_average_and_a_growing_batch_resumes_exactly(cli: Cli) -> None:
    more = {
        "batch_ramp": {"start": 2, "tokens": 600},
        "average": {"name": "last", "over": 0.5, "every": 2},
    }
    write("grown.yaml", config("20m", max_words="2k", **more))
    grown = "pretrain", "grown.yaml", "run=grown"
    assert cli(*grown, "--until", "2")[0] == 75
    (steps,) = json.loads(Path("grown/budget.json").read_text())["steps"]
    assert steps >= 8  # some of a full batch, and the average from the middle on
    assert cli(*grown, "--until", str(steps - 2))[0] == 75
    assert cli(*grown)[0] == 0
    phases = f"train.phases=[{{seq_len: 32, steps: {steps}}}]"
    plain = ["train.budget=null", "train.max_words=null", phases, "run=grown-plain"]
    assert cli("pretrain", "grown.yaml", *plain)[0] == 0
    last = f"checkpoints/step-{steps:06d}"
    checks = compare_states(Path("grown") / last, Path("grown-plain") / last)
    assert "average" in {check.name for check in checks}
    assert not any(check.different for check in checks)
    lines = [[line["loss"] for line in records(Path(run)) if "loss" in line]
             for run in ("grown", "grown-plain")]  # fmt: skip
    assert lines[0] == lines[1]


@pytest.mark.slow
def test_two_processes_have_the_same_steps(cli: Cli, tmp_path: Path) -> None:
    write("both.yaml", config("2k tokens"))
    run_in_two(tmp_path, "pretrain", "both.yaml", "run=both", "data.store=both-store")
    assert json.loads(Path("both/budget.json").read_text())["steps"] == [7]
    assert records(Path("both"))[-1]["step"] == 7
    write("timed-both.yaml", config("2m", max_words="600"))
    run_in_two(tmp_path, "pretrain", "timed-both.yaml", "run=timed-both", "data.store=both-store")
    (steps,) = json.loads(Path("timed-both/budget.json").read_text())["steps"]
    assert records(Path("timed-both"))[-1]["step"] == steps


def test_a_size_is_proposed(cli: Cli) -> None:
    code, out, err = cli("plan", "bert.yaml", "--budget", "1e14FLOPs", "--json")
    assert code == 0
    found = json.loads(out)
    assert [row["size"] for row in found["sizes"]][:2] == ["tiny", "mini"]
    assert all(row["flops"] <= 1e14 for row in found["sizes"])
    best = min(found["sizes"], key=lambda row: row["loss"])
    assert found["proposed"] == best["size"]
    assert found["overrides"][0] == f"model.size={best['size']}"
    assert "copy: model.size=" in err
    rows = {row["size"]: row for row in found["sizes"]}
    proposed = rows[found["proposed"]]
    assert ("is very little" in err) == (proposed["tokens"] < proposed["parameters"])
    code, _, err = cli("plan", "bert.yaml", "--budget", "50k tokens")
    assert code == 0
    assert "is very little; about 20 a weight" in err
    code, _, err = cli("plan", "bert.yaml", "--budget", "1 token")
    assert code == 2
    assert cli("plan", "bert.yaml", "--budget", "soon")[0] == 2
