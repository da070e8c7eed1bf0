import math
import os

import pytest

from plmctl.errors import ConfigError
from plmctl.reporting.run_files import metrics_of, read_run, read_runs, short_names, total_steps
from tests.reporting import sample_runs


def figures(run):
    return {figure.name: figure.value for figure in metrics_of(run)}


def test_a_run_is_read_as_it_was_written(tmp_path):
    run = read_run(sample_runs.pretrain(tmp_path / "run", steps=400), "run")
    assert run.kind == "pretrain"
    assert run.finished
    assert total_steps(run) == 400
    assert run.setting("train", "phases", 1, "seq_len") == 128
    assert run.setting("train", "phases", 7, "seq_len") is None
    steps, losses = run.series("loss/mlm")
    assert steps.tolist() == list(range(10, 401, 10))
    assert losses[0] == run.records[0]["loss/mlm"]
    assert run.series("valid/loss")[0].tolist() == [100, 200, 300, 400]
    assert run.keys("valid/loss/") == ["valid/loss/mlm", "valid/loss/nsp"]
    assert run.unreadable == ()


def test_the_figures_of_pretraining(tmp_path):
    run = read_run(sample_runs.pretrain(tmp_path / "run", steps=400), "run")
    values = figures(run)
    results = run.evaluations["valid"]["results"]
    assert values["validation loss"] == results["valid/loss"]
    assert values["perplexity (mlm)"] == math.exp(results["valid/loss/mlm"])
    assert values["accuracy (nsp)"] == results["valid/accuracy/nsp"]
    assert values["training loss"] == (run.records[-2]["loss"] + run.records[-3]["loss"]) / 2
    assert values["steps"] == 400
    assert values["tokens"] == 2048 * 400
    assert values["training time"] == "0:26"
    assert "perplexity (nsp)" not in values


def test_the_figures_of_finetuning(tmp_path):
    values = figures(read_run(sample_runs.finetune(tmp_path / "run"), "run"))
    assert (values["accuracy"], values["majority class"]) == (0.72, 0.58)
    assert values["macro F1"] == pytest.approx(0.61)
    assert values["training rows"] == 1000


def test_the_figures_of_an_evaluation_are_named_after_its_measures(tmp_path):
    sample_runs.write(tmp_path / "run", {"run": "x", "model": "m", "measures": []}, [])
    sample_runs.evaluation(
        tmp_path / "run", "mlm", {"results": {"loss": 3.0, "note": "fixed masks"}}
    )
    sample_runs.evaluation(tmp_path / "run", "rows", {"results": sample_runs.classes()})
    values = figures(read_run(tmp_path / "run", "run"))
    assert values["mlm: loss"] == 3.0
    assert values["rows: macro F1"] == pytest.approx(0.61)
    assert not any("confusion" in name for name in values)


def test_an_unfinished_run_has_the_figures_of_its_last_validation(tmp_path):
    run = read_run(sample_runs.pretrain(tmp_path / "run", steps=4000, upto=650), "run")
    assert not run.finished
    values = figures(run)
    assert values["steps"] == 650
    assert values["validation loss"] == run.records[-6]["valid/loss"]  # of step 600


def test_a_run_that_has_only_begun(tmp_path):
    sample_runs.write(tmp_path / "run", {"run": "x", "tokenizer": "t"}, [])
    for name in ("metrics.jsonl", "events", "environment.json"):
        (tmp_path / "run" / name).unlink()
    run = read_run(tmp_path / "run", "run")
    assert (run.records, run.events, run.last, run.results) == ((), (), {}, {})
    assert metrics_of(run) == []


def test_what_cannot_be_read_is_told_and_left_out(tmp_path):
    folder = sample_runs.pretrain(tmp_path / "run", steps=400)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('[1]\n\n{"loss": 4}\n{"step": 4')
    (folder / "eval" / "samples.json").write_text("{")
    run = read_run(folder, "run")
    assert run.unreadable == (
        "samples.json",
        "metrics.jsonl:45",
        "metrics.jsonl:47",
        "metrics.jsonl:48",
    )
    assert run.last["step"] == 400
    assert run.samples == {}


def test_null_nan_and_infinity_are_not_figures(tmp_path):
    sample_runs.write(tmp_path / "run", {"run": "x", "tokenizer": "t"}, [])
    (tmp_path / "run" / "metrics.jsonl").write_text(
        '{"step": 1, "loss": null}\n{"step": 2, "loss": NaN}\n'
        '{"step": 3, "loss": Infinity}\n{"step": 4, "loss": 2}\n{"step": 5, "loss": true}\n'
    )
    run = read_run(tmp_path / "run", "run")
    _, losses = run.series("loss")
    assert [math.isnan(loss) for loss in losses] == [True, True, True, False, True]
    assert "training loss" not in figures(run)


def test_names_are_as_long_as_they_need_to_be(tmp_path):
    folders = [tmp_path / "a" / "bert", tmp_path / "a" / "gpt"]
    assert short_names(folders) == ["bert", "gpt"]
    assert short_names([tmp_path / "a" / "bert", tmp_path / "b" / "bert"]) == ["a/bert", "b/bert"]
    assert short_names([tmp_path / "bert"] * 2) == ["bert (1)", "bert (2)"]


def test_the_folder_one_is_in_has_its_name(tmp_path, monkeypatch):
    folder = sample_runs.pretrain(tmp_path / "bert", steps=400)
    monkeypatch.chdir(folder)
    assert read_runs([folder.relative_to(folder)])[0].name == "bert"
    assert os.getcwd() == str(folder)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="nothing: no such folder in "):
        read_runs([tmp_path / "nothing"])
    with pytest.raises(ConfigError, match=r"no run here \(no config.yaml\)"):
        read_runs([tmp_path])


def test_a_config_that_is_no_yaml_is_told_with_its_line(tmp_path):
    (tmp_path / "config.yaml").write_text("run: x\nmodel: [1\n")
    with pytest.raises(ConfigError, match=r"config.yaml:3:\d+: not YAML"):
        read_runs([tmp_path])


def test_the_model_in_a_run_leads_to_the_run(tmp_path):
    folder = sample_runs.pretrain(tmp_path / "bert", steps=400)
    (run,) = read_runs([folder / "model"])
    assert run.path == folder
