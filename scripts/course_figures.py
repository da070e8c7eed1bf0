"""Draw the pictures of the course into docs/images/course, from the runs of its lessons.

    python scripts/course_figures.py LESSON --runs FOLDER

FOLDER is where the commands of the lesson ran: it has runs/ in it.
"""

import argparse
import itertools
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


def plateau(folder: Path) -> None:
    """Lesson 4: the masked loss by step, with and without a start from counts."""
    _, axes = plt.subplots(figsize=(7, 3.4))
    runs = folder / "runs"
    axes.plot(*curve(runs / "course/plateau", "loss/mlm"), color=ORANGE, label="published start")
    axes.plot(*curve(runs / "fast/bert", "loss/mlm"), color=TEAL, label="starts from counts")
    axes.axhline(6.197, color=GREY, linestyle=":")  # printed when the run starts
    text = "token frequencies alone"
    axes.text(600, 6.25, text, ha="right", va="bottom", color=GREY)
    axes.set(xlabel="step", ylabel="masked loss, nats per target")
    axes.legend(frameon=False)
    save("plateau")


def elmo(folder: Path) -> None:
    """Lesson 2: what ELMo computes of a sentence; the lesson's runs are not needed."""
    words = ["The", "state", "of", "our", "finances"]
    _, axes = plt.subplots(figsize=(9, 4.2))
    rows = ("characters", "LSTM 1", "LSTM 2")
    for x, word in enumerate(words):
        axes.text(x, -0.85, word, ha="center", weight="bold")
        axes.annotate("", (x, -0.35), (x, -0.62), arrowprops={"arrowstyle": "->"})
        box(axes, x, 0, "one vector", "#dddddd", 0.7)
        for row in (1, 2):
            box(axes, x - 0.19, row, "→", COLORS[0], 0.32)
            box(axes, x + 0.19, row, "←", COLORS[1], 0.32)
            axes.annotate("", (x, row - 0.32), (x, row - 0.68), arrowprops={"arrowstyle": "->"})
            if x:
                style = {"arrowstyle": "->", "color": TEAL}
                axes.annotate("", (x - 0.36, row + 0.1), (x - 1.02, row + 0.1), arrowprops=style)
                style = style | {"color": ORANGE}
                axes.annotate("", (x - 0.64, row - 0.1), (x + 0.02, row - 0.1), arrowprops=style)
    for row, text in enumerate(rows):
        axes.text(-0.75, row, f"layer {row}\n{text}", ha="right", va="center")
    axes.set(xlim=(-1.6, 4.6), ylim=(-1.1, 2.5))
    axes.axis("off")
    save("elmo")


def box(axes: Any, x: float, y: float, text: str, color: str, width: float) -> None:
    axes.add_patch(plt.Rectangle((x - width / 2, y - 0.28), width, 0.56, color=color, zorder=2))
    axes.text(x, y, text, ha="center", va="center", zorder=3)


def gpt1(folder: Path) -> None:
    """Lesson 3: next tokens, and the input of a task; the lesson's runs are not needed."""
    _, axes = plt.subplots(figsize=(10, 3.4))
    words = ["we", "must", "end", "the", "war", "soon"]
    for x, (word, following) in enumerate(itertools.pairwise(words)):
        box(axes, x, 1.6, word, COLORS[0], 0.8)
        box(axes, x, 2.6, following, COLORS[1], 0.8)
        axes.annotate("", (x, 2.3), (x, 1.9), arrowprops={"arrowstyle": "->"})
    axes.text(-0.6, 2.6, "predicts", ha="right", va="center")
    axes.text(-0.6, 1.6, "reads", ha="right", va="center")
    axes.text(-0.6, 0, "task", ha="right", va="center")
    words = ["start", "we", "must", "end", "the", "war", "extract"]
    for x, word in enumerate(words):
        special = word in ("start", "extract")
        box(axes, x, 0, word, COLORS[2] if special else COLORS[0], 0.8)
    axes.annotate("", (6, 0.62), (6, 0.3), arrowprops={"arrowstyle": "->"})
    box(axes, 6, 0.92, "class", COLORS[1], 0.8)
    axes.set(xlim=(-1.5, 6.6), ylim=(-0.4, 3))
    axes.axis("off")
    save("gpt1")


def t5(folder: Path) -> None:
    """Lesson 6: spans become sentinels; the lesson's runs are not needed."""
    text = [
        "the",
        "farmers",
        "of",
        "the",
        "valley",
        "sold",
        "their",
        "wheat",
        "in",
        "the",
        "autumn",
    ]
    first, second = text[2:5], text[8:]
    kept, cut, sentinel = "#dddddd", COLORS[1], COLORS[2]
    rows = {
        "text": [(w, cut if w in (*first, *second) and n > 1 else kept)
                 for n, w in enumerate(text)],
        "input": [("the", kept), ("farmers", kept), ("<extra_id_0>", sentinel), ("sold", kept),
                  ("their", kept), ("wheat", kept), ("<extra_id_1>", sentinel), ("</s>", kept)],
        "target": [("<extra_id_0>", sentinel), *((w, cut) for w in first),
                   ("<extra_id_1>", sentinel), *((w, cut) for w in second), ("</s>", kept)],
    }  # fmt: skip
    _, axes = plt.subplots(figsize=(10, 2.2))
    ends = []
    for row, (name, pieces) in enumerate(rows.items()):
        words, colors = zip(*pieces, strict=True)
        ends.append(boxes(axes, -row, list(words), colors=list(colors)))
        axes.text(-0.4, -row, name, ha="right", va="center", weight="bold")
    axes.set(xlim=(-4, max(ends)), ylim=(-2.5, 0.5))
    axes.axis("off")
    save("t5")


def albert(folder: Path) -> None:
    """Lesson 5: what each change to the network saves."""
    small = ("albert-base", "--vocab-size", "30000")
    plans = {
        "BERT-base": ("bert-base", "--vocab-size", "30522"),
        "ALBERT, layers not shared": (*small, "model.num_hidden_groups=12"),
        "ALBERT, embeddings of 768": (*small, "model.embedding_size=768"),
        "ALBERT-base": small,
    }
    sizes = [result(folder, "plan", *plan)["parameters"] / 1e6 for plan in plans.values()]
    _, axes = plt.subplots(figsize=(7, 2.4))
    bars = axes.barh(list(plans), sizes, color=[GREY, ORANGE, ORANGE, TEAL])
    axes.bar_label(bars, fmt=" %.1f")
    axes.set(xlabel="million parameters", xlim=(0, 125))
    axes.invert_yaxis()
    save("albert")


def whole_words(folder: Path) -> None:
    """Lesson 9: hidden characters and words. SVG, so that the reader's fonts draw Chinese."""
    hidden = {"characters": {0, 1, 4, 6}, "words": {4, 5, 6, 7}}  # as the two previews hide
    parts = []
    for row, (name, places) in enumerate(hidden.items()):
        y = 10 + 60 * row
        parts.append(f'<text x="100" y="{y + 27}" text-anchor="end">{name}</text>')
        for place, character in enumerate("面向未来振兴京剧"):
            x = 120 + 66 * place + 14 * (place // 2)
            color, text = (COLORS[1], "[MASK]") if place in places else ("#dddddd", character)
            parts.append(f'<rect x="{x}" y="{y}" width="62" height="42" fill="{color}"/>')
            parts.append(f'<text x="{x + 31}" y="{y + 27}" text-anchor="middle">{text}</text>')
    size = 'viewBox="0 0 700 125" width="700" height="125"'
    style = 'font-family="sans-serif" font-size="16" fill="#222222"'
    text = "\n".join(parts)
    (OUT / "whole-words.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n'
        f'<rect width="700" height="125" fill="white"/>\n{text}\n</svg>\n',
        encoding="utf-8",
    )


def gpt_sizes(folder: Path) -> None:
    """Lesson 7: the parameters of GPT-1, 2 and 3."""
    recipes = {"GPT-1, 2018": "gpt1", "GPT-2 XL, 2019": "gpt2-xl", "GPT-3, 2020": "gpt3-175b"}
    vocabulary = {"gpt1": "40478"}
    sizes = [
        result(folder, "plan", name, "--vocab-size", vocabulary.get(name, "50257"))["parameters"]
        for name in recipes.values()
    ]
    _, axes = plt.subplots(figsize=(7, 2.2))
    bars = axes.barh(list(recipes), sizes, color=[GREY, ORANGE, TEAL])
    axes.bar_label(bars, [f" {size / 1e9:.2g} billion" if size < 1e11 else
                          f" {size / 1e9:.0f} billion" for size in sizes])  # fmt: skip
    axes.set(xscale="log", xlim=(5e7, 3e12), xlabel="parameters (each line: ten times as many)")
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.4)
    save("gpt-sizes")


def ladder(folder: Path) -> None:
    """Lesson 8: the rungs, the law for each size, and the run that it predicted."""
    known = json.loads((folder / "runs/course/ladder/scaling.json").read_text(encoding="utf-8"))
    law = {name: one["value"] for name, one in known["law"].items()}
    _, axes = plt.subplots(figsize=(7, 3.6))
    for size, color in zip(dict.fromkeys(one["size"] for one in known["rungs"]),
                           [GREY, "#5b8fd9", TEAL, ORANGE], strict=True):  # fmt: skip
        runs = [one for one in known["rungs"] if one["size"] == size]
        per_token = runs[0]["flops"] / runs[0]["tokens"]
        tokens = [runs[0]["tokens"] * 2 ** (step / 10) for step in range(-4, 31)]
        losses = [
            law["E"]
            + law["A"] / runs[0]["parameters"] ** law["alpha"]
            + law["B"] / count ** law["beta"]
            for count in tokens
        ]
        axes.plot([per_token * count for count in tokens], losses, color=color, lw=1)
        flops, measured = ([one[key] for one in runs] for key in ("flops", "loss"))
        name = f"{size}: {runs[0]['parameters'] / 1e3:,.0f} thousand parameters"
        axes.plot(flops, measured, "o", color=color, label=name)
    predicted = known["predictions"][0]
    loss = predicted["loss"]
    interval = [[loss - predicted["low"]], [predicted["high"] - loss]]
    axes.errorbar(predicted["flops"], loss, interval, color="black", capsize=3, fmt="none")
    _, (*_, measured_loss) = curve(folder / "runs/course/predicted", "valid/loss")
    axes.plot(predicted["flops"], measured_loss, "*", color="black", ms=11,
              label="predicted (95 %), then trained")  # fmt: skip
    axes.set(xscale="log", xlabel="FLOPs", ylabel="held-out loss, nats per token", ylim=(3.4, 6))
    axes.legend(frameon=False, fontsize=9, loc="lower left")
    save("ladder")


PICTURES = {
    1: subwords,
    2: elmo,
    3: gpt1,
    4: plateau,
    5: albert,
    6: t5,
    7: gpt_sizes,
    8: ladder,
    9: whole_words,
}

if __name__ == "__main__":
    main()
