"""Nearest words in context: by hand over all pairs, for an encoder and ELMo."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
)

from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.neighbours import WordUse, find_use, nearest, spans_of, vector_reader
from plmctl.models.elmo import ElmoConfig, ElmoForPreTraining
from tests.evaluation.models import SENTENCES, opened, pieces, tiny_bert


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("near") / "bert"
    tiny_bert(folder, layers=2, positions=40, seed=1)
    return folder


@pytest.fixture(scope="module")
def elmo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("near") / "elmo"
    pieces(folder)
    torch.manual_seed(1)
    filters = [[1, 8], [2, 8]]
    config = ElmoConfig(vocab_size=20, filters=filters, projection_size=8, cell_size=16)
    ElmoForPreTraining(config).save_pretrained(folder)
    return folder


def test_words_of_a_sentence() -> None:
    def words(sentence: str, word: str = "x") -> list[str]:
        return [sentence[start:end] for start, end in spans_of(sentence, word)]

    assert words(SENTENCES[3]) == ["don't", "look", "the", "well", "known", "bank"]
    assert words(SENTENCES[3], "Well-Known")[-1] == "well-known"
    assert words(SENTENCES[2]) == list("他在银行工作")
    assert words(SENTENCES[2], "银行")[-1] == "银行"


def test_the_first_use_is_found() -> None:
    assert find_use("BANK", SENTENCES) == WordUse(SENTENCES[0], (24, 28))
    assert find_use("银行", SENTENCES).word == "银行"
    with pytest.raises(DataError, match="in none of 5 sentences"):
        find_use("ban", SENTENCES)


@pytest.mark.parametrize("word", ["bank", "银行"])
@pytest.mark.parametrize("kind", ["bert", "elmo"])
def test_neighbours_are_those_of_all_pairs(
    kind: str, word: str, request: pytest.FixtureRequest
) -> None:
    """Every word's vector from its sentence alone; the order by cosine, the use itself left out."""
    read = vector_reader(opened(request.getfixturevalue(kind)), -1)
    use = find_use(word, SENTENCES)
    everything = []
    for sentence in SENTENCES:
        ((places, states),) = read([sentence])
        for start, end in spans_of(sentence, word):
            inside = [n for n, (s, e) in enumerate(places) if s < end and e > start]
            everything.append((sentence, (start, end), states[inside].mean(0)))
    query = next(v for s, span, v in everything if (s, span) == (use.sentence, use.span))

    def cosine(vector: np.ndarray) -> float:
        return float(vector @ query / np.linalg.norm(vector) / np.linalg.norm(query))

    others = [(s, span, cosine(v)) for s, span, v in everything]
    start, end = use.span  # neither the use itself nor a part of it, such as one of its characters
    others = [o for o in others if o[0] != use.sentence or o[1][0] >= end or o[1][1] <= start]
    expected = sorted(others, key=lambda one: -one[2])[:6]
    for batch_size in (1, 3):
        neighbours, unseen = nearest(read, use, SENTENCES, 6, batch_size)
        assert unseen == 0
        assert [(u.sentence, u.span) for u in neighbours] == [one[:2] for one in expected]
        assert [u.similarity for u in neighbours] == pytest.approx(
            [o[2] for o in expected], abs=1e-4
        )


def test_words_behind_the_last_position_are_counted(bert: Path) -> None:
    read = vector_reader(opened(bert), -1)
    use = find_use("bank", SENTENCES)
    long = "the bank " * 30
    neighbours, unseen = nearest(read, use, [long], 100, 2)
    assert unseen > 0
    assert len(neighbours) + unseen == 60
    with pytest.raises(DataError, match="after the last position"):
        nearest(read, WordUse(long, (261, 265)), [long], 1, 1)


def test_models_without_such_vectors_are_refused(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no layer 3"):
        vector_reader(opened(bert), 3)
    config = GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=20)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="plmctl generate"):
        vector_reader(opened(tmp_path), -1)
