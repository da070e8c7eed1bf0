"""Text to ids and word starts, for the token store."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import defaultdict
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from plmctl.errors import ConfigError
from plmctl.hub import refuse_unreachable
from plmctl.tokenization.check import check_tokenizer
from plmctl.tokenization.ids import Ids, chosen, encode_texts, encode_units, joined
from plmctl.tokenization.seams import Seams, seams_of
from plmctl.tokenization.units import (
    CUT,
    Kind,
    cuts_at_spaces_only,
    kind_of,
    pattern,
    plain,
)
from plmctl.tokenization.words import jieba_version

Encoded = list[tuple[NDArray[np.int64], NDArray[np.bool_]]]
"""Ids of each text, and whether a word starts at each."""

_TABLE = 200_000  # units kept: sixty megabytes; with more the processor's caches do worse
_LOOKED_AT = 5_000  # units of a batch
_NEW = 0.7  # share of them that are not in the table; more, and it does not pay
_RARE = 0.05  # share of texts with unspaced scripts, up to which these are no different from others
# Thai to Georgian, Khmer, and kana, Han and Hangul, as a rule without spaces.
_UNSPACED = re.compile("[\u0e00-\u10ff\u1780-\u17ff\u3005-\ud7a3\uf900-\uffdc]")


class Encoder:
    """Encodes texts without special tokens; text that looks like one is only text.

    Words repeat, so each distinct unit is given to the tokenizer once and then looked up: the ids
    are those of ``encode_batch``, several times as fast. Text without spaces has units of a few
    characters (``seams``). A tokenizer whose units are not known is given whole texts.

    It can be sent to another process: the tokenizer itself is loaded where it is used.

    Args:
        source: A tokenizer folder, or a Hub id, whose ``tokenizer.json`` is then fetched.
        words: Who says where words start: the pre-tokenizer, or within Chinese text jieba.

    Attributes:
        fingerprint: Hash of all that decides ids and word starts.

    Raises:
        ConfigError: There is no ``tokenizer.json``, it changed since it was trained, or jieba is
            not installed.
    """

    def __init__(self, source: str, words: Literal["pretokenizer", "jieba"] = "pretokenizer"):
        check_tokenizer(source)
        self._path, self._jieba = _tokenizer_file(source), words == "jieba"
        with self._path.open("rb") as file:
            self.fingerprint = hashlib.file_digest(file, "sha256").hexdigest()
        if self._jieba:
            self.fingerprint += f"+jieba-{jieba_version()}"

    def __getstate__(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("_path", "_jieba", "fingerprint")}

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.from_file(str(self._path))
        tokenizer.encode_special_tokens = True
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer

    @cached_property
    def _kind(self) -> Kind | None:
        return kind_of(self._tokenizer)

    @cached_property
    def _marks(self) -> bool:
        """Its pre-tokenizer leaves marks with the words beside them, as SentencePiece does."""
        return cuts_at_spaces_only(self._tokenizer)

    @cached_property
    def _seams(self) -> Seams | None:
        return seams_of(self._tokenizer)

    @cached_property
    def _table(self) -> _Table:
        if self._kind is None:
            raise TypeError("the units of this tokenizer are not known")
        return _Table(self._tokenizer, self._kind)

    @property
    def vocab_size(self) -> int:
        """Largest id + 1."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def __call__(self, texts: list[str]) -> Encoded:
        """Ids of each text, and whether a word starts at each id.

        Words are those of the pre-tokenizer, but of one that cuts at spaces only, a mark is a word
        of its own, as it is to BERT. A Chinese character begins a word unless it stands within a
        token or, with jieba, within a word of several.
        """
        if self._kind is None or self._jieba:  # words depend on what is around a character
            return self._encode_whole(texts)
        if self._kind != "spaces":
            return self._encode_units(texts, self._kind)
        alike = list(map(plain, texts))
        by_units = iter(self._encode_units(list(itertools.compress(texts, alike)), self._kind))
        others = [text for text, fits in zip(texts, alike, strict=True) if not fits]
        whole = iter(self._encode_whole(others))
        return [next(by_units if fits else whole) for fits in alike]

    def _encode_units(self, texts: list[str], kind: Kind) -> Encoded:
        units = self._units(texts, kind)
        if self._table.hardly_knows(units):
            return self._encode_whole(texts)
        return self._table.look_up(units)

    def _units(self, texts: list[str], kind: Kind) -> list[list[str]]:
        find = pattern(kind).findall
        if kind != "bytes":
            return list(map(find, texts))
        at = [n for n, text in enumerate(texts) if not text.isascii() and _UNSPACED.search(text)]
        if len(at) <= _RARE * len(texts) or self._seams is None:
            return list(map(find, texts))
        marked = dict(zip(at, self._seams.mark([texts[n] for n in at]), strict=True))
        return [
            CUT.join(find(marked[n])).split(CUT) if n in marked else find(text)
            for n, text in enumerate(texts)
        ]

    def _encode_whole(self, texts: list[str]) -> Encoded:
        if not texts:
            return []
        made = encode_texts(self._tokenizer, texts, marks=self._marks, segmented=self._jieba)
        return _split(made.ids, made.starts, np.cumsum(made.sizes))


class _Table:
    """Ids and word starts of the units seen so far."""

    def __init__(self, tokenizer: Tokenizer, kind: Kind) -> None:
        self._tokenizer, self._kind = tokenizer, kind
        # A unit that is not there gets the next number: one look-up a unit, none of it in Python.
        self.numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        none = np.zeros(0, dtype=np.int64)
        self._made, self._seen = Ids(none, none.astype(np.bool_), none), none

    def hardly_knows(self, texts: list[list[str]]) -> bool:
        """Whether it would not pay for these: noise, say, hardly repeats its units."""
        units = list(itertools.islice(itertools.chain.from_iterable(texts), _LOOKED_AT))
        new = {unit for unit in units if unit not in self.numbers}
        return len(units) == _LOOKED_AT and len(new) > _NEW * len(units)

    def look_up(self, texts: list[list[str]]) -> Encoded:
        """The ids and word starts of texts that are given as units."""
        if not texts:
            return []
        counts = list(map(len, texts))
        units = itertools.chain.from_iterable(texts)
        number = np.fromiter(map(self.numbers.__getitem__, units), np.int64, sum(counts))
        if len(self.numbers) > len(self._seen):
            self._add(list(itertools.islice(self.numbers, len(self._seen), None)))
        self._seen += np.bincount(number, minlength=len(self.numbers))
        found = chosen(self._made, number)
        if len(self.numbers) > _TABLE:
            self._forget()
        ends = np.append(0, np.cumsum(found.sizes))[np.cumsum(counts)]
        return _split(found.ids, found.starts, ends)

    def _add(self, units: list[str]) -> None:
        made = encode_units(self._tokenizer, units, self._kind)
        self._made = joined([self._made, made])
        self._seen = np.append(self._seen, np.zeros(len(units), dtype=np.int64))

    def _forget(self) -> None:
        """Keep the units that were seen most often."""
        kept = np.sort(np.argsort(-self._seen, kind="stable")[: _TABLE // 2])
        units = list(self.numbers)
        numbers = {units[old]: new for new, old in enumerate(kept.tolist())}
        self.numbers = defaultdict(itertools.count(len(kept)).__next__, numbers)
        self._made, self._seen = chosen(self._made, kept), self._seen[kept]


def _split(ids: NDArray[np.int64], starts: NDArray[np.bool_], ends: NDArray[np.int64]) -> Encoded:
    bounds = itertools.pairwise([0, *ends.tolist()])
    return [(ids[begin:end], starts[begin:end]) for begin, end in bounds]


def _tokenizer_file(source: str) -> Path:
    path = Path(source) / "tokenizer.json"
    if path.is_file():
        return path
    if Path(source).exists() or source.startswith((".", "/")) or source.count("/") > 1:
        raise ConfigError(
            f"{source}: no tokenizer.json here", "train one with `plmctl train-tokenizer`"
        )
    refuse_unreachable(source, "train a tokenizer with `plmctl train-tokenizer`")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(source, "tokenizer.json"))
    except (OSError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise ConfigError(
            f"{source}: no such folder, and no such tokenizer on the Hub could be reached",
            "train one with `plmctl train-tokenizer`",
        ) from error
