"""BabyLM's fast sets: samples of its parts, without finetuning, to score every checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from plmctl.suites._babylm import OSF, PARTS, ZERO_SHOT, BabylmSuite
from plmctl.suites.base import Recipe

_FOLDERS = {
    "blimp": "blimp_fast",
    "supplement": "supplement_fast",
    "ewok": "ewok_fast",
    "entity_tracking": "entity_tracking_fast",
}


class BabylmFast(BabylmSuite):
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
