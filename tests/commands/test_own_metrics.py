"""``task.metrics``: a user's own metric file beside plmctl's, through the command."""

import json
import re
from pathlib import Path

import pytest

from tests.commands.conftest import Cli, write
from tests.commands.test_bad_input import finetune_config, refused

PAGE = Path(__file__).parents[2] / "docs" / "finetuning.md"


@pytest.fixture
def metric(world: Path) -> str:
    """The file that docs/finetuning.md prints."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (world / "my_metric.py").write_text(block, encoding="utf-8")
    return block


def config(pretrained: dict[str, Path], run: str, *metrics: str) -> str:
    fields = finetune_config(pretrained["bert"]) | {"run": run}
    fields["task"]["metrics"] = list(metrics)
    write("metrics.yaml", fields)
    return "metrics.yaml"


def test_own_and_named_metrics_are_the_results(
    cli: Cli, pretrained: dict[str, Path], metric: str
) -> None:
    path = config(pretrained, "metrics", "accuracy", "f1", "./my_metric.py")
    code, out, err = cli("finetune", path, "--json", "train.keep=best", "train.metric=errors")
    assert code == 0, err
    results = json.loads(out)
    assert results["errors"] == round((1 - results["accuracy"]) * results["valid_rows"])
    assert 0 <= results["f1"] <= 1
    assert results["accuracy_low"] <= results["accuracy"] <= results["accuracy_high"]
    assert "matthews" not in results
    saved = json.loads(Path("metrics/eval/valid.json").read_text())
    assert set(saved["uncertainty"]) == {"accuracy", "f1"}


def test_metrics_that_cannot_be_computed_are_refused_before_training(
    cli: Cli, pretrained: dict[str, Path], metric: str
) -> None:
    path = config(pretrained, "never", "acuracy")
    refused(cli("finetune", path), 2, "task.metrics", "did you mean 'accuracy'", "squad_v2", ".py")
    path = config(pretrained, "never", "bleu")
    refused(cli("finetune", path), 2, "task.metrics: 'bleu' is for", "'text'", "matthews_corr")
    path = config(pretrained, "never", "./there.py")
    refused(cli("finetune", path), 2, "task.metrics: no file 'there.py'")
    Path("none.py").write_text("import evaluate\n")
    path = config(pretrained, "never", "./none.py")
    refused(cli("finetune", path), 2, "none.py has 0 subclasses of evaluate.Metric")
    Path("broken.py").write_text("import no_such_package\n")
    path = config(pretrained, "never", "./broken.py")
    refused(cli("finetune", path), 2, "broken.py: ModuleNotFoundError", "no_such_package")
    Path("raises.py").write_text(metric.replace("return {", "raise ValueError('a bug')\n        {"))
    path = config(pretrained, "never", "./raises.py")
    refused(cli("finetune", path), 2, "raises.py: ValueError: a bug", "predictions are such as [")
    assert not Path("never").exists()


def test_a_metric_of_the_hub_needs_the_network_once(
    cli: Cli, pretrained: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import evaluate.config

    monkeypatch.setattr(evaluate.config, "HF_EVALUATE_OFFLINE", True)
    monkeypatch.setattr(evaluate.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)
    path = config(pretrained, "never", "hf:nobody/no-metric")
    refused(cli("finetune", path), 2, "hf:nobody/no-metric: ", "needs the network")
    Path("local/metric").mkdir(parents=True)
    Path("local/metric/metric.py").write_text("import evaluate\nimport no_such_package\n")
    monkeypatch.setattr("plmctl.hub.unavailable", lambda name, kind: None)
    path = config(pretrained, "never", "hf:local/metric")
    refused(cli("finetune", path), 2, "no_such_package", "install what it needs")


def test_code_that_a_folder_names_is_not_run(
    cli: Cli, pretrained: dict[str, Path], metric: str
) -> None:
    assert cli("finetune", config(pretrained, "own", "./my_metric.py"))[0] == 0
    task = json.loads(Path("own/model/task.json").read_text())
    assert task["task"]["metrics"] == ["./my_metric.py"]
    measure = {"name": "task", "data": ["rows.tsv"]}
    for name in ("./my_metric.py", "hf:nobody/metric", "own/model/evil.py"):
        task["task"]["metrics"] = [name]
        Path("own/model/task.json").write_text(json.dumps(task))
        write("ev.yaml", {"run": "ev", "model": "own/model", "measures": [measure]})
        refused(cli("eval", "ev.yaml"), 2, "own/model/task.json: its metric", name)
    measure["metrics"] = ["./my_metric.py"]
    write("ev.yaml", {"run": "ev2", "model": "own/model", "measures": [measure]})
    code, out, err = cli("eval", "ev.yaml", "--json")
    assert code == 0, err
    assert "errors" in out
    assert cli("predict", "own/model", "Anna sees Bela.")[0] == 0
    refused(cli("reproduce", "own"), 2, "own/config.yaml: its metric", "my_metric.py")
