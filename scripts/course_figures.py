"""Draw the pictures of the course into docs/images/course, from the runs of its lessons.

    python scripts/course_figures.py LESSON --runs FOLDER

FOLDER is where the commands of the lesson ran: it has runs/ in it.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

OUT = Path(__file__).parents[1] / "docs" / "images" / "course"
COLORS = ["#9fd3c7", "#f6c28b", "#b8c4e0", "#e7a9a9"]
TEAL, ORANGE, GREY = "#00796b", "#d9822b", "#888888"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lesson", type=int, choices=PICTURES)
    parser.add_argument("--runs", type=Path, default=Path())
    args = parser.parse_args()
    plt.rcParams |= {"font.size": 11, "axes.spines.top": False,
                     "axes.spines.right": False}  # fmt: skip
    OUT.mkdir(parents=True, exist_ok=True)
    PICTURES[args.lesson](args.runs.resolve())


def result(folder: Path, *line: str) -> Any:
    """The JSON that a command of plmctl prints in a folder."""
    command = [sys.executable, "-m", "plmctl", *line, "--json"]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def curve(folder: Path, key: str) -> tuple[list[int], list[float]]:
    """Steps and values of a key of a run's log."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    points = [(line["step"], line[key]) for line in lines if key in line]
    return [step for step, _ in points], [value for _, value in points]


def save(name: str) -> None:
    """Write the picture."""
    plt.savefig(OUT / f"{name}.png", bbox_inches="tight", dpi=110)
    plt.close()


def boxes(axes: Any, y: float, pieces: list[str], *, colors: list[str] | None = None) -> float:
    """A row of words in boxes; returns where it ends, in units of a character."""
    x = 0.0
    for number, piece in enumerate(pieces):
        width = max(len(piece.strip()), 1) * 0.62 + 0.5
        color = colors[number] if colors else COLORS[number % 3]
        axes.add_patch(plt.Rectangle((x, y - 0.36), width, 0.72, color=color))
        axes.text(
            x + width / 2, y, piece.strip(), ha="center", va="center", family="monospace", size=9
        )
        x += width + 0.12
    return x


def subwords(folder: Path) -> None:
    """Lesson 1: a sentence cut by three tokenizers."""
    names = ("bpe", "wordpiece", "unigram")
    runs = [f"runs/course/{name}" for name in names]
    (sample,) = result(folder, "compare-tokenizers", *runs, "--text", "line.txt")["samples"]
    _, axes = plt.subplots(figsize=(11, 2.2))
    ends = [boxes(axes, -row, sample[name]) for row, name in enumerate(names)]
    for row, (name, title) in enumerate(zip(names, ("BPE", "WordPiece", "Unigram"), strict=True)):
        text = f"{title}, {len(sample[name])}"
        axes.text(-0.4, -row, text, ha="right", va="center", weight="bold")
    axes.set(xlim=(-7, max(ends)), ylim=(-2.5, 0.5))
    axes.axis("off")
    save("subwords")


PICTURES = {1: subwords}

if __name__ == "__main__":
    main()
