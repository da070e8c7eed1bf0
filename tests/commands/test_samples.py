"""Samples of a pretraining: the same few texts at each validation, in samples.jsonl."""

import json
from pathlib import Path

import pytest

from tests.builders import json_lines
from tests.commands.conftest import Cli, pretrain_config, run_in_two, write

T5 = {"family": "t5", "size": "tiny", "d_model": 32, "d_ff": 48, "num_heads": 1}
LOG = {"every": 1, "validate_every": 2, "validate_samples": 8}
TIMED = ("tokens_per_second", "samples_per_second", "data_wait", "memory_gb", "time")


def config(family: str, run: str, **log: int) -> str:
    """The name of the file of a pretraining with dropout and an average, whose steps are six."""
    document = pretrain_config(family) | {"run": run, "log": {**LOG, **log}}
    document["checkpoint"] = {"every": 3, "keep": 9}
    document["train"] = {**document["train"], "average": {"name": "ema", "decay": 0.9}}
    write(f"{run}.yaml", document)
    return f"{run}.yaml"


def records(run: Path) -> list[dict]:
    lines = json_lines(run / "metrics.jsonl")
    return [{key: line[key] for key in line if key not in TIMED} for line in lines]


@pytest.mark.parametrize(("family", "kind"), [("bert", "fill-mask"), ("gpt2", "generation")])
def test_samples_change_nothing_and_survive_a_stop(
    cli: Cli, world: Path, family: str, kind: str
) -> None:
    whole, cut, without = (world / f"{family}-{name}" for name in ("whole", "cut", "without"))
    assert cli("pretrain", config(family, whole.name))[0] == 0
    lines = json_lines(whole / "samples.jsonl")
    assert [(line["step"], line["kind"]) for line in lines] == [(n, kind) for n in (2, 4, 6)]
    prompts = [[item.get("prompt") or item["text"] for item in line["items"]] for line in lines]
    assert prompts[0]
    assert prompts == prompts[:1] * 3
    if kind == "fill-mask":
        assert all("[MASK]" in prompt for prompt in prompts[0])
        assert lines[0]["items"][0]["predictions"] != lines[2]["items"][0]["predictions"]
        # The last line is of the weights of the model folder: the average.
        end = json.loads((whole / "eval" / "samples.json").read_text())
        assert end["items"] == [
            {
                **item,
                "predictions": [
                    {**guess, "score": pytest.approx(guess["score"], abs=2e-4)}
                    for guess in item["predictions"]
                ],
            }
            for item in lines[-1]["items"]
        ]
    assert cli("pretrain", config(family, cut.name), "--until=5")[0] == 75
    with (cut / "samples.jsonl").open("a") as file:
        file.write('{"step": 6, "kind": "gen')  # killed while it wrote
    assert cli("pretrain", f"{cut.name}.yaml")[0] == 0
    assert (cut / "samples.jsonl").read_bytes() == (whole / "samples.jsonl").read_bytes()

    assert cli("pretrain", config(family, without.name, samples=0))[0] == 0
    assert not (without / "samples.jsonl").exists()
    assert not (without / "eval" / "samples.json").exists()
    assert records(without) == records(whole) == records(cut)
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        first = (whole / "model" / name).read_bytes()
        assert (without / "model" / name).read_bytes() == first


def test_texts_that_are_longer_than_the_network(cli: Cli, world: Path) -> None:
    """They are cut; those that lose their mask are left out."""
    name = config("bert", "short")
    more = ("train.phases=[{seq_len: 8, steps: 2}]", "model.max_position_embeddings=8")
    code, _, err = cli("pretrain", name, *more)
    assert code == 0, err
    (line,) = json_lines(world / "short" / "samples.jsonl")
    end = json.loads((world / "short" / "eval" / "samples.json").read_text())
    assert len(end["items"]) == len(line["items"]) < 6


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_write_one_file(world: Path, tmp_path: Path, strategy: str) -> None:
    name = config("gpt2", f"two-{strategy}")
    more = ("compute.device=cpu", f"launch.strategy={strategy}")
    if strategy == "fsdp":
        more = (*more, "optim.name=adamw")
    run_in_two(tmp_path, "pretrain", name, *more)
    lines = json_lines(world / f"two-{strategy}" / "samples.jsonl")
    assert [line["step"] for line in lines] == [2, 4, 6]
