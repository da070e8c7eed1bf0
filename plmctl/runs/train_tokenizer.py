"""``plmctl train-tokenizer``: raw text in, a Hugging Face tokenizer folder out."""

import hashlib
import time
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl import registry
from plmctl.config.tokenizer import TokenizerConfig
from plmctl.corpus.reading import documents, resolve, size_of
from plmctl.corpus.sentences import choose_rule
from plmctl.corpus.split import share_of
from plmctl.errors import ConfigError, DataError
from plmctl.reporting.tables import figures_table
from plmctl.runs.folder import check_run, open_run, write_results
from plmctl.runs.say import say, show
from plmctl.tokenization.check import check_saved

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ALGORITHM_OF = {"bert": "wordpiece", "gpt2": "byte_bpe"}
_CHECKED_LINES = 200


def run(config: TokenizerConfig, *, fresh: bool, as_json: bool) -> None:
    """Train, save, load again and compare; a finished tokenizer is left alone."""
    wanted = _ALGORITHM_OF[config.family]
    if config.algorithm != wanted:
        raise ConfigError(
            f"family: {config.family} has the algorithm {wanted}, not {config.algorithm}",
            f"use `algorithm: {wanted}`, or another family",
        )
    check_run(config, config.run, fresh=fresh)
    if (Path(config.run) / "tokenizer.json").is_file() and not fresh:
        say(f"{config.run} is finished: this tokenizer is trained already")
        return
    began = time.perf_counter()
    say(f"training a {config.algorithm} tokenizer of {config.vocab_size:,} ids")
    tokenizer = _train(config)
    seconds = time.perf_counter() - began
    folder = open_run(config, config.run, fresh=fresh)
    checked = list(islice(_lines(config), _CHECKED_LINES))
    tokenizer.save_pretrained(folder / ".saving")
    check_saved(folder / ".saving", tokenizer, checked)
    for path in sorted((folder / ".saving").iterdir(), reverse=True):
        path.rename(folder / path.name)  # tokenizer.json, the mark of a finished one, comes last
    (folder / ".saving").rmdir()
    figures = _figures(tokenizer, checked) | {
        "sha256": hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest(),
        "seconds": round(seconds, 1),
    }
    write_results(folder, "tokenizer", {"kind": "tokenizer", "results": figures})
    shown = figures | {"sha256": str(figures["sha256"])[:16] + "…"}
    show(figures, [figures_table(f"tokenizer {folder}", shown)], as_json=as_json)


def _train(config: TokenizerConfig) -> "PreTrainedTokenizerBase":
    lines = _lines(config)
    first = next(lines, None)
    if first is None:
        raise DataError(f"no text in {', '.join(config.data.train)}", "are the paths right?")
    algorithm = registry.load("tokenization", config.algorithm)
    trained: PreTrainedTokenizerBase = algorithm.train(config, chain([first], lines))
    return trained


def _lines(config: TokenizerConfig) -> Iterator[str]:
    """The lines to learn from: all, or those of a sample of the documents."""
    sources = resolve(config.data.train)
    total = sum(map(size_of, sources))
    kept = min(1.0, config.data.max_bytes / total) if total else 1.0
    for source in sources:
        for document in documents(source, config.data):
            if kept == 1.0 or share_of(f"{config.seed}\n{document.text}") < kept:
                yield from (line for line in document.text.splitlines() if line.strip())


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
