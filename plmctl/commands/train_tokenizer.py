"""``plmctl train-tokenizer``: raw text in, a Hugging Face tokenizer folder out.

What is measured is written before the tokenizer, and the tokenizer's sums last of all: if they are
there, everything is.
"""

import heapq
import os
import shutil
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.commands.evaluate_tokenizers import HELD_OUT
from plmctl.config.tokenizer import TokenizerConfig
from plmctl.corpus.sentences import choose_rule
from plmctl.corpus.subsample import ByteSubsample, draw_number, subsample_bytes
from plmctl.errors import ConfigError
from plmctl.files import sync, write_atomically, writing
from plmctl.reporting.run_files import read_status
from plmctl.reporting.tables import metrics_table
from plmctl.run.display import say, show_result, work_progress
from plmctl.run.folder import AtWork, check_run, open_run, write_results
from plmctl.tokenization.check import SUMS, check_saved, check_tokenizer, write_probe, write_sums
from plmctl.tokenization.load import load_tokenizer
from plmctl.tokenization.train import Trained, estimate_memory, train

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SAVING = ".saving"
_FILES = (SUMS, "tokenizer.json", f"eval/{HELD_OUT}", "eval/tokenizer.json")
_HELD_OUT = 0.005  # share of the text, to measure on
_HELD_OUT_FROM = 1_000_000  # bytes of a text that can spare it
_MEASURED = 500_000  # bytes, at most
_PIECE = 1_000  # characters: longer lines are held out in pieces, not whole


def run(config: TokenizerConfig, *, fresh: bool, as_json: bool) -> None:
    """Learn, save, load again and compare; a finished tokenizer is left alone."""
    check_run(config, config.run, fresh=fresh)
    folder = Path(config.run)
    if not fresh and _is_trained(folder):
        _complete(config, folder)
        return
    began = time.perf_counter()
    part = subsample_bytes(config.data, config.data.max_bytes, config.seed)
    _check_memory(config, part.size)
    text = _Text(part, config.seed)
    trained = train(config, text.lines(), lambda title: work_progress(title, "items"))
    seconds = time.perf_counter() - began
    _notes(config, part, trained)
    open_run(config, config.run, fresh=fresh)
    with AtWork(folder) as work:
        work.promise(_FILES)
        _save(trained.tokenizer, folder, text.held_out)
        figures = _measure(trained.tokenizer, folder, part, text, seconds)
        _place(folder)
        work.finish()
    show_result(figures, [metrics_table(f"tokenizer {folder}", figures)], as_json=as_json)


def _is_trained(folder: Path) -> bool:
    """Whether all of the tokenizer is there, or lies ready to be put in its place."""
    return (folder / SUMS).is_file() or (folder / _SAVING / SUMS).is_file()


def _complete(config: TokenizerConfig, folder: Path) -> None:
    """Finish a run whose tokenizer is trained; one that is finished is left alone."""
    there = [folder / name for name in _FILES]
    status = read_status(folder)
    if all(path.is_file() for path in there) and (status is None or status.name == "finished"):
        check_tokenizer(config.run)
        say(f"{config.run} is finished: this tokenizer is trained already")
        return
    with AtWork(folder) as work:
        work.promise(_FILES)
        _place(folder)
        check_tokenizer(config.run)
        if work.status.missing(folder):  # what was measured is lost: the text is read again
            part = subsample_bytes(config.data, config.data.max_bytes, config.seed)
            text = _Text(part, config.seed)
            deque(text.lines(), maxlen=0)
            _measure(load_tokenizer(config.run), folder, part, text, None)
        work.finish()
    say(f"{config.run} is finished: this tokenizer was trained already, and is completed")


class _Text:
    """The text to learn from, and what is held out of it to measure on.

    Held out are the pieces of lowest lot, a hash of the piece and the seed, until they have their
    share of the bytes: at least one, whatever the lines are, and the same ones in whatever order
    the files are read. A text too small to spare any is measured on what is learned from too.

    Attributes:
        held_out: Lines or pieces of lines, in the order of the text.
        source: What they are, in words.
    """

    def __init__(self, part: ByteSubsample, seed: int) -> None:
        self._part, self._seed = part, seed
        self.held_out: list[str] = []
        self.source = ""

    def lines(self) -> Iterator[str]:
        """Stream the text, with the progress of reading."""
        # How much text a compressed file or a table has is known when it is read.
        large = self._part.size >= _HELD_OUT_FROM
        held = _Lowest(min(_MEASURED, self._part.size * _HELD_OUT) if large else _MEASURED)
        seen = 0
        with work_progress("reading") as progress:
            for line in self._part.lines(progress):
                for piece in (line,) if len(line) <= _PIECE else _pieces(line):
                    content = piece.encode()
                    seen += len(content)
                    number = draw_number(content, self._seed)
                    if number >= held.bound:
                        yield piece
                        continue
                    left = held.add(number, piece, len(content))
                    yield from left if large else (piece,)
        apart = large and seen >= _HELD_OUT_FROM
        if apart:
            yield from held.keep(seen * _HELD_OUT)
        self.held_out = held.pieces()
        if large and not apart:
            yield from self.held_out
        size = f"{held.size / 1e6:,.3f} MB"
        self.source = f"{size} held out" if apart else f"{size} of the text that it learned from"


class _Lowest:
    """The pieces of lowest lot that have so many bytes together.

    Args:
        wanted: Bytes; one piece is kept in any case.

    Attributes:
        size: Bytes of what is kept.
        bound: A piece whose lot is not below it need not be added: it would not be kept.
    """

    def __init__(self, wanted: float) -> None:
        self._wanted, self.size, self.bound = wanted, 0, 1 << 64
        self._heap: list[tuple[int, int, str, int]] = []  # the highest lot, and the latest, on top
        self._number = 0

    def add(self, lot: int, piece: str, size: int) -> list[str]:
        """Take a piece in; those that are not kept any more, or not kept at all."""
        if not piece.strip():
            return [piece]
        self._number += 1
        heapq.heappush(self._heap, (-lot, -self._number, piece, size))
        self.size += size
        return self.keep(self._wanted)

    def keep(self, wanted: float) -> list[str]:
        """Keep no more than is needed for so many bytes; what is not kept any more."""
        left = []
        while len(self._heap) > 1 and self.size - self._heap[0][3] >= wanted:
            *_, piece, size = heapq.heappop(self._heap)
            self.size -= size
            left.append(piece)
        if self.size >= wanted:
            self.bound = -self._heap[0][0]
        return left

    def pieces(self) -> list[str]:
        """What is kept, in the order in which it came."""
        return [piece for _, _, piece, _ in sorted(self._heap, key=lambda item: -item[1])]


def _pieces(line: str) -> Iterator[str]:
    """A line, or pieces of at most ``_PIECE`` characters that together are the line.

    A long line is cut before white space, so that its words are counted as they are in the line; a
    stretch without any is cut between two characters.
    """
    start = 0
    while len(line) - start > _PIECE:
        window = line[start : start + _PIECE + 1]
        parts = window.rsplit(None, 1)  # the white space between the two is in neither
        end = start + (len(parts[0]) if len(parts) == 2 else _PIECE)
        yield line[start:end]
        start = end
    yield line[start:]


def _save(tokenizer: "PreTrainedTokenizerBase", folder: Path, lines: list[str]) -> None:
    """Save beside, and test what was saved."""
    beside = folder / _SAVING
    with writing(beside):
        shutil.rmtree(beside, ignore_errors=True)
        tokenizer.save_pretrained(beside)
        check_saved(beside, tokenizer, lines[:200])
        write_probe(beside)


def _measure(
    tokenizer: "PreTrainedTokenizerBase",
    folder: Path,
    part: ByteSubsample,
    text: _Text,
    seconds: float | None,
) -> dict[str, Any]:
    """Write the text that was held out, and how well the vocabulary fits it."""
    figures = _figures(tokenizer, text.held_out) | {
        "learnt from": f"{part.size / 1e6:,.1f} MB",
        "measured on": text.source,
    }
    if seconds is not None:
        figures["seconds"] = round(seconds, 1)
    with writing(folder / "eval" / HELD_OUT) as path:
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, "".join(line.replace("\n", " ") + "\n" for line in text.held_out))
    write_results(folder, "tokenizer", {"kind": "tokenizer", "results": figures})
    return figures


def _place(folder: Path) -> None:
    """Put what was saved, or what is left of it after a kill, in place; the sums come last."""
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


def _notes(config: TokenizerConfig, part: ByteSubsample, trained: Trained) -> None:
    """What a user would want to know of how it went."""
    if part.size < part.total:
        say(
            f"learnt from {part.size / 1e6:,.0f} MB of {part.total / 1e6:,.0f} MB, "
            "a sample (data.max_bytes)"
        )
    if trained.size < config.vocab_size:
        what = f"there is to merge that was seen {config.min_frequency} times (min_frequency)"
        if config.algorithm == "unigram":
            what = "pieces that this text needs"
        say(f"{trained.size:,} ids instead of {config.vocab_size:,}: these are all {what}")
    if trained.counts.threshold > 1:
        say(
            f"words seen less than {trained.counts.threshold} times were sampled, to keep within "
            "max_memory"
        )


def _check_memory(config: TokenizerConfig, text_bytes: int) -> None:
    """Refuse what the machine has no memory for.

    Raises:
        ConfigError: With the forecast and what there is.
    """
    needed, there = estimate_memory(config, text_bytes), _memory()
    if needed > there:
        raise ConfigError(
            f"max_memory: learning may take {needed / 1e9:.1f} GB, and this machine has "
            f"{there / 1e9:.1f} GB",
            "set max_memory to less: rare words are then sampled; or lower data.max_bytes",
        )
    if needed > there / 2:
        say(f"learning may take {needed / 1e9:.1f} GB of this machine's {there / 1e9:.1f} GB")


def _memory() -> int:
    """Bytes of memory that this process may use."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container
    if limit.is_file() and (text := limit.read_text(encoding="utf-8").strip()).isdigit():
        sizes.append(int(text))
    return min(sizes)


def _figures(tokenizer: "PreTrainedTokenizerBase", lines: list[str]) -> dict[str, Any]:
    """How well the vocabulary fits the text."""
    encoded = tokenizer(lines, add_special_tokens=False)["input_ids"]
    tokens = sum(map(len, encoded))
    unknown = sum(ids.count(tokenizer.unk_token_id) for ids in encoded)
    spaced = choose_rule(lines) != "zh"  # Chinese has no spaces to count words by
    words = max(1, sum(len(line.split()) for line in lines))
    return {
        "vocabulary": len(tokenizer),
        "class": type(tokenizer).__name__,
        **({"tokens per word": round(tokens / words, 3)} if spaced else {}),
        "characters per token": round(sum(map(len, lines)) / max(1, tokens), 3),
        "unknown tokens": f"{100 * unknown / max(1, tokens):.3f} %",
    }
