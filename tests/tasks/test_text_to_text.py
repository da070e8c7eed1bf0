"""Text to text against transformers' own T5, and against doing it slowly."""

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, T5ForConditionalGeneration

from plmctl.corpus.labelled import Row
from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.scoring import answers
from plmctl.models.network import Network
from plmctl.tasks.base import get_task
from tests.builders import make_model
from tests.tasks.conftest import load_head

TASK = get_task("text_to_text")
WORDS = [f"w{number}" for number in range(40)]


@pytest.fixture(scope="module", params=["v1.0", "v1.1"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny T5 with opinions, and a tokenizer of words."""
    path = tmp_path_factory.mktemp("t5")
    vocab = ["<pad>", "</s>", "<unk>", *WORDS]
    tokenizer = Tokenizer(models.WordLevel({w: n for n, w in enumerate(vocab)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(path)
    fields = {"d_model": 32, "d_ff": 48, "d_kv": 8, "dropout_rate": 0.0, "vocab_multiple": 1}
    fields |= {"size": "tiny", "version": request.param}
    model = make_model("t5", len(vocab), ("lm",), seed=3, **fields)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(path)
    return str(path)


def rows(number: int = 12) -> list[Row]:
    rng = np.random.default_rng(0)
    return [
        Row(
            {
                "source": " ".join(rng.choice(WORDS, rng.integers(1, 9))),
                "target": " ".join(rng.choice(WORDS, rng.integers(1, 6))),
            },
            f"rows:{place}",
        )
        for place in range(number)
    ]


def examples(folder: str, use: str = "score", data: list[Row] | None = None, **fields) -> Any:
    config = TASK.Config(**{"max_target_length": 8, **fields})
    tokenizer = TASK(config).tokenizer(folder)
    data = rows() if data is None else data
    labels = TASK(config).labels(data)
    return TASK(config).make(data, tokenizer, labels, 16, use)


def network(folder: str) -> Network:
    model = load_head(TASK(TASK.Config()), folder)
    return Network(model, TASK.forward).eval()


def collated(dataset: Any, which: list[int]):
    return dataset.collate(np.zeros(len(which), dtype=np.int64), np.array(which))


def test_the_loss_is_that_of_transformers(folder: str) -> None:
    dataset, net = examples(folder), network(folder)
    batch = collated(dataset, list(range(12)))
    own = T5ForConditionalGeneration.from_pretrained(folder).eval()
    labels = torch.full((12, max(map(len, dataset.targets))), -100)
    for row, target in zip(labels, dataset.targets, strict=True):
        row[: len(target)] = torch.tensor(target)
    inputs = {k: batch.inputs[k] for k in ("input_ids", "attention_mask")}
    with torch.no_grad():
        loss = dataset.loss(net, batch)["lm"] / batch.counts()["lm"]
        assert loss == pytest.approx(own(**inputs, labels=labels).loss.item(), rel=1e-5)
    assert batch.counts()["lm"] == sum(map(len, dataset.targets))
    assert batch.inputs["input_ids"].shape[1] == max(map(len, dataset.sources))
    assert batch.inputs["decoder_input_ids"][:, 0].eq(0).all()
    assert dataset.score(net, batch)["lm/correct"] >= 0


def test_micro_batches_add_up(folder: str) -> None:
    # In double precision: the logits of an untied head are large, and float32 rounds them.
    dataset, net = examples(folder), network(folder).double()
    results = {}
    for size in (12, 5, 1):
        net.zero_grad()
        total, count = 0.0, 0
        for start in range(0, 12, size):
            batch = collated(dataset, list(range(start, min(start + size, 12))))
            loss = dataset.loss(net, batch)["lm"]
            loss.backward()
            total, count = total + loss.item(), count + batch.counts()["lm"]
        gradient = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
        results[size] = total, count, gradient.clone()
    for size in (5, 1):
        assert results[size][0] == pytest.approx(results[12][0], rel=1e-6)
        assert results[size][1] == results[12][1]
        assert (results[size][2] - results[12][2]).norm() < 1e-6 * results[12][2].norm()


@pytest.mark.parametrize("fields", [{}, {"decoding": "beam", "beams": 3}])
def test_a_batch_writes_what_each_row_writes_alone(folder: str, fields: dict) -> None:
    dataset, net = examples(folder, "predict", **fields), network(folder)
    assert dataset.targets is None
    together = answers(net, dataset, torch.device("cpu"))
    own = T5ForConditionalGeneration.from_pretrained(folder).eval()
    beams = {"num_beams": 3, "length_penalty": 0.6, "early_stopping": True} if fields else {}
    for source, answer in zip(dataset.sources, together, strict=True):
        with torch.no_grad():
            ids = own.generate(torch.tensor([source]), max_new_tokens=8, do_sample=False, **beams)
        alone = dataset.format.tokenizer.decode(ids[0], skip_special_tokens=True)
        assert answer == {"prediction": alone.strip()}
    assert len({answer["prediction"] for answer in together}) > 3
    with pytest.raises(DataError, match="no targets to score"):
        dataset.compute_metrics(together)


def test_the_settings_of_a_model_are_not_used_and_stay(folder: str) -> None:
    """A model's own settings for generating are saved with it; an answer does not follow them."""
    net, made = network(folder), examples(folder, "predict")
    batch = collated(made, [0, 1])
    before = made.outputs(net, batch)["ids"]
    net.model.generation_config.update(max_new_tokens=1, repetition_penalty=9.0)
    assert torch.equal(made.outputs(net, batch)["ids"], before)
    assert net.model.generation_config.max_new_tokens == 1


def test_ranking_is_the_loss_of_each_label(folder: str) -> None:
    labels = ["w1", "w1 w2", "w3 w4 w5", "w6"]  # one is the beginning of another
    data = [
        Row({**row.values, "target": labels[n % 4]}, row.origin) for n, row in enumerate(rows())
    ]
    dataset, net = examples(folder, data=data, decoding="rank"), network(folder)
    assert dataset.labels == tuple(labels)
    predictions = answers(net, dataset, torch.device("cpu"))
    own = T5ForConditionalGeneration.from_pretrained(folder).eval()
    for source, answer in zip(dataset.sources, predictions, strict=True):
        scores = []
        for label in labels:
            ids = torch.tensor([[*dataset.format.tokenizer(label).input_ids, 1]])
            with torch.no_grad():
                scores.append(-own(torch.tensor([source]), labels=ids).loss * ids.shape[1])
        expected = torch.stack(scores).softmax(0).tolist()
        assert list(answer["probabilities"].values()) == pytest.approx(expected, rel=1e-4)
        assert answer["prediction"] == labels[int(np.argmax(expected))]
    metrics = dataset.compute_metrics(predictions)
    right = [a["prediction"] == r.values["target"] for a, r in zip(predictions, data, strict=True)]
    assert metrics == {"sequence_accuracy": pytest.approx(np.mean(right))}
    unknown = [Row({"source": "w1", "target": "w9"}, "rows:0")]
    with pytest.raises(DataError, match="rows:0: target 'w9' is not among the training targets"):
        TASK(dataset.config).make(unknown, dataset.format.tokenizer, dataset.labels, 16, "score")


def test_random_weights_are_of_the_same_network(folder: str) -> None:
    own = T5ForConditionalGeneration.from_pretrained(folder)
    drawn = load_head(TASK(TASK.Config()), folder, pretrained=False, changes={"dropout_rate": 0.2})
    assert drawn.config.dropout_rate == 0.2
    tied = own.lm_head.weight is own.shared.weight
    assert (drawn.lm_head.weight is drawn.shared.weight) == tied
    assert {n: p.shape for n, p in drawn.named_parameters()} == {
        n: p.shape for n, p in own.named_parameters()
    }
    assert not torch.equal(drawn.shared.weight, own.shared.weight)


def test_long_and_empty_texts(folder: str) -> None:
    data = [
        Row({"source": "w1 " * 20, "target": "w2"}, "a:1"),
        Row({"source": "w1", "target": "w2 " * 7}, "a:2"),  # 7 and the end token: just fits
        Row({"source": "w1", "target": "w2 " * 20}, "a:3"),
        Row({"source": " ", "target": "w2"}, "a:4"),
        Row({"source": "w1", "target": ["", "w2"]}, "a:5"),
    ]
    dataset = examples(folder, "train", data)
    assert (len(dataset), dataset.cut) == (3, 2)
    assert dataset.dropped == ("a:4: an empty text", "a:5: an empty text")
    assert [len(row) for row in dataset.sources] == [16, 2, 2]
    assert [len(row) for row in dataset.targets] == [2, 8, 8]
    assert all(row[-1] == 1 for row in (*dataset.sources, *dataset.targets))
    assert dataset.lengths().tolist() == [18, 10, 10]
    assert len(examples(folder, "score", data)) == 5


def test_templates_fields_and_aliases(folder: str) -> None:
    values = {"a b": "w1", "pair": {"en": "w2", "de": ["w3", "w4"]}, "n": 5}
    config = TASK.Config(source="{{x}} {a b}, {pair.en} {n}", target="pair.de", prefix="say: ")
    row = Row(values, "a:1")
    assert TASK(config).source(row) == "say: {x} w1, w2 5"
    assert TASK(config).targets(row) == ("w3", "w4")
    assert TASK(config).text_columns() == ("a b", "pair.en", "n")
    trivia = {"value": "Rome", "aliases": ["Roma", "Rome"]}
    assert TASK(TASK.Config()).targets(Row({"target": trivia}, "a:1")) == ("Rome", "Roma")
    for target, message in (
        ([], "no list of texts"),
        ([3], "no text"),
        (None, "column 'target' is null"),
    ):
        with pytest.raises(DataError, match=rf"a:1: .*{message}"):
            TASK(TASK.Config()).targets(Row({"target": target}, "a:1"))
    with pytest.raises(DataError, match="no 'fr' in column 'pair': it has en, de"):
        TASK(TASK.Config(source="{pair.fr}")).source(row)
    for source in ("{", "{}", "a {"):
        with pytest.raises(ValueError, match=r"(?s)source.*"):
            TASK.Config(source=source)


def test_what_could_not_be_scored_is_refused_at_once(folder: str) -> None:
    chinese = [Row({"source": "w1", "target": "今天"}, "a:1")]
    with pytest.raises(ConfigError, match="task.tokens: BLEU with 13a takes a sentence"):
        examples(folder, "score", chinese, metrics=("bleu",))
    assert examples(folder, "score", chinese, metrics=("bleu",), tokens="zh").references
    many = [Row({"source": "w1", "target": f"t{n}"}, f"a:{n}") for n in range(1001)]
    with pytest.raises(ConfigError, match="rank scores every target"):
        examples(folder, "train", many, decoding="rank")


# T5's texts, written by hand from the paper's appendix D and the code's preprocessors.


CASES = [
    ("cola", {"sentence": "They sang.", "label": 1}, "cola sentence: They sang.", "acceptable"),
    ("sst2", {"sentence": "so dull", "label": 0}, "sst2 sentence: so dull", "negative"),
    (
        "mrpc",
        {"sentence1": "A b.", "sentence2": "C d.", "label": 1},
        "mrpc sentence1: A b. sentence2: C d.",
        "equivalent",
    ),
    (
        "qqp",
        {"question1": "Why?", "question2": "How?", "label": 0},
        "qqp question1: Why? question2: How?",
        "not_duplicate",
    ),
    (
        "stsb",
        {"sentence1": "A b.", "sentence2": "C d.", "label": 3.799999952316284},
        "stsb sentence1: A b. sentence2: C d.",
        "3.8",
    ),
    (
        "mnli",
        {"premise": "It rains.", "hypothesis": "It is wet.", "label": 0},
        "mnli hypothesis: It is wet. premise: It rains.",
        "entailment",
    ),
    (
        "qnli",
        {"question": "Who?", "sentence": "Anna did.", "label": 1},
        "qnli question: Who? sentence: Anna did.",
        "not_entailment",
    ),
    (
        "rte",
        {"sentence1": "A.", "sentence2": "B.", "label": "entailment"},
        "rte sentence1: A. sentence2: B.",
        "entailment",
    ),
    (
        "squad",
        {
            "question": "Who won (in 1999)?",
            "context": "It was John O'Neil-Smith.",
            "answers": {"text": ["O'Neil-Smith", "John"], "answer_start": [12, 7]},
        },
        "question: Who won ( in 1999 ) ? context: It was John O ' Neil - Smith .",
        "O ' Neil - Smith",
    ),
    (
        "squad_trivia",
        {"question": "Who won?", "answers": ["Neil"]},
        "squad trivia question: Who won ?",
        "Neil",
    ),
]


def test_every_cast_is_here() -> None:
    """What a config may name; the other choice is none."""
    names, _ = TASK.Config.model_json_schema()["properties"]["cast"]["anyOf"]
    assert [case[0] for case in CASES] == names["enum"]


def metrics_of(cast: str, outputs: list[str], values: list[dict], folder: str) -> dict:
    """The metrics of texts that a network may have written."""
    task = TASK(TASK.Config(cast=cast))
    rows = [Row(value, f"rows:{number}") for number, value in enumerate(values)]
    made = task.make(rows, task.tokenizer(folder), task.labels(rows), 64, "score")
    return made.compute_metrics([{"prediction": output} for output in outputs])


@pytest.mark.parametrize(("cast", "values", "source", "target"), CASES, ids=lambda v: str(v)[:12])
def test_texts_of_a_row(cast: str, values: dict, source: str, target: str) -> None:
    config = TASK.Config(cast=cast)
    row = Row(values, "rows:1")
    assert TASK(config).source(row) == source
    assert TASK(config).targets(row)[0] == target
    assert set(TASK(config).text_columns()) | {config.written} == set(values)


def test_squad_keeps_all_answers_and_marks_stand_apart() -> None:
    row = Row(CASES[8][1], "rows:1")
    config = TASK.Config(cast="squad")
    assert TASK(config).targets(row) == ("O ' Neil - Smith", "John")
    odd = {"question": "a  “b”_c\n$5.0", "context": "d", "answers": row.values["answers"]}
    source = TASK(config).source(Row(odd, "rows:1"))
    assert "a “b” _ c $ 5 . 0" in source  # marks of ASCII only


@pytest.mark.parametrize(
    ("value", "word"), [(0, "0.0"), (5.0, "5.0"), (2.5, "2.4"), (2.7, "2.8"), (3.25, "3.2")]
)
def test_similarities_are_fifths(value: float, word: str) -> None:
    # 2.5 and 2.7 are 12.5 and 13.5 fifths: the even one is taken, as TensorFlow rounds.
    task = TASK(TASK.Config(cast="stsb"))
    assert task.targets(Row({"label": value}, "rows:1")) == (word,)
    assert len(task.labels([])) == 26


@pytest.mark.parametrize(("cast", "value"), [("rte", -1), ("rte", 2), ("cola", "yes"), ("stsb", 6)])
def test_what_is_no_label_is_refused(cast: str, value: object) -> None:
    with pytest.raises(DataError, match=r"rows:7: (label|similarity) "):
        TASK(TASK.Config(cast=cast)).targets(Row({"label": value}, "rows:7"))


def test_outputs_that_are_no_label_are_wrong(folder: str) -> None:
    pair = {"question1": "a", "question2": "b"}
    values = [{**pair, "label": label} for label in (1, 1, 0, 0, 1)]
    outputs = ["duplicate", "dup", "not_duplicate", "", "not_duplicate"]
    metrics = metrics_of("qqp", outputs, values, folder)
    assert metrics["accuracy"] == 2 / 5
    # "dup" counts as not_duplicate, "" as duplicate: 1 right of 2 that were said, of 3 that are
    assert metrics["f1"] == pytest.approx(2 * 1 / (2 + 3))
    assert metrics["no_label"] == 2 / 5
    assert metrics["majority"] == 3 / 5
    none = metrics_of("qqp", ["not_duplicate"] * 2, values[2:4], folder)
    assert none["f1"] == 0


def test_similarities_are_read_as_numbers(folder: str) -> None:
    pair = {"sentence1": "a", "sentence2": "b"}
    values = [{**pair, "label": label} for label in (0, 2, 4)]
    metrics = metrics_of("stsb", ["1", "2.2", "4.6"], values, folder)
    assert metrics["spearman"] == pytest.approx(1)
    assert metrics["no_label"] == 0
    # "good" is read as -1: the order is turned round
    metrics = metrics_of("stsb", ["2", "1.0", "good"], values, folder)
    assert metrics["spearman"] == pytest.approx(-1)
    assert metrics["no_label"] == 1 / 3
    assert metrics_of("stsb", ["nan"] * 3, values, folder)["pearson"] == 0
