"""Every family, objective and task of the registry through all commands, in tiny sizes."""

import json
from pathlib import Path
from typing import Any

import pytest

from plmctl import registry
from plmctl.families.base import families
from tests.commands.conftest import NAMES, sentence
from tests.commands.walk import bound, walk, walk_task

pytestmark = pytest.mark.sweep

OF_PAPERS = {family.OBJECTIVE for family in families()}
OTHERS = [name for name in registry.names("objectives") if name not in OF_PAPERS]
TASKS: dict[str, dict[str, Any]] = {
    "classification": {},
    "lemmas": {"tags": "lemmas"},
    "multiple_choice": {"label": "right"},
    "parsing": {},
    "question_answering": {},
    "tagging": {},
    "text_to_text": {"source": "text", "target": "label"},
}


@pytest.fixture(scope="module")
def rows(world: Path) -> str:
    """Rows that every task of plmctl can read."""
    chosen = []
    for number in range(20):
        text = sentence(number)
        words = text.split()
        tags = ["B-PER" if word in NAMES else "O" for word in words]
        answer = {"text": [words[0]], "answer_start": [0]}
        row = {"text": text, "label": "ab"[number % 2], "tokens": words, "tags": tags}
        row |= {"lemmas": [word.lower().removesuffix("s") or word for word in words]}
        row |= {"head": list(range(len(words))), "deprel": ["root", *["dep"] * (len(words) - 1)]}
        row |= {"question": f"Who {words[1]}?", "context": text, "answers": answer}
        chosen.append(row | {"options": NAMES[:3], "right": number % 3})
    lines = "\n".join(map(json.dumps, chosen))
    (world / "tasks.jsonl").write_text(lines + "\n", encoding="utf-8")
    return "tasks.jsonl"


@pytest.mark.parametrize("name", [one.name for one in families() if one.SIZES])
def test_a_family_goes_through_all_commands(name: str, pretrained: dict[str, Path]) -> None:
    walk(name)


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
OF_ANY = {
    "xlm-roberta": SMALL
    | {"intermediate_size": 64, "max_position_embeddings": 64}
    | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "gemma2": SMALL | {"intermediate_size": 64, "num_key_value_heads": 2, "head_dim": 8},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "mbart": {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64}
    | {
        "decoder_ffn_dim": 64,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "dropout": 0.0,
    },
}


@pytest.mark.parametrize("name", OF_ANY)
def test_so_does_any_architecture(name: str, pretrained: dict[str, Path]) -> None:
    walk("auto", network={"architecture": name, **OF_ANY[name]})


@pytest.mark.parametrize("name", OTHERS)
def test_so_does_an_objective_that_is_no_paper_s_of_a_family(
    name: str, pretrained: dict[str, Path]
) -> None:
    objective = bound(name)
    terms, two = objective.LOSS_TERMS, objective.ENCODER_DECODER
    fitting = [
        one.name
        for one in families()
        if one.fits(terms, encoder_decoder=two, both_sides=objective.BOTH_SIDES)
    ]
    walk(fitting[0], name)


def test_so_does_deberta_with_a_generator(pretrained: dict[str, Path]) -> None:
    """Its third version: one family, two objectives of papers."""
    walk("deberta", "mlm+rtd")


@pytest.mark.parametrize("name", registry.names("tasks"))
def test_and_a_task(name: str, pretrained: dict[str, Path], rows: str) -> None:
    model = "gpt2" if "target" in TASKS[name] else "bert"
    walk_task({"name": name, **TASKS[name]}, f"done-{model}/model", rows)
