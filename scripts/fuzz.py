"""Damaged and odd files for the readers, for a time: every input must be read or refused.

Good files are changed at random (bytes, lines, values of JSON, table cells) and read in this
process: configs, text, jsonl, csv, tsv, CoNLL, SQuAD, parquet, labelled rows of every task, and the
files of a run in reports and cards. An input that ends in another exception than a `PlmError`, or
takes 20 seconds, is kept with its traceback, once per place in the code; then the exit status is 1.

    python scripts/fuzz.py --seconds 600 --seed 1 --keep fuzz
    python scripts/fuzz.py --kinds csv parquet
"""

import argparse
import atexit
import hashlib
import io
import json
import random
import shutil
import signal
import string
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from plmctl.config.sections import DataConfig  # noqa: E402
from plmctl.corpus.labelled import check_rows, read_rows, refuse_empty  # noqa: E402
from plmctl.corpus.reading import cut_source, documents, opening, text_unit  # noqa: E402
from plmctl.corpus.source import resolve  # noqa: E402
from plmctl.errors import PlmError  # noqa: E402
from plmctl.run.configs import load  # noqa: E402
from plmctl.tasks.base import get_task  # noqa: E402
from tests.reporting import sample_runs  # noqa: E402

_SLOW = 20  # seconds

# --- Changes ---

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**64, 10**400, -(10**400), 0.5, 1e308, -1e308, 1e-320,
    float("nan"), float("inf"), "", " ", "\n", "\0", "a", "a\tb", "-", "-1", "5", "nan", "None",
    "\ud800", "\x1b[31m", "x" * 5000, "[", "{", "{text}", "<script>", "|", "中文", "🙂", "é",
    [], {}, [None], [[]], [1], ["a", 1], {"a": None}, {"": ""}, [{}], [["a"]], {"text": []},
)  # fmt: skip
BYTES = (
    b"", b"\0", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\r", b"\r\n", b"\n\n", b"\x1a", b"\x85",
    b'"', b'""', b"'", b",", b"\t", b"|", b"\\", b"\\ud800", b"{", b"}", b"[", b"]", b":", b"NaN",
    b"Infinity", b"1e999", b"-", b"9" * 400, b"[" * 2000, b"x" * 5000, b"&a", b"*a", b"!!python",
    b"<<: ", b"---\n", b"\xe2\x80\xa8", b"\xed\xa0\x80", b"-DOCSTART-",
)  # fmt: skip


def changed_bytes(content: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(content) + 1)
    to = min(len(content), at + draw.choice((1, 4, 50, 2000)))
    return draw.choice((
        content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :],
        content[:at] + draw.choice(BYTES) + content[at:],
        content[:at] + draw.choice(BYTES) + content[to:],
        content[:at] + content[to:],
        content[:to] + content[at:],
        content[:at],
    ))  # fmt: skip


def changed_value(value: Any, draw: random.Random) -> Any:
    """JSON with one odd value, or with a key or an item removed or repeated."""
    places = list(_places(value))
    if not places:
        return draw.choice(ODD)
    container, key = draw.choice(places)
    what = draw.randrange(6)
    if what == 0:
        del container[key]
    elif what == 1 and isinstance(container, list):
        container.append(container[key])
    elif what == 1:
        container[str(draw.choice(ODD))] = container[key]
    else:
        container[key] = draw.choice(ODD)
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    if not isinstance(value, dict | list):
        return
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        yield from _places(inner)


def to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def changed_json_lines(content: bytes, draw: random.Random) -> bytes:
    lines = content.splitlines()
    at = draw.randrange(len(lines))
    return b"\n".join([
        *lines[:at], to_json(changed_value(json.loads(lines[at]), draw)), *lines[at + 1 :]
    ])  # fmt: skip


def changed_json(content: bytes, draw: random.Random) -> bytes:
    return to_json(changed_value(json.loads(content), draw))


def changed_yaml(content: bytes, draw: random.Random) -> bytes:
    value = changed_value(yaml.safe_load(content), draw)
    return yaml.safe_dump(value, allow_unicode=True).encode("utf-8", "surrogatepass")


def changed_cells(content: bytes, draw: random.Random) -> bytes:
    """A table of text whose lines are cut at commas, tabs or spaces."""
    lines = [line.split(b"\t") for line in content.replace(b",", b"\t").split(b"\n")]
    line = draw.choice(lines)
    line[draw.randrange(len(line))] = str(draw.choice(ODD)).encode("utf-8", "replace")
    return draw.choice((b"\t", b",", b" ")).join([]) + b"\n".join(map(b"\t".join, lines))


def changed_parquet(content: bytes, draw: random.Random) -> bytes:
    """Another type of column, nulls, bytes that are no text, or several row groups."""
    table = pyarrow.parquet.read_table(io.BytesIO(content))
    column = draw.choice(table.column_names)
    values = table[column].to_pylist()
    odd = draw.choice((
        pa.array([None] * len(values)),
        pa.array([1.5] * len(values)),
        pa.array([[str(value)] for value in values]),
        pa.array([{"a": str(value)} for value in values]),
        pa.array([b"\xff\xfe" for _ in values]),
        pa.array([str(value) for value in values]).dictionary_encode(),
        pa.array([2**60 + n for n in range(len(values))], pa.timestamp("ns")),
        pa.array([10**30] * len(values), pa.decimal128(38)),
        pa.array([b"\xff\xfe" for _ in values]).view(pa.string()),
    ))  # fmt: skip
    table = table.set_column(table.column_names.index(column), column, odd)
    out = io.BytesIO()
    options = {"row_group_size": draw.choice((1, 3, 100)), "use_dictionary": draw.random() < 0.5}
    compression = draw.choice(("none", "snappy", "zstd"))
    pyarrow.parquet.write_table(table, out, compression=compression, **options)
    return out.getvalue()


# --- Good files ---

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "dogs"]
TEXTS = [" ".join(WORDS[n % 4 : n % 4 + 5]) + "." for n in range(12)]
CLASSES = [{"text": text, "label": str(n % 3)} for n, text in enumerate(TEXTS)]
TAGGED = "\n\n".join(
    "\n".join(f"{word} NN {'B-X' if word == 'cat' else 'O'}" for word in text.split())
    for text in TEXTS
)
ARTICLES = {
    "data": [
        {"title": "t", "paragraphs": [{
            "context": text,
            "qas": [{
                "id": str(n), "question": "who sat?", "is_impossible": False,
                "answers": [{"text": text.split()[1], "answer_start": len(text.split()[0]) + 1}],
            }],
        }]}
        for n, text in enumerate(TEXTS[:4])
    ]
}  # fmt: skip
CHOICES = [
    {"passage": text, "question": "who?", "options": ["cat", "dog", "mat"], "label": n % 3}
    for n, text in enumerate(TEXTS)
]
PAIRS = [{"source": text, "target": {"a": text[:9]}, "label": n} for n, text in enumerate(TEXTS)]
CONFIG = b"""\
run: r
tokenizer: t
model: &m {family: bert, size: tiny, hidden_size: 32}
data: {train: [a.txt, "b/*.txt"], valid: 1%}
objective: {name: mlm+nsp, rate: 0.15}
train: {batch_size: 8, phases: [{seq_len: 32, steps: 6}, {seq_len: 64, steps: 2k}]}
optim: {lr: 1e-3, betas: [0.9, 0.99]}
log: {every: 2}
"""


def parquet(rows: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


def lines(rows: list[dict[str, Any]]) -> bytes:
    return b"\n".join(map(to_json, rows))


# --- Readers ---


def read_config(path: Path) -> None:
    load("pretrain", path)


def read_text(path: Path) -> None:
    """Read a corpus as `prepare` does: the opening, and pieces."""
    (source,) = resolve((str(path),))
    data = DataConfig(train=(str(path),))
    opening(source, data, 5000)
    whole = [document.text for document in documents(source, data)]
    unit = text_unit(source) if source.kind == "text" else "line"
    pieces = cut_source(source, unit, 40)
    parts = [one.text for p in pieces for one in documents(source, data, p.start, p.end)]
    assert [text for text in whole if text] == [text for text in parts if text]


@cache
def tokenizer(model_type: str) -> Any:
    """A tokenizer in a folder that has the config of a model, which some tasks look at."""
    import transformers

    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    transformers.AutoConfig.for_model(model_type).save_pretrained(folder)
    first = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*first, *dict.fromkeys(WORDS), *string.ascii_lowercase]
    result = transformers.BertTokenizer(
        vocab={piece: n for n, piece in enumerate(pieces)}, eos_token="[SEP]"
    )
    result.name_or_path = folder
    return result


def labelled(task_name: str, model_type: str = "bert", **options: Any) -> Callable[[Path], None]:
    """A reader of rows, as `finetune` and `predict` read them."""
    kind = get_task(task_name)
    task = kind(kind.Config(name=task_name, **options))

    def read(path: Path) -> None:
        rows = [row for row in read_rows([str(path)]) if task.is_labelled(row)]
        refuse_empty(rows, task.text_columns())
        labels = task.labels(rows)
        for use in ("train", "score", "predict"):
            task.make(rows, tokenizer(model_type), labels, 16, use)
        labels_of = partial(task.labels_of, labels=labels) if labels and task.has_labels else None
        check_rows(rows, {"valid": rows}, task.text_columns(), labels_of)

    return read


def make_run(kind: str, folder: Path) -> None:
    options = {"steps": 40} if kind == "pretrain" else {"seeds": (9,)} if kind == "grid" else {}
    getattr(sample_runs, kind)(folder, **options)


def read_run_folder(path: Path) -> None:
    """The file in a run folder, in reports, cards and comparisons."""
    from plmctl.commands import compare
    from plmctl.reporting import report
    from plmctl.reporting.card import model_card

    kind, _, name = path.name.partition("@")
    folder, other = path.parent / kind, path.parent / f"other-{kind}"
    if not folder.exists():
        for one in (folder, other):
            make_run(kind, one)
    target = folder / name.replace("@", "/")
    kept = target.read_bytes()
    target.write_bytes(path.read_bytes())
    works: tuple[Callable[[], object], ...] = (
        lambda: report.write_report([folder], path.parent / "one.html"),
        lambda: report.write_report([other, folder], path.parent / "two.html"),
        lambda: model_card(folder, "BertForPreTraining"),
        lambda: compare.run([str(other), str(folder)], out=None, as_json=False),
    )
    curves = report.embedded_curves
    if name != "metrics.jsonl":  # the others have no curves, which take most of the time
        report.embedded_curves = lambda plot: report.Html()
    try:
        for work in works:
            with suppress(PlmError):
                work()
    finally:
        report.embedded_curves = curves
        target.write_bytes(kept)


Change = Callable[[bytes, random.Random], bytes]
Reader = Callable[[Path], None]


def cases() -> dict[str, tuple[str, bytes, Change, Reader]]:
    """For each kind: the file's name, its good content, a change of its values, and the reader."""
    single, pair = labelled("classification"), {"text": ("passage", "question")}
    table = b"text,label\n" + "\n".join(f"{r['text']},{r['label']}" for r in CLASSES).encode()
    squad = labelled("question_answering")
    known: dict[str, tuple[str, bytes, Change, Reader]] = {
        "yaml": ("c.yaml", CONFIG, changed_yaml, read_config),
        "text": ("t.txt", "\n\n".join(TEXTS).encode(), changed_bytes, read_text),
        "text jsonl": ("t.jsonl", lines(CLASSES), changed_json_lines, read_text),
        "text parquet": ("t.parquet", parquet(CLASSES), changed_parquet, read_text),
        "jsonl": ("r.jsonl", lines(CLASSES), changed_json_lines, single),
        "jsonl of labels": (
            "m.jsonl", lines([{**r, "label": ["a", "b"][: n % 3]} for n, r in enumerate(CLASSES)]),
            changed_json_lines, labelled("classification", problem="multi_label"),
        ),
        "jsonl of numbers": (
            "n.jsonl", lines(CLASSES), changed_json_lines,
            labelled("classification", problem="regression"),
        ),
        "jsonl of pairs": (
            "p.jsonl", lines(CHOICES), changed_json_lines, labelled("classification", **pair)
        ),
        "csv": ("r.csv", table, changed_cells, single),
        "tsv": ("r.tsv", table.replace(b",", b"\t"), changed_cells, single),
        "parquet": ("r.parquet", parquet(CLASSES), changed_parquet, single),
        "conll": ("r.conll", TAGGED.encode(), changed_cells, labelled("tagging")),
        "jsonl of tags": (
            "w.jsonl",
            lines([{"tokens": t.split(), "tags": ["B-X", *["O"] * t.count(" ")]} for t in TEXTS]),
            changed_json_lines, labelled("tagging"),
        ),
        "squad": ("s.json", to_json(ARTICLES), changed_json, squad),
        "squad rows": (
            "s.jsonl",
            lines([
                {"id": str(n), "context": t, "question": "who?", "answers":
                    {"text": [t[:3]], "answer_start": [0]}} for n, t in enumerate(TEXTS)
            ]),
            changed_json_lines, labelled("question_answering", version2=True),
        ),
        "choices": ("o.jsonl", lines(CHOICES), changed_json_lines, labelled("multiple_choice")),
        "text to text": (
            "x.jsonl", lines(PAIRS), changed_json_lines,
            labelled("text_to_text", "t5", target="target.a"),
        ),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        for kind in ("pretrain", "finetune", "grid"):
            folder = Path(name) / kind
            make_run(kind, folder)
            for path in sorted(folder.rglob("*")):
                inside = path.relative_to(folder).as_posix()
                if not path.is_file() or not path.stat().st_size or "seed=" in inside:
                    continue
                change: Change = changed_json
                if path.name in ("metrics.jsonl", "events"):
                    change = changed_json_lines
                elif path.suffix == ".yaml":
                    change = changed_yaml
                content = path.read_bytes()
                if path.name == "metrics.jsonl":
                    content = b"\n".join(content.splitlines()[-6:])
                file = f"{kind}@{inside.replace('/', '@')}"
                known[f"run {kind}/{inside}"] = (file, content, change, read_run_folder)
    return known


# --- The loop ---


def main() -> int:
    args = arguments()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _too_slow)
    known = {name: case for name, case in cases().items() if not args.kinds or _wanted(name, args)}
    draw = random.Random(args.seed)
    counts = {name: Counter[str]() for name in known}
    places: dict[str, str] = {}
    of_runs = tuple(name for name in known if name.startswith("run "))
    others = tuple(name for name in known if name not in of_runs)
    spent = {group: 0.0 for group in (of_runs, others) if group}
    end = time.monotonic() + args.seconds
    with tempfile.TemporaryDirectory() as name:
        for kind, (file, content, _, reader) in known.items():
            (Path(name) / file).write_bytes(content)
            outcome, trace = tried(reader, Path(name) / file)
            assert outcome == "read", f"{kind}, unchanged: {outcome} {trace}"
        while time.monotonic() < end:
            group = min(spent, key=lambda names: spent[names])  # reports are slow: half of the time
            kind, start = draw.choice(group), time.monotonic()
            file, content, change, reader = known[kind]
            for _ in range(draw.choice((1, 1, 1, 2, 4))):
                # After a change of bytes the values may be unreadable: bytes again, then.
                try:
                    content = (changed_bytes if draw.random() < 0.4 else change)(content, draw)
                except Exception:  # noqa: BLE001
                    content = changed_bytes(content, draw)
            path = Path(name) / file
            path.write_bytes(content)
            outcome, trace = tried(reader, path)
            counts[kind][outcome] += 1
            spent[group] += time.monotonic() - start
            place = _place(trace)
            if trace and place not in places:
                places[place] = kind
                _keep(args.keep, kind, file, content, trace)
                print(f"{kind}: {place}", flush=True)
    columns = ("read", "refused", "failed", "slow")
    print(f"| kind, seed {args.seed} | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
    for kind, count in [*counts.items(), ("all", sum(counts.values(), Counter()))]:
        print(f"| {kind} | {' | '.join(f'{count[name]:,}' for name in columns)} |")
    print(f"{len(places)} places in the code" + (f", kept in {args.keep}" if places else ""))
    return int(bool(places))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("fuzz"), help="folder of what failed")
    parser.add_argument("--kinds", nargs="+", help="only the kinds whose names start so")
    return parser.parse_args()


def _wanted(name: str, args: argparse.Namespace) -> bool:
    return any(name.startswith(kind) for kind in args.kinds)


class _Slow(BaseException):
    pass


def _too_slow(*_: object) -> None:
    raise _Slow


def tried(reader: Reader, path: Path) -> tuple[str, str]:
    """How reading a file ended, and the traceback of what should not be."""
    signal.alarm(_SLOW)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            reader(path)
    except PlmError:
        return "refused", ""
    except _Slow:
        return "slow", traceback.format_exc()
    except (Exception, pa.ArrowException):  # noqa: BLE001 - what the loop is for
        return "failed", traceback.format_exc()
    finally:
        signal.alarm(0)
    return "read", ""


def _place(trace: str) -> str:
    """The exception, and the last line of plmctl that it came through."""
    ours = [line for line in trace.splitlines() if "/plmctl/" in line and "File " in line]
    last = trace.strip().splitlines()[-1][:80] if trace else ""
    return f"{ours[-1].strip() if ours else ''} {last.partition(':')[0]}"


def _keep(folder: Path, kind: str, file: str, content: bytes, trace: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{kind.replace(' ', '-').replace('/', '-')}-{hashlib.sha256(content).hexdigest()[:8]}"
    (folder / f"{name}-{file}").write_bytes(content)
    (folder / f"{name}.traceback").write_text(trace, encoding="utf-8", errors="replace")


if __name__ == "__main__":
    sys.exit(main())
