"""The project uses the words of the field: private words of its first version stay out."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# What must not be written, and what to write instead.
WORDS = {
    r"\b(go|goes|going|went|gone) on\b": "resume, continue",
    r"\banew\b": "from scratch, again",
    r"\bbegun\b": "started",
    r"\blearnt\b": "learned",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bmishaps?\b": "failure",
    # Not a key of a saved document, and not matplotlib's.
    r"(?<![\"'])(?<!matplotlib\.)\bfigures?\b(?![\"'])(?!\.)": "metrics, results, numbers",
    r"\btold of\b": "reported",
    r"\btaken (off|for)\b": "subtracted, treated as",
    r"\b(is|are) not done for\b": "is not supported for",
    r"\b(bytes?|tokens?|steps?|rows?|seconds|sequences|samples|one|numbers?|tensors?|[0-9]) an? "
    r"(token|step|second|epoch|row|process|device|parameter|element|matrix|sequence|GPU|byte|file|"
    r"word|forward|phase|line|task|document|size|micro-batch)\b": "per",
    r"\bwhat .{1,30} (is|are) worth\b": "metric, score",
    r"\bquicken\b": "use_fast_dropout",
}
FILES = [
    *(p for p in (ROOT / "plmctl").rglob("*.py") if p.name != "drawing.py"),  # matplotlib's words
    *(ROOT / "scripts").rglob("*.py"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "configs").rglob("*.yaml"),
    *ROOT.glob("*.md"),
]


@pytest.mark.parametrize("pattern", WORDS)
def test_words_of_the_field(pattern: str) -> None:
    wrong = []
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        # A phrase may be broken over two lines, of a comment too.
        joined = re.sub(r"\s*\n\s*(# ?)?", " ", text)
        if re.search(pattern, joined):
            lines = [n for n, line in enumerate(text.splitlines(), 1) if re.search(pattern, line)]
            wrong.append(f"{path.relative_to(ROOT)}:{lines or ''}")
    assert not wrong, f"write {WORDS[pattern]!r} instead, in " + ", ".join(wrong)


@pytest.mark.parametrize("folder", ["plmctl", "scripts"])
def test_a_docstring_begins_with_what_it_describes(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and re.match(r"(Of|As|Where|By|Whose)\b", ast.get_docstring(node) or "")
    ]
    assert not wrong, "name the thing first, not Of, As, Where, By or Whose, in " + ", ".join(wrong)


# A name says what its value is: matches, result, options, message ... and not how it came about.
NAMES = {"asked", "found", "made", "said", "told"}


@pytest.mark.parametrize("folder", ["plmctl", "scripts"])
def test_a_name_says_what_its_value_is(folder: str) -> None:
    wrong = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        names = bound_names(ast.parse(path.read_text(encoding="utf-8")))
        wrong += [f"{name}:{line} {word}" for word, line in names if word in NAMES]
    assert not wrong, "name what the value is, in " + ", ".join(wrong)


def bound_names(tree: ast.AST) -> list[tuple[str, int]]:
    """The names of variables, attributes, arguments, functions and classes, with their lines."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.append((node.id if isinstance(node, ast.Name) else node.attr, node.lineno))
        elif isinstance(node, ast.arg):
            names.append((node.arg, node.lineno))
        elif (
            isinstance(node, ast.FunctionDef | ast.ClassDef)
            or isinstance(node, ast.ExceptHandler)
            and node.name
        ):
            names.append((node.name, node.lineno))
    return names


def test_names_are_seen() -> None:
    code = "found = 1\ndef f(made): self.said = [asked for asked in made]\nwith x as told: found"
    assert sorted(bound_names(ast.parse(code))) == [
        ("asked", 2), ("f", 2), ("found", 1), ("made", 2), ("said", 2), ("told", 3)
    ]  # fmt: skip
