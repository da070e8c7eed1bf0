import json

import pytest

from plmctl.errors import ConfigError, PlmError
from plmctl.metrics import modules
from plmctl.metrics.classification import (
    accuracy,
    f1,
    matthews,
    pearson,
    precision,
    recall,
    spearman,
)

GUESS, TRUTH = [0, 0, 0, 1, 0, 1, 1, 0, 0, 2], [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_every_module_gives_what_its_function_gives():
    functions = {
        "accuracy": accuracy,
        "precision": precision,
        "recall": recall,
        "f1": f1,
        "matthews_correlation": matthews,
        "pearsonr": pearson,
        "spearmanr": spearman,
    }
    assert set(functions) < set(modules.names())
    for name, function in functions.items():
        result = modules.load(name).compute(predictions=GUESS, references=TRUTH)
        assert result == {name: pytest.approx(function(GUESS, TRUTH))}


def test_batches_add_up_and_options_pass_through():
    module = modules.load("f1")
    for start in range(0, 10, 4):
        piece = slice(start, start + 4)
        module.add_batch(predictions=GUESS[piece], references=TRUTH[piece])
    result = module.compute(average="weighted")
    assert result == {"f1": pytest.approx(f1(GUESS, TRUTH, "weighted"))}


def test_modules_combine():
    import evaluate

    both = evaluate.combine([modules.load("accuracy"), modules.load("f1")])
    result = both.compute(predictions=GUESS, references=TRUTH)
    assert result == {"accuracy": 0.6, "f1": pytest.approx(f1(GUESS, TRUTH))}


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(ConfigError, match="did you mean 'accuracy'"):
        modules.load("acuracy")


def test_answers_are_texts_with_lists_of_right_ones():
    answers = {"predictions": ["the Elbe", "x"], "references": [["Elbe", "Havel"], []]}
    assert modules.load("squad").compute(**answers) == {"exact_match": 50, "f1": 50, "total": 2}
    assert modules.load("squad_v2").compute(**answers)["NoAns_exact_match"] == 0
    module = modules.load("cmrc2018")
    module.add_batch(predictions=["韩国"], references=[["韩国。"]])
    assert module.compute() == {"exact_match": 100, "f1": 100, "total": 1}


def test_entities_are_scored_from_the_tags_of_sentences():
    true = [["B-PER", "I-PER", "O"], ["O", "B-LOC"]]
    predicted = [["B-PER", "I-PER", "O"], ["O", "I-LOC"]]
    module = modules.load("entity_f1")
    assert module.compute(predictions=predicted, references=true) == {"entity_f1": 1.0}
    strict = module.compute(predictions=predicted, references=true, strict=True)
    assert strict == {"entity_f1": pytest.approx(2 / 3)}


METRIC = """
import datasets
import evaluate
import numpy as np

class Own(evaluate.Metric):
    def _info(self):
        number = datasets.Value("int64")
        features = datasets.Features({"predictions": number, "references": number})
        return evaluate.MetricInfo(
            description="", citation="", inputs_description="", features=features
        )

    def _compute(self, predictions, references):
        RESULT
"""


def own(path, result):
    path.write_text(METRIC.replace("RESULT", result), encoding="utf-8")
    return modules.compute(str(path), "label", [0, 1], [1, 1], {})


def test_a_users_metric_may_return_what_numpy_and_nested_lists_hold(tmp_path):
    results = own(
        tmp_path / "own.py",
        'return {"m": {"a": np.float32(0.5), 1: [np.int64(3), (np.bool_(True), None)]}, '
        '"k": np.array([[1, 2]]), "n": np.float64(2)}',
    )
    assert results == {"m": {"a": 0.5, "1": [3, [True, None]]}, "k": [[1, 2]], "n": 2.0}
    assert json.loads(json.dumps(results)) == results
    assert modules.own_names("./own.py", {"m": 1, "accuracy": 2, "x": 3}, {"x"}) == {
        "accuracy": "own.accuracy",
        "x": "own.x",
    }


@pytest.mark.parametrize(
    ("result", "error", "words"),
    [
        ('return {"c": {"d": [1j]}}', ConfigError, "own.py: c: d: a complex, which cannot be"),
        ('return {"c": object()}', ConfigError, "own.py: c: a object, which cannot be written"),
        ("raise SystemExit(0)", PlmError, "own.py: it ended the program"),
    ],
)
def test_what_a_users_metric_must_not_do_is_refused(tmp_path, result, error, words):
    with pytest.raises(error, match=words) as caught:
        own(tmp_path / "own.py", result)
    assert type(caught.value) is error
