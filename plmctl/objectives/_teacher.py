"""Whether a teacher can teach a student."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plmctl.errors import ConfigError


def check_teacher(teacher: str, tokenizer: str, rows: int) -> None:
    """Refuse a teacher whose answers would be about other tokens.

    Args:
        teacher: A folder or Hub id.
        tokenizer: The run's.
        rows: Of the student's embedding table.

    Raises:
        ConfigError: The folder is no model, or has another vocabulary.
        DataError: Its weights are not whole.
    """
    from transformers import AutoConfig, AutoModelForMaskedLM

    from plmctl.modeling.load import load_network
    from plmctl.tokenization.load import load_tokenizer

    _check_folder(teacher)
    try:
        size = AutoConfig.from_pretrained(teacher).vocab_size
        found = [load_tokenizer(at).get_vocab() for at in (teacher, tokenizer)]
    except OSError as error:
        raise ConfigError(
            f"objective.teacher: {teacher} cannot be had: {str(error).splitlines()[0]}",
            "give the folder of a model, or fetch it first",
        ) from error
    theirs, ours = found
    if theirs != ours or size != rows:
        raise ConfigError(
            f"objective.teacher: {teacher} has another vocabulary ({len(theirs):,} tokens, "
            f"{size:,} rows) than {tokenizer} ({len(ours):,} tokens, {rows:,} rows)",
            f"use the teacher's tokenizer: `tokenizer: {teacher}`",
        )
    load_network(AutoModelForMaskedLM, teacher)


def check_shape(teacher: str, student: Any, seq_len: int, *, begins: bool, width: bool) -> None:
    """Refuse a teacher that the student cannot take over, or be compared with.

    Args:
        teacher: A folder or Hub id.
        student: transformers' config of the student.
        seq_len: The longest sequence.
        begins: The student begins as alternate layers of the teacher.
        width: Their hidden states are compared.

    Raises:
        ConfigError: With the key and what would fit.
    """
    from transformers import AutoConfig

    theirs: Any = AutoConfig.from_pretrained(teacher)
    positions = theirs.max_position_embeddings - 2 * (theirs.model_type == "roberta")
    if seq_len > positions:
        raise ConfigError(
            f"train.phases: seq_len {seq_len} is longer than the teacher's {positions} positions",
            "shorten the sequences, or use a teacher with more positions",
        )
    if begins and (theirs.model_type != "bert" or student.model_type != "distilbert"):
        raise ConfigError(
            f"objective.init: alternate is for a BERT as teacher, and {teacher} is of type "
            f"{theirs.model_type!r}",
            "use a BERT, or `init: random`",
        )
    if begins and student.n_layers > theirs.num_hidden_layers:
        raise ConfigError(
            f"model.n_layers: {student.n_layers}, but the teacher has {theirs.num_hidden_layers}",
            "fewer layers, or `objective.init: random`",
        )
    pairs = {"hidden_size": (student.hidden_size, theirs.hidden_size)} if width or begins else {}
    if begins:
        pairs["n_heads"] = (student.n_heads, theirs.num_attention_heads)
        pairs["hidden_dim"] = (student.hidden_dim, theirs.intermediate_size)
        pairs["max_position_embeddings"] = (
            student.max_position_embeddings,
            theirs.max_position_embeddings,
        )
    for name, (ours, needed) in pairs.items():
        key = student.attribute_map.get(name, name)
        if ours != needed:
            raise ConfigError(
                f"model.{key}: {ours}, but the teacher has {needed}",
                f"set `model.{key}: {needed}`, or the `model.size` of the teacher",
            )


def _check_folder(teacher: str) -> None:
    folder = Path(teacher)
    if not folder.exists() and not teacher.startswith((".", "/")) and teacher.count("/") <= 1:
        return  # a Hub id
    parts = {
        "model": ["config.json"],
        "weights": ["*.safetensors", "*.bin"],
        "tokenizer": ["tokenizer.json", "vocab.txt"],
    }
    for part, names in parts.items():
        if not any(path for name in names for path in folder.glob(name)):
            raise ConfigError(
                f"objective.teacher: {teacher}: no {part} here (no {' or '.join(names)})",
                "pretrain the teacher first, or give a Hub id",
            )
