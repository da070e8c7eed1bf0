"""The options of finetuning, through the command."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from transformers import AutoTokenizer

from plmctl.commands.evaluate import longest_trained
from plmctl.commands.finetune import LabelledExamples, single_answer
from plmctl.corpus.labelled import Split
from plmctl.tokenization.check import check_tokenizer
from tests.builders import json_lines
from tests.commands.conftest import NAMES, VERBS, Cli, run_main, write
from tests.commands.test_bad_input import finetune_config, refused


def config(pretrained: dict[str, Path], run: str, **train: object) -> dict:
    fields = finetune_config(pretrained["bert"]) | {"run": run, "optim": {"lr": 0.003}}
    fields["train"] |= {"epochs": 2, "batch_size": 16, **train}
    return fields


def test_the_rows_are_looked_at_first(cli: Cli, pretrained: dict[str, Path]) -> None:
    rows = [f"Anna sees Bela {n} times\t{n % 2}" for n in range(20)]
    Path("dup.tsv").write_text("text\tlabel\n" + "\n".join([*rows, rows[3]]) + "\n")
    Path("dup-valid.tsv").write_text("text\tlabel\n" + "\n".join(rows[5:9]) + "\nnew one\t1\n")
    fields = config(pretrained, "checked", epochs=1)
    fields["data"] = {"train": ["dup.tsv"], "valid": ["dup-valid.tsv"]}
    write("checked.yaml", fields)
    code, _, err = cli("finetune", "checked.yaml")
    assert code == 0
    assert "train: 21 rows, 1 duplicate (4.8%)" in err
    assert "4 validation rows have a text that is also in the training rows" in err
    assert "dup-valid.tsv:2 is dup.tsv:7" in err
    checks = json.loads(Path("checked/eval/data.json").read_text())
    assert checks["train"]["labels"] == {"1": 11, "0": 10}
    assert checks["leaks"]["rows"] == 4


def test_a_row_without_text_is_refused(cli: Cli, pretrained: dict[str, Path]) -> None:
    Path("empty.tsv").write_text("text\tlabel\na b\t0\n  \t1\nc d\t1\n")
    fields = config(pretrained, "never")
    fields["data"] = {"train": ["empty.tsv"], "valid": ["rows.tsv"]}
    write("empty.yaml", fields)
    refused(cli("finetune", "empty.yaml"), 3, "empty.tsv:3", "no text in 'text'")
    assert not Path("never").exists()


def judged(run: str) -> list[float]:
    records = json_lines(Path(run) / "metrics.jsonl")
    return [record["valid/judged"] for record in records if "valid/judged" in record]


def test_the_best_weights_are_kept_and_patience_ends_a_run(
    cli: Cli, pretrained: dict[str, Path]
) -> None:
    # A rate that destroys what was learnt, so that the last weights are not the best.
    fields = config(pretrained, "best", epochs=8, keep="best", patience=2, validate_every=4)
    fields["train"]["metric"] = "loss"
    fields["optim"]["lr"] = 0.05
    write("best.yaml", fields)
    code, out, _ = cli("finetune", "best.yaml", "--json")
    assert code == 0
    results, scores = json.loads(out), judged("best")
    assert results["steps"] < 8 * 180 // 16
    assert len(scores) * 4 == results["steps"]
    assert results["best_step"] == 4 * (scores.index(min(scores)) + 1)
    assert results["best_step"] == results["steps"] - 8
    best = load_file("best/best/model.safetensors")
    saved = load_file("best/model/model.safetensors")
    assert all((best[name] == saved[name]).all() for name in best)


def test_an_unknown_metric_names_those_there_are(cli: Cli, pretrained: dict[str, Path]) -> None:
    write("odd.yaml", config(pretrained, "odd", keep="best", metric="acuracy"))
    refused(cli("finetune", "odd.yaml"), 2, "train.metric", "did you mean 'accuracy'?")


def weights(run: str) -> dict:
    return load_file(f"{run}/model/model.safetensors")


def test_frozen_layers_stay_and_adapters_are_merged(cli: Cli, pretrained: dict[str, Path]) -> None:
    before = load_file(pretrained["bert"] / "model" / "model.safetensors")
    write("still.yaml", config(pretrained, "still", freeze=1))
    assert run_main("finetune", "still.yaml") == 0
    after = weights("still")
    same = {name for name in before if name in after and (before[name] == after[name]).all()}
    assert {n for n in after if ".embeddings." in n or ".layer.0." in n} <= same
    assert not any(".layer.1." in name and name.endswith("query.weight") for name in same)

    pytest.importorskip("peft", reason="the extra peft is not installed")
    write("lora.yaml", config(pretrained, "lora") | {"lora": {"rank": 4}})
    assert run_main("finetune", "lora.yaml") == 0
    after = weights("lora")
    assert after.keys() == weights("still").keys()
    changed = {n for n in before if n in after and (before[n] != after[n]).any()}
    assert changed
    assert all("query" in n or "value" in n or "pooler" in n for n in changed)
    assert json.loads(cli("predict", "lora/model", "Anna sees Bela.", "--json")[1])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["train.freeze=7"], "train.freeze: 7 of a model with 2 layers"),
        (["train.reinit_layers=3"], "train.reinit_layers: 3 of a model with 2 layers"),
        (["train.max_length=600"], "has positions for"),
        (["task.both_orders=true", "task.text=[a, b]"], "is not GPT-1"),
        (["task={name: question_answering, head: albert}"], "task.head: albert, for bert"),
        (["task={name: text_to_text}"], "cannot read one text and write another"),
    ],
)
def test_what_the_model_cannot_do_is_refused_before_rows_are_read(
    cli: Cli, pretrained: dict[str, Path], changes: list[str], words: str
) -> None:
    write("cannot.yaml", config(pretrained, "cannot") | {"grid": {"seed": [1, 2]}})
    absent = "data.train=[absent.tsv]"
    refused(cli("finetune", "cannot.yaml", absent, *changes), 2, words)
    refused(cli("finetune", "cannot.yaml", "--grid", absent, *changes), 2, words)
    assert not Path("cannot").exists()


def test_a_model_s_tokenizer_is_opened_once(
    cli: Cli, pretrained: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in pretrained.values():
        check_tokenizer(str(run / "model"))  # the ids are checked once a process, before it is used
    opened: list[str] = []
    open_any = AutoTokenizer.from_pretrained

    def counting(source: str, **options: object) -> object:
        opened.append(str(source))
        return open_any(source, **options)

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", counting)
    write("once.yaml", config(pretrained, "once", epochs=0.1))
    assert cli("finetune", "once.yaml")[0] == 0
    assert opened.count(str(pretrained["bert"] / "model")) == 1
    opened.clear()
    assert cli("predict", "once/model", "Anna sees Bela.")[0] == 0
    assert cli("predict", str(pretrained["gpt2"] / "model"), "Anna sees")[0] == 0
    assert cli("pretrain", "gpt2.yaml", "run=once-gpt2")[0] == 0
    for source in ("once/model", str(pretrained["gpt2"] / "model"), "tok-gpt2"):
        assert opened.count(source) == 1, source


@pytest.mark.slow
def test_a_run_cut_short_keeps_and_stops_as_one_that_was_not(
    cli: Cli, pretrained: dict[str, Path]
) -> None:
    fields = config(pretrained, "entire", epochs=8, keep="best", patience=2, validate_every=4)
    fields["train"] |= {"metric": "loss", "layer_decay": 0.8, "reinit_layers": 1}
    fields["optim"]["lr"] = 0.05
    fields["checkpoint"] = {"every": 3, "keep": 50}
    write("entire.yaml", fields)
    assert run_main("finetune", "entire.yaml") == 0
    steps = json.loads(Path("entire/eval/valid.json").read_text())["results"]["steps"]
    # As it lay on the disk when it was killed: before the best was found, and after it had ended.
    for before in (3, steps):
        shutil.copytree("entire", f"cut-{before}")
        for gone in ("model", *(() if before == steps else ("best",))):
            shutil.rmtree(Path(f"cut-{before}") / gone)
        for folder in Path(f"cut-{before}/checkpoints").glob("step-*"):
            if int(folder.name.removeprefix("step-")) > before:
                shutil.rmtree(folder)
        assert cli("finetune", "entire.yaml", f"run=cut-{before}")[0] == 0
        assert judged(f"cut-{before}") == judged("entire")
        after, reference = weights(f"cut-{before}"), weights("entire")
        assert all((after[name] == reference[name]).all() for name in reference)


def test_layers_learn_at_their_own_rates(pretrained: dict[str, Path]) -> None:
    fields = config(pretrained, "decayed", epochs=0.1, layer_decay=0.1, dropout=0.0)
    fields["optim"] = {"lr": 0.01, "weight_decay": 0.0, "eps": 1e-12}
    fields["schedule"] = {"warmup": 0, "name": "constant"}
    write("decayed.yaml", fields)
    assert run_main("finetune", "decayed.yaml") == 0
    # Adam's first update is the rate in every entry that has a gradient.
    before, after = (
        load_file(pretrained["bert"] / "model" / "model.safetensors"),
        weights("decayed"),
    )
    steps = json.loads(Path("decayed/eval/valid.json").read_text())["results"]["steps"]
    for depth, name in enumerate(["bert.embeddings.word", "bert.encoder.layer.0.output.dense.w"]):
        (key,) = (n for n in after if n.startswith(name))
        moved = (after[key] - before[key]).abs().max()
        rate = 0.01 * 0.1 ** (3 - depth)
        assert rate * 0.5 < moved <= rate * steps * 1.01


@pytest.mark.slow
def test_two_processes_judge_alike(cli: Cli, pretrained: dict[str, Path]) -> None:
    fields = config(pretrained, "one", epochs=1, keep="best", validate_every=5, dropout=0.0)
    write("one.yaml", fields)
    assert run_main("finetune", "one.yaml") == 0
    assert cli("finetune", "one.yaml", "run=two", "launch.processes=2")[0] == 0
    assert judged("two") == pytest.approx(judged("one"), abs=0.02)
    reference, other = weights("one"), weights("two")
    for name in reference:
        assert (reference[name] - other[name]).abs().max() < 1e-3, name


# Several validation sets, and rows without a gold label, through the commands.


def lines(path: str, start: int, stop: int, *, unlabelled: int) -> None:
    """Rows whose label follows from their verb; the first ones have none."""
    rows = []
    for n in range(start, stop):
        label = ("-", -1, None)[n % 3] if n - start < unlabelled else ("no", "yes")[n % 2]
        rows.append({"text": f"{NAMES[n % 10]} {VERBS[n % 2]} {NAMES[n % 7]}.", "label": label})
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def sets_config(world: Path, pretrained: dict[str, Path]) -> dict:
    lines("gold.jsonl", 0, 96, unlabelled=5)
    lines("near.jsonl", 100, 130, unlabelled=4)
    lines("far.jsonl", 200, 250, unlabelled=0)
    valid = {"near": ["near.jsonl"], "other": ["far.jsonl"]}
    return finetune_config(pretrained["bert"]) | {
        "run": "sets",
        "task": {"name": "classification", "unlabelled": "drop"},
        "data": {"train": ["gold.jsonl"], "valid": valid},
        "train": {"epochs": 2, "batch_size": 16, "max_length": 32, "keep": "best"},
    }


def test_all_sets_are_scored_and_the_first_one_judges(cli: Cli, sets_config: dict) -> None:
    write("sets.yaml", sets_config)
    code, out, err = cli("finetune", "sets.yaml", "--json")
    assert code == 0, err
    results = json.loads(out)
    assert (results["rows"], results["valid_rows"]) == (91, 26)
    assert "  5 rows without a gold label are left out" in err
    check = json.loads(Path("sets/eval/data.json").read_text())
    assert [check[name]["unlabelled"] for name in ("train", "near", "other")] == [5, 4, 0]
    assert [check[name]["rows"] for name in ("train", "near", "other")] == [91, 26, 50]
    first, second = (
        json.loads(Path(f"sets/eval/rows/{name}.json").read_text())["values"]
        for name in ("valid", "valid-other")
    )
    assert results["accuracy"] == pytest.approx(sum(first) / 26)
    assert results["other/accuracy"] == pytest.approx(sum(second) / 50)
    measured = {"name": "task", "data": ["near.jsonl"]}
    card = Path("sets/model/README.md").read_text()
    assert "- validation (other): `far.jsonl`" in card
    write(
        "ev.yaml",
        {
            "run": "ev-sets",
            "model": "sets/model",
            "measures": [measured],
            "compute": {"device": "cpu"},
        },
    )
    code, out, err = cli("eval", "ev.yaml", "--json")
    assert code == 0, err
    scored = json.loads(out)["results"]["task"]
    assert (scored["rows"], scored["unlabelled"]) == (26, 4)
    assert scored["accuracy"] == pytest.approx(results["accuracy"])
    code, out, err = cli("predict", "sets/model", "--input", "near.jsonl")
    assert code == 0, err
    assert len(out.splitlines()) == 30  # rows are answered whatever they say of themselves


def test_what_is_refused(cli: Cli, sets_config: dict) -> None:
    write("sets.yaml", sets_config)
    near = "{near: [near.jsonl]"
    for valid in ("{}", "{train: [near.jsonl]}", "{near: []}", "[]"):
        refused(cli("finetune", "sets.yaml", "run=x4", f"data.valid={valid}"), 2, "data.valid")
    refused(cli("finetune", "sets.yaml", "run=x4", f"data.valid={near}, a b: [x]}}"), 2, "a b")
    refused(
        cli("finetune", "sets.yaml", "run=x4", "task.unlabelled=refuse"),
        3,
        "gold.jsonl:3",
        "'label' is empty",
        "task.unlabelled=drop",
    )
    Path("none.jsonl").write_text('{"text": "a", "label": -1}\n')
    setting = "data.valid={near: [near.jsonl], none: [none.jsonl]}"
    refused(cli("finetune", "sets.yaml", "run=x4", setting), 3, "0 of none")
    assert not Path("x4").exists()


# What finetune and eval say of results that a user may misread.


@pytest.mark.parametrize(
    ("given", "right", "expected"),
    [
        (["a", "a", "a"], [0, 1, 0], "a"),
        (["a", "a", "a"], [0, 0, 0], None),
        (["a", "b", "a"], [0, 1, 0], None),
        ([["a"], ["a"]], [[1, 0], [0, 1]], None),
        ([0.5, 0.5], [1.0, 2.0], None),
    ],
)
def test_one_label_for_all_rows(given: list[Any], right: list[Any], expected: str | None) -> None:
    assert single_answer([{"prediction": one} for one in given], right) == expected


def test_rows_are_no_windows() -> None:
    check = {"train": {"rows": 3}, "valid": {"rows": 2}, "dropped": {"rows": 1}}
    examples: Any = [None] * 2
    rows = LabelledExamples(
        (), examples, {"valid": examples}, check, examples, {}, {}, Split([], {}, {})
    )
    assert rows.counts() == {"rows": 2, "valid_rows": 2}
    more: Any = [None] * 5
    cut = LabelledExamples(
        (), more, {"valid": examples}, check, examples, {}, {}, Split([], {}, {})
    )
    assert cut.counts() == {"rows": 2, "valid_rows": 2, "windows": 5, "valid_windows": 2}


def test_the_longest_phase_is_that_of_the_models_own_run(tmp_path: Path) -> None:
    phases = [{"seq_len": 64, "steps": 9}, {"seq_len": 128, "steps": 1}]
    (tmp_path / "model").mkdir()
    assert longest_trained(str(tmp_path / "model")) is None
    (tmp_path / "config.yaml").write_text(json.dumps({"train": {"phases": phases}}))
    assert longest_trained(str(tmp_path / "model")) == 128
    assert longest_trained(str(tmp_path)) == 128
    (tmp_path / "config.yaml").write_text(json.dumps({"train": {"epochs": 3}}))
    assert longest_trained(str(tmp_path / "model")) is None
