"""How well a tokenizer fits a text: of one tokenizer, of two side by side, and of languages.

A word here is a run of letters, marks and digits, whatever the tokenizer treats as a word, so that
the metrics of different tokenizers can be compared. In scripts without spaces between words
(Chinese, Japanese), each character is a word.
"""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from plmctl.arrays import Ints
from plmctl.tokenization.units import SPACE_MARK

_UNSPACED = {"cjk": "chinese", "hiragana": "japanese", "katakana": "japanese"}
_LONGEST = 10  # listed tokens


@dataclass(frozen=True)
class Fertility:
    """How the words of one script are cut.

    Attributes:
        whole: Number of words that are one token, other than the unknown token.
    """

    words: int
    tokens: int
    whole: int


@dataclass(frozen=True)
class Quality:
    """A tokenizer on a text.

    Attributes:
        bytes: Bytes of the text in UTF-8.
        tokens: Tokens of the text, without those that a template adds.
        unknown: Characters in unknown tokens.
        unused: Tokens that do not occur in the text, by id, without special tokens.
        longest: The tokens with most characters, without marks.
        surfaces: The text of each token, without marks.
    """

    vocabulary: int
    bytes: int
    characters: int
    tokens: int
    unknown: int
    scripts: Mapping[str, Fertility]
    unused: Sequence[str]
    longest: Sequence[str]
    surfaces: frozenset[str]

    def metrics(self) -> dict[str, float]:
        """The key metrics by name."""
        words = sum(script.words for script in self.scripts.values())
        inside = sum(script.tokens for script in self.scripts.values())
        whole = sum(script.whole for script in self.scripts.values())
        return {
            "vocabulary": self.vocabulary,
            "bytes per token": self.bytes / max(1, self.tokens),
            "characters per token": self.characters / max(1, self.tokens),
            "tokens per word": inside / max(1, words),
            "words that are one token, %": 100 * whole / max(1, words),
            "unknown characters, %": 100 * self.unknown / max(1, self.characters),
            "ids not used here, %": 100 * len(self.unused) / max(1, self.vocabulary),
        }


def measure(tokenizer: Tokenizer, texts: Sequence[str]) -> Quality:
    """Measure a tokenizer on held-out lines.

    Args:
        tokenizer: As ``units.plain_tokenizer`` sets it.
        texts: Lines; no word continues in the next line.
    """
    encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    ids = np.array([n for encoding in encodings for n in encoding.ids], dtype=np.int64)
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    special = {n for n, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    spans = np.array([span for encoding in encodings for span in encoding.offsets], dtype=np.int64)
    spans = spans.reshape(-1, 2)
    unknown = ids == (-1 if (number := _unknown(tokenizer)) is None else number)
    needless = special | set(ids.tolist())
    surfaces = {surface(token, tokenizer) for token, n in vocab.items() if n not in special}
    return Quality(
        vocabulary=len({*vocab.values()}),
        bytes=sum(len(text.encode()) for text in texts),
        characters=sum(map(len, texts)),
        tokens=len(ids),
        unknown=int((spans[:, 1] - spans[:, 0])[unknown].sum()),
        scripts=_scripts(texts, [len(encoding) for encoding in encodings], spans, unknown),
        unused=[token for token, n in sorted(vocab.items(), key=_id) if n not in needless],
        longest=sorted(surfaces, key=lambda text: (-len(text), text))[:_LONGEST],
        surfaces=frozenset(surfaces - {""}),
    )


@dataclass(frozen=True)
class Fairness:
    """What a tokenizer makes of the same sentences in several languages.

    Attributes:
        tokens: Mean tokens per sentence, by language.
        pieces: Mean pieces of the pre-tokenizer, below which no vocabulary can get.
        bytes: Mean bytes.
        unknown: Share of the tokens that are unknown.
    """

    tokens: Mapping[str, float]
    pieces: Mapping[str, float]
    bytes: Mapping[str, float]
    unknown: Mapping[str, float]

    def metrics(self) -> dict[str, Any]:
        """All of it, with ``spread``, the dearest language over the cheapest, and ``gini``.

        Gini's coefficient: half of the mean difference of two languages over the mean, 0 if all pay
        the same.
        """
        costs = np.array(list(self.tokens.values()))
        differences = np.abs(costs[:, None] - costs[None, :]).sum()
        gini = float(differences / (2 * len(costs) ** 2 * costs.mean()))
        return asdict(self) | {"spread": float(costs.max() / costs.min()), "gini": gini}


def fairness(tokenizer: Tokenizer, lines: Mapping[str, Sequence[str]]) -> Fairness:
    """Measure a tokenizer on parallel lines, without special tokens.

    Args:
        tokenizer: As ``units.plain_tokenizer`` sets it.
    """
    normalizer, cutter = tokenizer.normalizer, tokenizer.pre_tokenizer
    normalize = normalizer.normalize_str if normalizer else str
    unknown = _unknown(tokenizer)
    tokens, pieces, sizes, shares = {}, {}, {}, {}
    for name, own in lines.items():
        encoded = tokenizer.encode_batch(list(own), add_special_tokens=False)
        ids = [id_ for one in encoded for id_ in one.ids]
        tokens[name] = len(ids) / len(own)
        cut = (len(cutter.pre_tokenize_str(normalize(line))) if cutter else 1 for line in own)
        pieces[name] = sum(cut) / len(own)
        sizes[name] = sum(len(line.encode()) for line in own) / len(own)
        shares[name] = sum(id_ == unknown for id_ in ids) / max(1, len(ids))
    return Fairness(tokens, pieces, sizes, shares)


def overlap(one: Quality, other: Quality) -> float:
    """Share of the smaller vocabulary that the other has too, without marks of word boundaries."""
    smaller = min(len(one.surfaces), len(other.surfaces))
    return len(one.surfaces & other.surfaces) / max(1, smaller)


def by_size(tokenizer: Tokenizer, texts: Sequence[str], sizes: Sequence[int]) -> list[float]:
    """Bytes per token if the vocabulary had only this number of ids, for each size.

    Byte-pair encodings keep the first merges, a Unigram model the most probable pieces, and
    WordPiece the first ids, which are the most frequent pieces if plmctl trained the vocabulary.
    All keep single characters.
    """
    settings = json.loads(tokenizer.to_str())
    bytes_per_token = []
    for size in sizes:
        model = _cut(settings["model"], size)
        smaller = Tokenizer.from_str(json.dumps({**settings, "model": model, "added_tokens": []}))
        tokens = sum(map(len, smaller.encode_batch(list(texts), add_special_tokens=False)))
        bytes_per_token.append(sum(len(text.encode()) for text in texts) / max(1, tokens))
    return bytes_per_token


def sizes_of(tokenizer: Tokenizer) -> list[int]:
    """Sizes to measure: powers of two above the number of single characters, and the whole size."""
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    alphabet = sum(len(surface(token, tokenizer)) <= 1 for token in vocab)
    powers = [2**power for power in range(7, 24)]
    whole = len({*vocab.values()})
    return [*(size for size in powers if 1.1 * alphabet < size < 0.95 * whole), whole]


def segments(tokenizer: Tokenizer, text: str) -> list[str]:
    """Consecutive parts of a text, one per token.

    Tokens that share a character, because each has some of its bytes, are one part.
    """
    offsets = tokenizer.encode(text, add_special_tokens=False).offsets
    edges = sorted({0, len(text), *(begin for begin, end in offsets if end > begin)})
    return [text[begin:end] for begin, end in zip(edges, edges[1:], strict=False)]


def surface(token: str, tokenizer: Tokenizer) -> str:
    """The text of a token without the marks of its algorithm."""
    kind = type(tokenizer.model).__name__
    if kind == "WordPiece":
        return token.removeprefix("##")
    if kind == "Unigram":
        return token.removeprefix(SPACE_MARK)
    if type(tokenizer.decoder).__name__ == "ByteLevel":
        text: str = tokenizer.decoder.decode([token])
        return text.strip() or text
    return token.removesuffix("</w>")


def _id(item: tuple[str, int]) -> int:
    return item[1]


def _unknown(tokenizer: Tokenizer) -> int | None:
    settings = json.loads(tokenizer.to_str())["model"]
    if settings.get("unk_id") is not None:
        return int(settings["unk_id"])
    token = settings.get("unk_token")
    number: int | None = tokenizer.token_to_id(token) if token else None
    return number


def _cut(model: dict[str, Any], size: int) -> dict[str, Any]:
    """The settings of a model with only the first tokens."""
    vocab = model["vocab"]
    if isinstance(vocab, list):  # Unigram: ids are positions, so the rest is made improbable
        order = sorted(range(len(vocab)), key=lambda n: -vocab[n][1])
        kept = set(order[:size]) | {model.get("unk_id")}
        never = min(score for _, score in vocab) * 100 - 100
        rows = [
            [token, score if n in kept or len(token) == 1 else never]
            for n, (token, score) in enumerate(vocab)
        ]
        return {**model, "vocab": rows}
    if "merges" in model:
        num_merges = max(0, size - (len(vocab) - len(model["merges"])))
        return {**model, "merges": model["merges"][:num_merges]}
    left = {
        token: n
        for token, n in vocab.items()
        if n < size or len(token.removeprefix("##")) == 1 or token == model["unk_token"]
    }
    return {**model, "vocab": left}


def _scripts(
    texts: Sequence[str], sizes: Sequence[int], spans: Ints, unknown: NDArray[np.bool_]
) -> dict[str, Fertility]:
    """How the words of each script are cut.

    Args:
        spans: The first character of each token in its text, and the end, [tokens, 2].
        unknown: Whether each is the unknown token, [tokens].
    """
    code = np.frombuffer("\n".join([*texts, ""]).encode("utf-32-le"), dtype="<u4")
    word, script, names = _words(code)
    begin = np.cumsum([0, *(len(text) + 1 for text in texts)])
    # A token belongs to the word of its last character: the first may be a space.
    of = word[np.repeat(begin[:-1], sizes) + np.maximum(spans[:, 1] - 1, spans[:, 0])]
    tokens = np.bincount(of[of >= 0], minlength=len(script))
    whole = tokens == 1
    whole[of[(of >= 0) & unknown]] = False
    result = {}
    for number, name in enumerate(names):
        mine = script == number
        result[name] = Fertility(int(mine.sum()), int(tokens[mine].sum()), int(whole[mine].sum()))
    return dict(sorted(result.items(), key=lambda item: (-item[1].words, item[0])))


def _words(code: NDArray[np.uint32]) -> tuple[Ints, Ints, list[str]]:
    """The word of each character, -1 for none; the script of each word; names of the scripts."""
    distinct, place = np.unique(code, return_inverse=True)
    scripts = [_script(chr(c)) for c in distinct.tolist()]
    names = sorted(set(scripts) - {""})
    number = np.array([names.index(name) if name else -1 for name in scripts])[place]
    alone = np.array([name in _UNSPACED.values() for name in scripts])[place]
    inside = number >= 0
    first = inside.copy()
    first[1:] &= ~inside[:-1] | alone[1:] | alone[:-1]
    word = np.where(inside, np.cumsum(first) - 1, -1)
    return word.astype(np.int64), number[first].astype(np.int64), names


@cache
def _script(character: str) -> str:
    """The script of a letter by its Unicode name, "digits", or an empty text for all others."""
    category = unicodedata.category(character)[0]
    if category == "N":
        return "digits"
    if category not in "LM":
        return ""
    name = unicodedata.name(character, "other").lower().split(" ")[0].split("-")[0]
    return _UNSPACED.get(name, name)
