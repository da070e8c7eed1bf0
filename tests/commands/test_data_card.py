"""``plmctl prepare --card``: the card of a corpus."""

import hashlib
from pathlib import Path

import pytest
import yaml
from huggingface_hub import DatasetCard
from markdown_it import MarkdownIt

from plmctl.reporting.card import size_category
from tests.commands.conftest import Cli, corpus_text, pretrain_config, write

SCRIPT = "a`b<script>alert(1)</script>"


def card_of(cli: Cli, config: str, file: str, *options: str) -> DatasetCard:
    code, _, err = cli("prepare", config, "--card", file, *options)
    assert code == 0, err
    return DatasetCard.load(file)


def cell(card: DatasetCard, row: str) -> list[str]:
    """The cells of a row of a table, by its first cell."""
    (line,) = (line for line in card.text.splitlines() if line.startswith(f"| {row} |"))
    return line.strip("| ").split(" | ")[1:]


def test_the_card_of_a_text(cli: Cli) -> None:
    card = card_of(cli, "bert.yaml", "new/card.md", "--license", "cc-by-4.0", "--language", "en")
    assert card.data.to_dict() == {
        "pretty_name": "Text of text.txt",
        "language": ["en"],
        "license": "cc-by-4.0",
        "size_categories": ["n<1K"],
        "task_categories": ["text-generation", "fill-mask"],
        "tags": ["plmctl"],
    }
    content = Path("text.txt").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    assert cell(card, "text.txt") == [f"{len(content):,}", f"`{digest}`", "between blank lines"]
    counts = {key: cell(card, key) for key in ("documents", "words", "tokens", "bytes")}
    numbers = {key: [int(n.replace(",", "")) for n in both] for key, both in counts.items()}
    assert sum(numbers["documents"]) == 60
    assert numbers["documents"][0] > numbers["documents"][1] > 0
    assert sum(numbers["words"]) == len(content.split())
    assert "Validation: 10 % of the documents" in card.text
    assert "Duplicates were not looked for." in card.text
    assert "--license cc-by-4.0" in card.text
    block = card.text.split("```yaml\n")[1].split("```")[0]
    settings = yaml.safe_load(block)
    assert settings["data"]["train"] == ["text.txt"]
    write("again.yaml", {**pretrain_config("bert"), **settings})
    assert "exist already; nothing was built" in cli("prepare", "again.yaml")[2]


def test_validation_files_duplicates_and_names_that_are_markup(cli: Cli) -> None:
    Path("twice.txt").write_text(corpus_text() + "\n\n" + corpus_text(), encoding="utf-8")
    Path(f"{SCRIPT.replace('/', '')}.txt").write_text(corpus_text(20), encoding="utf-8")
    name = f"{SCRIPT.replace('/', '')}.txt"
    data = {"train": ["twice.txt"], "valid": [name], "duplicates": "drop"}
    write("twice.yaml", {**pretrain_config("bert"), "data": data})
    card = card_of(cli, "twice.yaml", "twice.md")
    assert card.data.license == "unknown"
    assert "Nobody has said under which terms" in card.text
    assert "came before: 60." in card.text
    assert cell(card, "documents") == ["60", "20"]
    assert int(cell(card, "words")[1].replace(",", "")) == len(corpus_text(20).split())
    assert "<script" not in MarkdownIt().enable("table").render(card.text)


def test_what_is_left_out_is_counted(cli: Cli) -> None:
    pages = (f"Home About\nPage {n} has words.\nThese are of page {n}." for n in range(40))
    Path("pages.txt").write_text("\n\n".join(pages), encoding="utf-8")
    data = {"train": ["pages.txt"], "valid": None, "repeated_lines": "drop"}
    write("pages.yaml", {**pretrain_config("bert"), "data": data})
    assert "more than 10 documents have them: 40" in card_of(cli, "pages.yaml", "pages.md").text
    pytest.importorskip("py3langid", reason="needs py3langid: pip install 'plmctl[documents]'")
    german = "Der Ausschuss traf sich am Dienstag und sprach über den Haushalt des Jahres."
    with Path("pages.txt").open("a", encoding="utf-8") as file:
        file.write(f"\n\n{german}")
    write("pages.yaml", {**pretrain_config("bert"), "data": {**data, "languages": ["en"]}})
    card = card_of(cli, "pages.yaml", "pages2.md").text
    assert "another language than en, as py3langid sees it: 1" in card


def test_a_mixture(cli: Cli) -> None:
    Path("upper.txt").write_text(corpus_text(30).upper(), encoding="utf-8")
    mixture = [
        {"name": "lower", "train": ["text.txt"], "weight": 1},
        {"name": "upper", "train": ["upper.txt"], "weight": 3},
    ]
    write("mixed.yaml", {**pretrain_config("bert"), "data": {"mixture": mixture, "valid": None}})
    card = card_of(cli, "mixed.yaml", "mixed.md", "--language", "en", "--language", "de")
    assert card.data.pretty_name == "lower, upper"
    assert card.data.language == ["en", "de"]
    assert cell(card, "upper")[:2] == ["3", "30"]
    assert cell(card, "documents")[0] == "90"
    assert "There is no validation text." in card.text


def test_what_is_refused_before_text_is_read(cli: Cli) -> None:
    Path("there.md").write_text("mine")
    for options, says in (
        (("--card", "there.md"), "there.md exists already"),
        (("--license", "mit"), "add --card"),
    ):
        code, _, err = cli("prepare", "bert.yaml", "data.store=none", *options)
        assert code == 2
        assert says in err
    assert Path("there.md").read_text() == "mine"
    assert not Path("none").exists()
    assert not Path("new.md").exists()


@pytest.mark.parametrize(
    ("documents", "name"),
    [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (10**6, "1M<n<10M"), (10**12, "n>1T")],
)
def test_the_names_of_sizes(documents: int, name: str) -> None:
    assert size_category(documents) == name


def test_chinese_news(cli: Cli, shared_data: Path) -> None:
    text = (shared_data / "corpora" / "zh_news" / "valid.txt").read_text(encoding="utf-8")
    Path("新闻.txt").write_text(text, encoding="utf-8")
    options = ("data.train=[新闻.txt]", "run=tok-zh", "vocab_size=3000")
    assert cli("train-tokenizer", "tok-bert.yaml", *options)[0] == 0
    fields = {"tokenizer": "tok-zh", "data": {"train": ["新闻.txt"], "valid": "5%"}}
    write("zh.yaml", pretrain_config("bert") | fields)
    card = card_of(cli, "zh.yaml", "zh.md", "--language", "zh")
    assert card.data.pretty_name == "Text of 新闻.txt"
    assert cell(card, "新闻.txt")[0] == f"{len(text.encode()):,}"
    assert "Chinese or Japanese" in card.text
