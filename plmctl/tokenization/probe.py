"""Texts with their ids that a saved tokenizer carries, so that a change of libraries is noticed.

``SHA256SUMS`` guards a tokenizer's files; this guards what other versions of transformers and
tokenizers make of the same files. The texts are in the file, so that they may change in the code.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from plmctl.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NAME = "tokenizer_probe.json"
_TOKENIZER = "tokenizer.json"

TEXTS = (
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
"""Scripts, digits, white space, combining marks, special tokens, and what is rarer."""


def write_probe(folder: Path) -> None:
    """Write the ids of ``TEXTS`` into a saved tokenizer's folder, by the tokenizer as it loads.

    A folder without ``tokenizer.json``, which plmctl itself never writes, gets none.
    """
    import tokenizers
    import transformers

    if not (folder / _TOKENIZER).is_file():
        return
    whole, plain = _opened(folder)
    head = {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__}
    rows = [{"text": t, "ids": _ids(whole, t), "plain": _plain(plain, t)} for t in TEXTS]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)  # one line per text
    document = f'{json.dumps(head)[:-1]}, "texts": [\n{lines}\n]}}\n'
    (folder / NAME).write_text(document, encoding="utf-8", newline="\n")


def check_probe(source: str) -> None:
    """Refuse a tokenizer folder that gives other ids now than when it was saved.

    Args:
        source: A folder; anything else, and a folder without probes (a published one), passes.

    Raises:
        DataError: The ids of a text differ, with both versions of the libraries; or the file of
            probes cannot be read.
    """
    path, tokenizer = Path(source) / NAME, Path(source) / _TOKENIZER
    if path.is_file() and tokenizer.is_file():
        states = (path.stat(), tokenizer.stat())
        _check(path.resolve(), tuple((one.st_mtime_ns, one.st_size, one.st_ino) for one in states))


@cache
def _check(path: Path, state: object) -> None:
    """Once a process for each state of the files: a run opens its tokenizer many times."""
    import tokenizers
    import transformers

    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        before = {name: str(saved[name]) for name in ("transformers", "tokenizers")}
        texts = [(str(one["text"]), list(one["ids"]), list(one["plain"])) for one in saved["texts"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: not a file of probes: {error}",
            "copy the folder again; or delete this file if the tokenizer is the right one",
        ) from error
    whole, plain = _opened(path.parent)
    now = {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__}
    for text, ids, plain_ids in texts:
        for was, found in ((ids, _ids(whole, text)), (plain_ids, _plain(plain, text))):
            if was == found:
                continue
            at = next(
                (n for n, (a, b) in enumerate(zip(was, found, strict=False)) if a != b),
                min(len(was), len(found)),
            )
            raise DataError(
                f"{path.parent}: the tokenizer gives other ids than when it was saved: "
                f"{text[:40]!r} was {_shown(was, at)} with {_versions(before)}, and is "
                f"{_shown(found, at)} with {_versions(now)} (from token {at} on)",
                "install the versions that it was saved with; or, if its files were changed on "
                f"purpose, delete {path}",
            )


def _opened(folder: Path) -> tuple[PreTrainedTokenizerBase, Tokenizer]:
    """The tokenizer as inputs are made with it, and as token stores are: without special tokens."""
    from transformers import AutoTokenizer

    whole = AutoTokenizer.from_pretrained(folder)
    plain = Tokenizer.from_file(str(folder / _TOKENIZER))
    plain.encode_special_tokens = True
    plain.no_padding()
    plain.no_truncation()
    return whole, plain


def _ids(tokenizer: Any, text: str) -> list[int]:
    found: list[int] = tokenizer(text, verbose=False)["input_ids"]
    return found


def _plain(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def _shown(ids: list[int], at: int) -> str:
    part = ", ".join(map(str, ids[at : at + 5]))
    return f"[{'… ' if at else ''}{part}{' …' if len(ids) > at + 5 else ''}]"


def _versions(versions: dict[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in versions.items())
