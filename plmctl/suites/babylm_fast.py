"""BabyLM's fast sets: samples of its parts, without finetuning, to score every checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from plmctl.suites._babylm import OSF, PARTS, ZERO_SHOT, predictions_document
from plmctl.suites.base import Predictions, Recipe, Suite

_FOLDERS = {
    "blimp": "blimp_fast",
    "supplement": "supplement_fast",
    "ewok": "ewok_fast",
    "entity_tracking": "entity_tracking_fast",
}


class BabylmFast(Suite):
    """See ``title``."""

    title = "BabyLM's fast sets (pipelines 2025 and 2026)"
    tasks = ()
    parts = tuple(
        replace(
            part,
            files=tuple(f"{at}{_FOLDERS[part.name]}/*.jsonl" for at in ("fast_eval/", "")),
            source=f"fast_eval in {OSF}",
        )
        for part in PARTS
        if part.name in _FOLDERS
    )
    columns = ZERO_SHOT
    averages = ()
    recipes: ClassVar[Mapping[str, Mapping[str, Recipe]]] = {}
    published = ()

    def submission(self, scores: Mapping[str, float], predictions: Predictions) -> dict[str, Any]:
        """The collated predictions."""
        return predictions_document(predictions, ())
