"""Peak memory of ``train-tokenizer`` and ``prepare`` on made-up corpora of growing size.

    python scripts/text_memory.py --megabytes 50 300

Two texts: English-like words with a tail that never ends, one in fifty machine noise, and lines
of Chinese characters without a space; a document a line. Prints one line a run: the text, its size,
the algorithm, and for both commands the seconds and the peak of the process's memory. ``prepare``
uses the vocabulary that was just learned, and one process; jieba counts the Chinese words, which
takes most of the time.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ALGORITHMS = {"wordpiece": "bert", "byte_bpe": "gpt2", "bpe": "gpt1", "unigram": "t5"}  # families
_CHUNK = 20_000  # words or characters made at once


def english(seed: int) -> Iterator[str]:
    """Zipf's law over words of letters, so that new ones keep coming, and hexadecimal noise."""
    draws = np.random.default_rng(seed)
    while True:
        ranks = draws.zipf(1.25, _CHUNK) % 50_000_000
        noise = draws.random(_CHUNK) < 0.02
        words = [
            f"{draws.integers(1 << 62):x}" if bad else spelled(int(rank))
            for rank, bad in zip(ranks, noise, strict=True)
        ]
        yield from (" ".join(words[at : at + 15]) for at in range(0, _CHUNK, 15))


def spelled(rank: int) -> str:
    """A word for a number: the more frequent, the shorter."""
    letters = []
    while True:
        rank, letter = divmod(rank, 20)
        letters.append("etaoinshrdlcumwfgypb"[letter])
        if not rank:
            return "".join(letters)


def chinese(seed: int) -> Iterator[str]:
    """6,000 characters by Zipf's law, in lines of 400 without a space."""
    draws = np.random.default_rng(seed)
    while True:
        codes = 0x4E00 + draws.zipf(1.2, _CHUNK) % 6000
        text = codes.astype("<u4").tobytes().decode("utf-32-le")
        yield from (text[at : at + 400] for at in range(0, _CHUNK, 400))


TEXTS = {"english": english, "chinese": chinese}


def write(path: Path, lines: Iterator[str], size: int) -> None:
    """Write lines until the file has so many bytes."""
    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            line = next(lines) + "\n"
            written += len(line.encode())
            file.write(line)


def train(folder: Path, text: Path, algorithm: str, overrides: list[str]) -> tuple[float, int]:
    """Learn a vocabulary; see ``measure``."""
    (folder / "tokenizer.yaml").write_text(
        f"run: tokenizer\nalgorithm: {algorithm}\nfamily: {ALGORITHMS[algorithm]}\n"
        f"vocab_size: 32000\ndata: {{train: ['{text}'], max_bytes: 1TB}}\n",
        encoding="utf-8",
    )
    return measure(folder, ["train-tokenizer", "tokenizer.yaml", *overrides, "--fresh"])


def prepare(folder: Path, text: Path, algorithm: str) -> tuple[float, int]:
    """Tokenize the text for a pretraining; see ``measure``."""
    overrides = ["tokenizer=tokenizer", f"data.train=['{text}']", "data.documents=line"]
    config = f"fast/{ALGORITHMS[algorithm]}"
    seconds_and_peak = measure(folder, ["prepare", config, *overrides, "prepare.workers=1"])
    shutil.rmtree(folder / "stores")
    return seconds_and_peak


def measure(folder: Path, arguments: list[str]) -> tuple[float, int]:
    """Seconds and peak bytes of a command in a separate process, which works in a folder."""
    command = [sys.executable, "-m", "plmctl", *arguments]
    began = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=folder)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return time.perf_counter() - began, usage.ru_maxrss * 1024


def main() -> None:
    """Measure each text at each size."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=int, nargs="+", default=[50, 300])
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=[*ALGORITHMS])
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=[*TEXTS])
    parser.add_argument("--no-prepare", action="store_true", help="only learn vocabularies")
    parser.add_argument("overrides", nargs="*", help="of the tokenizer's config, after --")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for source in (TEXTS[name] for name in args.texts):
            for megabytes in args.megabytes:
                text = folder / "text.txt"
                write(text, source(megabytes), megabytes * 1_000_000)
                for algorithm in args.algorithms:
                    results = {"learn": train(folder, text, algorithm, args.overrides)}
                    if not args.no_prepare:
                        results["prepare"] = prepare(folder, text, algorithm)
                    columns = (
                        f"{name} {seconds:7.1f} s  peak {peak / 1e9:.2f} GB"
                        for name, (seconds, peak) in results.items()
                    )
                    print(
                        f"{source.__name__:8} {megabytes:5} MB  {algorithm:10}",
                        "    ".join(columns),
                        flush=True,
                    )


if __name__ == "__main__":
    main()
