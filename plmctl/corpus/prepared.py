"""The prepared text of a pretraining: its token stores, and what is in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plmctl.corpus.store import Corpus
from plmctl.corpus.words import WordRule

_LISTED = 100  # sources with their hashes in environment.json; the hash of the data has all


@dataclass(frozen=True)
class PreparedText:
    """The token stores of a pretraining."""

    train: Corpus
    valid: Corpus | None
    hashes: dict[str, str]
    """The hashes of the data and the tokenizer, for ``environment.json``."""
    sentences: str
    """How the text is split into sentences, and why."""
    words: tuple[int | None, ...]
    """Words of each store of the training text; None: they were not counted."""
    word_rules: tuple[WordRule, ...]
    """How they were counted, or why not."""
    built: bool
    """Whether a store was built; otherwise all were there."""
    manifests: tuple[Mapping[str, Any], ...]
    """The sources of each store with their hashes, and what is in it."""

    @property
    def contents(self) -> dict[str, Any]:
        """What is in the text, for ``environment.json`` and the model card."""
        counts = {
            side: {
                key: sum(one[side][key] for one in self.manifests if one.get(side))
                for key in ("documents", "tokens", "bytes")
            }
            for side in ("train", "valid")
        }
        counts["train"] |= {} if self.num_words is None else {"words": self.num_words}
        files = [source for one in self.manifests for source in one["sources"]]
        # A file at a URL has a stamp, a data set of the Hub nothing.
        listed = {
            file["name"]: file.get("sha256") or file.get("stamp", "") for file in files[:_LISTED]
        }
        return {**counts, "files": len(files), "sources": listed}

    @property
    def num_words(self) -> int | None:
        """Words of the training text; None if those of a store are unknown."""
        known = [count for count in self.words if count is not None]
        return sum(known) if len(known) == len(self.words) else None

    @property
    def word_rule(self) -> str:
        """The rule by which words were counted, or why they were not."""
        names = [rule.name for rule in self.word_rules]
        if all(names):
            return " and ".join(dict.fromkeys(names))
        return next(rule.reason for rule in self.word_rules if not rule.name)
