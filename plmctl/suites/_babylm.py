"""What BabyLM's suites share: the parts without finetuning, their columns, the predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plmctl.suites.base import Column, Predictions, Suite, SuitePart

OSF = "the folder evaluation_data of https://osf.io/ryjfm"
_EWOK = "Hub: ewok-core/ewok-core-1.0 (accept its terms), filtered by the official dl_and_filter.py"
_ELMO = {"elmo": "ELMo's likelihood is of whole sentences, not of a part after a context"}


def places(folder: str, name: str) -> tuple[str, ...]:
    """Where a file may be below ``evaluation_data``."""
    return tuple(f"{at}{name}" for at in (f"full_eval/{folder}/", f"{folder}/"))


PARTS = (
    SuitePart(
        "blimp",
        "babylm/blimp.yaml",
        (*places("blimp_filtered", "*.jsonl"), "blimp/*.jsonl"),
        OSF,
        "BLiMP's files, one per paradigm",
    ),
    SuitePart(
        "supplement",
        "babylm/supplement.yaml",
        (*places("supplement_filtered", "*.jsonl"), "supplement/*.jsonl"),
        OSF,
        "columns sentence_good, sentence_bad, one file per paradigm",
    ),
    SuitePart(
        "ewok",
        "babylm/ewok.yaml",
        (*places("ewok_filtered", "*.jsonl"), "ewok/*.jsonl"),
        _EWOK,
        "columns Domain, Context1, Context2, Target1, Target2",
        refused=_ELMO,
    ),
    SuitePart(
        "comps",
        "babylm/comps.yaml",
        places("comps", "*.jsonl"),
        OSF,
        "columns prefix_acceptable, prefix_unacceptable, property_phrase",
        refused=_ELMO,
    ),
    SuitePart(
        "entity_tracking",
        "babylm/entity-tracking.yaml",
        places("entity_tracking", "*.jsonl"),
        OSF,
        "columns input_prefix, options (the right one first), numops",
        refused=_ELMO,
    ),
    SuitePart(
        "multiblimp",
        "multiblimp.yaml",
        ("multiblimp/*/data.tsv", "multiblimp/*.tsv", "multiblimp/*.jsonl"),
        "Hub: jumelet/multiblimp, LANGUAGE/data.tsv",
        "columns sen, wrong_sen",
        asked_for=True,
    ),
)

MACRO = "accuracy, mean of the {}, unweighted"

ZERO_SHOT = (
    Column("BLiMP", "blimp", "accuracy/macro", MACRO.format("paradigms")),
    Column(
        "BLiMP 12",
        "blimp",
        "accuracy/linguistics_term",
        "accuracy, mean of the 12 phenomena, unweighted, as the table of 2023",
    ),
    Column("Supplement", "supplement", "accuracy/macro", MACRO.format("five sets")),
    Column("EWoK", "ewok", "accuracy/macro", MACRO.format("domains") + ", two targets"),
    Column("Entity", "entity_tracking", "accuracy/macro", MACRO.format("18 sets")),
)

_SUBMITTED = {"supplement": "blimp_supplement"}  # the official names of parts, where others


class BabylmSuite(Suite):
    """A suite whose predictions BabyLM's leaderboard takes."""

    def submission(self, scores: Mapping[str, float], predictions: Predictions) -> dict[str, Any]:
        """The collated predictions: ``{part: {paradigm: {"predictions": [...]}}}``.

        The finetuned tasks are under ``glue``; MultiBLiMP is not among the leaderboard's parts.
        """
        tasks = [task.name for task in self.tasks]
        document: dict[str, Any] = {}
        for name, of in predictions.items():
            if name == "multiblimp":
                continue
            part = "glue" if name in tasks else _SUBMITTED.get(name, name)
            document.setdefault(part, {}).update(
                {
                    paradigm: {
                        "predictions": [
                            {"id": f"{paradigm}_{number}", "pred": chosen}
                            for number, chosen in enumerate(several)
                        ]
                    }
                    for paradigm, several in of.items()
                }
            )
        return document
