"""plmctl and the stock way side by side on this machine: tokens a second as a ratio of medians.

    python scripts/benchmark.py mlm --vocab-size 30522     a masked language model
    python scripts/benchmark.py clm                        a causal one
    python scripts/benchmark.py t5                         span corruption
    python scripts/benchmark.py finetune --data rte.jsonl --text premise,hypothesis
    python scripts/benchmark.py evaluation                 pseudo-log-likelihoods
    python scripts/benchmark.py resume                     from the command to the first step

Same network, same rows, same batch, same number of steps. Each round runs both in processes of
their own, in turns, and the order changes from round to round. The other side is transformers'
Trainer (mlm, clm), or a plain loop around a transformers model (t5, finetune, evaluation). Before
the rounds both take three steps without dropout on identical batches, and the losses are compared.
"""

import argparse
import importlib
import json
import os
import time
from pathlib import Path

WORKS = ("mlm", "clm", "t5", "finetune", "evaluation", "resume")
_FILES = {"mlm": "pretraining", "clm": "pretraining", "t5": "pretraining"}


def main() -> None:
    given = arguments()
    given.began = given.began or time.time()
    if given.side == "plmctl":
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command does
    work = importlib.import_module(f"benchmarks.{_FILES.get(given.work, given.work)}")
    if given.side:
        part = work.check if given.check else work.run
        print(json.dumps(part(given, given.side)))
        return
    if given.profile:
        importlib.import_module("benchmarks.profile").show(given)
        return
    from benchmarks import duel

    result = work.alone(given) if given.work == "resume" else duel.fight(given, work)
    if given.plot is not None:
        from benchmarks.plot import write

        write(result, given.plot)
    print(json.dumps(result) if given.json else duel.told(result))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("work", choices=WORKS)
    add("--vocab-size", type=int, default=8192)
    add("--size", default="mini", help="of the network")
    add("--batch", type=int, default=32, help="sequences a step")
    add("--length", type=int, default=128, help="tokens a sequence, at most")
    add("--rounds", type=int, default=5)
    add("--steps", type=int, default=8, help="measured in a round, after two")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: bf16 and compiled")
    add("--peak-tflops", type=float, help="of the device, for its utilisation (MFU)")
    add("--data", type=Path, help="finetune: rows, as jsonl; without: made up")
    add("--text", default="premise,hypothesis", help="finetune: the columns of the text")
    add("--label", default="label", help="finetune: the column of the label")
    add("--far", type=int, default=1_000_000, help="resume: a far step")
    add("--profile", action="store_true", help="mlm, clm, t5: the ten costliest operators instead")
    add("--json", action="store_true")
    add("--plot", type=Path, help="an SVG of the rounds")
    add("--side", choices=("plmctl", "stock"), help=argparse.SUPPRESS)
    add("--check", action="store_true", help=argparse.SUPPRESS)
    add("--began", type=float, help=argparse.SUPPRESS)
    add("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
