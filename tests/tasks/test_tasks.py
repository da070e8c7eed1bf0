"""Sequences are those of the papers, cut as their code cuts them."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from plmctl.errors import ConfigError, DataError
from plmctl.families.base import longest_input, refuse_longer
from plmctl.models.load import config_of, new_head_message
from plmctl.tasks.base import ReadableAnswer, get_task, make_task, with_columns
from tests.tasks.conftest import FAMILIES, Folder, load_head, rows_of

TASK = get_task("classification")
PAIR = TASK.Config(text=("a", "b"))


def pieces(folder: str, *texts: str, length: int = 64) -> tuple[list[str], tuple[int, ...] | None]:
    config = PAIR if len(texts) == 2 else TASK.Config(text="a")
    tokenizer = TASK(config).tokenizer(folder)
    read = sequences(config, tokenizer, *texts, length=length)
    return tokenizer.convert_ids_to_tokens(read.ids[0]), read.segments and read.segments[0]


def sequences(config: Any, tokenizer: Any, *texts: str, length: int = 64) -> Any:
    """A row as the task of texts or pairs reads it."""
    rows = rows_of(dict(zip("ab", texts, strict=False)))
    return TASK(config).make(rows, tokenizer, (), length, "predict").rows


def bert_cuts(first: int, second: int, room: int) -> tuple[int, int]:
    """BERT's rule, one token at a time."""
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


def test_a_pair_is_cut_as_bert_cuts_it(folder: Folder) -> None:
    tokenizer = TASK(PAIR).tokenizer(folder("bert"))

    @given(st.integers(0, 40), st.integers(0, 40), st.integers(2, 60))
    def check(first: int, second: int, room: int) -> None:
        read = sequences(PAIR, tokenizer, "a " * first, "b " * second, length=room + 3)
        segments = read.segments[0]
        assert (segments.count(0) - 2, segments.count(1) - 1) == bert_cuts(first, second, room)

    check()


@pytest.mark.parametrize("family", ["bert", "spanbert", "albert"])
def test_segments_and_ties(family: str, folder: Folder) -> None:
    got, segments = pieces(folder(family), "a b c d", "e f g h", length=8)
    assert [piece.strip("▁") for piece in got] == [
        "[CLS]", "a", "b", "c", "[SEP]", "e", "f", "[SEP]",
    ]  # fmt: skip
    assert segments == (0, 0, 0, 0, 0, 1, 1, 1)


def test_roberta_has_two_separators_and_no_segments(folder: Folder) -> None:
    assert pieces(folder("roberta"), "ab", " c") == (
        ["<s>", "a", "b", "</s>", "</s>", "Ġ", "c", "</s>"], None,
    )  # fmt: skip
    borrowed = folder("roberta", tokenizer="bert")
    assert pieces(borrowed, "a b", "c") == (
        ["[CLS]", "a", "b", "[SEP]", "[SEP]", "c", "[SEP]"], None,
    )  # fmt: skip
    assert pieces(borrowed, "a b") == (["[CLS]", "a", "b", "[SEP]"], None)


def test_gpt1_has_three_new_tokens_and_cuts_each_text(folder: Folder) -> None:
    source = folder("gpt1")
    tokenizer = TASK(PAIR).tokenizer(source)
    size = len(AutoTokenizer.from_pretrained(source))
    whole = sequences(PAIR, tokenizer, "a b", "c").ids[0]
    assert [id_ for id_ in whole if id_ >= size] == [size, size + 1, size + 2]
    assert pieces(source, "a b", "c")[0] == [
        "_start_", "a</w>", "b</w>", "_delimiter_", "c</w>", "_classify_",
    ]  # fmt: skip
    assert pieces(source, "a b")[0] == ["_start_", "a</w>", "b</w>", "_classify_"]
    # 12 / 2 - 2 = 4 of each from its start, though the second leaves room for more of the first.
    cut, _ = pieces(source, "a b c d e f g", "h", length=12)
    assert cut == [
        "_start_", "a</w>", "b</w>", "c</w>", "d</w>", "_delimiter_", "h</w>", "_classify_",
    ]  # fmt: skip


def test_gpt2_reads_a_line_break_between_the_texts(folder: Folder) -> None:
    assert pieces(folder("gpt2"), "ab", "c")[0] == ["a", "b", "Ċ", "c"]
    assert pieces(folder("gpt2"), "ab")[0] == ["a", "b"]
    assert pieces(folder("gpt2"), "")[0] == ["<|endoftext|>"]


def test_text_that_looks_like_a_special_token_is_only_text(folder: Folder) -> None:
    assert pieces(folder("gpt2"), "a<|endoftext|>")[0].count("<|endoftext|>") == 0
    assert pieces(folder("bert"), "a [SEP] b")[0].count("[SEP]") == 1


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "gpt1", "gpt2"])
def test_a_saved_tokenizer_formats_texts_itself(family: str, folder: Folder, tmp_path) -> None:
    """As ``pipeline`` uses it, which knows nothing of this project."""
    tokenizer = TASK(PAIR).tokenizer(folder(family))
    tokenizer.save_pretrained(tmp_path)
    saved = AutoTokenizer.from_pretrained(tmp_path)
    for texts in (["a b c"], ["a b c", "d e"]):
        config = PAIR if len(texts) == 2 else TASK.Config(text="a")
        assert tuple(saved(*texts)["input_ids"]) == sequences(config, tokenizer, *texts).ids[0]


# How long an input a network takes is known before it runs, and is what torch says of it.


TEXT = "a b " * 100


@pytest.mark.parametrize("family", FAMILIES)
def test_the_longest_input_runs_and_a_longer_one_does_not(family: str, folder: Folder) -> None:
    model = folder(family)
    longest = longest_input(config_of(model))
    assert longest == 64
    refuse_longer(model, 64, "train.max_length")
    with pytest.raises(ConfigError, match=r"train.max_length: 65 tokens.*positions for 64"):
        refuse_longer(model, 65, "train.max_length")
    assert runs(model, 64)
    assert not runs(model, 65)


def runs(model: str, length: int) -> bool:
    task = get_task("classification")
    config = task.Config(name="classification")
    rows = rows_of({"text": TEXT, "label": "x"})
    examples = task(config).make(rows, task(config).tokenizer(model), ("x", "y"), length, "score")
    network = load_head(task(config), model, ("x", "y"), new_heads=print).eval()
    batch = examples.collate(*torch.zeros(2, 1, dtype=torch.int64).numpy())
    assert batch.inputs["input_ids"].shape[-1] == length
    try:
        with torch.no_grad():
            task.forward(network, **batch.inputs)
    except (IndexError, RuntimeError):
        return False
    return True


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_networks_around_an_encoder_are_as_long(family: str, folder: Folder) -> None:
    task = get_task("classification")
    config = task.Config(name="classification", pooling="mean")
    network = load_head(task(config), folder(family), ("x", "y"), new_heads=print)
    assert longest_input(network.config) == 64
    task = get_task("tagging")
    mixed = load_head(
        task(task.Config(layers="mix")), folder(family), ("O", "B-X"), new_heads=print
    )
    assert longest_input(mixed.config) == 64


def test_relative_positions_have_no_end() -> None:
    from transformers import T5Config

    from plmctl.models.elmo import ElmoConfig

    assert longest_input(T5Config()) is None
    assert longest_input(ElmoConfig()) is None


# Answers and columns as a user reads them.


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


# Going on from a finetuned folder with other labels, or the same ones in another order.


NLI = ("contradiction", "entailment", "neutral")
SEEDS = count()
CLASSIFICATION = get_task("classification")
TAGGING = get_task("tagging")


def loaded(model: str, labels: tuple[str, ...], task: Any = CLASSIFICATION, **fields: Any) -> Any:
    torch.manual_seed(next(SEEDS))
    return load_head(task(task.Config(**fields)), model, labels, new_heads=print)


def head(model: Any) -> torch.Tensor:
    """The weights of the last layer, which has a row a label."""
    return [p for _, p in model.named_parameters() if p.dim() == 2][-1].detach().clone()


def saved(model: Any, source: str, place: Path) -> str:
    model.save_pretrained(place)
    for file in Path(source).glob("*token*"):
        (place / file.name).write_bytes(file.read_bytes())
    return str(place)


@pytest.mark.parametrize(("family", "fields"), [("bert", {}), ("roberta", {}), ("distilbert", {}),
    ("gpt2", {}), ("gpt1", {}), ("albert", {}), ("bert", {"pooling": "mean"})])  # fmt: skip
def test_a_head_of_other_labels_starts_from_scratch(
    family: str, fields: dict, folder: Folder, tmp_path: Path
) -> None:
    source = folder(family)
    first = loaded(source, NLI, **fields)
    model = saved(first, source, tmp_path)
    assert new_head_message(source, NLI) is None  # a pretrained folder has none
    same = loaded(model, NLI, **fields)
    assert torch.equal(head(same), head(first))
    assert new_head_message(model, NLI) is None
    for labels in (("entailment", "not_entailment"), ("a", "b", "c"), ("a", "b", "c", "d")):
        other = loaded(model, labels, **fields)
        assert head(other).shape[0] == len(labels)
        assert not any(torch.equal(row, old) for row in head(other) for old in head(first))
        assert 0.001 < float(head(other).std()) < 0.1
        assert list(other.config.id2label.values()) == list(labels)
        assert (
            f"head for contradiction, entailment, neutral; a new one is created for {labels[0]}"
            in (new_head_message(model, labels) or "")
        )
        below = dict(first.base_model.named_parameters())
        assert all(torch.equal(p, below[n]) for n, p in other.base_model.named_parameters())
    number = loaded(model, (), problem="regression", **fields)
    assert head(number).shape[0] == 1
    assert "is created for a number" in (new_head_message(model, ()) or "")


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2"])
def test_the_same_labels_in_another_order_keep_their_rows(
    family: str, folder: Folder, tmp_path: Path
) -> None:
    order = ("entailment", "neutral", "contradiction")  # as the Hub has MNLI's
    first = loaded(folder(family), order)
    model = saved(first, folder(family), tmp_path)
    again = loaded(model, NLI)
    assert torch.equal(head(again), head(first)[[2, 0, 1]])
    assert new_head_message(model, NLI) is None


def test_tags(folder: Folder, tmp_path: Path) -> None:
    first = loaded(folder("bert"), ("O", "B-X", "I-X"), TAGGING)
    model = saved(first, folder("bert"), tmp_path)
    again = loaded(model, ("O", "B-X", "I-X"), TAGGING)
    assert torch.equal(head(again), head(first))
    other = loaded(model, ("O", "B-Y"), TAGGING)
    assert head(other).shape[0] == 2
    # Another task's head has the same names of weights, and means something else.
    classes = loaded(model, ("O", "B-X", "I-X"))
    assert not torch.equal(head(classes), head(first))


# Rows without a gold label: reported, left out on request, never learned as a class by default.


GOLD = ("entailment", "neutral", "contradiction")


def kept(task: str, labels: list, **fields: object) -> list:
    config = get_task(task).Config(unlabelled="drop", **fields)
    rows = rows_of(*({"label": label} for label in labels))
    return [row.values["label"] for row in rows if make_task(config).is_labelled(row)]


def test_what_is_left_out() -> None:
    labels = ["x", "-", "-1", -1, "", "  ", None, 0, "-x"]
    assert kept("classification", labels) == ["x", 0, "-x"]
    assert kept("multiple_choice", ["A", 0, "-", -1, None]) == ["A", 0]
    assert kept("classification", [1.5, -1, "", None, "-"], problem="regression") == [1.5, -1]
    several = [["x"], [], "", None]
    assert kept("classification", several, problem="multi_label") == [["x"], [], ""]
    missing = rows_of({"text": "a"})[0]  # a missing column is reported when it is read
    assert make_task(CLASSIFICATION.Config(unlabelled="drop")).is_labelled(missing)
    unlabelled = rows_of({"label": None})[0]
    assert make_task(CLASSIFICATION.Config()).is_labelled(unlabelled)


@pytest.mark.parametrize("labels", [(*GOLD, "-"), (*GOLD, "-1"), (0, 1, 2, -1), (0, 1, -1)])
def test_marks_of_no_label_are_refused_unless_they_are_said_to_be_one(labels: tuple) -> None:
    rows = rows_of(*({"label": label} for label in labels))
    with pytest.raises(DataError, match=rf"rows.jsonl:{len(labels)}: .*means no label") as e:
        CLASSIFICATION(CLASSIFICATION.Config()).labels(rows)
    assert "task.unlabelled=drop" in str(e.value.hint)
    names = CLASSIFICATION(CLASSIFICATION.Config(unlabelled="keep")).labels(rows)
    assert set(names) == set(map(str, labels))


@pytest.mark.parametrize("labels", [(-1, 1), (-2, -1, 0, 1, 2)])
def test_negative_numbers_that_are_classes(labels: tuple) -> None:
    rows = rows_of(*({"label": label} for label in labels))
    assert CLASSIFICATION(CLASSIFICATION.Config()).labels(rows) == tuple(map(str, labels))
