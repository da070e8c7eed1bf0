"""Words to pieces and windows, the loss, and the answers of tagging, without a command."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plmctl.arrays import IGNORE
from plmctl.corpus.labelled import Row
from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.scoring import answers
from plmctl.models.network import Network
from plmctl.tasks import tagging
from plmctl.tasks._word_labels import sentence_examples, sentence_windows
from plmctl.tasks._words import WordPieces
from plmctl.tasks.base import read_finetuned
from tests.tasks.conftest import load_head

LABELS = ("O", "B-LOC", "B-PER", "I-PER")
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "an", "##na", "##x", "sees", "rome", "."]
VOCAB += ["我", "爱", "(", "##)", "[", "]", "mask"]
ROWS = [
    Row({"tokens": ["Anna", "Annax", "sees"], "tags": ["B-PER", "I-PER", "O"]}, "a:1"),
    Row({"tokens": ["Rome", "."], "tags": ["B-LOC", "O"]}, "a:4"),
    Row({"tokens": "anna sees rome .", "tags": "B-PER O B-LOC O"}, "a:7"),
    Row({"tokens": ["annaxxxxxxxxxxx"] * 5, "tags": ["O"] * 5}, "a:8"),
]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny BERT with its tokenizer."""
    from transformers import BertConfig, BertForMaskedLM, BertTokenizer

    folder = str(tmp_path_factory.mktemp("bert"))
    BertTokenizer(vocab={token: n for n, token in enumerate(VOCAB)}).save_pretrained(folder)
    BertForMaskedLM(small(BertConfig)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("left_to_right", "piece", "said"),
    [(True, "first", True), (True, "last", False), (False, "first", False)],
)
def test_a_decoder_is_told_of_first_pieces(left_to_right: bool, piece: Any, said: bool) -> None:
    task = tagging.Tagging(tagging.Config(piece=piece))
    lines = list(task.warnings(left_to_right=left_to_right))
    assert [("task.piece=last" in line) for line in lines] == [True] * said


def small(kind: Any, **fields: Any) -> Any:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return kind(vocab_size=len(VOCAB), intermediate_size=16, **sizes, **fields)


def make_examples(
    model: str, rows: list[Row], use: Any = "train", length: int = 16, **fields: Any
) -> tagging.TaggingExamples:
    config = tagging.Config(**fields)
    return tagging.Tagging(config).make(
        rows, tagging.Tagging(config).tokenizer(model), LABELS, length, use
    )


def loaded(model: str, **fields: Any) -> Network:
    torch.manual_seed(0)
    config = tagging.Config(**fields)
    network = load_head(tagging.Tagging(config), model, LABELS, new_heads=print)
    return Network(network, tagging.Tagging.forward).eval()


def test_the_label_is_on_one_piece_of_each_word(bert: str) -> None:
    examples = make_examples(bert, ROWS[:1])
    batch = examples.collate(np.zeros(1, int), np.array([0]))
    pieces = ["[CLS]", "an", "##na", "an", "##na", "##x", "sees", "[SEP]"]
    assert batch.inputs["input_ids"][0].tolist() == [VOCAB.index(piece) for piece in pieces]
    no = -100
    assert batch.targets["tag"][0].tolist() == [no, 2, no, 3, no, no, 0, no]
    assert batch.counts() == {"tag": 3}
    batch = make_examples(bert, ROWS[:1], piece="last").collate(np.zeros(1, int), np.array([0]))
    assert batch.targets["tag"][0].tolist() == [no, no, 2, no, no, 3, 0, no]


def test_pieces_are_those_of_the_tokenizer_for_words(bert: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bert)
    words = ["Anna", "Annax", "我爱", "(x)", "rome."]
    pieces = WordPieces(tokenizer)
    pieces.learn(words)
    ours = [id_ for word in words for id_ in pieces(word)]
    theirs = tokenizer(words, is_split_into_words=True)["input_ids"]
    assert [*pieces.before, *ours, *pieces.after] == theirs


def test_words_without_a_piece_are_unknown_and_specials_are_text(bert: str) -> None:
    from transformers import AutoTokenizer

    pieces = WordPieces(AutoTokenizer.from_pretrained(bert))
    odd = ["\u200b", "", " ", "\u3000", "\x00", "[MASK]", "我爱"]
    pieces.learn(odd)
    unknown = (VOCAB.index("[UNK]"),)
    assert [pieces(word) for word in odd[:5]] == [unknown] * 5
    assert pieces("[MASK]") == tuple(map(VOCAB.index, ["[", "mask", "]"]))
    assert len(pieces("我爱")) == 2
    examples = make_examples(bert, [Row({"tokens": odd, "tags": ["O"] * len(odd)}, "a:1")])
    assert examples.collate(np.zeros(1, int), np.array([0])).counts() == {"tag": len(odd)}


def test_byte_level_words_have_the_space_before_them() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = pre_tokenizers.ByteLevel.alphabet()
    vocab = {letter: n for n, letter in enumerate([*sorted(letters), "Ġa", "<|end|>"])}
    for prefix in (True, False):
        backend = Tokenizer(models.BPE(vocab, [("Ġ", "a")]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        backend.decoder = decoders.ByteLevel()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")
        pieces = WordPieces(tokenizer)
        words = ["a", "b", "a", "", "é"]
        pieces.learn(words)
        assert pieces("a") == (vocab["Ġa"],)
        assert pieces("b") == (vocab["Ġ"], vocab["b"])
        assert pieces("") == (vocab["<|end|>"],)
        assert (pieces.before, pieces.after) == ((), ())
        if prefix:
            theirs = tokenizer(["a", "b", "é"], is_split_into_words=True)["input_ids"]
            assert theirs == [id_ for word in ("a", "b", "é") for id_ in pieces(word)]


@given(st.lists(st.integers(1, 7), max_size=60), st.integers(7, 20))
def test_windows_label_every_word_once(sizes: list[int], room: int) -> None:
    windows = list(sentence_windows(sizes, room))
    labelled = [word for window in windows for word in range(window.first, window.last)]
    assert labelled == list(range(len(sizes)))
    for window in windows:
        assert window.start <= window.first < window.last <= window.stop
        assert sum(sizes[window.start : window.stop]) <= room
    assert (len(windows) <= 1) == (sum(sizes) <= room)


def test_words_in_two_windows_are_labelled_where_they_have_more_around_them() -> None:
    assert [(w.start, w.stop, w.first, w.last) for w in sentence_windows([1] * 16, 8)] == [
        (0, 8, 0, 6),
        (4, 12, 6, 10),
        (8, 16, 10, 16),
    ]
    whole = list(sentence_examples(3, [(5,), (6, 7)], ((1,), (2,)), 8, last=True))
    assert [(e.row, e.read, e.first, e.places) for e in whole] == [(3, (1, 5, 6, 7, 2), 0, (1, 3))]


def test_a_long_word_is_cut_and_still_answered(bert: str) -> None:
    examples = make_examples(bert, ROWS, "score", length=10)
    assert examples.cut == 1
    assert examples.lengths().max() <= 10
    predictions = answers(loaded(bert), examples, torch.device("cpu"))
    assert [len(answer["prediction"]) for answer in predictions] == [3, 2, 4, 5]
    assert all(0 <= p <= 1 for answer in predictions for p in answer["probabilities"])
    metrics = examples.compute_metrics(predictions)
    assert metrics["entities"] == 4
    assert {"f1", "precision", "recall", "accuracy", "per_class"} <= metrics.keys()


def test_the_loss_is_that_of_transformers(bert: str) -> None:
    network = loaded(bert)
    for fields in ({}, {"piece": "last"}):
        examples = make_examples(bert, ROWS, **fields)
        batch = examples.collate(np.zeros(len(examples), int), np.arange(len(examples)))
        ours = examples.loss(network, batch)["tag"] / batch.counts()["tag"]
        theirs = network.model(**batch.inputs, labels=batch.targets["tag"]).loss
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)


def test_the_mix_begins_as_the_mean_of_all_layers_and_loads_again(
    bert: str, tmp_path: Path
) -> None:
    from transformers import AutoModel, AutoModelForTokenClassification

    network, examples = loaded(bert, layers="mix"), make_examples(bert, ROWS)
    batch = examples.collate(np.zeros(2, int), np.array([0, 1]))
    with torch.no_grad():
        logits = network(**batch.inputs)["tag"]
        layers = AutoModel.from_pretrained(bert)(**batch.inputs, output_hidden_states=True)
        mean = torch.stack(layers.hidden_states).mean(0)
        assert torch.allclose(network.model.classifier(mean), logits, atol=1e-6)
        network.model.mix.weights += torch.tensor([1.0, 0.0, -1.0])
        network.model.save_pretrained(tmp_path)
        again = AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
        expected = network(**batch.inputs)["tag"]
        assert torch.equal(again(**batch.inputs).logits, expected)
    assert again.config.id2label[3] == "I-PER"
    task = tagging.Tagging(tagging.Config(layers="mix"))
    tuned = load_head(task, str(tmp_path), LABELS, task.tokenizer(bert))
    assert torch.equal(tuned.state_dict()["mix.weights"], network.model.mix.weights)


@pytest.mark.parametrize("kind", ["Roberta", "Albert", "DistilBert", "GPT2"])
@pytest.mark.parametrize("layers", ["last", "mix"])
def test_every_family_has_the_head(bert: str, tmp_path: Path, kind: str, layers: str) -> None:
    import transformers

    sizes = {
        "DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 16},
        "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2},
    }
    of = getattr(transformers, f"{kind}Config")
    config = of(vocab_size=len(VOCAB), **sizes[kind]) if kind in sizes else small(of)
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    tagging.Tagging(tagging.Config()).tokenizer(bert).save_pretrained(tmp_path)
    model = str(tmp_path)
    for pretrained in (True, False):
        network = load_head(
            tagging.Tagging(tagging.Config(layers=layers)),
            model,
            LABELS,
            pretrained=pretrained,
            new_heads=print,
        )
        examples = make_examples(model, ROWS[:2])
        batch = examples.collate(np.zeros(2, int), np.array([0, 1]))
        together = Network(network, tagging.Tagging.forward).eval()
        loss = examples.loss(together, batch)["tag"]
        loss.backward()
        # Several processes wait for the gradient of every weight.
        without = [n for n, p in network.named_parameters() if p.requires_grad and p.grad is None]
        assert not without
        alone = examples.collate(np.zeros(1, int), np.array([1]))  # padding changes no logits
        both, one = together(**batch.inputs)["tag"], together(**alone.inputs)["tag"]
        assert torch.allclose(both[1, : one.shape[1]], one[0], atol=1e-5)


def test_labels_are_those_of_the_training_rows() -> None:
    assert tagging.Tagging(tagging.Config()).labels(ROWS) == LABELS
    named = tagging.Config(labels=(*LABELS, "I-LOC"))
    assert tagging.Tagging(named).labels(ROWS)[-1] == "I-LOC"
    parts = [Row({"tokens": ["a", "b"], "tags": ["nn", "vb"]}, "a:1")]
    assert tagging.Tagging(tagging.Config(scheme="pos")).labels(parts) == ("nn", "vb")


def test_wrong_rows_are_reported(bert: str) -> None:
    def row(tokens: object, tags: object) -> list[Row]:
        return [Row({"tokens": tokens, "tags": tags}, "a.jsonl:7")]

    with pytest.raises(DataError, match=r"a.jsonl:7: 2 words in 'tokens', but 1 tags in 'tags'"):
        tagging.Tagging(tagging.Config()).labels(row(["a", "b"], ["O"]))
    with pytest.raises(DataError, match=r"a.jsonl:7: tag 'nn' is not O"):
        tagging.Tagging(tagging.Config()).labels(row(["a", "b"], ["nn", "O"]))
    with pytest.raises(DataError, match=r"one tag only, 'O'"):
        tagging.Tagging(tagging.Config()).labels(row(["a"], ["O"]))
    with pytest.raises(DataError, match=r"a.jsonl:7: column 'tokens' holds a int"):
        make_examples(bert, row(3, "O"))
    with pytest.raises(DataError, match=r"a.jsonl:7: item 2 of column 'tags' is a NoneType"):
        make_examples(bert, row(["a", "b"], ["O", None]))
    with pytest.raises(DataError, match=r"a.jsonl:7: tag 'B-X' of word 2, 'b', is not among"):
        make_examples(bert, row(["a", "b"], ["O", "B-X"]), "score")
    with pytest.raises(DataError, match="no column 'tokens'"):
        make_examples(bert, [Row({"words": ["a"]}, "a.jsonl:7")], "predict")


def test_tags_that_were_never_learned_are_wrong_answers(bert: str) -> None:
    tags = ["B-NEW", *ROWS[1].values["tags"][1:]]
    rows = [Row({**ROWS[1].values, "tags": tags}, "a.jsonl:7")]
    examples = make_examples(bert, rows, "score", unseen="wrong")
    assert examples.tags == (tuple(tags),)
    batch = examples.collate(np.zeros(1, int), np.array([0]))
    assert int((batch.targets["tag"] != IGNORE).sum()) == len(tags) - 1  # no loss of the first word
    right = [{"prediction": ROWS[1].values["tags"]}]
    results = examples.compute_metrics(right)
    assert results["unseen_tags"] == 1
    assert results["accuracy"] == pytest.approx((len(tags) - 1) / len(tags))


def test_sentences_without_words(bert: str) -> None:
    rows = [Row({"tokens": [], "tags": []}, "a:1"), ROWS[1]]
    examples = make_examples(bert, rows)
    assert examples.dropped == ("a:1: no words",)
    assert len(examples) == 1
    examples = make_examples(bert, rows, "score")
    predictions = answers(loaded(bert), examples, torch.device("cpu"))
    assert [len(answer["prediction"]) for answer in predictions] == [0, 2]
    nothing = make_examples(bert, rows[:1], "predict")
    assert answers(loaded(bert), nothing, torch.device("cpu"))[0]["prediction"] == []


def test_texts_may_be_cut_into_characters(bert: str) -> None:
    examples = make_examples(
        bert, [Row({"tokens": "我爱 rome"}, "a:1")], "predict", split="characters"
    )
    assert examples.sentences == (("我", "爱", "r", "o", "m", "e"),)


def test_a_family_without_the_head_is_refused(tmp_path: Path) -> None:
    from transformers import OpenAIGPTConfig, T5Config

    OpenAIGPTConfig(n_embd=16, n_layer=1, n_head=2).save_pretrained(tmp_path / "gpt1")
    T5Config().save_pretrained(tmp_path / "t5")
    for name in ("gpt1", "t5"):
        with pytest.raises(ConfigError, match="has no head for tagging"):
            tagging.Tagging(tagging.Config()).check(str(tmp_path / name), T5Config())


def test_published_taggers_are_known_by_their_class(bert: str, tmp_path: Path) -> None:
    network = load_head(tagging.Tagging(tagging.Config()), bert, LABELS, new_heads=print)
    network.save_pretrained(tmp_path)
    known = read_finetuned(str(tmp_path))
    assert (known.config.name, known.labels) == ("tagging", LABELS)
