"""plmctl and the stock way side by side on this machine: speeds, as medians of ratios.

    python scripts/benchmark.py mlm --vocab-size 30522     a masked language model
    python scripts/benchmark.py clm                        a causal one
    python scripts/benchmark.py t5                         span corruption
    python scripts/benchmark.py profile bert elmo          where the time of a step goes
    python scripts/benchmark.py memory                     peak memory of every family
    python scripts/benchmark.py gpu                        what a GPU has to show, in eight minutes
    python scripts/benchmark.py finetune --data rte.jsonl --text premise,hypothesis
    python scripts/benchmark.py evaluation                 pseudo-log-likelihoods
    python scripts/benchmark.py generation                 texts of a causal model
    python scripts/benchmark.py whole --data text.txt      from a text to the saved model
    python scripts/benchmark.py resume                     from the command to the first step
    python scripts/benchmark.py time-to-loss --size tiny   from a text to a model of the same loss
    python scripts/benchmark.py prepare --data text.txt    a text file to what training reads
    python scripts/benchmark.py encode                     texts to ids
    python scripts/benchmark.py tokenizer                  a text file to a vocabulary

Same network, same rows or text, same batch, same number of steps. Each round runs both in processes
separately, in turns, and the order changes from round to round. Variables of OpenMP and MKL are
removed: each side chooses its threads as for its own users, unless `--threads` is given. A round in
which other programs used more than `--quiet` of the CPUs is repeated. The baseline is transformers'
Trainer (mlm, clm, whole), a plain loop around a transformers model (t5, finetune, evaluation), its
`generate` (generation), `datasets` (prepare) or the tokenizers library (encode, tokenizer). Before
the rounds of a training both take three steps without dropout on identical batches, and the losses
are compared; the ids of encode and generation must be the same.
"""

import argparse
import importlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.duel import (
    ON_TEXT,
    columns,
    fight,
    machine_text,
    markdown,
    markdown_table,
    rows_text,
    summary_text,
    too_slow,
)
from benchmarks.text import ALGORITHMS

from plmctl.cpus import set_up_threads
from plmctl.registry import names
from plmctl.startup import search_garbage_rarely

_TRAININGS = ("mlm", "clm", "t5")
_FAMILIES = ("bert", "roberta", "albert", "gpt2", "t5", "elmo")
_BY_FAMILY = ("profile", "memory")
_FILES = {
    "mlm": "pretraining",
    "clm": "pretraining",
    "t5": "pretraining",
    "time-to-loss": "time_to_loss",
}
_ALONE = ("resume", "time-to-loss", "gpu", *_BY_FAMILY)
_OTHERS = ("whole", *_ALONE)


def main() -> None:
    args = arguments()
    args.began = args.began or time.time()
    args.precision = args.precision or ("bf16" if args.device == "cuda" else "fp32")
    if args.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
    if args.repeats is None:
        args.repeats = 2 * args.rounds
    if args.side == "plmctl" or (args.work == "gpu" and not args.side):
        set_up_threads()  # as the command does
        search_garbage_rarely()
    work = importlib.import_module(f"benchmarks.{_FILES.get(args.work, args.work)}")
    if args.work == "gpu":
        result = work.alone(args)
        if not (args.json or args.side):
            show = markdown_table if args.markdown else columns
            print(*map(show, work.tables(result)), sep="\n\n")
        return
    if args.side:
        result = work.run(args, args.side)
        print(json.dumps(result | (work.check(args, args.side) if args.check else {})))
        return
    result = work.alone(args) if args.work in _ALONE else fight(args, work)
    if args.plot is not None:
        from benchmarks.plot import write

        write(result, args.plot)
    text = work.text if args.work == "time-to-loss" else summary_text
    text = markdown if args.markdown else text
    if args.work in _BY_FAMILY:
        text = in_rows(work, args.markdown)
    print(json.dumps(result) if args.json else text(result))
    if args.at_least is not None and (short := too_slow(result, args.at_least)):
        raise SystemExit(short)


def in_rows(work: Any, as_markdown: bool) -> Callable[[dict[str, Any]], str]:
    """What shows a result with more than one row."""
    if as_markdown:
        return lambda result: f"{markdown_table(work.rows_of(result))}\n\n{machine_text(result)}"
    return lambda result: rows_text(result, work.rows_of(result))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("work", choices=(*_TRAININGS, "finetune", "evaluation", "generation", *_OTHERS, *ON_TEXT))
    add("families", nargs="*", help=f"profile, memory: of {', '.join(_FAMILIES)}; "
        "gpu: of any; without: all")  # fmt: skip
    add("--vocab-size", type=int, default=8192)
    add("--size", help="of the network; default: mini, of ELMo tiny, of gpu as published")
    add("--batch", type=int, help="sequences per step; default: 32, of ELMo 128")
    add("--length", type=int, help="tokens per sequence, at most; default: 128, of ELMo 20")
    add("--fill", type=float, default=1.0, help="mlm: share of a batch that is not padding "
        "(0.81 in BERT's own rows)")  # fmt: skip
    add("--rounds", type=int, default=3)
    add("--steps", type=int, default=20, help="measured steps per round, after two others")
    add("--threads", type=int, help="of both sides; without: as each side chooses")
    add("--quiet", type=float, default=0.05, metavar="SHARE", help="of the CPUs, which others may "
        "use in a round that is not repeated")  # fmt: skip
    add("--repeats", type=int, help="of disturbed rounds, at most; default: twice the rounds")
    add("--precision", choices=("fp32", "bf16"), help="without: bf16 on a GPU, else fp32")
    add(
        "--attention",
        default="auto",
        help="of trainings: plmctl's compute.attention",
    )
    add("--data", type=Path, help="rows of finetune, as jsonl; a text file for the others; "
        "default: random rows (mlm, clm, t5, finetune), or the sample sotu")  # fmt: skip
    add("--text", default="premise,hypothesis", help="finetune: the columns of the text")
    add("--label", default="label", help="finetune: the column of the label")
    add("--objective", choices=("mlm", "clm"), default="mlm", help="whole, time-to-loss")
    add("--stock-lr", type=float, default=2e-3, help="time-to-loss: AdamW's learning rate")
    add("--share", type=float, default=1 / 3, help="time-to-loss: plmctl's share of the steps")
    add("--seed", type=int, default=1, help=argparse.SUPPRESS)
    add("--far", type=int, default=1_000_000, help="resume: a far step")
    add("--megabytes", type=float, default=5, help="prepare, encode, tokenizer: of the text")
    add("--algorithm", choices=ALGORITHMS, default="wordpiece", help="of the same: the tokenizer's")
    add("--processes", type=int, default=1, help="prepare: on both sides")
    add("--plain", action="store_true", help="profile: of a plain loop instead")
    add("--recompute", action="store_true", help=argparse.SUPPRESS)
    add("--family", choices=_FAMILIES, help=argparse.SUPPRESS)
    add("--device", choices=("cpu", "cuda"), help="gpu: cpu walks through it without a GPU, with "
        "--size tiny; default: cuda")  # fmt: skip
    add("--seconds", type=float, default=450, help="gpu: what no longer fits is skipped")
    add("--out", type=Path, metavar="FOLDER", help="gpu: the lines, in gpu.jsonl")
    add("--stages", type=lambda text: text.split(","), help="gpu: these only, with commas")
    add("--full", action="store_true", help="gpu: the stock side of all trainings")
    add("--peak-tflops", type=float, help="gpu: of the card, for its utilisation (MFU)")
    add("--at-least", type=float, metavar="RATIO", help="of CPU time; under it: exit status 1")
    add("--json", action="store_true")
    add("--markdown", action="store_true", help="a row of a table")
    add("--plot", type=Path, help="an SVG of the rounds")
    add("--side", choices=("plmctl", "stock"), help=argparse.SUPPRESS)
    add("--check", action="store_true", help=argparse.SUPPRESS)
    add("--began", type=float, help=argparse.SUPPRESS)
    add("--folder", type=Path, help=argparse.SUPPRESS)
    parser.set_defaults(compiled=False)
    args = parser.parse_intermixed_args()
    size, batch, length = ("tiny", 128, 20) if args.family == "elmo" else ("mini", 32, 128)
    known = names("families") if args.work == "gpu" else _FAMILIES
    if args.work != "gpu":
        args.device, args.size = "cpu", args.size or size
        args.batch, args.length = args.batch or batch, args.length or length
    if args.families and args.work not in ("gpu", *_BY_FAMILY):
        parser.error(f"families are of gpu, {', '.join(_BY_FAMILY)}")
    for name in args.families:
        if name not in known:
            parser.error(f"{name!r} is not one of {', '.join(known)}")
    args.families = args.families or list(known)
    if args.plain and args.work != "profile":
        parser.error("--plain is of profile")
    if args.work in _ALONE[:2] and args.markdown:
        parser.error(f"--markdown cannot be used with {args.work}")
    if args.work in _ALONE and (args.at_least is not None or args.plot):
        parser.error(f"--at-least and --plot cannot be used with {args.work}")
    if args.fill != 1 and (args.work != "mlm" or not 0.5 <= args.fill < 1):
        parser.error("--fill is of mlm, and from 0.5 to 1")
    if args.work == "gpu":
        import torch

        args.device = args.device or "cuda"
        if args.device == "cuda" and not torch.cuda.is_available():
            parser.error("no CUDA device found; --device cpu needs none (use --size tiny with it)")
    if args.attention != "auto" and args.work not in (*_TRAININGS, *_BY_FAMILY):
        parser.error(f"--attention is of {', '.join((*_TRAININGS, *_BY_FAMILY))}")
    return args


if __name__ == "__main__":
    main()
