"""Checks that a tokenizer folder is unchanged and still gives the same ids.

``SHA256SUMS`` detects changed files. The probes, which are texts with their ids, detect versions of
transformers and tokenizers that give other ids for the same files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from plmctl.errors import ConfigError, DataError, PlmError, machine_error
from plmctl.files import read_json, write_atomically
from plmctl.folders import refuse_links
from plmctl.hashing import sha256_of
from plmctl.tokenization.units import SPACE_MARK, plain_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


# --- All checks of a folder ---


def check_tokenizer(source: str) -> None:
    """Refuse a tokenizer folder that has changed; every command that opens one calls this.

    Args:
        source: A folder; anything else is not checked.

    Raises:
        ConfigError: The folder has no complete tokenizer, or a file has changed, is missing, or is
            a link out of the folder.
        DataError: The tokenizer gives other ids than when it was saved.
    """
    refuse_links(Path(source))
    if Path(source).is_dir():
        _check_complete(source)
        _require_converter(source)
    check_sums(source)
    check_probe(source)


_VOCABULARIES = (
    ("vocab.txt",),
    ("vocab.json", "merges.txt"),
    ("spiece.model",),
    ("sentencepiece.bpe.model",),
    ("tokenizer.model",),
)


def vocabulary_files(source: str | Path) -> list[str]:
    """The files of a folder that hold a vocabulary, or a part of one."""
    names = ["tokenizer.json", *(name for files in _VOCABULARIES for name in files)]
    return [name for name in names if (Path(source) / name).is_file()]


def _check_complete(source: str) -> None:
    """Refuse a folder without a complete tokenizer.

    That is a tokenizer.json; or a vocabulary with a tokenizer_config.json, which says what the
    vocabulary does not, such as whether text becomes lower case. transformers opens less than that
    too: with its defaults, or with no vocabulary at all, so that every word is unknown.

    Raises:
        ConfigError: It lacks files, with the command that makes them of a vocabulary.
    """
    there = vocabulary_files(source)
    whole = any(set(there).issuperset(files) for files in _VOCABULARIES)
    says_how = (Path(source) / "tokenizer_config.json").is_file()
    if "tokenizer.json" in there or (whole and says_how):
        return
    if not whole:
        with_what = f", only {' and '.join(there)}" if there else ""
        raise ConfigError(
            f"{source}: no tokenizer.json here{with_what}",
            "copy the files of the tokenizer into it, or train one with `plmctl train-tokenizer`",
        )
    of_bert = there == ["vocab.txt"]
    kind, path = (
        ("BertTokenizer", str(Path(source) / "vocab.txt"))
        if of_bert
        else (
            "AutoTokenizer",
            source,
        )
    )
    opened = f"T({path!r}, do_lower_case=True)" if of_bert else f"T.from_pretrained({path!r})"
    raise ConfigError(
        f"{source}: no tokenizer.json here, and {' and '.join(there)} alone does not say how text "
        "is cut (upper and lower case, special tokens)",
        f'make one of it once: python -c "from transformers import {kind} as T; '
        f'{opened}.save_pretrained({source!r})"'
        + ("; for a cased model do_lower_case=False" if of_bert else ""),
    )


# --- A SentencePiece file without a tokenizer.json, which transformers converts ---


_SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")


def _sentencepiece_file(source: str) -> Path | None:
    """The file that a folder's tokenizer is converted from; None: it has a tokenizer.json.

    A tokenizer.model may be one of tiktoken, which is text; a protocol buffer begins with a tag.
    """
    there = vocabulary_files(source)
    if "tokenizer.json" in there:
        return None
    paths = (Path(source) / name for name in _SENTENCEPIECE if name in there)
    return next((path for path in paths if path.read_bytes()[:1] == b"\n"), None)


def _require_converter(source: str) -> None:
    """Refuse to convert without the libraries that can: transformers names another one.

    Raises:
        PlmError: One is not installed.
    """
    if (path := _sentencepiece_file(source)) is None:
        return
    if not (find_spec("sentencepiece") and find_spec("google") and find_spec("google.protobuf")):
        raise PlmError(
            f"{source}: {path.name} has to be converted, for which the libraries sentencepiece and "
            "protobuf are needed",
            "pip install sentencepiece protobuf",
        )


_PROBES = ("Anna sees 3 trees, doesn't she?", "  two  spaces ", "Été à l'école", "我们在2019年。")


def check_converted(source: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer whose pieces are not those of the file that it was converted from.

    So it is if the class of tokenizer_config.json is of another algorithm than the file.

    Raises:
        DataError: With a text.
    """
    if not Path(source).is_dir() or (path := _sentencepiece_file(source)) is None:
        return
    from sentencepiece import SentencePieceProcessor

    original = SentencePieceProcessor(model_file=str(path))
    size = original.get_piece_size()
    own = "".join(original.id_to_piece(id_) for id_ in range(3, size, max(1, size // 100)))
    for text in (own.replace(SPACE_MARK, " ").strip(), *_PROBES):
        pieces = original.encode(text, out_type=str)
        known = [p for p in pieces if original.piece_to_id(p) != original.unk_id()]
        converted = tokenizer.tokenize(text)
        if len(known) == len(pieces) and converted != pieces:
            raise DataError(
                f"{source}: {type(tokenizer).__name__} cuts {text!r} into {' '.join(converted)}, "
                f"and {path.name} into {' '.join(pieces)}",
                "name the class of the published model as `tokenizer_class` in "
                "tokenizer_config.json, or save the tokenizer with transformers once",
            )


UNKNOWN = "\ufffe"
"""A text that no vocabulary has."""


def check_usable(source: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer that cannot be used: transformers opens whatever is there.

    Raises:
        DataError: Every word would be unknown; or, as with files of several tokenizers, text
            cannot be encoded, or there are more ids than the network beside it has embeddings for.
    """
    with opening(source):
        tokenizer(UNKNOWN)
    vocab, special = tokenizer.get_vocab(), {*tokenizer.all_special_tokens, SPACE_MARK}
    if not set(vocab) - special:
        raise DataError(
            f"{source}: a tokenizer without a vocabulary: every word would be unknown",
            "files of it are missing or empty: copy the folder again",
        )
    config = Path(source) / "config.json"
    network = read_json(config) if config.is_file() else {}
    rows, largest = network.get("vocab_size"), max(vocab.values())
    # Tokens may come from tokenizer_config.json too. A network that reads characters has no rows.
    if isinstance(rows, int) and largest >= rows and "max_characters" not in network:
        raise DataError(
            f"{source}: the tokenizer has ids up to {largest:,}, and the model has embeddings for "
            f"{rows:,}",
            "put the tokenizer into the folder that the model was trained with",
        )


@contextmanager
def opening(source: str | Path) -> Iterator[None]:
    """Reports what a damaged folder raises in the block as one plain line.

    Raises:
        DataError: A file of the folder cannot be used.
    """
    try:
        yield
    except PlmError:
        raise
    except Exception as error:  # the tokenizers package raises bare exceptions
        if not Path(source).is_dir():  # a Hub id, whose errors have their own words
            raise
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise machine_error(error) or DataError(
            f"{source}: the tokenizer cannot be opened: {reason[:200]}",
            "a file is damaged: copy the folder again, or train the tokenizer again",
        ) from error


def check_saved(folder: Path, trained: PreTrainedTokenizerBase, texts: Sequence[str]) -> None:
    """Load ``folder`` as a user would and compare.

    Raises:
        PlmError: The class, the special tokens or ids differ, or a text is not decoded correctly.
    """
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(folder)
    if type(loaded) is not type(trained):
        raise PlmError(f"{folder}: loads as {type(loaded).__name__}, not {type(trained).__name__}")
    if loaded.all_special_ids != trained.all_special_ids:
        raise PlmError(f"{folder}: the special tokens changed when it was saved")
    for text in texts:
        ids = loaded(text)["input_ids"]
        if ids != trained(text)["input_ids"]:
            raise PlmError(f"{folder}: other ids after loading, for {text[:60]!r}")
        # Text that contains the name of a special token is encoded as that token here, and decoding
        # leaves it out; unknown characters are lost too.
        plain = loaded(text, add_special_tokens=False)["input_ids"]
        again = loaded(loaded.decode(ids, skip_special_tokens=True))["input_ids"]
        if again != ids and not set(plain).intersection(loaded.all_special_ids):
            raise PlmError(f"{folder}: decoding and encoding again gives other ids: {text[:60]!r}")


# --- The hashes of a trained tokenizer's files, so that later commands notice a change ---


SUMS = "SHA256SUMS"


def write_sums(folder: Path) -> None:
    """Write the hash of each file of a tokenizer, as ``sha256sum`` does."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != SUMS)
    lines = [f"{sha256_of(path)}  {path.name}\n" for path in files]
    write_atomically(folder / SUMS, "".join(lines))


def check_sums(source: str) -> None:
    """Refuse a tokenizer folder whose files have changed since training.

    Args:
        source: A folder; anything else is not checked.

    Raises:
        ConfigError: A file has changed or is missing.
    """
    folder = Path(source)
    sums = folder / SUMS
    if not sums.is_file():
        return
    for line in sums.read_text(encoding="utf-8", errors="replace").splitlines():
        wanted, _, name = line.partition("  ")
        path = folder / name
        if not path.is_file() or sha256_of(path) != wanted:
            raise ConfigError(
                f"{path}: {'changed' if path.is_file() else 'missing'} since it was trained "
                f"(its hash differs from {SUMS})",
                f"train it again, or delete {sums} if the change is intended",
            )


# --- Probes: texts with their ids, both in the file, so that new versions can change the texts ---


PROBE = "tokenizer_probe.json"

_TOKENIZER = "tokenizer.json"

PROBE_TEXTS = (
    "The quick brown fox doesn't jump over 13 lazy dogs; it's 3.14, e.g. 1,234.56 (100%)!",
    "UPPER lower Title camelCase snake_case kebab-case http://a.example/b?c=d#e x@y.example",
    "Crème brûlée naïve Straße ÅNGSTRÖM œuvre Łódź İstanbul ǅ ﬁ",
    "e\u0301 n\u0303 \u1e9b\u0323 \u212b \u00bd \u2460 \uff21\uff22\uff43 \uff11\uff12",
    "中国的首都是北京。人民站起来了！ㄅㄆㄇ 龍 𠮷野家",
    "日本語の文章です。カタカナ ｶﾀｶﾅ ひらがな 東京タワー",
    "한국어 문장입니다. \u1112\u1161\u11ab",
    "Привет, мир! Ґанок. Καλημέρα κόσμε. Բարեւ",
    "مرحبا بالعالم ١٢٣ שָׁלוֹם עולם",
    "नमस्ते दुनिया १२३ สวัสดีชาวโลก ကမ္ဘာ ខ្មែរ ಕನ್ನಡ",
    "  two  spaces, a\ttab, a\nline\r\n\n\nend\u00a0no-break\u3000wide\u200bzero\u2028 ",
    "",
    " ",
    "0 00 007 1234567890 12345678901234567890 1e-5 0x1F ² ³ Ⅷ",
    "🙂 👩‍👩‍👧 🇨🇳 ♥️ \u202eright\u202c \ufeff \u0000 \u0007 \ufffd",
    "[CLS] a [MASK] b [SEP] [PAD] [UNK] <s> c <mask> </s> <pad> <unk>",
    "<|endoftext|> <extra_id_0> d <extra_id_1> [unused1] <S> e </S> <UNK>",
    "antidisestablishmentarianism" + "x" * 120,
)
"""Scripts, digits, white space, combining marks, special tokens, and rare cases."""


def write_probe(folder: Path) -> None:
    """Write ``PROBE_TEXTS`` with the ids that the saved tokenizer gives when it is loaded.

    A folder without ``tokenizer.json``, which plmctl never writes, gets no probes.
    """
    import tokenizers
    import transformers

    if not (folder / _TOKENIZER).is_file():
        return
    whole, plain = _open_both_ways(folder)
    head = {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__}
    rows = [
        {"text": t, "ids": _input_ids(whole, t), "plain": _store_ids(plain, t)} for t in PROBE_TEXTS
    ]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)  # one line per text
    document = f'{json.dumps(head)[:-1]}, "texts": [\n{lines}\n]}}\n'
    (folder / PROBE).write_text(document, encoding="utf-8", newline="\n")


def check_probe(source: str) -> None:
    """Refuse a tokenizer folder that gives other ids now than when it was saved.

    Args:
        source: A folder; a folder without probes (a published one) or anything else passes.

    Raises:
        DataError: The ids of a text differ; the message has both versions of the libraries. Or the
            probes cannot be read.
    """
    path, tokenizer = Path(source) / PROBE, Path(source) / _TOKENIZER
    if path.is_file() and tokenizer.is_file():
        states = (path.stat(), tokenizer.stat())
        _check_ids(
            path.resolve(), tuple((one.st_mtime_ns, one.st_size, one.st_ino) for one in states)
        )


@cache
def _check_ids(path: Path, state: object) -> None:
    """Cached, because a run opens its tokenizer many times; ``state`` changes with the files."""
    import tokenizers
    import transformers

    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        before = {name: str(saved[name]) for name in ("transformers", "tokenizers")}
        texts = [(str(one["text"]), list(one["ids"]), list(one["plain"])) for one in saved["texts"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path}: not a file of probes: {error}",
            "copy the folder again; or delete this file if you are sure of the tokenizer",
        ) from error
    whole, plain = _open_both_ways(path.parent)
    now = {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__}
    for text, ids, plain_ids in texts:
        with opening(path.parent):  # files of several tokenizers may open, and raise here
            both = (ids, _input_ids(whole, text)), (plain_ids, _store_ids(plain, text))
        for was, current in both:
            if was == current:
                continue
            at = next(
                (n for n, (a, b) in enumerate(zip(was, current, strict=False)) if a != b),
                min(len(was), len(current)),
            )
            raise DataError(
                f"{path.parent}: the tokenizer gives other ids than when it was saved: "
                f"{text[:40]!r} was {_show_ids(was, at)} with {_show_versions(before)}, and is "
                f"{_show_ids(current, at)} with {_show_versions(now)} (from token {at} on)",
                "install the versions that it was saved with; or, if you changed its files on "
                f"purpose, delete {path}",
            )


def _open_both_ways(folder: Path) -> tuple[PreTrainedTokenizerBase, Tokenizer]:
    """The tokenizer as models use it, and as token stores do: without special tokens."""
    from transformers import AutoTokenizer

    with opening(folder):
        whole = AutoTokenizer.from_pretrained(folder)
        return whole, plain_tokenizer(Tokenizer.from_file(str(folder / _TOKENIZER)))


def _input_ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, verbose=False)["input_ids"]
    return ids


def _store_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def _show_ids(ids: list[int], at: int) -> str:
    part = ", ".join(map(str, ids[at : at + 5]))
    return f"[{'… ' if at else ''}{part}{' …' if len(ids) > at + 5 else ''}]"


def _show_versions(versions: dict[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in versions.items())
