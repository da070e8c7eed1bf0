"""Pretraining of a small network: masked, causal, and text to text."""

import argparse
import tempfile
from collections.abc import Iterator
from typing import Any

from benchmarks.clock import Clock, flops_per_token
from benchmarks.stepping import CHECKED, plain_steps, plmctl_steps

_FAMILIES = {"mlm": "bert", "clm": "gpt2", "t5": "t5"}
_OBJECTIVES = {"mlm": {"name": "mlm"}, "clm": {"name": "clm"},
               "t5": {"name": "span_corruption", "z_loss": 0}}  # fmt: skip


def run(args: argparse.Namespace, side: str) -> dict[str, float]:
    """The speed of a side."""
    model, family = network(args)
    clock, count = Clock(args), args.steps + 2
    step = objective(args)
    if side == "plmctl":
        for done in plmctl_steps(args, model, family.forward, step, count):
            clock.tick(done.tokens)
    elif args.work == "t5":
        batches = [stock_batch(args, batch) for batch in batches_of(args, step, count)]
        for tokens, _ in plain_steps(args, model, batches):
            clock.tick(tokens)
    else:
        _trainer(args, model, clock, count)
    results = clock.results(flops_per_token(model, args.length))
    return results | {"parameters": sum(p.numel() for p in model.parameters())}


def check(args: argparse.Namespace, side: str) -> dict[str, list[float]]:
    """Losses of a few steps on identical batches, without dropout."""
    model, family = network(args, dropout=0.0)
    step = objective(args)
    if side == "plmctl":
        done = plmctl_steps(args, model, family.forward, step, CHECKED)
        return {"losses": [update.read().loss for update in done]}
    batches = [stock_batch(args, batch) for batch in batches_of(args, step, CHECKED)]
    return {"losses": [loss for _, loss in plain_steps(args, model, batches)]}


def network(args: argparse.Namespace, dropout: float | None = None) -> tuple[Any, Any]:
    """The network of the work, dropout as published, and its family."""
    import torch

    from plmctl import registry
    from plmctl.families.base import get_family
    from plmctl.objectives.base import get_objective

    name = _FAMILIES[args.work]
    family = get_family(name)
    changes = {} if dropout is None else dict.fromkeys(family.DROPOUT, dropout)
    if name == "bert" and args.length > 512:
        changes["max_position_embeddings"] = args.length
    config = registry.load("families", name).Config(family=name, size=args.size, **changes)
    torch.manual_seed(0)
    parts = get_objective(_OBJECTIVES[args.work]["name"]).LOSS_TERMS
    return family.build(config, vocab_size=args.vocab_size, pad_id=0, loss_terms=parts), family


def objective(args: argparse.Namespace) -> Any:
    """The work's objective over random documents, each of them a row."""
    from plmctl.corpus.store import TokenStore
    from plmctl.objectives.base import get_objective
    from plmctl.tokenization.load import Vocab

    size = args.vocab_size
    store = TokenStore.from_lists([[text] for text in _texts(args)], size)
    sentinels = tuple(range(size - 1, size - 101, -1))
    vocab = Vocab(size, pad=0, unk=1, cls=2, sep=3, mask=4, bos=5, eos=5, sentinels=sentinels)
    options = _OBJECTIVES[args.work]
    member = get_objective(options["name"])
    step = member.make(member.Config(**options), store, vocab, args.length, 1)
    return _Closed(step) if args.work == "clm" and args.check else step


class _Closed:
    """A causal objective without the target after a row's end, which transformers' loss has not."""

    def __init__(self, step: Any) -> None:
        self._step, self.parts = step, step.loss_terms

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
    from plmctl.training.data import Slicing, StepBatches

    batches = StepBatches(step, Slicing(args.batch, args.batch), 1)
    for number in range(count):
        yield batches[number][0]


def stock_batch(args: argparse.Namespace, batch: Any) -> tuple[dict[str, Any], int]:
    """The same batch as a transformers model takes it, and its tokens without padding."""
    import torch

    inputs = dict(batch.inputs)
    if args.work == "clm":
        labels = torch.full_like(inputs["input_ids"], -100)
        labels[:, 1:] = batch.targets["lm"][:, :-1]
        return {"input_ids": inputs["input_ids"], "labels": labels}, batch.tokens
    positions = inputs.pop("positions")
    like = inputs.pop("decoder_input_ids", inputs["input_ids"])
    labels = torch.full_like(like, -100).flatten()
    labels[positions] = batch.targets["lm" if args.work == "t5" else "mlm"]
    return inputs | {"labels": labels.view_as(like)}, batch.tokens


def _trainer(args: argparse.Namespace, model: Any, clock: Clock, count: int) -> None:
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

    if args.work == "clm":
        model = as_published(model)
    with tempfile.TemporaryDirectory() as folder:
        cuda, bf16 = args.device == "cuda", args.precision == "bf16"
        arguments = TrainingArguments(
            folder, max_steps=count, per_device_train_batch_size=args.batch, learning_rate=1e-4,
            use_cpu=not cuda, bf16=bf16, torch_compile=cuda, report_to=[], save_strategy="no",
            logging_steps=1000, disable_tqdm=True, dataloader_num_workers=2 if cuda else 0,
            max_grad_norm=1.0,
        )  # fmt: skip
        collator = DataCollatorForLanguageModeling(_tokenizer(args), mlm=args.work == "mlm")
        Trainer(
            model, arguments, train_dataset=rows, data_collator=collator, callbacks=[Ticks()]
        ).train()


def as_published(model: Any) -> Any:
    """GPT-2 as its published config has it: gelu_new, the same function written out."""
    from transformers import GPT2LMHeadModel

    config = model.config
    config.activation_function = "gelu_new"
    published = GPT2LMHeadModel(config)
    published.load_state_dict(model.state_dict())
    return published


def _texts(args: argparse.Namespace) -> list[list[int]]:
    """Random documents: all fill a row, or with ``--fill`` some are shorter, by any length."""
    import numpy as np

    draws, longest = np.random.default_rng(0), args.length - 2
    rows = draws.integers(10, args.vocab_size - 110, (8 * args.batch, longest))
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
