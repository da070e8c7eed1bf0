"""The project uses the words of the field: private words of its first version stay out."""

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
    r"(?<![\"'])\bfigures?\b(?![\"'])(?!\.)": "metrics, results, numbers",
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
    found = []
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        # A phrase may be broken over two lines, of a comment too.
        joined = re.sub(r"\s*\n\s*(# ?)?", " ", text)
        if re.search(pattern, joined):
            lines = [n for n, line in enumerate(text.splitlines(), 1) if re.search(pattern, line)]
            found.append(f"{path.relative_to(ROOT)}:{lines or ''}")
    assert not found, f"write {WORDS[pattern]!r} instead, in " + ", ".join(found)
