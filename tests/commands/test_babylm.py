"""The suites of BabyLM end to end: official files, the table, the leaderboard's file."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from plmctl.commands import export
from plmctl.commands.export import SavedCheckpoint, branch_names
from plmctl.commands.suite_parts import checkpoints_of
from plmctl.suites.base import get_suite
from plmctl.suites.leaderboards import FAST as FAST_NAMES
from tests.commands.conftest import Cli, sentence
from tests.commands.test_bad_input import refused
from tests.evaluation.models import make_folder
from tests.evaluation.test_age_of_acquisition import cdi
from tests.evaluation.test_reading_times import reading_rows, table

FAST = ("train.epochs=1", "train.max_length=32", "train.batch_size=32", "compute.device=cpu")


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


def short(number: int) -> str:
    return " ".join(sentence(number).split()[:3])


def pairs(name: str, start: int, count: int, **columns: str) -> list[dict[str, str]]:
    return [
        {
            "sentence_good": sentence(number),
            "sentence_bad": " ".join(sentence(number).split()[::-1]),
            "UID": name,
            **columns,
        }
        for number in range(start, start + count)
    ]


def zero_shot(root: Path) -> None:
    """Own sentences in the official files of 2025."""
    terms = ("binding", "s-selection", "argument_structure")
    for number, term in enumerate(terms):
        name = f"paradigm_{number}"
        rows = pairs(name, 10 * number, 6, linguistics_term=term, field="syntax")
        lines(root / "blimp_filtered" / f"{name}.jsonl", rows)
    for name in ("hypernym", "turn_taking"):
        rows = [
            {key: value for key, value in row.items() if key != "UID"} for row in pairs(name, 3, 4)
        ]
        lines(root / "supplement_filtered" / f"{name}.jsonl", rows)
    for domain in ("social-relations", "spatial-relations"):
        rows = []
        for number in range(4):
            one, two, three, four = (short(4 * number + n) for n in range(4))
            for texts in ((one, two, three, four), (two, one, four, three)):
                keys = ("Context1", "Context2", "Target1", "Target2")
                rows.append({"Domain": domain, **dict(zip(keys, texts, strict=True))})
        lines(root / "ewok_filtered" / f"{domain}.jsonl", rows)
    for name in (
        "comps_base",
        "comps_wugs",
        "comps_wugs_dist-before",
        "comps_wugs_dist-in-between",
    ):
        rows = [
            {
                "prefix_acceptable": short(n),
                "prefix_unacceptable": short(n + 1),
                "property_phrase": "sees it.",
            }
            for n in range(4)
        ]
        lines(root / "comps" / f"{name}.jsonl", rows)
    for split in ("regular", "ambiref"):
        rows = [
            {
                "input_prefix": f"{short(n)} in",
                "options": [f" {short(n + k)}" for k in (0, 5)] + [" nothing."] * (n == 3),
                "numops": n // 2,
            }
            for n in range(5)
        ]
        lines(root / "entity_tracking" / f"{split}.jsonl", rows)
    for name, count in (("parallel", 4), ("nonparallel", 2)):
        rows = [
            {
                "prompt": f"{short(n)} in",
                **{f"solution{k}": short(n + k + 1) for k in range(count)},
                "label": n % count,
                "example_id": f"{name}_{n}",
            }
            for n in range(5)
        ]
        lines(root / f"global_piqa_{name}" / "eng_latn.jsonl", rows)
    (root / "reading").mkdir(exist_ok=True)
    table(root / "reading" / "reading_data.csv", reading_rows(6))


def labelled(root: Path, name: str, columns: tuple[str, ...], labels: int = 2) -> None:
    """TASK.train and TASK.valid of the official folder."""
    for side, start, count in (("train", 0, 32), ("valid", 64, 16)):
        rows = [
            {
                **{column: short(number + n) for n, column in enumerate(columns)},
                "label": number % labels,
            }
            for number in range(start, start + count)
        ]
        lines(root / f"{name}.{side}.jsonl", rows)


@pytest.fixture
def data(world: Path) -> Path:
    folder = world / "evaluation_data"
    shutil.rmtree(folder, ignore_errors=True)
    zero_shot(folder / "full_eval")
    glue = folder / "full_eval" / "glue_filtered"
    labelled(glue, "wsc", ("text", "span1_text", "span2_text"))
    labelled(glue, "mnli", ("premise", "hypothesis"), 3)
    return folder


def fast_sets(data: Path) -> None:
    zero_shot(data / "fast_eval")
    for name in ("blimp_filtered", "supplement_filtered", "ewok_filtered", "entity_tracking"):
        folder = data / "fast_eval" / name
        folder.rename(folder.with_name(f"{name.removesuffix('_filtered')}_fast"))


def document(run: str, name: str) -> dict[str, Any]:
    return json.loads(Path(run, name).read_text(encoding="utf-8"))


def test_the_parts_without_finetuning(cli: Cli, pretrained: dict[str, Path], data: Path) -> None:
    model = str(pretrained["bert"] / "model")
    parts = (
        "blimp,supplement,ewok,comps,entity_tracking,global_piqa_parallel,global_piqa_nonparallel,"
        "reading"
    )
    command = ("suite", model, "babylm", "--data", str(data), "run=babylm-1")
    code, out, err = cli(*command, "--tasks", parts, "compute.device=cpu", "--json")
    assert code == 0, err
    found = json.loads(out)
    scores = {column["name"]: column["value"] for column in found["columns"]}
    assert list(scores) == [
        "BLiMP", "Supplement", "EWoK", "EWoK targets", "COMPS", "Entity", "PIQA parallel",
        "PIQA other", "Reading", "Eye tracking", "Self-paced",
    ]  # fmt: skip
    blimp = document("babylm-1/blimp", "eval/minimal_pairs.json")["results"]
    means = [row["accuracy"] for row in blimp["paradigms"]]
    assert len(means) == 3
    assert scores["BLiMP"] == pytest.approx(100 * sum(means) / 3)
    of_group = (means[0] + (means[1] + means[2]) / 2) / 2  # two names of one phenomenon
    assert blimp["accuracy/linguistics_term"] == pytest.approx(of_group)
    entity = document("babylm-1/entity_tracking", "eval/ranked_completions.json")["results"]
    assert (entity["items"], entity["left_out"]) == (8, 2)
    assert "2 items are left out, which have 'nothing'" in err
    assert [(one["name"], one["missing"]) for one in found["incomplete"]] == [
        ("NLP", ["GLUE"]), ("Human-like", ["AoA"]), ("Overall", ["GLUE", "AoA"]),
    ]  # fmt: skip
    submission = document("babylm-1", "submission.json")
    assert list(submission) == [
        "blimp", "blimp_supplement", "ewok", "comps", "entity_tracking_filtered",
        "global_piqa_parallel", "global_piqa_nonparallel", "reading",
    ]  # fmt: skip
    reading = submission["reading"]["reading"]["predictions"]
    assert (reading[0]["id"], reading[0]["prev_pred"]) == (0, None)
    assert set(reading[1]) == {"id", "pred", "prev_pred"}
    piqa = submission["global_piqa_parallel"]
    assert list(piqa) == [f"parallel_{n}" for n in range(5)]
    right = [
        of["predictions"][0]["pred"] == short(n + n % 4 + 1) for n, of in enumerate(piqa.values())
    ]
    assert scores["PIQA parallel"] == pytest.approx(100 * sum(right) / 5)
    contexts = submission["ewok"]["social-relations"]["predictions"]
    assert contexts[0]["pred"] in (f"{short(0)} {short(2)}", f"{short(1)} {short(2)}")
    assert list(submission["blimp_supplement"]) == ["hypernym", "turn_taking"]
    assert list(submission["comps"]) == ["base", "wugs", "wugs_dist_before", "wugs_dist_in_between"]
    assert list(submission["entity_tracking_filtered"]) == [
        "ambiref_0_ops", "ambiref_1_ops", "ambiref_2_ops",
        "regular_0_ops", "regular_1_ops", "regular_2_ops",
    ]  # fmt: skip
    first = submission["blimp"]["paradigm_0"]["predictions"]
    assert [item["id"] for item in first] == [f"paradigm_0_{n}" for n in range(6)]
    right = [item["pred"] == sentence(n) for n, item in enumerate(first)]
    assert sum(right) / 6 == means[0]

    # The same command again measures nothing; the table has the groups and the baselines.
    code, out, err = cli(*command, "--tasks", parts, "compute.device=cpu")
    assert code == 0
    assert "measuring" not in err
    assert "argument_structure" in out
    assert "Interaction 100M (dev): final README" in err
    assert "no NLP: GLUE missing; the leaderboard counts a missing part as 0" in err
    assert "blimp: 18 rows, but the official set has 59,875" in err
    assert "babylm-1/submission.json: the file for the leaderboard, without aoa, fast, mrpc" in err


@pytest.mark.slow
def test_the_parts_at_every_checkpoint(cli: Cli, world: Path, data: Path) -> None:
    fast_sets(data)
    cdi(data / "full_eval" / "aoa")
    run = ("pretrain", "gpt2.yaml", "run=series", "checkpoint.at=[1,2,3,4,5]", "checkpoint.keep=1")
    assert cli(*run)[0] == 0
    parts = ("--tasks", "aoa,fast,ewok", "compute.device=cpu")
    command = ("suite", "series", "babylm", "--data", str(data), "run=babylm-6", *parts)
    code, out, err = cli(*command, "--json")
    assert code == 0, err
    assert "lacks 19 of the 19 checkpoints that the leaderboard takes: chck_1M" in err
    found = json.loads(out)
    assert [row["checkpoint"] for row in found["tasks"]["fast"]["checkpoints"]] == [
        f"step-{n}" for n in range(1, 7)
    ]
    submission = document("babylm-6", "submission.json")
    assert list(submission) == ["ewok", "aoa_surprisals", "aoa", "fast_eval_results"]
    fast = submission["fast_eval_results"]
    assert {name: len(of) for name, of in fast.items()} == dict.fromkeys(FAST_NAMES, 6)
    assert list(fast["blimp"][0]) == ["paradigm_0", "paradigm_1", "paradigm_2"]
    assert list(fast["global_piqa_parallel"][0]) == ["global_piqa_parallel"]
    assert set(fast["reading"][5]) == {"spr", "rt"}
    of_last = document("babylm-6/fast", "eval/ranked_completions-4-step-000006.json")["results"]
    assert fast["entity_tracking_filtered"][5] == {
        row["paradigm"]: row["accuracy"] for row in of_last["paradigms"]
    }
    aoa = document("babylm-6/aoa", "eval/age_of_acquisition.json")["results"]
    assert submission["aoa"] == {"aoa": pytest.approx(aoa["age_of_acquisition"])}
    rows = submission["aoa_surprisals"]["results"]
    assert len(rows) == 6 * aoa["items"]
    assert set(rows[0]) == {
        "step", "word_count", "target_word", "context_id", "context", "surprisal",
    }  # fmt: skip
    words = [row["word_count"] for row in rows[:: aoa["items"]]]
    assert words == sorted(words)
    assert words[0] > 0

    code, out, err = cli(*command)
    assert code == 0
    assert "measuring" not in err  # what is measured is kept
    assert "fast, per cent" in out
    assert cli("report", "babylm-6/aoa", "babylm-6/fast", "--out", "babylm-6.html")[0] == 0
    assert "age_of_acquisition" in Path("babylm-6.html").read_text(encoding="utf-8")
    alone = ("suite", "series", "babylm", "--data", str(data), "run=babylm-7")
    code, out, err = cli(*alone, "--tasks", "fast", "compute.device=cpu")
    assert code == 0
    assert "fast, per cent" in out
    assert list(document("babylm-7", "submission.json")) == ["fast_eval_results"]


def test_a_model_without_checkpoints(
    cli: Cli, pretrained: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    shutil.copytree(pretrained["gpt2"] / "model", tmp_path / "bare")
    bare = ("suite", str(tmp_path / "bare"), "babylm", "--data", str(data), "run=babylm-8")
    hint = "pretrain with checkpoint.at=babylm"
    refused(cli(*bare, "--tasks", "aoa"), 2, "needs the checkpoints of a run", hint)
    few = ("suite", str(pretrained["gpt2"]), "babylm", "--data", str(data), "run=babylm-8")
    refused(cli(*few, "--tasks", "fast"), 2, "which is too few", hint)
    for path in (data / "full_eval" / "comps").iterdir():
        path.unlink()
    refused(cli(*few), 3, "aoa is skipped", "fast is skipped", "full_eval/comps/*.jsonl")


def saved_at(*millions: float) -> list[SavedCheckpoint]:
    words = {step: round(million * 10**6) for step, million in enumerate(millions, 1)}
    named = branch_names(words)
    return [SavedCheckpoint(step, Path(), named[step], read) for step, read in words.items()]


def test_the_checkpoints_that_the_leaderboard_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "checkpoints").mkdir()
    small = [*range(1, 10), *range(10, 101, 10)]
    large = [*small, *range(200, 1001, 100)]

    def chosen(saved: list[SavedCheckpoint]) -> list[str] | str:
        monkeypatch.setattr(export, "saved_checkpoints", lambda folder: saved)
        of = checkpoints_of(str(tmp_path / "model"))
        return of if isinstance(of, str) else [one.name for one in of]

    names = [f"chck_{million}M" for million in small]
    assert chosen(saved_at(*sorted([*small, 11, 99.5]))) == names  # 11M and the end are not taken
    assert len(chosen(saved_at(*large))) == 28
    assert capsys.readouterr().err == ""
    assert chosen(saved_at(*small[3:])) == names[3:]
    assert (
        "lacks 3 of the 19 checkpoints that the leaderboard takes: chck_1M, chck_2M, chck_3M"
        in (capsys.readouterr().err)
    )
    unknown = [one._replace(words=None) for one in saved_at(*small)]
    assert "do not say how many words they have seen" in chosen(unknown)
    assert "has 3 checkpoints, which is too few" in chosen(saved_at(1, 2, 3))


def test_a_series_without_words_is_refused(cli: Cli, world: Path, data: Path) -> None:
    """Chinese words are counted by `prepare` only, unless the config has words in it."""
    text = "\n\n".join("他在银行工作。\n河的岸很长。" * 8 for _ in range(40))
    Path("zh.txt").write_text(text, encoding="utf-8")
    run = ("pretrain", "gpt2.yaml", "run=wordless", "data.train=[zh.txt]", "checkpoint.at=[2,4]")
    assert cli(*run)[0] == 0
    cdi(data / "full_eval" / "aoa")
    found = cli(
        *("eval", "babylm/aoa", "model=wordless", "run=wordless-aoa", "--at-checkpoints"),
        f"measures.0.data=[{data}/full_eval/aoa/cdi_*]",
    )
    refused(found, 2, "do not say how many words they have seen, which age_of_acquisition needs")
    suite = ("suite", "wordless", "babylm", "--data", str(data), "run=babylm-9", "--tasks", "aoa")
    refused(cli(*suite), 2, "do not say how many words they have seen", "checkpoint.at=babylm")


def test_the_rules_until_2025(cli: Cli, pretrained: dict[str, Path], data: Path) -> None:
    model = str(pretrained["gpt2"] / "model")
    code, out, err = cli(
        *("suite", model, "babylm-2025", "--data", str(data), "run=babylm-old", "--json"),
        *("--tasks", "blimp,ewok,entity_tracking", "compute.device=cpu"),
    )
    assert code == 0, err
    scores = [column["name"] for column in json.loads(out)["columns"]]
    assert scores == ["BLiMP", "BLiMP 12", "EWoK", "Entity"]
    submission = document("babylm-old", "submission.json")
    entity = submission["entity_tracking"].values()
    assert sum(len(of["predictions"]) for of in entity) == 10  # all rows
    first = submission["ewok"]["social-relations"]["predictions"][0]["pred"]
    assert first.strip() in (short(2), short(3))
    assert "official set" not in err


def test_finetuned_tasks_of_the_official_folder(
    cli: Cli, pretrained: dict[str, Path], data: Path
) -> None:
    mismatched = data / "full_eval" / "glue_filtered" / "mnli-mm.valid.jsonl"
    rows = [{"premise": short(n), "hypothesis": short(n + 9), "label": n % 3} for n in range(9)]
    lines(mismatched, rows)
    model = str(pretrained["gpt2"] / "model")
    command = ("suite", model, "babylm", "--data", str(data), "run=babylm-2", *FAST)
    code, out, err = cli(*command, "--tasks", "wsc,mnli", "--json")
    assert code == 0, err
    assert [column["name"] for column in json.loads(out)["columns"]] == [
        "MNLI", "MNLI-mm", "WSC",
    ]  # fmt: skip
    glue = document("babylm-2", "submission.json")["glue"]
    assert {name: len(of["predictions"]) for name, of in glue.items()} == {
        "mnli": 16, "mnli-mm": 9, "wsc": 16,
    }  # fmt: skip
    predicted = [item["pred"] for item in glue["wsc"]["predictions"]]
    accuracy = sum(label == n % 2 for n, label in enumerate(predicted)) / 16
    (wsc,) = [column for column in json.loads(out)["columns"] if column["name"] == "WSC"]
    assert wsc["value"] == pytest.approx(100 * accuracy)


def test_missing_files_are_named(cli: Cli, pretrained: dict[str, Path], data: Path) -> None:
    model = str(pretrained["bert"] / "model")
    for path in (data / "full_eval" / "ewok_filtered").iterdir():
        path.unlink()
    found = cli("suite", model, "babylm", "--data", str(data), "run=babylm-3")
    refused(
        found,
        3,
        "nothing was scored",
        "full_eval/ewok_filtered/*.jsonl",
        "dl_and_filter",
        "full_eval/glue_filtered/boolq.train.jsonl",
        "download_evals",
    )
    assert "cola" not in found[2]  # the newer folders do not have it
    assert not Path("babylm-3").exists()
    asked = ("suite", model, "babylm-fast", "--data", str(data), "run=babylm-3")
    refused(cli(*asked), 3, "fast_eval/blimp_fast/*.jsonl")
    refused(cli(*asked, "--tasks", "blmp"), 2, "did you mean 'blimp'")
    refused(cli(*asked, "--tasks", "blimp", "blimp.measures.0.variantt=x"), 2, "variantt")


def test_what_a_family_cannot_do(cli: Cli, data: Path, tmp_path: Path) -> None:
    model = str(make_folder(tmp_path, "elmo"))
    asked = ("suite", model, "babylm-fast", "--data", str(data), "compute.device=cpu")
    fast_sets(data)
    code, out, err = cli(*asked, "run=babylm-4", "--json")
    assert code == 0, err
    assert "ewok is skipped: ELMo's likelihood is of whole sentences" in err
    assert {column["task"] for column in json.loads(out)["columns"]} == {"blimp", "supplement"}
    refused(cli(*asked, "run=babylm-5", "--tasks", "ewok"), 2, "does not support elmo")


# --- The multilingual track ---


def test_the_multilingual_track(cli: Cli, pretrained: dict[str, Path], world: Path) -> None:
    """A miniature of each kind of file; what has no files is left out, with a line."""
    data = world / "multilingual"
    lines(data / "blimp_nl" / "anaphor.jsonl", pairs("anaphor", 0, 6))
    pair = [{"sen": sentence(n), "wrong_sen": sentence(n)[::-1]} for n in range(5)]
    text = "".join(f"{row['sen']}\t{row['wrong_sen']}\n" for row in pair)
    (data / "multiblimp" / "nld").mkdir(parents=True)
    (data / "multiblimp" / "nld" / "data.tsv").write_text(f"sen\twrong_sen\n{text}")
    worse = [
        {"acceptable_sent": sentence(n), "unacceptable_sent": sentence(n)[::-1]} for n in range(4)
    ]
    lines(data / "xcomps" / "comps_nl.jsonl", worse)
    choices = [
        {"prompt": short(n), "choices": [short(n + 1), short(n + 2)], "label": n % 2}
        for n in range(4)
    ]
    for name in ("Hellaswag", "WinoGrande", "StoryCloze"):
        lines(data / "mubench" / f"{name}Dataset_lighteval_nl.jsonl", choices)
    for number, split in enumerate(("train", "valid")):
        rows = [
            {"idx": n, "sentence": sentence(n), "label": "AB"[n % 2]}
            for n in range(number, 40, number + 1)
        ]
        lines(data / "nl" / "arc" / f"arc_nl.{split}.jsonl", rows)
        of_two = [
            {
                "idx": n,
                "premise": sentence(n),
                "hypothesis": short(n),
                "label": ("蕴含", "矛盾")[n % 2],
            }
            for n in range(number, 40, number + 1)
        ]
        lines(data / "zh" / "mnli" / f"mnli_zh.{split}.jsonl", of_two)
    model = str(pretrained["gpt2"] / "model")
    command = ("suite", model, "babylm-multilingual", "--data", str(data), "run=multilingual-1")
    code, out, err = cli(*command, *FAST, "--json")
    assert code == 0, err
    found = json.loads(out)
    scores = {column["name"]: column["value"] for column in found["columns"]}
    assert list(scores) == [
        "nl BLiMP-NL", "nl MultiBLiMP", "nl XCOMPS", "nl HellaSwag", "nl WinoGrande",
        "nl StoryCloze", "nl ARC", "zh MNLI",
    ]  # fmt: skip
    (average,) = found["averages"]
    assert average["name"] == "nl zero-shot"
    assert average["value"] == pytest.approx(sum(list(scores.values())[:6]) / 6)
    assert "zh/arc/arc_zh" in err
    assert "zhoblimp/*.jsonl" in err


@pytest.mark.parametrize(
    ("model", "averages"),
    [
        ("Strict-Small", {"en zero-shot": 53.98, "en finetuned": 30.32}),
        ("babylm-nld", {"nl zero-shot": 59.61, "nl finetuned": 32.96}),
        ("babylm-zho", {"zh zero-shot": 52.87, "zh finetuned": 29.24}),
        ("en_nld_zho_equal", {"nl zero-shot": 57.81, "zh finetuned": 27.23}),
    ],
)
def test_averages_are_those_of_the_organisers_table(model: str, averages: dict[str, float]) -> None:
    suite = get_suite("babylm_multilingual")
    (row,) = (one for one in suite.published if one.model == f"GPT-2 {model}")
    means = suite.means(row.scores)
    assert {name: means[name] for name in averages} == pytest.approx(averages, abs=0.006)
