"""``plmctl course``: the questions of the course's lessons."""

from enum import StrEnum
from typing import Annotated

import typer

from plmctl.cli.app import SETTINGS, app, example

course_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=SETTINGS,
    help="Ask the questions of a lesson of the course, and check the answers.",
)

app.add_typer(course_app, name="course")


class Language(StrEnum):
    """A language of the course."""

    en = "en"
    zh = "zh"


Lesson = Annotated[int, typer.Argument(metavar="LESSON", help="The number of a lesson.")]


@course_app.command("start", epilog=example("plmctl course start 1"))
def course_start(
    lesson: Lesson,
    lang: Annotated[Language, typer.Option(help="The language of the questions.")] = Language.en,
) -> None:
    """Write the questions of a lesson.

    Writes course-LESSON.yaml in this folder, with a place for each answer.
    """
    from plmctl.commands import course as command

    command.start(lesson, lang.value)


@course_app.command("check", epilog=example("plmctl course check 1"))
def course_check(lesson: Lesson) -> None:
    """Check the answers to a lesson.

    Reads course-LESSON.yaml and computes each right answer by commands of plmctl, from your own
    runs below runs/ of this folder where a question is about them. Exit code 1 while a question
    is open.
    """
    from plmctl.commands import course as command

    command.check(lesson)
