"""A command imports what it needs, reads its config once, and a stand-in becomes its module."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.conftest import pretrain_config, run_main, write

# Half of a start without the stand-ins; none of it is needed before the first step.
NOT_NEEDED = (
    "torch._dynamo.convert_frame",
    "torch.distributed.tensor._ops",
    "torch.distributed.fsdp",
    "scipy.optimize._optimize",
    "sympy",
    "peft",
    "datasets",
    "evaluate",
    "pandas",
    "pyarrow",
    "sklearn",
    "matplotlib",
    "tensorboard",
)

COMMANDS = """
import json, os, sys
lines, names, config = json.loads(sys.argv[1])
reads = []
def note(event, args):
    if event == "open" and str(args[0]) == config:
        reads.append(config)
sys.addaudithook(note)
from plmctl.__main__ import main
after = []
for line in lines:
    sys.argv = ["plmctl", *line]
    try:
        main()
    except SystemExit as stop:
        assert stop.code in (None, 0, 75), line
    after.append([[name for name in names if name in sys.modules], len(reads)])
print("\\n" + json.dumps(after))
"""


def in_a_process(program: str, *arguments: str, **variables: str) -> str:
    """The last line that a new Python process prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def prepared(world: Path) -> Path:
    """A model to ask, and the text of another run prepared."""
    write("startup.yaml", {**pretrain_config("bert"), "run": "run-startup"})
    assert run_main("pretrain", "startup.yaml", "run=run-startup-model") == 0
    return world


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "reads"),
    [
        (["pretrain", "startup.yaml", "--until", "1"], 1),
        (["predict", "run-startup-model/model", "Anna [MASK] Bela"], 0),
    ],
    ids=["pretrain", "predict"],
)
def test_what_is_imported_until_the_first_step(line: list[str], reads: int, prepared: Path) -> None:
    given = json.dumps([[line], NOT_NEEDED, "startup.yaml"])
    [[imported, opened]] = json.loads(in_a_process(COMMANDS, given))
    assert imported == []
    assert opened == reads


COMPILING = """
from plmctl.startup import start_quickly
start_quickly()
import sys
import torch
from transformers import BertConfig, BertModel  # their decorators ask for the compiler

name = "torch._dynamo"
assert type(sys.modules[name]).__name__ == "_StandIn"
assert f"{name}.convert_frame" not in sys.modules

@torch.compiler.disable
def plain(x):
    return x + 1

@torch.compiler.allow_in_graph
def marked(x):
    return x * 2

assert plain(torch.ones(1)).item() == 2
assert not isinstance(torch.ones(1), sys.modules[name].eval_frame.OptimizedModule)

config = BertConfig(
    vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
)
network = BertModel(config).eval()
ids = torch.arange(6)[None]
expected = network(ids).last_hidden_state
compiled = torch.compile(network, backend="eager")
assert type(sys.modules[name]).__name__ == "module"
assert f"{name}.convert_frame" in sys.modules
assert isinstance(compiled, torch._dynamo.eval_frame.OptimizedModule)
assert torch.equal(compiled(ids).last_hidden_state, expected)
graph = torch._dynamo.explain(lambda x: marked(x) + 1)(torch.ones(1)).graphs[0]
assert any(node.target is marked for node in graph.graph.nodes), graph
assert torch._dynamo.explain(lambda x: plain(x * 2) + 1)(torch.ones(1)).graph_break_count == 1

from torch.distributed.tensor import DTensor
assert isinstance(DTensor, type)
from scipy.optimize import curve_fit, linear_sum_assignment
assert linear_sum_assignment([[4, 1], [2, 3]])[1].tolist() == [1, 0]
print("done")
"""


@pytest.mark.slow
def test_a_stand_in_becomes_its_module() -> None:
    assert in_a_process(COMPILING) == "done"


LISTING = """
from plmctl.startup import start_quickly
start_quickly()
import importlib.util, sys
from pathlib import Path
import transformers
from transformers.utils import import_utils as changed

spec = importlib.util.spec_from_file_location("transformers.utils.original", changed.__file__)
original = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = original
spec.loader.exec_module(original)
assert original.fetch__all__ is not changed.fetch__all__
assert original.fetch__all__.__name__ == "fetch__all__"
models = Path(transformers.__file__).parent / "models"
listed = [module.define_import_structure(models, prefix="models") for module in (original, changed)]
assert listed[0] and listed[0][frozenset()]
both = [
    {backends: {file: names for file, names in files.items() if file.startswith("models.")}
     for backends, files in one.items()} for one in listed
]
assert both[0] == both[1]
print("done")
"""


def test_transformers_lists_the_same_models() -> None:
    assert in_a_process(LISTING) == "done"


CALLERS = """
from plmctl.startup import start_quickly
start_quickly()
import importlib.util, torch
from torch._library import utils as changed

spec = importlib.util.spec_from_file_location("torch._library.original", changed.__file__)
original = importlib.util.module_from_spec(spec)
spec.loader.exec_module(original)
assert original.get_source.__code__ != changed.get_source.__code__

def caller(module, level):
    return module.get_source(level)

assert len({caller(module, 1) for module in (original, changed)}) == 1
assert len({caller(module, 2) for module in (original, changed)}) == 1
print("done")
"""


def test_operators_are_registered_with_the_same_places() -> None:
    assert in_a_process(CALLERS) == "done"


SPLIT = """
from plmctl.startup import start_quickly
start_quickly()
import sys
import torch.distributed.tensor
print(type(sys.modules["torch.distributed.tensor"]).__name__)
"""


@pytest.mark.slow
def test_one_of_several_processes_has_no_stand_in_for_split_tensors() -> None:
    assert "RANK" not in os.environ
    assert in_a_process(SPLIT) == "_StandIn"
    assert in_a_process(SPLIT, RANK="0") == "module"
    assert in_a_process(SPLIT, PLMCTL_QUICK_START="0") == "module"
