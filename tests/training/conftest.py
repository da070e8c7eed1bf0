"""Small worlds that train in milliseconds: a corpus in memory, a tiny network, a plan."""

import json
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from plmctl.corpus.store import TokenStore
from plmctl.models.network import Network
from plmctl.objectives.base import get_objective
from plmctl.tokenization.load import Vocab
from plmctl.training.checkpoint import Checkpoints, Trained
from plmctl.training.engine import Engine
from plmctl.training.journal import Journal, Progress
from plmctl.training.loop import train
from plmctl.training.plan import Phase, Plan, Slicing
from tests.builders import json_lines, make_examples, make_network, random_documents

VOCAB = Vocab(size=120, pad=0, unk=1, cls=2, sep=3, mask=4, bos=5, eos=5)
FAMILY_OF = {"mlm": "bert", "mlm+nsp": "bert", "mlm+sop": "albert", "clm": "gpt2"}


@pytest.fixture(scope="session")
def store() -> TokenStore:
    return TokenStore.from_lists(random_documents(0), vocab_size=120)


def tiny_network(objective: str, seed: int = 0, dropout: float = 0.0) -> Network:
    family = FAMILY_OF[objective]
    if family in ("albert", "bert"):
        fields = {"hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 64}
        rates = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    else:
        fields = {"n_embd": 32, "n_head": 2, "n_positions": 64}
        rates = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
    fields |= {"size": "tiny", **dict.fromkeys(rates, dropout)}
    terms = get_objective(objective).LOSS_TERMS
    return make_network(family, VOCAB.size, terms, seed=seed, **fields)


def tiny_plan(
    objective: str,
    store: TokenStore,
    *,
    steps: tuple[int, ...] = (6,),
    batch: int = 16,
    micro: int = 16,
    lr: float = 1e-2,
    save_every: int = 1000,
) -> Plan:
    phases = []
    for number, count in enumerate(steps):
        step = make_examples(objective, store, VOCAB, 32 + 16 * number)
        phases.append(Phase(step, count, Slicing(batch, micro)))
    return Plan(tuple(phases), 7, lambda step: lr, 1.0, 1, None, save_every)


Train = Callable[..., Progress]


def nothing(step: int, *, stop: object = None) -> dict[str, float]:
    """A validation without a text."""
    return {}


@pytest.fixture
def run_plan() -> Train:
    def run(engine: Engine, plan: Plan, folder: Path, validate: Callable = nothing) -> Progress:
        folder.mkdir(exist_ok=True)
        with Journal(
            folder, title="test", total_steps=plan.steps, trackers=(), quiet=False
        ) as journal:
            checkpoints = Checkpoints(folder / "checkpoints", 3)
            return train(engine, plan, checkpoints, journal, validate)

    return run


def weights(engine: Engine) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in engine.trained().network.named_parameters()}


@contextmanager
def limited(kind: int, size: int) -> Iterator[None]:
    """Under a limit of the kernel's."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kilobytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def metrics(folder: Path) -> list[dict]:
    return json_lines(folder / "metrics.jsonl")


EXACT = ("step", "phase", "tokens", "loss", "lr", "grad_norm", "padding", "epoch")


def exact(folder: Path) -> list[dict]:
    return [{key: line[key] for key in EXACT} for line in metrics(folder)]


def events(folder: Path) -> list[str]:
    return [line["event"] for line in json_lines(folder / "events")]


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a checkpoint, less the seconds that it took and what hashes them."""
    content_of = {path.name: path.read_bytes() for path in folder.iterdir()}
    state = json.loads(content_of["state.json"])
    content_of["state.json"] = json.dumps(state | {"seconds": 0}).encode()
    del content_of["manifest.json"]
    return content_of


def trained(seed: int = 0) -> Trained:
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1)
    for _ in range(3):
        network(torch.randn(5, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return Trained(network, optimizer)
