"""The sections of configs: data, optimizer, training, compute, checkpoints, divergence, masking."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from plmctl.config.base import Model, NewPath, ObjectiveConfig, OptimizerConfig, Text
from plmctl.config.units import Budget, Bytes, Count, Duration, Mark, Share, StepsOrShare, Words
from plmctl.errors import ConfigError

# --- Data: where text and labelled rows come from ---


PositiveOrAuto = Annotated[int, Field(ge=1)] | Literal["auto"]

MANY_DOCUMENTS = 10
"""`data.repeated_lines: drop` leaves out lines that occur in more."""

SetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
"""The name of a validation set, which is part of the names of its metrics and files."""


class TextConfig(Model):
    """Text to read."""

    train: tuple[Text, ...] = Field(min_length=1)
    """Paths, globs and URLs such as `s3://bucket/*.jsonl` (txt, jsonl, csv, parquet, also .gz and
    .zst), folders saved by `datasets`, `hf:NAME`, `hf:NAME:CONFIG:SPLIT`, `sample:NAME`, `ms:` and
    a name on ModelScope."""
    text: Text = "text"
    """Column of jsonl, csv, parquet and datasets that holds the text."""
    documents: Literal["auto", "blank_line", "file", "line"] = "auto"
    """What a document is in a txt file; auto: blank lines separate them if there are any, else the
    file is one."""
    separator: Text | None = None
    """What stands between documents and is no text, such as `<|endoftext|>`, `</s>` or `***`: a
    mark with letters anywhere, one without letters where it fills a line. wikiextractor: the lines
    `<doc ...>` and `</doc>` of WikiExtractor. Blank lines then separate no documents, unless
    `documents` says so."""
    max_document: Bytes = 100_000_000
    """A longer document, or a longer line of a file, is refused with its place: preparing it takes
    up to 30 times as much memory."""
    words: Literal["pretokenizer", "jieba", "albert", "marked"] = "pretokenizer"
    """Where words start, for whole-word masking. pretokenizer: where the tokenizer's own rules
    split text, and at each Chinese character; jieba: also Chinese words of several characters, by
    jieba (`pip install 'plmctl[zh]'`); albert: as in ALBERT's code, for English and a Unigram
    tokenizer: a piece with a digit, an apostrophe or a character that is not English is a word;
    marked: the text is already segmented, by `word_mark` or by a column with a list of the words.
    The model sees the text without the marks."""
    word_mark: Text = "\u2581"
    """With `words: marked`: what stands between words, and is removed from the text. A space also
    removes the spaces of the text itself. A list of words needs no mark: they are joined as they
    are."""

    @model_validator(mode="after")
    def _mark_of_words(self) -> Self:
        if self.words != "marked" and self.word_mark != "\u2581":
            raise ValueError("word_mark is only used with `words: marked`")
        if set(self.word_mark) & set("\r\n"):
            raise ValueError("word_mark: expected a mark without line ends")
        if self.separator is not None and set(self.separator) & set("\r\n"):
            raise ValueError("separator: expected a mark without line ends")
        return self


class MixtureSource(Model):
    """One of several corpora."""

    name: Text
    """Its name in messages and logs."""
    train: tuple[Text, ...] = Field(min_length=1)
    """Its text, as `data.train`."""
    weight: float | None = Field(default=None, gt=0)
    """Its share of the samples, relative to the other weights; empty: by `data.mixture_alpha`."""


class DataConfig(TextConfig):
    """Text for pretraining."""

    train: tuple[Text, ...] = ()
    """Paths, globs and URLs such as `s3://bucket/*.jsonl` (txt, jsonl, csv, parquet, also .gz and
    .zst), folders saved by `datasets`, `hf:NAME`, `hf:NAME:CONFIG:SPLIT`, `sample:NAME`, `ms:` and
    a name on ModelScope."""
    mixture: tuple[MixtureSource, ...] = ()
    """Instead of `train`: several corpora, each with its share of the samples, so that some are
    repeated before others are seen once (GPT-3). `valid` is a share of each corpus, scored in the
    same mixture, or separate validation files."""
    mixture_alpha: float | None = Field(default=None, ge=0, le=1)
    """Weights of the mixture: the tokens of each source to this power, so that small languages are
    seen more often than their size says. 1: by size; 0: all alike; 0.3 in XLM-R, 0.7 in mBERT."""
    valid: Share | tuple[Text, ...] | None = 0.01
    """Share of the documents that is held out by their hash (1%), or separate validation files;
    empty: no validation."""
    sentences: Literal["auto", "line", "en", "zh", "none"] = "auto"
    """Where sentences end, for objectives that read sentences; for `clm` and T5's always none. en:
    by punctuation, in scripts with spaces; zh: Chinese and Japanese; line: at every line end; none:
    nowhere. auto: line if text files clearly have one sentence per line, with blank lines between
    documents, like BERT's input; otherwise by script. `prepare` and `preview` print what was chosen
    and why. The text itself does not change."""
    duplicates: Literal["keep", "drop", "near"] = "keep"
    """drop: of documents with the same text, apart from white space around it, only the first one
    is kept; within `train`, within separate validation files, and within each source of a
    `mixture`. The text is read twice. near: also of documents that share half of their runs of
    characters (`pip install 'plmctl[documents]'`); the text is read three times."""
    near_copies: Literal["apart", "together"] = "apart"
    """together: where `valid` is a share, a held-out document that is nearly a copy of a training
    document (about 70 % of its runs of 12 characters) is trained on instead, so that no near copy
    is on the other side; within each source of a `mixture`. The text is read twice."""
    languages: tuple[Annotated[str, Field(pattern=r"^[a-z]{2,3}$")], ...] = ()
    """Codes such as [km] or [id, ms]: documents that are clearly in another language are left out,
    as py3langid sees it (`pip install 'plmctl[documents]'`). Name languages that are near to each
    other together. Very short texts stay. Empty: all languages."""
    repeated_lines: Literal["keep", "drop"] | Annotated[int, Field(ge=1)] = "keep"
    """drop: lines that occur in more than 10 documents, such as menus and headers, are left out; a
    number: in more documents than that. White space around a line does not count; of documents
    that `duplicates` drops, the lines do not. Within `train`, within separate validation files, and
    within each source of a `mixture`. The text is read twice."""
    store: NewPath = "stores"
    """Folder that keeps the token stores, or a URL such as `s3://bucket/stores`."""

    @model_validator(mode="after")
    def _one_way(self) -> DataConfig:
        names = [source.name for source in self.mixture]
        if bool(self.train) == bool(names):
            raise ValueError("expected `train` or `mixture`, and not both")
        if len(set(names)) < len(names):
            raise ValueError("expected a different name for each source of the mixture")
        if self.mixture_alpha is not None and not names:
            raise ValueError("mixture_alpha: expected a `mixture`")
        if any((one.weight is None) == (self.mixture_alpha is None) for one in self.mixture):
            raise ValueError(
                "mixture: expected a `weight` for each source, or `mixture_alpha`, and not both"
            )
        return self


_SLURM_TIME = r"^(\d+-)?\d+(:\d\d){0,2}$"


class PrepareConfig(Model):
    """Who builds token stores, and where stores at a URL are kept. The stores stay the same."""

    executor: Literal["local", "slurm", "ray"] = "local"
    """local: processes of this machine; slurm, ray: datatrove runs the work on a cluster
    (`pip install 'plmctl[scale]'`, and for ray also `pip install ray`). All machines must see the
    text, the tokenizer and the store at the same paths or URLs."""
    workers: PositiveOrAuto = "auto"
    """Processes that encode text at the same time; auto: one per core of this machine or of the Ray
    cluster, 16 with Slurm."""
    partition: Text | None = None
    """slurm only: the partition."""
    time: Annotated[str, Field(json_schema_extra={"pattern": _SLURM_TIME})] = "24:00:00"
    """slurm only: the time limit of a job, as Slurm writes it."""
    memory_gb: int = Field(default=2, ge=1)
    """slurm and ray: memory that each worker reserves."""
    cache: Text = "~/.cache/plmctl/stores"
    """Where the files of a store at a URL are kept on this machine."""
    cache_size: Bytes = 100_000_000_000
    """How much of stores at URLs is kept; what was not used for longest is removed first. A run is
    fast if its whole store fits: it reads in random order."""

    @field_validator("time")
    @classmethod
    def _time_of_slurm(cls, time: str) -> str:
        if not re.fullmatch(_SLURM_TIME, time):
            raise ValueError("expected a time such as 24:00:00, 2-12 (days-hours) or 90 (minutes)")
        return time


class TableConfig(Model):
    """Labelled rows for finetuning."""

    train: tuple[Text, ...] = Field(min_length=1)
    """Paths and globs (csv, tsv, jsonl, json, parquet, columns of CoNLL and CoNLL-U), folders saved
    by `datasets`, `hf:NAME:SPLIT`, `hf:NAME:CONFIG:SPLIT`, `sample:NAME`."""
    valid: Share | tuple[Text, ...] | dict[SetName, tuple[Text, ...]] = 0.1
    """Rows to validate on, or the share of the training rows that is held out by a hash. Several
    named sets, as in `{matched: [...], mismatched: [...]}`: all are scored at the end, and the
    first decides the best weights, early stopping and the choice from a grid."""
    max_rows: int | None = Field(default=None, ge=1)
    """Train on at most this many rows: a seeded sample."""

    @field_validator("valid")
    @classmethod
    def _sets_have_sources(
        cls, valid: float | tuple[str, ...] | dict[str, tuple[str, ...]]
    ) -> float | tuple[str, ...] | dict[str, tuple[str, ...]]:
        sets = valid if isinstance(valid, dict) else {"valid": valid}
        if not sets or "train" in sets:
            raise ValueError("expected one or more sets, none of them named train")
        if not all(sets.values()) and not isinstance(valid, float):
            raise ValueError("expected one or more sources")
        return valid


# --- The optimizer and its learning rate ---


Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimConfig(OptimizerConfig):
    """AdamW, the default."""

    name: Literal["adamw"] = "adamw"
    """AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101)."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay of the running means of the gradient and of its square."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the square root of the mean of the squares."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay coefficient."""
    decay: Literal["matrices", "all"] = "matrices"
    """matrices: all but biases and norms (BERT); all: every weight (RoBERTa in fairseq)."""
    bias_correction: bool | Literal["rate"] = True
    """false: as in BERT's code, where the first updates are larger (3.2 times Adam's at step 1);
    rate: as in GPT-1's code, of the learning rate, and so of the weight decay too (0.32 of it at
    step 1, 0.15 at step 10, 0.31 at step 100, 0.80 at step 1,000)."""


class ScheduleConfig(Model):
    """The learning rate over the steps."""

    name: Literal["linear", "cosine", "constant", "inverse_sqrt", "wsd", "polynomial"] = "linear"
    """How it decays after the warmup; wsd: warmup, stable, decay; polynomial:
    (1 - step/steps)^power counted from step 0, also during the warmup (BERT's and ALBERT's
    code)."""
    warmup: StepsOrShare = StepsOrShare(0)
    """Steps (1000) or share of all steps (6%) of linear rise."""
    warmup_rule: Literal["replace", "multiply"] = "replace"
    """polynomial only. replace: the rise stands in place of the decay (BERT's code); multiply: it
    is a factor on the decay, which begins at step 0 (ELECTRA's code)."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """The schedule ends at this share of the peak."""
    decay: StepsOrShare = StepsOrShare(0.1)
    """wsd only: length of the decay at the end."""
    decay_shape: Literal["linear", "1-sqrt"] = "linear"
    """wsd only: linear, or 1 - sqrt(x) at the share x of the decay, which falls fast at first
    (ModernBERT)."""
    cooldown: StepsOrShare = StepsOrShare(0)
    """All but polynomial: the last steps, in which the rate is also multiplied by a line from 1 to
    0 (GPT-BERT, after a cosine to a tenth)."""
    decay_until: StepsOrShare = StepsOrShare(1.0)
    """linear, cosine, polynomial: when the final value is reached and then kept: a step, a share
    of all steps, or tokens (GPT-3: 260B tokens of 300B). If any value of the schedule is in tokens,
    the schedule counts tokens (sequences times their length), otherwise steps."""
    plateau: StepsOrShare = StepsOrShare(0)
    """inverse_sqrt only: 1/sqrt(max(step, plateau)), so the peak lasts until then (T5: 10k)."""
    power: float = Field(default=1.0, gt=0)
    """polynomial only: 1 is a straight line."""

    @field_validator("decay_until")
    @classmethod
    def _ends(cls, until: StepsOrShare) -> StepsOrShare:
        if until.tokens == 0 or until.root == 0:
            raise ValueError("expected more than 0")
        return until


# --- Training: phases and batches; adapters ---


class Phase(Model):
    """Steps at one sequence length."""

    seq_len: int = Field(ge=8)
    """Tokens per sequence, including special tokens."""
    steps: Annotated[Count, Field(ge=1)] | None = None
    """Updates of the weights; required without `train.budget`."""
    share: float | None = Field(default=None, gt=0, le=1)
    """With `train.budget` only: the share of the steps; the shares of all phases sum to 1. Empty:
    1, if there is one phase."""
    batch_size: int | None = Field(default=None, ge=1)
    """Sequences per step of this phase; empty: `train.batch_size`."""

    @model_serializer(mode="wrap")
    def _short(self, write: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Without the key that does not apply."""
        return {key: value for key, value in write(self).items() if value is not None}


class BatchRamp(Model):
    """A batch that grows from step to step, linearly in the tokens seen (GPT-3)."""

    start: int = Field(ge=1)
    """Sequences in the first step; GPT-3's 32k tokens are 16 of length 2,048."""
    tokens: Count = Field(ge=1)
    """Tokens until the batch has its full size; GPT-3: 4 to 12 billion, depending on its size."""


class AverageConfig(Model):
    """An average of the weights over the steps."""

    name: Literal["ema", "last"]
    """ema: an exponential moving average; last: the mean over the last steps (LAWA)."""
    decay: float = Field(default=0.999, gt=0, lt=1)
    """ema only: weights of t steps ago count decay^t; 0.999 averages over about 1,000 steps."""
    over: StepsOrShare = StepsOrShare(0.2)
    """last only: how many of the last steps: a number (1000) or a share of all steps (20%)."""
    every: int = Field(default=10, ge=1)
    """Steps between weights that are averaged, counted back from the last step."""

    @field_validator("over")
    @classmethod
    def _in_steps(cls, over: StepsOrShare) -> StepsOrShare:
        if over.tokens is not None or over.root == 0:
            raise ValueError("expected steps such as 1000, or a share such as 20%, above 0")
        return over


class TrainConfig(Model):
    """How much is trained."""

    batch_size: int = Field(default=256, ge=1)
    """Sequences per step, over all devices and micro-batches; a phase may have another."""
    micro_batch_size: PositiveOrAuto = "auto"
    """Sequences per device and forward pass; never changes the result."""
    batch_ramp: BatchRamp | None = None
    """Start with a smaller batch; empty: every step has the size of its phase."""
    budget: Budget | None = None
    """Instead of steps: how much the run may use. A time (2h, 90m), 100M tokens, 10M words (10Mw),
    or 1e17 FLOPs. It becomes a number of steps once, before the first step: tokens, words and FLOPs
    by arithmetic, a time by measuring steps on this machine. The schedule works on these steps."""
    max_words: Words | None = None
    """The words that a run may see, counting repeated text (BabyLM: 100M, or 1B, which is 10 passes
    over its corpus): a run that would see more is refused, and a time budget ends there."""
    phases: tuple[Phase, ...] = Field(min_length=1)
    """In order, such as BERT's 90 % of the steps at length 128, then 10 % at 512."""
    average: AverageConfig | None = None
    """Validate and save an average of the weights instead of the last ones; training continues
    from the last ones, and checkpoints have both. Empty: no average."""

    @field_validator("batch_ramp")
    @classmethod
    def _grows(cls, ramp: BatchRamp | None, info: ValidationInfo) -> BatchRamp | None:
        full = info.data.get("batch_size")
        if ramp is not None and full is not None and ramp.start > full:
            raise ValueError(f"expected a start no larger than the batch size, {full}")
        return ramp

    @field_validator("phases", mode="wrap")
    @classmethod
    def _steps_or_budget(
        cls, phases: Any, read: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> Any:
        """Either every phase has steps, or there is a budget; each mistake at its own line."""
        if not isinstance(phases, list):
            return read(phases)
        wrong = _phase_faults(phases, budget=info.data.get("budget", "wrong") is not None)
        try:
            valid = read(tuple(phases))  # a list is none where types are strict
        except ValidationError as error:
            wrong += [
                InitErrorDetails(
                    type=PydanticCustomError("value_error", "Value error, {error}", one["ctx"])
                    if one["type"] == "value_error"
                    else one["type"],
                    loc=one["loc"],
                    input=one["input"],
                    ctx=one.get("ctx", {}),
                )
                for one in error.errors(include_url=False)
            ]
        if wrong:
            raise ValidationError.from_exception_data("TrainConfig", wrong)
        return valid

    @model_validator(mode="after")
    def _grows_to_each(self) -> Self:
        ramp, least = self.batch_ramp, min(self.batch_sizes)
        if ramp is not None and ramp.start > least:
            raise ValueError(
                f"batch_ramp: expected a start no larger than the batch of any phase, {least}"
            )
        return self

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Sequences per step of each phase, at its full size."""
        return tuple(phase.batch_size or self.batch_size for phase in self.phases)

    @property
    def phase_steps(self) -> tuple[int, ...]:
        """Steps of each phase.

        Raises:
            ConfigError: They depend on the budget; ``run/budget.py`` decides them.
        """
        steps = [phase.steps for phase in self.phases]
        known = tuple(number for number in steps if number is not None)
        if len(known) < len(steps):
            raise ConfigError(f"train.budget: the steps of {self.budget} are not decided yet")
        return known

    @property
    def steps(self) -> int:
        """Steps of all phases; errors as ``phase_steps``."""
        return sum(self.phase_steps)

    def with_steps(self, steps: Sequence[int]) -> TrainConfig:
        """The same with a number of steps for each phase instead of the budget."""
        phases = tuple(
            phase.model_copy(update={"steps": number, "share": None})
            for phase, number in zip(self.phases, steps, strict=True)
        )
        return self.model_copy(update={"budget": None, "phases": phases})


def _phase_faults(phases: list[Any], *, budget: bool) -> list[InitErrorDetails]:
    """What is wrong with the steps and shares of phases as they are written."""
    rows = [phase if isinstance(phase, dict) else {} for phase in phases]

    def fault(number: int, key: str, message: str) -> InitErrorDetails:
        kind = PydanticCustomError("value_error", "{message}", {"message": message})
        return InitErrorDetails(type=kind, loc=(number, key), input=rows[number].get(key))

    if not budget:
        wrong = [
            InitErrorDetails(type="missing", loc=(number, "steps"), input=row)
            for number, row in enumerate(rows)
            if row and row.get("steps") is None
        ]
        text = "a share needs `train.budget`; use `steps` without one"
        return wrong + [fault(n, "share", text) for n, row in enumerate(rows) if row.get("share")]
    text = "`train.budget` decides the steps: leave out this key, or the budget"
    wrong = [fault(n, "steps", text) for n, row in enumerate(rows) if row.get("steps") is not None]
    shares = [row.get("share") for row in rows]
    if len(rows) > 1:
        wrong += [
            fault(n, "share", "with a budget, each of several phases needs a `share` of the steps")
            for n, share in enumerate(shares)
            if share is None and rows[n]
        ]
    numbers = [share for share in shares if isinstance(share, int | float)]
    if len(numbers) == len(rows) and rows and abs(sum(numbers) - 1) > 1e-6:
        text = f"the shares of all phases sum to {sum(numbers):g}, not to 1"
        wrong.append(fault(len(rows) - 1, "share", text))
    return wrong


class LoraConfig(Model):
    """Low-rank adapters (LoRA, arXiv:2106.09685), trained instead of the layers' weights."""

    rank: int = Field(default=8, ge=1)
    """Rank of the update of each matrix."""
    alpha: int = Field(default=16, ge=1)
    """The update is scaled by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of the adapter's input."""
    targets: tuple[Text, ...] = ()
    """Names of the linear layers that get an adapter; empty: query and value, or the layer with
    both."""


# --- How a run is computed, launched, saved and logged: nothing here changes the mathematics ---


class ComputeConfig(Model):
    """The device, and how it computes."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: CUDA or Apple's GPU if there is one, otherwise the CPU."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """auto: bf16 on a CUDA device or a CPU that has instructions for it; on an older CUDA device
    (T4, V100, RTX 20) fp16, but not for T5, ELMo and fsdp; otherwise fp32. tf32: fp32, but NVIDIA
    GPUs since RTX 30 and A100 round the factors of products to 10 bits. A resumed run keeps the
    precision of its checkpoints. Weights and losses are float32 in each."""
    compile: bool | Literal["auto", "layers", "reduce-overhead"] = "auto"
    """Train the network with `torch.compile`; auto: in pretraining on a CUDA device (V100 or
    newer), except for ELMo. layers: each layer by itself; layers of one kind are compiled once,
    so that a short training waits less for its first step. reduce-overhead: a CUDA device replays
    the kernels of a step that it has recorded (PyTorch's mode of this name), for small networks
    that are bound by the start of kernels; in pretraining, in one process, with batches of one
    size. No GPU has measured it yet."""
    gather: Literal["fp32", "bf16"] = "fp32"
    """In which precision processes get each other's weights, with `launch.strategy: fsdp`. bf16:
    half the traffic, with `precision: bf16`; its products are the same, but embeddings and norms
    are rounded too. Gradients are summed in float32 in both."""
    checkpoint_activations: bool = False
    """Activation checkpointing: recompute each layer in the backward pass instead of storing its
    activations. A step takes about a third longer, and most of the memory of activations is free.
    Not supported for ELMo."""
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2", "unpadded"] = "auto"
    """The implementation of attention; auto: the one that transformers chooses. unpadded: layers
    compute no padding, on a CUDA device in bf16 or fp16, with PyTorch 2.10 or newer; for BERT and
    its like (RoBERTa, ALBERT, ELECTRA, DistilBERT) without dropout of attention. No GPU has
    measured it yet. On a CPU padding is left out by itself."""
    deterministic: bool | Literal["auto"] = "auto"
    """On a CUDA device, use only kernels that give the same bits each time; slower, and a run whose
    network needs another kernel stops. auto: in `plmctl verify-resume` alone. On a CPU kernels
    always do."""
    threads: int | None = Field(default=None, ge=1, le=4096)
    """CPU threads of PyTorch; empty: its default."""
    workers: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    """Processes that prepare batches in advance."""

    @field_validator("attention", mode="before")
    @classmethod
    def _removed(cls, name: object) -> object:
        if name == "varlen":
            raise ValueError('"varlen" was removed; use "auto"')
        return name


def split_address(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT, HOST or [IPv6]:PORT; port 0: it is not a port."""
    host, colon, port = address.strip().rpartition(":")
    if not colon or address.endswith("]") or (":" in host and not host.endswith("]")):
        host, port = address.strip(), str(DEFAULT_PORT)  # a name, or an IPv6 address
    known = port.isascii() and port.isdigit() and host and not any(c.isspace() for c in host)
    return host.strip("[]"), int(port) if known else 0


DEFAULT_PORT = 29_500  # PyTorch's


class LaunchConfig(Model):
    """The processes of a run."""

    processes: PositiveOrAuto = "auto"
    """Processes on each machine. auto: one per CUDA device; one on CPU."""
    machines: PositiveOrAuto = "auto"
    """How many machines run this command. auto: as many as Slurm or Kubernetes started it on;
    without them, one."""
    machine: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    """The number of this machine, from 0. auto: of Slurm or Kubernetes."""
    address: str = "auto"
    """HOST:PORT of machine 0, where all machines meet; the port is 29500 if it is left out. auto:
    of Slurm (the first machine of the job) or Kubernetes (MASTER_ADDR)."""
    timeout: Duration = Duration("5m")
    """The longest that a run waits for a process, or for a batch, without a sign of life. Then it
    says what it waited for, and ends. While a process saves, validates or compiles, six times as
    long."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """How the processes share the work; each computes a part of the batch. ddp: each has the whole
    model; fsdp: each has a shard of the weights, gradients and optimizer state, so that a larger
    model fits."""

    @field_validator("address")
    @classmethod
    def _split(cls, address: str) -> str:
        _, port = split_address(address)
        if not 0 < port < 65_536:
            raise ValueError("expected HOST:PORT, such as 10.0.0.1:29500 or node1:29500")
        return address

    def shards(self, processes: int) -> bool:
        """Whether this many processes shard the weights: a single one keeps them whole."""
        return self.strategy == "fsdp" and processes > 1


class CheckpointConfig(Model):
    """Checkpoints."""

    every: int = Field(default=500, ge=1)
    """Steps between checkpoints."""
    keep: int = Field(default=3, ge=1)
    """Number of the newest checkpoints to keep."""
    keep_every: int | None = Field(default=None, ge=1)
    """Also keep the checkpoints of steps that are multiples of this; empty: none."""
    at: tuple[Mark, ...] | Literal["log", "babylm"] = ()
    """Also save here, and keep these checkpoints: steps, tokens or words, as in
    `[1000, 5M tokens, 1Mw]`; each is the step nearest to it. log: steps 1, 2, 4, 8 and so on;
    babylm: words 1M, 2M ... 10M, 20M ... 100M, 200M ... 1B. Tokens and words: pretraining only."""
    keep_best: bool = False
    """Also save and keep the checkpoint with the lowest validation loss so far, of those of the
    last phase: sequences of another length have other losses."""
    background: bool = False
    """Write checkpoints while training continues; it only waits for a copy of the state in memory:
    12 bytes per parameter with AdamW."""


class LogConfig(Model):
    """What is logged during a run."""

    every: int = Field(default=10, ge=1)
    """Steps between lines of metrics.jsonl."""
    validate_every: int | None = Field(default=None, ge=1)
    """Steps between validations; there is always one at the end. The sequences are as long as those
    of the phase: losses of two phases are of different sequences."""
    validate_samples: int | None = Field(default=2000, ge=1)
    """Sequences of the validation text that are scored, spread over it; empty: all."""
    trackers: tuple[
        Literal[
            "aim",
            "clearml",
            "comet_ml",
            "dvclive",
            "mlflow",
            "swanlab",
            "tensorboard",
            "trackio",
            "wandb",
        ],
        ...,
    ] = ()
    """Log to these as well, if they are installed. wandb and swanlab are offline unless their
    environment variables set a mode or a key."""


class PretrainLogConfig(LogConfig):
    """What is logged during a pretraining."""

    samples: int = Field(default=6, ge=0, le=100)
    """Held-out texts that the model fills in or continues at each validation, in samples.jsonl, and
    at the end, in eval/samples.json; 0: none."""
    ngram: Literal["auto", "none"] = "auto"
    """auto: beside the loss there is that of counts in the training text: for causal models of
    5-grams, for masked ones of tokens between both neighbours; a minute at most. none: not."""


# --- Steps that go wrong ---


class DivergenceConfig(Model):
    """Steps whose loss or gradient is not plausible; each is recorded in `events`."""

    nonfinite: Literal["stop", "skip"] = "stop"
    """If the loss or a gradient is not finite. stop: save the state before the step and the ids of
    its examples, and exit with 1; skip: skip the update."""
    spike: float | None = Field(default=None, gt=1)
    """A loss above this many times the median of the last 64 is a spike; empty: no check."""
    on_spike: Literal["stop", "skip", "rollback"] = "rollback"
    """rollback: return to the last checkpoint and continue with the data after the spike (PaLM,
    section 5.1)."""
    patience: int = Field(default=10, ge=0)
    """Number of consecutive skipped updates, or of rollbacks in total, after which the run
    stops."""


# --- Masking: what the masked objectives let a user set ---


MaskRate = Annotated[float, Field(gt=0, lt=1)]


class RateSchedule(Model):
    """A masking rate that changes linearly from the first step of a run to its last."""

    start: MaskRate
    """The rate of the first step."""
    end: MaskRate
    """The rate of the last step, and of validation."""


def rate_at(rate: float | RateSchedule, done: float) -> float:
    """The masking rate of a step.

    Args:
        done: 0 at the first step of the run, 1 at the last: ``progress_at``.
    """
    if isinstance(rate, float):
        return rate
    return (1 - done) * rate.start + done * rate.end


def progress_at(step: int, steps: int) -> float:
    """How much of a run is done at a step: 0 at the first, 1 at the last."""
    return step / max(steps - 1, 1)


class MaskingConfig(ObjectiveConfig):
    """How tokens are chosen and replaced (BERT's published rule by default)."""

    masking: Literal["dynamic", "static"] = "dynamic"
    """dynamic: new masks in every epoch (RoBERTa); static: `duplicates` sets of masks (BERT)."""
    duplicates: int = Field(default=10, ge=1)
    """static only: number of passes over the corpus with different masks (BERT's dupe_factor)."""
    rate: MaskRate | RateSchedule = 0.15
    """Share of the tokens that is predicted. `{start: 0.4, end: 0.15}`: it changes linearly over
    the steps of the run, and validation has the last rate (dynamic masking only)."""
    unit: Literal["token", "word", "ngram"] = "token"
    """What is chosen; word: all tokens of a word (BERT's whole-word masking); ngram: runs of 1 to
    `max_ngram` whole words (ALBERT)."""
    max_ngram: int = Field(default=3, ge=1, le=10)
    """ngram only: the longest run in words; the probability of n words is proportional to 1/n."""
    favor_shorter: bool = True
    """ngram only: false reverses the probabilities, so that long runs are likelier."""
    count: Literal["exact", "probabilistic"] = "exact"
    """How many are predicted. exact: round(rate * length), at least 1 (BERT); probabilistic:
    rounded up or down at random, so that the mean is exact (RoBERTa)."""
    mask_specials: bool = False
    """Also choose [CLS] and [SEP], as RoBERTa's code does."""
    random_specials: bool = True
    """Random tokens may be special tokens, as in BERT's code; false: never, as in RoBERTa's."""
    max_predictions: int | None = Field(default=None, ge=1)
    """Maximum predictions per sequence (BERT: 20 at length 128, 77 at 512). Empty: no limit."""
    mask_share: float = Field(default=0.8, ge=0, le=1)
    """Share of the predicted tokens that [MASK] replaces."""
    random_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the predicted tokens that a random token replaces; the rest stays unchanged."""

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.mask_share + self.random_share > 1:
            raise ValueError("mask_share and random_share add up to more than 1")
        return self

    @model_validator(mode="after")
    def _rate_may_change(self) -> Self:
        if self.masking == "static" and isinstance(self.rate, RateSchedule):
            raise ValueError("static masks are the same in every pass: expected a number as `rate`")
        return self

    def rate_at(self, done: float) -> float:
        """The masking rate of a step: see the function."""
        return rate_at(self.rate, done)

    def pass_of(self, epoch: int) -> int:
        """The number of the set of pairs and masks that an epoch uses."""
        return epoch % self.duplicates if self.masking == "static" else epoch
