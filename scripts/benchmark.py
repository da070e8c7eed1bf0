"""plmctl and the stock way side by side on this machine: speeds, as medians of ratios.

    python scripts/benchmark.py mlm --vocab-size 30522     a masked language model
    python scripts/benchmark.py clm                        a causal one
    python scripts/benchmark.py t5                         span corruption
    python scripts/benchmark.py finetune --data rte.jsonl --text premise,hypothesis
    python scripts/benchmark.py evaluation                 pseudo-log-likelihoods
    python scripts/benchmark.py resume                     from the command to the first step
    python scripts/benchmark.py time-to-loss --size tiny   from a text to a model of the same loss
    python scripts/benchmark.py prepare --data text.txt    a text file to what training reads
    python scripts/benchmark.py encode                     texts to ids
    python scripts/benchmark.py tokenizer                  a text file to a vocabulary

Same network, same rows or text, same batch, same number of steps. Each round runs both in processes
separately, in turns, and the order changes from round to round. The baseline is transformers'
Trainer (mlm, clm), a plain loop around a transformers model (t5, finetune, evaluation), `datasets`
(prepare) or the tokenizers library (encode, tokenizer). Before the rounds of a training both take
three steps without dropout on identical batches, and the losses are compared; the ids of encode
must be the same.
"""

import argparse
import importlib
import json
import time
from pathlib import Path

from benchmarks.duel import ON_TEXT, fight, summary_text, too_slow
from benchmarks.text import ALGORITHMS

from plmctl.cpus import set_up_threads

_PROFILED = ("mlm", "clm", "t5")
_FILES = {
    "mlm": "pretraining",
    "clm": "pretraining",
    "t5": "pretraining",
    "time-to-loss": "time_to_loss",
}
_ALONE = ("resume", "time-to-loss")


def main() -> None:
    args = arguments()
    args.began = args.began or time.time()
    args.precision = args.precision or ("bf16" if args.device == "cuda" else "fp32")
    if args.side == "plmctl":
        set_up_threads()  # as the command does
    work = importlib.import_module(f"benchmarks.{_FILES.get(args.work, args.work)}")
    if args.side:
        part = work.check if args.check else work.run
        print(json.dumps(part(args, args.side)))
        return
    if args.profile:
        importlib.import_module("benchmarks.profile").show(args)
        return
    result = work.alone(args) if args.work in _ALONE else fight(args, work)
    if args.plot is not None:
        from benchmarks.plot import write

        write(result, args.plot)
    text = work.text if args.work == "time-to-loss" else summary_text
    print(json.dumps(result) if args.json else text(result))
    if args.at_least is not None and (short := too_slow(result, args.at_least)):
        raise SystemExit(short)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("work", choices=(*_PROFILED, "finetune", "evaluation", "resume", "time-to-loss", *ON_TEXT))
    add("--vocab-size", type=int, default=8192)
    add("--size", default="mini", help="of the network")
    add("--batch", type=int, default=32, help="sequences per step")
    add("--length", type=int, default=128, help="tokens per sequence, at most")
    add("--fill", type=float, default=1.0, help="mlm: share of a batch that is not padding "
        "(0.81 in BERT's own rows)")  # fmt: skip
    add("--rounds", type=int, default=5)
    add("--steps", type=int, default=8, help="measured steps per round, after two others")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: compiled")
    add("--precision", choices=("fp32", "bf16"), help="without: bf16 on cuda, else fp32")
    add("--attention", default="auto", help="mlm, clm, t5: plmctl's compute.attention")
    add("--peak-tflops", type=float, help="of the device, for its utilisation (MFU)")
    add("--data", type=Path, help="rows of finetune, as jsonl; the text of prepare, encode and "
        "tokenizer; default: random rows, and the sample sotu")  # fmt: skip
    add("--text", default="premise,hypothesis", help="finetune: the columns of the text")
    add("--label", default="label", help="finetune: the column of the label")
    add("--objective", choices=("mlm", "clm"), default="mlm", help="time-to-loss")
    add("--stock-lr", type=float, default=2e-3, help="time-to-loss: AdamW's learning rate")
    add("--share", type=float, default=1 / 3, help="time-to-loss: plmctl's share of the steps")
    add("--seed", type=int, default=1, help=argparse.SUPPRESS)
    add("--far", type=int, default=1_000_000, help="resume: a far step")
    add("--megabytes", type=float, default=5, help="prepare, encode, tokenizer: of the text")
    add("--algorithm", choices=ALGORITHMS, default="wordpiece", help="of the same: the tokenizer's")
    add("--processes", type=int, default=1, help="prepare: on both sides")
    add("--profile", action="store_true", help="mlm, clm, t5: the ten costliest operators instead")
    add("--at-least", type=float, metavar="RATIO", help="of CPU time; under it: exit status 1")
    add("--json", action="store_true")
    add("--plot", type=Path, help="an SVG of the rounds")
    add("--side", choices=("plmctl", "stock"), help=argparse.SUPPRESS)
    add("--check", action="store_true", help=argparse.SUPPRESS)
    add("--began", type=float, help=argparse.SUPPRESS)
    add("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work in _ALONE and (args.at_least is not None or args.plot):
        parser.error(f"--at-least and --plot cannot be used with {args.work}")
    if args.fill != 1 and (args.work != "mlm" or not 0.5 <= args.fill < 1):
        parser.error("--fill is of mlm, and from 0.5 to 1")
    if args.attention != "auto" and args.work not in _PROFILED:
        parser.error(f"--attention is of {', '.join(_PROFILED)}")
    if args.profile and args.work not in _PROFILED:
        parser.error(f"--profile is of {', '.join(_PROFILED)}")
    return args


if __name__ == "__main__":
    main()
