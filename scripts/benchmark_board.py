"""How fast the board is with many runs: generates a folder of them, and measures.

    .venv/bin/python scripts/benchmark_board.py --runs 500 --lines 10000 --browser

The logs have the lines of a real one. Prints seconds for: the first answer (the table), all older
validations, the whole log of a run (its curves), a refresh in which nothing or one log has changed,
and the bytes that a refresh reads. With ``--browser`` also the seconds as a user meets them, with
``plmctl board`` and a Chromium without a window (it needs playwright and a chromium on the PATH):
from the command to its address, and from opening the address to the table and to the first curves.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from plmctl.reporting.board import Board


def generate(folder: Path, runs: int, lines: int) -> None:
    """Finished pretrainings with logs of so many lines, a twentieth of them validations."""
    log = []
    for number in range(1, lines + 1):
        step, loss = 10 * number, 3 + 4 * (number + 1) ** -0.3
        if number % 20 == 0:
            log.append({"step": step - 10, "valid/loss": loss, "valid/loss/mlm": loss})
            continue
        line = {"step": step, "phase": 0, "epoch": step / 1000, "tokens": 2048 * step}
        line |= {"loss": loss, "loss/mlm": loss - 0.5, "loss/nsp": 0.5, "lr": 1e-3}
        line |= {"grad_norm": 1.01, "tokens_per_second": 21321.6, "samples_per_second": 335.02}
        line |= {"data_wait": 0.02, "memory_gb": 0.5, "padding": 0.005, "time": 0.1 * step}
        log.append(line)
    text = "".join(json.dumps(line) + "\n" for line in log)
    for number in range(runs):
        run = folder / f"lr-{number % 7}" / f"seed-{number}"
        (run / "eval").mkdir(parents=True)
        (run / "metrics.jsonl").write_text(text)
        config = {
            "run": str(run),
            "seed": number,
            "tokenizer": "runs/tokenizer",
            "model": {"family": "bert", "size": "mini", "num_hidden_layers": 2},
            "data": {"train": ["a.txt"], "valid": 0.1},
            "objective": {"name": "mlm+nsp", "rate": 0.15},
            "train": {"batch_size": 32, "phases": [{"seq_len": 64, "steps": 10 * lines}]},
            "optim": {"name": "adamw", "lr": 0.001 * (1 + number % 7)},
        }
        (run / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        (run / "status.json").write_text('{"status": "finished", "time": "2026-01-01T00:00:00"}')
        results = {"kind": "pretrain", "results": {"valid/loss": 4.0, "valid/accuracy/mlm": 0.3}}
        (run / "eval" / "valid.json").write_text(json.dumps(results))


def bytes_read() -> int:
    """Bytes that this process has read so far, as Linux counts them; 0 elsewhere."""
    try:
        counts = Path("/proc/self/io").read_text().split()
    except OSError:
        return 0
    return int(counts[counts.index("rchar:") + 1])


def measure(folder: Path) -> dict[str, float]:
    """Seconds, and bytes of a refresh."""
    board, clock = Board(folder), time.perf_counter
    began = clock()
    first = board.rows()
    result = {"runs": len(first["ids"]), "first answer": clock() - began}
    began = clock()
    while board.search():
        pass
    result["older validations"] = clock() - began
    began = clock()
    board.curves(first["ids"][0])
    result["curves of a run"] = clock() - began
    board.rows()
    time.sleep(0.6)
    began, before = clock(), bytes_read()
    board.rows(first["version"])
    result["refresh, nothing new"] = clock() - began
    result["bytes read"] = bytes_read() - before
    log = next(folder.rglob("metrics.jsonl"))
    with log.open("a") as file:
        file.write('{"step": 999999, "loss": 3.0, "tokens": 1, "time": 1.0}\n')
    time.sleep(0.6)
    began, before = clock(), bytes_read()
    board.rows(first["version"])
    result["refresh, a line more"] = clock() - began
    result["bytes read then"] = bytes_read() - before
    return result


def measure_page(folder: Path) -> dict[str, float]:
    """Seconds of a new server and a new browser."""
    from playwright.sync_api import sync_playwright

    result, clock = {}, time.perf_counter
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    command = [sys.executable, "-m", "plmctl", "board", str(folder)]
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        page = browser.new_page(viewport={"width": 1300, "height": 900})
        began = clock()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            url = next(word for word in server.stdout.readline().split() if "://" in word)
            result["command to address"] = clock() - began
            began = clock()
            page.goto(url)
            page.wait_for_selector("table tbody tr")
            result["page, table"] = clock() - began
            page.wait_for_selector(".chart canvas")
            result["page, curves"] = clock() - began
            server.terminate()
        browser.close()
    return result


def main() -> None:
    """Generate and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--browser", action="store_true", help="measure the page too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder), options.runs, options.lines)
        page = measure_page(Path(folder)) if options.browser else {}
        for name, value in (measure(Path(folder)) | page).items():
            print(f"{name:24} {value:,.3f}" if isinstance(value, float) else f"{name:24} {value:,}")


if __name__ == "__main__":
    main()
