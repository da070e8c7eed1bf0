"""Likelihoods against transformers' own losses, one text and one mask at a time."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
)

from plmctl.errors import ConfigError
from plmctl.evaluation.likelihood import (
    BidirectionalLikelihood,
    CausalLikelihood,
    Likelihood,
    MaskedLikelihood,
    ScoringOptions,
    equal_pieces,
    masked_until,
    sliding_windows,
)
from plmctl.evaluation.model import LoadedModel, TokenizedText
from plmctl.models.elmo import ElmoForPreTraining, encode_sentences
from tests.commands.conftest import sentence
from tests.evaluation.models import FAMILIES, opened

Folders = Callable[[str], Path]
MASKED = ["bert", "distilbert", "roberta", "albert"]
TEXTS = [
    [sentence(n) for n in range(3)],
    [sentence(5)],
    ["Ida paints the unforgettable lighthouse.", sentence(8)],
    [sentence(n) for n in range(20, 28)],
]


def scorer(folder: Path) -> tuple[Likelihood, list[TokenizedText]]:
    likelihood = Likelihood.of(opened(folder))
    return likelihood, likelihood.model.tokens(TEXTS)


def hf_nll(model: torch.nn.Module, ids: list[int], labels: list[int], **inputs: object) -> float:
    """The loss that transformers gives, times the number of labels that it averages over."""
    with torch.no_grad():
        loss = model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels]), **inputs).loss
    return float(loss) * sum(label != -100 for label in labels)


@pytest.mark.parametrize("family", ["gpt1", "gpt2"])
def test_one_window_is_transformers_loss(family: str, folder_of: Folders) -> None:
    likelihood, texts = scorer(folder_of(family))
    model = AutoModelForCausalLM.from_pretrained(folder_of(family)).eval()
    short = [text for text in texts if len(text.ids) < 48]
    scores = likelihood.score(short, ScoringOptions(stride=likelihood.model.context, begin=False))
    assert short
    for text, nll, scored in zip(short, scores.nll, scores.scored, strict=True):
        ids = text.ids.tolist()
        expected = hf_nll(model, ids, [-100, *ids[1:]])  # shifted there, so that n - 1 are scored
        assert nll == pytest.approx(expected, rel=1e-5)
        assert scored == len(ids) - 1
    assert scores.first.tolist() == [1] * len(short)


@pytest.mark.parametrize(("size", "stride"), [(16, 16), (16, 5), (7, 1), (48, 24)])
def test_sliding_windows_against_one_token_at_a_time(
    size: int, stride: int, folder_of: Folders
) -> None:
    likelihood, texts = scorer(folder_of("gpt2"))
    model = AutoModelForCausalLM.from_pretrained(folder_of("gpt2")).eval()
    eos = AutoTokenizer.from_pretrained(folder_of("gpt2")).eos_token_id
    assert likelihood.model.start == (eos,)
    scores = likelihood.score(texts, ScoringOptions(size, stride))
    assert scores.scored.tolist() == [len(text.ids) for text in texts]
    assert not scores.first.any()
    ids = [eos, *texts[3].ids.tolist()]
    assert len(ids) > 2 * size or size == 48
    expected = 0.0
    for target in range(1, len(ids)):
        # The first window, begun at a multiple of the stride, that reaches this far.
        begin = max(0, math.ceil((target - size) / stride) * stride)
        with torch.no_grad():
            logits = model(torch.tensor([ids[begin:target]])).logits[0, -1]
        expected -= float(logits.log_softmax(-1)[ids[target]])
    assert scores.nll[3] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("family", MASKED)
def test_pseudo_likelihood_against_a_plain_loop(family: str, folder_of: Folders) -> None:
    likelihood, texts = scorer(folder_of(family))
    model = AutoModelForMaskedLM.from_pretrained(folder_of(family)).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder_of(family))
    scores = likelihood.score(texts, ScoringOptions(60, variant="original"))
    assert scores.scored.tolist() == [len(text.ids) for text in texts]
    for number in (1, 2):
        ids = [tokenizer.cls_token_id, *texts[number].ids.tolist(), tokenizer.sep_token_id]
        assert number == 2 or ids == tokenizer(TEXTS[number][0]).input_ids
        assert len(ids) <= 60
        expected = 0.0
        for place in range(1, len(ids) - 1):
            copy, labels = list(ids), [-100] * len(ids)
            copy[place], labels[place] = tokenizer.mask_token_id, ids[place]
            expected += hf_nll(model, copy, labels)
        assert scores.nll[number] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_decoder_of_both_sides_is_read_one_position_earlier(
    family: str, folder_of: Folders, tmp_path: Path
) -> None:
    """A plain loop: transformers' own network with ``is_causal`` false, one masked copy a token."""
    folder = tmp_path / "model"
    shutil.copytree(folder_of(family), folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with pytest.raises(ConfigError, match=r"no \[MASK\]"):
        both_sides(folder).score_sentences(["Anna sees Bela."])
    tokenizer.add_special_tokens({"mask_token": tokenizer.convert_ids_to_tokens(200)})
    tokenizer.save_pretrained(folder)
    likelihood = both_sides(folder)
    assert isinstance(likelihood, MaskedLikelihood)
    texts = likelihood.model.tokens(TEXTS)
    scores = likelihood.score(texts, ScoringOptions(48))
    assert scores.scored.tolist() == [len(text.ids) for text in texts]
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    model.config.is_causal = False
    whole = [number for number, text in enumerate(texts) if len(text.ids) < 48]
    assert whole
    for number in whole:
        ids = [tokenizer.eos_token_id, *texts[number].ids.tolist()]
        expected = 0.0
        for place in range(1, len(ids)):
            copy = torch.tensor([ids])
            copy[0, place] = tokenizer.mask_token_id
            with torch.no_grad():
                logits = model(copy).logits[0, place - 1]
            expected -= float(logits.log_softmax(-1)[ids[place]])
        assert scores.nll[number] == pytest.approx(expected, rel=1e-5)
    assert isinstance(Likelihood.of(opened(folder)), CausalLikelihood)


def both_sides(folder: Path) -> Likelihood:
    return Likelihood.of(LoadedModel(str(folder), both_sides=True))


def test_whole_words_from_left_to_right(folder_of: Folders) -> None:
    """The later tokens of a word are masked with it, the earlier ones are seen."""
    likelihood, texts = scorer(folder_of("bert"))
    model = AutoModelForMaskedLM.from_pretrained(folder_of("bert")).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder_of("bert"))
    scores = likelihood.score(texts, ScoringOptions(40, variant="word_l2r"))
    read = tokenizer(TEXTS[2][0])
    words, ids = read.word_ids(), read.input_ids
    assert len(set(words)) < len(words) - 5  # the long word is several tokens
    expected = 0.0
    for place in range(1, len(ids) - 1):
        labels = [-100] * len(ids)
        labels[place] = ids[place]
        copy = [
            tokenizer.mask_token_id if n >= place and words[n] == words[place] else id_
            for n, id_ in enumerate(ids)
        ]
        expected += hf_nll(model, copy, labels)
    alone = likelihood.score(
        likelihood.model.tokens([TEXTS[2][:1]]), ScoringOptions(40, variant="word_l2r")
    )
    assert alone.nll[0] == pytest.approx(expected, rel=1e-5)
    plain = likelihood.score(texts, ScoringOptions(40, variant="original"))
    assert abs(plain.nll[2] - scores.nll[2]) > 0.01


def test_masked_until() -> None:
    starts = np.array([True, False, False, True, True, False])
    assert masked_until(starts, "word_l2r").tolist() == [3, 3, 3, 4, 6, 6]
    assert masked_until(starts, "original").tolist() == [1, 2, 3, 4, 5, 6]
    inside = np.array([False, False, True])  # a piece that begins within a word
    assert masked_until(inside, "word_l2r").tolist() == [2, 2, 3]


def test_spans_are_transformers_loss(folder_of: Folders) -> None:
    likelihood, texts = scorer(folder_of("t5"))
    model = AutoModelForSeq2SeqLM.from_pretrained(folder_of("t5")).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder_of("t5"))
    sentinel = tokenizer.convert_tokens_to_ids("<extra_id_0>")
    scores = likelihood.score(texts, ScoringOptions(500, span=3))
    assert scores.scored.tolist() == [len(text.ids) for text in texts]
    ids = texts[2].ids.tolist()
    expected = 0.0
    for first in range(0, len(ids), 3):
        source = [*ids[:first], sentinel, *ids[first + 3 :], tokenizer.eos_token_id]
        # What is not scored is still what the decoder reads.
        labels = [sentinel, *ids[first : first + 3]]
        begun = torch.tensor([[model.config.decoder_start_token_id, *labels[:-1]]])
        expected += hf_nll(model, source, [-100, *labels[1:]], decoder_input_ids=begun)
    assert scores.nll[2] == pytest.approx(expected, rel=1e-5)


def test_a_sentence_hidden_as_a_whole(folder_of: Folders) -> None:
    likelihood, _ = scorer(folder_of("t5"))
    model = AutoModelForSeq2SeqLM.from_pretrained(folder_of("t5")).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder_of("t5"))
    sentinel = tokenizer.convert_tokens_to_ids("<extra_id_0>")
    ids = tokenizer(sentence(5), add_special_tokens=False).input_ids
    begun = torch.tensor([[model.config.decoder_start_token_id, sentinel, *ids[:-1]]])
    source = [sentinel, tokenizer.eos_token_id]
    expected = -hf_nll(model, source, [-100, *ids], decoder_input_ids=begun)
    scores = likelihood.score_sentences([sentence(5), sentence(6)])
    assert scores.log_probability[0] == pytest.approx(expected, rel=1e-5)


def test_both_directions_of_one_sentence(folder_of: Folders) -> None:
    """Against the encoder for finetuning, which puts the marks around a sentence by itself."""
    likelihood, _ = scorer(folder_of("elmo"))
    model = ElmoForPreTraining.from_pretrained(folder_of("elmo")).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder_of("elmo"))
    text = sentence(5)
    ids = tokenizer(text, add_special_tokens=False).input_ids
    words = [tokenizer.convert_ids_to_tokens(id_) for id_ in ids]
    with torch.no_grad():
        characters = torch.from_numpy(encode_sentences([words]))
        inner = model.elmo._with_boundaries(characters.long(), torch.tensor([len(words)]))
        vectors = model.elmo.characters(inner.flatten(0, 1)).view(1, len(words) + 2, -1)
        layers, _ = model.elmo.run(torch.stack([vectors, vectors.flip(1)]))
        forward, backward = model.head(layers[-1]).log_softmax(-1)[:, 0]
    expected = sum(float(forward[n, id_]) for n, id_ in enumerate(ids))
    expected += sum(float(backward[n, id_]) for n, id_ in enumerate(reversed(ids)))
    scores = likelihood.score(likelihood.model.tokens([[text]]), ScoringOptions())
    assert scores.nll[0] == pytest.approx(-expected / 2, rel=1e-5)
    assert scores.scored[0] == len(ids)


def test_the_state_is_kept_through_a_text(folder_of: Folders) -> None:
    """More words than a window, sentence by sentence with the state given on by hand."""
    likelihood, texts = scorer(folder_of("elmo"))
    assert isinstance(likelihood, BidirectionalLikelihood)
    model = ElmoForPreTraining.from_pretrained(folder_of("elmo")).eval()
    text = texts[3]
    assert len(text.ids) > 70
    table = torch.from_numpy(likelihood.word_characters(0, 1))
    parts = np.split(text.ids, np.cumsum(text.sentences)[:-1])
    expected, state = 0.0, None
    with torch.no_grad():
        for forward, backward in zip(parts, reversed(parts), strict=True):
            if len(forward) != len(backward):
                pytest.fail("choose sentences of one length: both directions are fed together")
            rows = [np.append(0, forward), np.append(1, backward[::-1])]
            words = torch.from_numpy(np.stack(rows))[:, None]
            out = model(table, words, state)
            state = out.state
            for logits, row in zip((out.forward_logits, out.backward_logits), rows, strict=True):
                log_probs = logits[0].log_softmax(-1)
                expected -= sum(float(log_probs[n, id_]) for n, id_ in enumerate(row[1:]))
    scores = likelihood.score(texts, ScoringOptions())
    assert scores.nll[3] == pytest.approx(expected / 2, rel=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_neither_batch_size_nor_order_changes_anything(
    family: str, folder_of: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "plmctl.evaluation.model._ROW_TOKENS", 30
    )  # one row a batch where batch_size is 1
    results = []
    for batch_size, order in ((32, [0, 1, 2, 3]), (1, [2, 3, 1, 0])):
        likelihood = Likelihood.of(opened(folder_of(family), batch_size))
        texts = [TEXTS[number] for number in order]
        scores = likelihood.score(
            likelihood.model.tokens(texts), ScoringOptions(24, 10, variant="word_l2r")
        )
        single = likelihood.score_sentences([text[0] for text in texts])
        back = np.argsort(order)
        results.append((scores.nll[back], single.log_probability[back]))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_token_is_scored_once(family: str, folder_of: Folders) -> None:
    likelihood, texts = scorer(folder_of(family))
    for options in (ScoringOptions(24, 24), ScoringOptions(24, 1), ScoringOptions(9, 4)):
        scores = likelihood.score(texts, options)
        assert (scores.scored + scores.first).tolist() == [len(text.ids) for text in texts]


def test_a_long_sentence_is_cut_from_the_left_and_counted(folder_of: Folders) -> None:
    likelihood, _ = scorer(folder_of("bert"))
    long = " ".join(sentence(n) for n in range(9))
    ids = likelihood.model.tokens([[long]])[0].ids
    assert len(ids) > likelihood.model.context
    scores = likelihood.score_sentences([long, sentence(1)])
    assert scores.cut == 1
    kept = TokenizedText(ids[-58:], np.ones(58, bool), np.array([58]))
    expected = likelihood.score([kept], ScoringOptions(60, variant="original")).nll[0]
    assert scores.log_probability[0] == pytest.approx(-expected, rel=1e-5)


def test_unknown_text_is_counted_in_bytes(folder_of: Folders) -> None:
    likelihood, _ = scorer(folder_of("bert"))
    text = likelihood.model.tokens([["Anna sees 龍 and ☃☃.", "A bridge."], ["Anna."]])
    assert (text[0].unknown, text[0].unknown_bytes) == (2, 3 + 6)
    assert (text[1].unknown, text[1].unknown_bytes) == (0, 0)
    elmo, _ = scorer(folder_of("elmo"))
    words = elmo.model.tokens([["Anna sees Überraschung ."]])[0]
    assert (words.unknown, words.unknown_bytes) == (1, len("Überraschung".encode()))


@given(st.integers(0, 200), st.integers(1, 40), st.data())
def test_windows_score_every_prediction_once(count: int, size: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, size))
    scored = []
    for number, window in enumerate(sliding_windows(count, size, stride)):
        assert window.begin == number * stride
        assert window.begin <= window.first < window.end <= count
        assert window.end - window.begin <= size
        scored += range(window.first, window.end)
    assert scored == list(range(count))


def test_windows_by_hand() -> None:
    assert list(sliding_windows(7, 4, 4)) == [(0, 0, 4), (4, 4, 7)]
    assert list(sliding_windows(7, 4, 2)) == [(0, 0, 4), (2, 4, 6), (4, 6, 7)]
    assert list(sliding_windows(3, 4, 1)) == [(0, 0, 3)]
    assert list(sliding_windows(0, 4, 1)) == []


@given(st.integers(0, 300), st.integers(1, 50))
def test_pieces_are_whole_and_even(count: int, size: int) -> None:
    pieces = equal_pieces(count, size)
    assert [place for start, end in pieces for place in range(start, end)] == list(range(count))
    lengths = [end - start for start, end in pieces]
    assert max(lengths, default=0) <= size
    assert max(lengths, default=0) - min(lengths, default=0) <= 1
