"""``plmctl init``: what it says about a text, what it proposes, and that its files work."""

import json
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from string import Template

import pytest

from plmctl import registry
from plmctl.commands import init
from plmctl.config.load import configs_folder
from plmctl.config.units import Budget
from plmctl.corpus.gather import Corpus
from plmctl.corpus.profile import NearCopies, profile
from plmctl.corpus.source import resolve
from plmctl.errors import DataError
from plmctl.families.base import get_family
from plmctl.objectives.base import get_objective
from plmctl.run.configs import load
from tests.commands.conftest import Cli, corpus_text
from tests.corpus.test_profile import ENGLISH, KHMER, SWAHILI, language_text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- What it proposes, and the files ---


def proposal(cli: Cli, *arguments: str) -> dict:
    code, out, err = cli("init", *arguments, "--json", "--no-smoke")
    assert code == 0, err
    return json.loads(out)


def test_swahili(cli: Cli, folder: Path) -> None:
    (folder / "text").mkdir()
    (folder / "text" / "sw.txt").write_text(language_text(SWAHILI, " ", "."), encoding="utf-8")
    result = proposal(cli, "text", "--lang", "sw", "--budget", "200k tokens", "--out", "sw")
    assert result["settings"]["tokenizer"]["value"] == "wordpiece (bert)"
    assert "Swahili" in result["corpus"]["language"]
    config = load("pretrain", "sw/pretrain.yaml")
    assert config.model.family == "bert"
    assert config.optim.name == "muon"
    assert str(config.train.budget) == "200,000 tokens"
    assert config.data.train == ("text/sw.txt",)
    assert load("tokenizer", "sw/tokenizer.yaml").run == config.tokenizer
    assert load("finetune", "sw/finetune.yaml").model == f"{config.run}/model"
    assert load("eval", "sw/eval.yaml").model == f"{config.run}/model"
    assert all(len(line) <= 100 for line in Path("sw/pretrain.yaml").read_text().splitlines())


def test_a_script_without_spaces(cli: Cli, folder: Path) -> None:
    (folder / "km.txt").write_text(language_text(KHMER, "", " ។"), encoding="utf-8")
    result = proposal(cli, "km.txt", "--budget", "200k tokens")
    assert "Khmer" in result["corpus"]["language"]
    tokenizer = load("tokenizer", "km-bert/tokenizer.yaml")
    assert tokenizer.algorithm == "unigram"
    assert (tokenizer.lowercase, tokenizer.strip_accents) == (False, False)
    result = proposal(cli, "km.txt", "--budget", "200k tokens", "--family", "gpt2")
    assert result["settings"]["pattern"]["value"] == "marks"
    assert load("tokenizer", "km-gpt2/tokenizer.yaml").pattern == "marks"


def test_chinese(cli: Cli, folder: Path) -> None:
    draws = random.Random(3)
    characters = [chr(0x4E00 + n) for n in range(400)]
    sentences = ["".join(draws.choices(characters, k=20)) + "。" for _ in range(600)]
    text = "\n\n".join("".join(sentences[n : n + 4]) for n in range(0, 600, 4))
    (folder / "zh.txt").write_text(text, encoding="utf-8")
    result = proposal(cli, "zh.txt", "--lang", "zh-Hant", "--budget", "100k tokens")
    assert result["settings"]["tokenizer"]["value"] == "wordpiece (bert)"
    assert load("pretrain", "zh-bert/pretrain.yaml").data.sentences == "zh"


def from_text() -> list[str]:
    """The families that learn from text alone."""
    all_of_them = {name: get_family(name) for name in registry.names("families")}
    families = {name: one for name, one in all_of_them.items() if one.SIZES}
    objectives = {name: get_objective(one.OBJECTIVE) for name, one in families.items()}
    return [name for name, one in objectives.items() if "teacher" not in one.Config.model_fields]


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=() if name in ("gpt2", "t5") else pytest.mark.slow)
        for name in from_text()
    ],
)
def test_every_family_has_a_proposal(cli: Cli, folder: Path, family: str) -> None:
    (folder / "text.txt").write_text(corpus_text(), encoding="utf-8")
    result = proposal(
        cli, "text.txt", "--family", family, "--budget", "100k tokens", "--out", "new"
    )
    assert get_family(family).TITLE in result["settings"]["objective"]["because"]
    assert load("pretrain", "new/pretrain.yaml").model.family == family
    assert not re.search("[$&*]", Path("new/pretrain.yaml").read_text(encoding="utf-8"))


def test_every_place_of_a_template_can_have_a_value(folder: Path) -> None:
    """A line whose value is missing is left out, so that a wrong name would go unnoticed."""
    accents = "\n\n".join(f"Été à l'école\u200cx naïve किताबें {n} fois" for n in range(200))
    Path("text.csv").write_text(f"content\n{accents.replace(chr(10) * 2, chr(10))}\n", "utf-8")
    corpus = replace(Corpus.of(["text.csv"]), documents="line")
    looked = replace(
        profile(resolve(corpus.train), corpus.config),
        exact_text=0.1,
        near=NearCopies(0.1),
        repeated_lines=0.1,
        lines=1000,
    )
    budget = Budget.of("100k tokens", "--budget")
    chosen = init.propose(looked, corpus, budget, "albert")
    values = init._values(Path("new"), chosen, [])
    whole = replace(corpus, documents="auto")
    for family in ("bert", "gpt2"):
        values |= init._values(Path("new"), init.propose(looked, whole, budget, family), [])
    for template in (configs_folder() / "init").iterdir():
        names = set(Template(template.read_text(encoding="utf-8")).get_identifiers())
        of_libraries = {"words", "near_copies"}
        assert {name.removeprefix("why_") for name in names - set(values)} <= of_libraries, template


def test_files_named_after_held_out_text(cli: Cli, folder: Path) -> None:
    (folder / "text").mkdir()
    for name in ("train", "valid", "test"):
        (folder / "text" / f"{name}.txt").write_text(corpus_text(), encoding="utf-8")
    result = proposal(cli, "text", "--budget", "100k tokens", "--out", "new")
    data = load("pretrain", "new/pretrain.yaml").data
    assert data.train == ("text/train.txt",)
    assert data.valid == ("text/valid.txt",)
    (measure, *_) = load("eval", "new/eval.yaml").measures
    assert measure.model_dump()["data"] == ("text/valid.txt",)
    assert "text/test.txt" in result["notes"][-1]


def test_rows_for_finetuning(cli: Cli, folder: Path) -> None:
    (folder / "text.txt").write_text(corpus_text(), encoding="utf-8")
    for name in ("train", "dev"):
        rows = [{"sentence": f"{name} {n}", "label": n % 2} for n in range(4)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    proposal(cli, "text.txt", "--eval", "dev.jsonl", "--budget", "100k tokens", "--out", "new")
    config = load("finetune", "new/finetune.yaml")
    assert config.data.train == ("train.jsonl",)
    assert config.data.valid == ("dev.jsonl",)
    assert config.task.model_dump()["text"] == "sentence"


def test_lines_without_blank_lines_are_documents(cli: Cli, folder: Path) -> None:
    (folder / "lines.txt").write_text(corpus_text().replace("\n\n", "\n"), encoding="utf-8")
    proposal(cli, "lines.txt", "--budget", "100k tokens", "--out", "new")
    config = load("pretrain", "new/pretrain.yaml")
    assert config.data.documents == "line"
    assert config.objective.name == "mlm"  # no pairs of sentences


def test_another_column(cli: Cli, folder: Path) -> None:
    texts = corpus_text().split("\n\n")
    rows = [{"title": f"t{n}", "content": text} for n, text in enumerate(texts)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rows.jsonl").write_text(lines, encoding="utf-8")
    proposal(cli, "rows.jsonl", "--budget", "100k tokens", "--out", "new")
    assert load("pretrain", "new/pretrain.yaml").data.text == "content"
    assert [one.name for one in load("eval", "new/eval.yaml").measures] == ["bits_per_byte"]


def test_what_a_person_reads(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    (folder / "text.txt").write_text(corpus_text(), encoding="utf-8")
    code, out, err = cli("init", "text.txt", "--lang", "en", "--budget", "100k tokens")
    assert code == 0
    assert "because" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "plmctl pretrain text-bert/pretrain.yaml" in err
    assert err.count("plmctl docs worth-it") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("family", "words", "gap"), [("bert", KHMER, ""), ("gpt2", SWAHILI, " ")])
def test_the_smoke_test(
    cli: Cli,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    words: str,
    gap: str,
) -> None:
    monkeypatch.setattr(init, "_SMOKE_SECONDS", 15)
    (folder / "text.txt").write_text(language_text(words, gap, " ។", 400), encoding="utf-8")
    arguments = ("--family", family, "--budget", "100k tokens", "--out", "new", "--smoke")
    code, _, err = cli("init", "text.txt", *arguments)
    assert code == 0, err
    assert "all steps work" in err
    assert (folder / "new" / "smoke" / "pretrain" / "model" / "config.json").is_file()


# --- What is left out, and what is mixed ---


def test_examples_are_named_by_their_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of documents that were read from the middle of a file."""
    monkeypatch.setattr("plmctl.corpus.profile._PIECE", 1_000)
    khmer, english = language_text(KHMER, "", " ។", 20), "\n\n".join([ENGLISH.strip()] * 5)
    (folder / "text.txt").write_text(f"{khmer}\n\n{english}", encoding="utf-8")
    looked, corpus = init._look(Corpus.of(["text.txt"]), [])
    assert ":byte " in looked.main_scripts["Latin"].example
    _, notes = init.describe(looked, corpus, "km", "km")
    line = khmer.count("\n") + 3
    assert any(f"for example text.txt:{line}: if they" in note for note in notes), notes


def test_what_is_left_out_is_counted_and_said(cli: Cli, folder: Path) -> None:
    """Files of other kinds, files that cannot be read, and a validation file: all at once."""
    place = folder / "mix"
    (place / "sub").mkdir(parents=True)
    (place / "a.txt").write_text(f"{corpus_text()}\n\n{corpus_text()}", encoding="utf-8")
    for name in ("b.html", "sub/c.HTML", "d.pdf", "e.docx", "f.py", "g.json", "LICENSE", ".hidden"):
        (place / name).write_bytes(b"x")
    (place / "broken.jsonl").write_text('{"text": "one"}\n{"text": \n', encoding="utf-8")
    (place / "gbk.md").write_bytes("不是\n".encode("gb18030"))
    (place / "valid.txt").write_bytes(b"d\xe9j\xe0 vu\n")
    with open(os.fsencode(place) + b"/odd\xff.txt", "w") as file:
        file.write("A name of any bytes.")
    result = proposal(cli, "mix", "--budget", "100k tokens", "--out", "new")
    left_out = result["corpus"]["left out"]
    assert left_out.startswith("2 .html, ")
    for one in ("1 .pdf", "1 .docx", "1 .py", "1 .json", "1 without an ending", "not UTF-8"):
        assert one in left_out
    assert result["corpus"]["cannot be read"] == "3 files"
    notes = "\n".join(result["notes"])
    for one in ("broken.jsonl:2", "gbk.md:1", "valid.txt:1", "iconv", "plmctl text mix"):
        assert one in notes
    assert "plmctl reads .txt" in notes
    assert "not UTF-8" not in next(one for one in result["notes"] if "name them" in one)
    data = load("pretrain", "new/pretrain.yaml").data
    assert data.train == ("mix/a.txt",)
    assert data.valid == 0.1
    # Its text is there twice; and a short run validates on few samples.
    assert result["settings"]["duplicates"]["value"] == data.duplicates == "drop"
    assert load("pretrain", "new/pretrain.yaml").log.validate_samples == 100


def test_files_of_other_kinds_by_name(folder: Path) -> None:
    """A shell writes out `mix/*`; a pattern in quotes means the same."""
    (folder / "mix").mkdir()
    (folder / "mix" / "a.txt").write_text(corpus_text(), encoding="utf-8")
    (folder / "mix" / "b.pdf").write_bytes(b"x")
    for names in (["mix/a.txt", "mix/b.pdf"], ["mix/*"]):
        corpus = Corpus.of(names)
        assert (corpus.name, corpus.left_out, corpus.train) == ("mix", "1 .pdf", ("mix/a.txt",))
    with pytest.raises(DataError, match="no file of running text") as error:
        Corpus.of(["mix/b.pdf", "mix/b.pdf"])
    assert "`plmctl text FOLDER --out corpus.jsonl` reads .pdf" in str(error.value)


def test_what_plmctl_wrote_is_no_corpus(folder: Path) -> None:
    """`plmctl init .` twice, in the folder of the text."""
    Path("a.txt").write_text("one\n\ntwo\n", encoding="utf-8")
    for name in ("bert/tokenizer.yaml", "bert/pretrain.yaml", "bert/runs/metrics.jsonl"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("{}", encoding="utf-8")
    Path("loop").symlink_to(".")
    corpus = Corpus.of(["."])
    assert (corpus.name, corpus.train, dict(corpus.others)) == ("corpus", ("a.txt",), {})
    Path("loop").unlink()
    for number in range(20):
        Path(f"b{number}.txt").write_text("three\n\nfour\n", encoding="utf-8")
    assert Corpus.of(["."]).train == ("./**/*.txt",)
    Path("bert/note.txt").write_text("no corpus", encoding="utf-8")
    assert len(Corpus.of(["."]).train) == 21  # a pattern would match the note, too


def test_programs_are_read_if_they_are_named(folder: Path) -> None:
    (folder / "code").mkdir()
    for number in range(50):
        (folder / "code" / f"{number}.py").write_text("a = 1\n\nb = 2\n", encoding="utf-8")
    with pytest.raises(DataError, match="only 50 .py") as error:
        Corpus.of(["code"])
    assert "`plmctl init 'code/**/*.py'`" in str(error.value)
    corpus = Corpus.of(["code/**/*.py"])
    assert corpus.documents == "file"
    assert profile(resolve(corpus.train), corpus.config).documents == 50


def test_mixed_text_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By scripts and frequent words, where no library knows languages."""
    monkeypatch.setattr("plmctl.corpus.profile.find_spec", lambda name: None)
    khmer, swahili = (language_text(*args, 30) for args in ((KHMER, "", " ។"), (SWAHILI, " ", ".")))
    english = "\n\n".join([ENGLISH.strip()] * 10)
    for text, lang, note in (
        (f"{khmer}\n\n{english}\n\n{swahili}", "km", "of the letters are Khmer"),
        (f"{khmer}\n\n{english}", "km", "of the documents are mainly in Latin letters"),
        (f"{swahili}\n\n{english}", "sw", "of the documents look English, not Swahili"),
        (f"{swahili}\n\n{english}", None, "of the documents look English"),
        (f"{swahili}\n\n{english}", "en", "hardly have the most frequent words of English"),
        (swahili, "km", "is --lang right?"),
        (swahili, "sw", None),
        (khmer, "km", None),
        (english, "en", None),
    ):
        (folder / "text.txt").write_text(text, encoding="utf-8")
        looked, corpus = init._look(Corpus.of(["text.txt"]), [])
        _, notes = init.describe(looked, corpus, lang, lang)
        if note is None:
            assert not any("letters" in one or "English" in one for one in notes)
        else:
            assert any(note in one for one in notes), (note, notes)


def test_languages_of_documents_by_a_library(folder: Path) -> None:
    pytest.importorskip("py3langid", reason="needs py3langid: pip install 'plmctl[documents]'")
    english = "\n\n".join([ENGLISH.strip()] * 10)
    swahili = language_text(SWAHILI, " ", ".", 30)
    (folder / "text.txt").write_text(f"{swahili}\n\n{english}", encoding="utf-8")
    looked, corpus = init._look(Corpus.of(["text.txt"]), [])
    facts, notes = init.describe(looked, corpus, "sw", "sw")
    assert dict(facts)["documents by language"] == "Swahili 75.0%, English 25.0%"
    (note,) = (one for one in notes if "data.languages" in one)
    assert note.startswith("25% of the documents are not in Swahili but, for example, in English (")
    assert note.endswith("): data.languages: [sw] leaves them out")
    _, notes = init.describe(looked, corpus, "wo", "wo")  # the library does not know it
    assert not any("data.languages" in one for one in notes)


def test_menus_are_noticed(cli: Cli, folder: Path) -> None:
    pages = (f"Home About\nPage {n} has words of its own.\nLine {n}.\n" for n in range(40))
    (folder / "text.txt").write_text("\n".join(pages), encoding="utf-8")
    result = proposal(cli, "text.txt", "--budget", "100k tokens")
    assert load("pretrain", "text-bert/pretrain.yaml").data.repeated_lines == "drop"
    assert any("data.repeated_lines: drop" in note for note in result["notes"])


def test_chapters_with_blank_lines_between_paragraphs(cli: Cli, folder: Path) -> None:
    paragraphs = corpus_text().split("\n\n")
    (folder / "novel").mkdir()
    for number in range(10):
        chapter = "\n\n".join(p.replace("\n", " ") for p in paragraphs[number::10])
        (folder / f"novel/{number}.txt").write_text(chapter, encoding="utf-8")
    (note,) = (n for n in proposal(cli, "novel")["notes"] if "blank lines" in n)
    assert note.startswith("blank lines cut 10 files into ")
    assert "`documents: file`" in note


# --- What is refused ---


def test_empty_text_beside_other_files(cli: Cli, folder: Path) -> None:
    (folder / "mine").mkdir()
    for name in ("empty.txt", "a.html", "b.markdown", "c.po"):
        (folder / "mine" / name).touch()
    code, _, err = cli("init", "mine")
    assert code == DataError.exit_code
    assert "no text in the corpus" in err
    assert "`plmctl text mine --out corpus.jsonl` reads .html, .markdown" in err
    assert "convert .po files: `po2txt" in err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no text in the corpus"),
        (b" \n\n\n", "no text in the corpus"),
        (b"\x7fELF\x00\x01\x02" * 100, "a binary file, not text"),
        (b"d\xe9j\xe0 vu\n", "not UTF-8"),
        ("text".encode("utf-16"), "UTF-16"),
        (b"one line", "a single document"),
    ],
)
def test_no_text(cli: Cli, folder: Path, content: bytes, message: str) -> None:
    (folder / "bad.txt").write_bytes(content)
    code, _, err = cli("init", "bad.txt")
    assert code == DataError.exit_code
    assert message in err
    assert "Traceback" not in err
    assert not list(folder.glob("bad-*"))


def test_other_mistakes(cli: Cli, folder: Path) -> None:
    (folder / "text.txt").write_text(corpus_text(), encoding="utf-8")
    (folder / "full").mkdir()
    (folder / "full" / "mine.yaml").write_text("mine", encoding="utf-8")
    (folder / "empty").mkdir()
    for arguments, code, message in (
        (("text.txt", "--out", "full"), 2, "has files already"),
        (("text.txt", "--out", "text.txt"), 2, "a file of this name exists"),
        (("text.txt", "--family", "brt"), 2, "did you mean 'bert'"),
        (("text.txt", "--family", "distilbert"), 2, "learns from a larger model"),
        (("text.txt", "--budget", "soon"), 2, "soon"),
        (
            ("text.txt", "--budget", "1 tokens"),
            2,
            "no size of bert fits it: 1 tokens is less than one step",
        ),
        (("empty",), 3, "no files in this folder"),
        (("nowhere",), 3, "no such file"),
        (("nowhere", "neither"), 3, "2 files cannot be used"),
        (("text.txt", "--eval", "nowhere.jsonl"), 3, "no such file"),
    ):
        got, _, err = cli("init", *arguments)
        assert got == code, err
        assert message in err
    assert (folder / "full" / "mine.yaml").read_text(encoding="utf-8") == "mine"
    assert not (folder / "text-bert").exists()


def test_a_text_is_refused_without_torch() -> None:
    program = "import sys, plmctl.commands.init; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
