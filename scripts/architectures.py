"""What plmctl does with networks of many architectures: the table of docs/families/auto.md.

    python scripts/architectures.py             # all of them: a quarter of an hour on one core
    python scripts/architectures.py bloom mt5   # these

Each architecture is made tiny, pretrained for 20 steps, killed and resumed, finetuned, evaluated
and asked, by the commands of plmctl, on a small corpus of made-up sentences; its loss is compared
with that of transformers' own class.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import transformers

from plmctl.__main__ import main as command
from plmctl.arrays import IGNORE
from plmctl.families._generic import Form, Generic, network_classes
from plmctl.families.auto import Auto, Config
from plmctl.models.any_head import ability
from plmctl.models.network import Network

ENCODERS = (
    "albert", "bert", "big_bird", "camembert", "data2vec-text", "deberta", "deberta-v2",
    "distilbert", "electra", "ernie", "esm", "gte", "ibert", "megatron-bert",
    "modernbert", "mpnet", "nomic_bert", "rembert", "roberta", "roberta-prelayernorm", "roformer",
    "xlm", "xlm-roberta", "xlm-roberta-xl",
)  # fmt: skip
DECODERS = (
    "apertus", "biogpt", "bloom", "cohere", "ctrl", "exaone4", "falcon", "gemma", "gemma2",
    "gemma3_text", "glm4", "gpt2", "gpt_bigcode", "gpt_neox", "granite", "helium", "llama", "mamba",
    "mistral", "mpt", "nanochat", "olmo2", "openai-gpt", "opt", "persimmon", "phi", "phi3", "qwen2",
    "qwen3", "rwkv", "smollm3", "stablelm", "starcoder2", "xglm",
)  # fmt: skip
WRITERS = (
    "bart", "bigbird_pegasus", "blenderbot", "led", "longt5", "m2m_100", "marian", "mbart", "mt5",
    "mvp", "pegasus", "pegasus_x", "plbart", "t5", "umt5",
)  # fmt: skip
FORM_OF: dict[str, Form] = {
    **dict.fromkeys(ENCODERS, "encoder"),
    **dict.fromkeys(DECODERS, "decoder"),
    **dict.fromkeys(WRITERS, "encoder_decoder"),
}

# By any of the names that transformers' configs have for it.
_SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "emb_dim", "dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "hidden_dim", "n_inner"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "dff"), 64),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 200),
    **dict.fromkeys(("head_dim", "d_kv"), 8),
    "num_key_value_heads": 2,
    "embedding_size": 16,
}
_FURTHER: dict[str, dict[str, Any]] = {
    "led": {"max_encoder_position_embeddings": 1024, "max_decoder_position_embeddings": 200}
    | {"attention_window": [16, 16]},
    "rembert": {"input_embedding_size": 16, "output_embedding_size": 16},
}


def tiny_options(architecture: str) -> dict[str, Any]:
    """Options with which a network of an architecture has two layers and some 30,000 weights."""
    config_class: Any = transformers.CONFIG_MAPPING[architecture]
    declared = {one.name for one in fields(config_class)}
    sizes = {name: size for name, size in _SIZES.items() if name in declared}
    return sizes | _FURTHER.get(architecture, {})


def tiny_family(architecture: str) -> Generic:
    """The family of such a network."""
    named = {"architecture": architecture, "network": FORM_OF.get(architecture)}
    return Auto.chosen(Config.model_validate({**named, **tiny_options(architecture)}))


# --- The loss, beside that of the class ---


def losses(architecture: str) -> tuple[float, float]:
    """The mean loss of one batch as plmctl computes it, and as transformers' class does."""
    torch.manual_seed(0)
    family = tiny_family(architecture)
    model: Any = family.build(vocab_size=120, pad_id=1, eos_id=2, loss_terms=family.HEADS).eval()
    ids, targets = torch.randint(5, 120, (3, 16)), torch.randint(5, 120, (3, 16))
    inputs: dict[str, Any] = {"input_ids": ids}
    if family.FORM == "decoder":
        targets = torch.cat([ids[:, 1:], torch.full((3, 1), IGNORE)], dim=1)
        labels, own = ids, {"lm": targets}
        theirs = {"input_ids": ids, "labels": labels}
    elif family.FORM == "encoder":
        mask = torch.ones_like(ids)
        mask[0, 12:] = 0
        positions = torch.tensor([0, 5, 11, 20, 33, 47])
        labels = torch.full_like(ids, IGNORE)
        labels.flatten()[positions] = targets.flatten()[positions]
        inputs |= {"attention_mask": mask, "positions": positions}
        inputs["token_type_ids"] = torch.zeros_like(ids)
        own = {"mlm": targets.flatten()[positions]}
        theirs = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    else:
        mask, shifted = torch.ones_like(ids), targets.roll(1, 1)
        mask[0, 12:] = 0
        inputs |= {"attention_mask": mask, "decoder_input_ids": shifted}
        inputs["positions"] = torch.arange(targets.numel())
        own = {"lm": targets.flatten()}
        theirs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": shifted}
        theirs["labels"] = targets
    (sums,) = Network(model, family.forward)(loss_on=own, **inputs).values()
    count = sum(int((one != IGNORE).sum()) for one in own.values())
    return float(sums.detach()) / count, float(model(**theirs).loss.detach())


# --- The commands ---


def corpus() -> None:
    """Made-up sentences, and the same with labels."""
    names, verbs = ("Anna", "Bela", "Carl", "Dora", "Emil"), ("sees", "likes", "calls", "helps")
    lines = [
        f"{names[n % 5]} {verbs[n % 4]} {names[n * 3 % 5]} in the garden on day {n % 31}."
        for n in range(700)
    ]
    documents = ("\n".join(lines[n : n + 10]) for n in range(0, 700, 10))
    Path("text.txt").write_text("\n\n".join(documents))
    rows = (f"{line}\t{'ab'[n % 4 > 1]}" for n, line in enumerate(lines[:100]))
    Path("rows.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    for family, algorithm in (("roberta", "byte_bpe"), ("t5", "unigram")):
        config = {"run": f"tok-{family}", "algorithm": algorithm, "family": family}
        config |= {"vocab_size": 300, "data": {"train": ["text.txt"]}}
        config |= {"sentinels": 20} if family == "t5" else {}
        written(Path(f"tok-{family}.yaml"), config)
        plmctl("train-tokenizer", f"tok-{family}.yaml")


def written(path: Path, config: dict[str, Any]) -> str:
    """A config as a file; JSON is YAML."""
    path.write_text(json.dumps(config))
    return str(path)


def plmctl(*arguments: str) -> None:
    """Run a command in this process, which has imported all that it needs.

    Raises:
        RuntimeError: It fails; with its message.
    """
    sys.argv = ["plmctl", *arguments]
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as errors:
        try:
            command()
        except SystemExit as stop:
            if stop.code:
                lines = [line for line in errors.getvalue().splitlines() if "plmctl: " in line]
                raise RuntimeError((lines or ["failed"])[-1]) from None


def through_commands(architecture: str) -> dict[str, str]:
    """What each command did: "yes", or why not."""
    family, own = tiny_family(architecture), Path(architecture)
    own.mkdir()
    writes = family.FORM == "encoder_decoder"
    train: dict[str, Any] = {"batch_size": 8, "phases": [{"seq_len": 24, "steps": 20}]}
    options = {"architecture": architecture, "network": family.FORM, **tiny_options(architecture)}
    pretraining = {
        "run": str(own / "run"),
        "tokenizer": f"tok-{'t5' if writes else 'roberta'}",
        "model": {"family": "auto", **options},
        "data": {"train": ["text.txt"], "valid": 0.1},
        "train": train,
        "compute": {"device": "cpu", "workers": 0},
        "checkpoint": {"every": 5},
    }
    config = written(own / "pretrain.yaml", pretraining)
    task = {"name": "classification"}
    if writes:
        task = {"name": "text_to_text", "source": "text", "target": "label"}
    finetuning = {
        "run": str(own / "finetuned"),
        "model": str(own / "run/model"),
        "task": task,
        "data": {"train": ["rows.tsv"], "valid": ["rows.tsv"]},
        "train": {"epochs": 1, "batch_size": 16, "max_length": 32},
        "compute": {"device": "cpu"},
    }
    measure = {"name": "bits_per_byte", "data": ["text.txt"], "held_out": "10%", "max_bytes": 500}
    scoring = {"run": str(own / "scores"), "model": str(own / "run/model"), "measures": [measure]}
    answering = ["generate", str(own / "run"), "--prompt", "Anna sees", "--max-new-tokens", "3"]
    if family.FORM == "encoder":
        answering = ["predict", str(own / "run"), "Anna sees <mask> in the garden."]
    verified = ("verify-resume", config, "--kills", "1", "--steps", "20", f"run={own}/verified")
    steps = {
        "pretrain": ["pretrain", config],
        "resume": [*verified],
        "eval": ["eval", written(own / "eval.yaml", scoring)],
        "answer": answering,
        "finetune": ["finetune", written(own / "finetune.yaml", finetuning)],
    }
    results = {}
    for name, arguments in steps.items():
        try:
            plmctl(*arguments)
            results[name] = "yes"
        except Exception as error:  # noqa: BLE001 - the table shows it
            results[name] = str(error).removeprefix("plmctl: ").splitlines()[0]
            if name == "pretrain":
                break
    if results["pretrain"] == "yes":
        network_classes(architecture)[family.FORM].from_pretrained(own / "run/model")
        results["transformers"] = "yes"
    return results


# --- The table ---

_COMMANDS = ("pretrain", "resume", "eval", "answer", "finetune", "transformers")


def row(architecture: str) -> str:
    """A row of the table."""
    torch.manual_seed(0)
    family = tiny_family(architecture)
    can = ability(family.build(vocab_size=120, pad_id=1, eos_id=2, loss_terms=family.HEADS))
    own, theirs = losses(architecture)
    results = through_commands(architecture)
    notes = [f"{name}: {reason}" for name, reason in results.items() if reason != "yes"]
    cells = [
        architecture,
        family.FORM.replace("_", "-"),
        "yes" if can.at_positions else "no",
        "yes" if can.in_pieces else "no",
        f"{abs(own - theirs) / theirs:.0e}",
        *("yes" if results.get(name) == "yes" else "no" for name in _COMMANDS),
        "; ".join(notes),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table, a row at a time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("architectures", nargs="*", metavar="ARCHITECTURE")
    chosen = parser.parse_args().architectures or list(FORM_OF)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    head = ["architecture", "network", "at targets", "in pieces", "loss", *_COMMANDS, "notes"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        corpus()
        for architecture in chosen:
            print(row(architecture), flush=True)


if __name__ == "__main__":
    main()
