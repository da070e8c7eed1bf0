"""What tests begin with, small and in memory: documents of ids, examples, networks, an engine."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from plmctl import registry
from plmctl.config.base import OptimizerConfig
from plmctl.config.sections import ComputeConfig, OptimConfig
from plmctl.corpus.store import TokenStore
from plmctl.families.base import get_family
from plmctl.models.base import Examples
from plmctl.models.network import Network
from plmctl.objectives.base import get_objective
from plmctl.tokenization.load import Vocab
from plmctl.training.average import Averaging
from plmctl.training.data import StepBatches
from plmctl.training.engine import Engine, make_accelerator, make_engine
from plmctl.training.journal import Update
from plmctl.training.loop import take_step
from plmctl.training.plan import Plan, Slicing

Documents = list[list[list[int]]]


def random_documents(
    seed: int,
    ids: tuple[int, int] = (6, 120),
    *,
    documents: int = 30,
    sentences: tuple[int, int] = (2, 25),
    tokens: tuple[int, int] = (3, 15),
) -> Documents:
    """Sentences of random ids. The ends of all ranges are left out."""
    rng = np.random.default_rng(seed)
    return [
        [
            rng.integers(*ids, rng.integers(*tokens)).tolist()
            for _ in range(rng.integers(*sentences))
        ]
        for _ in range(documents)
    ]


def make_model(
    family: str,
    vocab_size: int,
    loss_terms: tuple[str, ...],
    *,
    pad_id: int = 0,
    seed: int | None = 0,
    **fields: Any,
) -> PreTrainedModel:
    """A family's network with fields of its config; None goes on with torch's generator."""
    member = get_family(family)
    config = member.Config.model_validate({"family": family, **fields})
    if seed is not None:
        torch.manual_seed(seed)
    family_of_it = member.chosen(config)
    return family_of_it.build(vocab_size=vocab_size, pad_id=pad_id, loss_terms=loss_terms)


def make_network(
    family: str, vocab_size: int, loss_terms: tuple[str, ...], **fields: Any
) -> Network:
    return Network(make_model(family, vocab_size, loss_terms, **fields), get_family(family).forward)


def make_examples(
    name: str, store: TokenStore, vocab: Vocab, seq_len: int, seed: int = 7, **fields: Any
) -> Examples:
    """What an objective makes of a store."""
    member = get_objective(name)
    return member(member.Config(name=name, **fields)).over(store, vocab, seq_len, seed)


# --- Every family with every objective that fits it, tiny: from the registry, not from a list ---

_SENTINELS = tuple(range(119, 99, -1))
_WORDS = ("<pad>", "<UNK>", "<S>", "</S>", *(f"w{number}" for number in range(4, 120)))
ANY_VOCAB = Vocab(
    size=120, pad=0, unk=1, cls=2, sep=3, mask=4, bos=2, eos=3, sentinels=_SENTINELS, words=_WORDS
)
_TINY: dict[str, dict[str, Any]] = {
    "auto": {"architecture": "xlm-roberta", "hidden_size": 32, "num_hidden_layers": 2}
    | {"num_attention_heads": 2, "intermediate_size": 64}
    | dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0),
    "albert": {"hidden_size": 32, "embedding_size": 16, "num_attention_heads": 2},
    "distilbert": {"dim": 32, "n_heads": 2},
    "elmo": {"cell_size": 16, "projection_size": 8},
    "t5": {"num_layers": 2, "d_model": 32, "num_heads": 2, "d_kv": 16, "d_ff": 64},
    **dict.fromkeys(("gpt1", "gpt2", "gpt3"), {"n_layer": 2, "n_embd": 32, "n_head": 2}),
    **dict.fromkeys(("bert", "roberta", "spanbert"), {"hidden_size": 32, "num_hidden_layers": 2}),
}


def fitting_pairs() -> list[tuple[str, str]]:
    """Families and objectives."""
    return [
        (family, objective)
        for family in registry.names("families")
        for objective in registry.names("objectives")
        if get_objective(objective).LOSS_TERMS  # a mixture has those of its objectives
        and get_family(family).fits(
            get_objective(objective).LOSS_TERMS,
            encoder_decoder=get_objective(objective).ENCODER_DECODER,
            both_sides=get_objective(objective).BOTH_SIDES,
        )
    ]


def tiny_world(
    family: str, objective: str, store: TokenStore, folder: Path, **fields: Any
) -> tuple[Network, Examples]:
    """A network without dropout, and its examples of 48 tokens from a store of ids below 100.

    Args:
        family: Its name.
        objective: The objective's name.
        store: The text.
        folder: For the teacher of a student.
        **fields: Of the objective's config.
    """
    member, goal = get_family(family), get_objective(objective)
    if "teacher" in goal.Config.model_fields:
        make_model("bert", 120, ("mlm",), size="tiny", **_TINY["bert"]).save_pretrained(folder)
        fields = {"teacher": str(folder), **fields}
    options = {**dict.fromkeys(member.DROPOUT, 0.0), **_TINY.get(family, {})}
    if member.SIZES:
        options = {k: v for k, v in options.items() if k in member.Config.model_fields}
        options["size"] = "tiny" if "tiny" in member.SIZES else next(iter(member.SIZES))
    network = make_network(family, 120, goal.LOSS_TERMS, **options)
    return network, make_examples(
        objective, store, ANY_VOCAB, 10 if objective == "bilm" else 48, **fields
    )


def cpu_engine(
    network: Network,
    lr: float = 0.01,
    *,
    optimizer: OptimizerConfig | None = None,
    averaging: Averaging | None = None,
    varying: bool = True,
    **compute: Any,
) -> Engine:
    """With AdamW unless another is given. ``compute``: fields of that section of a config."""
    config = ComputeConfig(**{"device": "cpu", **compute})
    optim = optimizer or OptimConfig(lr=lr)
    accelerator = make_accelerator(config)
    return make_engine(accelerator, network, optim, config, varying=varying, averaging=averaging)


def outcome_of_step(
    engine: Engine, examples: Examples, rows: int, micro: int
) -> tuple[Update, dict[str, torch.Tensor]]:
    """The first step in micro-batches of that size, and the gradient of every parameter."""
    gradients: dict[str, torch.Tensor] = {}
    for name, parameter in engine.trained().network.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: gradients.__setitem__(name, p.grad.double())
        )
    batches = StepBatches(examples, Slicing(rows, micro), 7)[0]
    return take_step(engine, examples, batches, None, 1), gradients


def assert_cut_up_is_the_same(
    make: Callable[[], Engine], examples: Examples, micros: tuple[int, ...], tolerance: float
) -> None:
    """A step of the first of these micro-batches has the loss and gradient of all others."""
    (done, gradients), *others = (
        outcome_of_step(make(), examples, micros[0], micro) for micro in micros
    )
    size = torch.stack([g.norm() for g in gradients.values()]).norm()
    assert size > 0.01
    for micro, (other, parts) in zip(micros[1:], others, strict=True):
        assert abs(other.loss / done.loss - 1) < tolerance, micro
        off = torch.stack([(parts[n] - g).norm() for n, g in gradients.items()]).norm()
        assert off / size < tolerance, f"{micro}: {off / size}"


def stopping_at(step: int, plan: Plan) -> Plan:
    """The plan of a run whose process gets SIGTERM in a step."""
    rate = plan.learning_rate

    def stop(number: int) -> float:
        if number == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return rate(number)

    return replace(plan, learning_rate=stop)


@dataclass(frozen=True)
class ChangedExamples:
    """An objective of which a test changes one method; everything else is the objective's."""

    step: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.step, name)

    def __len__(self) -> int:
        return len(self.step)

    def at_step(self, step: int, steps: int) -> "ChangedExamples":
        return replace(self, step=self.step.at_step(step, steps))


def json_lines(path: Path | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
