"""What a file becomes: defaults, units and frozen models; and back to YAML and compared."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from plmctl import registry
from plmctl.config.load import KINDS, Kind, difference, dump, kind_of, parse
from plmctl.config.units import StepsOrShare
from plmctl.errors import ConfigError
from plmctl.run.configs import PretrainConfig, TokenizerConfig, json_schema, load, model_of
from tests.config.conftest import LEAST


def file(folder: Path, text: str) -> Path:
    path = folder / "c.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def pretrain(folder: Path, *overrides: str) -> PretrainConfig:
    return load("pretrain", file(folder, LEAST["pretrain"]), overrides)


def test_the_example_of_the_design(tmp_path: Path) -> None:
    config = load(
        "pretrain",
        file(
            tmp_path,
            """\
run: runs/bert-mini
seed: 42
tokenizer: runs/tokenizers/wordpiece-8k
model: {family: bert, size: mini}
data: {train: ["corpus/*.txt"], valid: 1%}
objective: {name: mlm+nsp, masking: dynamic, rate: 0.15}
train:
  batch_size: 256
  micro_batch_size: auto
  phases: [{seq_len: 128, steps: 9000}, {seq_len: 512, steps: 1000}]
optim: {name: adamw, lr: 1e-4, betas: [0.9, 0.999], eps: 1e-6, weight_decay: 0.01, clip: 1.0}
schedule: {name: linear, warmup: 1000}
compute: {precision: bf16, compile: auto, attention: auto}
launch: {processes: auto, strategy: ddp}
checkpoint: {every: 500, keep: 3}
log: {every: 10, trackers: [tensorboard]}
""",
        ),
    )
    assert config.train.steps == 10_000
    assert config.optim.lr == 1e-4
    assert config.data.valid == 0.01
    assert config.data.train == ("corpus/*.txt",)
    assert config.schedule.warmup == StepsOrShare(1000)


@pytest.mark.parametrize("kind", KINDS)
def test_the_least_of_each_kind_loads_and_has_its_kind(tmp_path: Path, kind: Kind) -> None:
    path = file(tmp_path, LEAST[kind])
    assert kind_of(path) == kind
    assert load(kind, path).model_dump()["run"] == "r"


def test_what_is_no_config_of_any_kind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no config of plmctl"):
        kind_of(file(tmp_path, "name: CI\non: push\n"))


@pytest.mark.parametrize(("family", "objective"), [("bert", "mlm+nsp"), ("gpt2", "clm")])
def test_the_objective_left_out_is_the_papers(tmp_path: Path, family: str, objective: str) -> None:
    config = pretrain(tmp_path, f"model.family={family}")
    assert config.objective.name == objective
    assert config == pretrain(
        tmp_path, f"model.family={family}", f"objective={{name: {objective}}}"
    )


def test_finetunings_defaults_hold_key_by_key(tmp_path: Path) -> None:
    path = file(tmp_path, LEAST["finetune"])
    config = load("finetune", path, ["optim.clip=5", "schedule.name=cosine"])
    assert (config.optim.lr, config.optim.clip) == (3e-5, 5)
    assert config.schedule.warmup.of(200) == 20
    assert load("finetune", path).optim.lr == 3e-5


def test_configs_are_frozen(tmp_path: Path) -> None:
    config = pretrain(tmp_path)
    with pytest.raises(ValidationError):
        config.seed = 1  # type: ignore[misc]  # that it cannot be done is the point
    with pytest.raises(ValidationError):
        config.model.family = "gpt2"  # type: ignore[misc]  # likewise


def test_dump_is_short_yaml_with_units_resolved(tmp_path: Path) -> None:
    path = file(tmp_path, LEAST["tokenizer"].replace("]", "], max_bytes: 2GB"))
    dumped = dump(load("tokenizer", path))
    assert list(yaml.safe_load(dumped)) == list(TokenizerConfig.model_fields)
    assert dumped.startswith("run: r\nseed: 42\nalgorithm: wordpiece\n")
    assert "\nvocab_size: 8000\n" in dumped
    assert "\ndata:\n  train: [a.txt]\n  text: text\n" in dumped
    assert "\n  max_bytes: 2000000000\n" in dumped


# Names that some reader of YAML takes for a number, a truth, nothing or a comment.
TRICKY = ["1e-4", "yes", "off", "null", "~", "0x10", "0o7", "10_000", ".5", "1:30", "2024-01-31"]


TRICKY += [
    "- a",
    "a: b",
    "# c",
    "*x",
    "&y",
    "'",
    "a\nb",
    " a ",
    "真",
    "\U0001f600",
    "?\xa0\x85a\u2028b\n",
    ".inf",
    "=",
    "@",
]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)
@given(
    run=st.sampled_from(TRICKY)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
    lr=st.floats(1e-300, 1e38),
    warmup=st.integers(0, 10**12) | st.floats(0, 1),
    valid=st.none() | st.floats(0, 1, exclude_max=True) | st.just(("a", "1e3")),
)
def test_what_is_dumped_loads_as_the_same(
    tmp_path: Path, run: str, lr: float, warmup: float, valid: object
) -> None:
    before = pretrain(tmp_path)
    config = before.model_copy(
        update={
            "run": run,
            "optim": before.optim.model_copy(update={"lr": lr}),
            "schedule": before.schedule.model_copy(update={"warmup": StepsOrShare(warmup)}),
            "data": before.data.model_copy(update={"valid": valid}),
        }
    )
    path = file(tmp_path, dump(config))
    at_home = os.path.expanduser(run) if run == "~" or run.startswith("~/") else run
    assert parse(PretrainConfig, path) == config.model_copy(update={"run": at_home})
    # A reader of YAML 1.1 takes text for text, too.
    assert yaml.safe_load(dump(config))["run"] == run


def test_difference_names_keys_and_both_values(tmp_path: Path) -> None:
    before = pretrain(tmp_path)
    assert difference(before, pretrain(tmp_path)) == []
    after = pretrain(
        tmp_path,
        "optim.lr=2e-3",
        "data.train=[a.txt, b.txt]",
        "train.phases.0.steps=5",
        "model={family: gpt2}",
        "objective={name: mlm}",
    )
    lines = difference(before, after)
    assert "optim.lr: 0.0001 -> 0.002" in lines
    assert 'data.train: ["a.txt"] -> ["a.txt", "b.txt"]' in lines
    assert "train.phases.0.steps: 1000 -> 5" in lines
    assert "model.hidden_size: null -> (not there)" in lines
    assert "model.n_embd: (not there) -> null" in lines
    assert "objective.short_seq_prob: 0.1 -> (not there)" in lines


def test_parse_reads_a_known_model(tmp_path: Path) -> None:
    path = file(tmp_path, LEAST["tokenizer"])
    assert parse(TokenizerConfig, path) == load("tokenizer", path)


# The schema and the reference page say what the models say.


ROOT = Path(__file__).parents[2]


def schema(kind: Kind) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(json_schema(kind))
    return parsed


def mappings(schema: Any) -> Iterator[dict[str, Any]]:
    for definition in [schema, *schema.get("$defs", {}).values()]:
        if "properties" in definition:
            yield definition


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_but_the_models_keys(kind: Kind) -> None:
    definition = schema(kind)
    assert list(definition["properties"]) == list(model_of(kind).model_fields)
    for mapping in mappings(definition):
        of_transformers = "architecture" in mapping["properties"]
        assert mapping["additionalProperties"] is of_transformers
        assert mapping["description"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_of_plmctl_is_described(kind: Kind) -> None:
    definition = schema(kind)
    for name, mapping in {"": definition, **definition.get("$defs", {})}.items():
        # Members are their owners'; a network's fields have transformers' own names.
        if name == "Config" or name.startswith("plmctl__"):
            continue
        for key, field in mapping.get("properties", {}).items():
            assert "description" in field or "$ref" in field, f"{name}.{key}"


def test_a_member_needs_its_tag_and_has_its_keys() -> None:
    definition = schema("pretrain")
    union = definition["properties"]["model"]["discriminator"]
    assert union["propertyName"] == "family"
    assert tuple(union["mapping"]) == registry.names("families")
    for name, reference in union["mapping"].items():
        member = definition["$defs"][reference.removeprefix("#/$defs/")]
        assert "family" in member["required"]
        assert member["properties"]["family"]["const"] == name
        config = registry.load("families", name).Config
        assert list(member["properties"]) == list(config.model_fields)


def test_units_may_be_text() -> None:
    steps = schema("pretrain")["$defs"]["Phase"]["properties"]["steps"]
    number, empty = steps["anyOf"]  # no steps with a budget
    assert {part["type"] for part in number["anyOf"]} == {"integer", "string"}
    assert empty == {"type": "null"}


def test_an_unknown_kind() -> None:
    with pytest.raises(ConfigError, match=r"no kind of config 'pretrian'; did you mean 'pretrain'"):
        json_schema("pretrian")


def test_the_reference_page_is_up_to_date() -> None:
    script = str(ROOT / "scripts" / "config_reference.py")
    done = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
