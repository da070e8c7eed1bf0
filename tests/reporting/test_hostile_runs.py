"""Run folders with odd or hostile content: numbers or a note are shown, and text stays text."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from plmctl.commands import compare
from plmctl.errors import DataError
from plmctl.formatting import format_value, printable, printable_json
from plmctl.reporting.card import Publication, hub_card, model_card
from plmctl.reporting.html import Html
from plmctl.reporting.report import write_report
from plmctl.reporting.run_files import metrics_of, read_run
from tests.reporting import sample_runs
from tests.reporting.markup import Elements, read

HUGE = 10**400
SCRIPT = "</td></style><script>alert('ran')</script><img src=x onerror=alert('ran')>"


def shown(folder: Path) -> str:
    """The text of a report, which is well-formed; and cards and comparisons can be written."""
    other = sample_runs.pretrain(folder.parent / "other", steps=40)
    for runs in ([folder], [other, folder]):
        page = read(write_report(runs, folder.parent / "r.html").read_text(encoding="utf-8"))
    model_card(folder, "BertForMaskedLM").encode()
    model_card(folder, "BertForMaskedLM", publication=Publication("a/b")).encode()
    for as_json in (True, False):
        compare.run([str(other), str(folder)], out=None, as_json=as_json)
    shutil.rmtree(other)
    return "".join(page.texts("body"))


def changed(path: Path, change: dict[str, Any]) -> None:
    document = json.loads(path.read_bytes())
    for dotted, value in change.items():
        *parents, last = dotted.split(".")
        at = document
        for key in parents:
            at = at[int(key) if isinstance(at, list) else key]
        at[int(last) if isinstance(at, list) else last] = value
    path.write_text(json.dumps(document))


def test_metrics_that_no_run_has(tmp_path: Path) -> None:
    folder = sample_runs.pretrain(tmp_path / "run", steps=200)
    first = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    with (folder / "metrics.jsonl").open("a") as file:
        for value in (1e308, -1e308, HUGE, float("inf"), "text", None, [1], {}):
            for key in first:
                file.write(json.dumps({**first, "step": 500, key: value}) + "\n")
    (folder / "eval/valid.json").unlink()
    assert "metrics.jsonl:23, metrics.jsonl:34" in shown(folder)  # without a step
    assert all("e+308" not in str(metric.value) for metric in metrics_of(read_run(folder, "run")))


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the time of a report is that of its plots."""
    monkeypatch.setattr("plmctl.reporting.report.embedded_curves", lambda plot: Html())


@pytest.mark.usefixtures("no_plots")
def test_deep_json_is_left_out(tmp_path: Path) -> None:
    folder = sample_runs.pretrain(tmp_path / "run", steps=40)
    deep = "[" * 500 + "]" * 500
    for name in ("environment.json", "eval/valid.json"):
        (folder / name).write_text(f'{{"results": {deep}, "loss": 1}}')
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("[" * 100_000 + "\n" + f'{{"step": 50, "loss": {deep}}}\n')
    text = shown(folder)
    assert (
        "Left out because it cannot be read: valid.json, environment.json, metrics.jsonl:" in text
    )


@pytest.mark.parametrize(
    ("name", "change", "note"),
    [
        ("valid", {"results.per_class": [1]}, "valid.json: per_class"),
        ("valid", {"results.per_class": {"a": 1}}, "valid.json: per_class"),
        ("valid", {"results.confusion": {"labels": ["a"]}}, "valid.json: confusion"),
        ("valid", {"results.confusion.matrix.1.1": float("inf")}, "valid.json: confusion"),
        ("valid", {"results.confusion.matrix.1": [1]}, "valid.json: confusion"),
        ("valid", {"results": [1]}, "valid.json: results"),
        ("valid", {"results.per_class.0.f1": HUGE}, ""),
        ("valid", {"results.accuracy": HUGE}, ""),
        ("valid", {"results.accuracy": -1e308}, ""),
        ("valid", {"results.per_class.0": {}}, ""),
    ],
)
@pytest.mark.usefixtures("no_plots")
def test_results_of_another_form(tmp_path: Path, name: str, change: Any, note: str) -> None:
    folder = sample_runs.finetune(tmp_path / "run")
    changed(folder / f"eval/{name}.json", change)
    text = shown(folder)
    assert note in text
    assert ("cannot be read" in text) == bool(note)


@pytest.mark.usefixtures("no_plots")
def test_samples_of_another_form(tmp_path: Path) -> None:
    folder = sample_runs.pretrain(tmp_path / "run", steps=40)
    odd = ([], {}, 5, [5], [{}], [{"predictions": [{}]}], [{"predictions": [5]}], [{"text": [1]}])
    odd += ([{"predictions": [{"token": None, "score": 1e308}]}],)
    with (folder / "samples.jsonl").open("w") as file:
        for step, items in enumerate(odd):
            file.write(json.dumps({"step": step, "kind": "fill-mask", "items": items}) + "\n")
    assert folder.name in shown(folder)


@pytest.mark.parametrize(
    ("kind", "name", "change", "note"),
    [
        ("pretrain", "samples", {"items": [5]}, "samples.json: items"),
        ("pretrain", "samples", {"items.0.predictions": [5]}, "samples.json: items"),
        ("pretrain", "samples", {"items.0.predictions.0.score": 1e308}, ""),
        ("pretrain", "samples", {"items.0.text": None}, ""),
        ("grid", "protocol", {"settings": [1]}, "protocol.json: settings"),
        ("grid", "protocol", {"settings.0.setting": 1}, "protocol.json: settings"),
        ("grid", "protocol", {"chosen": 3}, "protocol.json: chosen"),
        ("grid", "protocol", {"settings.0.median": HUGE}, ""),
    ],
)
@pytest.mark.usefixtures("no_plots")
def test_documents_of_another_form(
    tmp_path: Path, kind: str, name: str, change: Any, note: str
) -> None:
    folder = getattr(sample_runs, kind)(tmp_path / "run")
    changed(folder / f"eval/{name}.json", change)
    text = shown(folder)
    assert note in text
    assert ("cannot be read" in text) == bool(note)


@pytest.mark.parametrize(
    "config",
    [
        {"data": {"train": 5, "valid": "x", "mixture": 3}},
        {"data": {"mixture": [5, {"train": 7}], "valid": {"a": 5}}, "train": {"phases": [1]}},
        {"data": {"valid": []}, "train": {"phases": [{"steps": "many"}, {"steps": HUGE}]}},
        {"data": 1, "train": {"phases": [{"steps": 1}, {}]}, "model": {"init_from": "x" * 5000}},
        {"train": {"phases": [1, 2], "budget": "1h"}, "objective": [1], "optim": "a"},
    ],
)
@pytest.mark.usefixtures("no_plots")
def test_configs_that_nobody_has_checked(tmp_path: Path, config: dict[str, Any]) -> None:
    folder = sample_runs.pretrain(tmp_path / "run", steps=40)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    sample_runs.write(folder, {"run": "r", "tokenizer": "t", **config}, lines)
    (folder / "budget.json").write_text('{"steps": ["a", 1]}')
    assert "finished" in shown(folder)


def test_scores_of_items_that_are_damaged(tmp_path: Path) -> None:
    folders = [sample_runs.finetune(tmp_path / name) for name in ("one", "two")]
    for folder in folders:
        (folder / "eval/rows").mkdir()
    whole = {"values": [0.5], "rows": "a", "credit": "accuracy", "sizes": [1]}
    for document in (
        *(whole | {"values": values} for values in (1, ["a"], [1e308], [], [[1]])),
        whole | {"sizes": [0]},
        {"values": [0.5]},
    ):
        for folder in folders:
            (folder / "eval/rows/valid.json").write_text(json.dumps(document))
        with pytest.raises(DataError, match=r"one/eval/rows/valid.json: .*damaged"):
            compare.run(list(map(str, folders)), out=None, as_json=True)


def test_long_numbers_and_halves_of_pairs() -> None:
    assert format_value(HUGE) == "1.00e+400"
    assert format_value(-1e308) == "-1.00e+308"
    assert format_value(999_999_999_999_999_999) == "999,999,999,999,999,999"
    assert printable("a\ud800\x1b") == "a\\ud800\\x1b"
    assert json.loads(printable_json({"a": "\ud800\x9b", "b": float("nan")}).encode())["b"] is None


# --- Text stays text ---


def hostile(folder: Path) -> Path:
    """A finetuning whose name, config, labels, metrics, texts and events are scripts."""
    sample_runs.finetune(folder)
    labels = [f"{SCRIPT}{n}" for n in range(4)]
    results = sample_runs.classes(labels=labels) | {SCRIPT: 0.5, "note": SCRIPT}
    sample_runs.evaluation(folder, "valid", {"kind": "finetune", "results": results})
    item = {"text": f"a [MASK] {SCRIPT}", "answer": SCRIPT}
    item["predictions"] = [{"token": SCRIPT, "score": 0.5}]
    sample_runs.evaluation(folder, "samples", {"kind": "fill-mask", "items": [item]})
    sample_runs.samples_by_step(folder, [1, 2], kind=SCRIPT, items=[item, {"prompt": SCRIPT}])
    lines = [{"step": n, "loss": 1.0 / n, f"loss/{SCRIPT}": 0.5 / n} for n in range(1, 9)]
    config = {
        "run": SCRIPT,
        "model": f"`{SCRIPT}`",
        "task": {"name": SCRIPT, "text": SCRIPT, SCRIPT: SCRIPT},
        "data": {"train": [f"a`{SCRIPT}.txt"], "valid": {SCRIPT: [SCRIPT]}},
    }
    sample_runs.write(folder, config, lines)
    facts = {"command": ["plmctl", "`" + SCRIPT], "versions": {SCRIPT: SCRIPT}, "device": SCRIPT}
    (folder / "environment.json").write_text(json.dumps(facts))
    (folder / "events").write_text(json.dumps({"event": SCRIPT, "time": SCRIPT, SCRIPT: SCRIPT}))
    status = {"status": "failed", "message": SCRIPT, "files": [SCRIPT]}
    (folder / "status.json").write_text(json.dumps(status))
    return folder


NAME = "run <script>alert(3)<"


TRAP = "<script>window.alert = () => document.body.dataset.ran = 'yes'</script>"
"""A script that calls ``alert`` leaves its mark in the page that Chromium prints."""


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_no_script_of_a_run_is_run(tmp_path: Path, count: int) -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if chromium is None:
        pytest.skip("no Chromium on this machine")
    options = "--headless --no-sandbox --disable-gpu --disable-background-networking "
    options += f"--disable-component-update --disable-sync --user-data-dir={tmp_path}/profile"
    command = [chromium, *options.split(), "--virtual-time-budget=2000", "--dump-dom"]

    def opened(page: Path) -> str:
        done = subprocess.run([*command, page], capture_output=True, timeout=60, check=True)
        return done.stdout.decode()

    runs = [hostile(tmp_path / f"{NAME}{n}") for n in range(count)]
    page = write_report(runs, tmp_path / "report.html")
    text = page.read_text(encoding="utf-8").replace("<head>", f"<head>{TRAP}", 1)
    page.write_text(text, encoding="utf-8")
    shown = opened(page)
    assert "plmctl report" in shown
    assert "data-ran" not in shown
    page.write_text(text.replace("<h1>", f"<h1>{SCRIPT}", 1), encoding="utf-8")
    assert "data-ran" in opened(page)  # the trap works


@pytest.mark.parametrize("step", [None, 4])
def test_the_card_of_a_hostile_run_is_text(tmp_path: Path, step: int | None) -> None:
    folder = hostile(tmp_path / f"{NAME}](javascript:alert(1)) *a* _b_ `c` | \n\n# d")
    for publication in (None, Publication("a/b")):
        card = model_card(folder, SCRIPT, step=step, publication=publication)
        body = card.split("---\n", 2)[2]
        (title,) = [line for line in body.splitlines() if line.startswith("# ")]
        wanted = r"# run &lt;script&gt;alert(3)&lt;\](javascript:alert(1)) \*a\* \_b\_ \`c\` | # d"
        assert title == wanted
        page = rendered(body)
        assert not {tag for tag, _, _ in page.elements} & {"a", "em", "strong"}
        assert page.texts("h1")[0].startswith("run <script>alert(3)<](javascript:alert(1)) *a* _b_")
        assert all(len(row) == 2 for row in tables(page))
        assert "<script>alert('ran')" in "".join(page.texts("td"))
        assert "<script>alert('ran')" in "".join(page.texts("code"))


def rendered(markdown: str) -> Elements:
    """Markdown with tables as a reader of cards shows it, which has no scripts and no links."""
    html = MarkdownIt("commonmark").enable("table").render(markdown)
    return read(f"<!DOCTYPE html>{html}")


def tables(page: Elements) -> list[list[str]]:
    """The cells of each row."""
    rows: list[list[str]] = []
    for tag, _, text in page.elements:
        if tag == "tr":
            rows.append([])
        elif tag in ("td", "th"):
            rows[-1].append("".join(text))
    return rows


def test_the_card_of_an_exported_folder_with_a_hostile_class(tmp_path: Path) -> None:
    config = {"architectures": [f"{SCRIPT}ForMaskedLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    card = hub_card(tmp_path, None, Publication("a/b"))
    assert SCRIPT in "".join(rendered(card.split("---\n", 2)[2]).texts("p"))


def test_ordinary_names_are_unchanged_in_a_card(tmp_path: Path) -> None:
    folder = sample_runs.finetune(tmp_path / "bert_mini-2.x")
    card = model_card(folder, "BertForSequenceClassification")
    assert "# bert_mini-2.x\n" in card
    assert "\\" not in card
