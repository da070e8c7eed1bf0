"""Templates, examples before an item, options and the scores that choose between them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from plmctl.corpus.labelled import Row
from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.model import LoadedModel
from plmctl.evaluation.prompting import (
    FewShot,
    QuestionColumns,
    Shot,
    ShotsConfig,
    Template,
    draw_shots,
    fill_template,
    preferred_options,
    question_of,
)
from plmctl.models.completions import CompletionScore

ROW = Row({"question": "who?", "options": ["Anna", "Bela", "Carl"], "answer": 1}, "items.jsonl:7")
COLUMNS = QuestionColumns("Question: {question}\nAnswer:", "options", {}, "answer", 0, " ")


def test_a_template_has_the_values_in_their_places() -> None:
    values = {"a": "x{b}", "b": 3, "a.c": "dotted"}
    assert fill_template("{{{a}}} {b} {a.c}", values, "f:1") == "{x{b}} 3 dotted"


@pytest.mark.parametrize("template", ["{", "a}", "{a", "{}", "{a}}"])
def test_a_lone_brace_is_refused(template: str) -> None:
    with pytest.raises(ValidationError, match="a lone"):
        TypeAdapter(Template).validate_python(template)


def test_a_template_runs_nothing() -> None:
    with pytest.raises(DataError, match=r"f:1: no column 'a\.__class__'"):
        fill_template("{a.__class__}", {"a": "x"}, "f:1")


def test_unknown_columns_name_the_place_and_the_nearest() -> None:
    with pytest.raises(DataError, match=r"items.jsonl:7: no column 'quesion'; did you mean"):
        question_of(QuestionColumns("{quesion}", "options", {}, "answer", 0, " "), ROW)
    with pytest.raises(DataError, match=r"'options' holds a list, not text"):
        question_of(QuestionColumns("{options}", "options", {}, "answer", 0, " "), ROW)


@pytest.mark.parametrize(
    ("answer", "first", "expected"),
    [(1, 0, 1), (1, 1, 0), ("2", 0, 2), ("Carl", 0, 2), (" Bela ", 0, 1), ("C", 0, 2), ("a", 0, 0)],
)
def test_an_answer_is_text_number_or_letter(answer: object, first: int, expected: int) -> None:
    columns = QuestionColumns("{question}", "options", {}, "answer", first, " ")
    question = question_of(columns, Row({**ROW.values, "answer": answer}, "f:1"))
    assert question.answer == expected
    assert question.options == (" Anna", " Bela", " Carl")


@pytest.mark.parametrize("answer", [3, -1, "Dora", "D", ""])
def test_an_answer_that_is_none_of_them_is_refused(answer: object) -> None:
    with pytest.raises(DataError, match=r"f:1: the answer .* is none of 'Anna', 'Bela', 'Carl'"):
        question_of(COLUMNS, Row({**ROW.values, "answer": answer}, "f:1"))


def test_options_may_be_columns_labels_or_arcs() -> None:
    columns = QuestionColumns("{q}", ("a", "b"), {}, "right", 1, "")
    question = question_of(columns, Row({"q": "1+1=", "a": 2, "b": 3, "right": "1"}, "f:1"))
    assert (question.options, question.answer) == (("2", "3"), 0)
    columns = QuestionColumns("{q} It was", "x", {"true": "good", "false": "bad"}, "label", 0, " ")
    question = question_of(columns, Row({"q": "A film.", "label": False}, "f:1"))
    assert (question.options, question.answer) == ((" good", " bad"), 1)
    for labels, key in ((["A", "B"], "B"), (["1", "2"], "2")):
        arc = {"q": "x", "choices": {"text": ["y", "z"], "label": labels}, "key": key}
        question = question_of(
            QuestionColumns("{q}", "choices", {}, "key", 0, " "), Row(arc, "f:1")
        )
        assert (question.options, question.answer) == ((" y", " z"), 1)


@pytest.mark.parametrize("options", [["one"], ["a", " "], "text", 4, {"a": 1}])
def test_options_that_are_none_are_refused(options: object) -> None:
    with pytest.raises(DataError, match="f:1: "):
        question_of(COLUMNS, Row({**ROW.values, "options": options, "answer": 0}, "f:1"))


def test_each_score_prefers_what_its_definition_says() -> None:
    """One option is the likeliest, one by token, one by byte, one beside what it is alone."""
    options = (" ab", " abcdefgh", " 北京人", " zz")
    conditional = [
        CompletionScore(-4.0, 1, False),
        CompletionScore(-6.0, 4, False),
        CompletionScore(-6.1, 3, False),
        CompletionScore(-9.0, 2, False),
    ]
    alone = [CompletionScore(p, 1, False) for p in (-4.0, -6.0, -7.0, -30.0)]
    assert preferred_options(options, conditional, alone) == {
        "sum": 0,  # -4, -6, -6.1, -9
        "token": 1,  # -4, -1.5, -2.03, -4.5
        "byte": 2,  # -2, -0.75, -0.678 (nine bytes), -4.5
        "unconditional": 3,  # 0, 0, 0.9, 21
    }
    assert "unconditional" not in preferred_options(options, conditional, None)


@given(st.integers(0, 2**63), st.text(), st.integers(0, 60), st.integers(0, 70))
def test_a_draw_is_distinct_and_a_function_of_seed_and_item(
    seed: int, item: str, population: int, count: int
) -> None:
    shots = draw_shots(seed, item, population, count)
    assert shots == draw_shots(seed, item, population, count)
    assert len(shots) == len(set(shots)) == min(count, population)
    assert set(shots) <= set(range(population))


@pytest.mark.parametrize("population", [5, 40])
def test_all_examples_are_drawn_alike(population: int) -> None:
    """3 of ``population`` for 4,000 items: each is drawn 4,000 * 3 / population times."""
    counts = [0] * population
    for item in range(4000):
        for number in draw_shots(1, str(item), population, 3):
            counts[number] += 1
    expected = 12_000 / population
    assert sum((count - expected) ** 2 / expected for count in counts) < 2.5 * population


POOL = [Shot(f"Question: who is {n}?\nAnswer:", f" Anna {n}") for n in range(12)]


def test_a_few_shot_prompt_is_spelt_out(subjects: dict) -> None:
    config = ShotsConfig(count=2, separator="\n", task="Answer.")
    prompt = FewShot(config, POOL, subjects["gpt2"], 5)("who?", 2)
    first, second = draw_shots(5, "who?", 12, 3)[:2]
    assert prompt.text == f"Answer.\n{POOL[first]}\n{POOL[second]}\nwho?"
    assert str(POOL[3]) == "Question: who is 3?\nAnswer: Anna 3"
    assert prompt.shots == 2


def test_other_items_and_their_order_change_no_prompt(subjects: dict) -> None:
    prompts = [f"who is {n}?" for n in range(6)]
    config = ShotsConfig(count=2)
    one, other = (FewShot(config, POOL, subjects["gpt2"], 5) for _ in range(2))
    assert [one(p, 2) for p in prompts] == [other(p, 2) for p in reversed(prompts)][::-1]
    assert len({one(p, 2).text.removesuffix(p) for p in prompts}) > 1
    seeded = FewShot(config, POOL, subjects["gpt2"], 6)
    assert [seeded(p, 2) for p in prompts] != [one(p, 2) for p in prompts]


def test_as_many_examples_as_fit(subjects: dict) -> None:
    model: LoadedModel = subjects["gpt2"]
    prompt = FewShot(ShotsConfig(count=10), POOL, model, 5)("who?", 4)
    assert 0 < prompt.shots < 10
    assert model.count(prompt.text) + 4 + 2 <= model.window
    more = FewShot(ShotsConfig(count=prompt.shots + 1), POOL, model, 5)("who?", 4)
    assert more.text == prompt.text
    assert FewShot(ShotsConfig(count=10), POOL, model, 5)("who? " * 60, 4).shots == 0


def test_an_item_is_no_example_of_itself(subjects: dict) -> None:
    for example in POOL:
        prompt = FewShot(ShotsConfig(count=1), POOL[:4], subjects["gpt2"], 5)(example.prompt, 2)
        assert prompt.text.count(example.prompt) == 1
        assert prompt.shots == 1


def test_examples_need_rows(subjects: dict) -> None:
    with pytest.raises(ConfigError, match=r"shots\.train|no rows to draw them from"):
        FewShot(ShotsConfig(count=1), [], subjects["gpt2"], 5)
