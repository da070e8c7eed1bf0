"""Answers and columns as a user reads them."""

import pytest

from plmctl.errors import ConfigError
from plmctl.tasks.base import ReadableAnswer, get_task, make_task, with_columns


def test_answers_are_readable() -> None:
    number = {"prediction": 1.660979151725769}
    label = {"prediction": "b", "probabilities": {"a": 0.2, "b": 0.7, "c": 0.1}}
    tags = {"tokens": ["Anna", "sings"], "prediction": ["B-PER", "O"], "probabilities": [0.9, 0.8]}
    span = {"prediction": "", "probability": 0.25}
    for name, options, answer, expected in (
        ("classification", {"problem": "regression"}, number, [("1.661", None)]),
        ("classification", {}, label, [("b", 0.7), ("a", 0.2)]),
        ("tagging", {}, tags, [("Anna/B-PER sings/O", None)]),
        ("question_answering", {}, span, [("(no answer)", 0.25)]),
        ("text_to_text", {"source": "s", "target": "t"}, {"prediction": "x"}, [("x", None)]),
    ):
        task = make_task(get_task(name).Config(name=name, **options))
        assert task.readable(answer, {}, 2) == [ReadableAnswer(*one) for one in expected]


def test_only_fields_of_columns_are_listed() -> None:
    config = get_task("classification").Config(name="classification")
    with pytest.raises(ConfigError) as refused:
        with_columns(config, {"sentence": "text"})
    assert refused.value.message.endswith("has no field 'sentence'; one of: text, label")
