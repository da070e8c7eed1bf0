"""``unknown_is_wrong`` of ``minimal_pairs``, the rule of the Chinese BabyLM's character pairs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plmctl.errors import DataError
from plmctl.evaluation.likelihood import Likelihood
from plmctl.measures.base import get_measure
from tests.commands.conftest import sentence
from tests.evaluation.models import opened

Folders = Callable[[str], Path]
TARGETS = ("river", "木", "bank", "林")  # the tokenizers are trained on English


def rows_of(count: int) -> list[dict[str, str]]:
    """Every second pair has a target that the tokenizer does not know."""
    rows = []
    for n in range(count):
        words, quoted = sentence(n).split(), f"“{TARGETS[n % 4]}”"
        rows.append(
            {
                "sentence_good": " ".join([quoted, *words]),
                "sentence_bad": " ".join([quoted, *words[::-1]]),
                "UID": f"condition_{n % 3}",
            }
        )
    return rows


def take(folder: Path, rows: list[dict[str, str]], root: Path, **fields: Any) -> dict[str, Any]:
    path = root / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    values = {"name": "minimal_pairs", "data": [str(path)], "paradigm": "{UID}", **fields}
    measure = get_measure("minimal_pairs")
    return measure(measure.Config.model_validate(values)).measure(opened(folder), 7).results


def organisers_accuracy(folder: Path, rows: list[dict[str, str]]) -> list[bool]:
    """The rule of 2026-06-06 as announced: an item with an unknown target has no score, but counts.

    The target is what is quoted; the unknown token among its ids says that it is not known.
    """
    model = opened(folder)
    tokenizer = model.tokenizer
    good, bad = (
        Likelihood.of(model).score_sentences([row[f"sentence_{side}"] for row in rows])
        for side in ("good", "bad")
    )
    points = []
    for row, better, worse in zip(rows, good.log_probability, bad.log_probability, strict=True):
        targets = [part.partition("”")[0] for part in row["sentence_good"].split("“")[1:]]
        ids = [i for target in targets for i in tokenizer.encode(target, add_special_tokens=False)]
        points.append(tokenizer.unk_token_id not in ids and bool(better > worse))
    return points


@pytest.mark.parametrize("family", ["bert", "gpt2", "albert", "t5"])
def test_quoted_is_the_announced_rule(family: str, folder_of: Folders, tmp_path: Path) -> None:
    rows = rows_of(24)
    results = take(folder_of(family), rows, tmp_path, unknown_is_wrong="quoted")
    points = organisers_accuracy(folder_of(family), rows)
    assert results["accuracy"] == sum(points) / 24
    of_paradigm = [sum(points[k::3]) / 8 for k in range(3)]
    assert [row["accuracy"] for row in results["paradigms"]] == of_paradigm
    assert results["accuracy/macro"] == pytest.approx(sum(of_paradigm) / 3)
    assert results["unknown_pairs"] == (0 if family == "gpt2" else 12)  # GPT-2's bytes know all
    assert "between “ and ”" in results["definition"]


def test_only_the_quoted_text_counts(folder_of: Folders, tmp_path: Path) -> None:
    """The marks around it, which an English tokenizer does not know either, do not."""
    rows, folder = rows_of(8), folder_of("bert")
    without = take(folder, rows, tmp_path)
    assert "unknown_pairs" not in without
    assert without["unknown"] > 0
    known = [{**row, **swapped(row, "river")} for row in rows]
    quoted = take(folder, known, tmp_path, unknown_is_wrong="quoted")
    assert quoted["unknown_pairs"] == 0
    assert quoted["accuracy"] == take(folder, known, tmp_path)["accuracy"]
    anywhere = take(folder, known, tmp_path, unknown_is_wrong="anywhere")
    assert (anywhere["unknown_pairs"], anywhere["accuracy"]) == (8, 0.0)


def test_one_unknown_target_of_the_bad_sentence_is_enough(
    folder_of: Folders, tmp_path: Path
) -> None:
    row = {"sentence_good": "“bank” is “river”", "sentence_bad": "“bank” is “木”", "UID": "x"}
    results = take(folder_of("bert"), [row], tmp_path, unknown_is_wrong="quoted")
    assert (results["unknown_pairs"], results["accuracy"]) == (1, 0.0)


def test_pairs_that_quote_nothing(folder_of: Folders, tmp_path: Path) -> None:
    row = {"sentence_good": "the bank", "sentence_bad": "bank the", "UID": "x"}
    with pytest.raises(DataError, match="nothing between"):
        take(folder_of("bert"), [row], tmp_path, unknown_is_wrong="quoted")


def swapped(row: dict[str, str], target: str) -> dict[str, str]:
    of = {key: row[key] for key in ("sentence_good", "sentence_bad")}
    return {key: f"“{target}”{text.partition('”')[2]}" for key, text in of.items()}
