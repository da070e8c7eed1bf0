"""What a text has that is no text: marks between documents, tags, lines that only look blank.

Only the beginnings of some sources are looked at, so that the counts are those of what was read.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from plmctl.corpus.document import UNSEEN
from plmctl.corpus.reading import WIKI_EXTRACTOR, is_separator

_TOKENS = re.compile(
    r"<\|[A-Za-z_]{2,30}\|>|</?s>|<(?:eos|bos|sep|eod|eot)>|\[(?:SEP|CLS|EOS|BOS|EOD|EOT|DOC)\]",
    re.I,
)
"""Names of special tokens, which text for other programs has between documents."""

_RULE = re.compile(r"([*\-=_#~+])(?:\s?\1){2,}")  # a line such as *** or -----

_TAG = re.compile(r"</?([A-Za-z][\w:-]*)(?:\s[^<>]*)?>")  # a line that is one tag

_MANY = 3  # rules and tags: fewer are no form of the text

_SHOWN = 3  # kinds of marks that are named


def notes_on(texts: Sequence[str], separator: str | None = None) -> list[str]:
    """Lines for the user on marks of a text; empty: it has none.

    Args:
        texts: Beginnings of the sources.
        separator: The `data.separator` of the config, which is no text.
    """
    notes, tokens, rules, tags = list[str](), Counter[str](), Counter[str](), Counter[str]()
    articles = separators = unseen = 0
    characters = set[str]()
    for text in texts:
        for line in text.splitlines():
            bare = line.strip()
            if not bare:
                characters |= set(line) - set(" \t\f\v")
                unseen += not set(line) <= set(" \t\f\v")
            elif separator is not None and is_separator(line, separator):
                separators += 1
            elif not bare.strip(UNSEEN):
                unseen += 1
                characters |= set(bare)
            elif bare.startswith("<doc ") and _TAG.fullmatch(bare):
                articles += 1
            elif tag := _TAG.fullmatch(bare):
                tags[tag[1]] += tag[0] not in ("<s>", "</s>")
            elif _RULE.fullmatch(bare):
                rules[bare] += 1
        if separator is None or separator not in text:
            tokens.update(_TOKENS.findall(text))
        else:
            separators += text.count(separator)
            tokens.update(_TOKENS.findall(text.replace(separator, "")))
    if articles:
        tags.pop("doc", None)
        notes.append(
            f"the text is that of WikiExtractor: {articles:,} lines <doc ...> in its beginning; "
            f"with data.separator={WIKI_EXTRACTOR} each article is a document, without these lines"
        )
    marks = tokens.most_common(_SHOWN)
    marks += [(rule, count) for rule, count in rules.most_common(_SHOWN) if count >= _MANY]
    if marks:
        named = ", ".join(f"{mark} {count:,} times" for mark, count in marks)
        # For a shell, and in it YAML: `***` and `[SEP]` mean something else there.
        quoted = f"'\"{marks[0][0]}\"'"
        notes.append(
            f"the beginning of the text has {named}: if documents are between them, set "
            f"data.separator={quoted}; as it is, they are text to learn"
        )
    many = [(name, count) for name, count in tags.most_common(_SHOWN) if count >= _MANY]
    if many:
        named = ", ".join(f"<{name}> {count:,} times" for name, count in many)
        notes.append(f"the beginning of the text has lines that are only a tag, which are text to "
                     f"learn: {named}")  # fmt: skip
    if unseen:
        shown = ", ".join(sorted(map(_name, characters)))
        notes.append(
            f"{unseen:,} lines in the beginning of the text look blank but hold {shown}: they are "
            "read as blank lines"
        )
    if separator is not None and texts and not separators:
        notes.append(
            f"data.separator: {separator!r} does not occur in the beginning of the text; documents "
            "may be read as one"
        )
    return notes


def _name(character: str) -> str:
    return f"U+{ord(character):04X} ({unicodedata.name(character, 'unnamed').lower()})"
