"""The course: its commands run, and its questions tell right answers from wrong ones."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from plmctl.commands.course import answers_file, is_right, read_lesson, right_answer
from scripts.check_readme import commands
from tests.conftest import Cli

ROOT = Path(__file__).parents[1]


def number_of(page: Path) -> int:
    return int(page.name.partition("-")[0])


PAGES = sorted((ROOT / "docs/course").glob("[0-9]*.md"), key=number_of)
SMALL = {
    "train-tokenizer": ["data.max_bytes=2MB"],
    "pretrain": ["train.phases.0.steps=12", "log.validate_every=12", "log.validate_samples=20"],
    "finetune": ["train.epochs=1", "data.max_rows=32"],
    "neighbours": ["--max-sentences", "300"],
    "preview": ["--count", "300"],
}


def wrong(answer: float | str) -> float | str:
    if isinstance(answer, str):
        return {"A": "B"}.get(answer, "A")
    return 2 * answer + 7


def write_answers(number: int, answers: Sequence[float | str | None]) -> None:
    text = yaml.safe_dump({"language": "en", **{str(n): a for n, a in enumerate(answers, 1)}})
    answers_file(number).write_text(text, encoding="utf-8")


def judged(cli: Cli, number: int) -> list[bool]:
    """Whether each answer is right, by the lines that ``check`` prints."""
    code, out, _ = cli("course", "check", str(number))
    right = [text.startswith("right") for text in re.findall(r"^\d\. (.*)$", out, re.M)]
    assert code == (0 if all(right) else 1)
    return right


def test_each_lesson_is_whole_in_both_languages() -> None:
    questions = {int(path.stem) for path in (ROOT / "configs/course").glob("*.yml")}
    assert {number_of(page) for page in PAGES} == questions
    for folder in ("docs", "docs/zh"):
        index = (ROOT / folder / "course/README.md").read_text(encoding="utf-8")
        assert re.findall(r"^\| \[.*?\]\((.*?)\)", index, re.M) == [page.name for page in PAGES]
        for page in PAGES:
            text = (ROOT / folder / "course" / page.name).read_text(encoding="utf-8")
            assert f"plmctl course check {number_of(page)}\n" in text
            assert "<details" in text
            assert "images/" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_outputs_are_those_of_the_english_page(page: Path) -> None:
    chinese = ROOT / "docs/zh/course" / page.name
    blocks = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
    assert blocks.findall(chinese.read_text(encoding="utf-8")) == blocks.findall(
        page.read_text(encoding="utf-8")
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_lesson_has_five_questions(page: Path) -> None:
    lesson = read_lesson(number_of(page))
    assert len(lesson.questions) == 5
    for question in lesson.questions:
        assert set(question.hint) == {"en", "zh"}


def test_answers_turn_red_and_green(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lesson 1 without its runs: a question about them stays open, and says what is missing."""
    monkeypatch.chdir(tmp_path)
    assert cli("course", "check", "1")[0] == 2  # not started
    assert cli("course", "start", "1", "--lang", "zh")[0] == 0
    assert "language: zh" in Path("course-1.yaml").read_text(encoding="utf-8")
    assert cli("course", "start", "1")[0] == 2  # it is there already
    assert judged(cli, 1) == [False] * 5
    write_answers(1, [None, None, 1, 2, None])
    assert judged(cli, 1) == [False] * 5
    write_answers(1, [None, None, 1, 50265 / 30522, None])
    _, out, err = cli("course", "check", "1")
    assert "3. cannot be computed here: runs/course/wordpiece-6000" in out
    assert "4. right: 1.647" in out
    assert "4 of 5 questions" in err
    assert cli("course", "check", "99")[0] == 2


def test_how_answers_are_compared() -> None:
    assert is_right("un | b|El ", "un|b|el", 0, 0)
    assert is_right(True, True, 0, 0)
    assert is_right("1,500", 1500, 0, 0)
    assert is_right(0.1501, 0.15, 0.01, 0)
    assert is_right(-0.001, -0.0007, 0, 0.001)
    assert not is_right(0.16, 0.15, 0.01, 0)
    assert not is_right("many", 0.15, 0.01, 0)


def small(line: str) -> str:
    """A command of a lesson that takes seconds."""
    words = shlex.split(line)
    if words[0] != "plmctl":
        return line
    return f"{line} {shlex.join(SMALL.get(words[1], []))}"


@pytest.mark.sweep
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_lesson_run_and_answer_its_questions(
    page: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for line in commands(page.read_text(encoding="utf-8")):
        if not line.startswith("plmctl course"):
            done = subprocess.run(
                ["bash", "-c", small(line)],
                env=os.environ | {"PATH": programs, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, (line, done.stderr)
    number = number_of(page)
    answers = [right_answer(question) for question in read_lesson(number).questions]
    write_answers(number, [wrong(answer) for answer in answers])
    assert judged(cli, number) == [False] * 5
    write_answers(number, answers)
    assert judged(cli, number) == [True] * 5
