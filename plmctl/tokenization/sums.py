"""The hashes of a trained tokenizer's files, so that later commands notice a change."""

from pathlib import Path

from plmctl.errors import ConfigError
from plmctl.files import write_atomically
from plmctl.hashing import sha256_of

NAME = "SHA256SUMS"


def write_sums(folder: Path) -> None:
    """Write the hash of each file of a tokenizer, as ``sha256sum`` does."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != NAME)
    lines = [f"{sha256_of(path)}  {path.name}\n" for path in files]
    write_atomically(folder / NAME, "".join(lines))


def check_sums(source: str) -> None:
    """Refuse a tokenizer folder whose files are not those that were trained.

    Args:
        source: A folder, or anything else, of which nothing is known.

    Raises:
        ConfigError: A file has changed or is missing.
    """
    folder = Path(source)
    sums = folder / NAME
    if not sums.is_file():
        return
    for line in sums.read_text(encoding="utf-8").splitlines():
        wanted, _, name = line.partition("  ")
        path = folder / name
        if not path.is_file() or sha256_of(path) != wanted:
            raise ConfigError(
                f"{path}: {'changed' if path.is_file() else 'missing'} since it was trained "
                f"(the hash in {NAME} is another)",
                f"train it again, or delete {sums} if the change is meant",
            )
