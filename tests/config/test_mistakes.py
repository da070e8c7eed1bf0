"""Every mistake of a file at once: where it is, at which key, and what was expected."""

import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plmctl import registry
from plmctl.config.document import to_yaml
from plmctl.config.load import KINDS, Kind, dump, parse
from plmctl.errors import ConfigError
from plmctl.run.configs import load
from tests.config.conftest import LEAST, Mistakes

MANY = """\
run: ""
tokenizer: t
model: {family: bret, size: tiny}
data:
  train: a.txt
  valid: 5x
  sentnces: en
objective: {rate: 0.2}
train:
  batch_size: "32"
  batch_size: 2.5
  phases:
  - {seq_len: 64}
  - {seq_len: 4, steps: ten}
optim: {lr: -1, betas: [0.9, 1.5], clip: .nan}
schedule: {name: lineer, warmup: 6}
compute: {compile: maybe, workers: -1}
sede: 1
"""


def test_all_mistakes_of_a_file_come_at_once_in_its_order(mistakes: Mistakes) -> None:
    assert mistakes("pretrain", MANY, "optim.lrr=1", "log=10") == [
        'c.yaml:1:1: run: expected a text that is not empty, not ""',
        "c.yaml:3:9: model.family: unknown name \"bret\"; did you mean 'bert'?",
        'c.yaml:5:3: data.train: expected a list, as in [a, b], not "a.txt"',
        "c.yaml:6:3: data.valid: expected a share such as 1% or 0.01, or a list, as in [a, b], "
        'not "5x"',
        "c.yaml:7:3: data.sentnces: unknown key; did you mean 'sentences'?",
        f"c.yaml:8:1: objective: needs `name:`; one of {', '.join(registry.names('objectives'))}",
        "c.yaml:11:3: train.batch_size: expected a whole number, not 2.5",
        "c.yaml:11:3: train.batch_size: this key is here twice",
        "c.yaml:13:5: train.phases.0.steps: this key is needed",
        "c.yaml:14:6: train.phases.1.seq_len: expected 8 or more, not 4",
        "c.yaml:14:18: train.phases.1.steps: expected a whole number such as 10_000, 10k or 2B, "
        'not "ten"',
        "c.yaml:15:9: optim.lr: expected more than 0, not -1",
        "c.yaml:15:30: optim.betas.1: expected less than 1, not 1.5",
        "c.yaml:15:36: optim.clip: expected a finite number, not NaN",
        "c.yaml:16:12: schedule.name: expected 'linear', 'cosine', 'constant', 'inverse_sqrt', "
        "'wsd' or 'polynomial', not \"lineer\"; did you mean 'linear'?",
        "c.yaml:17:11: compute.compile: expected true or false, or 'auto', 'layers' or "
        "'reduce-overhead', not \"maybe\"",
        "c.yaml:17:27: compute.workers: expected 0 or more, or 'auto', not -1",
        "c.yaml:18:1: sede: unknown key; did you mean 'seed'?",
        "override optim.lrr=1: optim.lrr: unknown key; did you mean 'lr'?",
        "override log=10: log: expected keys with values, as in {key: value}, not 10",
    ]


@pytest.mark.parametrize(
    ("kind", "override", "expected"),
    [
        ("pretrain", "seed='1'", 'seed: expected a whole number, not "1"'),
        ("pretrain", "seed=true", "seed: expected a whole number, not true"),
        ("pretrain", "seed=1.0", "seed: expected a whole number, not 1.0"),
        ("pretrain", "run=null", "run: expected text, not null"),
        ("pretrain", "run=", 'run: expected a text that is not empty, not ""'),
        ("pretrain", "optim.lr=fast", 'optim.lr: expected a number, not "fast"'),
        ("pretrain", "optim.lr=.inf", "optim.lr: expected a finite number, not Infinity"),
        (
            "pretrain",
            "compute.attention=varlen",
            'compute.attention: "varlen" was removed; use "auto"',
        ),
        ("pretrain", "optim.betas=[0.9]", "optim.betas: expected more items, not [0.9]"),
        (
            "pretrain",
            "optim.betas=[0.9, 0.99, 0.999]",
            "optim.betas: expected 2 items or fewer, not [0.9, 0.99, 0.999]",
        ),
        ("pretrain", "train.phases=[]", "train.phases: expected 1 or more items, not []"),
        ("pretrain", "data.valid=[a, {}]", "data.valid.1: expected text, not {}"),
        ("pretrain", "data.valid=1.5", "data.valid: expected less than 1, or a list, as in [a, b]"),
        ("pretrain", "compute.compile=1", "compute.compile: expected true or false, or 'auto'"),
        ("pretrain", "compute.compile=yes", "compute.compile: expected true or false, or 'auto'"),
        (
            "pretrain",
            "schedule.warmup=2.5",
            "schedule.warmup: expected steps such as 1000, a share such as 6%, or tokens such as "
            "375M tokens, not 2.5",
        ),
        (
            "finetune",
            "schedule.warmup=5k tokens",
            "schedule.warmup: expected steps such as 1000, or a share such as 6%",
        ),
        ("pretrain", "schedule.decay_until=0", "schedule.decay_until: expected more than 0"),
        (
            "pretrain",
            "train.batch_ramp={start: 300, tokens: 1k}",
            "train.batch_ramp: expected a start no larger than the batch size, 256",
        ),
        (
            "pretrain",
            "objective={name: mlm, mask_share: 0.9, random_share: 0.2}",
            "objective: mask_share and random_share add up to more than 1",
        ),
        ("pretrain", "objective=mlm", "objective: expected keys with values, as in {key: value}"),
        ("pretrain", "objective={name: [1]}", "objective.name: unknown name [1]; one of: "),
        ("pretrain", "objective={name: mlm, rat: 1}", "rat: unknown key; did you mean 'rate'?"),
        ("pretrain", "model.sizes=1", "model.sizes: unknown key; did you mean 'size'?"),
        ("finetune", "task={}", "task: needs `name:`; one of classification"),
        ("finetune", "task.name=classificatio", "did you mean 'classification'?"),
        ("finetune", "init=scratch", "init: expected 'pretrained' or 'random', not \"scratch\""),
        ("eval", "measures.0.rate=2", "measures.0.rate: expected less than 1, not 2"),
        ("eval", "measures.0.name=mlms", 'measures.0.name: unknown name "mlms"; did you mean'),
        ("eval", "measures.0.seqlen=1", "seqlen: unknown key; did you mean 'seq_len'?"),
        ("eval", "measures=[{data: [a]}]", "measures.0: needs `name:`; one of "),
        ("tokenizer", "data.max_bytes=2G", "data.max_bytes: expected a size such as 500MB or 2GB"),
        ("tokenizer", "vocab_size=10", "vocab_size: expected 100 or more, not 10"),
        (
            "finetune",
            "task.text=",
            "task.text: expected a text that is not empty",
        ),
        (
            "finetune",
            "grid.optim.lr=[1e-3,3e-4]",
            "; name the whole key: grid='{optim.lr: [0.001, 0.0003]}'",
        ),
    ],
)
def test_one_mistake(mistakes: Mistakes, kind: Kind, override: str, expected: str) -> None:
    [line] = mistakes(kind, LEAST[kind], override)
    assert line.startswith(f"override {override[:57]}")
    assert expected in line


def test_a_misspelt_key_that_is_needed_is_one_mistake(mistakes: Mistakes) -> None:
    text = LEAST["pretrain"].replace("run:", "rnu:").replace("train: [", "trin: [")
    assert mistakes("pretrain", text) == [
        "c.yaml:1:1: rnu: unknown key; did you mean 'run'?",
        "c.yaml:4:8: data.trin: unknown key; did you mean 'train'?",
    ]


def test_a_key_that_is_needed(mistakes: Mistakes) -> None:
    text = LEAST["finetune"].replace("run: r\n", "").replace("train: [a.csv]", "valid: 1%")
    assert mistakes("finetune", text) == [
        "c.yaml: run: this key is needed",
        "c.yaml:3:1: data.train: this key is needed",
    ]


def test_an_unknown_key_far_from_all_lists_them(mistakes: Mistakes) -> None:
    [line] = mistakes("pretrain", LEAST["pretrain"] + "checkpoint: {zzz: 1}\n")
    known = "every, keep, keep_every, at, keep_best, background"
    assert line == f"c.yaml:6:14: checkpoint.zzz: unknown key; one of: {known}"


def test_a_long_value_is_shortened(mistakes: Mistakes) -> None:
    [line] = mistakes("pretrain", LEAST["pretrain"] + f"seed: {'x' * 500}\n")
    assert len(line) < 120


def test_a_config_for_another_command(mistakes: Mistakes) -> None:
    assert mistakes("pretrain", LEAST["tokenizer"]) == [
        "c.yaml: this config is for another command"
    ]


def test_an_unknown_key_that_is_called_as_its_branch(mistakes: Mistakes) -> None:
    text = "run: r\nmodel: m\nmeasures:\n- {name: mlm, data: [a], mlm: {a: 1}}\n"
    (line,) = mistakes("eval", text)
    assert line.startswith("c.yaml:4:26: measures.0.mlm: unknown key; one of: name, data, ")


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        (
            "{budget: 2h, phases: [{seq_len: 64, steps: 5}]}",
            "train.phases.0.steps: `train.budget` decides the steps",
        ),
        (
            "{phases: [{seq_len: 64, steps: 5, share: 1}]}",
            "train.phases.0.share: a share needs `train.budget`",
        ),
        (
            "{budget: 2h, phases: [{seq_len: 64, share: 0.5}, {seq_len: 128}]}",
            "each of several phases needs a `share`",
        ),
        (
            "{budget: 2h, phases: [{seq_len: 64, share: 0.5}]}",
            "the shares of all phases sum to 0.5, not to 1",
        ),
        ("{budget: 90M, phases: [{seq_len: 64}]}", "train.budget: expected a unit"),
    ],
)
def test_steps_or_a_budget(mistakes: Mistakes, train: str, expected: str) -> None:
    lines = [line for line in LEAST["pretrain"].splitlines() if not line.startswith("train:")]
    [line] = mistakes("pretrain", "\n".join([*lines, f"train: {train}"]) + "\n")
    assert expected in line
    assert line.startswith(f"c.yaml:{len(lines) + 1}:")


def test_thousands_of_mistakes_are_told_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("".join(f"tokenizer_{n}: 1\n" for n in range(5000)) + "tokenizer: x\n")
    began = time.process_time()
    with pytest.raises(ConfigError) as raised:
        load("pretrain", path)
    assert time.process_time() - began < 10
    first, *lines = raised.value.message.split("\n")
    assert first.startswith("the first ")
    assert 40 < len(lines) <= 50


# The optimizers of a config: by name, AdamW without one, mistakes in words.


BASE = {
    "run": "r",
    "tokenizer": "t",
    "model": {"family": "bert"},
    "data": {"train": ["a.txt"]},
    "train": {"phases": [{"seq_len": 32, "steps": 5}]},
}


def written(folder: Path, optim: object) -> Path:
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump(BASE | {"optim": optim}))
    return path


def test_without_a_name_it_is_adamw(tmp_path: Path) -> None:
    config = load("pretrain", written(tmp_path, {"lr": 0.002, "betas": [0.9, 0.98]}))
    assert (config.optim.name, config.optim.lr) == ("adamw", 0.002)
    assert config.optim.betas == (0.9, 0.98)


@pytest.mark.parametrize("name", registry.names("optimizers"))
def test_a_resolved_config_is_read_back(name: str, tmp_path: Path) -> None:
    config = load("pretrain", written(tmp_path, {"name": name}))
    assert config.optim.name == name
    (tmp_path / "again.yaml").write_text(dump(config))
    assert load("pretrain", tmp_path / "again.yaml") == config


@pytest.mark.parametrize(
    ("optim", "message"),
    [
        ({"name": "lam"}, "optim.name: unknown name \"lam\"; did you mean 'lamb'?"),
        ({"name": "adagrad", "betas": [0.9, 0.9]}, "optim.betas: unknown key"),
        ({"weight_decai": 1}, "did you mean 'weight_decay'?"),
        ({"name": "muon", "momentun": 1}, "did you mean 'momentum'?"),
        ({"lr": -1}, "optim.lr: expected more than 0"),
        ({"name": 3}, "optim.name: unknown name 3"),
        (3, "optim: "),
    ],
)
def test_mistakes(optim: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load("pretrain", written(tmp_path, optim))
    assert message in str(error.value)


# Whatever is written in a config, it loads or is refused in words: never a traceback.


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["mlm", "bert", "auto", "1%", "2k", "-1", "", "name", "\ud800"])
    | st.text()
)
keys = st.sampled_from(["name", "family", "size", "run", "train", "rate", "mlm", "bert", "0", "zz"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=5,
)


def places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in the data with each of its keys."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        yield data, key
        if isinstance(value, dict | list):
            yield from places(value)


@pytest.mark.parametrize("kind", KINDS)
@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(drawn=st.data())
def test_any_values_anywhere(tmp_path: Path, kind: Kind, drawn: st.DataObject) -> None:
    data = copy.deepcopy(yaml.safe_load(LEAST[kind]))
    for _ in range(drawn.draw(st.integers(1, 3))):
        container, key = drawn.draw(st.sampled_from(list(places(data))))
        change = drawn.draw(st.sampled_from(["replace", "add", "remove"]))
        if change == "remove" and isinstance(container, dict) and len(data) > 1:
            del container[key]
        elif change == "add" and isinstance(container, dict):
            container[drawn.draw(keys)] = drawn.draw(values)
        else:
            container[key] = drawn.draw(values)
    path = tmp_path / "c.yaml"
    path.write_text(to_yaml(data), encoding="utf-8", errors="surrogatepass")
    try:
        config = load(kind, path)
    except ConfigError:
        return
    path.write_text(dump(config), encoding="utf-8")
    assert parse(type(config), path) == config


@settings(deadline=None, max_examples=300)
@given(text=st.text(st.sampled_from("ab:-[]{}#&*!|>'\"%@`, \n\t\\?~1.")), tail=st.text())
def test_any_text(tmp_path_factory: pytest.TempPathFactory, text: str, tail: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text + tail, encoding="utf-8")
    with pytest.raises(ConfigError):
        load("pretrain", path, [f"a={text}", tail])


@pytest.mark.parametrize("text", ["!a {a: 1}", "!!set {a}", "!a\na: 1"])
def test_a_tag_on_the_whole_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tagged.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be read as"):
        load("pretrain", path, ["seed=1"])


def test_what_a_shell_leaves_of_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number is text where text is wanted, as it was typed; and nothing is an empty text."""
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(LEAST["finetune"], encoding="utf-8")

    def task(*overrides: str) -> Any:
        return load("finetune", "c.yaml", overrides).task

    tagging = "task={name: tagging}"
    assert task(tagging, "task.tags=1", "task.tokens=007").tags == "1"
    assert task(tagging, "task.tags=1", "task.tokens=007").tokens == "007"
    assert task(tagging, "task.labels=[O, 1, 1e-3, true]").labels == ("O", "1", "1e-3", "true")
    assert task("task={name: tagging, tags: 3}").tags == "3"
    assert task("task={name: text_to_text}", "task.prefix=").prefix == ""
    assert task("task={name: text_to_text}", "task.prefix=1", "task.prefix=ab").prefix == "ab"
    assert task("task.text=[1, 2]", "task.positive=1").text == ("1", "2")
    with pytest.raises(ConfigError, match="task.tags: expected text, not null"):
        task(tagging, "task.tags=null")
    Path("c.yaml").write_text(LEAST["finetune"].replace("run: r", "run: 5"), encoding="utf-8")
    with pytest.raises(ConfigError, match="run: expected text, not 5"):  # in a file it has quotes
        task()
