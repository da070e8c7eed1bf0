"""The sections that several kinds of config share: data, optimizer, run, divergence, masking."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from plmctl.config.base import Model, ObjectiveConfig, OptimizerConfig, Text
from plmctl.config.units import Share, StepsOrShare

# --- Data: where text and labelled rows come from ---


SetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
"""Of a validation set: it becomes part of the names of figures and files."""


class TextConfig(Model):
    """Text to read."""

    train: tuple[Text, ...] = Field(min_length=1)
    """Paths and globs (txt, jsonl, csv, parquet, also .gz and .zst), folders saved by `datasets`,
    `hf:NAME`, `hf:NAME:CONFIG:SPLIT`, `sample:NAME`."""
    text: Text = "text"
    """Column of jsonl, csv, parquet and datasets that holds the text."""
    documents: Literal["auto", "blank_line", "file", "line"] = "auto"
    """What a document is in a txt file; auto: blank lines separate them if there are any, else the
    file is one."""


class MixtureSource(Model):
    """One of several corpora."""

    name: Text
    """What it is called in messages and logs."""
    train: tuple[Text, ...] = Field(min_length=1)
    """Its text, as `data.train`."""
    weight: float = Field(gt=0)
    """Its share of the samples, relative to the other weights."""


class DataConfig(TextConfig):
    """Text for pretraining."""

    train: tuple[Text, ...] = ()
    """Paths and globs (txt, jsonl, csv, parquet, also .gz and .zst), folders saved by `datasets`,
    `hf:NAME`, `hf:NAME:CONFIG:SPLIT`, `sample:NAME`."""
    mixture: tuple[MixtureSource, ...] = ()
    """In place of `train`: several corpora, each with a share of the samples, so that some are seen
    several times while others are not yet seen once (GPT-3). `valid` is a share of each, scored in
    the same mixture, or one text of its own."""
    valid: Share | tuple[Text, ...] | None = 0.01
    """Share of the documents held out by their hash (1%), or sources of their own; empty: none."""
    sentences: Literal["auto", "line", "en", "zh", "none"] = "auto"
    """Where sentences end, for objectives that are made of them. en: by punctuation, in scripts
    with spaces; zh: Chinese and Japanese; line: at every line end; none: nowhere. auto: none for
    `clm` and T5's objectives; line where text files plainly have one sentence per line, with blank
    lines between documents, as BERT's own input has; else by script. `prepare` and `preview` say
    what was chosen and why. The text itself is kept either way."""
    words: Literal["pretokenizer", "jieba", "albert"] = "pretokenizer"
    """Where words start, for whole-word masking. pretokenizer: where the tokenizer's own rules cut
    text, and at each Chinese character; jieba: Chinese words of several characters too, by jieba
    (`pip install 'plmctl[zh]'`); albert: as ALBERT's code, for English and a Unigram tokenizer: a
    piece with a digit, an apostrophe or a character that is not English is a word."""
    store: Text = "stores"
    """Folder that keeps the token stores."""

    @model_validator(mode="after")
    def _one_way(self) -> DataConfig:
        names = [source.name for source in self.mixture]
        if bool(self.train) == bool(names):
            raise ValueError("expected `train` or `mixture`, and not both")
        if len(set(names)) < len(names):
            raise ValueError("expected another name for each source of the mixture")
        return self


class TableConfig(Model):
    """Labelled rows for finetuning."""

    train: tuple[Text, ...] = Field(min_length=1)
    """Paths and globs (csv, tsv without quoting, jsonl, parquet, CoNLL columns), folders saved by
    `datasets`, `hf:NAME:SPLIT`, `hf:NAME:CONFIG:SPLIT`, `sample:NAME`."""
    valid: Share | tuple[Text, ...] | dict[SetName, tuple[Text, ...]] = 0.1
    """Rows to validate on, or the share of the training rows that is held out by a hash. Several
    sets by name, as in `{matched: [...], mismatched: [...]}`: all are scored at the end, and what
    is chosen (best weights, an end, a grid) goes by the first."""
    max_rows: int | None = Field(default=None, ge=1)
    """Train on this many rows at most: a seeded sample."""

    @field_validator("valid")
    @classmethod
    def _sets_have_sources(
        cls, valid: float | tuple[str, ...] | dict[str, tuple[str, ...]]
    ) -> float | tuple[str, ...] | dict[str, tuple[str, ...]]:
        sets = valid if isinstance(valid, dict) else {"valid": valid}
        if not sets or "train" in sets:
            raise ValueError("expected the name of one set or more, and not the name train")
        if not all(sets.values()) and not isinstance(valid, float):
            raise ValueError("expected one source or more")
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
    """Added to the root of the squares' mean."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Times the weights and the learning rate, taken off the weights (decoupled)."""
    decay: Literal["matrices", "all"] = "matrices"
    """matrices: no decay of biases and norms (BERT); all: of everything (RoBERTa in fairseq)."""
    bias_correction: bool = True
    """false: as the code of BERT, whose first updates are larger (3.2 times Adam's at step 1)."""


class ScheduleConfig(Model):
    """The learning rate over the steps."""

    name: Literal["linear", "cosine", "constant", "inverse_sqrt", "wsd", "polynomial"] = "linear"
    """How it falls after the warmup; wsd: it stays, then falls (warmup, stable, decay); polynomial:
    (1 - step/steps)^power from step 0, which the warmup replaces (the code of BERT and ALBERT)."""
    warmup: StepsOrShare = StepsOrShare(0)
    """Steps (1000) or share of all steps (6%) of linear rise."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """The schedule ends at this share of the peak."""
    decay: StepsOrShare = StepsOrShare(0.1)
    """wsd only: the last steps, which fall linearly."""
    decay_until: StepsOrShare = StepsOrShare(1.0)
    """linear, cosine, polynomial: where the end is reached, and kept from there on: a step, a share
    of all steps, or tokens (GPT-3: 260B tokens of 300B). Where a mark of the schedule is in tokens,
    it goes by the tokens seen (sequences times their length), else by steps."""
    plateau: StepsOrShare = StepsOrShare(0)
    """inverse_sqrt only: 1/sqrt(max(step, plateau)), which is the peak until then (T5: 10k)."""
    power: float = Field(default=1.0, gt=0)
    """polynomial only: 1 is a straight line."""

    @field_validator("decay_until")
    @classmethod
    def _ends(cls, until: StepsOrShare) -> StepsOrShare:
        if until.tokens == 0 or until.root == 0:
            raise ValueError("expected more than 0")
        return until


# --- How a run is computed, launched, saved and logged: nothing here changes the mathematics ---


PositiveOrAuto = Annotated[int, Field(ge=1)] | Literal["auto"]


class ComputeConfig(Model):
    """The device and how it computes."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: CUDA or Apple's GPU if there is one, else the CPU."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 on a CUDA device that has it, else fp32."""
    compile: bool | Literal["auto"] = "auto"
    """Run the network through `torch.compile` while training; auto: in pretraining on a CUDA
    device, but for ELMo."""
    checkpoint_activations: bool = False
    """Compute each layer a second time in the backward pass instead of keeping what is in it: a
    step takes about a third longer, and most of the memory of activations is free. Not for
    ELMo."""
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    """The implementation of attention; auto: the library's choice."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of PyTorch; empty: its own choice."""
    workers: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    """Processes that make batches ahead."""


class LaunchConfig(Model):
    """Processes."""

    processes: PositiveOrAuto = "auto"
    """auto: one a CUDA device, one on CPU."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """How the processes share the work, each with a part of the batch; ddp: each has the whole
    model; fsdp: and a part of the weights, their gradients and the optimizer's state (pretraining
    only)."""

    def shards(self, processes: int) -> bool:
        """Whether so many processes each keep a part of the weights: one has nothing to share."""
        return self.strategy == "fsdp" and processes > 1


class CheckpointConfig(Model):
    """Checkpoints."""

    every: int = Field(default=500, ge=1)
    """Steps between checkpoints."""
    keep: int = Field(default=3, ge=1)
    """How many of the newest to keep."""
    keep_every: int | None = Field(default=None, ge=1)
    """Keep those of steps that this divides as well; empty: no others."""
    keep_best: bool = False
    """Save where the validation loss is the lowest so far, and keep that one as well."""
    background: bool = False
    """Write checkpoints while training goes on; it stands still only for a copy of the state in
    memory: 12 bytes a parameter with AdamW."""


class LogConfig(Model):
    """What is written down while a run goes on."""

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
    """Steps whose loss or gradient cannot be right; each is written to `events`."""

    nonfinite: Literal["stop", "skip"] = "stop"
    """A loss or gradient that is no finite number. stop: save the state before the step and the ids
    of its examples, and exit with 1; skip: leave the update out."""
    spike: float | None = Field(default=None, gt=1)
    """A loss over this many times the median of the last 64 is a spike; empty: none is."""
    on_spike: Literal["stop", "skip", "rollback"] = "rollback"
    """rollback: back to the last checkpoint, and on with the data that follows the spike (PaLM,
    section 5.1)."""
    patience: int = Field(default=10, ge=0)
    """Updates left out in a row, or rollbacks in all, after which the run stops."""


# --- Masking: what the masked objectives let a user set ---


class MaskingConfig(ObjectiveConfig):
    """How tokens are chosen and replaced (BERT's published rule by default)."""

    masking: Literal["dynamic", "static"] = "dynamic"
    """dynamic: new masks every epoch (RoBERTa); static: `duplicates` sets of masks (BERT)."""
    duplicates: int = Field(default=10, ge=1)
    """static only: how many passes over the corpus have masks of their own (BERT's dupe_factor)."""
    rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of the tokens that is predicted."""
    unit: Literal["token", "word", "ngram"] = "token"
    """What is chosen; word: all tokens of a word (BERT's whole-word masking); ngram: runs of 1 to
    `max_ngram` whole words (ALBERT)."""
    max_ngram: int = Field(default=3, ge=1, le=10)
    """ngram only: most words of a run; n words are drawn with a probability in proportion to
    1/n."""
    favor_shorter: bool = True
    """ngram only: false turns the probabilities round, so that long runs are the likely ones."""
    count: Literal["exact", "probabilistic"] = "exact"
    """exact: round(rate * length), at least 1 (BERT); probabilistic: up or down by chance, so that
    the mean is exact (RoBERTa)."""
    mask_specials: bool = False
    """Also choose [CLS] and [SEP], as RoBERTa's code does."""
    random_specials: bool = True
    """Random tokens may be special ones, as in BERT's code; false: never, as in RoBERTa's."""
    max_predictions: int | None = Field(default=None, ge=1)
    """Most predictions a sequence (BERT: 20 at length 128, 77 at 512). Empty: no limit."""
    mask_share: float = Field(default=0.8, ge=0, le=1)
    """Share of the predicted tokens that [MASK] stands for."""
    random_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the predicted tokens that a random token stands for; the rest is left as it is."""

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.mask_share + self.random_share > 1:
            raise ValueError("mask_share and random_share are more than 1 together")
        return self

    def pass_of(self, epoch: int) -> int:
        """Which set of pairs and masks an epoch sees."""
        return epoch % self.duplicates if self.masking == "static" else epoch
