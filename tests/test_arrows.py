"""The layers import downwards only, and the lower ones import no torch at all."""

import ast
from pathlib import Path

import pytest

from plmctl import registry

ROOT = Path(__file__).parents[1] / "plmctl"

# Files of ``run`` that lie below training: they import config and each other, and no torch.
FLOOR = {"run.display", "run.launch", "run.stop"}

# What each layer may import of plmctl, besides itself, errors, registry and formatting.
ALLOWED = {
    "config": set(),
    "corpus": {"config"},
    "examples": set(),
    "tokenization": {"config"},
    "models": {"config", "examples"},
    "families": {"config", "models", "tokenization"},
    "optimizers": {"config", "models"},
    "objectives": {"config", "corpus", "examples", "tokenization", "models", "families"},
    "metrics": {"examples"},
    "counting": {"config", "corpus", "examples", "metrics"},
    "tasks": {
        "config", "corpus", "counting", "examples", "tokenization", "models", "families", "metrics",
    },
    "training": {"config", "examples", "models", "optimizers", *FLOOR},
    "evaluation": {
        "config", "corpus", "examples", "tokenization", "models", "metrics", "families",
        "objectives", "tasks", "training", *FLOOR,
    },
    "measures": {
        "config", "corpus", "tokenization", "models", "metrics", "families", "objectives",
        "tasks", "training", "evaluation", "counting",
    },
    "reporting": {"config", "examples"},
    "suites": set(),
    "run": {
        "config", "corpus", "examples", "tokenization", "models", "families", "objectives",
        "optimizers", "measures", "metrics", "tasks", "training", "evaluation", "reporting",
        "counting",
    },
    "commands": {
        "config", "corpus", "examples", "tokenization", "models", "families", "objectives",
        "tasks", "training", "evaluation", "measures", "reporting", "metrics", "suites", "run",
    },
}  # fmt: skip
SHARED = {
    "addresses",
    "arrays",
    "characters",
    "cpus",
    "errors",
    "files",
    "folders",
    "hashing",
    "hub",
    "registry",
    "startup",
    "formatting",
    "versions",
    "__init__",
}
NO_TORCH = (
    "config", "corpus", "counting", "examples", "tokenization", "metrics", "reporting", "suites",
)  # fmt: skip
FILES = sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Full names of all modules that a file imports, at its top or anywhere else."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            if node.module == "plmctl":
                names |= {f"plmctl.{alias.name}" for alias in node.names}
    return names


def loads(path: Path) -> set[str]:
    """Names of the folders of members that a file lists or loads through the registry."""
    folders = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = node.func.value
            if isinstance(of, ast.Name) and of.id == "registry" and node.args:
                folder = node.args[0]
                folders.add(str(folder.value) if isinstance(folder, ast.Constant) else "any")
    return folders


def layer(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down(path: Path) -> None:
    here = layer(path)
    if here not in ALLOWED:
        return
    for name in imports(path):
        parts = name.split(".")
        if (
            parts[0] == "plmctl"
            and len(parts) > 1
            and parts[1] not in SHARED | {here, "__version__"}
        ):
            allowed = parts[1] in ALLOWED[here] or ".".join(parts[1:3]) in ALLOWED[here]
            assert allowed, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_members_are_loaded_by_what_lies_above_them(path: Path) -> None:
    here = layer(path)
    if here not in ALLOWED or here in ("run", "commands"):
        return
    for folder in loads(path):
        assert folder.split(".")[0] in ALLOWED[here] | {here}, f"{path.name} loads {folder}"


@pytest.mark.parametrize("name", sorted(FLOOR))
def test_the_floor_imports_nothing_above_it(name: str) -> None:
    path = ROOT / f"{name.replace('.', '/')}.py"
    for module in imports(path):
        below = ".".join(module.split(".")[1:3]) in FLOOR or module == "plmctl.run"
        shared = module.split(".")[1:2] and module.split(".")[1] in SHARED | {"config"}
        assert not module.startswith("plmctl") or module == "plmctl" or below or shared
        assert module.split(".")[0] != "torch" or name == "run.launch"  # inside its functions


def test_no_file_needs_itself_not_even_for_types() -> None:
    files = {".".join(p.relative_to(ROOT.parent).with_suffix("").parts): p for p in FILES}
    needed = {
        module: {name for name in from_names(path) if name in files} - {module}
        for module, path in files.items()
    }
    reached = {module: reachable(module, needed) for module in files}
    circles = {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in files
        if module in reached[module]
    }
    assert not circles


def from_names(path: Path) -> set[str]:
    """What ``imports`` gives, and the modules that are imported from their folder."""
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    nodes = (node for node in tree if isinstance(node, ast.ImportFrom) and node.module)
    return imports(path) | {f"{one.module}.{alias.name}" for one in nodes for alias in one.names}


def reachable(module: str, needed: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    ahead = list(needed[module])
    while ahead:
        if (name := ahead.pop()) not in found:
            found.add(name)
            ahead += needed[name]
    return found


@pytest.mark.parametrize(
    "path", [p for p in FILES if layer(p) in NO_TORCH], ids=lambda p: str(p.relative_to(ROOT))
)
def test_lower_layers_have_no_torch(path: Path) -> None:
    assert not {name for name in imports(path) if name.split(".")[0] == "torch"}


@pytest.mark.parametrize("folder", ["objectives", "tasks", "families", "measures", "optimizers"])
def test_members_do_not_use_each_other(folder: str) -> None:
    members = [ROOT / folder / f"{n.replace('+', '_and_')}.py" for n in registry.names(folder)]
    names = {f"plmctl.{folder}.{p.stem}" for p in members}
    for path in members:
        assert not imports(path) & names
