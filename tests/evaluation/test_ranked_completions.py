"""Ranked completions in the official formats of EWoK, COMPS and entity tracking, by hand."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from plmctl.config.load import find_config
from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.likelihood import Likelihood
from plmctl.evaluation.model import LoadedModel
from plmctl.measures.base import Measurement, get_measure
from plmctl.run.configs import load
from tests.commands.conftest import sentence
from tests.evaluation.models import opened

Folders = Callable[[str], Path]


def lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def short(number: int) -> str:
    """A few words: the small networks read few tokens."""
    return " ".join(sentence(number).split()[:3])


def ewok(number: int) -> list[dict[str, str]]:
    """An item as the official script writes it: twice, the second time exchanged."""
    one = {"Context1": short(number), "Target1": short(number + 7)}
    two = {"Context2": short(number + 3), "Target2": short(number + 11)}
    back = {"Context1": two["Context2"], "Target1": two["Target2"]}
    back |= {"Context2": one["Context1"], "Target2": one["Target1"]}
    domain = {"Domain": "first" if number % 3 else "second"}
    return [{**one, **two, **domain}, {**back, **domain}]


def take(config: str, folder: Path, data: list[str], **fields: Any) -> Measurement:
    """A measure of a shipped config, on these data."""
    (shipped,) = load("eval", find_config(Path("configs/eval") / config, ("eval",))).measures
    measure = get_measure(shipped.name)
    made = measure.Config.model_validate({**shipped.model_dump(), "data": data, **fields})
    return measure(made).measure(opened(folder), 7)


def causal(model: LoadedModel, context: str, completion: str) -> float:
    """The sum over the completion's tokens of log p(token | those before it, without a begin)."""
    (whole,), (bare,) = model.tokens([[context + completion]]), model.tokens([[context]])
    assert list(whole.ids[: len(bare.ids)]) == list(bare.ids)
    with torch.inference_mode():
        logits = model.generator(torch.from_numpy(whole.ids[None])).logits[0]
    log_probs = logits.float().log_softmax(-1)
    return sum(
        float(log_probs[place - 1, whole.ids[place]])
        for place in range(len(bare.ids), len(whole.ids))
    )


def masked(model: LoadedModel, context: str, completion: str) -> float:
    """The sum over the completion's tokens of log p(token | all others), one masked at once."""
    (whole,), (bare,) = model.tokens([[context + completion]]), model.tokens([[context]])
    ids = [model.special("cls"), *whole.ids.tolist(), model.special("sep")]
    total = 0.0
    for place in range(1 + len(bare.ids), len(ids) - 1):
        row = torch.tensor([ids])
        row[0, place] = model.special("mask")
        with torch.inference_mode():
            logits = model.network(("mlm",)).model(row).logits[0, place]
        total += float(logits.float().log_softmax(-1)[ids[place]])
    return total


@pytest.mark.parametrize(("family", "score"), [("gpt2", causal), ("bert", masked)])
def test_ewok_compares_targets_and_contexts(
    family: str, score: Callable[..., float], folder_of: Folders, tmp_path: Path
) -> None:
    rows = [row for number in range(8) for row in ewok(number)]
    found = take("babylm/ewok.yaml", folder_of(family), [lines(tmp_path / "all.jsonl", rows)])
    model = opened(folder_of(family))
    targets, contexts, chosen = [], [], []
    for row in rows:
        own = score(model, row["Context1"], " " + row["Target1"])
        other = score(model, row["Context1"], " " + row["Target2"])
        targets.append(own > other)
        contexts.append(own > score(model, row["Context2"], " " + row["Target1"]))
        context = row["Context1" if contexts[-1] else "Context2"]
        chosen.append(f"{context} {row['Target1']}")
    results = found.results
    assert results["accuracy"] == sum(contexts) / 16
    assert results["accuracy/targets"] == sum(targets) / 16
    of_domain = {}
    for domain in ("second", "first"):
        of = [hit for hit, row in zip(contexts, rows, strict=True) if row["Domain"] == domain]
        of_domain[domain] = sum(of) / len(of)
        predicted = [c for c, row in zip(chosen, rows, strict=True) if row["Domain"] == domain]
        assert found.predictions[domain] == predicted
    assert {r["paradigm"]: r["accuracy"] for r in results["paradigms"]} == of_domain
    assert results["accuracy/macro"] == pytest.approx(sum(of_domain.values()) / 2)
    errors = [row["accuracy_se"] for row in results["paradigms"]]
    assert results["accuracy_se/macro"] == pytest.approx(math.hypot(*errors) / 2)
    assert 0 < sum(contexts) < 16  # the test can tell
    assert (results["items"], results["ties"], results["cut"]) == (16, 0, 0)
    assert results["chance"] == 0.5


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_comps_is_one_property_of_two_concepts(
    family: str, folder_of: Folders, tmp_path: Path
) -> None:
    rows = [
        {
            "prefix_acceptable": short(number),
            "prefix_unacceptable": short(number + 5),
            "property_phrase": "sees it.",
        }
        for number in range(6)
    ]
    names = ("comps_base", "comps_wugs_dist-in-between")
    data = [lines(tmp_path / f"{name}.jsonl", rows[n::2]) for n, name in enumerate(names)]
    found = take("babylm/comps.yaml", folder_of(family), data)
    model, score = opened(folder_of(family)), causal if family == "gpt2" else masked
    hits = {}
    for row in rows:
        good, bad = (
            score(model, row[f"prefix_{kind}"], " " + row["property_phrase"])
            for kind in ("acceptable", "unacceptable")
        )
        hits[row["prefix_acceptable"]] = good > bad
    right = [hits[row["prefix_acceptable"]] for row in (*rows[::2], *rows[1::2])]
    assert found.results["accuracy"] == sum(right) / 6
    assert list(found.predictions) == ["base", "wugs_dist_in_between"]
    # Both candidates have the same completion: the prediction is the sentence.
    prefix = rows[0]["prefix_acceptable" if right[0] else "prefix_unacceptable"]
    assert found.predictions["base"][0] == f"{prefix} {rows[0]['property_phrase']}"


@pytest.mark.parametrize("family", ["gpt2", "roberta", "t5"])
def test_entity_tracking_ranks_a_list(family: str, folder_of: Folders, tmp_path: Path) -> None:
    rows = [
        {
            "input_prefix": f"{short(number)} Box {number} has",
            "options": [f" {short(number + n)}" for n in (1, 4, 9)],
            "numops": number % 2,
        }
        for number in range(8)
    ]
    data = [lines(tmp_path / "regular.jsonl", rows)]
    found = take("babylm/entity-tracking.yaml", folder_of(family), data)
    assert [row["paradigm"] for row in found.results["paradigms"]] == [
        "regular_0_ops", "regular_1_ops",
    ]  # fmt: skip
    assert found.results["chance"] == pytest.approx(1 / 3)
    chosen = found.predictions["regular_0_ops"] + list(found.predictions["regular_1_ops"])
    own = [row["options"] for row in (*rows[::2], *rows[1::2])]
    assert all(text in options for text, options in zip(chosen, own, strict=True))
    right = [text == options[0] for text, options in zip(chosen, own, strict=True)]
    assert found.results["accuracy"] == sum(right) / 8
    if family != "gpt2":
        return
    model = opened(folder_of(family))
    for row in rows:
        scores = [causal(model, row["input_prefix"], option) for option in row["options"]]
        assert row["options"][scores.index(max(scores))] == chosen[own.index(row["options"])]


@pytest.mark.parametrize(("family", "score"), [("gpt2", causal), ("bert", masked)])
@pytest.mark.parametrize("per", ["token", "character"])
def test_global_piqa_is_by_the_mean_over_tokens(
    family: str, score: Callable[..., float], per: str, folder_of: Folders, tmp_path: Path
) -> None:
    solutions = [" ".join(sentence(n).split()[: 1 + n % 4]) for n in range(20)]
    rows = [
        {
            "prompt": f"{short(n)} and",
            **{f"solution{k}": solutions[n + 3 * k] for k in range(4)},
            "label": n % 4,
            "example_id": f"item_{n}",
        }
        for n in range(8)
    ]
    data = [lines(tmp_path / "eng_latn.jsonl", rows)]
    found = take("babylm/global-piqa.yaml", folder_of(family), data, per=per)
    model = opened(folder_of(family))
    right = 0
    for row in rows:
        options = [row[f"solution{k}"] for k in range(4)]
        (bare, *whole) = model.tokens(
            [[row["prompt"]], *([f"{row['prompt']} {o}"] for o in options)]
        )
        sizes = [len(one.ids) - len(bare.ids) for one in whole]
        sizes = sizes if per == "token" else [len(option) for option in options]
        means = [
            score(model, row["prompt"], f" {option}") / size
            for option, size in zip(options, sizes, strict=True)
        ]
        best = means.index(max(means))
        right += best == row["label"]
        assert found.predictions[row["example_id"]] == [options[best]]
    assert found.results["accuracy"] == right / 8
    assert found.results["chance"] == 0.25
    rows[0]["label"] = 4
    lines(Path(data[0]), rows)
    with pytest.raises(DataError, match=r"eng_latn.jsonl:1: column 'label' is '4'.*0 to 3"):
        take("babylm/global-piqa.yaml", folder_of(family), data)


def test_items_with_an_empty_box_are_left_out(
    folder_of: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [[" it.", " him."], [" it.", " nothing."], [" nothing", " it."], [" nothings", " a."]]
    rows = [{"input_prefix": "He sees", "options": of, "numops": 0} for of in options]
    data = [lines(tmp_path / "regular.jsonl", rows)]
    found = take("babylm/entity-tracking.yaml", folder_of("gpt2"), data).results
    assert (found["items"], found["left_out"]) == (2, 2)
    assert "2 items are left out, which have 'nothing' in a completion" in capsys.readouterr().err
    lines(Path(data[0]), rows[1:3])
    with pytest.raises(DataError, match="every item has the word 'nothing'"):
        take("babylm/entity-tracking.yaml", folder_of("gpt2"), data)


def test_equal_candidates_are_ties_and_wrong(folder_of: Folders, tmp_path: Path) -> None:
    row = {"input_prefix": "He sees", "options": [" it.", " it."], "numops": 0}
    data = [lines(tmp_path / "regular.jsonl", [row, row])]
    found = take("babylm/entity-tracking.yaml", folder_of("gpt2"), data).results
    assert (found["accuracy"], found["ties"]) == (0.0, 2)


def test_what_is_refused(folder_of: Folders, tmp_path: Path) -> None:
    data = [lines(tmp_path / "all.jsonl", ewok(1))]
    with pytest.raises(ConfigError, match="does not support elmo"):
        take("babylm/ewok.yaml", folder_of("elmo"), data)
    with pytest.raises(DataError, match=r"all\.jsonl:1: no column 'prefix_acceptable'"):
        take("babylm/comps.yaml", folder_of("gpt2"), data)
    with pytest.raises(DataError, match="has no list of two completions"):
        take(
            "babylm/entity-tracking.yaml",
            folder_of("gpt2"),
            data,
            context="{Context1}",
            options="Domain",
            paradigm="{file}",
        )
    for fields in (
        {},
        {"options": "x"},
        {"rankings": {"a": [["{x}", "y"]]}},
        {"rankings": {"a": [["{x}", "y"], ["{x}", "z"]]}, "without": "w"},
    ):
        with pytest.raises(ValidationError):
            get_measure("ranked_completions").Config.model_validate({"data": data, **fields})


def test_pairs_by_paradigm_and_group(folder_of: Folders, tmp_path: Path) -> None:
    rows = []
    for number in range(12):
        words = sentence(number).split()
        rows.append(
            {
                "sentence_good": " ".join(words),
                "sentence_bad": " ".join(words[::-1]),
                "UID": f"p{number % 3}",
                "linguistics_term": ("binding", "s-selection", "argument_structure")[number % 3],
            }
        )
    found = take("babylm/blimp.yaml", folder_of("gpt2"), [lines(tmp_path / "a.jsonl", rows)])
    model = Likelihood.of(opened(folder_of("gpt2")))
    good, bad = (
        model.score_sentences([row[f"sentence_{kind}"] for row in rows]).log_probability
        for kind in ("good", "bad")
    )
    right = [bool(a > b) for a, b in zip(good, bad, strict=True)]
    means = [sum(right[n::3]) / 4 for n in range(3)]
    results = found.results
    assert [row["accuracy"] for row in results["paradigms"]] == means
    assert results["accuracy/macro"] == pytest.approx(sum(means) / 3)
    groups = {row["group"]: (row["accuracy"], row["items"]) for row in results["groups"]}
    assert groups == {
        "binding": (means[0], 4),
        "argument_structure": ((means[1] + means[2]) / 2, 8),
    }
    expected = (means[0] + (means[1] + means[2]) / 2) / 2
    assert results["accuracy/linguistics_term"] == pytest.approx(expected)
    assert found.predictions["p1"] == [
        row["sentence_good" if hit else "sentence_bad"]
        for row, hit in zip(rows[1::3], right[1::3], strict=True)
    ]


def test_multiblimp_by_language(folder_of: Folders, tmp_path: Path) -> None:
    data = []
    for language in ("eng", "nld"):
        path = tmp_path / language / "data.tsv"
        path.parent.mkdir()
        text = "".join(f"{sentence(n)}\t{sentence(n)} it\tSV-#\n" for n in range(3))
        path.write_text(f"sen\twrong_sen\tphenomenon\n{text}", encoding="utf-8")
        data.append(str(path))
    found = take("multiblimp.yaml", folder_of("bert"), data).results
    assert [row["paradigm"] for row in found["paradigms"]] == ["eng", "nld"]
    assert found["pairs"] == 6
