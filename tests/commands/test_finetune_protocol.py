"""Several runs of one config: seeds, a grid, the choice on the validation rows."""

import json
import shutil
from pathlib import Path
from statistics import median, stdev

import pytest

from plmctl.commands.finetune_grid import protocol_runs
from plmctl.errors import ConfigError
from plmctl.metrics.statistics import spread
from plmctl.run.configs import FinetuneConfig, load
from tests.commands.conftest import Cli, write
from tests.commands.test_bad_input import finetune_config, refused


@pytest.fixture
def config(pretrained: dict[str, Path]) -> dict:
    fields = finetune_config(pretrained["bert"])
    fields["train"] |= {"epochs": 1}
    return fields


def loaded(fields: dict) -> FinetuneConfig:
    write("p.yaml", fields)
    return load("finetune", "p.yaml")


def test_every_combination_and_seed_is_a_run(config: dict) -> None:
    config |= {"run": "p", "grid": {"optim.lr": [5e-5, 3e-5], "train.batch_size": [16, 32]}}
    planned = protocol_runs(loaded(config), 3, grid=True)
    assert len(planned) == 12
    assert len({member.config.run for member in planned}) == 12
    first, last = planned[0].config, planned[-1].config
    assert first.run == "p/lr=5e-05,batch_size=16/seed=42"
    assert (last.optim.lr, last.train.batch_size, last.seed) == (3e-5, 32, 44)
    assert (first.grid, first.launch.processes) == ({}, 1)
    assert [m.config.run for m in protocol_runs(loaded(config), 2, grid=False)] == [
        "p/seeds/seed=42",
        "p/seeds/seed=43",
    ]


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"optim.lrr": [1e-5]}, "unknown key 'optim.lrr'"),
        ({"optimm.lr": [1e-5]}, "unknown key 'optimm.lr'"),
        ({"optim.lr": ["fast"]}, "optim.lr=fast"),
        ({"run": ["x"]}, "unknown key 'run'"),
    ],
)
def test_a_wrong_grid_is_refused_before_any_run(config: dict, grid: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        protocol_runs(loaded(config | {"run": "p", "grid": grid}), 1, grid=True)


def test_spread_by_hand() -> None:
    values = [0.5, 0.75, 0.625, 1.0]
    assert spread(values) == {
        "n": 4,
        "median": median(values),
        "mean": 0.71875,
        "std": pytest.approx(stdev(values)),
        "min": 0.5,
        "max": 1.0,
    }
    assert spread([0.5])["std"] == 0


def test_seeds_are_compared_and_kept(cli: Cli, config: dict) -> None:
    write("seeds.yaml", config | {"run": "many"})
    code, out, _ = cli("finetune", "seeds.yaml", "--seeds", "2", "--json")
    assert code == 0
    document = json.loads(out)
    (row,) = document["settings"]
    runs = {run: json.loads((Path(run) / "eval/valid.json").read_text()) for run in row["runs"]}
    assert row["runs"] == {run: doc["results"]["accuracy"] for run, doc in runs.items()}
    assert row["median"] == pytest.approx(median(row["runs"].values()))
    assert row["best"] == max(row["runs"].values())
    assert json.loads(Path("many/eval/protocol.json").read_text())["settings"] == [row]

    before = {run: (Path(run) / "events").read_text() for run in row["runs"]}
    shutil.rmtree("many/seeds/seed=43/model")
    code, out, err = cli("finetune", "seeds.yaml", "--seeds", "2", "--json")
    assert code == 0
    assert "1 of 2 runs are finished" in err
    assert json.loads(out) == document
    assert Path("many/seeds/seed=42/events").read_text() == before["many/seeds/seed=42"]


@pytest.mark.slow
def test_a_grid_in_two_processes_chooses_the_best(cli: Cli, config: dict) -> None:
    config["train"] |= {"epochs": 4, "metric": "accuracy"}
    write("grid.yaml", config | {"run": "grid", "grid": {"optim.lr": [0.003, 1e-9]}})
    code, out, err = cli("finetune", "grid.yaml", "--grid", "--jobs", "2", "--json")
    assert code == 0, err
    document = json.loads(out)
    first, second = (row["best"] for row in document["settings"])
    best = document["settings"][0 if first >= second else 1]
    assert document["chosen"] == best
    assert (Path(best["best_run"]) / "model" / "task.json").is_file()


def test_wrong_usage(cli: Cli, config: dict) -> None:
    write("no.yaml", config | {"run": "no"})
    refused(cli("finetune", "no.yaml", "--grid"), 2, "the config has no grid", "optim.lr")
    refused(cli("finetune", "no.yaml", "--seeds", "2", "--fresh"), 2, "--fresh")
    assert not Path("no").exists()
