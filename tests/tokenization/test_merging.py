"""Merging, held to a version of a few lines and to the tokenizers library."""

import json
import random
import re
import unicodedata
from collections import Counter
from operator import add

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from plmctl.tokenization.algorithms.base import (
    CONTINUES,
    frequent_characters,
    learn_merges,
    words_as_symbols,
)
from plmctl.tokenization.train import (
    LONGEST_UNIT,
    as_normalized,
    count_units,
    count_words,
)
from plmctl.tokenization.units import Kind, pattern
from tests.tokenization.conftest import TEXTS, config_of, template_of, train

Rows = list[tuple[list[str], int]]


def merged(row: list[str], pair: tuple[str, str]) -> list[str]:
    out: list[str] = []
    for symbol in row:
        # Greedily from the left; "+" marks what this merge has made, which is not merged again.
        if out and (out[-1], symbol) == pair:
            out[-1] = "".join(pair) + "+"
        else:
            out.append(symbol)
    return [symbol.removesuffix("+") for symbol in out]


def naive(counts: dict[str, int], size: int, min_frequency: int) -> list[tuple[str, str]]:
    """Byte-pair encoding as the paper has it: count all pairs, merge the best, count again."""
    tokens = sorted({character for word in counts for character in word})
    rows: Rows = [(list(word), number) for word, number in counts.items()]
    merges: list[tuple[str, str]] = []
    while len(tokens) < size:
        pairs: Counter[tuple[str, str]] = Counter()
        for row, number in rows:
            for pair in zip(row, row[1:], strict=False):
                pairs[pair] += number
        best = min(pairs, key=lambda p: (-pairs[p], *map(tokens.index, p)), default=None)
        if best is None or pairs[best] < min_frequency:
            break
        rows = [(merged(row, best), number) for row, number in rows]
        merges += [] if best in merges else [best]
        tokens += [] if "".join(best) in tokens else ["".join(best)]
    return merges


WORDS = st.dictionaries(st.text("abc", min_size=1, max_size=9), st.integers(1, 9), max_size=12)


@settings(deadline=None)
@given(WORDS, st.integers(3, 40), st.integers(1, 4))
@example({"aaaaa": 3, "aaaa": 1, "baab": 2}, 30, 1)
@example({"ababab": 2, "babab": 3}, 30, 1)
@example({"abcabc": 4, "bcabca": 4, "cab": 9}, 40, 1)
def test_merges_are_those_of_the_definition(
    counts: dict[str, int], size: int, min_frequency: int
) -> None:
    seen: list[int] = []
    result = learn_merges(
        words_as_symbols(counts, None, None),
        size,
        min_frequency=min_frequency,
        join=add,
        progress=lambda done, _: seen.append(done),
    )
    pairs = [(result.tokens[a], result.tokens[b]) for a, b in result.pairs]
    assert pairs == naive(counts, size, min_frequency)
    assert len(result.tokens) <= max(size, len(set("".join(counts))))
    assert seen == sorted(seen)


def byte_words(texts: list[str]) -> dict[str, int]:
    cutter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return Counter(word for text in texts for word, _ in cutter.pre_tokenize_str(text))


@pytest.mark.parametrize("min_frequency", [2, 7])
def test_byte_level_merges_are_those_of_the_library(min_frequency: int) -> None:
    texts = TEXTS[:5] * 2 + TEXTS[1:4] + TEXTS[2:3]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500, min_frequency=min_frequency, initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(texts, trainer)
    expected = json.loads(library.to_str())["model"]
    codes = np.array(sorted(map(ord, alphabet)), dtype=np.uint32)
    result = learn_merges(
        words_as_symbols(byte_words(texts), None, codes),
        500,
        min_frequency=min_frequency,
        join=add,
        progress=lambda done, total: None,
    )
    pairs = [[result.tokens[a], result.tokens[b]] for a, b in result.pairs]
    assert pairs == expected["merges"]
    assert len(pairs) > 20
    assert result.tokens == sorted(expected["vocab"], key=expected["vocab"].__getitem__)


def test_symbols_of_words() -> None:
    words = words_as_symbols({"aba": 3, "cb": 2}, "continues", None)
    assert words.tokens == ["a", "b", "c", "##a", "##b"]
    assert words.symbols.tolist() == [0, 4, 3, 2, 4]
    assert words.starts.tolist() == [True, False, False, True, False]
    assert words.weights.tolist() == [3, 3, 3, 2, 2]
    words = words_as_symbols({"aba": 3, "cb": 2}, "ends", None)
    assert words.tokens == ["a", "b", "c", "a</w>", "b</w>", "c</w>"]
    assert words.symbols.tolist() == [0, 1, 3, 2, 4]


def test_a_character_out_of_the_alphabet_ends_a_piece() -> None:
    alphabet = np.array([ord("a"), ord("b")], dtype=np.uint32)
    words = words_as_symbols({"abxab": 1, "x": 5, "xa": 2}, "continues", alphabet)
    assert [words.tokens[s] for s in words.symbols] == ["a", "##b", "##a", "##b", "##a"]
    assert words.starts.tolist() == [True, False, True, False, True]


def test_frequent_characters() -> None:
    counts = {"aab": 10, "c": 15, "d": 1}
    assert list(map(chr, frequent_characters(counts, 2))) == ["a", "c"]
    assert list(map(chr, frequent_characters(counts, None))) == ["a", "b", "c", "d"]
    # One in 30,000 may be unknown, one in 10,000 may not.
    assert list(map(chr, frequent_characters({"a": 29_999, "b": 1}, None))) == ["a"]
    assert list(map(chr, frequent_characters({"a": 9_999, "b": 1}, None))) == ["a", "b"]


def test_joining_drops_the_mark_of_the_right_piece() -> None:
    result = learn_merges(
        words_as_symbols({"abc": 5}, "continues", None),
        9,
        min_frequency=2,
        join=lambda left, right: left + right.removeprefix(CONTINUES),
        progress=lambda done, total: None,
    )
    assert result.tokens == ["a", "b", "c", "##b", "##c", "ab", "abc"]


# Counts: exact while they fit, unbiased and bounded when they do not.


@pytest.mark.parametrize("kind", ["marks", "bytes", "spaces"])
def test_counts_are_exact_while_they_fit(kind: Kind) -> None:
    expected = Counter(unit for text in TEXTS for unit in pattern(kind).findall(text))
    counts = count_units(TEXTS, kind, budget=10_000, seed=1)
    assert dict(zip(counts.units, counts.numbers.tolist(), strict=True)) == expected
    assert counts.units == sorted(expected)
    assert counts.threshold == 1
    assert counts.characters == sum(map(len, TEXTS))


@pytest.mark.parametrize("kind", ["marks", "bytes", "spaces"])
def test_units_have_all_of_a_text(kind: Kind) -> None:
    removed = re.compile(r"\s+") if kind != "bytes" else re.compile("$^")
    for text in TEXTS:
        assert "".join(pattern(kind).findall(text)) == removed.sub("", text)


@settings(deadline=None)
@given(
    st.lists(st.text("aBé01 \n\t'`.,!中\u0301\u2581\u0120\uff21\x00", max_size=20), max_size=5),
    st.sampled_from(
        ["byte_bpe gpt2", "bpe gpt1", "wordpiece bert", "unigram t5", "unigram albert"]
    ),
    st.sampled_from([{}, {"lowercase": True}, {"strip_accents": True}, {"normalization": "nfkc"}]),
)
def test_words_are_those_of_the_library(
    texts: list[str], tokenizer: str, rules: dict[str, object]
) -> None:
    config = config_of(*tokenizer.split(), **rules)
    library = template_of(config).make({}).backend_tokenizer
    texts = [*texts, *TEXTS]
    kind = template_of(config).kind
    counts = count_units(as_normalized(texts, library, kind), kind, budget=10**6, seed=1)
    expected: Counter[str] = Counter()
    for text in texts:
        normal = library.normalizer.normalize_str(text) if library.normalizer else text
        expected.update(word for word, _ in library.pre_tokenizer.pre_tokenize_str(normal))
    assert count_words(library, counts) == expected


def test_text_in_separate_accents_is_learned_as_the_tokenizer_reads_it() -> None:
    texts = [unicodedata.normalize("NFD", "tiếng Việt được nói ở nước")] * 20
    config = config_of("byte_bpe", "gpt2", normalization="nfc")
    library = train(config, texts).tokenizer.backend_tokenizer
    assert len(library.encode(texts[0]).ids) == 6  # a token for each word


def test_long_units_are_cut() -> None:
    counts = count_units(["x" * 1000, "中" * 1000], "bytes", budget=10**6, seed=1)
    assert max(map(len, counts.units)) == LONGEST_UNIT
    assert sum(np.array(list(map(len, counts.units))) * counts.numbers) == 2000


def test_a_line_without_spaces_that_is_larger_than_the_table() -> None:
    draws = random.Random(1)
    line = "".join(draws.choices("acgt", k=200_000))
    counts = count_units([line], "bytes", budget=20_000, seed=1)
    assert counts.threshold > 1
    seen = sum(
        len(unit) * number for unit, number in zip(counts.units, counts.numbers, strict=True)
    )
    assert 150_000 < seen < 250_000  # pieces of 64 letters were sampled, not the line as a whole


def noise(lines: int) -> list[str]:
    """Lines of a frequent word, some less frequent ones, and words that never come again."""
    draws = random.Random(7)
    return [
        f"the w{draws.randrange(50)} " + " ".join(f"{draws.getrandbits(64):016x}" for _ in range(8))
        for _ in range(lines)
    ]


@pytest.fixture
def small_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plmctl.tokenization.train._CHECK_EVERY", 1000)


@pytest.mark.usefixtures("small_looks")
def test_a_full_table_is_thinned_without_bias() -> None:
    lines = noise(4000)
    counts = count_units(lines, "spaces", budget=20_000, seed=1)
    table = dict(zip(counts.units, counts.numbers.tolist(), strict=True))
    assert counts.threshold > 1
    assert sum(map(len, table)) <= 20_000
    # What is frequent is there and exact, but for what was lost while it was rare: nothing here.
    assert table["the"] == 4000
    # Together the words that never come again count as often as they were seen: 32,000 times,
    # with a standard deviation of the square root of that times the threshold.
    rare = sum(number for unit, number in table.items() if len(unit) == 16)
    assert abs(rare - 32_000) < 5 * (32_000 * counts.threshold) ** 0.5


@pytest.mark.usefixtures("small_looks")
def test_thinning_depends_on_the_seed_alone() -> None:
    lines = noise(2000)
    first = count_units(lines, "spaces", budget=20_000, seed=1)
    again = count_units(lines, "spaces", budget=20_000, seed=1)
    other = count_units(lines, "spaces", budget=20_000, seed=2)
    assert first.units == again.units
    assert first.numbers.tolist() == again.numbers.tolist()
    assert first.units != other.units
