"""Pretraining of a small network: masked, causal, and text to text."""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

from benchmarks.clock import Clock
from benchmarks.stepping import CHECKED, plain_steps, plmctl_steps
from benchmarks.whole import call, write_config

_IDS = "ids.npy"

_OF_WORK = {"mlm": "bert", "clm": "gpt2", "t5": "t5"}
_MASKED = {"name": "mlm"}
OBJECTIVES = {
    "bert": _MASKED, "roberta": _MASKED, "albert": _MASKED, "gpt2": {"name": "clm"},
    "t5": {"name": "span_corruption", "z_loss": 0}, "elmo": {"name": "bilm"},
}  # fmt: skip
"""Of each family that can be measured."""


_CHARACTERS = 5_000_000
"""Of a real text, at most."""


def prepare(args: argparse.Namespace, folder: Path) -> None:
    """With ``--data``: its ids, by a tokenizer of that size, for the rows of both sides."""
    if args.data is None:
        return
    import numpy as np
    from tokenizers import Tokenizer

    (folder / "train.txt").write_text(args.data.read_text("utf-8")[:_CHARACTERS], "utf-8")
    config = {
        "run": str(folder / "tokenizer"),
        "algorithm": "wordpiece",
        "family": "bert",
        "vocab_size": args.vocab_size,
        "data": {"train": [str(folder / "train.txt")]},
    }
    call("-m", "plmctl", "train-tokenizer", write_config(folder / "tokenizer.yaml", config))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    lines = (folder / "train.txt").read_text("utf-8").splitlines()
    encoded = tokenizer.encode_batch(lines, add_special_tokens=False)
    np.save(folder / _IDS, np.concatenate([line.ids for line in encoded if line.ids]))


def run(args: argparse.Namespace, side: str) -> dict[str, float]:
    """The speed of a side."""
    model, family = network(args)
    clock, count = Clock(args), args.steps + 2
    step = objective(args)
    if side == "plmctl":
        for done in plmctl_steps(args, model, family.forward, step, count):
            clock.tick(done.tokens)
    elif args.family or args.work == "t5":
        batches = [stock_batch(args, batch) for batch in batches_of(args, step, count)]
        for tokens, _ in plain_steps(args, plain(args, model), batches):
            clock.tick(tokens)
    else:
        train_by_trainer(args, model, clock, count)
    return clock.results() | {"parameters": sum(p.numel() for p in model.parameters())}


def check(args: argparse.Namespace, side: str) -> dict[str, list[float]]:
    """Losses of a few steps on identical batches, without dropout."""
    model, family = network(args, dropout=0.0)
    step = objective(args, closed=True)
    if side == "plmctl":
        done = plmctl_steps(args, model, family.forward, step, CHECKED)
        return {"losses": [update.read().loss for update in done]}
    batches = [stock_batch(args, batch) for batch in batches_of(args, step, CHECKED)]
    return {"losses": [loss for _, loss in plain_steps(args, plain(args, model), batches)]}


def family_of(args: argparse.Namespace) -> str:
    """The name of the network's family."""
    return args.family or _OF_WORK[args.work]


def network(
    args: argparse.Namespace, dropout: float | None = None, **fields: Any
) -> tuple[Any, Any]:
    """The network of the work, dropout as published, and its family.

    Args:
        **fields: Of its config.
    """
    import torch

    from plmctl import registry
    from plmctl.families.base import get_family
    from plmctl.objectives.base import get_objective

    name = family_of(args)
    family = get_family(name)
    kind = registry.load("families", name).Config
    rates = (rate for rate in family.DROPOUT if rate in kind.model_fields)
    changes = fields if dropout is None else fields | dict.fromkeys(rates, dropout)
    if name == "bert" and args.length > 512:
        changes["max_position_embeddings"] = args.length
    config = kind(family=name, size=args.size, **changes)
    torch.manual_seed(0)
    parts = get_objective(OBJECTIVES[name]["name"]).LOSS_TERMS
    return family(config).build(vocab_size=args.vocab_size, pad_id=0, loss_terms=parts), family


def objective(args: argparse.Namespace, *, closed: bool = False) -> Any:
    """The work's objective over random documents, each of them a row.

    Args:
        args: The command's.
        closed: A causal objective is that of transformers, see ``_Closed``.
    """
    from plmctl.corpus.store import TokenStore
    from plmctl.objectives.base import get_objective
    from plmctl.tokenization.load import Vocab

    size, family = args.vocab_size, family_of(args)
    store = TokenStore.from_lists([[text] for text in _texts(args)], size)
    sentinels = tuple(range(size - 1, size - 101, -1))
    vocab = Vocab(size, pad=0, unk=1, cls=2, sep=3, mask=4, bos=5, eos=5, sentinels=sentinels)
    if family == "elmo":  # its input is the characters of words
        vocab = replace(vocab, eos=6, words=_words(size))
    options = OBJECTIVES[family]
    member = get_objective(options["name"])
    step = member(member.Config(**options)).over(store, vocab, args.length, 1)
    return _Closed(step) if family == "gpt2" and closed else step


class _Closed:
    """A causal objective without the target after a row's end, which transformers' loss has not."""

    streamed = False

    def __init__(self, step: Any) -> None:
        self._step, self.loss_terms, self.weights = step, step.loss_terms, step.weights

    def __len__(self) -> int:
        return len(self._step)

    def collate(self, epochs: Any, samples: Any) -> Any:
        batch = self._step.collate(epochs, samples)
        batch.targets["lm"][:, -1] = -100
        return batch

    def loss(self, network: Any, batch: Any) -> Any:
        return self._step.loss(network, batch)


def batches_of(args: argparse.Namespace, step: Any, count: int) -> Iterator[Any]:
    """The batches that plmctl trains on, a step's in one piece."""
    from plmctl.training.data import StepBatches
    from plmctl.training.plan import Slicing

    batches = StepBatches(step, Slicing(args.batch, args.batch), 1)
    for number in range(count):
        yield batches[number][0]


def stock_batch(args: argparse.Namespace, batch: Any) -> tuple[dict[str, Any], int]:
    """The same batch as a transformers model takes it, and its tokens without padding."""
    import torch

    inputs, family = dict(batch.inputs), family_of(args)
    if family == "elmo":
        return inputs | {"targets": batch.targets}, batch.tokens
    if family == "gpt2":
        labels = torch.full_like(inputs["input_ids"], -100)
        labels[:, 1:] = batch.targets["lm"][:, :-1]
        return {"input_ids": inputs["input_ids"], "labels": labels}, batch.tokens
    positions = inputs.pop("positions")
    like = inputs.pop("decoder_input_ids", inputs["input_ids"])
    labels = torch.full_like(like, -100).flatten()
    labels[positions] = batch.targets["lm" if family == "t5" else "mlm"]
    if family == "roberta":  # it would take a random token that is the padding token for padding
        del inputs["token_type_ids"]
        inputs["position_ids"] = inputs["attention_mask"].cumsum(1) * inputs["attention_mask"]
    return inputs | {"labels": labels.view_as(like)}, batch.tokens


def train_by_trainer(args: argparse.Namespace, model: Any, clock: Any, count: int) -> None:
    """Steps of transformers' Trainer, each of which is a tick of the clock."""
    from transformers import (
        DataCollatorForLanguageModeling,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    rows = [{"input_ids": [2, *text, 3]} for text in _texts(args)]
    tokens = sum(len(row["input_ids"]) for row in rows) * args.batch // len(rows)

    class Ticks(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.tick(tokens)

    model = plain(args, model)
    with tempfile.TemporaryDirectory() as folder:
        cuda, bf16 = args.device == "cuda", args.precision == "bf16"
        arguments = TrainingArguments(
            folder, max_steps=count, per_device_train_batch_size=args.batch, learning_rate=1e-4,
            use_cpu=not cuda, bf16=bf16, report_to=[], save_strategy="no", logging_steps=1000,
            disable_tqdm=True, dataloader_num_workers=2 if cuda else 0, max_grad_norm=1.0,
            torch_compile_backend=("inductor" if cuda else "eager") if args.compiled else None,
        )  # fmt: skip
        collator = DataCollatorForLanguageModeling(_tokenizer(args), mlm=args.work == "mlm")
        Trainer(
            model, arguments, train_dataset=rows, data_collator=collator, callbacks=[Ticks()]
        ).train()


def plain(args: argparse.Namespace, model: Any) -> Any:
    """The same network as users of transformers meet it, called with labels.

    GPT-2 with gelu_new, the same function written out, as in its published config. ELMo, which
    transformers has not, is plmctl's own network with the loss of all logits.
    """
    from transformers import GPT2LMHeadModel

    if family_of(args) == "elmo":
        return _elmo_with_loss(model)
    if family_of(args) != "gpt2":
        return model
    config = model.config
    config.activation_function = "gelu_new"
    published = GPT2LMHeadModel(config)
    published.load_state_dict(model.state_dict())
    return published


def _elmo_with_loss(model: Any) -> Any:
    """The mean loss of both directions; the state continues from step to step, without gradient."""
    from types import SimpleNamespace

    from torch import nn
    from torch.nn.functional import cross_entropy

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.state: Any = None

        def forward(self, targets: dict[str, Any], **inputs: Any) -> Any:
            output = self.model(**inputs, state=self.state)
            self.state = output.state.detach()
            pairs = (
                (output.forward_logits, targets["forward"]),
                (output.backward_logits, targets["backward"]),
            )
            losses = [cross_entropy(logits.flatten(0, 1), t.flatten()) for logits, t in pairs]
            return SimpleNamespace(loss=sum(losses) / 2)

    return WithLoss()


def _words(count: int) -> tuple[str, ...]:
    """So many different words of 1 to 4 syllables, the shorter first."""
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    sizes = (product(syllables, repeat=size) for size in range(1, 5))
    return tuple("".join(word) for word in islice(chain.from_iterable(sizes), count))


def _texts(args: argparse.Namespace) -> list[list[int]]:
    """Documents: all fill a row, or with ``--fill`` some are shorter, by any length.

    Their ids are random, or those of real text, moved to where no special token is. Words of ELMo
    are as frequent as in Zipf's law.
    """
    import numpy as np

    draws, longest, kinds = np.random.default_rng(0), args.length - 2, args.vocab_size - 120
    if args.data is None and family_of(args) == "elmo":  # it reads a word that repeats once
        chances = draws.random((8 * args.batch, longest))
        rows = 10 + np.expm1(chances * np.log(kinds)).astype(np.int64)
    elif args.data is None:
        rows = draws.integers(10, 10 + kinds, (8 * args.batch, longest))
    else:
        ids = 10 + np.load(args.folder / _IDS) % kinds
        first = draws.integers(0, len(ids) - longest, 8 * args.batch)
        rows = ids[first[:, None] + np.arange(longest)]
    short = draws.random(len(rows)) < 2 * (1 - args.fill)
    sizes = np.where(short, draws.integers(1, longest + 1, len(rows)), longest)
    return [row[:size].tolist() for row, size in zip(rows, sizes, strict=True)]


def _tokenizer(args: argparse.Namespace) -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words += [f"w{number}" for number in range(len(words), args.vocab_size)]
    ids = {word: number for number, word in enumerate(words)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(ids, unk_token="[UNK]")),
        pad_token="[PAD]", mask_token="[MASK]", cls_token="[CLS]", sep_token="[SEP]",
    )  # fmt: skip
