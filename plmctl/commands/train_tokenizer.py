"""``plmctl train-tokenizer``: raw text in, a Hugging Face tokenizer folder out.

The measurements are written before the tokenizer, and the checksums of the tokenizer last of all:
if they exist, everything does.
"""

import heapq
import shutil
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.commands.evaluate_tokenizers import HELD_OUT, parallel_lines
from plmctl.config.tokenizer import TokenizerConfig
from plmctl.corpus.marks import notes_on
from plmctl.corpus.overlap import Overlap, OverlapCounter
from plmctl.corpus.reading import opening
from plmctl.corpus.sentences import choose_rule
from plmctl.corpus.source import resolve
from plmctl.corpus.subsample import ByteSubsample, draw_number, subsample_bytes
from plmctl.cpus import usable_memory
from plmctl.errors import ConfigError, PlmError, listed
from plmctl.families.base import get_family
from plmctl.files import sync, write_atomically, writing
from plmctl.reporting.run_files import read_status
from plmctl.reporting.tables import metrics_table
from plmctl.reporting.tokenizer_report import fairness_table
from plmctl.run.display import say, show_result, work_progress
from plmctl.run.folder import AtWork, check_run, open_run, write_results
from plmctl.tokenization.algorithms.base import Progress
from plmctl.tokenization.check import SUMS, check_saved, check_tokenizer, write_probe, write_sums
from plmctl.tokenization.load import load_tokenizer
from plmctl.tokenization.lost import lost_letters
from plmctl.tokenization.parity import check_parallel
from plmctl.tokenization.quality import fairness, measure
from plmctl.tokenization.templates import TokenizerTemplate
from plmctl.tokenization.train import TrainedTokenizer, estimate_memory, train, train_fair
from plmctl.tokenization.units import cut_words, kind_of, marks_stay, plain_copy
from plmctl.tokenization.unknown import UnknownCounter

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SAVING = ".saving"
_FILES = (SUMS, "tokenizer.json", f"eval/{HELD_OUT}", "eval/tokenizer.json")
_HELD_OUT = 0.005  # share of the text that is held out to measure on
_HELD_OUT_FROM = 1_000_000  # bytes: nothing is held out of a smaller text
_MEASURED = 500_000  # bytes to measure on, at most
_LOOKED_AT, _OPENING = 16, 50_000  # sources whose beginning is looked at; characters of each
_PIECE = 1_000  # characters: longer lines are held out in pieces
_COMPARED = 100_000_000  # characters in which repeated text is looked for


def run(config: TokenizerConfig, *, fresh: bool, as_json: bool) -> None:
    """Train a tokenizer, save it, load it again and compare; a finished one stays as it is."""
    check_run(config, config.run, fresh=fresh)
    folder = Path(config.run)
    is_trained = (folder / SUMS).is_file() or (folder / _SAVING / SUMS).is_file()
    if is_trained and not fresh:
        _complete(config, folder)
        return
    began = time.perf_counter()
    texts = _texts(config)
    _check_memory(config, sum(text.part.size for text in texts))
    template = get_family(config.family).TOKENIZER(config)
    parallel = _parallel(config)
    trained = _trained(template, texts, parallel)
    seconds = time.perf_counter() - began
    _report_limits(config, texts, trained)
    _report_text(config, trained, texts)
    open_run(config, config.run, fresh=fresh)
    beside = folder / _SAVING
    with AtWork(folder) as work:
        work.promise(_FILES)
        with writing(beside):
            shutil.rmtree(beside, ignore_errors=True)
            trained.tokenizer.save_pretrained(beside)
            check_saved(beside, trained.tokenizer, texts[0].held_out[:200])
            write_probe(beside)
        metrics = _measure(trained.tokenizer, folder, texts, seconds)
        _place(folder)
        work.finish()
    tables = [metrics_table(f"tokenizer {folder}", metrics)]
    if parallel:
        paid = fairness(plain_copy(trained.tokenizer), parallel).metrics()
        tables.append(fairness_table({folder.name: paid}))
        metrics = {**metrics, "languages": paid}
    show_result(metrics, tables, as_json=as_json)


def _texts(config: TokenizerConfig) -> list["_Text"]:
    """The text to learn from; with ``parity`` that of each language, with the same limit."""
    data = config.data
    languages = {one.name: one.train for one in data.mixture}
    if not config.parity:
        languages = {"": data.sources}
    limit = data.max_bytes // len(languages)
    return [
        _Text(subsample_bytes(data.of(own), limit, config.seed), config.seed, name)
        for name, own in languages.items()
    ]


def _parallel(config: TokenizerConfig) -> dict[str, list[str]]:
    """The parallel sentences by language, if they balance the tokenizer."""
    if not config.parity:
        return {}
    lines = {one.name: parallel_lines(str(one.parallel)) for one in config.data.mixture}
    check_parallel(lines, say)
    return lines


def _trained(
    template: TokenizerTemplate, texts: list["_Text"], parallel: dict[str, list[str]]
) -> TrainedTokenizer:
    def work(title: str) -> AbstractContextManager[Progress]:
        return work_progress(title, "items")

    if not parallel:
        return train(template, texts[0].lines(), work)
    streams = [text.lines() for text in texts]
    return train_fair(template, streams, list(parallel.values()), work)


def _complete(config: TokenizerConfig, folder: Path) -> None:
    """Finish a run whose tokenizer is trained; a finished run stays as it is."""
    files = [folder / name for name in _FILES]
    status = read_status(folder)
    if all(path.is_file() for path in files) and (status is None or status.name == "finished"):
        check_tokenizer(config.run)
        say(f"{config.run} is finished: this tokenizer is already trained")
        _say_what_changed(config, (folder / SUMS).stat().st_mtime)
        return
    with AtWork(folder) as work:
        work.promise(_FILES)
        _place(folder)
        check_tokenizer(config.run)
        if work.status.missing(folder):  # the measurements are lost: read the text again
            texts = _texts(config)
            for text in texts:
                deque(text.lines(), maxlen=0)
            _measure(load_tokenizer(config.run), folder, texts, None)
        work.finish()
    say(f"{config.run} is finished: this tokenizer was already trained and is now complete")


def _say_what_changed(config: TokenizerConfig, trained: float) -> None:
    """Name the files that somebody wrote to since the tokenizer was trained; none is read."""
    with suppress(PlmError):  # a text that is gone is no other text
        files = [path for source in resolve(config.data.sources) for path in source.files]
        touched = [
            str(path)
            for path in files
            if isinstance(path, Path) and path.is_file() and path.stat().st_ctime > trained
        ]
        if touched:
            say(
                f"{config.run}: {listed(touched)} may have changed since it was trained: add "
                "--fresh to train again, or name another folder with `run=...`"
            )


class _Text:
    """The text to learn from, and the part of it that is held out to measure on.

    The pieces with the lowest lots are held out until they have their share of the bytes, at least
    one piece. A lot is a hash of the piece and the seed, so the order of the files does not matter.
    Nothing is held out of a small text: it is measured on pieces that it also learned from.

    Attributes:
        name: The language, with ``parity``.
        held_out: Lines or pieces of lines, in the order of the text.
        size: Bytes of them.
        is_separate: Whether they were not learned from.
        overlap: How much of them stands in the text to learn from; known at the end of ``lines``.
    """

    def __init__(self, part: ByteSubsample, seed: int, name: str) -> None:
        self.part, self._seed, self.name = part, seed, name
        self.held_out: list[str] = []
        self.size = 0
        self.overlap: Overlap | None = None
        self.is_separate = False

    def lines(self) -> Iterator[str]:
        """Stream the text to learn from, with a progress bar."""
        counter, left = OverlapCounter(), _COMPARED
        for line in self._lines():
            if left > 0:
                counter.add(line)
            left -= len(line)
            yield line
        for piece in self.held_out if self.is_separate else ():
            counter.add(piece, held_out=True)
        self.overlap = counter.result(whole=left > 0)

    def _lines(self) -> Iterator[str]:
        # The size of a compressed file or a table is known only when it has been read.
        large = self.part.size >= _HELD_OUT_FROM
        held = _Lowest(min(_MEASURED, self.part.size * _HELD_OUT) if large else _MEASURED)
        seen = 0
        with work_progress("reading") as progress:
            for line in self.part.lines(progress):
                for piece in (line,) if len(line) <= _PIECE else _pieces(line):
                    content = piece.encode()
                    seen += len(content)
                    number = draw_number(content, self._seed)
                    if number >= held.bound:
                        yield piece
                        continue
                    left = held.add(number, piece, len(content))
                    yield from left if large else (piece,)
        separate = self.is_separate = large and seen >= _HELD_OUT_FROM
        if separate:
            yield from held.keep(seen * _HELD_OUT)
        self.held_out = held.pieces()
        if large and not separate:
            yield from self.held_out
        self.size = held.size


class _Lowest:
    """The pieces with the lowest lots that have a given number of bytes together.

    Args:
        wanted: The number of bytes; at least one piece is kept.

    Attributes:
        size: Bytes of the pieces that are kept.
        bound: A piece whose lot is not below this would not be kept.
    """

    def __init__(self, wanted: float) -> None:
        self._wanted, self.size, self.bound = wanted, 0, 1 << 64
        self._heap: list[tuple[int, int, str, int]] = []  # the highest lot, and the latest, on top
        self._number = 0

    def add(self, lot: int, piece: str, size: int) -> list[str]:
        """Add a piece; return the pieces that are no longer kept, this one perhaps among them."""
        if not piece.strip():
            return [piece]
        self._number += 1
        heapq.heappush(self._heap, (-lot, -self._number, piece, size))
        self.size += size
        return self.keep(self._wanted)

    def keep(self, wanted: float) -> list[str]:
        """Keep only as many pieces as these bytes need; return the others."""
        left = []
        while len(self._heap) > 1 and self.size - self._heap[0][3] >= wanted:
            *_, piece, size = heapq.heappop(self._heap)
            self.size -= size
            left.append(piece)
        if self.size >= wanted:
            self.bound = -self._heap[0][0]
        return left

    def pieces(self) -> list[str]:
        """The pieces that are kept, in the order in which they were added."""
        return [piece for _, _, piece, _ in sorted(self._heap, key=lambda item: -item[1])]


def _pieces(line: str) -> Iterator[str]:
    """Consecutive pieces of a line, of at most ``_PIECE`` characters.

    A long line is cut before white space, so that its words stay whole. Where there is no white
    space, it is cut between two characters.
    """
    start = 0
    while len(line) - start > _PIECE:
        window = line[start : start + _PIECE + 1]
        parts = window.rsplit(None, 1)  # the white space between the two is in neither
        end = start + (len(parts[0]) if len(parts) == 2 else _PIECE)
        yield line[start:end]
        start = end
    yield line[start:]


def _measure(
    tokenizer: "PreTrainedTokenizerBase",
    folder: Path,
    texts: list[_Text],
    seconds: float | None,
) -> dict[str, Any]:
    """Measure how well the vocabulary fits the held-out text; write both."""
    lines = _held_out(texts)
    plain = plain_copy(tokenizer)
    encodings = plain.encode_batch(list(lines), add_special_tokens=False)
    encoded = [encoding.ids for encoding in encodings]
    tokens = sum(map(len, encoded))
    unknown = sum(ids.count(tokenizer.unk_token_id) for ids in encoded)
    metrics: dict[str, Any] = {"vocabulary": len(tokenizer), "class": type(tokenizer).__name__}
    if choose_rule(lines) != "zh":  # Chinese has no spaces, so its words cannot be counted
        metrics["tokens per word"] = round(measure(plain, lines).metrics()["tokens per word"], 3)
    metrics |= {
        "characters per token": round(sum(map(len, lines)) / max(1, tokens), 3),
        "unknown tokens": f"{100 * unknown / max(1, tokens):.3f} %",
        "learned from": f"{sum(text.part.size for text in texts) / 1e6:,.1f} MB",
        "measured on": _source(texts),
    }
    if seconds is not None:
        metrics["seconds"] = round(seconds, 1)
    with writing(folder / "eval" / HELD_OUT) as path:
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, "".join(line.replace("\n", " ") + "\n" for line in lines))
    write_results(folder, "tokenizer", {"kind": "tokenizer", "results": metrics})
    return metrics


def _source(texts: list[_Text]) -> str:
    """What is measured on."""
    size = f"{sum(text.size for text in texts) / 1e6:,.3f} MB"
    of = f" in {len(texts)} languages" if len(texts) > 1 else ""
    if all(text.is_separate for text in texts):
        return f"{size}{of} held out"
    return f"{size}{of} of the text that it learned from"


def _held_out(texts: list[_Text]) -> list[str]:
    return [line for text in texts for line in text.held_out]


def _place(folder: Path) -> None:
    """Move the saved files, or those left after a kill, into the folder; the checksums last."""
    beside = folder / _SAVING
    if not beside.is_dir():
        return
    with writing(folder):
        if not (beside / SUMS).is_file() and not (folder / SUMS).is_file():
            write_sums(beside)
        for path in sorted(beside.iterdir(), key=lambda path: path.name == SUMS):
            sync(path)
            path.replace(folder / path.name)
        beside.rmdir()
        sync(folder)


def _report_limits(config: TokenizerConfig, texts: list[_Text], trained: TrainedTokenizer) -> None:
    """Say if the text was sampled, or the vocabulary is smaller than requested."""
    for part in (text.part for text in texts if text.part.size < text.part.total):
        say(
            f"learned from {part.size / 1e6:,.0f} MB of {part.total / 1e6:,.0f} MB, "
            "a sample (data.max_bytes)"
        )
    if trained.size < config.vocab_size:
        reason = f"no other pair occurs at least {config.min_frequency} times (min_frequency)"
        if config.algorithm == "unigram":
            reason = "this text needs no more pieces"
        elif config.algorithm == "word":
            reason = f"no other word occurs at least {config.min_frequency} times (min_frequency)"
        say(f"{trained.size:,} ids instead of {config.vocab_size:,}: {reason}")
    if trained.threshold > 1:
        say(
            f"words that occur less than {trained.threshold} times were sampled to stay "
            "within max_memory"
        )


def _report_text(config: TokenizerConfig, trained: TrainedTokenizer, texts: list[_Text]) -> None:
    """Say what of the text is no text, what the rules drop, and what is unknown nevertheless.

    Raises:
        DataError: Nearly all of the text is unknown.
    """
    sources = resolve(config.data.sources, config.data.max_document)[:_LOOKED_AT]
    for note in notes_on(
        [opening(one, config.data, _OPENING) for one in sources], config.data.separator
    ):
        say(note)
    for text in texts:
        label = f"{text.name}: " if text.name else ""
        if text.overlap is not None:
            say(label + text.overlap.line())
            if (warning := text.overlap.warning()) is not None:
                say(label + warning)
    held_out = _held_out(texts)
    backend = trained.tokenizer.backend_tokenizer
    by_gpt2 = kind_of(backend) == "bytes" and not marks_stay(backend) and config.pattern is None
    if by_gpt2 and (cut := cut_words(held_out)) is not None:
        say(f"{cut}; add pattern=marks to keep them together")
    normalizer = backend.normalizer
    if normalizer is not None:
        line = lost_letters(normalizer.normalize_str, held_out).report()
        if line is not None:
            say(line)
    unknown = UnknownCounter.of(trained.tokenizer).count(held_out)
    if (line := unknown.report("the text", "that was trained")) is not None:
        say(line)


def _check_memory(config: TokenizerConfig, text_bytes: int) -> None:
    """Refuse a config that may need more memory than the machine has.

    Raises:
        ConfigError: The message has the estimate and the memory of the machine.
    """
    needed, available = estimate_memory(config, text_bytes), usable_memory()
    if needed > available:
        raise ConfigError(
            f"max_memory: learning may take {needed / 1e9:.1f} GB, and this machine has "
            f"{available / 1e9:.1f} GB",
            "reduce max_memory (rare words are then sampled) or data.max_bytes",
        )
    if needed > available / 2:
        say(f"learning may take {needed / 1e9:.1f} GB of this machine's {available / 1e9:.1f} GB")
