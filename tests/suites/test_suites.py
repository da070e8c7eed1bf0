"""The declared suites: recipes that load, and averages that give the papers' own."""

import math
from pathlib import Path

import pytest

from plmctl import registry
from plmctl.commands.evaluate_suite import (
    incomplete_averages,
    recipes_of,
    settings_of,
    tasks_of,
)
from plmctl.errors import ConfigError
from plmctl.families.base import get_family
from plmctl.run.configs import load
from plmctl.suites.base import Average, get_suite, suite_names
from plmctl.suites.leaderboards import submission

ROOT = Path(__file__).parents[2]
NAMES = suite_names()


def published(suite: str, model: str, split: str) -> dict[str, float]:
    (row,) = [r for r in get_suite(suite).published if (r.model, r.split) == (model, split)]
    return dict(row.scores)


def average(name: str) -> Average:
    return next(one for one in get_suite("glue").averages if one.name == name)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_suite_names_is_there(name: str) -> None:
    suite = get_suite(name)
    tasks = [one.name for one in (*suite.parts, *suite.tasks)]
    tasks += suite.reported.names if suite.reported else ()
    columns = [c.name for c in suite.columns]
    assert len(set(tasks)) == len(tasks)
    assert len(set(columns)) == len(columns)
    assert {column.task for column in suite.columns} == set(tasks) - {"fast"}  # its own table
    for column in suite.columns:
        also = next((task.also for task in suite.tasks if task.name == column.task), ())
        assert column.rows in ("dev", *also)
    for part in suite.parts:
        config = load("eval", ROOT / "configs/eval" / part.path, part.changes)
        assert len(config.measures) == 1 or part.at_checkpoints
        assert config.compute.precision == "fp32"
    known = set(columns)
    for one in suite.averages:
        assert {n for group in one.groups for n in group} <= known
        known.add(one.name)
    for row in suite.published:
        assert row.scores
        assert set(row.scores) <= known
        assert all(abs(value) <= 100 for value in row.scores.values())
        assert row.split in ("dev", "test")
        assert row.family in registry.names("families")


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_loads_with_its_family_s_changes(name: str) -> None:
    loaded = set()
    suite, families = get_suite(name), registry.names("families")
    answers = {kind for family in families for kind in get_family(family).ANSWERS}
    assert {recipe.by for recipe in suite.recipes} <= {*families, *answers}
    for family in families:
        for recipe in recipes_of(suite, family).values():
            if recipe not in loaded:
                load("finetune", ROOT / "configs/finetune" / recipe.path, recipe.changes)
                loaded.add(recipe)


@pytest.mark.parametrize(
    ("model", "mean"), [("BERT-base", 79.6), ("BERT-large", 82.1), ("GPT-1", 75.1)]
)
def test_the_mean_is_that_of_bert_s_paper(model: str, mean: float) -> None:
    found = average("BERT's mean").of(published("glue", model, "test"))
    assert found == pytest.approx(mean, abs=0.06)


def test_glue_s_mean_is_the_published_one_with_wnli() -> None:
    """T5's and BERT-tiny's published means have WNLI in them, with 69.2 and 62.3 there."""
    t5 = average("GLUE").of(published("glue", "T5-small", "test"))
    assert t5 is not None
    assert (8 * t5 + 69.2) / 9 == pytest.approx(77.4, abs=0.06)


@pytest.mark.parametrize(
    ("model", "glue", "macro"),
    [
        ("BabyLlama 10M 2024", 63.3, 60.8),
        ("LTG-BERT 10M 2024", 60.3, 57.7),
        ("BabyLlama 100M 2024", 69.0, 63.7),
        ("LTG-BERT 100M 2024", 68.4, 64.0),
    ],
)
def test_the_averages_of_babylm_are_the_published_ones(
    model: str, glue: float, macro: float
) -> None:
    averages = get_suite("babylm_2025").means(published("babylm_2025", model, "dev"))
    assert averages["GLUE 11"] == pytest.approx(glue, abs=0.051)
    assert averages["macro 2024"] == pytest.approx(macro, abs=0.1)  # of rounded scores


@pytest.mark.parametrize(
    ("model", "glue"),
    [
        ("GPT-2 100M", 67.75),
        ("Interaction 100M", 67.28),
        ("GPT-2 10M", 63.80),
        ("Interaction 10M", 63.62),
    ],
)
def test_glue_of_babylm_2026_is_the_published_one(model: str, glue: float) -> None:
    scores = published("babylm", model, "dev")
    means = get_suite("babylm").means(scores)
    assert means["GLUE"] == pytest.approx(glue, abs=0.006)
    parts = ("BLiMP", "Supplement", "EWoK", "Entity", "COMPS", "GlobalPIQA", "Reading", "AoA")
    if "AoA" not in scores:
        assert "Overall" not in means
        return
    whole = sum(scores[name] for name in parts) + means["GLUE"]
    assert means["Overall"] == pytest.approx(whole / 9)
    assert means["Human-like"] == pytest.approx((scores["Reading"] + scores["AoA"]) / 2)


def test_a_suite_extends_another() -> None:
    new, old, fast = (get_suite(name) for name in ("babylm", "babylm_2025", "babylm_fast"))
    assert [one.name for one in old.tasks] == [one.name for one in new.tasks]
    assert [one.path for one in old.parts] == [one.path for one in new.parts[:5]]
    assert old.parts[4].changes == ("measures.0.without=null",)
    assert old.recipes == new.recipes
    assert not fast.tasks
    assert {column.task for column in fast.columns} == {part.name for part in fast.parts}
    assert fast.parts[0].rows == new.parts[0].rows


def test_what_an_average_lacks_is_said() -> None:
    suite = get_suite("babylm")
    names = ("BLiMP", "Supplement", "EWoK", "Entity", "COMPS", "PIQA parallel", "PIQA other")
    columns = [{"name": name, "value": 70.0, "se": None} for name in names]
    lacking = {one["name"]: one for one in incomplete_averages(suite, columns)}
    assert list(lacking) == ["NLP", "Overall"]  # nothing of Human-like is there
    assert lacking["Overall"]["missing"] == ["GLUE", "Reading", "AoA"]
    assert lacking["Overall"]["with_zeros"] == pytest.approx(70 * 6 / 9)
    assert lacking["NLP"]["missing"] == ["GLUE"]
    assert lacking["NLP"]["with_zeros"] == pytest.approx(60.0)
    assert incomplete_averages(get_suite("babylm_2025"), columns) == []


def test_babylm_compares_all_families() -> None:
    shown = get_suite("babylm_2025").nearest("t5", None, 3)
    assert [row.family for row in shown] == ["t5", "t5", "gpt2"]
    assert shown[0].scores["BLiMP 12"] == pytest.approx(58.8, abs=0.05)


def test_predictions_in_the_form_of_the_leaderboard() -> None:
    made = submission(
        get_suite("babylm"),
        {},
        {
            "supplement": {"hypernym": ["a", "b"]},
            "entity_tracking": {"regular_0_ops": [" it."]},
            "rte": {"rte": [1]},
            "multiblimp": {"eng": []},
        },
        {},
    )
    assert made == {
        "entity_tracking_filtered": {
            "regular_0_ops": {"predictions": [{"id": "regular_0_ops_0", "pred": " it."}]}
        },
        "blimp_supplement": {
            "hypernym": {
                "predictions": [
                    {"id": "hypernym_0", "pred": "a"},
                    {"id": "hypernym_1", "pred": "b"},
                ]
            }
        },
        "glue": {"rte": {"predictions": [{"id": "rte_0", "pred": 1}]}},
    }


def test_the_chinese_submission_has_the_tasks_of_the_final_alone() -> None:
    scores = {
        "ZhoBLiMP": 75.0, "Structure old": 40.0, "AFQMC": 70.0, "AFQMC maj": 69.0, "C3": 32.0,
        "word fMRI": 56.0, "Overall": 61.0,
    }  # fmt: skip
    assert submission(get_suite("chinese_babylm"), scores, {}, {}) == {
        "zhoblimp": {"accuracy": 0.75},
        "afqmc": {"accuracy": 0.7},
        "c3": {"accuracy": 0.32},
        "word_fmri": {"mean": 0.56},
    }


def test_the_chinese_averages_are_the_published_ones() -> None:
    """A team's three tracks and their mean; the means of nine tasks in the organisers' table."""
    averages = {one.name: one for one in get_suite("chinese_babylm").averages}
    final = published("chinese_babylm", "BabyDragon-v4 104M", "dev")
    for name, value in (
        ("NLU track", 59.98), ("Hanzi track", 91.56), ("Cog track", 32.94), ("Overall", 61.49),
    ):  # fmt: skip
        assert averages[name].of(final) == pytest.approx(value, abs=0.006)
    for model, mean in (
        ("bb-bert-14M 20 epochs", 53.91), ("bb-t5-14M 10 epochs", 47.48),
        ("bb-mamba-14M 3 epochs", 52.83), ("bert-base-chinese", 59.0), ("Qwen3-0.6B", 58.79),
    ):  # fmt: skip
        scores = published("chinese_babylm", model, "dev")
        assert averages["README 9"].of(scores) == pytest.approx(mean, abs=0.006)
    of_final = [row for row in get_suite("chinese_babylm").published if "Structure" in row.scores]
    assert len(get_suite("chinese_babylm").published) == 26  # 23, two teams, the multilingual track
    assert all("Structure old" not in row.scores for row in of_final)  # another set


def test_a_decoder_without_a_head_on_options_has_no_recipe_of_c3() -> None:
    suite = get_suite("chinese_babylm")
    assert "c3" in recipes_of(suite, "gpt2")
    assert recipes_of(suite, "llama").keys() == recipes_of(suite, "bert").keys() - {"c3"}
    assert "c3" not in recipes_of(suite, "elmo")


def test_an_average_lacks_what_a_column_lacks() -> None:
    assert average("GLUE").of({"CoLA": 50.0}) is None
    one = Average("x", (("a",), ("b", "c")), "")
    assert one.of({"a": 1.0, "b": 2.0, "c": 4.0}) == 2.0
    assert one.error({"a": 3.0, "b": 3.0, "c": 5.0}) == pytest.approx(math.sqrt(9 + 16) / 2)


def test_the_nearest_published_models_come_first() -> None:
    rows = get_suite("glue").nearest("bert", (4, 256), 3)
    assert rows[0].model == "BERT-mini"
    assert {row.split for row in rows[1:]} == {"dev"}
    assert [row.model for row in get_suite("squad").nearest("roberta", None, 9)] == [
        "RoBERTa-large"
    ]


def test_settings_of_all_tasks_and_of_one() -> None:
    glue = get_suite("glue")
    run, kept, of_task = settings_of(
        glue, ["train.epochs=1", "run=here", "rte.train.epochs=2", "sst2.data.train=[x.tsv]"]
    )
    assert run == "here"
    assert kept == ("train.epochs=1", "rte.train.epochs=2", "sst2.data.train=[x.tsv]")
    assert of_task["rte"] == ["train.epochs=1", "train.epochs=2"]
    assert of_task["cola"] == ["train.epochs=1"]
    for wrong in ("model=x", "data.train=[x]", "rte.model=x", "rte.run=x"):
        with pytest.raises(ConfigError, match="a suite sets"):
            settings_of(glue, [wrong])
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):
        settings_of(glue, ["epochs"])


def test_tasks_are_asked_for_by_name() -> None:
    glue = get_suite("glue")
    assert len(tasks_of(glue, "bert", None)) == 8
    found = tasks_of(glue, "bert", ["wnli", "cola"])
    assert [task.name for task in found] == ["cola", "wnli"]
    with pytest.raises(ConfigError, match="did you mean 'sst2'"):
        tasks_of(glue, "bert", ["sst"])
    with pytest.raises(ConfigError, match="no recipe of wnli for t5"):
        tasks_of(glue, "t5", ["wnli"])
    with pytest.raises(ConfigError, match="no recipe for elmo"):
        tasks_of(get_suite("squad"), "elmo", None)


def test_a_family_without_recipes_of_its_own_has_those_of_its_kind() -> None:
    clue = get_suite("clue")
    assert recipes_of(clue, "bert")["cmrc2018"].path == "cmrc2018.yaml"
    assert "cmrc2018" not in recipes_of(clue, "gpt1")
    assert recipes_of(clue, "elmo")["tnews"].changes == ("optim.lr=1e-3", "grid={}")
    assert recipes_of(get_suite("glue"), "roberta")["rte"].path == "glue/roberta/rte.yaml"
    babylm = recipes_of(get_suite("babylm"), "t5")
    assert "cast: rte" in babylm["rte"].changes[0]
    assert clue.recipes_of("new", ("labels",)).keys() == recipes_of(clue, "gpt1").keys()
