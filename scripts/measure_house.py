"""How heavy is the house? Numbers about the code of plmctl, in one table.

    python scripts/measure_house.py                  # this checkout
    python scripts/measure_house.py --list           # also every place that is counted
    python scripts/measure_house.py ../other         # another checkout, read by the same rules

The last two rows come from a tiny pretraining of this checkout: the files of plmctl whose functions
run until the first `backward`, and between two later ones, but not only because a file is imported.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import mean, median, quantiles
from types import FrameType
from typing import Any

import networkx

HERE = Path(__file__).resolve().parents[1]
CORE = ("pretrain", "finetune", "evaluate", "train_tokenizer", "predict")
REGISTRIES = ("families", "objectives", "tasks", "optimizers", "suites", "measures")
WHOLE_CONFIGS = re.compile(r"\b(PretrainConfig|FinetuneConfig|RunConfig|EvalConfig)\b")
LOOK_UPS = re.compile(r"(?:.*\.)?get_(family|objective|task|optimizer|suite|measure|algorithm)$")
LOSS_TERMS = re.compile(r"\b(HEADS|loss_terms)\b")
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
COLLECTION = (ast.Tuple, ast.List, ast.Set)
OTHERS = (
    "signatures with a whole config",
    "look-ups by name",
    "functions of more than 60 lines",
    "private functions with one use in their file",
    "Any",
    "type: ignore",
    "imports inside functions",
    "Args: entries of five words or fewer",
)
CIRCLES = {
    "top": "circles of imports",
    "types": "circles of imports, with TYPE_CHECKING",
    "late": "circles of imports, with imports inside functions",
}


class Source:
    """One file of the package, and its nodes with their parents."""

    def __init__(self, path: Path, package: Path) -> None:
        self.path = path.relative_to(package.parent)
        self.module = ".".join(self.path.with_suffix("").parts)
        self.lines = path.read_text(encoding="utf-8").splitlines()
        self.parents: dict[ast.AST, ast.AST] = {}
        for node in ast.walk(ast.parse("\n".join(self.lines))):
            self.parents |= dict.fromkeys(ast.iter_child_nodes(node), node)
        self.functions = [node for node in self.parents if isinstance(node, FUNCTION)]

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        while (parent := self.parents.get(node)) is not None:
            yield (node := parent)

    def when(self, node: ast.AST) -> str:
        """When an import is done: "late" in a function, else "types" or "top"."""
        around = list(self.around(node))
        if any(isinstance(one, FUNCTION) for one in around):
            return "late"
        tests = [ast.unparse(one.test) for one in around if isinstance(one, ast.If)]
        return "types" if any("TYPE_CHECKING" in test for test in tests) else "top"

    def code_lines(self) -> int:
        """Lines without blank ones, comments and docstrings."""
        strings: set[int] = set()
        for node in self.parents:
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                strings |= set(range(node.lineno, (node.end_lineno or 0) + 1))
        return sum(
            bool(line.strip()) and line.strip()[0] != "#" and number not in strings
            for number, line in enumerate(self.lines, 1)
        )

    def body_lines(self, function: Any) -> int:
        """Code and comment lines of a function without signature and docstring."""
        first = function.body[0]
        has_docstring = ast.get_docstring(function) is not None
        after = first.end_lineno + 1 if has_docstring else first.lineno
        return sum(bool(line.strip()) for line in self.lines[after - 1 : function.end_lineno])

    def places(self) -> Iterator[tuple[str, int]]:
        """Label and line of all that is counted, but comparisons and long functions."""
        used = Counter(getattr(node, "id", getattr(node, "attr", None)) for node in self.parents)
        for one in self.functions:
            if WHOLE_CONFIGS.search(ast.unparse(one.args)):
                yield "signatures with a whole config", one.lineno
            if one.name[0] == "_" and one.name[:2] != "__" and used[one.name] == 1:
                yield "private functions with one use in their file", one.lineno
            document = ast.get_docstring(one) or ""
            section = re.search(r"^Args:\n((?: .*\n?)+)", document, re.M)
            for entry in re.split(r"\n {4}(?=\S)", "\n" + section[1]) if section else ():
                if entry.strip() and len(entry.partition(":")[2].split()) <= 5:
                    yield "Args: entries of five words or fewer", one.lineno
        for node in self.parents:
            if isinstance(node, ast.Call) and LOOK_UPS.match(ast.unparse(node.func)):
                yield "look-ups by name", node.lineno
            if isinstance(node, ast.Name) and node.id == "Any":
                yield "Any", node.lineno
            if isinstance(node, ast.Import | ast.ImportFrom) and self.when(node) == "late":
                yield "imports inside functions", node.lineno
        for number, line in enumerate(self.lines, 1):
            if "# type: ignore" in line:
                yield "type: ignore", number


def imports(source: Source, modules: set[str]) -> Iterator[tuple[str, str]]:
    """Each file of the package that this one imports, and when."""
    for node in source.parents:
        named = []
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            named = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
        yield from ((name, source.when(node)) for name in named if name in modules)


def core(graph: dict[str, set[str]]) -> set[str]:
    """What the core commands reach; a registry's base reaches all of its members."""
    waiting, reached = {f"plmctl.commands.{name}" for name in CORE} & set(graph), set()
    while waiting:
        module = waiting.pop()
        reached.add(module)
        waiting |= graph[module] - reached
        folder = module.removesuffix("base")
        if folder != module and folder.split(".")[1] in (*REGISTRIES, "tokenization"):
            waiting |= {one for one in graph if one.startswith(folder)} - reached
    return reached


def circles(graph: dict[str, set[str]]) -> list[str]:
    components = networkx.strongly_connected_components(networkx.DiGraph(graph))
    return [" ".join(sorted(circle)) for circle in components if len(circle) > 1]


def member_names(package: Path) -> dict[str, set[str]]:
    """For each registry, the names of its members; of families also transformers' model types."""
    names: dict[str, set[str]] = {}
    for folder in REGISTRIES:
        files = [path for path in (package / folder).glob("[!_]*.py") if path.stem != "base"]
        names[folder] = {path.stem.replace("_and_", "+") for path in files}
        for path in files:
            types = re.findall(r'(?i)\bmodel_type\b[^=\n]*= "([^"]+)"', path.read_text("utf-8"))
            names[folder] |= set(types)
    return names


def strings(nodes: Iterable[ast.AST | None]) -> set[str]:
    return {node.value for node in nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str)}  # fmt: skip


def comparisons(source: Source, names: dict[str, set[str]]) -> Iterator[tuple[str, ast.AST]]:
    """Each place that compares a member's name outside the member's folder, with its registry.

    Comparisons, cases of `match`, keys of a dictionary, and lists of two names or more. Some loss
    terms have the names of members, so what is about heads or loss terms is left out.
    """
    for node, parent in source.parents.items():
        texts: set[str] = set()
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            texts = strings(sides + [x for one in sides for x in getattr(one, "elts", ())])
        elif isinstance(node, ast.MatchValue):
            texts = strings([node.value])
        elif isinstance(node, ast.Dict):
            texts = strings(node.keys)
        elif isinstance(node, COLLECTION) and not isinstance(parent, ast.Compare):
            texts = strings(node.elts)
        about = parent if isinstance(parent, ast.Assign) else node
        if LOSS_TERMS.search(ast.unparse(about)):
            continue
        several = not isinstance(node, ast.Compare | ast.MatchValue)
        for folder in REGISTRIES:
            members = texts & names[folder]
            if len(members) > several:
                homes = [one for one in REGISTRIES if members & names[one]]
                if source.module.split(".")[1] not in homes:
                    yield folder, node
                break


def trace(folder: Path) -> None:
    """Pretrain in a folder that has a tokenizer; write the names of the files that were in use."""
    package, used, windows, backwards = f"{HERE / 'plmctl'}{os.sep}", set(), [], 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal backwards, used
        code = frame.f_code
        if event != "call":
            return
        if code.co_filename.startswith(package):
            if code.co_filename not in used and code.co_flags & 2 and not importing(frame):
                used.add(code.co_filename)
        elif code.co_name == "backward" and code.co_filename.endswith("accelerate/accelerator.py"):
            windows.append(sorted(os.path.relpath(one, package) for one in used))
            used = set()

    def importing(frame: FrameType | None) -> bool:
        while frame := frame and frame.f_back:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                return True
        return False

    from plmctl.__main__ import main

    sys.argv = ["plmctl", "pretrain", str(folder / "pretrain.yaml")]
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        main()
    except SystemExit as stop:
        if stop.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        (folder / "files.json").write_text(json.dumps([windows[0], windows[3]]))


def files_in_fact() -> tuple[list[str], list[str]]:
    """Files whose functions run until the first `backward`, and in a step that logs nothing."""
    settings = {
        "run": "run", "tokenizer": "tokenizer", "data": {"train": [str(HERE / "docs/*.md")]},
        "model": {"family": "bert", "size": "tiny", "num_hidden_layers": 1, "hidden_size": 16,
                  "num_attention_heads": 2, "intermediate_size": 16},
        "train": {"batch_size": 4, "micro_batch_size": 4, "phases": [{"seq_len": 32, "steps": 6}]},
        "optim": {"lr": 1e-4}, "log": {"every": 6, "samples": 0},
        "compute": {"device": "cpu", "workers": 0},
    }  # fmt: skip
    tokenizer = {"run": "tokenizer", "algorithm": "wordpiece", "family": "bert",
                 "vocab_size": 500, "data": settings["data"]}  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pretrain.yaml").write_text(json.dumps(settings))
        (folder / "tokenizer.yaml").write_text(json.dumps(tokenizer))
        environment = {**os.environ, "PYTHONPATH": str(HERE)}
        for command in (
            ["-m", "plmctl", "train-tokenizer", "tokenizer.yaml"],
            ["-m", "plmctl", "prepare", "pretrain.yaml"],
            [__file__, "--trace", name],
        ):
            done = subprocess.run([sys.executable, *command], cwd=name, env=environment,
                                  capture_output=True, text=True, check=False)  # fmt: skip
            if done.returncode:
                raise SystemExit(done.stderr)
        first, step = json.loads((folder / "files.json").read_text())
        return first, step


def measures(package: Path) -> Iterator[tuple[str, Any, list[str]]]:
    """The rows of the table: what, how much, and where."""
    files = [Source(path, package) for path in sorted(package.rglob("*.py"))]
    modules = {one.module for one in files}
    graphs = {when: {one: set[str]() for one in modules} for when in ("top", "types", "late")}
    for one in files:
        for module, when in imports(one, modules):
            graphs[when][one.module].add(module)
    reached = core({one: graphs["top"][one] | graphs["late"][one] for one in modules})
    parts = {"": files, " of the core commands": [one for one in files if one.module in reached]}
    for label, part in parts.items():
        yield f"files{label}", len(part), []
        yield f"lines{label}", sum(len(one.lines) for one in part), []
        yield f"code lines{label}", sum(one.code_lines() for one in part), []

    names = member_names(package)
    places: dict[str, list[tuple[Source, int]]] = {
        f"comparisons of names: {one}": [] for one in names
    }
    places |= {one: [] for one in OTHERS}
    bodies = []
    for one in files:
        for registry, node in comparisons(one, names):
            places[f"comparisons of names: {registry}"].append((one, node.lineno))
        for label, line in one.places():
            places[label].append((one, line))
        for function in one.functions:
            bodies.append(one.body_lines(function))
            if bodies[-1] > 60:
                places["functions of more than 60 lines"].append((one, function.lineno))
    for label, counted in places.items():
        counted.sort(key=lambda place: (place[0].path, place[1]))
        shown = [f"{one.path}:{line}  {one.lines[line - 1].strip()}" for one, line in counted]
        yield label, len(shown), shown
    yield "functions", len(bodies), []
    yield "body: mean", f"{mean(bodies):.1f}", []
    yield "body: median / p90", f"{median(bodies):.0f} / {quantiles(bodies, n=10)[8]:.0f}", []

    kinds: list[str] = []
    for kind, label in CIRCLES.items():
        kinds.append(kind)
        graph = {one: set().union(*(graphs[kind][one] for kind in kinds)) for one in modules}
        yield label, len(circles(graph)), circles(graph)


def main() -> None:
    parser = argparse.ArgumentParser(description="Numbers about the code of plmctl.")
    parser.add_argument("checkout", nargs="?", type=Path, default=HERE)
    parser.add_argument("--list", action="store_true", help="print every place")
    parser.add_argument("--trace", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trace:
        trace(options.trace)
        return
    table = list(measures(options.checkout.resolve() / "plmctl"))
    if options.checkout.resolve() == HERE:
        first, step = files_in_fact()
        table.append(("files in use until the first backward", len(first), first))
        table.append(("files in use in a step", len(step), step))
    for label, number, places in table:
        shown = f"{number:,}" if isinstance(number, int) else number
        print(f"{label:<50} {shown:>10}")
        for place in places if options.list else ():
            print(f"    {place}")


if __name__ == "__main__":
    main()
