import json

import pytest

from plmctl.errors import PlmError
from plmctl.reporting.report import write_report
from tests.reporting import made
from tests.reporting.markup import read


def report(tmp_path, *runs):
    return read(write_report(list(runs), tmp_path / "out.html").read_text(encoding="utf-8"))


def tiles(found):
    return dict(zip(found.texts("dt"), found.texts("dd"), strict=True))


def test_a_finished_run(tmp_path):
    found = report(tmp_path, made.pretrain(tmp_path / "bert", steps=400))
    assert found.texts("h1") == ["bertfinished"]
    assert len(found.attributes("svg")) == 6
    assert tiles(found)["steps"] == "400"
    assert "treasury ✓" in found.texts("li")[0]
    assert found.texts("summary") == ["Config", "Environment", "Events (2)"]
    assert "name: mlm+nsp" in found.texts("pre")[0]
    assert "2.13.0" in found.texts("td")
    assert [item for item in found.attributes("ul") if item.get("class") == "notes"] == []


def test_a_classifier_has_its_classes_and_a_confusion_matrix(tmp_path):
    found = report(tmp_path, made.finetune(tmp_path / "era"))
    assert tiles(found)["accuracy"] == "0.720"
    cells = found.texts("tr")
    assert "founding0.7200.7200.72060" in cells
    titles = [cell["title"] for cell in found.attributes("td") if "title" in cell]
    assert len(titles) == 16
    assert titles[0] == "70.0% of founding predicted as founding"


def test_several_runs_are_compared_by_kind(tmp_path):
    found = report(
        tmp_path,
        made.pretrain(tmp_path / "one", steps=400),
        made.pretrain(tmp_path / "two", steps=400, seed=1, upto=200),
        made.finetune(tmp_path / "era", accuracy=0.7),
        made.finetune(tmp_path / "era-random", accuracy=0.6),
    )
    assert found.texts("h1") == ["4 runs"]
    assert found.texts("h2")[:2] == ["Pretraining", "Finetuning"]
    headings = found.texts("th")
    assert {"one", "twonot finished", "era", "era-random", "optim.lr", "init"} <= set(headings)
    assert "run" in headings
    assert "schedule.name" not in headings  # the same everywhere
    best = found.texts("b")
    assert "0.700" in best  # accuracy: the higher one
    assert "0.600" not in best
    assert "twonot finished: step 200 of 400" in found.texts("summary")


def test_a_run_that_is_not_finished_says_so(tmp_path):
    found = report(tmp_path, made.pretrain(tmp_path / "bert", steps=400, upto=120, valid=False))
    assert found.texts("h1") == ["bertnot finished: step 120 of 400"]
    assert any("no validation so far" in text for text in found.texts("li"))


def test_a_run_that_has_logged_nothing(tmp_path):
    made.write(tmp_path / "bert", {"run": "x", "tokenizer": "t"}, [])
    found = report(tmp_path, tmp_path / "bert")
    assert found.texts("li") == ["Nothing has been logged so far."]
    assert found.attributes("svg") == []


def test_a_run_whose_loss_is_not_finite_says_from_where(tmp_path):
    folder = made.pretrain(tmp_path / "bert", steps=400, upto=200)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["step"] > 100 and "loss" in line:
            line["loss"] = line["loss/mlm"] = line["grad_norm"] = None
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = report(tmp_path, folder)
    assert "The loss is not a finite number at 10 logged steps, first at step 110." in found.texts(
        "li"
    )
    assert "nan" not in (tmp_path / "out.html").read_text().casefold().replace("finance", "")


def test_chinese_text_stays_as_it_is(tmp_path):
    folder = made.pretrain(tmp_path / "中文模型", steps=400)
    item = {"text": "中国队在[MASK]京夺冠。", "answer": "北"}
    item["predictions"] = [{"token": "北", "score": 0.5}]
    made.evaluation(folder, "samples", {"kind": "fill-mask", "items": [item]})
    found = report(tmp_path, folder)
    assert found.texts("h1") == ["中文模型finished"]
    assert "中国队在北京夺冠。" in found.texts("p")
    assert any("北 ✓" in text for text in found.texts("li"))


def test_generated_text(tmp_path):
    folder = made.pretrain(tmp_path / "gpt", steps=400)
    item = {"prompt": "the <b>", "text": " & so on"}
    made.evaluation(folder, "samples", {"kind": "generation", "items": [item]})
    assert "the <b> & so on" in report(tmp_path, folder).texts("p")


def test_an_evaluation_without_training(tmp_path):
    made.write(tmp_path / "run", {"run": "x", "model": "m", "measures": []}, [])
    made.evaluation(tmp_path / "run", "mlm", {"results": {"loss": 3.0, "perplexity": 20.1}})
    made.evaluation(tmp_path / "run", "rows", {"results": made.classes()})
    found = report(tmp_path, tmp_path / "run")
    assert found.texts("h2")[:2] == ["mlm", "rows"]
    assert found.texts("dd")[:2] == ["3.000", "20.10"]


@pytest.mark.parametrize("status", [None, "finished", "failed"])
def test_a_folder_of_several_runs_has_its_settings_and_each_run(tmp_path, status):
    found = report(tmp_path, made.grid(tmp_path / "grid", status=status))
    said = "failed: 4 of 4 runs" if status == "failed" else "finished"
    assert found.texts("h1") == [f"grid{said}"]
    assert found.texts("h2")[:2] == ["Settings by accuracy", "Finetuning"]
    names = [f"lr={rate}/seed={seed}" for rate in (0.001, 0.003) for seed in (9, 10)]
    assert [text for text in found.texts("th") if "optim.lr=" in text] == [
        "optim.lr=0.001", "optim.lr=0.003",
    ]  # fmt: skip
    assert found.texts("b")[0] == "0.720"  # of the chosen setting
    assert "lr=0.003/seed=10" in found.texts("td")
    assert [text for text in found.texts("th") if text in names] == [*names, *names]
    assert [f"{name}finished" for name in names] == [
        text for text in found.texts("summary") if text.startswith("lr=")
    ]
    assert found.attributes("svg")  # the curves of its runs
    notes = ["The run failed: no rows <left>"] if status == "failed" else []
    assert [text for text in found.texts("li") if "logged" in text or "failed" in text] == notes


def test_a_folder_of_several_runs_beside_another(tmp_path):
    found = report(tmp_path, made.grid(tmp_path / "grid"), made.finetune(tmp_path / "era"))
    assert found.texts("h1") == ["5 runs"]
    assert found.texts("h2")[:2] == ["Settings by accuracy: grid", "Finetuning"]
    assert {"grid/lr=0.001/seed=9", "era"} <= set(found.texts("th"))
    assert not [text for text in found.texts("th") if "not finished" in text]


def test_a_folder_of_several_runs_before_they_are_compared(tmp_path):
    folder = made.grid(tmp_path / "grid")
    (folder / "eval" / "protocol.json").unlink()
    (folder / "lr=0.003" / "seed=10" / "model" / "model.safetensors").unlink()
    assert report(tmp_path, folder).texts("h1") == ["gridnot finished: 3 of 4 runs"]


HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


def test_nothing_in_a_run_becomes_markup(tmp_path):
    folder = made.finetune(tmp_path / "<script>alert(0)<script>")
    made.evaluation(folder, "valid", {"results": made.classes(labels=[HOSTILE, "b", "c", "d"])})
    item = {"text": f"{HOSTILE} [MASK]", "answer": HOSTILE}
    item["predictions"] = [{"token": HOSTILE, "score": HOSTILE}]
    made.evaluation(folder, "samples", {"kind": "fill-mask", "items": [item]})
    with (folder / "events").open("a") as file:
        file.write(json.dumps({"event": HOSTILE, HOSTILE: HOSTILE}) + "\n")
    (folder / "environment.json").write_text(json.dumps({HOSTILE: {HOSTILE: [HOSTILE]}}))
    found = report(tmp_path, folder, made.finetune(tmp_path / "other", seed=1))
    assert found.texts("td").count(HOSTILE) >= 2  # read() has seen no script and no image


def test_the_same_runs_give_the_same_page(tmp_path):
    folder = made.pretrain(tmp_path / "bert", steps=400)
    pages = {write_report([folder], tmp_path / name).read_text() for name in ("a.html", "b.html")}
    assert len(pages) == 1


def test_the_page_is_small(tmp_path):
    folder = made.pretrain(tmp_path / "bert", steps=100_000)  # 10,000 records, 400 validations
    assert write_report([folder], tmp_path / "out.html").stat().st_size < 150_000


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    folder = made.pretrain(tmp_path / "bert", steps=400)
    (tmp_path / "file").write_text("")
    with pytest.raises(PlmError, match="cannot be written"):
        write_report([folder], tmp_path / "file" / "report.html")
