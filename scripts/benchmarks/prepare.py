"""A text file to what training reads: the token store against ``datasets``, and their disk space.

The other way is ``load_dataset``, ``map`` with the tokenizer and ``map`` to rows of 128, as
``run_mlm.py`` does; the store needs no rows, which an objective finds as it goes.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.encode import prepare as prepare
from benchmarks.text import Results, measured, set_threads, size_of


def run(args: argparse.Namespace, side: str) -> Results:
    """The speed of a side, and what it leaves on disk."""
    set_threads(args)
    with tempfile.TemporaryDirectory(dir=args.folder) as root:
        return _SIDES[side](args, Path(root)) | {"disk_mb": size_of(Path(root))}


def _plmctl(args: argparse.Namespace, root: Path) -> Results:
    from plmctl.config.sections import DataConfig
    from plmctl.corpus.build import build_stores
    from plmctl.tokenization.encode import Encoder

    config = DataConfig.model_validate({"train": [str(args.folder / "text.txt")], "valid": None})
    encoder = Encoder(str(args.folder / "tokenizer"))

    def work() -> Any:
        return build_stores(
            config,
            encoder,
            root=root,
            processes=args.processes,
            progress=lambda done, total: None,
            notice=print,
        )

    return measured(args, work)[1]


def _stock(args: argparse.Namespace, root: Path) -> Results:
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(args.folder / "tokenizer")
    text, cache = str(args.folder / "text.txt"), str(root)

    def work() -> Any:
        rows = datasets.load_dataset("text", data_files=text, cache_dir=cache, split="train")
        processes = args.processes if args.processes > 1 else None
        rows = rows.map(
            lambda batch: tokenizer(batch["text"], return_special_tokens_mask=True),
            batched=True, num_proc=processes, remove_columns=["text"],
        )  # fmt: skip
        return rows.map(_rows_of_128, batched=True, num_proc=processes)

    return measured(args, work)[1]


_SIDES = {"plmctl": _plmctl, "stock": _stock}


def _rows_of_128(batch: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    """Pack what the tokenizer gave, as ``run_mlm.py`` does."""
    from itertools import chain

    joined = {name: list(chain(*lists)) for name, lists in batch.items()}
    whole = len(joined["input_ids"]) // 128 * 128
    return {name: [v[at : at + 128] for at in range(0, whole, 128)] for name, v in joined.items()}
