"""A long run with a save every few seconds: do its memory, its open files or its disk space grow?

A small BERT is trained, validated and saved again and again, on a text of which a pass takes
seconds, and looked at from outside. The table has a row per quantity: its value after a fifth of
the time, at the end, and the slope between them by least squares. Checkpoints are replaced, so the
disk space of all but the log should not grow.

    python scripts/soak.py --minutes 120
    python scripts/soak.py --minutes 30 --background --out soak.json
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
from growth import slope

from plmctl.corpus.sample import documents

CONFIG = """\
run: run
tokenizer: tokenizer
model: {{family: bert, size: tiny}}
data: {{train: ["text.txt"], valid: 5%, store: store}}
objective: {{name: mlm+nsp}}
train: {{batch_size: 8, phases: [{{seq_len: 64, steps: 1_000_000_000}}]}}
schedule: {{name: constant}}
checkpoint: {{every: {every}, keep: 3, background: {background}}}
log: {{every: {every}, validate_every: {validate_every}, validate_samples: 16}}
compute: {{device: cpu}}
"""
TOKENIZER = """\
run: tokenizer
algorithm: wordpiece
family: bert
vocab_size: 1500
data: {train: ["text.txt"]}
"""
DOCUMENTS = 8  # of sample:sotu
LOGS = ("metrics.jsonl", "events", "output")
"""Files that get a line per log step, and so should grow."""

Row = dict[str, float]


def main() -> None:
    args = arguments()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        background = str(args.background).lower()
        values = {"every": args.steps, "validate_every": 4 * args.steps, "background": background}
        (folder / "run.yaml").write_text(CONFIG.format(**values), encoding="utf-8")
        (folder / "tokenizer.yaml").write_text(TOKENIZER, encoding="utf-8")
        text = "\n\n".join(one.text.strip() for one in documents("sotu", 0, DOCUMENTS))
        (folder / "text.txt").write_text(text, encoding="utf-8")
        plmctl(folder, "train-tokenizer", "tokenizer.yaml").wait()
        rows = watched(plmctl(folder, "pretrain", "run.yaml"), folder, args.minutes * 60)
        records = (folder / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
        steps = max(json.loads(line)["step"] for line in records)
    late = [row for row in rows if row["hours"] > rows[-1]["hours"] / 5]
    hours = [row["hours"] for row in late]
    result = {
        name: {
            "early": late[0][name],
            "end": late[-1][name],
            "slope_per_hour": slope(hours, [row[name] for row in late]),
        }
        for name in late[0]
        if name != "hours"
    }
    document = {"minutes": args.minutes, "steps": steps, "saves": steps // args.steps, **result}
    if args.out:
        args.out.write_text(json.dumps(document | {"rows": rows}, indent=1), encoding="utf-8")
    print(f"{args.minutes:g} minutes, {steps:,} steps, {document['saves']:,} saves")
    print("| | after a fifth | at the end | per hour |\n|---|---:|---:|---:|")
    for name, of in result.items():
        print(f"| {name} | {of['early']:,.1f} | {of['end']:,.1f} | {of['slope_per_hour']:+,.2f} |")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--minutes", type=float, default=120)
    add("--steps", type=int, default=50, help="between saves")
    add("--background", action="store_true", help="save while training continues")
    add("--folder", type=Path, help="where a temporary folder is made")
    add("--out", type=Path, help="a JSON file with all that was measured")
    return parser.parse_args()


def plmctl(folder: Path, *command: str) -> subprocess.Popen[bytes]:
    output = (folder / "output").open("ab")
    return subprocess.Popen(
        [sys.executable, "-m", "plmctl", *command], cwd=folder, stdout=output, stderr=output
    )


def watched(process: subprocess.Popen[bytes], folder: Path, seconds: float) -> list[Row]:
    """A row per few seconds from the first checkpoint on; then the run is stopped."""
    rows: list[Row] = []
    start = 0.0
    while not rows or time.monotonic() - start < seconds:
        if process.poll() is not None:
            sys.exit(f"the run ended: {(folder / 'output').read_text(errors='replace')[-2000:]}")
        if any((folder / "run" / "checkpoints").glob("step-*")):
            start = start or time.monotonic()
            rows.append({"hours": (time.monotonic() - start) / 3600, **measured(process, folder)})
        time.sleep(min(5, seconds / 20))
    process.send_signal(signal.SIGTERM)
    if process.wait(timeout=300) != 75:
        sys.exit(f"the run ended with {process.returncode}, and 75 is expected")
    return rows


def measured(process: subprocess.Popen[bytes], folder: Path) -> Row:
    """The sums over the process and those that it started."""
    first = psutil.Process(process.pid)
    row = {"memory, MB": 0.0, "open files": 0.0, "threads": 0.0, "processes": 0.0}
    for one in [first, *first.children(recursive=True)]:
        try:
            values = (one.memory_info().rss / 1e6, one.num_fds(), one.num_threads(), 1)
        except psutil.NoSuchProcess:
            continue
        row = {name: row[name] + value for name, value in zip(row, values, strict=True)}
    logs = others = 0
    for inside, _, names in os.walk(folder):  # it passes over a folder that was just replaced
        for name in names:
            with suppress(FileNotFoundError):
                size = os.path.getsize(os.path.join(inside, name))
                logs, others = (logs + size, others) if name in LOGS else (logs, others + size)
    return row | {"disk but logs, MB": others / 1e6, "logs, MB": logs / 1e6}


if __name__ == "__main__":
    main()
