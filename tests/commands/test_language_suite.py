"""The suites `ud` and `language` end to end on a tiny model and made-up files."""

import json
from pathlib import Path

import pytest

from plmctl.commands.evaluate_suite import in_language
from plmctl.errors import ConfigError
from plmctl.suites.base import get_suite
from tests.commands.conftest import NAMES, PLACES, Cli, sentence
from tests.commands.test_bad_input import refused

QUICK = ("train.epochs=2", "train.max_length=32", "optim.lr=3e-3", "compute.device=cpu")


def treebank(count: int, first: int) -> str:
    """Sentences with a tree each: the verb is the root, and everything hangs on it."""
    blocks = []
    for number in range(first, first + count):
        words = sentence(number).removesuffix(".").split() + ["."]
        lines = [f"# text = {' '.join(words)}", f"1-2\t{words[0]}{words[1]}" + "\t_" * 8]
        for place, word in enumerate(words, 1):
            tag = "PROPN" if word in NAMES else "NOUN" if word in PLACES else "X"
            head, relation = ("0", "root") if place == 2 else ("2", "dep:x" if place > 3 else "obj")
            lines.append(
                "\t".join([str(place), word, "_", tag, "_", "_", head, relation, "_", "_"])
            )
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n\n"


@pytest.fixture
def data(world: Path) -> Path:
    folder = world / "UD_Welsh-CCG"
    folder.mkdir(exist_ok=True)
    for name, count, first in (("train", 40, 0), ("dev", 10, 40), ("test", 12, 50)):
        path = folder / f"cy_ccg-ud-{name}.conllu"
        path.write_text(treebank(count, first), encoding="utf-8")
    return folder


def test_a_treebank_beside_published_results(
    cli: Cli, pretrained: dict[str, Path], data: Path
) -> None:
    model = str(pretrained["bert"] / "model")
    command = ("suite", model, "ud", "--data", str(data), "run=ud-1", *QUICK)
    code, out, err = cli(*command, "--json")
    assert code == 0, err
    assert "published results for cy are on UD_Welsh-CCG" in err
    document = json.loads(out)
    names = ["UPOS", "UAS", "LAS", "CLAS", "UPOS dev", "LAS dev"]
    assert [column["name"] for column in document["columns"]] == names
    las = next(column for column in document["columns"] if column["name"] == "LAS")
    saved = json.loads(Path("ud-1/parsing/seeds/seed=42/eval/test.json").read_text())
    assert las["value"] == 100 * saved["results"]["las"]
    assert las["low"] <= las["value"] <= las["high"]
    assert saved["results"]["words"] == 12 * 10
    figures = {row["model"]: row["figures"] for row in document["published"]}
    assert figures["mBERT"] == {"LAS": 80.8, "AllTags": 87.2}
    mmbert = {"LAS": 83.2, "UPOS": 96.8, "UAS": 88.7, "AllTags": 88.7, "Lemmas": 94.6}
    assert figures["mmBERT"] == mmbert

    code, out, err = cli(*command, "--lang", "mt")
    assert code == 0, err
    assert "LAS dev" in out
    assert "mBERT" in out
    assert "78.2" in out
    assert "Gold words, punctuation counts" in err

    code, _, err = cli(*command, "--tasks", "lemmas")
    assert (code, "have no lemmas: all of 'lemma' are _" in err) == (1, True)
    for path in data.glob("*.conllu"):
        lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
        named = ["\t".join([*line[:2], line[1].lower(), *line[3:]]) for line in lines if line[1:]]
        blank = ["\t".join(line) if not line[1:] else named.pop(0) for line in lines]
        path.write_text("\n".join(blank) + "\n", encoding="utf-8")
    command = ("suite", model, "ud", "--data", str(data), "run=ud-2", *QUICK)
    code, out, err = cli(*command, "--tasks", "lemmas,alltags", "--json")
    assert code == 0, err
    columns = {column["name"]: column["value"] for column in json.loads(out)["columns"]}
    assert list(columns) == ["AllTags", "Lemmas", "AllTags dev", "Lemmas dev"]
    assert columns["Lemmas"] > 90


def test_a_missing_file_says_where_it_is_from(
    cli: Cli, pretrained: dict[str, Path], data: Path
) -> None:
    model = str(pretrained["bert"] / "model")
    Path("empty").mkdir(exist_ok=True)
    for suite in ("ud", "language"):
        missing = cli("suite", model, suite, "--data", "empty", *QUICK)
        refused(missing, 3, "train.conllu", "universaldependencies.org", "CC BY-SA")
    refused(cli("suite", model, "glue", "--lang", "cy"), 2, "glue is of one language")

    flat = Path("flat")
    flat.mkdir(exist_ok=True)
    for name in ("train", "dev"):
        text = "".join(
            line if line[:1] in "#\n" else "\t".join([*line.split("\t")[:6], "_\t_\t_\t_\n"])
            for line in (data / f"cy_ccg-ud-{name}.conllu").read_text().splitlines(True)
        )
        (flat / f"{name}.conllu").write_text(text, encoding="utf-8")
    command = ("suite", model, "ud", "--data", "flat", "run=ud-flat", "--tasks", "parsing", *QUICK)
    code, _, err = cli(*command)
    assert code != 0
    assert "the head '_' of word 1" in err
    assert "can be tagged (task.name=tagging)" in err


def test_the_parts_that_have_files(cli: Cli, pretrained: dict[str, Path], data: Path) -> None:
    model = str(pretrained["bert"] / "model")
    folder = Path("sw")
    (folder / "text").mkdir(parents=True, exist_ok=True)
    lines = "\n\n".join(sentence(number) for number in range(300, 320)) + "\n"
    (folder / "text" / "a.txt").write_text(lines, encoding="utf-8")
    (folder / "sib200").mkdir(exist_ok=True)
    for name, count in (("train", 24), ("dev", 8), ("test", 9)):
        rows = [f"{n}\t{'travel' if n % 2 else 'health'}\t{sentence(n)}" for n in range(count)]
        text = "\n".join(["index_id\tcategory\ttext", *rows]) + "\n"
        (folder / "sib200" / f"{name}.tsv").write_text(text, encoding="utf-8")
    command = ("suite", model, "language", "--data", "sw", "run=sw-1", "--lang", "sw", *QUICK)
    code, out, err = cli(*command, "--json")
    assert code == 0, err
    document = json.loads(out)
    assert [column["name"] for column in document["columns"]] == ["bits/byte", "Topics"]
    assert document["columns"][0]["se"] > 0
    for word in ("left out: multiblimp", "left out: upos", "CC BY-NC 4.0", "unimelb-nlp/wikiann"):
        assert word in err, err
    assert {row["model"] for row in document["published"]} >= {"mBERT", "AfroXLM-R"}
    code, out, err = cli(*command)
    assert "bits/byte" in out


def test_whose_published_results_are_shown(data: Path) -> None:
    suite = get_suite("language")
    assert in_language(suite, None, None).published == ()
    assert in_language(suite, None, str(data)).published == suite.in_language("cy").published
    assert in_language(suite, "xx", str(data)).published == ()
    with pytest.raises(ConfigError, match="of one language"):
        in_language(get_suite("glue"), "cy", None)


def test_every_row_of_a_table_has_its_models() -> None:
    for name in ("ud", "language"):
        suite = get_suite(name)
        for code in suite.languages:
            trees = "UD_" in suite.languages[code]
            assert bool(suite.in_language(code).published) == (trees or name == "language"), code
        for table in suite.tables:
            assert set(table.scores) <= set(suite.languages)
            for scores in table.scores.values():
                assert len(scores) == len(table.models)
                assert all(score is None or 0 < score <= 100 for score in scores)
