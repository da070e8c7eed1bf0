"""Question answering from the command line: finetune, the folder it leaves, and eval."""

import json
from pathlib import Path

from tests.builders import json_lines
from tests.commands.conftest import NAMES, PLACES, Cli, sentence, write
from tests.commands.test_bad_input import refused


def squad(paragraphs: int, *, version2: bool) -> dict:
    listed = []
    for number in range(paragraphs):
        context = " ".join(sentence(number * 5 + k) for k in range(6))
        place, name = PLACES[(number * 5 // 3) % 8], NAMES[(number * 5) % 10]
        answers = [{"text": place, "answer_start": context.index(place)}]
        qas = [{"id": f"q{number}", "question": f"Where is {name}?", "answers": answers}]
        if version2:
            question = {"id": f"n{number}", "question": "Why?", "answers": []}
            qas.append(question | {"is_impossible": True})
        listed.append({"context": context, "qas": qas})
    return {"version": "x", "data": [{"title": "days", "paragraphs": listed}]}


def config(model: Path, **task: object) -> dict:
    return {
        "run": "qa",
        "model": str(model / "model"),
        "task": {"name": "question_answering", "doc_stride": 16, **task},
        "data": {"train": ["squad.json"], "valid": 0.3},
        "train": {"batch_size": 8, "epochs": 1, "max_length": 32},
        "compute": {"device": "cpu", "precision": "fp32"},
    }


def test_the_tuned_threshold_is_kept_and_used(cli: Cli, pretrained: dict[str, Path]) -> None:
    Path("squad.json").write_text(json.dumps(squad(12, version2=True)))
    write("qa.yaml", config(pretrained["bert"], version2=True))
    code, out, err = cli("finetune", "qa.yaml", "--json")
    assert code == 0, err
    results = json.loads(out)
    saved = json.loads(Path("qa/model/task.json").read_text())
    assert (
        saved["task"]["null_threshold"] == results["null_threshold"] == results["best_f1_threshold"]
    )
    assert results["f1"] == results["best_f1"]
    assert results["HasAns_total"] == results["NoAns_total"] > 0  # a context is on one side
    write(
        "ev.yaml",
        {
            "run": "qa-eval",
            "model": "qa/model",
            "measures": [{"name": "task", "data": ["squad.json"]}],
            "compute": {"device": "cpu", "precision": "fp32"},
        },
    )
    code, out, err = cli("eval", "ev.yaml", "--json")
    assert code == 0, err
    assert f'"null_threshold": {results["null_threshold"]}' in out


def test_gpt2_finds_answers_too(cli: Cli, pretrained: dict[str, Path]) -> None:
    rows = squad(20, version2=False)
    paragraphs = rows["data"][0]["paragraphs"]
    for name, part in (("squad.json", paragraphs[:12]), ("held.json", paragraphs[12:])):
        Path(name).write_text(json.dumps({**rows, "data": [{"title": "days", "paragraphs": part}]}))
    data = {"train": ["squad.json"], "valid": ["held.json"]}
    write("qa.yaml", config(pretrained["gpt2"]) | {"run": "qa-gpt2", "data": data})
    code, out, err = cli("finetune", "qa.yaml", "--json")
    assert code == 0, err
    assert json.loads(out)["total"] == 8

    # The answers that the report shows are those of the saved model.
    samples = json.loads(Path("qa-gpt2/eval/samples.json").read_text())
    asked = [paragraph["qas"][0] for paragraph in paragraphs[12:]]
    assert [one["prompt"] for one in samples["items"]] == [one["question"] for one in asked]
    right = [one["answers"][0]["text"] for one in asked]
    assert [one["answer"] for one in samples["items"]] == right
    code, _, err = cli("predict", "qa-gpt2/model", "--input", "held.json", "--output", "p.jsonl")
    assert code == 0, err
    given = [row["prediction"] for row in json_lines("p.jsonl")]
    assert [one["text"] for one in samples["items"]] == [f" {text}" for text in given]
    assert "Samples: answers to validation rows" in Path("qa-gpt2/report.html").read_text()


def test_wrong_rows(cli: Cli, pretrained: dict[str, Path]) -> None:
    broken = squad(12, version2=False)
    del broken["data"][0]["paragraphs"][1]["qas"][0]["question"]
    Path("broken.json").write_text(json.dumps(broken))
    write("qa.yaml", config(pretrained["bert"]) | {"run": "x3"})
    setting = "data.train=[broken.json]"
    refused(cli("finetune", "qa.yaml", setting), 3, "broken.json: days/2/q1: no text 'question'")
    refused(cli("finetune", "qa.yaml", "data.train=[rows.tsv]"), 3, "rows.tsv:2", "'context'")
    Path("squad.json").write_text(json.dumps(squad(12, version2=False)))
    refused(cli("finetune", "qa.yaml", "train.max_length=8"), 2, "no room for a context")
    assert not Path("x3").exists()
