"""Documents, and the lines of a file: text and its origin.

Files are decompressed and must be UTF-8; reading can start at any byte where a line begins. Whether
a split holds out a document depends only on its text (``share_of``).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from plmctl.arrays import Ints
from plmctl.corpus.remote import File
from plmctl.errors import DataError, read_error

# --- Documents ---


@dataclass(frozen=True)
class Document:
    """A text and its origin.

    Attributes:
        origin: ``file:line``, or a sample's name for it.
        words: Characters where the words of segmented text start, ascending; None for other text.
    """

    text: str
    origin: str
    words: Ints | None = field(default=None, compare=False)

    @classmethod
    def of_words(cls, words: list[str], origin: str) -> Document:
        """The document of these words, joined as they are."""
        starts = np.cumsum([len(word) for word in words[:-1]], dtype=np.int64)
        return cls("".join(words), origin, np.unique(starts))


def share_of(text: str) -> float:
    """A hash of a text as a number in [0, 1).

    A document is held out if this is below the validation share. So a document is on the same side
    in every corpus and on every machine, an exact duplicate is never on both sides, and a larger
    share holds out all documents of a smaller one.

    Args:
        text: The document; white space around it does not count.
    """
    return hash_of(text) / 2**64


def hash_of(text: str) -> int:
    """A hash of a text below 2^64; white space around it does not count."""
    return int.from_bytes(hashlib.blake2b(text.strip().encode(), digest_size=8).digest(), "big")


UNSEEN = "\u00ad\u180e\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
"""Characters that show nothing and that Python does not count as white space."""


def is_blank(text: str) -> bool:
    """Whether a text looks blank: it has only white space and characters that show nothing."""
    return not text or text.isspace() or not text.translate(_NO_UNSEEN).strip()


_NO_UNSEEN = dict.fromkeys(map(ord, UNSEEN))


# --- Bytes to lines of text ---

LONGEST = 1_000_000_000
"""Bytes of the longest line of labelled rows; a config of text has `data.max_document`."""

RATIO, _FREE = 200, 1 << 26
"""How many times larger than the compressed file text may be, once there are so many bytes of it.

English text has a ratio of 3 to 5. A gigabyte of the same letter has 1,030 in gzip and 30,000 in
zstd: it is made to fill the memory.
"""


class Line(NamedTuple):
    """A line with its end.

    Attributes:
        offset: Its first byte in the file.
        number: Line number, counted from 1 where reading started.
    """

    text: str
    offset: int
    number: int


def read_lines(path: File, start: int = 0, longest: int = LONGEST) -> Iterator[Line]:
    """The lines of a file from byte ``start``, where a line must begin; without a byte-order mark.

    Raises:
        DataError: The file cannot be opened, is damaged, has bytes that are not UTF-8, a line of
            more than ``longest`` bytes, or far more text than a compressed file of its size has.
    """
    offset = start
    for number, raw in enumerate(_raw_lines(path, start, longest), 1):
        if len(raw) > longest and not raw.endswith(b"\n"):
            raise too_long(locate(path, start, number), "a line", longest)
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{locate(path, start, number)}: not UTF-8: byte 0x{raw[error.start]:02x} at byte "
                f"{error.start + 1} of the line",
                f"convert the file, for instance `iconv -f {likely_encoding(raw)} -t UTF-8`",
            ) from None
        yield Line(text.removeprefix("\ufeff") if offset == 0 else text, offset, number)
        offset += len(raw)


def too_long(where: str, what: str, longest: int, hint: str = "") -> DataError:
    """The error for a line or a document that would fill the memory."""
    return DataError(
        f"{where}: {what} of more than {longest:,} bytes",
        f"{hint}cut it into shorter ones; or, for pretraining and tokenizers, raise "
        "`data.max_document`: preparing it takes up to 30 times as much memory",
    )


def locate(path: File, start: int, number: int) -> str:
    """``file:line`` of line ``number``, counted from byte ``start``.

    This counts the lines before ``start``, so use it only for messages.
    """
    if start:
        with path.open("rb") as file:
            left = start
            while left and (chunk := file.read(min(left, 1 << 20))):
                number += chunk.count(b"\n")
                left -= len(chunk)
    return f"{path}:{number}"


def _raw_lines(path: File, start: int, longest: int) -> Iterator[bytes]:
    number = 0
    try:
        with open_bytes(path) as file:
            if start:
                file.seek(start)
            lines = iter(partial(file.readline, longest + 1), b"")
            for number, raw in enumerate(lines, 1):  # noqa: B007  # used in the message below
                yield raw
    except Inflated as error:
        raise DataError(
            f"{path}:{number + 1}: {error.size:,} bytes were unpacked from {error.read:,}: text "
            f"is never more than {RATIO:,} times larger than the compressed file",
            "if this is the text that you want, unpack the file first (gunzip, unzstd)",
        ) from None
    except _FarBack as error:
        raise DataError(
            f"{path}: it was packed with zstd --long, and unpacking it takes more than 128 MB",
            f"unpack it first: zstd -d --long=31 {path}",
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, OSError) and error.strerror:
            raise read_error(error, DataError(f"{path}: {error.strerror}")) from error
        raise DataError(
            f"{path}:{number + 1}: the compressed file is damaged or truncated ({error})",
            "copy or download it again",
        ) from error


def open_bytes(path: File) -> io.BufferedReader:
    """The bytes of a file, unpacked if its name ends in .gz or .zst.

    Raises:
        Inflated: While they are read: there are far more than text has.
    """
    if path.suffix not in (".gz", ".zst"):
        return path.open("rb")
    file = path.open("rb")
    unpacked: Any = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else _ZstdFile(file)
    return io.BufferedReader(_Unpacked(unpacked, file), 1 << 20)


class Inflated(Exception):
    """A compressed file has far more text than text can have."""

    def __init__(self, size: int, read: int) -> None:
        super().__init__(size, read)
        self.size, self.read = size, read


class _FarBack(Exception):
    """A zstd file repeats text from so far back that it needs more memory than zstd allows."""


class _Unpacked(io.RawIOBase):
    """The text of a compressed file, as long as there is not absurdly much of it.

    Raises:
        Inflated: There is.
    """

    def __init__(self, text: Any, file: Any) -> None:
        self._text, self._file, self._size = text, file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._text.seekable())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._text.seek(offset, whence))

    def close(self) -> None:
        self._text.close()
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        size = int(self._text.readinto(buffer))
        self._size += size
        if self._size > _FREE and self._size > RATIO * (read := self._file.tell()):
            raise Inflated(self._size, read)
        return size


_PACKED = 1 << 12  # bytes that are unpacked at once: they have 128 MB of text at most


class _ZstdFile(io.RawIOBase):
    """A zstd file of any number of frames.

    zstandard's own reader does not report a truncated file.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._frame: Any = None
        self._input = b""
        self._output = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._output and self._fill():
            pass
        size = min(len(buffer), len(self._output))
        buffer[:size] = self._output[:size]
        self._output = self._output[size:]
        return size

    def _fill(self) -> bool:
        """Decompress some more; False at the end."""
        import zstandard

        self._input = self._input or self._file.read(_PACKED)
        if not self._input:
            if self._frame is not None:
                raise EOFError("it ends within a frame")
            return False
        self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
        try:
            self._output = memoryview(self._frame.decompress(self._input))
        except zstandard.ZstdError as error:
            raise (_FarBack if "too much memory" in str(error) else EOFError)(str(error)) from error
        self._input = self._frame.unused_data
        if self._frame.eof:
            self._frame = None
        return True


def likely_encoding(raw: bytes) -> str:
    """The encoding to name in the hint."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    if all(len(run) == 1 for run in re.findall(rb"[\x80-\xff]+", raw)):
        return "WINDOWS-1252"  # single letters with accents; a Chinese character has two bytes
    try:
        raw.decode("gb18030")
    except UnicodeDecodeError:
        return "WINDOWS-1252"
    return "GB18030"
