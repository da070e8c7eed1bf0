"""BabyLM: what its shared tasks score (Warstadt et al., 2023, arXiv:2301.11796, and every year).

BLiMP and its supplement, EWoK, COMPS and entity tracking without finetuning; (Super)GLUE with it.
The files are those of the official ``evaluation_data`` folder, of which each year has its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plmctl.suites._babylm import (
    MACRO,
    OSF,
    PARTS,
    ZERO_SHOT,
    BabylmSuite,
    places,
)
from plmctl.suites.base import (
    Average,
    Column,
    Published,
    SuiteTask,
    recipes,
)

_TWO = "columns sentence1, sentence2, label"


def _glue(
    name: str,
    rows: str,
    *,
    hub: str = "nyu-mll/glue",
    optional: bool = False,
    also: Mapping[str, str] | None = None,
) -> SuiteTask:
    """A task in the official folder: TASK.train and TASK.valid."""
    trained = places("glue_filtered", f"{name}.train")
    scored = places("glue_filtered", f"{name}.valid")
    pairs = tuple(zip(trained, scored, strict=True))
    source = f"{hub}, config {name}, or {OSF}"
    return SuiteTask(name, source, rows, places=pairs, also=also or {}, optional=optional)


# CoLA, SST-2, QNLI and the mismatched rows of MNLI are in the folders of 2023 and 2024 only.
TASKS = (
    _glue("cola", "columns sentence, label", optional=True),
    _glue("sst2", "columns sentence, label", optional=True),
    _glue("mrpc", _TWO),
    _glue("qqp", "columns question1, question2, label"),
    _glue("mnli", "columns premise, hypothesis, label", also={"mnli-mm.valid": ""}),
    _glue("qnli", "columns question, sentence, label", optional=True),
    _glue("rte", _TWO),
    _glue("boolq", "columns question, passage, label", hub="aps/super_glue"),
    _glue("multirc", "columns paragraph, question, answer, label", hub="aps/super_glue"),
    _glue("wsc", "columns text, span1_text, span2_text, label", hub="aps/super_glue"),
)

COLUMNS = (
    *ZERO_SHOT[:4],
    Column(
        "EWoK ctx",
        "ewok",
        "accuracy/contexts/macro",
        MACRO.format("domains") + ", two contexts of one target, as EWoK's paper",
    ),
    Column("COMPS", "comps", "accuracy/macro", MACRO.format("four sets")),
    ZERO_SHOT[4],
    Column("MultiBLiMP", "multiblimp", "accuracy/macro", MACRO.format("languages")),
    Column("CoLA", "cola", "matthews", "Matthews correlation"),
    Column("SST-2", "sst2", "accuracy", "accuracy"),
    Column("MRPC F1", "mrpc", "f1", "F1 of label 1"),
    Column("QQP F1", "qqp", "f1", "F1 of label 1"),
    Column("MNLI", "mnli", "accuracy", "accuracy, matched genres"),
    Column("MNLI-mm", "mnli", "accuracy", "accuracy, mismatched genres", rows="mnli-mm.valid"),
    Column("QNLI", "qnli", "accuracy", "accuracy"),
    Column("RTE", "rte", "accuracy", "accuracy"),
    Column("BoolQ", "boolq", "accuracy", "accuracy"),
    Column("MultiRC", "multirc", "accuracy", "accuracy of single answers"),
    Column("WSC", "wsc", "accuracy", "accuracy"),
)

_SEVEN = ("BoolQ", "MNLI", "MRPC F1", "MultiRC", "QQP F1", "RTE", "WSC")
_ELEVEN = (*_SEVEN, "CoLA", "SST-2", "MNLI-mm", "QNLI")

AVERAGES = (
    Average(
        "GLUE 11",
        tuple((name,) for name in _ELEVEN),
        "mean of the eleven columns of 2023 and 2024: F1 of MRPC and QQP, Matthews of CoLA",
    ),
    Average(
        "GLUE 7",
        tuple((name,) for name in _SEVEN),
        "mean of the seven columns of 2025 and 2026: F1 of MRPC and QQP",
    ),
    Average(
        "macro 2024",
        (("BLiMP",), ("Supplement",), ("EWoK",), _ELEVEN),
        "the macroaverage of 2024: mean of BLiMP, its supplement, EWoK and GLUE 11",
    ),
)

_TASKS = tuple(task.name for task in TASKS)
_BABYLM = recipes("babylm", _TASKS)
# T5 writes its labels: the official recipe in the words of T5, for the tasks that these have.
_T5_TASKS = ("cola", "sst2", "mrpc", "qqp", "mnli", "qnli", "rte")
_T5 = {
    task: recipes(
        "babylm",
        (task,),
        f"task={{name: text_to_text, cast: {task}, max_target_length: 16}}",
        "train.metric=null",
    )[task]
    for task in _T5_TASKS
}

RECIPES = {
    **dict.fromkeys(("bert", "distilbert", "roberta", "albert", "spanbert"), _BABYLM),
    **dict.fromkeys(("gpt1", "gpt2", "gpt3"), _BABYLM),
    "elmo": recipes("babylm", _TASKS, "optim.lr=1e-3"),  # as in glue
    "t5": _T5,
}

# --- What the organisers publish. The family is the nearest of plmctl's ---

_2023 = "README of babylm/evaluation-pipeline-2023; means of its columns"
_2024 = "README of babylm/evaluation-pipeline-2024"
_2025 = "README of babylm/evaluation-pipeline-2025, 10 epochs"
_2026 = "README of babylm-org/babylm-eval"

_GLUE_2023 = (
    *("CoLA", "SST-2", "MRPC F1", "QQP F1", "MNLI", "MNLI-mm"),
    *("QNLI", "RTE", "BoolQ", "MultiRC", "WSC"),
)
_GLUE_2024 = (
    *("BoolQ", "CoLA", "MNLI", "MNLI-mm", "MRPC F1", "MultiRC"),
    *("QNLI", "QQP F1", "RTE", "SST-2", "WSC"),
)


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split()]


def _mean(text: str) -> float:
    numbers = _numbers(text)
    return sum(numbers) / len(numbers)


def _named(names: Sequence[str], text: str) -> dict[str, float]:
    pairs = zip(names, text.split(), strict=True)
    return {name: float(number) for name, number in pairs if number != "-"}


_ROWS_2023 = (
    ("OPT-125m", "gpt2", "strict-small",
     "63.8 70.6 67.1 66.5 78.5 62 63.8 67.5 48.6 46.7 59.6 56.9", "50.0 54.7 31.5 80.3 57.1",
     "15.2 81.9 72.5 60.4 57.6 60.0 61.5 60.0 63.3 55.2 60.2"),
    ("RoBERTa-base", "roberta", "strict-small",
     "81.5 67.1 67.3 67.9 90.8 76.4 63.5 87.4 39.9 55.9 70.5 65.4", "49.4 31.3 32.1 71.7 53.2",
     "25.8 87.0 79.2 73.7 73.2 74.0 77.0 61.6 66.3 61.4 61.4"),
    ("T5-base", "t5", "strict-small",
     "68.9 63.8 60.4 60.9 72.2 34.4 48.2 77.6 45.6 47.8 61.2 65.0", "48.0 40.6 21.2 64.9 45.0",
     "11.3 78.1 80.5 66.2 48.0 50.3 62.0 49.4 66.0 47.1 61.4"),
    ("OPT-125m", "gpt2", "strict",
     "94.9 73.8 73.8 72.2 93.1 80.5 73.6 80.8 57.8 51.6 74.5 77.3", "46.3 76.5 47.9 85.3 82.9",
     "36.2 86.6 82.1 77.8 70.1 71.9 80.1 67.7 66.0 61.1 59.0"),
    ("RoBERTa-base", "roberta", "strict",
     "89.5 71.3 71 67.1 93.1 83.8 68.0 89.6 54.5 66.3 70.3 76.2", "50.8 34.4 34.5 45.6 46.8",
     "45.3 88.6 80.5 78.5 68.7 78.0 82.3 51.5 59.9 61.3 61.4"),
    ("T5-base", "t5", "strict",
     "66.7 61.2 59.4 59.8 53.8 49.1 70.0 75.5 43.6 45.6 34.2 53.2", "51.1 45.3 25.5 69.2 48.9",
     "37.5 88.0 85.9 79.7 71.5 74.0 83.1 60.6 69.0 62.4 60.2"),
)  # fmt: skip

_ROWS_2024 = (
    ("BabyLlama", "gpt2", "strict-small", "69.8 59.5 50.7",
     "65.0 2.2 72.4 74.2 82.0 60.1 82.8 83.6 49.6 86.2 38.5"),
    ("LTG-BERT", "bert", "strict-small", "60.6 60.8 48.9",
     "68.8 0.0 68.9 68.9 82.2 58.5 76.5 34.2 58.3 85.1 61.5"),
    ("BabyLlama", "gpt2", "strict", "73.1 60.6 52.1",
     "66.1 37.3 75.6 76.2 86.8 62.1 83.1 84.5 60.4 88.3 38.5"),
    ("LTG-BERT", "bert", "strict", "69.2 66.5 51.9",
     "61.7 34.6 77.7 78.1 83.1 52.6 78.2 86.7 46.8 91.5 61.5"),
)  # fmt: skip

_ROWS_2025 = (
    ("GPT-BERT causal", "gpt2", "strict-small, scored as causal", "71.66 63.21 49.49 33.96"),
    ("GPT-BERT mixed", "bert", "strict-small, scored as masked", "71.29 63.30 49.93 39.95"),
    ("GPT-BERT masked", "bert", "strict-small, scored as masked", "70.36 63.71 49.95 40.02"),
    ("GPT-2 small", "gpt2", "strict-small", "67.29 59.09 49.80 18.92"),
    ("GPT-BERT causal", "gpt2", "strict, scored as causal", "79.29 70.42 52.32 -"),
    ("GPT-BERT mixed", "gpt2", "strict, scored as causal", "78.37 69.23 51.79 -"),
    ("GPT-2 small", "gpt2", "strict", "75.07 64.96 51.22 30.11"),
)

_ROWS_2026 = (
    ("GPT-2", "gpt2", "strict-small", "65.08 57.25 51.81 21.07"),
    ("GPT-2", "gpt2", "strict", "74.53 65.00 55.85 23.58"),
)


def _row(model: str, family: str, track: str, year: str, scores: dict[str, float]) -> Published:
    sources = {"2023": _2023, "2024": _2024, "2025": _2025, "2026": _2026}
    short, _, how = track.partition(", ")
    source = f"{sources[year]}, {short}{f', {how}' if how else ''}"
    size = "10M" if short == "strict-small" else "100M"
    return Published(f"{model} {size} {year}", family, "dev", source, scores)


PUBLISHED = (
    *(
        _row(model, family, track, "2026",
             _named(("BLiMP", "Supplement", "COMPS", "Entity"), scores))
        for model, family, track, scores in _ROWS_2026
    ),
    *(
        _row(model, family, track, "2025",
             _named(("BLiMP", "Supplement", "EWoK", "Entity"), scores))
        for model, family, track, scores in _ROWS_2025
    ),
    *(
        _row(model, family, track, "2024",
             {**_named(("BLiMP", "Supplement", "EWoK"), scores), **_named(_GLUE_2024, glue)})
        for model, family, track, scores, glue in _ROWS_2024
    ),
    *(
        _row(model, family, track, "2023",
             {"BLiMP 12": _mean(fields), "Supplement": _mean(supplement),
              **_named(_GLUE_2023, glue)})
        for model, family, track, fields, supplement, glue in _ROWS_2023
    ),
)  # fmt: skip


# --- The suite ---


class Babylm(BabylmSuite):
    """See ``title``."""

    title = "BabyLM's evaluation (Warstadt et al., 2023, arXiv:2301.11796; pipelines 2023 to 2026)"
    tasks = TASKS
    parts = PARTS
    columns = COLUMNS
    averages = AVERAGES
    recipes = RECIPES
    published = PUBLISHED

    def beside(self, family: str) -> tuple[Published, ...]:
        """All baselines, those of the nearest family first: the task compares all of them."""
        return tuple(sorted(self.published, key=lambda row: row.family != family))
