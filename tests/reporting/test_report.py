import json
import re

import pytest
import yaml

from plmctl.errors import PlmError
from plmctl.reporting.report import write_report
from tests.reporting import sample_runs
from tests.reporting.markup import read


def report(tmp_path, *runs):
    return read(write_report(list(runs), tmp_path / "out.html").read_text(encoding="utf-8"))


def tiles(page):
    return dict(zip(page.texts("dt"), page.texts("dd"), strict=True))


def test_a_finished_run(tmp_path):
    page = report(tmp_path, sample_runs.pretrain(tmp_path / "bert", steps=400))
    assert page.texts("h1") == ["bertfinished"]
    assert len(page.attributes("svg")) == 6
    assert tiles(page)["steps"] == "400"
    assert "treasury ✓" in page.texts("li")[0]
    assert page.texts("summary") == ["Config", "Environment", "Events (2)"]
    assert "name: mlm+nsp" in page.texts("pre")[0]
    assert "2.13.0" in page.texts("td")
    assert [item for item in page.attributes("ul") if item.get("class") == "notes"] == []


def test_a_classifier_has_its_classes_and_a_confusion_matrix(tmp_path):
    page = report(tmp_path, sample_runs.finetune(tmp_path / "era"))
    assert tiles(page)["accuracy"] == "0.720"
    cells = page.texts("tr")
    assert "founding0.7200.7200.72060" in cells
    titles = [cell["title"] for cell in page.attributes("td") if "title" in cell]
    assert len(titles) == 16
    assert titles[0] == "70.0% of founding predicted as founding"


def test_several_runs_are_compared_by_kind(tmp_path):
    page = report(
        tmp_path,
        sample_runs.pretrain(tmp_path / "one", steps=400),
        sample_runs.pretrain(tmp_path / "two", steps=400, seed=1, upto=200),
        sample_runs.finetune(tmp_path / "era", accuracy=0.7),
        sample_runs.finetune(tmp_path / "era-random", accuracy=0.6),
    )
    assert page.texts("h1") == ["4 runs"]
    assert page.texts("h2")[:2] == ["Pretraining", "Finetuning"]
    headings = page.texts("th")
    assert {"one", "twonot finished", "era", "era-random", "optim.lr", "init"} <= set(headings)
    assert "run" in headings
    assert "schedule.name" not in headings  # the same everywhere
    best = page.texts("b")
    assert "0.700" in best  # accuracy: the higher one
    assert "0.600" not in best
    assert "twonot finished: step 200 of 400" in page.texts("summary")


def test_a_run_that_is_not_finished_says_so(tmp_path):
    page = report(
        tmp_path, sample_runs.pretrain(tmp_path / "bert", steps=400, upto=120, valid=False)
    )
    assert page.texts("h1") == ["bertnot finished: step 120 of 400"]
    assert any("no validation so far" in text for text in page.texts("li"))


def test_a_run_that_has_logged_nothing(tmp_path):
    sample_runs.write(tmp_path / "bert", {"run": "x", "tokenizer": "t"}, [])
    page = report(tmp_path, tmp_path / "bert")
    assert page.texts("li") == ["Nothing has been logged so far."]
    assert page.attributes("svg") == []


def test_a_run_whose_loss_is_not_finite_says_from_where(tmp_path):
    folder = sample_runs.pretrain(tmp_path / "bert", steps=400, upto=200)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["step"] > 100 and "loss" in line:
            line["loss"] = line["loss/mlm"] = line["grad_norm"] = None
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = report(tmp_path, folder)
    assert "The loss is not a finite number at 10 logged steps, first at step 110." in page.texts(
        "li"
    )
    assert "nan" not in (tmp_path / "out.html").read_text().casefold().replace("finance", "")


def test_chinese_text_stays_as_it_is(tmp_path):
    folder = sample_runs.pretrain(tmp_path / "中文模型", steps=400)
    item = {"text": "中国队在[MASK]京夺冠。", "answer": "北"}
    item["predictions"] = [{"token": "北", "score": 0.5}]
    sample_runs.evaluation(folder, "samples", {"kind": "fill-mask", "items": [item]})
    page = report(tmp_path, folder)
    assert page.texts("h1") == ["中文模型finished"]
    assert "中国队在北京夺冠。" in page.texts("p")
    assert any("北 ✓" in text for text in page.texts("li"))


def test_chinese_samples_have_no_spaces_between_characters(tmp_path):
    folder = sample_runs.pretrain(tmp_path / "zh", steps=400)
    item = {"text": "中 国 队 在 [MASK] 京 夺 冠 abc def 。 次", "answer": "北", "predictions": []}
    sample_runs.evaluation(folder, "samples", {"kind": "fill-mask", "items": [item]})
    assert "中国队在北京夺冠 abc def 。次" in report(tmp_path, folder).texts("p")


def test_generated_text(tmp_path):
    folder = sample_runs.pretrain(tmp_path / "gpt", steps=400)
    item = {"prompt": "the <b>", "text": " & so on"}
    sample_runs.evaluation(folder, "samples", {"kind": "generation", "items": [item]})
    assert "the <b> & so on" in report(tmp_path, folder).texts("p")


def test_samples_of_some_validations_are_below_each_other(tmp_path):
    folder = sample_runs.pretrain(tmp_path / "bert", steps=400)
    sample_runs.samples_by_step(folder, list(range(10, 410, 10)))
    with (folder / "samples.jsonl").open("a") as file:
        file.write('{"step": 410, "items": [{"te')  # being written
    page = report(tmp_path, folder)
    titles = page.texts("summary")
    assert titles[0] == "the secretary of the treasury will report on the finances ."
    cells = page.texts("td")
    shown = ["treasury ✓ 1.0%navy 20.3%interior 11.8%", "treasury ✓ 40.0%navy 20.3%interior 11.8%"]
    assert [cell for cell in cells if cell.startswith("treasury ✓")][::7] == shown
    assert "it cannot be read: samples.jsonl:41" in "".join(page.texts("body"))


def test_generated_samples_of_some_validations(tmp_path):
    folder = sample_runs.pretrain(tmp_path / "gpt", steps=400)
    for steps in ([200], [100, 200]):
        item = {"prompt": "the <b>", "text": "\n & so on", "answer": "goat"}
        sample_runs.samples_by_step(folder, steps, kind="fill-span", items=[item])
        page = report(tmp_path, folder)
        # One validation says no more than the samples at the end.
        assert page.texts("td").count("& so on") == (0 if len(steps) == 1 else 2)
    assert "the <b>" in page.texts("summary")
    assert "Original: goat" in page.texts("p")


def test_an_evaluation_without_training(tmp_path):
    sample_runs.write(tmp_path / "run", {"run": "x", "model": "m", "measures": []}, [])
    sample_runs.evaluation(tmp_path / "run", "mlm", {"results": {"loss": 3.0, "perplexity": 20.1}})
    sample_runs.evaluation(tmp_path / "run", "rows", {"results": sample_runs.classes()})
    page = report(tmp_path, tmp_path / "run")
    assert page.texts("h2")[:2] == ["mlm", "rows"]
    assert page.texts("dd")[:2] == ["3.000", "20.10"]


@pytest.mark.parametrize("status", [None, "finished", "failed"])
def test_a_folder_of_several_runs_has_its_settings_and_each_run(tmp_path, status):
    page = report(tmp_path, sample_runs.grid(tmp_path / "grid", status=status))
    state = "failed: 4 of 4 runs" if status == "failed" else "finished"
    assert page.texts("h1") == [f"grid{state}"]
    assert page.texts("h2")[:2] == ["Settings by accuracy", "Finetuning"]
    names = [f"lr={rate}/seed={seed}" for rate in (0.001, 0.003) for seed in (9, 10)]
    assert [text for text in page.texts("th") if "optim.lr=" in text] == [
        "optim.lr=0.001", "optim.lr=0.003",
    ]  # fmt: skip
    assert page.texts("b")[0] == "0.720"  # of the chosen setting
    assert "lr=0.003/seed=10" in page.texts("td")
    assert [text for text in page.texts("th") if text in names] == [*names, *names]
    assert [f"{name}finished" for name in names] == [
        text for text in page.texts("summary") if text.startswith("lr=")
    ]
    assert page.attributes("svg")  # the curves of its runs
    notes = ["The run failed: no rows <left>"] if status == "failed" else []
    assert [text for text in page.texts("li") if "logged" in text or "failed" in text] == notes


def test_a_folder_of_several_runs_beside_another(tmp_path):
    page = report(
        tmp_path, sample_runs.grid(tmp_path / "grid"), sample_runs.finetune(tmp_path / "era")
    )
    assert page.texts("h1") == ["5 runs"]
    assert page.texts("h2")[:2] == ["Settings by accuracy: grid", "Finetuning"]
    assert {"grid/lr=0.001/seed=9", "era"} <= set(page.texts("th"))
    assert not [text for text in page.texts("th") if "not finished" in text]


def test_a_folder_of_several_runs_before_they_are_compared(tmp_path):
    folder = sample_runs.grid(tmp_path / "grid")
    (folder / "eval" / "protocol.json").unlink()
    (folder / "lr=0.003" / "seed=10" / "model" / "model.safetensors").unlink()
    assert report(tmp_path, folder).texts("h1") == ["gridnot finished: 3 of 4 runs"]


HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


def test_nothing_in_a_run_becomes_markup(tmp_path):
    folder = sample_runs.finetune(tmp_path / "<script>alert(0)<script>")
    sample_runs.evaluation(
        folder, "valid", {"results": sample_runs.classes(labels=[HOSTILE, "b", "c", "d"])}
    )
    item = {"text": f"{HOSTILE} [MASK]", "answer": HOSTILE}
    item["predictions"] = [{"token": HOSTILE, "score": HOSTILE}]
    sample_runs.evaluation(folder, "samples", {"kind": "fill-mask", "items": [item]})
    written = {"prompt": HOSTILE, "text": HOSTILE, "answer": HOSTILE}
    sample_runs.samples_by_step(folder, [1, 2], kind=HOSTILE, items=[item, written])
    with (folder / "events").open("a") as file:
        file.write(json.dumps({"event": HOSTILE, HOSTILE: HOSTILE}) + "\n")
    (folder / "environment.json").write_text(json.dumps({HOSTILE: {HOSTILE: [HOSTILE]}}))
    page = report(tmp_path, folder, sample_runs.finetune(tmp_path / "other", seed=1))
    assert page.texts("td").count(HOSTILE) >= 2  # read() has seen no script and no image


def test_the_same_runs_give_the_same_page(tmp_path):
    folder = sample_runs.pretrain(tmp_path / "bert", steps=400)
    pages = {write_report([folder], tmp_path / name).read_text() for name in ("a.html", "b.html")}
    assert len(pages) == 1


def test_the_page_is_small(tmp_path):
    # 10,000 records, 400 validations.
    folder = sample_runs.pretrain(tmp_path / "bert", steps=100_000)
    assert write_report([folder], tmp_path / "out.html").stat().st_size < 150_000


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    folder = sample_runs.pretrain(tmp_path / "bert", steps=400)
    (tmp_path / "file").write_text("")
    with pytest.raises(PlmError, match="cannot be written"):
        write_report([folder], tmp_path / "file" / "report.html")


def changed(folder, name, **values):
    """A run folder with other values in a file of it."""
    path = folder / name
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(document | values), encoding="utf-8")
    return folder


def test_losses_of_other_objectives_or_tokenizers_are_not_ranked(tmp_path):
    runs = [sample_runs.pretrain(tmp_path / name, steps=400, seed=n) for n, name in enumerate("ab")]
    together = write_report(runs, tmp_path / "out.html").read_text(encoding="utf-8")
    assert "<b>" in together
    assert "cannot be compared" not in together
    for name, values in (
        ("config.yaml", {"objective": {"name": "mlm", "rate": 0.3}}),
        ("environment.json", {"hashes": {"tokenizer": "another"}}),
    ):
        other = sample_runs.pretrain(tmp_path / f"other-{name}", steps=400, seed=2)
        runs = [runs[0], changed(other, name, **values)]
        apart = write_report(runs, tmp_path / "out.html").read_text(encoding="utf-8")
        assert "<b>" not in apart
        assert "Losses of different objectives or tokenizers cannot be compared" in apart
        assert apart.index("<svg") < apart.index("Differences between the configs")


def test_the_loss_of_frequencies_is_a_tile_and_a_line(tmp_path):
    run = sample_runs.pretrain(tmp_path / "bert", steps=400)
    counted = {"5-gram": {"loss": 4.4381}}
    frequencies = {"mlm": 6.5, "nsp": 0.69, "loss": 7.19}
    changed(run, "environment.json", frequency_loss=frequencies, counted_loss=counted)
    page = report(tmp_path, run)
    assert tiles(page)["token frequencies alone"] == "7.190"
    assert tiles(page)["5-gram"] == "4.438"
    assert "token frequencies alone" in (tmp_path / "out.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("counted", "good"), [(1e3, True), (1e-3, False)])
def test_only_good_news_of_the_loss_are_green(tmp_path, counted, good):
    run = sample_runs.pretrain(tmp_path / "bert", steps=400)
    levels = {"frequency_loss": {"loss": 1e4}, "counted_loss": {"5-gram": {"loss": counted}}}
    page = report(tmp_path, changed(run, "environment.json", **levels))
    notes = zip(page.texts("li"), page.attributes("li"), strict=True)
    assert [("counting" in text, note.get("class")) for text, note in notes if "loss" in text] == [
        (True, "good" if good else None)
    ]


def test_a_report_has_no_path_of_this_machine(tmp_path):
    run = sample_runs.pretrain(tmp_path / "bert", steps=100)
    config = "/opt/venv/lib/python3.12/site-packages/plmctl/configs/demo/pretrain.yaml"
    command = ["plmctl", "pretrain", config, "data.train=[/srv/corpus/a.txt]"]
    changed(run, "environment.json", command=command)
    changed(run, "config.yaml", data={"train": ["/srv/corpus/a.txt"]})
    text = write_report([run], tmp_path / "out.html").read_text(encoding="utf-8")
    assert "plmctl pretrain demo/pretrain &#39;data.train=[a.txt]&#39;" in text
    assert not re.search(r"/srv/|/opt/|" + re.escape(str(tmp_path)), text)
