"""ELMo finetuned: a frozen biLM, a mix, and a head; the same for a row alone or among others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plmctl.corpus.labelled import Row
from plmctl.models.elmo import (
    ElmoConfig,
    ElmoForPreTraining,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    encode_sentences,
)
from plmctl.models.network import Network
from plmctl.tasks import tagging
from plmctl.tasks.base import get_task
from tests.tasks.conftest import load_head

LABELS = ("O", "B-PER")
ROWS = [
    Row({"tokens": ["Anna", "sees", "Zyx"], "tags": ["B-PER", "O", "B-PER"]}, "a:1"),
    Row({"tokens": ["No", "one"], "tags": ["O", "O"]}, "a:2"),
    Row({"tokens": ["one"] * 20, "tags": ["O"] * 20}, "a:3"),
]


def small(**fields: Any) -> ElmoConfig:
    sizes = {"projection_size": 8, "cell_size": 12, "filters": [[1, 4], [2, 4]]}
    return ElmoConfig(vocab_size=20, num_highway_layers=1, head_size=6, **sizes, **fields)


@pytest.fixture(scope="module")
def bilm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny biLM, without a tokenizer: as converted weights are."""
    torch.manual_seed(0)
    folder = str(tmp_path_factory.mktemp("elmo"))
    ElmoForPreTraining(small()).save_pretrained(folder)
    return folder


def loaded(bilm: str, *, pretrained: bool = True, **changes: Any) -> Any:
    torch.manual_seed(1)
    return load_head(
        tagging.Tagging(tagging.Config()),
        bilm,
        LABELS,
        pretrained=pretrained,
        changes=changes,
        new_heads=print,
    )


def make_examples(bilm: str, length: int = 12) -> tagging.TaggingExamples:
    config = tagging.Config()
    return tagging.Tagging(config).make(
        ROWS, tagging.Tagging(config).tokenizer(bilm), LABELS, length, "train"
    )


def test_the_bilm_is_the_pretrained_one_and_stays_so(bilm: str) -> None:
    network = loaded(bilm, dropout=0.3)
    pretrained = ElmoModel.from_pretrained(bilm)
    for name, value in pretrained.state_dict().items():
        assert torch.equal(network.elmo.state_dict()[name], value), name
    network.train()
    assert not network.elmo.training
    assert network.dropout.training
    assert network.dropout.p == 0.3
    examples = make_examples(bilm)
    batch = examples.collate(np.zeros(2, int), np.array([0, 1]))
    examples.loss(Network(network, tagging.Tagging.forward), batch)["tag"].backward()
    learned = {name.split(".")[0] for name, p in network.named_parameters() if p.grad is not None}
    assert learned == {"mix", "lstm", "classifier"}


def test_random_weights_are_not_frozen(bilm: str) -> None:
    network = loaded(bilm, pretrained=False)
    assert all(p.requires_grad for p in network.parameters())
    before = ElmoModel.from_pretrained(bilm).layers[0].weight_input
    assert not torch.equal(network.elmo.layers[0].weight_input, before)


def test_the_head_begins_as_it_should(bilm: str) -> None:
    network = loaded(bilm)
    assert network.mix.weights.tolist() == [0, 0, 0]
    assert network.mix.gamma.item() == 1
    bound = (6 / (16 + 4 * 6)) ** 0.5  # Glorot of [4 * 6, 16]
    weight = network.lstm.weight_ih_l0
    assert weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)
    assert not network.lstm.bias_hh_l0.any()


def test_characters_are_read_not_ids(bilm: str) -> None:
    examples = make_examples(bilm)
    assert examples.lengths().tolist() == [3, 2, 12, 12, 8]  # words; the long sentence in windows
    batch = examples.collate(np.zeros(2, int), np.array([0, 1]))
    expected = encode_sentences([["Anna", "sees", "Zyx"], ["No", "one"]])
    assert batch.inputs["character_ids"].tolist() == expected.tolist()
    assert batch.counts() == {"tag": 5}
    assert (batch.tokens, batch.padded_tokens) == (5, 6)


@pytest.mark.parametrize("head", [ElmoForTokenClassification, ElmoForSequenceClassification])
def test_a_row_is_the_same_alone_and_among_others(head: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = head(small(num_labels=3)).eval()
    sentences = [["Anna", "sees", "Zyx", "."], ["No"], []]
    with torch.no_grad():
        together = network(torch.from_numpy(encode_sentences(sentences))).logits
        for number, words in enumerate(sentences[:2]):
            alone = network(torch.from_numpy(encode_sentences([words]))).logits[0]
            row = together[number]
            assert torch.allclose(row[: len(words)] if row.ndim == 2 else row, alone, atol=1e-6)
        assert together.isfinite().all()
        network.save_pretrained(tmp_path)
        again = head.from_pretrained(tmp_path).eval()
        logits = again(torch.from_numpy(encode_sentences(sentences))).logits
        assert torch.allclose(logits, together, atol=1e-7)


def characters_of(bilm: str, length: int, *rows: dict[str, str]) -> Any:
    """What the network is given for texts, or for pairs."""
    task = get_task("classification")
    columns = tuple(rows[0])
    made = task(task.Config(text=columns if len(columns) == 2 else columns[0]))
    origins = [Row(row, f"a:{number}") for number, row in enumerate(rows)]
    return made.make(origins, made.tokenizer(bilm), (), length, "predict")


def test_texts_and_pairs_become_words(bilm: str) -> None:
    def check(examples: Any, *sentences: list[str]) -> None:
        batch = examples.collate(np.zeros(len(sentences), int), np.arange(len(sentences)))
        ids = torch.from_numpy(encode_sentences(sentences))
        assert torch.equal(batch.inputs["character_ids"], ids)
        assert examples.lengths().tolist() == [len(words) for words in sentences]

    check(characters_of(bilm, 9, {"a": "Zyx, isn't it?"}), ["Zyx", ",", "isn", "'", "t", "it", "?"])
    one = characters_of(bilm, 3, {"a": "a b c d"}, {"a": "e"})
    check(one, ["a", "b", "c"], ["e"])
    assert one.cut == 1
    pairs = characters_of(bilm, 4, {"a": "a b c", "b": "d"}, {"a": "", "b": "e"})
    check(pairs, ["a", "b", "</S>", "d"], ["</S>", "e"])
    assert pairs.cut == 1
    empty = characters_of(bilm, 4, {"a": ""}).collate(np.zeros(1, int), np.zeros(1, int))
    assert empty.inputs["character_ids"].shape == (1, 1, 50)


@pytest.mark.parametrize("text", ["text", ("text", "other")])
def test_classification(bilm: str, tmp_path: Path, text: Any) -> None:
    from plmctl.evaluation.scoring import answers
    from plmctl.tasks import classification

    config = classification.Config(text=text)
    rows = [
        Row({"text": f"Zyx {n} sees", "other": "no " * (n + 1), "label": "ab"[n % 2]}, f"a:{n}")
        for n in range(4)
    ]
    labels = classification.Classification(config).labels(rows)
    tokenizer = classification.Classification(config).tokenizer(bilm)
    examples = classification.Classification(config).make(rows, tokenizer, labels, 16, "train")
    model = load_head(
        classification.Classification(config),
        bilm,
        labels,
        changes={"dropout": 0.2},
        new_heads=print,
    )
    assert type(model) is ElmoForSequenceClassification
    assert model.dropout.p == 0.2
    network = Network(model.eval(), classification.Classification.forward)
    batch = examples.collate(np.zeros(4, int), np.arange(4))
    whole = examples.loss(network, batch)["label"].item()
    alone = [examples.collate(np.zeros(1, int), np.array([n])) for n in range(4)]
    assert sum(examples.loss(network, b)["label"].item() for b in alone) == pytest.approx(whole)
    expected = torch.nn.functional.cross_entropy(
        network(**batch.inputs)["label"], batch.targets["label"], reduction="sum"
    )
    assert whole == pytest.approx(expected.item(), rel=1e-6)
    predictions = answers(network, examples, torch.device("cpu"))
    assert {answer["prediction"] for answer in predictions} <= {"a", "b"}
    model.save_pretrained(tmp_path)
    again = load_head(classification.Classification(config), str(tmp_path), labels)
    assert all(map(torch.equal, again.state_dict().values(), model.state_dict().values()))


def test_parsing_reads_a_mix_of_the_layers(bilm: str) -> None:
    from plmctl.evaluation.scoring import answers
    from plmctl.models.parameters import freeze
    from plmctl.tasks import parsing

    task = parsing.Parsing(parsing.Config(arc_size=8, relation_size=4))
    trees = [
        {"head": list(range(len(row.values["tokens"]))), "deprel": row.values["tags"]}
        for row in ROWS
    ]
    rows = [Row({**row.values, **tree}, row.origin) for row, tree in zip(ROWS, trees, strict=True)]
    examples = task.make(rows, task.tokenizer(bilm), ("B-PER", "O"), 12, "train")
    assert examples.cut == 1
    model: Any = load_head(task, bilm, ("B-PER", "O"), new_heads=print)
    freeze(model, "all")
    network = Network(model, task.forward)
    batch = examples.collate(np.zeros(3, int), np.arange(3))
    sum(examples.loss(network, batch).values()).backward()
    learned = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None}
    assert learned == {"head"}
    given = answers(network, examples, torch.device("cpu"))
    assert [len(answer["prediction"]) for answer in given] == [3, 2, 20]
