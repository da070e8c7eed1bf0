"""plmctl and the stock way side by side on this machine: tokens a second as a ratio of medians.

The stock way is transformers' Trainer with ``BertForMaskedLM`` and
``DataCollatorForLanguageModeling``, or with ``GPT2LMHeadModel``. Same network, same rows, same
batch, same number of steps; each round runs both in processes of their own, in turns, and the order
changes from round to round.

``pll`` is the pseudo-log-likelihood of sentences of 6 to 14 tokens, against transformers' model on
one sentence at a time, its masked copies as a batch; ``--steps`` is hundreds of sentences.

    python scripts/benchmark.py mlm --vocab-size 8192 --rounds 5
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from typing import Any

BATCH, LENGTH = 32, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", choices=("mlm", "clm", "pll"))
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", choices=("plmctl", "stock"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side and given.work == "pll":
        print(json.dumps(pll_side(given.side, given.vocab_size, 100 * given.steps)))
        return
    if given.side:
        side = plmctl_side if given.side == "plmctl" else stock_side
        print(json.dumps(side(given.work, given.vocab_size, given.steps)))
        return
    rounds = []
    for number in range(given.rounds):
        sides = ("plmctl", "stock") if number % 2 == 0 else ("stock", "plmctl")
        rounds.append({side: in_process(side, given) for side in sides})
    ratios = [r["plmctl"]["tokens_per_second"] / r["stock"]["tokens_per_second"] for r in rounds]
    speed = {s: statistics.median(r[s]["tokens_per_second"] for r in rounds) for s in rounds[0]}
    memory = {s: statistics.median(r[s]["peak_mb"] for r in rounds) for s in rounds[0]}
    result = {
        "work": given.work,
        "vocab_size": given.vocab_size,
        "rounds": given.rounds,
        "ratio": statistics.median(ratios),
        "range": [min(ratios), max(ratios)],
        "tokens_per_second": speed,
        "peak_mb": memory,
    }
    if given.json:
        print(json.dumps(result))
        return
    print(
        f"{given.work}, V = {given.vocab_size:,}: {result['ratio']:.2f} times the stock way "
        f"[{min(ratios):.2f} to {max(ratios):.2f}, {given.rounds} rounds]; "
        f"{speed['plmctl']:,.0f} against {speed['stock']:,.0f} tokens/s, "
        f"peak {memory['plmctl']:,.0f} against {memory['stock']:,.0f} MB"
    )


def in_process(side: str, given: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, given.work, "--side", side, "--steps", str(given.steps)]
    done = subprocess.run(
        [*command, "--vocab-size", str(given.vocab_size)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def rows_of_tokens(vocab_size: int) -> Any:
    """Random documents of one sentence that fill a row each, [rows, LENGTH - 2]."""
    import numpy as np

    return np.random.default_rng(0).integers(10, vocab_size, (8 * BATCH, LENGTH - 2))


def model_of(work: str, vocab_size: int) -> tuple[Any, Any, tuple[str, ...]]:
    """The mini network of the work with its family and parts; dropout on, as published."""
    from plmctl import families, objectives, registry

    name = "gpt2" if work == "clm" else "bert"
    config = registry.load("families", name).Config(family=name, size="mini")
    parts = ("mlm",) if work == "pll" else objectives.get(work).PARTS
    family = families.get(name)
    return family.build(config, vocab_size=vocab_size, pad_id=0, parts=parts), family, parts


def figures(times: list[float], tokens: float) -> dict[str, float]:
    import resource

    steps = [after - before for before, after in pairwise(times)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"tokens_per_second": tokens / statistics.median(steps), "peak_mb": peak}


def plmctl_side(work: str, vocab_size: int, steps: int) -> dict[str, float]:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command does
    from plmctl import objectives
    from plmctl.config.optim import OptimConfig
    from plmctl.config.run import ComputeConfig
    from plmctl.corpus.store import TokenStore
    from plmctl.modeling.network import Network
    from plmctl.tokenization.vocab import Vocab
    from plmctl.training.engine import make_accelerator, make_engine
    from plmctl.training.loader import Slicing, StepBatches
    from plmctl.training.loop import update

    compute = ComputeConfig(device="cpu")
    accelerator = make_accelerator(compute)
    model, family, _ = model_of(work, vocab_size)
    engine = make_engine(accelerator, Network(model, family.forward), OptimConfig(), compute)
    documents = [[row.tolist()] for row in rows_of_tokens(vocab_size)]
    store = TokenStore.from_lists(documents, vocab_size)
    vocab = Vocab(vocab_size, pad=0, unk=1, cls=2, sep=3, mask=4, bos=5, eos=5)
    member = objectives.get(work)
    step = member.make(member.Config(name=work), store, vocab, LENGTH, 1)
    batches = StepBatches(step, Slicing(BATCH, BATCH), 1)
    engine.network.train()
    times = []
    for number in range(steps + 2):
        update(engine, step, batches[number], 1.0, number, False)
        times.append(time.perf_counter())
    return figures(times[1:], BATCH * LENGTH)


def stock_side(work: str, vocab_size: int, steps: int) -> dict[str, float]:
    from tokenizers import Tokenizer, models
    from transformers import (
        DataCollatorForLanguageModeling,
        PreTrainedTokenizerFast,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words += [f"w{number}" for number in range(len(words), vocab_size)]
    ids = {word: number for number, word in enumerate(words)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(ids, unk_token="[UNK]")),
        pad_token="[PAD]", mask_token="[MASK]", cls_token="[CLS]", sep_token="[SEP]",
    )  # fmt: skip
    rows = [{"input_ids": [2, *row.tolist(), 3]} for row in rows_of_tokens(vocab_size)]
    times: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

    model, _, _ = model_of(work, vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=steps + 2, per_device_train_batch_size=BATCH, learning_rate=1e-4,
            use_cpu=True, report_to=[], save_strategy="no", logging_steps=1000,
            disable_tqdm=True, dataloader_num_workers=0, max_grad_norm=1.0,
        )  # fmt: skip
        collator = DataCollatorForLanguageModeling(tokenizer, mlm=work == "mlm")
        Trainer(
            model, arguments, train_dataset=rows, data_collator=collator, callbacks=[Clock()]
        ).train()
    return figures(times[1:], BATCH * LENGTH)


def pll_side(side: str, vocab_size: int, sentences: int) -> dict[str, float]:
    """Scored tokens a second; both sides sum the same log-probabilities."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import numpy as np

    rng = np.random.default_rng(0)
    texts = [rng.integers(10, vocab_size, size) for size in rng.integers(6, 15, sentences)]
    model, family, _ = model_of("pll", vocab_size)
    score = pll_of_plmctl if side == "plmctl" else pll_of_transformers
    score(model.eval(), family, texts[:10])
    begun = time.perf_counter()
    score(model, family, texts)
    seconds = time.perf_counter() - begun
    return figures([0.0, seconds], sum(map(len, texts)))


def pll_of_plmctl(model: Any, family: Any, texts: list[Any]) -> None:
    import numpy as np

    from plmctl.config.run import ComputeConfig
    from plmctl.evaluation.likelihood import masked
    from plmctl.evaluation.likelihood.reader import Reader, Tokens
    from plmctl.evaluation.measures import Subject
    from plmctl.modeling.network import Network
    from plmctl.tokenization.vocab import Vocab
    from plmctl.training.engine import make_accelerator

    subject = Subject("", 0, 32, make_accelerator(ComputeConfig(device="cpu")))
    size = model.config.vocab_size
    vocab = Vocab(size, pad=0, unk=1, cls=2, sep=3, mask=4)
    network = Network(model, family.forward)
    reader = Reader("", "masked", network, 512, size, vocab, None, subject)  # ids are given
    given = [Tokens(ids, np.ones(len(ids), bool), np.array([len(ids)])) for ids in texts]
    masked.score(reader, given, 512, "original")


def pll_of_transformers(model: Any, family: Any, texts: list[Any]) -> None:
    import torch

    with torch.no_grad():
        for ids in texts:
            row = torch.tensor([2, *ids.tolist(), 3])
            rows, places = torch.arange(len(ids)), torch.arange(1, len(ids) + 1)
            copies = row.repeat(len(ids), 1)
            copies[rows, places] = 4
            logits = model(copies).logits[rows, places]
            logits.log_softmax(-1)[rows, row[1:-1]].sum().item()


if __name__ == "__main__":
    main()
