"""The stock way from a text file to a saved model, as transformers' example scripts do it.

    python trainer.py FOLDER OUT [options]

FOLDER has ``train.txt``, ``tokenizer/`` and ``network/config.json``. ``datasets`` tokenizes the
text and cuts it into rows, the Trainer trains with AdamW, and the model is saved in OUT. Nothing of
plmctl is imported.
"""

import argparse
from pathlib import Path
from typing import Any

from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
    set_seed,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("folder", type=Path)
    add("out", type=Path)
    add("--causal", action="store_true")
    add("--bf16", action="store_true")
    add("--steps", type=int, required=True)
    add("--batch", type=int, required=True)
    add("--length", type=int, required=True)
    add("--lr", type=float, required=True)
    add("--beta2", type=float, default=0.999)
    add("--warmup", type=int, default=0)
    add("--decay", type=float, default=0.01)
    add("--rate", type=float, default=0.15)
    add("--seed", type=int, default=1)
    args = parser.parse_args()
    set_seed(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(args.folder / "tokenizer")
    text = str(args.folder / "train.txt")
    # Not the cache of another run: tokenizing belongs to the time.
    cache = str(args.out.with_name(f"{args.out.name}-datasets"))
    data = load_dataset("text", data_files=text, split="train", cache_dir=cache)
    data = data.map(lambda rows: tokenizer(rows["text"]), batched=True, remove_columns=["text"])
    data = data.map(lambda rows: grouped(rows, args.length), batched=True)
    auto: Any = AutoModelForCausalLM if args.causal else AutoModelForMaskedLM
    model = auto.from_config(AutoConfig.from_pretrained(args.folder / "network"))
    arguments = TrainingArguments(
        str(args.out.with_name(f"{args.out.name}-trainer")), max_steps=args.steps, seed=args.seed,
        per_device_train_batch_size=args.batch, learning_rate=args.lr, adam_beta2=args.beta2,
        warmup_steps=args.warmup, lr_scheduler_type="linear", weight_decay=args.decay,
        report_to=[], save_strategy="no", logging_steps=500, disable_tqdm=True, use_cpu=True,
        bf16=args.bf16,
    )  # fmt: skip
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    collator = DataCollatorForLanguageModeling(
        tokenizer, mlm=not args.causal, mlm_probability=args.rate
    )
    Trainer(model, arguments, train_dataset=data, data_collator=collator).train()
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)


def grouped(rows: dict[str, list[list[int]]], length: int) -> dict[str, list[list[int]]]:
    """Texts one after another, cut into rows of ``length``; what is left of a thousand is lost."""
    joined = {key: [value for row in values for value in row] for key, values in rows.items()}
    whole = len(next(iter(joined.values()))) // length * length
    return {
        key: [values[at : at + length] for at in range(0, whole, length)]
        for key, values in joined.items()
    }


if __name__ == "__main__":
    main()
