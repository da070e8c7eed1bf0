"""Text and token stores at fsspec URLs: ``s3://``, ``gs://``, ``hf://``, ``https://``, ``file://``.

``RemoteFile`` is a file of text: it is read in blocks, so that a process that encodes a piece of a
large file reads only that piece. ``RemoteStore`` is the folder of a store: its shards are uploaded
as they are built, and read through a local copy, which has a limit. The manifest with the hashes is
uploaded last and read first, and every file is compared with it. What fails is tried again, after a
while.

s3, gs and others need their own library (s3fs, gcsfs), which fsspec names if it is missing.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import urlsplit

from plmctl.addresses import filled, refuse_secrets, shown, unfilled
from plmctl.errors import ConfigError, DataError, PlmError
from plmctl.files import read_checked, write_atomically, write_checked, write_error
from plmctl.hashing import digest_of_files

T = TypeVar("T")

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_WAITS = (1.0, 2.0, 4.0, 8.0)  # seconds before each further try
_BLOCK = 1 << 23  # bytes of a text file that are read at once
_STAMPS = (
    "ETag",
    "etag",
    "blob_id",
    "md5Hash",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
)


# --- URLs ---


def is_url(name: str) -> bool:
    """Whether this is an fsspec URL; ``hf:NAME`` and ``sample:NAME`` are not."""
    return _URL.match(name) is not None


def open_file_system(url: str) -> tuple[Any, str]:
    """Fsspec's file system of a URL, and the path in it; the web's uses ~/.netrc and proxies.

    Raises:
        ConfigError: It has a password in it, the protocol is unknown, or its library is not
            installed.
    """
    import fsspec

    refuse_secrets(url)
    protocol, options = url.partition("://")[0], {}
    if protocol in ("http", "https"):
        own = fsspec.config.conf.get(protocol, {}).get("client_kwargs", {})
        options = {"client_kwargs": {"trust_env": True, **own}}
    try:
        file_system, path = fsspec.core.url_to_fs(filled(url), **options)
    except ImportError as error:
        raise ConfigError(
            f"{shown(url)}: this address needs another library: {error}",
            "install it with pip (s3fs for s3, gcsfs for gs, adlfs for az)",
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{shown(url)}: {shown(unfilled(str(error), url))}",
            "use a path, or a URL such as s3://, gs://, hf://, https://, file://",
        ) from error
    return file_system, path


def attempt(action: Callable[[], T], url: str, doing: str) -> T:
    """Do something over the network; try again after a while if it fails.

    Args:
        doing: ``read`` or ``written``.

    Raises:
        FileNotFoundError: There is nothing at the address.
        PlmError: No permission; or it failed several times.
    """
    for wait in (*_WAITS, None):
        try:
            return action()
        except PlmError:
            raise
        except FileNotFoundError as error:
            if not isinstance(error.__cause__, OSError):
                raise
            failure: Exception = error.__cause__  # no server answers: fsspec's words for the web
        except (PermissionError, NotADirectoryError, IsADirectoryError) as error:
            raise PlmError(
                f"{shown(url)}: cannot be {doing}: {error.strerror or 'no permission'}",
                "check the address and your credentials for it, and run the same command again",
            ) from error
        except Exception as error:  # each file system has errors of another library
            failure = error
        if wait is not None:
            time.sleep(wait)
    reason = shown(unfilled(str(failure), url)).partition("\n")[0] or type(failure).__name__
    raise PlmError(
        f"{shown(url)}: cannot be {doing} after {len(_WAITS) + 1} tries: {reason}",
        "check the address, the network and your credentials, and run the same command again to "
        "continue",
    ) from failure


def glob_urls(pattern: str) -> list[str]:
    """The URLs that match a pattern, sorted.

    Raises:
        ConfigError: As ``open_file_system``.
        PlmError: As ``attempt``.
    """
    file_system, path = open_file_system(pattern)
    names = attempt(lambda: file_system.glob(path), pattern, "read")
    return sorted(unfilled(file_system.unstrip_protocol(name), pattern) for name in names)


# --- A file of text ---


@dataclass(frozen=True)
class RemoteStat:
    """Size and stamp of a remote file.

    Attributes:
        stamp: Changes if the file does: an ETag, a hash or a time.
    """

    st_size: int
    stamp: str


@dataclass(frozen=True)
class RemoteFile:
    """A file at a URL, with what reading needs of ``Path``."""

    url: str

    def __str__(self) -> str:
        return shown(self.url)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(urlsplit(self.url).path).name

    @property
    def suffix(self) -> str:
        """The last suffix, like ``Path.suffix``."""
        return PurePosixPath(self.name).suffix

    @property
    def suffixes(self) -> list[str]:
        """All suffixes, like ``Path.suffixes``."""
        return PurePosixPath(self.name).suffixes

    def stat(self, *, fresh: bool = False) -> RemoteStat:
        """Size and stamp.

        Raises:
            DataError: There is no such file, or its size is unknown.
            PlmError: As ``attempt``.
        """
        file_system, path = open_file_system(self.url)
        if fresh:
            file_system.invalidate_cache()
        try:
            facts = attempt(lambda: file_system.info(path), self.url, "read")
        except FileNotFoundError as error:
            raise DataError(f"{self}: no such file", "check the address") from error
        if facts.get("size") is None:
            raise DataError(
                f"{self}: the server does not say how large the file is",
                "download it, and name the local file",
            )
        stamp = next((str(facts[name]) for name in _STAMPS if facts.get(name)), "")
        return RemoteStat(int(facts["size"]), stamp)

    def open(self, mode: str = "rb") -> io.BufferedReader:
        """The bytes of the file, read in blocks as they are needed."""
        return io.BufferedReader(_RemoteBytes(self), 1 << 20)


class _RemoteBytes(io.RawIOBase):
    """Reads blocks; each is tried again if it fails."""

    def __init__(self, file: RemoteFile) -> None:
        self._file, self._size = file, file.stat().st_size
        self._at, self._start, self._block = 0, 0, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        if self._at >= self._size:
            return 0
        if not self._start <= self._at < self._start + len(self._block):
            self._fetch()
        first = self._at - self._start
        part = self._block[first : first + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def _fetch(self) -> None:
        file_system, path = open_file_system(self._file.url)
        start, end = self._at, min(self._at + _BLOCK, self._size)

        def read() -> bytes:
            data: bytes = file_system.cat_file(path, start=start, end=end)
            if len(data) < end - start:
                raise OSError(f"{len(data)} bytes where {end - start} were expected")
            return data

        try:
            self._block, self._start = attempt(read, self._file.url, "read"), start
        except FileNotFoundError as error:
            raise DataError(f"{self._file}: the file is gone", "check the address") from error
        if len(self._block) > end - start:  # a server that always sends the whole file
            self._start = 0


File = Path | RemoteFile


def open_source(name: str) -> File:
    """The file of a path or a URL."""
    return RemoteFile(name) if is_url(name) else Path(name)


def stamp_of(path: File, *, fresh: bool = False) -> list[int | str]:
    """Size and time of a file, or its stamp at a URL: what changes if the file does."""
    if isinstance(path, RemoteFile):
        facts = path.stat(fresh=fresh)
        return [facts.st_size, facts.stamp]
    there = os.stat(path)
    return [there.st_size, there.st_mtime_ns]


# --- The folder of a store ---


@contextmanager
def _no_space(path: Path) -> Iterator[None]:
    """Reports errors of writing to the local folder of stores at URLs.

    Raises:
        PlmError: It cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise write_error(
            Path(error.filename or path), error, "; `prepare.cache` is the folder"
        ) from error


def _digest(folder: Path) -> str | None:
    """The hash of the files of one side of a shard; None if one is missing."""
    try:
        return digest_of_files([folder / name for name in _FILES])
    except FileNotFoundError:
        return None


_ABOUT = "remote.json"
_FILES = ("tokens", "words", "sentences", "documents")
_FACTS = "facts.json"
_COUNT_EVERY = 60.0  # seconds
_ROOM = 0.9  # of the limit is kept if it was exceeded, so that not every shard counts all files
_counted: dict[Path, tuple[float, int]] = {}  # when the shards of a cache were counted, and bytes
_LOCKS = 64  # lock files of a store
INDEX_FILES = ("manifest.json", "sentences", "documents")
"""The files of one side of a store, besides the shards."""


@dataclass(frozen=True)
class RemoteRoot:
    """The folder of all stores, at a URL.

    Attributes:
        cache: The local folder of the files of all URLs.
        limit: Bytes of shards that are kept in it.
    """

    url: str
    cache: Path
    limit: int

    def store(self, key: str) -> RemoteStore:
        """A store; its local folder says where it is from."""
        own = hashlib.blake2b(self.url.rstrip("/").encode(), digest_size=8).hexdigest()
        store = RemoteStore(f"{self.url.rstrip('/')}/{key}", self.cache / own / key, self.limit)
        about = {"url": store.url, "limit": self.limit}
        if read_checked(store.folder / _ABOUT) is None or RemoteStore.of(store.folder) != store:
            with _no_space(store.folder):
                store.folder.mkdir(parents=True, exist_ok=True)
                write_checked(store.folder / _ABOUT, about)
        return store


CACHE, CACHE_SIZE = "~/.cache/plmctl/stores", 100_000_000_000


def store_root(name: str, cache: str = CACHE, limit: int = CACHE_SIZE) -> Path | RemoteRoot:
    """The folder or the URL of all token stores.

    Args:
        name: A folder, or a URL.
        cache: The local folder of the files of stores at URLs.
        limit: Bytes of shards that are kept in it.

    Raises:
        ConfigError: As ``open_file_system``.
    """
    if not is_url(name):
        return Path(name)
    open_file_system(name)
    return RemoteRoot(name, Path(cache).expanduser().absolute(), limit)


@dataclass(frozen=True)
class RemoteStore:
    """A store at a URL, and its local copy, which may lack shards.

    Attributes:
        limit: Bytes of the shards of all stores that are kept on this machine.
    """

    url: str
    folder: Path
    limit: int

    @classmethod
    def of(cls, folder: Path) -> RemoteStore | None:
        """The remote store that a local folder is a copy of, if it is one."""
        about = read_checked(folder / _ABOUT)
        return None if about is None else cls(about["url"], folder, about["limit"])

    # --- Reading ---

    def read(self, name: str) -> bytes | None:
        """The bytes of a file; None if it does not exist."""
        file_system, path = open_file_system(f"{self.url}/{name}")
        try:
            data: bytes = attempt(lambda: file_system.cat_file(path), f"{self.url}/{name}", "read")
        except FileNotFoundError:
            return None
        return data

    def fetch_index(self) -> None:
        """Make the local manifests and offsets those of the URL; without a manifest, remove it."""
        manifest = self.read("manifest.json")
        local = self.folder / "manifest.json"
        if manifest is None:
            local.unlink(missing_ok=True)
            return
        with self._lock("index"):
            names = [f"{side}/{name}" for side in ("train", "valid") for name in INDEX_FILES]
            there = local.exists() and local.read_bytes() == manifest
            if there and all(self._is_whole(name) for name in self._index_files()):
                return
            local.unlink(missing_ok=True)
            for name in names:
                (self.folder / name).unlink(missing_ok=True)
                self._copy(name, self.folder / name)
            self._write("manifest.json", manifest)

    def _is_whole(self, name: str) -> bool:
        """Whether a file of the index is here; those without a checksum are compared later."""
        path = self.folder / name
        return path.exists() if path.suffix != ".json" else read_checked(path) is not None

    def _copy(self, name: str, to: Path) -> None:
        """Copy a file to this machine, if it exists."""
        file_system, path = open_file_system(f"{self.url}/{name}")
        beside = to.with_name(f".{to.name}.{os.getpid()}.writing")

        def copy() -> None:
            size = file_system.info(path)["size"]
            with _no_space(beside):
                beside.parent.mkdir(parents=True, exist_ok=True)
                beside.touch()
            file_system.get_file(path, str(beside))
            if beside.stat().st_size != size:
                raise OSError(f"{beside.stat().st_size} bytes where {size} were expected")

        try:
            attempt(copy, f"{self.url}/{name}", "read")
            beside.replace(to)
        except FileNotFoundError:
            to.unlink(missing_ok=True)
        finally:
            beside.unlink(missing_ok=True)

    def _index_files(self) -> list[str]:
        """The files of the manifest's sides that have documents."""
        facts = read_checked(self.folder / "manifest.json") or {}
        sides = [side for side in ("train", "valid") if facts.get(side, {}).get("documents")]
        return [f"{side}/{name}" for side in sides for name in INDEX_FILES]

    def fetch_shard(self, name: str, digest: str) -> None:
        """Copy one side of a shard to the local folder, if it is not there.

        Args:
            name: ``shards/NUMBER/SIDE``.
            digest: The hash of its files in the manifest.

        Raises:
            PlmError: It cannot be read, or differs from its hash.
        """
        place = self.folder / name
        with self._lock(name.replace("/", "-")):
            if place.is_dir():
                return
            beside = self.folder / f".fetching-{os.getpid()}-{name.replace('/', '-')}"
            try:
                for wait in (*_WAITS[:2], None):  # a file may have been cut short on its way
                    shutil.rmtree(beside, ignore_errors=True)
                    with _no_space(beside):
                        beside.mkdir(parents=True)
                    for file in _FILES:
                        self._copy(f"{name}/{file}", beside / file)
                    if _digest(beside) == digest:
                        break
                    if wait is None:
                        raise PlmError(
                            f"{self.url}/{name}: differs from its hash in the manifest",
                            "build this part again from the text: plmctl prepare CONFIG --verify",
                        )
                    time.sleep(wait)
                with _no_space(place):
                    place.parent.mkdir(parents=True, exist_ok=True)
                    beside.rename(place)
            finally:
                shutil.rmtree(beside, ignore_errors=True)
        self.evict(place)

    def evict(self, keep: Path) -> None:
        """Remove the shards that were used least recently if they exceed the limit.

        The files of all stores are counted once a minute, or if the limit may be exceeded.

        Args:
            keep: What was added; it stays.
        """
        cache, now = self.folder.parents[1], time.monotonic()
        added = sum(path.stat().st_size for path in keep.rglob("*") if path.is_file())
        counted, total = _counted.get(cache, (-_COUNT_EVERY, 0))
        if now - counted < _COUNT_EVERY and total + added <= self.limit:
            _counted[cache] = counted, total + added
            return
        shards: list[tuple[float, int, Path]] = []
        for place in cache.glob("*/*/shards/*/*/"):
            with suppress(OSError):  # another process may remove it
                sizes = [entry.stat().st_size for entry in os.scandir(place)]
                shards.append((place.stat().st_mtime, sum(sizes), place))
        total = sum(size for _, size, _ in shards)
        wanted = self.limit if total <= self.limit else int(self.limit * _ROOM)
        for _, size, place in sorted(shards):
            if total <= wanted:
                break
            if place != keep and place.parent != keep:
                shutil.rmtree(place, ignore_errors=True)
                total -= size
        _counted[cache] = now, total

    def repair(self, part: Path, digest: str | None) -> bool:
        """Fetch a part again whose local copy is damaged or missing.

        Args:
            part: The folder of one side of a shard, or a file of the index.
            digest: The hash of a shard, to fetch it now; None: it is fetched when it is read.

        Returns:
            Whether the store at the URL has it undamaged, as far as was compared.
        """
        part = Path(os.path.normpath(part))
        if part.parent.parent.name != "shards":
            (self.folder / "manifest.json").unlink(missing_ok=True)
            self.fetch_index()
            return part.exists()
        if part.exists() or digest is not None:
            shutil.rmtree(part, ignore_errors=True)
        if digest is not None:
            try:
                self.fetch_shard(part.relative_to(self.folder).as_posix(), digest)
            except PlmError:
                return False
        return True

    # --- Writing ---

    def check_writable(self) -> None:
        """Refuse an address that cannot be written, before text is read."""
        self.put_bytes("started", b"a build of this store started\n")

    def put_bytes(self, name: str, data: bytes) -> None:
        """Write a file.

        Raises:
            PlmError: As ``attempt``.
        """
        url = f"{self.url}/{name}"
        file_system, path = open_file_system(url)
        self._put(url, len(data), lambda: file_system.pipe_file(path, data))

    def put(self, name: str, local: Path | None = None) -> None:
        """Write a local file to the store; by default the one of the same name."""
        local = local or self.folder / name
        url = f"{self.url}/{name}"
        file_system, path = open_file_system(url)
        self._put(url, local.stat().st_size, lambda: file_system.put_file(str(local), path))

    def _put(self, url: str, size: int, write: Callable[[], object]) -> None:
        file_system, path = open_file_system(url)

        def put() -> None:
            file_system.makedirs(path.rpartition("/")[0], exist_ok=True)
            write()
            file_system.invalidate_cache()
            if file_system.info(path)["size"] != size:
                raise OSError("another size than was written")

        try:
            attempt(put, url, "written")
        except FileNotFoundError as error:
            raise PlmError(
                f"{url}: cannot be written: {error}",
                "check the address, and that you may write there",
            ) from error

    def put_shard(self, number: str, folder: Path) -> None:
        """Write a shard, its counts and hashes last: then it is complete."""
        for path in sorted(folder.glob("*/*")):
            self.put(f"shards/{number}/{path.relative_to(folder).as_posix()}", path)
        self.put(f"shards/{number}/{_FACTS}", folder / _FACTS)

    def fetch_facts(self, *, prune: bool = False) -> None:
        """Copy the counts of the shards that are at the URL.

        Args:
            prune: Remove the local copies of shards that are not there.
        """
        file_system, path = open_file_system(f"{self.url}/shards")
        file_system.invalidate_cache()
        names = attempt(
            lambda: file_system.glob(f"{path}/*/{_FACTS}"), f"{self.url}/shards", "read"
        )
        there = {name.split("/")[-2] for name in names}
        for local in self.folder.glob(f"shards/*/{_FACTS}") if prune else ():
            if local.parent.name not in there:
                shutil.rmtree(local.parent, ignore_errors=True)
        for number in there:
            self.fetch_facts_of(number)

    def fetch_facts_of(self, number: str) -> None:
        """Copy the counts of one shard, if they are not there."""
        name = f"shards/{number}/{_FACTS}"
        if not (self.folder / name).exists() and (data := self.read(name)) is not None:
            self._write(name, data)

    def remove(self, name: str) -> None:
        """Remove a file here and at the URL."""
        (self.folder / name).unlink(missing_ok=True)
        file_system, path = open_file_system(f"{self.url}/{name}")
        with suppress(FileNotFoundError):
            attempt(lambda: file_system.rm_file(path), f"{self.url}/{name}", "written")

    def _write(self, name: str, data: bytes) -> None:
        path = self.folder / name
        with _no_space(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data, several_writers=True)

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        """One process of this machine at a time."""
        number = zlib.crc32(name.encode()) % _LOCKS
        with _no_space(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f".lock-{number}").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
