"""What a corpus is: its size, documents, script, copies, faults and lines, from a seeded sample.

Time and memory are bounded. At most ``_READ`` bytes are read, in pieces that a seed draws from all
of the corpus; files that cannot be read in pieces (compressed, csv) are read from their beginning.
Copies, lengths and the overlap with evaluation files are counted in all that is read (a sample has
few pairs of copies); letters and lines in at most ``_SAMPLE`` characters of it.
"""

from __future__ import annotations

import hashlib
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plmctl.characters import JOINERS, KANA, SYLLABLES
from plmctl.config.sections import TextConfig
from plmctl.corpus.document import Document, read_lines
from plmctl.corpus.gather import together
from plmctl.corpus.languages import NO_SPACES, language_of, looks_english, script_shares
from plmctl.corpus.marks import notes_on
from plmctl.corpus.near_copies import SKETCH, plain_opening, shingles
from plmctl.corpus.overlap import Hashes, code_points, window_hashes
from plmctl.corpus.reading import SourcePiece, Unit, cut_source, documents, unit_of
from plmctl.corpus.sentences import SentenceRule, decide, sentence_spans
from plmctl.corpus.source import Source, size_of
from plmctl.corpus.tabular import rows
from plmctl.errors import DataError, read_error

_READ = 100_000_000  # bytes to read at most

_PIECE = 200_000  # bytes

_SAMPLE = 8_000_000  # characters to look at closely

_EACH = 20_000  # characters of one document to look at closely

_LANGUAGES = 5_000  # documents whose script and language are looked at; 2,000 characters of each

_SEED = 42


# --- The result ---


@dataclass(frozen=True)
class Overlap:
    """The rows of an evaluation file that share 13 words in a row with the corpus."""

    name: str
    rows: int  # that are long enough to compare
    short: int
    shared: int


@dataclass(frozen=True)
class DocumentShare:
    """A part of the documents: its share, and the origin of one."""

    share: float
    example: str


@dataclass(frozen=True)
class NearCopies:
    """How many documents of a corpus are nearly, but not exactly, a copy of an earlier one."""

    share: float
    example: tuple[str, str] | None = None  # the origins of an earlier document and of a copy


@dataclass(frozen=True)
class Profile:
    """What a corpus is. Shares are of the letters, lines and documents that were looked at."""

    size: int  # bytes of all sources on disk
    read: int  # bytes of text
    whole: bool  # whether that is all of it
    documents: int  # that were read
    lengths: NDArray[np.int64]  # [documents] characters
    sample: list[Document]  # looked at closely
    scripts: dict[str, float]  # share of the letters
    main_scripts: dict[
        str, DocumentShare
    ]  # documents by the script that most of their letters have
    english: dict[
        str, DocumentShare
    ]  # in Latin letters: "en", or "other"; short ones are in neither
    languages: dict[str, DocumentShare]  # by code; empty: the library is not installed
    accents: float  # share of the letters that have a mark, or lose one when accents are dropped
    joiners: float  # zero-width joiners within words, per letter
    characters: int  # different ones that make up 99.995 % of the sample
    spaces: float  # white space per character
    traditional: float | None  # of Chinese characters with two forms; None: hardly any
    exact: float  # share of the documents that are an exact copy of an earlier one
    exact_text: float  # share of the characters in these
    near: NearCopies  # further documents
    faults: dict[str, int]  # documents with each kind, of the sample
    lines: int  # of the sample
    short_lines: float  # share with less than 30 characters
    repeated_lines: float  # share of the lines that occur five times or more
    line_length: float  # median characters
    sentences: SentenceRule  # the rule for sentences, with its reason
    continued: float  # share of the sentences that are not alone in their document
    marks: list[str]  # lines on marks between documents, and on other text that is none
    one_each: bool  # whether text files have no blank lines, so that each file is one document
    overlaps: list[Overlap]  # of each evaluation file
    unreadable: dict[str, DataError] = field(default_factory=dict)  # what is wrong with each file

    @property
    def script(self) -> str:
        """The most frequent script."""
        return next(iter(self.scripts), "none")

    @property
    def chinese(self) -> bool:
        """Whether each Chinese character should be a token."""
        return self.script == "Han" and self.scripts.get("Kana", 0.0) < 0.1

    @property
    def spaced(self) -> bool:
        """Whether spaces separate words."""
        east_asian = self.scripts.get("Han", 0.0) + self.scripts.get("Kana", 0.0)
        without = sum(self.scripts.get(script, 0.0) for script in NO_SPACES)
        return east_asian < 0.3 and without < 0.3

    @property
    def all_characters(self) -> float:
        """Characters of the whole corpus, about."""
        characters = float(self.lengths.sum())
        return characters if self.whole else characters * self.size / max(1, self.read)


# --- Looking ---


def profile(
    sources: Sequence[Source],
    config: TextConfig,
    evaluation: Sequence[Source] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Profile:
    """Look at a corpus, without the files that cannot be read.

    Args:
        config: The column of the text, and what a document is in a text file.
        evaluation: Files whose overlap with the corpus is counted.
        progress: Called with the bytes read and their total.

    Raises:
        DataError: No file can be read, with what is wrong with each; no text at all; or an
            evaluation file cannot be read.
    """
    size = sum(map(size_of, sources))
    grams = [_Grams(source) for source in evaluation]
    reading = _Reading(sources, config)
    lengths, hashes, sample, near = list[int](), set[bytes](), _Sample(), _NearCopies()
    copies = copied = read = 0
    for document in reading.documents():
        text = document.text.strip()
        if not text:
            continue
        lengths.append(len(text))
        content = text.encode()
        read += len(content)
        digest = hashlib.blake2b(content, digest_size=8).digest()
        if digest in hashes:
            copies, copied = copies + 1, copied + len(text)
        else:
            near.add(text, document.origin)
        hashes.add(digest)
        sample.add(document)
        if grams:
            hashes_of_words = window_hashes(_words(text), _N)
            for one in grams:
                one.known.mark(hashes_of_words)
        progress(min(reading.done, reading.total), reading.total)
    if bad := reading.unreadable:
        # Once more without them: nothing of a file's beginning counts.
        rest = [source for source in sources if source.name not in bad]
        if not rest:
            raise together(list(bad.values()))
        try:
            looked = profile(rest, config, evaluation, progress)
        except DataError as error:
            raise together([error, *bad.values()]) from None
        return replace(looked, unreadable=bad | looked.unreadable)
    if not lengths:
        names = ", ".join(source.name for source in sources)
        raise DataError(f"{names[:200]}: no text in the corpus", "its files are empty")
    texts = [document.text[:_EACH] for document in sample.documents]
    counts = Counter[str]()
    for text in texts:
        counts.update(text)
    letters = Counter({c: n for c, n in counts.items() if unicodedata.category(c)[0] in "LM"})
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    often = Counter(lines)
    openings = _openings(sources)
    rule = decide([text[:20_000] for text in texts[:200]], openings)
    per_document = [len(sentence_spans(text, rule.rule)) for text in texts[:500]]
    # Letters that change when accents are dropped, as BERT's lower case does.
    changed = sum(
        count
        for character, count in letters.items()
        if any(
            unicodedata.category(part) == "Mn" for part in unicodedata.normalize("NFD", character)
        )
    )
    simplified = sum(letters[character] for character in set(_FORMS[::2]))
    traditional = sum(letters[character] for character in set(_FORMS[1::2]))
    return Profile(
        size=size,
        read=read,
        whole=reading.whole,
        documents=len(lengths),
        lengths=np.array(lengths),
        sample=sample.documents,
        main_scripts=_parts(sample.documents, _main_script),
        english=_parts(sample.documents, _english),
        languages={} if find_spec("py3langid") is None else _parts(sample.documents, language_of),
        scripts={s: share for s, share in script_shares(letters).items() if share >= 0.001},
        accents=changed / max(1, letters.total()),
        joiners=sum(len(_JOINER.findall(text)) for text in texts) / max(1, letters.total()),
        characters=_alphabet(counts),
        spaces=sum(n for c, n in counts.items() if c.isspace()) / max(1, counts.total()),
        traditional=None
        if simplified + traditional < 20
        else traditional / (simplified + traditional),
        exact=copies / len(lengths),
        exact_text=copied / sum(lengths),
        near=near.result(len(lengths)),
        faults=_faults(texts),
        lines=len(lines),
        short_lines=sum(len(line) < 30 for line in lines) / len(lines),
        repeated_lines=sum(n for n in often.values() if n >= 5) / len(lines),
        line_length=float(np.median([len(line) for line in lines])),
        sentences=rule,
        continued=sum(n for n in per_document if n > 1) / max(1, sum(per_document)),
        marks=notes_on(openings or texts, config.separator),
        one_each=any(unit == "file" for unit in reading.units.values()),
        overlaps=[one.result() for one in grams],
    )


def _refuse_binary(source: Source) -> None:
    """Refuse a text file with bytes that no text has.

    Raises:
        DataError: It has.
    """
    if source.kind not in ("text", "jsonl", "csv", "tsv") or source.name.endswith((".gz", ".zst")):
        return
    try:
        with source.path.open("rb") as file:
            head = file.read(8192)
    except OSError as error:
        raise read_error(error, DataError(f"{source.name}: {error.strerror}")) from error
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(
            f"{source.name}: text in UTF-16", "convert the file: `iconv -f UTF-16 -t UTF-8`"
        )
    if b"\0" in head:
        raise DataError(
            f"{source.name}: a binary file, not text (it has zero bytes)",
            "give files of plain text in UTF-8, or jsonl, csv or parquet",
        )


class _Reading:
    """The documents of a part of a corpus.

    Attributes:
        total: Bytes to read.
        done: Bytes of the pieces that were read.
        unreadable: What is wrong with each file that cannot be read.
    """

    def __init__(self, sources: Sequence[Source], config: TextConfig) -> None:
        self.units: dict[str, Unit] = {}
        self.unreadable: dict[str, DataError] = {}
        pieces = list[tuple[Source, SourcePiece]]()
        for source in sources:
            try:
                _refuse_binary(source)
                # Of a large file, its beginning decides what a document is.
                unit = unit_of(source, config, _READ) if source.kind == "text" else "line"
                self.units[source.name] = unit
                cut = cut_source(source, unit, _PIECE, config.separator)
                pieces += [(source, piece) for piece in cut]
            except DataError as error:
                self.unreadable[source.name] = error
        self._config = config
        everything = sum(piece.size for _, piece in pieces)
        self.whole, self.total, self.done = everything <= _READ, min(everything, _READ), 0
        if not self.whole:
            random.Random(_SEED).shuffle(pieces)
        self._pieces = pieces

    def documents(self) -> Iterator[Document]:
        """The documents of the pieces, until enough is read."""
        # Without a known size (a Hub data set) reading ends at the limit, too.
        for source, piece in self._pieces:
            if source.name in self.unreadable:
                continue
            if self.done >= _READ:
                self.whole = False
                return
            config = self._config.model_copy(update={"documents": self.units[source.name]})
            allowed, used = _READ - self.done, 0
            try:
                for document in documents(source, config, piece.start, piece.end):
                    yield document
                    used += len(document.text.encode())
                    if used > allowed:
                        self.whole = False
                        break
            except DataError as error:
                self.unreadable[source.name] = error
            self.done += max(used, min(piece.size, allowed))


def unreadable(sources: Sequence[Source], config: TextConfig) -> dict[str, DataError]:
    """What is wrong with each of the files that cannot be read, as far as ``profile`` reads."""
    reading = _Reading(sources, config)
    for _ in reading.documents():
        pass
    return reading.unreadable


class _Sample:
    """A seeded sample of documents, of about ``_SAMPLE`` characters: each is equally likely."""

    def __init__(self) -> None:
        self._kept: list[tuple[float, int, Document]] = []
        self._draws, self._size, self._bound, self._number = random.Random(_SEED), 0, 1.0, 0

    def add(self, document: Document) -> None:
        """Take a document or leave it."""
        lot = self._draws.random()
        self._number += 1
        if lot >= self._bound:
            return
        cut = Document(document.text[:_EACH], document.origin)
        self._kept.append((lot, self._number, cut))
        self._size += len(cut.text)
        while self._size > 2 * _SAMPLE and len(self._kept) > 1:
            self._shrink()

    def _shrink(self) -> None:
        """Keep the documents with the lowest lots."""
        self._kept.sort()
        kept, size = list[tuple[float, int, Document]](), 0
        for entry in self._kept:
            if kept and size + len(entry[2].text) > _SAMPLE:
                self._bound = entry[0]
                break
            kept.append(entry)
            size += len(entry[2].text)
        self._kept, self._size = kept, size

    @property
    def documents(self) -> list[Document]:
        if self._size > _SAMPLE:
            self._shrink()
        return [document for *_, document in sorted(self._kept, key=lambda entry: entry[1])]


def _openings(sources: Sequence[Source]) -> list[str]:
    """The beginnings of text files, with their blank lines; none unless all are text files."""
    if any(source.kind != "text" for source in sources):
        return []
    openings = []
    for source in sources[:20]:
        taken = list[str]()
        for line in read_lines(source.path, 0, source.longest):
            taken.append(line.text)
            if line.offset > 50_000:
                break
        openings.append("".join(taken))
    return openings


# --- Letters and languages ---


def _parts(
    sample: Sequence[Document], kind_of: Callable[[str], str | None]
) -> dict[str, DocumentShare]:
    """The documents by kind, the largest part first; some may have none."""
    looked = sample[:: max(1, len(sample) // _LANGUAGES)]
    counts, examples = Counter[str](), dict[str, str]()
    for document in looked:
        if kind := kind_of(document.text[:2_000]):
            counts[kind] += 1
            examples.setdefault(kind, document.origin)
    return {
        kind: DocumentShare(n / len(looked), examples[kind]) for kind, n in counts.most_common()
    }


def _main_script(text: str) -> str | None:
    return next(iter(script_shares(Counter(c for c in text if c.isalpha()))), None)


def _english(text: str) -> str | None:
    if _main_script(text) != "Latin" or (english := looks_english(text)) is None:
        return None
    return "en" if english else "other"


_JOINER = re.compile(rf"[{JOINERS}](?=\w)")  # those of emoji stand before no letter


def _alphabet(counts: Counter[str]) -> int:
    """How many of the most frequent characters make up 99.995 % of the text."""
    total, wanted = 0, 0.99995 * counts.total()
    for number, (_, count) in enumerate(counts.most_common(), 1):
        total += count
        if total >= wanted:
            return number
    return len(counts)


_FORMS = (
    "这這个個们們来來为為说說国國时時会會学學对對发發经經过過现現开開关關见見长長问問间間门門车車东東马馬"
    "书書电電气氣头頭实實样樣让讓还還进進从從当當动動体體点點应應线線无無业業产產万萬与與义義话話语語"
    "认認识識请請谁誰课課读讀写寫听聽觉覺爱愛欢歡乐樂亲親双雙变變难難离離鸟鳥鱼魚龙龍风風飞飛两兩"
    "该該边邊远遠运運员員图圖团團场場报報华華党黨军軍战戰机機权權条條济濟价價务務办辦历歷议議论論设設"
    "计計讨討记記许許证證词詞试試该該调調谈談负負责責质質费費资資钱錢铁鐵银銀领領题題类類级級结結给給"
)
"""Frequent characters whose simplified and traditional forms differ, in pairs."""


# --- Faults ---


_FAULTS = {
    "replacement characters (U+FFFD)": re.compile("\ufffd"),
    "control characters": re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f]"),
    "UTF-8 read as Latin-1 (such as Ã©)": re.compile(
        "[ÃÂ][\u0080-\u00bf]|â€[\u0080-\u2122]|ï»¿|[åæçè][\u0080-\u00bf\u2013-\u2122]{2}"
    ),
    "HTML tags": re.compile(
        r"</?(?:p|br|div|span|a|b|i|li|ul|td|tr|table|h[1-6]|img)\b[^<>]*>", re.I
    ),
    "HTML entities (such as &amp;)": re.compile(r"&(?:amp|lt|gt|quot|nbsp|#\d{2,5});"),
}


def _faults(texts: Sequence[str]) -> dict[str, int]:
    """How many texts have each kind of fault; kinds without any are left out."""
    counts = {
        name: sum(pattern.search(text) is not None for text in texts)
        for name, pattern in _FAULTS.items()
    }
    counts["Unicode that is not normalised (NFC)"] = sum(
        not unicodedata.is_normalized("NFC", text) for text in texts
    )
    return {name: count for name, count in counts.items() if count}


# --- Runs of characters and words that two texts share ---


_SIMILAR = 0.7

_N = 13  # words in a row

_BITS = 22  # of the filter of known hashes: 4 MB


class _NearCopies:
    """Collects different texts and finds near copies among them.

    Two texts are nearly copies if 70 % or more of their runs of 12 characters are the same, also
    with sentences in another order; case and white space do not count, and of a long text only its
    beginning. Texts of less than 60 characters never count. Candidates share a quarter of their 32
    smallest hashes (Broder, 1997, "On the resemblance and containment of documents").
    """

    def __init__(self) -> None:
        self._texts, self._origins, self._sketches = list[str](), list[str](), list[Hashes]()

    def add(self, text: str, origin: str) -> None:
        """Take a text."""
        plain = plain_opening(text)
        if plain:
            self._origins.append(origin)
            self._texts.append(plain)
            self._sketches.append(shingles(plain)[:SKETCH].copy())

    def result(self, documents: int) -> NearCopies:
        """Compare each text with those that were the first with a quarter of its hashes.

        Args:
            documents: How many there are, exact copies and short ones included.
        """
        if not self._sketches:
            return NearCopies(0.0)
        sizes = np.array([len(one) for one in self._sketches])
        texts, count = np.repeat(np.arange(len(sizes)), sizes), len(sizes)
        hashes = np.concatenate(self._sketches)
        _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
        earlier = texts[first[group]]
        pairs = (texts * count + earlier)[earlier < texts]
        pairs, common = np.unique(pairs, return_counts=True)
        originals = dict[int, int]()
        for pair in pairs[common >= SKETCH // 4].tolist():
            copy, original = divmod(pair, count)
            left, right = shingles(self._texts[copy]), shingles(self._texts[original])
            shared = len(np.intersect1d(left, right, assume_unique=True))
            if shared >= _SIMILAR * (len(left) + len(right) - shared):
                originals.setdefault(copy, original)
        if not originals:
            return NearCopies(0.0)
        copy, original = next(iter(originals.items()))
        return NearCopies(
            len(originals) / documents, (self._origins[original], self._origins[copy])
        )


class _Known:
    """Hashes of one text, of which those that occur in another text are marked.

    A table of the first bits of all hashes says at once that most hashes are not among them.
    """

    def __init__(self, hashes: Hashes) -> None:
        self._hashes, self._places = np.unique(hashes, return_inverse=True)
        self._marked = np.zeros(len(self._hashes), dtype=np.bool_)
        self._likely = np.zeros(1 << _BITS, dtype=np.bool_)
        self._likely[self._hashes >> np.uint64(64 - _BITS)] = True

    def mark(self, hashes: Hashes) -> None:
        """Mark those that are among the hashes of the other text."""
        likely = hashes[self._likely[hashes >> np.uint64(64 - _BITS)]]
        places = np.minimum(np.searchsorted(self._hashes, likely), len(self._hashes) - 1)
        self._marked[places[self._hashes[places] == likely]] = True

    def marked(self) -> NDArray[np.bool_]:
        """Whether each hash, as they were given, is marked."""
        marked: NDArray[np.bool_] = self._marked[self._places]
        return marked


class _Grams:
    """The runs of 13 words of an evaluation file, of which those of the corpus are marked."""

    def __init__(self, source: Source) -> None:
        _refuse_binary(source)
        hashes = [window_hashes(_words(text), _N) for text in eval_texts(source)]
        self.name, self.counts = source.name, np.array([len(one) for one in hashes], dtype=np.int64)
        self.known = _Known(np.concatenate([np.zeros(0, np.uint64), *hashes]))

    def result(self) -> Overlap:
        """The rows that share a run."""
        rows = np.repeat(np.arange(len(self.counts)), self.counts)
        shared = len(np.unique(rows[self.known.marked()]))
        long = int((self.counts > 0).sum())
        return Overlap(self.name, long, len(self.counts) - long, shared)


_WORD = re.compile(r"[^\W_]+")
_NO_SPACES = re.compile(f"[{SYLLABLES}{KANA}\u3400-\u9fff]")


def _words(text: str) -> Hashes:
    """Hashes of the words of a text; of its characters where there are no spaces."""
    if len(_NO_SPACES.findall(text[:1000])) > 0.3 * len(text[:1000]):
        return code_points("".join(text.split()))
    words = _WORD.findall(text.casefold())
    return np.array([hash(word) & 0xFFFFFFFFFFFFFFFF for word in words], dtype=np.uint64)


def eval_texts(source: Source) -> Iterator[str]:
    """The text of each row of an evaluation file, or of each line of a text file."""
    if source.kind == "text":
        lines = read_lines(source.path, 0, source.longest)
        yield from (line.text for line in lines if line.text.strip())
        return
    for values, _ in rows(source):
        yield " ".join(_strings(values))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _strings(one)
