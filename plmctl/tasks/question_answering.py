"""Extractive question answering: the answer is a stretch of the context, or there is none.

Contexts longer than the input are read in overlapping windows. Windows, labels and the choice of
the answer are those of BERT's code (SQuAD 1.1 and 2.0), with Chinese characters as words. Two
things are done otherwise: the text of an answer is cut from the context by the characters of its
pieces, where BERT's code, whose pieces do not know theirs, looks for them; and padding takes no
part in the softmax, so that a batch's width changes no loss.

Sources: google-research/bert, run_squad.py; google-research/albert, squad_utils.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from plmctl.config.members import TaskConfig
from plmctl.errors import ConfigError
from plmctl.tasks._spotting import Spotting
from plmctl.tasks._windowed import windowed

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.corpus.tables import Row
    from plmctl.modeling.load import NewHeads
    from plmctl.tasks import Use

_TEXT_ONLY = ("t5", "mt5")


class Config(TaskConfig):
    """Find the answer to a question in a context."""

    name: Literal["question_answering"] = "question_answering"
    question: str = "question"
    """Column of the question."""
    context: str = "context"
    """Column of the text that the answer is in."""
    answers: str = "answers"
    """Column of the answers: lists `text` and `answer_start`; empty ones where there is none.
    The first is learnt, all of them count in scoring."""
    id: str = "id"
    """Column of the question's id, which answers carry; rows without one are numbered."""
    version2: bool = False
    """Questions may have no answer (SQuAD 2.0)."""
    head: Literal["auto", "linear", "albert"] = "auto"
    """linear: a start and an end logit for each token. albert: ALBERT's for version2, the end given
    the start and a logit of no answer. auto: albert for an ALBERT with version2, else linear."""
    metric: Literal["auto", "squad", "cmrc"] = "auto"
    """squad: SQuAD's scripts; cmrc: CMRC 2018's, by characters; auto: by the language."""
    doc_stride: int = Field(default=128, ge=1)
    """Tokens from the start of a window to the start of the next."""
    max_query_length: int = Field(default=64, ge=1)
    """Tokens of a question; longer ones lose their ends."""
    max_answer_length: int = Field(default=30, ge=1)
    """Tokens of an answer that is given."""
    n_best: int = Field(default=20, ge=2)
    """Starts and ends that are tried in each window, and answers that are listed."""
    null_threshold: float | Literal["tune"] = "tune"
    """version2: no answer is given where its score is so much above that of the best answer (with
    ALBERT's head: where its logit is above this). tune: what gives the best F1 in the validation
    rows, which the finetuned folder then keeps."""


def text_columns(config: Config) -> tuple[str, ...]:
    """Question and context."""
    return (config.question, config.context)


def split_columns(config: Config) -> tuple[str, ...]:
    """The context: all questions about it stand on one side."""
    return (config.context,)


def labels_of(config: Config, rows: Sequence[Row]) -> tuple[str, ...]:
    """None: an answer is a text."""
    return ()


def settled(config: Config, results: dict[str, Any]) -> Config:
    """With the no-answer threshold that was tuned on the validation rows."""
    threshold = results.get("null_threshold")
    if not config.version2 or config.null_threshold != "tune" or threshold is None:
        return config
    return config.model_copy(update={"null_threshold": threshold})


def tokenizer(config: Config, model: str) -> PreTrainedTokenizerBase:
    """The model's own."""
    from plmctl.tokenization.load import load_tokenizer

    return load_tokenizer(model)


def load(
    config: Config,
    model: str,
    labels: tuple[str, ...],
    *,
    pretrained: bool,
    changes: Any,
    new_heads: NewHeads | None = None,
) -> PreTrainedModel:
    """The network with a head for spans; see ``tasks.Task``."""
    import torch
    from transformers import AutoConfig, AutoModelForQuestionAnswering

    from plmctl.modeling.auto import config_of
    from plmctl.modeling.load import load_network

    family = config_of(model).model_type
    cls: Any = AutoModelForQuestionAnswering
    if head_of(config, family) == "albert":
        from plmctl.modeling.heads.albert_squad2 import AlbertForAnswerOrNone

        cls = AlbertForAnswerOrNone
    elif family in _TEXT_ONLY or type(config_of(model)) not in cls._model_mapping:
        raise ConfigError(
            f"{model}: {family} has no head that finds an answer in a context",
            "bert, roberta, albert, distilbert and gpt2 have; T5 answers as text (text_to_text)",
        )
    network = AutoConfig.from_pretrained(model, num_labels=2, **changes)
    make_fresh = getattr(cls, "from_config", None) or cls._from_config  # the latter a class's own
    made: PreTrainedModel = (
        load_network(cls, model, config=network, new_heads=new_heads).network
        if pretrained
        else make_fresh(network, dtype=torch.float32)
    )
    return made


def head_of(config: Config, family: str) -> Literal["linear", "albert"]:
    """Which head a family gets.

    Raises:
        ConfigError: ALBERT's for another family, or for questions that all have answers.
    """
    if config.head == "albert" and (family != "albert" or not config.version2):
        raise ConfigError(
            f"task.head: albert, for {family} {'with' if config.version2 else 'without'} "
            "task.version2",
            "the head is for an ALBERT and version2; use `head: linear`",
        )
    if config.head == "linear" or family != "albert" or not config.version2:
        return "linear"
    return "albert"


def make(
    config: Config,
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    labels: tuple[str, ...],
    max_length: int,
    use: Use,
) -> Spotting:
    """The rows as windows; see ``tasks.Task``."""
    source = tokenizer.name_or_path  # the model's folder, which says which head it gets
    head: Literal["linear", "albert"] = "linear"
    if source and config.version2:
        from plmctl.modeling.auto import config_of

        head = head_of(config, config_of(source).model_type)
    made = windowed(config, rows, tokenizer, max_length, use)
    return Spotting(config, made, head)


def forward(
    model: Any, *, allowed: Tensor, start_positions: Tensor | None = None, **inputs: Tensor
) -> dict[str, Tensor]:
    """Logits of the parts, or the beams of ALBERT's head.

    Args:
        model: With a head for spans.
        allowed: [B, L] where an answer may be; only ALBERT's head takes it into account.
        start_positions: [B] true starts, for ALBERT's head in training and scoring.
        **inputs: Of the encoder.

    Returns:
        start and end [B, L], the smallest number at padding; see ``AlbertForAnswerOrNone`` for its.
    """
    import torch

    if type(model).__name__ == "AlbertForAnswerOrNone":
        logits: dict[str, Tensor] = model(
            allowed=allowed, start_positions=start_positions, **inputs
        )
        return logits
    out = model(**inputs)
    padding = inputs["attention_mask"] == 0
    return {
        "start": out.start_logits.float().masked_fill(padding, -torch.inf),
        "end": out.end_logits.float().masked_fill(padding, -torch.inf),
    }
