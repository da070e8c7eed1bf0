"""The Unigram model: its lattice held to all ways to cut a word, its tokenizers to the families."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, trainers
from transformers import AutoTokenizer

from plmctl.errors import ConfigError
from plmctl.families.base import get_family
from plmctl.tokenization.algorithms.unigram import Lattice
from plmctl.tokenization.templates import nmt_nfkc, nmt_nfkc_replacements
from tests.tokenization.conftest import TEXTS, config_of, quiet, random_lines, template_of, train

Saved = Callable[[str, str], str]


def texts(lattice: Lattice) -> list[str]:
    return [lattice.text(number) for number in range(len(lattice.pieces))]


def test_expected_counts_by_hand() -> None:
    lattice = Lattice({"ab": 3, "a": 1}, 100)
    assert texts(lattice) == ["a", "b", "ab"]
    assert lattice.pieces.seen.tolist() == [4, 3, 3]
    # P(ab) = 1/2 as one piece and 1/16 as two: 8/9 and 1/9 of its 3 occurrences.
    expected = lattice.expected(np.array([0.25, 0.25, 0.5]))
    assert expected == pytest.approx([1 + 3 / 9, 3 / 9, 3 * 8 / 9])
    assert lattice.best(np.log([0.25, 0.25, 0.5])).tolist() == [1, 0, 3]
    assert lattice.best(np.log([0.45, 0.45, 0.1])).tolist() == [4, 3, 0]


def cuts(word: str, known: set[str]) -> Iterator[list[str]]:
    """All ways to cut a word into known pieces."""
    if not word:
        yield []
    for end in range(1, len(word) + 1):
        if word[:end] in known:
            yield from ([word[:end], *rest] for rest in cuts(word[end:], known))


WORDS = st.dictionaries(st.text("abc", min_size=1, max_size=7), st.integers(1, 5), min_size=1)


@settings(deadline=None, max_examples=60)
@given(WORDS, st.integers(0, 2**32))
def test_sums_over_all_ways_to_cut(counts: dict[str, int], seed: int) -> None:
    lattice = Lattice(counts, 1000)
    pieces = texts(lattice)
    log = np.random.default_rng(seed).uniform(-6, -0.1, len(pieces))
    of = dict(zip(pieces, log.tolist(), strict=True))
    mean, best = dict.fromkeys(pieces, 0.0), dict.fromkeys(pieces, 0.0)
    for word, number in counts.items():
        ways = list(cuts(word, set(pieces)))
        weight = [math.exp(sum(of[piece] for piece in way)) for way in ways]
        for way, share in zip(ways, weight, strict=True):
            for piece in way:
                mean[piece] += number * share / sum(weight)
        for piece in max(zip(weight, ways, strict=True))[1]:
            best[piece] += number
    assert lattice.expected(np.exp(log)) == pytest.approx(list(mean.values()))
    assert lattice.best(log) == pytest.approx(list(best.values()))
    score, paths = lattice.alternatives(log)
    for number, piece in enumerate(pieces):
        ways = [way for way in cuts(piece, set(pieces)) if len(way) > 1]
        highest = max((sum(of[part] for part in way) for way in ways), default=-math.inf)
        assert score[number] == pytest.approx(highest)
        parts = [pieces[part] for part in paths.part[paths.piece == number]][::-1]
        assert "".join(parts) == (piece if ways else "")


def test_pieces_that_are_dropped_leave_the_others() -> None:
    lattice = Lattice({"abab": 2, "ab": 1}, 100)
    pieces = texts(lattice)
    numbers = np.array([number for number, piece in enumerate(pieces) if piece != "abab"])
    lattice.keep(numbers)
    assert texts(lattice) == [piece for piece in pieces if piece != "abab"]
    best = lattice.best(np.array([-1.0 if piece == "ab" else -9.0 for piece in texts(lattice)]))
    assert best[texts(lattice).index("ab")] == 5


def test_characters_stay_whatever_the_limit() -> None:
    assert texts(Lattice({"abcabc": 2}, 3)) == ["a", "b", "c"]


@pytest.mark.parametrize("family", ["t5", "albert"])
def test_a_vocabulary_of_valid_probabilities(family: str) -> None:
    lines = random_lines(300)
    trained = train(config_of("unigram", family, vocab_size=300), lines)
    special = {*get_family(family).TOKENIZER.FIRST, *(f"<extra_id_{n}>" for n in range(100))}
    vocab = trained.tokenizer._vocab_scores  # type: ignore[attr-defined]  # as the class holds it
    pieces = {piece: score for piece, score in vocab if piece not in special}
    assert len(vocab) == len(trained.tokenizer) == trained.size == 300
    assert len({piece for piece, _ in vocab}) == 300
    assert all(score < 0 for score in pieces.values())
    # Not all pieces that were fitted are left, and Bayes takes some of each: less than one in all.
    total = sum(map(math.exp, pieces.values()))
    assert 0.5 < total <= 1
    again = train(config_of("unigram", family, vocab_size=300), lines)
    assert again.tokenizer._vocab_scores == vocab  # type: ignore[attr-defined]


def test_t5(saved: Saved) -> None:
    tokenizer = AutoTokenizer.from_pretrained(saved("unigram", "t5"))
    assert type(tokenizer).__name__ == "T5Tokenizer"
    assert tokenizer.convert_ids_to_tokens(range(3)) == ["<pad>", "</s>", "<unk>"]
    size = len(tokenizer)
    assert tokenizer.convert_tokens_to_ids([f"<extra_id_{n}>" for n in range(100)]) == list(
        range(size - 1, size - 101, -1)
    )
    assert tokenizer.model_max_length == 512
    ids = tokenizer("The cat <extra_id_0> mat", "the cats")["input_ids"]
    assert ids.count(1) == 2  # each ends
    assert ids[-1] == 1
    assert size - 1 in ids
    text = "The cat sat on the mats; they've said."
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
    # Control characters go, wide letters and odd spaces are the plain ones.
    plain = tokenizer("The cat sat")["input_ids"]
    assert tokenizer("Ｔｈｅ\u3000c\x07at\u200bsat")["input_ids"] == plain


def test_albert(saved: Saved) -> None:
    tokenizer = AutoTokenizer.from_pretrained(saved("unigram", "albert"))
    assert type(tokenizer).__name__ == "AlbertTokenizer"
    first = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.convert_ids_to_tokens(range(5)) == first
    pair = tokenizer("The CAFÉ, mat.", "the [MASK]")
    assert pair["input_ids"][0] == 2
    assert pair["input_ids"][-2:] == [4, 3]
    assert pair["token_type_ids"] == [0] * (pair["input_ids"].index(3) + 1) + [1] * (
        len(pair["input_ids"]) - pair["input_ids"].index(3) - 1
    )
    text = tokenizer.decode(tokenizer("The CAFÉ, mat.")["input_ids"], skip_special_tokens=True)
    assert text == "the cafe, mat."


@pytest.mark.parametrize("family", ["t5", "albert"])
def test_ids_are_the_same_without_plmctl(saved: Saved, family: str) -> None:
    folder = saved("unigram", family)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    plain = Tokenizer.from_file(f"{folder}/tokenizer.json")
    again = AutoTokenizer.from_pretrained(folder)
    for text in [*TEXTS[:5], "ﬁ ①\u0301 \ufeff 🙂 \x00 é", ""]:
        assert tokenizer(text)["input_ids"] == plain.encode(text).ids == again(text)["input_ids"]
    assert {path.suffix for path in Path(folder).iterdir()} == {".json"}


@pytest.mark.parametrize(
    ("family", "rules", "text", "tokens"),
    [
        ("t5", {"lowercase": True}, "The Cat", ["▁the", "▁cat"]),
        ("albert", {"lowercase": False}, "The", ["▁The"]),
        ("albert", {"strip_accents": False}, "café", ["▁café"]),
        ("albert", {"normalization": "nfkc"}, "ｃａｔ", ["▁cat"]),
        ("t5", {"normalization": "none"}, "the\u00a0cat", ["▁the", "▁cat"]),
    ],
)
def test_rules_of_ones_own(
    tmp_path: Path, family: str, rules: dict[str, Any], text: str, tokens: list[str]
) -> None:
    lines = [*TEXTS, *["the cat café The"] * 200]
    trained = train(config_of("unigram", family, vocab_size=450, **rules), lines)
    trained.tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.tokenize(text) == tokens
    assert len(loaded) == trained.size


def test_the_table_of_characters() -> None:
    from tokenizers.normalizers import Precompiled

    table = Precompiled(nmt_nfkc())
    changed = nmt_nfkc_replacements()
    for code in [*range(1, 0xD800), *range(0xE000, 0x110000, 7)]:
        character = chr(code)
        assert table.normalize_str(character) == changed.get(character, character)
    assert table.normalize_str("e\u0301ﬁ①\u200bx\u0007y\u3000z～") == "éfi1 xy z～"


def test_no_worse_than_the_library() -> None:
    """Tokens for the text: at most 2 % more than with the library's trainer."""
    lines = random_lines(600)
    config = config_of("unigram", "albert", vocab_size=250)
    ours = train(config, lines).tokenizer
    rules = template_of(config).make({}).backend_tokenizer
    library = Tokenizer(models.Unigram())
    library.normalizer, library.pre_tokenizer = rules.normalizer, rules.pre_tokenizer
    first, _ = template_of(config).special_tokens
    library.train_from_iterator(
        lines,
        trainers.UnigramTrainer(
            vocab_size=250, special_tokens=first, unk_token="<unk>", show_progress=False
        ),
    )
    count = sum(len(ids) for ids in ours(lines, add_special_tokens=False)["input_ids"])
    theirs = sum(len(encoding.ids) for encoding in library.encode_batch(lines))
    assert count <= 1.02 * theirs


def test_a_vocabulary_that_is_too_small() -> None:
    with pytest.raises(ConfigError, match="single characters") as caught:
        train(config_of("unigram", "t5", vocab_size=150), TEXTS)
    assert "103 special tokens" in caught.value.message


def test_the_rarest_words_are_left_out_of_a_full_lattice() -> None:
    from plmctl.tokenization.algorithms.unigram import fit_pieces, max_characters

    words = {"aaaa": 9, "bbbb": 5, "cccc": 2}
    pieces = fit_pieces(words, set("abc"), 3, 8, quiet("").__enter__())
    assert set("".join(pieces)) == {"a", "b"}
    assert max_characters(10**12) == 4_000_000
    assert max_characters(700_000_000) * 350 < 700_000_000 / 3
