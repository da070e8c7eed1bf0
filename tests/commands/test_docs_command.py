"""``plmctl docs``: pages by name, as messages and links have them."""

from pathlib import Path

import pytest

from plmctl.config.load import shipped_folder
from tests.commands.conftest import Cli

DOCS = Path(__file__).parents[2] / "docs"


def test_the_pages_are_those_of_the_checkout(cli: Cli) -> None:
    assert shipped_folder("docs") == DOCS
    code, out, _ = cli("docs")
    assert code == 0
    assert "tasks/tagging" in out
    assert "Is a network worth it?" in out
    assert "zh/" not in out
    assert "序列标注" in cli("docs", "--zh")[1]


@pytest.mark.parametrize("name", ["worth-it", "docs/worth-it.md", "worth-it.md"])
def test_a_page_is_printed_as_it_is_written(cli: Cli, name: str) -> None:
    assert cli("docs", name) == (0, (DOCS / "worth-it.md").read_text("utf-8"), "")
    assert cli("docs", name, "--zh")[1] == (DOCS / "zh/worth-it.md").read_text("utf-8")


def test_a_part_of_a_page(cli: Cli) -> None:
    code, out, _ = cli("docs", "tasks/tagging#lemmas")
    assert (code, out.splitlines()[0]) == (0, "## Lemmas")


@pytest.mark.parametrize(
    ("page", "hint"), [("worthit", "'worth-it'"), ("tasks/tagging#lemma", "'lemmas'")]
)
def test_a_wrong_name_gets_the_nearest(cli: Cli, page: str, hint: str) -> None:
    code, _, err = cli("docs", page)
    assert code == 2
    assert f"did you mean {hint}?" in err
