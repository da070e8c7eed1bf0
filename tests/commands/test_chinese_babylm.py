"""The suite of the Chinese BabyLM end to end, on own sentences in the official files."""

import json
import shutil
from pathlib import Path

import pytest

from tests.commands.conftest import Cli
from tests.commands.test_babylm import FAST, document, labelled, lines, pairs, short
from tests.commands.test_bad_input import refused
from tests.evaluation.models import make_folder

PARTS = "zhoblimp,xcomps_zh,hanzi_structure,hanzi_pinyin"


def about(rows: list[dict[str, str]], target: str) -> list[dict[str, str]]:
    """The rows as pairs about a character."""
    texts = ("sentence_good", "sentence_bad")
    return [row | {text: f"“{target}” {row[text]}" for text in texts} for row in rows]


def hanzi(root: Path, name: str, target: str = "river") -> None:
    mixed = [*pairs("a", 0, 3), *pairs("b", 3, 3), *pairs("a", 6, 3)]
    rows = [*about(mixed[:6], "bank"), *about(mixed[6:], target)]
    lines(root / name / f"{name}.jsonl", rows)


@pytest.fixture
def data(world: Path) -> Path:
    folder = world / "chinese"
    shutil.rmtree(folder, ignore_errors=True)
    full = folder / "full_eval"
    lines(full / "zhoblimp" / "BA_deletion.jsonl", pairs("BA_deletion", 0, 4))
    lines(full / "zhoblimp" / "BEI_deletion.jsonl", pairs("BEI_deletion", 5, 4))
    lines(full / "xcomps_zh" / "xcomps_zh.jsonl", pairs("xcomps_zh", 2, 5))
    for name in ("hanzi_structure", "hanzi_pinyin"):
        hanzi(full, name)
    for name in ("afqmc", "ocnli"):
        labelled(full / "clue", name, ("sentence1", "sentence2"), 2 + (name == "ocnli"))
    labelled(full / "clue", "tnews", ("sentence",), 3)
    labelled(full / "clue", "cluewsc2020", ("text", "span1_text", "span2_text"))
    for side, start in (("train", 0), ("valid", 40)):
        rows = [
            {
                "context": [short(n), short(n + 1)],
                "question": short(n + 2),
                "choice": [short(n + 3), short(n + 5), str(n)],
                "answer": short(n + 3 + 2 * (n % 2)),
            }
            for n in range(start, start + 24)
        ]
        lines(full / "clue" / f"c3.{side}.jsonl", rows)
    return folder


def scores_of(out: str) -> dict[str, float]:
    found = json.loads(out)
    return {one["name"]: one["value"] for one in (*found["columns"], *found["averages"])}


@pytest.mark.slow
def test_all_open_tasks(cli: Cli, pretrained: dict[str, Path], data: Path) -> None:
    """The hidden ones and the recordings of the brain are left out until they are there."""
    model = str(pretrained["gpt2"] / "model")
    command = ("suite", model, "chinese-babylm", "--data", str(data), "run=zh-1", *FAST, "--json")
    code, out, err = cli(*command)
    assert code == 0, err
    for name in ("hanzi_structure_hidden", "hanzi_pinyin_hidden", "diagnostic_nli"):
        assert f"{name} is left out, for its rows were hidden" in err
    assert "word_fmri, fmri: not scored here" in err
    lacking = "hanzi_structure_hidden, hanzi_pinyin_hidden, diagnostic_nli, word_fmri, fmri"
    assert f"the file for the leaderboard, without {lacking}" in err
    assert "no Overall: Diagnostic, Structure hid, Pinyin hid, word fMRI, fMRI missing" in err
    scores = scores_of(out)
    pinyin = document("zh-1/hanzi_pinyin", "eval/minimal_pairs.json")["results"]
    assert [(row["paradigm"], row["pairs"]) for row in pinyin["paradigms"]] == [("a", 6), ("b", 3)]
    assert pinyin["unknown_pairs"] == 0  # bytes
    seven = ("ZhoBLiMP", "XCOMPS", "AFQMC", "OCNLI", "TNEWS", "CLUEWSC", "C3")
    assert scores["NLU open"] == pytest.approx(sum(scores[name] for name in seven) / 7)
    assert scores["Hanzi open"] == pytest.approx((scores["Structure"] + scores["Pinyin"]) / 2)
    assert scores["OCNLI maj"] == pytest.approx(100 * 6 / 16)  # of labels 0, 1, 2, 0, 1 ...
    assert not {"NLU track", "Hanzi track", "Cog track", "Overall"} & scores.keys()
    submission = document("zh-1", "submission.json")
    assert list(submission) == [
        "zhoblimp", "xcomps_zh", "afqmc", "ocnli", "tnews", "cluewsc2020", "c3",
        "hanzi_structure", "hanzi_pinyin",
    ]  # fmt: skip
    errors = {one["name"]: one["se"] for one in json.loads(out)["columns"]}
    assert errors["C3"] > 0
    assert submission["c3"] == {"accuracy": pytest.approx(scores["C3"] / 100)}

    hanzi(data / "full_eval", "hanzi_structure_hidden")
    hanzi(data / "full_eval", "hanzi_pinyin_hidden")
    labelled(data / "full_eval" / "clue", "diagnostic_nli", ("sentence1", "sentence2"), 3)
    official = {"word_fmri": {"mean": 0.56}, "fmri": {"mean": 0.1}, "zhoblimp": {"accuracy": 0.9}}
    (data / "cogbench.json").write_text(json.dumps(official), encoding="utf-8")
    code, out, err = cli(*command)
    assert code == 0, err
    assert "left out" not in err
    assert "the file for the leaderboard\n" in err
    scores = scores_of(out)
    assert scores["Cog track"] == pytest.approx(33)
    tracks = (scores["NLU track"], scores["Hanzi track"], scores["Cog track"])
    assert scores["Overall"] == pytest.approx(sum(tracks) / 3)
    submission = document("zh-1", "submission.json")
    assert len(submission) == 14
    assert submission["word_fmri"] == {"mean": 0.56}


def test_characters_that_the_tokenizer_does_not_know(
    cli: Cli, pretrained: dict[str, Path], data: Path
) -> None:
    hanzi(data / "full_eval", "hanzi_structure", "木")
    model = str(pretrained["bert"] / "model")
    command = ("suite", model, "chinese-babylm", "--data", str(data), "compute.device=cpu")
    code, _, err = cli(*command, "run=zh-2", "--tasks", "hanzi_structure")
    assert code == 0, err
    results = document("zh-2/hanzi_structure", "eval/minimal_pairs.json")["results"]
    assert results["unknown_pairs"] == 3
    assert "hanzi_structure: 3 pairs are wrong because the tokenizer lacks a character" in err
    of_a = results["paradigms"][0]
    assert of_a["accuracy"] <= 0.5  # three of its six
    assert results["accuracy/macro"] == pytest.approx(
        sum(row["accuracy"] for row in results["paradigms"]) / 2
    )


def test_the_sets_of_before_june(cli: Cli, pretrained: dict[str, Path], data: Path) -> None:
    hanzi(data / "full_eval", "hanzi_structure", "艹")
    model = str(pretrained["gpt2"] / "model")
    command = ("suite", model, "chinese-babylm", "--data", str(data), "compute.device=cpu")
    found = cli(*command, "run=zh-3", "--tasks", PARTS)
    refused(found, 3, "which has “艹”, is of an earlier set", "--force-download")
    assert not Path("zh-3").exists()
    old = "hanzi_structure_old,hanzi_pinyin_old"
    code, out, err = cli(*command, "run=zh-3", "--tasks", old, "--json")
    assert code == 0, err
    assert scores_of(out).keys() == {"Structure old", "Pinyin old"}
    assert not Path("zh-3", "submission.json").exists()


def test_what_is_missing_or_of_another_form(
    cli: Cli, pretrained: dict[str, Path], data: Path
) -> None:
    model = str(pretrained["gpt2"] / "model")
    command = ("suite", model, "chinese-babylm", "--data", str(data), "run=zh-4", *FAST)
    (data / "full_eval" / "xcomps_zh" / "xcomps_zh.jsonl").unlink()
    (data / "full_eval" / "clue" / "c3.valid.jsonl").unlink()
    refused(
        cli(*command), 3, "nothing was scored", "fpadovani/xcomps-dataset", "licence",
        "full_eval/clue/c3.valid.jsonl", "clue/clue, config c3",
    )  # fmt: skip
    asked = cli(*command, "--tasks", "hanzi_pinyin_hidden,diagnostic_nli")
    refused(asked, 3, "full_eval/hanzi_pinyin_hidden/*.jsonl", "chinese-babylm-pipeline-final")
    (data / "cogbench.json").write_text('{"word_fmri": {"accuracy": 0.5}}', encoding="utf-8")
    refused(cli(*command, "--tasks", "zhoblimp"), 3, "no word_fmri.mean from 0 to 1")


def test_a_family_that_writes_has_the_pairs_alone(cli: Cli, data: Path, tmp_path: Path) -> None:
    model = str(make_folder(tmp_path, "t5"))
    command = ("suite", model, "chinese-babylm", "--data", str(data), "run=zh-5")
    code, out, err = cli(*command, "compute.device=cpu", "--json")
    assert code == 0, err
    assert "no recipe of afqmc, ocnli, tnews, cluewsc2020, c3, diagnostic_nli for t5" in err
    assert {"ZhoBLiMP", "XCOMPS", "Structure", "Pinyin"} < scores_of(out).keys()
