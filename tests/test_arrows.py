"""The layers import downwards only, and the lower ones import no torch at all."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "plmctl"

# What each layer may import of plmctl, besides itself, errors, registry and formatting.
ALLOWED = {
    "config": set(),
    "corpus": {"config"},
    "shaping": set(),
    "tokenization": {"config"},
    "modeling": {"config"},
    "families": {"config", "modeling"},
    "optimizers": {"config", "training"},
    "objectives": {"config", "corpus", "shaping", "tokenization", "modeling"},
    "metrics": {"shaping"},
    "tasks": {"config", "corpus", "shaping", "tokenization", "modeling", "families", "metrics"},
    "training": {"config", "shaping", "modeling"},
    "evaluation": {
        "config", "corpus", "shaping", "tokenization", "modeling", "metrics", "families",
        "objectives", "tasks", "training",
    },
    "reporting": {"config", "shaping"},
    "suites": set(),
    "runs": {
        "config", "corpus", "shaping", "tokenization", "modeling", "families", "objectives",
        "tasks", "training", "evaluation", "reporting", "metrics", "suites",
    },
}  # fmt: skip
SHARED = {
    "arrays",
    "cpus",
    "errors",
    "files",
    "hashing",
    "hub",
    "registry",
    "formatting",
    "__init__",
}
NO_TORCH = ("config", "corpus", "shaping", "tokenization", "metrics", "reporting", "suites")
FILES = sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Full names of all modules that a file imports, at its top or anywhere else."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "plmctl":
                found |= {f"plmctl.{alias.name}" for alias in node.names}
    return found


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
            assert parts[1] in ALLOWED[here], f"{path.name} imports {name}"


@pytest.mark.parametrize(
    "path", [p for p in FILES if layer(p) in NO_TORCH], ids=lambda p: str(p.relative_to(ROOT))
)
def test_lower_layers_have_no_torch(path: Path) -> None:
    assert not {name for name in imports(path) if name.split(".")[0] == "torch"}


@pytest.mark.parametrize("folder", ["objectives", "tasks", "families"])
def test_members_do_not_use_each_other(folder: str) -> None:
    members = [p for p in (ROOT / folder).glob("*.py") if not p.name.startswith("_")]
    names = {f"plmctl.{folder}.{p.stem}" for p in members}
    for path in members:
        assert not imports(path) & names
