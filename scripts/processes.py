"""Two processes against one on the same CPUs, as a row of a table: training and preparing.

    python scripts/processes.py train --data text.txt      one of two threads, two of one thread
    python scripts/processes.py prepare --data text.txt    one worker, two workers

Each round runs both, in turns. Training is BERT-mini with `mlm`: tokens per second are the median
of the steps after the first ten. Preparing is timed as a whole command; each round also runs two
commands with one worker each side by side, which share nothing: more than they reach, these CPUs do
not give. Beside the ratio of the medians stand the seconds of the processor of both and the load of
the machine before: on a busy machine the ratio says little.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PLMCTL = [sys.executable, "-m", "plmctl"]


def main() -> None:
    """Measure, and print a row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", choices=("train", "prepare"))
    parser.add_argument("--data", type=Path, required=True, help="a text file of some megabytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40, help="train: per round")
    args = parser.parse_args()
    load, data = os.getloadavg()[0], args.data.absolute()
    speeds: dict[int, list[float]] = {1: [], 2: []}
    seconds, separate = {1: 0.0, 2: 0.0}, list[float]()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        config(data, args.steps)
        run("train-tokenizer", "tokenizer.yaml", threads=2)
        if args.work == "train":
            run("prepare", "run.yaml", threads=2)
        for number in range(args.rounds):
            for count in (1, 2) if number % 2 == 0 else (2, 1):
                name = f"{number}-{count}"
                before = time.monotonic(), processor()
                if args.work == "train":
                    settings = [f"run=run-{name}", f"launch.processes={count}"]
                    run("pretrain", "run.yaml", *settings, threads=2 // count)
                    lines = Path(f"run-{name}", "metrics.jsonl").read_text().splitlines()
                    rates = [json.loads(line).get("tokens_per_second") for line in lines]
                    speeds[count].append(statistics.median([r for r in rates if r][10:]))
                else:
                    prepare(f"store-{name}", workers=count)
                    speeds[count].append(data.stat().st_size / (time.monotonic() - before[0]))
                seconds[count] += (processor() - before[1]) / args.rounds
            if args.work == "prepare":
                began = time.monotonic()
                with ThreadPoolExecutor() as side:
                    list(side.map(prepare, (f"store-{number}-{name}" for name in "ab")))
                separate.append(2 * data.stat().st_size / (time.monotonic() - began))
    one, two = (statistics.median(speeds[count]) for count in (1, 2))
    unit = "tokens/s" if args.work == "train" else "bytes/s"
    print(f"| two processes / one | {unit}, one | {unit}, two | CPU s, one | CPU s, two | load |")
    print("|---|---|---|---|---|---|")
    print(
        f"| {two / one:.2f} | {one:,.0f} | {two:,.0f} | {seconds[1]:.1f} | {seconds[2]:.1f} "
        f"| {load:.1f} |"
    )
    if separate:
        print(f"two separate commands / one: {statistics.median(separate) / one:.2f}")


def config(data: Path, steps: int) -> None:
    """Write the two configs; JSON is YAML."""
    text = {"train": [str(data)]}
    tokenizer = {"algorithm": "wordpiece", "family": "bert", "vocab_size": 8192}
    document = {"run": "tokenizer", **tokenizer, "data": {**text, "max_bytes": "5MB"}}
    Path("tokenizer.yaml").write_text(json.dumps(document))
    document = {
        "run": "run",
        "tokenizer": "tokenizer",
        "model": {"family": "bert", "size": "mini"},
        "data": {**text, "valid": 0},
        "objective": {"name": "mlm"},
        "train": {"batch_size": 32, "phases": [{"seq_len": 128, "steps": steps}]},
        "optim": {"lr": 1e-4},
        "schedule": {"warmup": 1},
        "log": {"every": 1},
        "compute": {"device": "cpu"},
    }
    Path("run.yaml").write_text(json.dumps(document))


def prepare(store: str, workers: int = 1) -> None:
    """Prepare the text into a folder."""
    run("prepare", "run.yaml", f"data.store={store}", f"prepare.workers={workers}", threads=1)


def run(*command: str, threads: int) -> None:
    """A command, which must succeed."""
    env = os.environ | {"OMP_NUM_THREADS": str(threads)}
    subprocess.run([*PLMCTL, *command], env=env, check=True, capture_output=True)


def processor() -> float:
    """Seconds of the processor of the commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
