"""``plmctl course``: the questions of a lesson, and whether a reader's answers are right.

A lesson is ``configs/course/NUMBER.yml``, with both languages. It has no answers: each one is
computed by commands of plmctl that the reader could type, often from the reader's own runs.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import typer
import yaml
from pydantic import BaseModel, ConfigDict

from plmctl.config.document import read_document
from plmctl.config.load import configs_folder
from plmctl.errors import ConfigError, DataError, PlmError, nearest
from plmctl.files import write_atomically, writing
from plmctl.formatting import format_value, printable

_WORDS = {
    "en": {
        "head": "Write each answer after its colon. Then run: plmctl course check {}",
        "right": "right",
        "wrong": "{} is not right",
        "open": "no answer yet",
        "failed": "cannot be computed here",
    },
    "zh": {
        "head": "把每题的答案写在冒号后面，然后运行：plmctl course check {}",
        "right": "正确",
        "wrong": "{} 不对",
        "open": "还没有作答",
        "failed": "目前算不出来",
    },
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Value(_Strict):
    """A value of a command's JSON.

    Attributes:
        run: The command, without ``plmctl`` and ``--json``.
        key: Its place in the document: a key, or the keys from outside to inside.
    """

    run: str
    key: str | list[str | int]


class Question(_Strict):
    """A question and how its answer is computed.

    Attributes:
        how: ``value``: the value itself; a list is written with ``|``. ``difference`` and
            ``ratio``: of the first value and the second. ``largest`` and ``smallest``: the letter
            of the value, A for the first.
        within: The largest relative error of a number; `margin` is added to it.
    """

    en: str
    zh: str
    hint: dict[Literal["en", "zh"], str]
    values: list[Value]
    how: Literal["value", "difference", "ratio", "largest", "smallest"] = "value"
    within: float = 0.01
    margin: float = 1e-9


class Lesson(_Strict):
    """The title of a lesson and its questions."""

    title: dict[Literal["en", "zh"], str]
    questions: list[Question]


def read_lesson(number: int) -> Lesson:
    """The questions of a lesson.

    Raises:
        ConfigError: There is no such lesson.
    """
    folder = configs_folder() / "course"
    path = folder / f"{number}.yml"
    if not path.is_file():
        names = sorted((one.stem for one in folder.glob("*.yml")), key=int)
        raise ConfigError(f"no lesson {number}{nearest(str(number), names)}")
    return Lesson.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def start(number: int, language: Literal["en", "zh"]) -> None:
    """Write the questions of a lesson to a new file of the working directory."""
    lesson, path = read_lesson(number), answers_file(number)
    if path.exists():
        raise ConfigError(f"{path} exists", f"plmctl course check {number} checks its answers")
    head = _WORDS[language]["head"].format(number)
    lines = [f"# {number}. {lesson.title[language]}", f"# {head}", f"language: {language}"]
    for place, question in enumerate(lesson.questions, 1):
        text = getattr(question, language).strip().splitlines()
        lines += ["", *(f"# {line}" for line in text), f"{place}:"]
    with writing(path):
        write_atomically(path, "\n".join(lines) + "\n")
    typer.echo(f"wrote {path}")


def answers_file(number: int) -> Path:
    """The file with a reader's answers."""
    return Path(f"course-{number}.yaml")


def check(number: int) -> None:
    """Print whether each answer is right.

    Raises:
        PlmError: Some are open.
    """
    lesson, path = read_lesson(number), answers_file(number)
    if not path.is_file():
        raise ConfigError(f"{path}: no such file", f"plmctl course start {number} writes it")
    given = read_document(path).data
    language = given.get("language", "en")
    if language not in _WORDS:
        raise ConfigError(f"{path}: language: {language!r}", "en or zh")
    words, right = _WORDS[language], 0
    for place, question in enumerate(lesson.questions, 1):
        answer = given.get(str(place))
        good, text = _judge(question, answer, words)
        hint = "" if good else f"\n   {question.hint[language].strip()}"
        right += good
        typer.secho(printable(f"{place}. {text}{hint}"), fg="green" if good else "red")
    if still := len(lesson.questions) - right:
        raise PlmError(f"{still} of {len(lesson.questions)} questions of {path} are open")


def _judge(question: Question, answer: Any, words: Mapping[str, str]) -> tuple[bool, str]:
    """Whether an answer is right, and a line that says so."""
    if answer is None:
        return False, words["open"]
    try:
        wanted = right_answer(question)
    except PlmError as error:
        return False, f"{words['failed']}: {error.message}"
    if is_right(answer, wanted, question.within, question.margin):
        return True, f"{words['right']}: {_shown(wanted)}"
    return False, words["wrong"].format(answer)


def _shown(value: Any) -> str:
    return format_value(value) if isinstance(value, float) else str(value)


def right_answer(question: Question) -> float | str:
    """The answer, computed.

    Raises:
        PlmError: A command failed, such as one that reads a run which is not there.
    """
    values: list[Any] = [_pick(_result(value.run), value) for value in question.values]
    wanted: float | str
    match question.how:
        case "value":
            (value,) = values
            wanted = "|".join(map(str, value)) if isinstance(value, list) else value
        case "difference":
            wanted = values[0] - values[1]
        case "ratio":
            wanted = values[0] / values[1]
        case "largest" | "smallest":
            best = max(values) if question.how == "largest" else min(values)
            wanted = "ABCDEFGH"[values.index(best)]
    return wanted


@cache
def _result(line: str) -> Any:
    """The JSON document of a command."""
    arguments = [sys.executable, "-m", "plmctl", *shlex.split(line), "--json"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        *_, last = [one for one in done.stderr.splitlines() if one.startswith("plmctl: ")] or [""]
        raise DataError(last.removeprefix("plmctl: ") or f"plmctl {line} failed")
    return json.loads(done.stdout)


def _pick(document: Any, value: Value) -> Any:
    """A value of a command's result."""
    keys: Sequence[str | int] = [value.key] if isinstance(value.key, str) else value.key
    try:
        for key in keys:
            document = document[key]
    except (KeyError, IndexError, TypeError):
        raise DataError(f"plmctl {value.run} --json has no {'/'.join(map(str, keys))}") from None
    return document


def is_right(answer: Any, wanted: float | str, within: float, margin: float) -> bool:
    """Whether an answer is the computed one: a number nearly, a text but for case and spaces."""
    if isinstance(wanted, bool | str):
        return _plain(answer) == _plain(wanted)
    try:
        number = float(str(answer).replace(",", "").replace("_", ""))
    except ValueError:
        return False
    return abs(number - wanted) <= within * abs(wanted) + margin


def _plain(text: Any) -> str:
    return "".join(str(text).casefold().split())
