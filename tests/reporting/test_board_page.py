"""The page of the board in a browser without a window: Chromium, driven by Playwright."""

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from plmctl.reporting.board import Board
from plmctl.reporting.board_server import BoardServer, write_board
from tests.reporting import sample_runs
from tests.reporting.test_run_state import holding

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
pytestmark = [
    pytest.mark.sweep,
    pytest.mark.skipif(find_spec("playwright") is None, reason="playwright is not installed"),
    pytest.mark.skipif(find_spec("vl_convert") is None, reason="vl-convert-python is missing"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]
HOSTILE = "<img src=x onerror=document.title='bad'>"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("board") / "runs"
    sample_runs.pretrain(root / "bert" / "seed-1", steps=2000)
    sample_runs.pretrain(root / "bert" / "seed-2", steps=2000, seed=1)
    run = sample_runs.finetune(root / HOSTILE)
    labels = [HOSTILE, "b", "c", "d"]
    sample_runs.evaluation(
        run, "valid", {"results": sample_runs.classes(0.7, labels) | {HOSTILE: 1.0}}
    )
    sample_runs.evaluation(run, "samples", {"items": [{"prompt": HOSTILE, "text": HOSTILE}]})
    item = {"prompt": HOSTILE, "text": HOSTILE, "answer": HOSTILE}
    item["predictions"] = [{"token": HOSTILE, "score": 0.5}]
    sample_runs.samples_by_step(run, [7, 8], items=[item], kind="generation")
    masked = root / "bert" / "seed-1"
    sample_runs.samples_by_step(masked, [1000, 2000])
    hostile = {**item, "text": f"a [MASK] {HOSTILE}"}
    sample_runs.samples_by_step(root / "bert" / "seed-2", [8], items=[hostile])
    (root / "bert" / "seed-2" / "eval" / "samples.json").unlink()
    (run / "events").write_text(json.dumps({"time": HOSTILE, "event": HOSTILE, HOSTILE: HOSTILE}))
    sample_runs.grid(root / "grid", status="stopped")
    (root / "odd").mkdir()
    (root / "odd" / "config.yaml").write_text(f"{HOSTILE}: [")
    sample_runs.pretrain(root / "live", steps=1000, upto=300)
    (root / "live" / "status.json").write_text('{"status": "running"}')
    return root


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    with BoardServer(Board(root), 0) as server:
        threading.Thread(target=server.work, daemon=True).start()
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server.url
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    """A page without errors, and without requests to anywhere else."""
    page = browser.new_page(**{"viewport": {"width": 1300, "height": 900}, **options})
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: message.type == "error" and wrong.append(message.text))
    page.on(
        "request",
        lambda request: (
            request.url.startswith((url.partition("#")[0].rpartition("/")[0], "data:"))
            or wrong.append(request.url)
        ),
    )
    page.goto(url)
    yield page
    assert page.evaluate("document.querySelectorAll('main img').length") == 0
    assert page.title() != "bad"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert not page.context.cookies()
    assert not wrong
    page.close()


def choose(page: Any, *names: str) -> None:
    """Choose these runs only, and wait for their curves."""
    page.get_by_role("button", name="clear", exact=True).click()
    for name in names:
        page.get_by_label(f"choose {name}", exact=True).click()
    page.wait_for_selector('.chart[data-key="loss"] canvas')
    page.wait_for_timeout(300)


def until(page: Any, condition: Callable[[], bool]) -> None:
    """Wait until this holds: a page is slow on a busy machine, and no time is long enough."""
    for _ in range(300):
        if condition():
            return
        page.wait_for_timeout(100)
    raise AssertionError("it does not hold after 30 seconds")


def domain(page: Any, axis: str = "x") -> list[float]:
    """The visible range of the loss."""
    plot = "document.querySelector('.chart[data-key=loss] .plot').vega"
    return list(page.evaluate(f"{plot}?.scale('{axis}').domain() ?? [0, 0]"))


def test_a_run_is_watched_while_it_writes(browser: Any, address: str, root: Path) -> None:
    log = root / "live" / "metrics.jsonl"
    with holding(root / "live" / ".lock") as process, opened(browser, address) as page:
        row = page.locator("tr", has_text="live").first
        page.wait_for_selector("#table tbody tr")
        assert "running" in row.inner_text()
        assert "300 / 1,000" in row.inner_text()
        choose(page, "live")
        until(page, lambda: domain(page)[1] == 300)
        with log.open("a") as file:
            for step in range(310, 410, 10):
                line = {"step": step, "loss": 3.0, "lr": 1e-3, "tokens": step, "time": step / 10}
                file.write(json.dumps(line) + "\n")
        page.get_by_text("400 / 1,000").wait_for()
        until(page, lambda: domain(page)[1] == 400)
        whole = domain(page)
        page.locator('[data-key="loss"] button').first.click()  # what is zoomed stays so
        until(page, lambda: domain(page) != whole)
        zoomed = domain(page)
        with log.open("a") as file:
            file.write(json.dumps({"step": 500, "loss": 2.9, "time": 50.0}) + "\n")
        page.get_by_text("500 / 1,000").wait_for()
        page.wait_for_timeout(500)
        assert domain(page) == zoomed
        process.communicate()
        page.get_by_text("killed", exact=True).wait_for()


def test_zoom_hover_and_scales(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        page.wait_for_selector("#table tbody tr")
        choose(page, "bert/seed-1", "bert/seed-2")
        whole = [10, 2000]
        until(page, lambda: domain(page) == whole)
        box = page.locator('[data-key="loss"] .plot').bounding_box()
        page.locator('[data-key="loss"] .plot').scroll_into_view_if_needed()
        box = page.locator('[data-key="loss"] .plot').bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_selector("#tip:visible")
        assert "bert/seed-" in page.locator("#tip").inner_text()
        assert "step" in page.locator("#tip").inner_text()
        page.keyboard.down("Control")
        page.mouse.wheel(0, -300)
        page.keyboard.up("Control")
        until(page, lambda: 10 < domain(page)[0] < domain(page)[1] < 2000)
        page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        until(page, lambda: domain(page) == whole)
        page.mouse.move(0, 0)
        for name, kind in (("#logx", "x"), ("#logy", "y")):
            page.locator(name).check()
            plot = "document.querySelector('.chart[data-key=loss] .plot').vega"
            scale = f"{plot}?.scale('{kind}').type"
            until(page, lambda scale=scale: page.evaluate(scale) == "log")
        page.locator("select", has_text="hours").select_option("hours")
        hours = pytest.approx(2000 * 0.066 / 3600, rel=1e-3)
        until(page, lambda: domain(page)[1] == hours)
        assert "optim.lr" in page.locator("#differences").inner_text()


def test_a_chart_is_drawn_when_one_comes_near_it(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        page.wait_for_selector("#table tbody tr")
        choose(page, "bert/seed-1")
        last = page.locator(".chart").last
        assert last.locator("canvas").count() == 0
        last.scroll_into_view_if_needed()
        last.locator("canvas").wait_for()


def test_search_filter_group_and_sort(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        rows = page.locator("#table tbody tr")
        rows.first.wait_for()
        assert rows.count() == 10
        page.locator("#search").fill("bert/SEED lr=0.003")
        assert rows.count() == 1
        page.locator("#search").fill("nothing like it")
        assert page.locator("#table").inner_text() == "no run matches"
        page.locator("#search").fill("")
        page.locator("#kind").select_option("finetune")
        assert rows.count() == 6
        page.locator("#kind").select_option("")
        page.get_by_role("button", name="damaged 1").click()
        assert "odd" in rows.first.inner_text()
        assert "config.yaml is damaged" in rows.first.inner_text()
        assert rows.count() == 1
        page.get_by_role("button", name="damaged 1").click()
        page.locator("#group").select_option("family")
        assert "bert (3)" in page.locator("#table").inner_text()
        page.locator("#group").select_option("grids")
        assert "grid (5)" in page.locator("#table").inner_text()
        page.locator("#group").select_option("")
        page.locator("[data-column=best] button").click()
        assert "bert/seed" in rows.first.inner_text() or "live" in rows.first.inner_text()
        first = rows.first.inner_text()
        page.locator("[data-column=best] button").click()
        assert rows.first.inner_text() != first


def test_the_page_of_a_run_shows_text_as_text(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        page.get_by_role("link", name=HOSTILE).click()
        page.wait_for_selector("#run-rest")
        text = page.locator("#run").inner_text()
        assert "Confusion" in text
        assert text.count(HOSTILE) > 4
        samples = page.locator("details[data-name=samples-0]")
        assert samples.locator("td").all_inner_texts() == [HOSTILE, HOSTILE]  # it is open
        for summary in page.locator("summary").all():
            summary.click()
        page.get_by_role("link", name="all runs").click()
        page.locator("#table tbody tr").first.wait_for()
        page.get_by_role("link", name="bert/seed-2").click()
        page.wait_for_selector("#run-rest")
        guess = page.locator("details[data-name=samples-0] td").inner_text()
        assert guess == f"{HOSTILE} ✓ 0.8%"


@pytest.mark.parametrize(
    ("language", "title"), [("en", "Samples over the training"), ("zh", "训练过程中的样本")]
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_samples_over_the_training(
    browser: Any, address: str, language: str, title: str, scheme: str
) -> None:
    with opened(browser, address, locale=language, color_scheme=scheme) as page:
        page.get_by_role("link", name="bert/seed-1").click()
        page.get_by_role("heading", name=title, exact=True).wait_for()
        samples = page.locator("details[data-name=samples-0]")
        assert "the secretary of the treasury will" in samples.locator("summary").inner_text()
        rows = samples.locator("tbody tr")
        assert rows.locator("th").all_inner_texts() == ["1,000", "2,000"]
        assert "treasury ✓" in rows.last.inner_text()
        page.locator("details[data-name=samples-1] summary").click()
        assert page.locator("details[data-name=samples-1] td").first.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_chinese_on_a_phone(browser: Any, address: str, scheme: str) -> None:
    phone = {"viewport": {"width": 380, "height": 760}, "locale": "zh-CN", "color_scheme": scheme}
    with opened(browser, address, **phone) as page:
        page.locator("#table tbody tr").first.wait_for()
        assert page.evaluate("document.documentElement.lang") == "zh-CN"
        assert "曲线" in page.locator("main").inner_text()
        color = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert color == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 28)")
        page.wait_for_selector(".chart canvas")
        assert page.locator(".chart").first.bounding_box()["width"] < 380
        page.locator("#language").click()
        assert "Curves" in page.locator("main").inner_text()


def test_the_board_as_files(browser: Any, root: Path, tmp_path: Path) -> None:
    index = write_board(Board(root), tmp_path / "site")[0]
    with opened(browser, index.as_uri()) as page:
        page.locator("#table tbody tr").first.wait_for()
        assert "saved page" in page.locator("#live").inner_text()
        choose(page, "bert/seed-1")
        until(page, lambda: domain(page) == [10, 2000])
        page.get_by_role("link", name="bert/seed-1").click()
        page.wait_for_selector("#run-rest")
