"""Labels and their mistakes, answers, results, and folders that work elsewhere."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.scoring import answers
from plmctl.models import parameters
from plmctl.models.network import Network
from plmctl.tasks.base import Finetuned, get_task, read_finetuned
from tests.tasks.conftest import ENCODERS, Folder, load_head, rows_of

TASK = get_task("classification")
CHOICE = get_task("multiple_choice")
ROWS = rows_of({"text": "a b", "label": "x"}, {"text": "c", "label": "y"})


def examples(folder: str, rows, use: str = "train", **fields):  # noqa: ANN001, ANN201
    config = TASK.Config(**fields)
    labels = TASK(config).labels(ROWS)
    return TASK(config).make(rows, TASK(config).tokenizer(folder), labels, 32, use)


def finetuned(folder: str, labels: tuple[str, ...], place: Path, **fields) -> None:
    """A folder as finetuning leaves it."""
    config = TASK.Config(**fields)
    torch.manual_seed(1)
    model = load_head(TASK(config), folder, labels, new_heads=print)
    model.save_pretrained(place)
    TASK(config).tokenizer(folder).save_pretrained(place)
    Finetuned(TASK(config), labels, 32).write(place)


def test_labels_are_sorted_and_numbers_by_value(folder: Folder) -> None:
    rows = rows_of(*({"text": "a", "label": n} for n in (10, 9, -1, 2)))
    assert TASK(TASK.Config(unlabelled="keep")).labels(rows) == ("-1", "2", "9", "10")
    assert TASK(TASK.Config(problem="regression")).labels(rows) == ()
    cells = ("b, a,", ["c", "a"], "", [])
    rows = rows_of(*({"text": "a", "label": cell} for cell in cells))
    several = TASK(TASK.Config(problem="multi_label"))
    assert several.labels(rows) == ("a", "b", "c")
    made = several.make(rows, several.tokenizer(folder("bert")), ("a", "b", "c"), 32, "score")
    assert made.references().tolist() == [[1, 1, 0], [1, 0, 1], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("value", "fields", "words"),
    [
        ({"text": "a", "label": "z"}, {}, ["rows.jsonl:1", "'label'", "'z'", "x, y"]),
        ({"text": "a", "lable": "x"}, {}, ["rows.jsonl:1", "'label'", "did you mean 'lable'"]),
        ({"txt": "a", "label": "x"}, {}, ["rows.jsonl:1", "no column 'text'"]),
        ({"text": "a", "label": ""}, {}, ["rows.jsonl:1", "'label' is empty"]),
        ({"text": "a", "label": ["x"]}, {}, ["rows.jsonl:1", "multi_label"]),
        ({"text": ["a"], "label": "x"}, {}, ["rows.jsonl:1", "holds a list"]),
        ({"text": "a", "label": "x,z"}, {"problem": "multi_label"}, ["'z'", "x, y"]),
        ({"text": "a", "label": "good"}, {"problem": "regression"}, ["'good'", "number"]),
        ({"text": "a", "label": "nan"}, {"problem": "regression"}, ["'nan'", "number"]),
        ({"text": "a", "label": True}, {"problem": "regression"}, ["True", "number"]),
    ],
)
def test_bad_rows_are_named(value: dict, fields: dict, words: list[str], folder: Folder) -> None:
    with pytest.raises(DataError) as refused:
        examples(folder("bert"), rows_of(value), "score", **fields)
    for word in words:
        assert word in str(refused.value)


def test_empty_text_is_dropped_from_training_alone(folder: Folder) -> None:
    rows = [*ROWS, *rows_of({"text": " ", "label": "x"})]
    train_rows = examples(folder("gpt2"), rows)
    assert len(train_rows) == 2
    assert train_rows.dropped == ("rows.jsonl:1: column 'text' is empty; expected a text",)
    assert len(examples(folder("gpt2"), rows, "score")) == 3
    with pytest.raises(DataError, match="no training row can be learned from"):
        examples(folder("bert"), rows[2:])


def test_one_label_is_too_few() -> None:
    with pytest.raises(DataError, match="one label only, 'x'"):
        TASK(TASK.Config()).labels(ROWS[:1])


@pytest.mark.parametrize(
    "fields",
    [
        {"problem": "regression", "label_smoothing": 0.1},
        {"problem": "regression", "class_weights": "balanced"},
        {"both_orders": True},
        {"class_weights": {"x": -1.0}},
    ],
)
def test_fields_that_do_not_fit(fields: dict) -> None:
    with pytest.raises(ValidationError):
        TASK.Config(**fields)


def test_class_weights_by_label(folder: Folder) -> None:
    weighted = examples(folder("bert"), ROWS, class_weights={"y": 3.0})
    assert weighted.class_weights is not None
    assert weighted.class_weights.tolist() == [1.0, 3.0]
    assert examples(folder("bert"), ROWS, "score", class_weights={"y": 3.0}).class_weights is None
    with pytest.raises(ConfigError, match="no label 'z'"):
        examples(folder("bert"), ROWS, class_weights={"z": 3.0})


def test_families_without_the_head_say_so(folder: Folder, tmp_path: Path) -> None:
    import transformers

    config = transformers.T5Config(d_model=16, d_ff=16, num_layers=1, num_heads=2, vocab_size=40)
    config.save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(folder("bert")).save_pretrained(tmp_path)
    for task in (TASK, CHOICE):
        with pytest.raises(ConfigError, match="text_to_text"):
            load_head(task(task.Config()), str(tmp_path), ("a", "b"), pretrained=False)
    config = TASK.Config(positive="yess")
    with pytest.raises(ConfigError, match="no label 'yess'; did you mean 'yes'"):
        load_head(TASK(config), folder("bert"), ("no", "yes"))
    pair = TASK.Config(text=("a", "b"), both_orders=True)
    with pytest.raises(ConfigError, match="not GPT-1"):
        load_head(TASK(pair), folder("bert"), ("a", "b"))


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt1", "gpt2"])
def test_a_pipeline_gives_the_same_answers(family: str, folder: Folder, tmp_path: Path) -> None:
    from transformers import pipeline

    labels = ("no", "perhaps", "yes")
    finetuned(folder(family), labels, tmp_path)
    loaded = read_finetuned(str(tmp_path))
    assert loaded.labels == labels
    rows = rows_of({"text": "a b c"}, {"text": "d"}, {"text": "x y z a b"})
    dataset = TASK(loaded.config).make(
        rows, TASK(loaded.config).tokenizer(str(tmp_path)), labels, 32, "predict"
    )
    model = load_head(TASK(loaded.config), str(tmp_path), labels)
    predictions = answers(Network(model, TASK.forward), dataset, torch.device("cpu"))
    classify = pipeline("text-classification", model=str(tmp_path), device="cpu")
    for row, answer in zip(rows, predictions, strict=True):
        [best] = classify(row.values["text"])
        assert best["label"] == answer["prediction"]
        assert best["score"] == pytest.approx(answer["probabilities"][best["label"]], abs=1e-5)


def test_folders_of_others_are_known_by_their_config(folder: Folder, tmp_path: Path) -> None:
    for fields, labels, problem in [
        ({}, ("a", "b"), "single_label"),
        ({"problem": "multi_label"}, ("a", "b"), "multi_label"),
        ({"problem": "regression"}, (), "regression"),
    ]:
        place = tmp_path / problem
        finetuned(folder("bert"), labels, place, **fields)
        (place / "task.json").unlink()
        loaded = read_finetuned(str(place))
        assert (loaded.config.problem, loaded.labels) == (problem, labels)
    config = json.loads((tmp_path / "regression" / "config.json").read_text())
    assert config["id2label"] == {"0": "score"}
    load_head(CHOICE(CHOICE.Config()), folder("bert"), new_heads=print).save_pretrained(
        tmp_path / "choice"
    )
    assert read_finetuned(str(tmp_path / "choice")).config.name == "multiple_choice"


def test_answers_and_results_of_each_kind(folder: Folder) -> None:
    probabilities = {"label": [np.array([0.7, 0.3]), np.array([0.2, 0.8])]}
    one = examples(folder("bert"), ROWS, "score")
    answers = one.answers(probabilities)
    assert [answer["prediction"] for answer in answers] == ["x", "y"]
    metrics = one.compute_metrics(answers)
    assert (metrics["accuracy"], metrics["f1"], metrics["matthews"]) == (1.0, 1.0, 1.0)
    assert (metrics["accuracy_low"], metrics["accuracy_high"]) == (1.0, 1.0)
    several = examples(folder("bert"), ROWS, "score", problem="multi_label", threshold=0.25)
    answers = several.answers(probabilities)
    assert [answer["prediction"] for answer in answers] == [["x", "y"], ["y"]]
    metrics = several.compute_metrics(answers)
    assert metrics["subset_accuracy"] == 0.5
    assert metrics["f1_micro"] == pytest.approx(4 / 5)
    rows = rows_of(*({"text": "a", "label": n} for n in (1.0, 2.0, 4.0)))
    number = examples(folder("bert"), rows, "score", problem="regression")
    answers = number.answers({"label": [np.array([n]) for n in (0.5, 1.5, 1.0)]})
    assert [answer["prediction"] for answer in answers] == [0.5, 1.5, 1.0]
    metrics = number.compute_metrics(answers)
    assert metrics["spearman"] == pytest.approx(0.5)
    assert metrics["mean_squared_error"] == pytest.approx((0.25 + 0.25 + 9) / 3)


def test_fresh_weights_are_drawn_in_the_same_order_in_every_process(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[nn.Module] = []
    monkeypatch.setattr(parameters, "truncated_normal_", lambda module, _: drawn.append(module))
    labels = ("a", "b")
    model: Any = load_head(TASK(TASK.Config()), folder("spanbert"), labels, new_heads=print)
    assert drawn == [model.bert.pooler.dense, model.classifier]


# Pooled encoders: the vectors by hand, folders that load again, and families that have none.


LABELS = ("x", "y", "z")
LONG_AND_SHORT = rows_of({"text": "a b c", "label": "x"}, {"text": "d", "label": "z"})


def logits(config, folder: str, **options) -> tuple[torch.Tensor, Network]:  # noqa: ANN001
    torch.manual_seed(2)
    model = load_head(TASK(config), folder, LABELS, **{"new_heads": print, **options})
    examples = TASK(config).make(
        LONG_AND_SHORT, TASK(config).tokenizer(folder), LABELS, 20, "score"
    )
    network = Network(model, TASK.forward).eval()
    with torch.no_grad():
        batch = examples.collate(np.zeros(2, int), np.arange(2))
        return network(**batch.inputs)["label"], network


@pytest.mark.parametrize("family", ENCODERS)
@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_by_hand_and_loaded_again(
    pooling: str, family: str, folder: Folder, tmp_path: Path
) -> None:
    from transformers import AutoModel, AutoModelForSequenceClassification

    config = TASK.Config(pooling=pooling)
    got, network = logits(config, folder(family))
    tokenizer = TASK(config).tokenizer(folder(family))
    encoder = AutoModel.from_pretrained(folder(family)).eval()
    for row, row_logits in zip(LONG_AND_SHORT, got, strict=True):  # one by one: there is no padding
        with torch.no_grad():
            inputs = tokenizer(row.values["text"], return_tensors="pt")
            states = encoder(**inputs).last_hidden_state[0]
        vector = {"cls": states[0], "mean": states.mean(0), "max": states.max(0).values}[pooling]
        head = network.model.classifier
        assert torch.allclose(row_logits, head.weight @ vector + head.bias, atol=1e-5)
    network.model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    Finetuned(TASK(config), LABELS, 20).write(tmp_path)
    again = read_finetuned(str(tmp_path))
    assert again.config.pooling == pooling
    assert torch.equal(logits(again.config, str(tmp_path))[0], got)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert theirs.config.id2label == dict(enumerate(LABELS))


def test_dropout_and_random_weights(folder: Folder) -> None:
    config = TASK.Config(pooling="mean")
    changes = {"hidden_dropout_prob": 0.3, "classifier_dropout": 0.2}
    _, network = logits(config, folder("bert"), changes=changes, pretrained=False)
    assert network.model.dropout.p == 0.2
    assert network.model.encoder.config.hidden_dropout_prob == 0.3
    _, pretrained = logits(config, folder("bert"))
    one, two = (n.model.encoder.embeddings.word_embeddings.weight for n in (network, pretrained))
    assert not torch.equal(one, two)


def test_other_families_say_so(folder: Folder) -> None:
    for family in ("gpt1", "gpt2"):
        with pytest.raises(ConfigError, match="pooling is for encoders"):
            logits(TASK.Config(pooling="mean"), folder(family))
