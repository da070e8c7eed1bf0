"""RACE's and SWAG's sequences, options of every shape, and what is wrong with a row."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from plmctl.errors import ConfigError, DataError
from plmctl.tasks.base import get_task
from plmctl.tasks.multiple_choice import right_option
from tests.tasks.conftest import Folder, load_head, rows_of

TASK = get_task("multiple_choice")
ROW = {"passage": "p q r", "question": "a", "options": ["x", "y z"], "label": "B"}


def pieces(folder: str, row: dict, length: int = 40, **fields) -> list[str]:
    config = TASK.Config(**{"passage": "passage", **fields})
    tokenizer = TASK(config).tokenizer(folder)
    examples = TASK(config).make(rows_of(row), tokenizer, (), length, "train")
    return [" ".join(tokenizer.convert_ids_to_tokens(ids)) for ids in examples.rows.ids]


def test_encoders_read_passage_then_question_and_option(folder: Folder) -> None:
    bert = folder("bert")
    assert pieces(bert, ROW) == [
        "[CLS] p q r [SEP] a x [SEP]",
        "[CLS] p q r [SEP] a y z [SEP]",
    ]
    assert pieces(bert, ROW | {"question": "a _ b"}) == [
        "[CLS] p q r [SEP] a x b [SEP]",
        "[CLS] p q r [SEP] a y z b [SEP]",
    ]
    assert pieces(bert, ROW, passage=None) == ["[CLS] a [SEP] x [SEP]", "[CLS] a [SEP] y z [SEP]"]
    assert pieces(bert, ROW, question=None)[0] == "[CLS] p q r [SEP] x [SEP]"
    columns = {"passage": "p q r", "question": "a", "A": "x", "B": "y z", "label": 0}
    assert pieces(bert, columns, options=("A", "B")) == pieces(bert, ROW)


def test_the_last_tokens_of_question_and_option_are_kept(folder: Folder) -> None:
    row = ROW | {"passage": "p q r s t u v", "question": "a b c d e f"}
    assert pieces(folder("bert"), row, 12, max_option_length=4) == [
        "[CLS] p q r s t [SEP] d e f x [SEP]",
        "[CLS] p q r s t [SEP] e f y z [SEP]",
    ]
    # Without it the longer side is cut at its end.
    assert pieces(folder("bert"), row, 9)[0] == "[CLS] p q r [SEP] a b c [SEP]"


def test_gpt1_reads_passage_and_question_before_the_option(folder: Folder) -> None:
    got = [text.replace("</w>", "") for text in pieces(folder("gpt1"), ROW)]
    assert got == [
        "_start_ p q r a _delimiter_ x _classify_",
        "_start_ p q r a _delimiter_ y z _classify_",
    ]


@pytest.mark.parametrize(
    ("label", "fields", "number"),
    [("B", {}, 1), ("b", {}, 1), (1, {}, 1), ("0", {}, 0), (2, {"count_from": 1}, 1)],
)
def test_the_right_option(label: object, fields: dict, number: int, folder: Folder) -> None:
    task = TASK(TASK.Config(**fields))
    rows = rows_of(ROW | {"label": label})
    examples = task.make(rows, task.tokenizer(folder("bert")), (), 40, "score")
    assert examples.references().tolist() == [number]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"label": "C"}, ["rows.jsonl:1", "'label'", "'C'", "0 to 1, or A to B"]),
        ({"label": 2}, ["'2'", "count_from=1"]),
        ({"label": "yes"}, ["'yes'", "expected 0 to 1"]),
        ({"label": ""}, ["'label' is empty"]),
        ({"options": "x"}, ["'options' holds a str", "expected a list"]),
        ({"options": ["x"]}, ["1 options; expected two"]),
        ({"question": None}, ["column 'question' is null"]),
    ],
)
def test_bad_rows_are_named(change: dict, words: list[str], folder: Folder) -> None:
    config = TASK.Config()
    tokenizer = TASK(config).tokenizer(folder("bert"))
    with pytest.raises(DataError) as refused:
        TASK(config).make(rows_of(ROW | change), tokenizer, (), 40, "score")
    for word in words:
        assert word in str(refused.value)


def test_configs_that_ask_nothing() -> None:
    with pytest.raises(ValidationError, match="passage"):
        TASK.Config(question=None)
    with pytest.raises(ValidationError, match="two columns"):
        TASK.Config(options=("A",))


def test_answers_count_as_the_rows_do(folder: Folder) -> None:
    config = TASK.Config(count_from=1)
    rows = rows_of(ROW | {"label": 2}, ROW | {"label": 1, "options": ["x", "y", "z"]})
    examples = TASK(config).make(rows, TASK(config).tokenizer(folder("bert")), (), 40, "score")
    answers = examples.answers({"choice": [np.array([0.1, 0.9, 0.0]), np.array([0.1, 0.2, 0.7])]})
    assert [(a["prediction"], a["text"]) for a in answers] == [(2, "y z"), (3, "z")]
    assert answers[0]["probabilities"] == [0.1, 0.9]
    metrics = examples.compute_metrics(answers)
    assert list(metrics) == ["accuracy", "accuracy_low", "accuracy_high", "majority"]
    assert list(metrics.values()) == [0.5, 0.0, 1.0, 0.5]


def test_a_choice_is_learned(folder: Folder) -> None:
    """The option that repeats the passage's letter: a few updates are enough."""
    from plmctl.models.network import Network
    from plmctl.training.data import StepBatches
    from plmctl.training.loop import take_step
    from plmctl.training.plan import Slicing
    from tests.builders import cpu_engine

    rows = rows_of(
        *(
            {"passage": c, "question": "is", "options": ["q", c] if n % 2 else [c, "q"],
             "label": n % 2}
            for n, c in enumerate("abcdefgh")
        )
    )  # fmt: skip
    config = TASK.Config(passage="passage")
    for family in ("bert", "gpt1", "gpt2"):
        examples = TASK(config).make(rows, TASK(config).tokenizer(folder(family)), (), 40, "train")
        torch.manual_seed(0)
        model = load_head(TASK(config), folder(family), new_heads=print)
        engine = cpu_engine(Network(model, TASK.forward), lr=3e-3)
        batches = StepBatches(examples, Slicing(8, 8), 7)[0]
        losses = [take_step(engine, examples, batches, None, 1).losses for _ in range(30)]
        assert losses[-1]["choice"] < 0.3 * losses[0]["choice"], family


def test_texts_of_a_user_are_a_beginning_and_its_endings() -> None:
    task = TASK(TASK.Config())
    (values,) = task.values_of(["he came", "home", "soon", "late"])
    assert values == {"question": "he came", "options": ["home", "soon", "late"]}
    answer = {"prediction": 2, "text": "late", "probabilities": [0.1, 0.3, 0.6]}
    best = [(one.text, one.probability) for one in task.readable(answer, values, 2)]
    assert best == [("late", 0.6), ("soon", 0.3)]
    with pytest.raises(ConfigError, match="question, then two options or more; texts: 2"):
        task.values_of(["he came", "home"])
    columns = TASK(TASK.Config(options=("A", "B")))
    assert columns.values_of(["q", "x", "y"]) == [{"question": "q", "A": "x", "B": "y"}]


C3 = {
    "context": ["男：几点了？", "女：三点。"],
    "question": "几点了？",
    "choice": ["2", "三点", "四点"],
    "answer": "三点",
}  # fmt: skip
C3_CONFIG = {
    "passage": "context", "question": "question", "options": "choice", "label": "answer",
    "label_is": "text",
}  # fmt: skip


def test_a_label_that_is_the_text_of_an_option() -> None:
    """As in C3, whose passages are lists of lines."""
    task = TASK(TASK.Config(**C3_CONFIG))
    (row,) = rows_of(C3)
    assert task.right_answer(row) == "三点"
    assert task.texts_of(row)[0] == "男：几点了？\n女：三点。"
    (digit,) = rows_of(C3 | {"answer": "2"})  # a text, and not the third place
    assert right_option(task.config, digit) == 0
    (wrong,) = rows_of(C3 | {"answer": "一点"})
    with pytest.raises(DataError, match="none of the options 2, 三点, 四点"):
        right_option(task.config, wrong)
