"""The page of ``plmctl try`` in a browser without a window, in English and Chinese."""

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.commands.test_try import HOSTILE, serving, tuned  # noqa: F401  # a fixture
from tests.reporting.test_board_page import CHROMIUM, browser, opened, until  # noqa: F401

pytestmark = [
    pytest.mark.sweep,
    pytest.mark.skipif(find_spec("playwright") is None, reason="playwright is not installed"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]
PHONE = {"viewport": {"width": 390, "height": 760}, "locale": "zh-CN"}


def answered(page: Any) -> str:
    """Press the button, and what the page shows when all models have answered."""
    page.locator(".ask").click()
    until(page, lambda: page.locator(".answers .panel").count() > 0)
    until(page, lambda: page.locator(".working").count() == 0)
    return str(page.locator(".answers").inner_text())


def test_masks_and_words(browser: Any, pretrained: dict[str, Path]) -> None:  # noqa: F811
    with serving(pretrained["bert"].name) as server, opened(browser, server.url) as page:
        page.locator(".ask").wait_for()
        assert answered(page) == "Write a text first."
        page.locator("textarea").fill(f"Anna {HOSTILE}")
        assert answered(page) == "There is no [MASK] in the text. Put [MASK] where a word is to be filled in."  # noqa: E501 # fmt: skip
        page.locator("#insert").click()
        page.keyboard.type(" Bela")
        assert page.locator("textarea").input_value() == f"Anna {HOSTILE}[MASK] Bela"
        shown = answered(page)
        assert f"Anna {HOSTILE}" in shown
        assert page.locator(".bars li").count() == 8
        page.locator(".examples button").first.click()
        until(page, lambda: "The right answer:" in page.locator(".answers").inner_text())
        page.locator("[data-way=neighbours]").click()
        page.locator("input").first.fill("garden")
        assert "the nearest uses" in answered(page)
        assert page.locator("td mark").count() == 8
        page.locator("#language").click()
        page.locator("input").first.fill("xyzzy")
        assert "个句子里都没有 'xyzzy'" in answered(page)


def test_two_models_on_a_phone_in_chinese(
    browser: Any,  # noqa: F811
    pretrained: dict[str, Path],
) -> None:
    runs = [pretrained[name].name for name in ("gpt2", "bert")]
    with serving(*runs) as server, opened(browser, server.url, **PHONE) as page:
        page.locator("[data-way=continue]").click()
        assert page.evaluate("document.documentElement.lang") == "zh-CN"
        page.locator("textarea").fill("Anna")
        shown = answered(page)
        assert "这个模型做不到。" in shown
        assert "个 token · " in shown
        first = page.locator(".made").inner_text()
        page.locator("#again").click()
        until(page, lambda: page.locator(".made").inner_text() not in ("", first))
        page.locator("[name=max_new_tokens]").fill("300")
        page.locator(".ask").click()
        until(page, lambda: bool(page.locator(".made").inner_text()))
        page.locator("#stop").click()
        until(page, lambda: "已停止" in page.locator(".answers").inner_text())


@pytest.mark.parametrize(
    ("run", "seen"),
    [("classes", ".bars li"), ("tags", ".answer"), ("qa", ".answer.big")],
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_finetuned_models(
    browser: Any,  # noqa: F811
    tuned: Path,  # noqa: F811
    run: str,
    seen: str,
    scheme: str,
) -> None:
    with serving(run) as server, opened(browser, server.url, color_scheme=scheme) as page:
        page.locator(".examples button").first.click()
        until(page, lambda: "The right answer:" in page.locator(".answers").inner_text())
        assert page.locator(seen).count()
        page.locator("textarea").first.fill(HOSTILE)
        assert "The right answer:" not in answered(page)
        page.locator("summary").click()
        assert f"plmctl predict {run}" in page.locator(".command").inner_text()


def test_labels_are_text(browser: Any, tuned: Path) -> None:  # noqa: F811
    shutil.copytree("classes/model", "labels")
    for name in ("task.json", "config.json"):
        path = Path("labels") / name
        text = path.read_text().replace('"False"', f'"{HOSTILE}"')
        path.write_text(text)
    with serving("labels") as server, opened(browser, server.url) as page:
        page.locator("textarea").fill(HOSTILE)
        assert HOSTILE in answered(page)


def test_a_server_that_has_ended(browser: Any, pretrained: dict[str, Path]) -> None:  # noqa: F811
    with serving(pretrained["bert"].name) as server:
        page = browser.new_page()
        page.goto(server.url)
        page.locator("textarea").fill("Anna [MASK]")
        page.route("**/api/answer", lambda route: route.abort())
        assert answered(page) == "No answer: is plmctl try still running?"
        page.close()
