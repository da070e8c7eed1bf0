"""The sections of configs: data, optimizer, training, compute, checkpoints, divergence, masking."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from plmctl.config.base import Model, ObjectiveConfig, OptimizerConfig, Text
from plmctl.config.units import Count, Share, StepsOrShare

# --- Data: where text and labelled rows come from ---


SetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
"""The name of a validation set, which is part of the names of its metrics and files."""


class TextConfig(Model):
    """Text to read."""

    train: tuple[Text, ...] = Field(min_length=1)
    """Paths and globs (txt, jsonl, csv, parquet, also .gz and .zst), folders saved by `datasets`,
    `hf:NAME`, `hf:NAME:CONFIG:SPLIT`, `sample:NAME`, `ms:` and a name on ModelScope."""
    text: Text = "text"
    """Column of jsonl, csv, parquet and datasets that holds the text."""
    documents: Literal["auto", "blank_line", "file", "line"] = "auto"
    """What a document is in a txt file; auto: blank lines separate them if there are any, else the
    file is one."""


class MixtureSource(Model):
    """One of several corpora."""

    name: Text
    """Its name in messages and logs."""
    train: tuple[Text, ...] = Field(min_length=1)
    """Its text, as `data.train`."""
    weight: float = Field(gt=0)
    """Its share of the samples, relative to the other weights."""


class DataConfig(TextConfig):
    """Text for pretraining."""

    train: tuple[Text, ...] = ()
    """Paths and globs (txt, jsonl, csv, parquet, also .gz and .zst), folders saved by `datasets`,
    `hf:NAME`, `hf:NAME:CONFIG:SPLIT`, `sample:NAME`, `ms:` and a name on ModelScope."""
    mixture: tuple[MixtureSource, ...] = ()
    """Instead of `train`: several corpora, each with its share of the samples, so that some are
    repeated before others are seen once (GPT-3). `valid` is a share of each corpus, scored in the
    same mixture, or separate validation files."""
    valid: Share | tuple[Text, ...] | None = 0.01
    """Share of the documents that is held out by their hash (1%), or separate validation files;
    empty: no validation."""
    sentences: Literal["auto", "line", "en", "zh", "none"] = "auto"
    """Where sentences end, for objectives that read sentences. en: by punctuation, in scripts with
    spaces; zh: Chinese and Japanese; line: at every line end; none: nowhere. auto: none for `clm`
    and T5's objectives; line if text files clearly have one sentence per line, with blank lines
    between documents, like BERT's input; otherwise by script. `prepare` and `preview` print what
    was chosen and why. The text itself does not change."""
    words: Literal["pretokenizer", "jieba", "albert"] = "pretokenizer"
    """Where words start, for whole-word masking. pretokenizer: where the tokenizer's own rules
    split text, and at each Chinese character; jieba: also Chinese words of several characters, by
    jieba (`pip install 'plmctl[zh]'`); albert: as in ALBERT's code, for English and a Unigram
    tokenizer: a piece with a digit, an apostrophe or a character that is not English is a word."""
    store: Text = "stores"
    """Folder that keeps the token stores."""

    @model_validator(mode="after")
    def _one_way(self) -> DataConfig:
        names = [source.name for source in self.mixture]
        if bool(self.train) == bool(names):
            raise ValueError("expected `train` or `mixture`, and not both")
        if len(set(names)) < len(names):
            raise ValueError("expected a different name for each source of the mixture")
        return self


class TableConfig(Model):
    """Labelled rows for finetuning."""

    train: tuple[Text, ...] = Field(min_length=1)
    """Paths and globs (csv, tsv without quoting, jsonl, parquet, CoNLL columns), folders saved by
    `datasets`, `hf:NAME:SPLIT`, `hf:NAME:CONFIG:SPLIT`, `sample:NAME`."""
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
    bias_correction: bool = True
    """false: as in BERT's code, where the first updates are larger (3.2 times Adam's at step 1)."""


class ScheduleConfig(Model):
    """The learning rate over the steps."""

    name: Literal["linear", "cosine", "constant", "inverse_sqrt", "wsd", "polynomial"] = "linear"
    """How it decays after the warmup; wsd: warmup, stable, decay; polynomial:
    (1 - step/steps)^power counted from step 0, also during the warmup (BERT's and ALBERT's
    code)."""
    warmup: StepsOrShare = StepsOrShare(0)
    """Steps (1000) or share of all steps (6%) of linear rise."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """The schedule ends at this share of the peak."""
    decay: StepsOrShare = StepsOrShare(0.1)
    """wsd only: length of the linear decay at the end."""
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


PositiveOrAuto = Annotated[int, Field(ge=1)] | Literal["auto"]


class Phase(Model):
    """Steps at one sequence length."""

    seq_len: int = Field(ge=8)
    """Tokens per sequence, including special tokens."""
    steps: Count = Field(ge=1)
    """Updates of the weights."""


class BatchRamp(Model):
    """A batch that grows from step to step, linearly in the tokens seen (GPT-3)."""

    start: int = Field(ge=1)
    """Sequences in the first step; GPT-3's 32k tokens are 16 of length 2,048."""
    tokens: Count = Field(ge=1)
    """Tokens until the batch has `batch_size`; GPT-3: 4 to 12 billion, depending on its size."""


class TrainConfig(Model):
    """How much is trained."""

    batch_size: int = Field(default=256, ge=1)
    """Sequences per step, over all devices and micro-batches."""
    micro_batch_size: PositiveOrAuto = "auto"
    """Sequences per device and forward pass; never changes the result."""
    batch_ramp: BatchRamp | None = None
    """Start with a smaller batch; empty: every step has `batch_size`."""
    phases: tuple[Phase, ...] = Field(min_length=1)
    """In order, such as BERT's 90 % of the steps at length 128, then 10 % at 512."""

    @field_validator("batch_ramp")
    @classmethod
    def _grows(cls, ramp: BatchRamp | None, info: ValidationInfo) -> BatchRamp | None:
        full = info.data.get("batch_size")
        if ramp is not None and full is not None and ramp.start > full:
            raise ValueError(f"expected a start no larger than the batch size, {full}")
        return ramp

    @property
    def steps(self) -> int:
        """Steps of all phases."""
        return sum(phase.steps for phase in self.phases)


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
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 on a CUDA device that supports it, otherwise fp32."""
    compile: bool | Literal["auto"] = "auto"
    """Train the network with `torch.compile`; auto: in pretraining on a CUDA device, except for
    ELMo."""
    checkpoint_activations: bool = False
    """Activation checkpointing: recompute each layer in the backward pass instead of storing its
    activations. A step takes about a third longer, and most of the memory of activations is free.
    Not supported for ELMo."""
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    """The implementation of attention; auto: the one that transformers chooses."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of PyTorch; empty: its default."""
    workers: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    """Processes that prepare batches in advance."""

    @field_validator("attention", mode="before")
    @classmethod
    def _removed(cls, name: object) -> object:
        if name == "varlen":
            raise ValueError('"varlen" was removed; use "auto"')
        return name


class LaunchConfig(Model):
    """The processes of a run."""

    processes: PositiveOrAuto = "auto"
    """auto: one per CUDA device; one on CPU."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """How the processes share the work; each computes a part of the batch. ddp: each has the whole
    model; fsdp: each has a shard of the weights, gradients and optimizer state (pretraining
    only)."""

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
    keep_best: bool = False
    """Also save and keep the checkpoint with the lowest validation loss so far."""
    background: bool = False
    """Write checkpoints while training continues; it only waits for a copy of the state in memory:
    12 bytes per parameter with AdamW."""


class LogConfig(Model):
    """What is logged during a run."""

    every: int = Field(default=10, ge=1)
    """Steps between lines of metrics.jsonl."""
    validate_every: int | None = Field(default=None, ge=1)
    """Steps between validations; there is always one at the end."""
    validate_samples: int | None = Field(default=2000, ge=1)
    """Sequences of the validation text that are scored; empty: all."""
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


class MaskingConfig(ObjectiveConfig):
    """How tokens are chosen and replaced (BERT's published rule by default)."""

    masking: Literal["dynamic", "static"] = "dynamic"
    """dynamic: new masks in every epoch (RoBERTa); static: `duplicates` sets of masks (BERT)."""
    duplicates: int = Field(default=10, ge=1)
    """static only: number of passes over the corpus with different masks (BERT's dupe_factor)."""
    rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of the tokens that is predicted."""
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

    def pass_of(self, epoch: int) -> int:
        """The number of the set of pairs and masks that an epoch uses."""
        return epoch % self.duplicates if self.masking == "static" else epoch
