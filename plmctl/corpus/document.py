"""Documents, and the lines of a file: text and its origin.

Files are decompressed and must be UTF-8; reading can start at any byte where a line begins. Whether
a split holds out a document depends only on its text (``share_of``).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plmctl.arrays import Ints
from plmctl.errors import DataError

# --- Documents ---


@dataclass(frozen=True)
class Document:
    """A text and its origin.

    Attributes:
        text: The text.
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


# --- Bytes to lines of text ---


class Line(NamedTuple):
    """A line with its end.

    Attributes:
        text: The text.
        offset: Its first byte in the file.
        number: Line number, counted from 1 where reading started.
    """

    text: str
    offset: int
    number: int


def read_lines(path: Path, start: int = 0) -> Iterator[Line]:
    """The lines of a file from byte ``start``, where a line must begin; without a byte-order mark.

    Raises:
        DataError: The file cannot be opened, is damaged, or has bytes that are not UTF-8.
    """
    offset = start
    for number, raw in enumerate(_raw_lines(path, start), 1):
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{locate(path, start, number)}: not UTF-8: byte 0x{raw[error.start]:02x} at byte "
                f"{error.start + 1} of the line",
                f"convert the file, for instance `iconv -f {_likely_encoding(raw)} -t UTF-8`",
            ) from None
        yield Line(text.removeprefix("\ufeff") if offset == 0 else text, offset, number)
        offset += len(raw)


def locate(path: Path, start: int, number: int) -> str:
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


def _raw_lines(path: Path, start: int) -> Iterator[bytes]:
    number = 0
    try:
        with _open_bytes(path) as file:
            if start:
                file.seek(start)
            for number, raw in enumerate(file, 1):  # noqa: B007  # used in the message below
                yield raw
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, OSError) and error.strerror:
            raise DataError(f"{path}: {error.strerror}") from error
        raise DataError(
            f"{path}:{number + 1}: the compressed file is damaged or truncated ({error})",
            "copy or download it again",
        ) from error


def _open_bytes(path: Path) -> io.BufferedReader:
    if path.suffix == ".gz":
        return io.BufferedReader(gzip.GzipFile(path), 1 << 20)
    if path.suffix == ".zst":
        return io.BufferedReader(_ZstdFile(path), 1 << 20)
    return path.open("rb")


class _ZstdFile(io.RawIOBase):
    """A zstd file of any number of frames.

    zstandard's own reader does not report a truncated file.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._frame: Any = None
        self._input = b""
        self._output = b""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

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

        self._input = self._input or self._file.read(1 << 16)
        if not self._input:
            if self._frame is not None:
                raise EOFError("it ends within a frame")
            return False
        self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
        try:
            self._output = self._frame.decompress(self._input)
        except zstandard.ZstdError as error:
            raise EOFError(str(error)) from error
        self._input = self._frame.unused_data
        if self._frame.eof:
            self._frame = None
        return True


def _likely_encoding(raw: bytes) -> str:
    """The encoding to name in the hint."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    try:
        raw.decode("gb18030")
    except UnicodeDecodeError:
        return "WINDOWS-1252"
    return "GB18030"
