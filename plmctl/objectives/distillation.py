"""Distillation: a student learns from a teacher and from masked tokens (DistilBERT).

Loss = kl_weight * T^2 * KL(teacher || student), both softened by the temperature T, over all tokens
+ mlm_weight * cross-entropy of the masked tokens + cosine_weight * (1 - cosine of the last hidden
states), over all tokens. Each is a mean over its own tokens. The teacher sees the same input.
Sources: Sanh et al., 2019 (arXiv:1910.01108), and huggingface/transformers-research-projects,
distillation/distiller.py and train.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from plmctl import hub
from plmctl.arrays import IGNORE, Ints
from plmctl.config.base import AnyFolder
from plmctl.config.sections import MaskingConfig
from plmctl.errors import ConfigError
from plmctl.examples.keys import Keys
from plmctl.examples.masking import choose_weighted, count_exact, rarity
from plmctl.examples.packing import RowLayout
from plmctl.objectives._masked import (
    MaskedObjective,
    MaskedRows,
    Masker,
    document_rows,
    masker,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

    from plmctl.corpus.store import TokenStore
    from plmctl.models.batch import Batch
    from plmctl.models.network import Network
    from plmctl.tokenization.load import Vocab


_COUNTED, _STRETCHES = 4_000_000, 1000  # tokens that are counted, and the places they are in


class Config(MaskingConfig):
    """Learn a teacher's predictions for every token, and masked tokens."""

    name: Literal["distillation"] = "distillation"
    teacher: AnyFolder
    """Folder or Hub id of a pretrained masked model with the same vocabulary."""
    init: Literal["alternate", "random"] = "alternate"
    """The student's first weights. alternate: every other layer of the teacher, its embeddings and
    its head; random: from scratch."""
    temperature: float = Field(default=2.0, gt=0)
    """Divides the logits of teacher and student before they are compared."""
    kl_weight: float = Field(default=5.0, ge=0)
    """Weight of the divergence from the teacher, which is multiplied by temperature^2."""
    kl_tokens: Literal["all", "masked"] = "all"
    """Which tokens the divergence includes: all, or the masked ones."""
    mlm_weight: float = Field(default=2.0, ge=0)
    """Weight of the masked tokens' loss."""
    cosine_weight: float = Field(default=1.0, ge=0)
    """Weight of the distance between the last hidden states; 0 lets the hidden sizes differ."""
    smoothing: float = Field(default=0.7, ge=0)
    """Tokens are chosen for prediction in proportion to count^-smoothing, rare ones more often;
    0: all equally often."""

    @model_validator(mode="after")
    def _rare_tokens_are_tokens(self) -> Self:
        if self.smoothing and (self.unit, self.count, self.mask_specials) != (
            "token",
            "exact",
            False,
        ):
            raise ValueError(
                "smoothing requires `unit: token`, `count: exact` and `mask_specials: false`; for "
                "others set `smoothing: 0`"
            )
        return self


@dataclass(frozen=True)
class RareMasker(Masker):
    """Chooses rare tokens more often.

    Attributes:
        weights: [V] of each token.
    """

    weights: NDArray[np.float64]

    def _choose(self, layout: RowLayout, keys: Keys) -> NDArray[np.bool_]:
        text = layout.source >= 0
        weights = self.weights[self.store.tokens(np.maximum(layout.source, 0))] * text
        counts = count_exact(layout.lengths, self.rate, self.config.max_predictions)
        return choose_weighted(weights, counts, keys)


class Distillation(MaskedObjective[Config], config=Config):
    """A student learns from a teacher, whose folder the config names."""

    LOSS_TERMS = ("mlm", "kl", "cosine")

    def over(self, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> TaughtRows:
        """The rows of a store; ``seq_len`` counts [CLS] and [SEP]."""
        masks = masker(self.config, store, vocab, seed)
        if self.config.smoothing:
            weights = rarity(_counts(store, vocab.size), self.config.smoothing)
            masks = RareMasker(**vars(masks), weights=weights)
        return TaughtRows(self, masks, *document_rows(store, vocab, seq_len - 2))

    def check(
        self, tokenizer: PreTrainedTokenizerBase, network: PreTrainedConfig, seq_len: int
    ) -> None:
        """Refuse a teacher that the student cannot learn from; see ``check_teacher``."""
        config = self.config
        check_teacher(config.teacher, tokenizer, network.vocab_size)
        check_teacher_shape(
            config.teacher,
            network,
            seq_len,
            compares_states=config.cosine_weight > 0,
        )

    def targets_per_token(self) -> float:
        """The divergence is over all tokens."""
        return 1.0

    def teacher(self) -> str | None:
        """The teacher, unless the student starts from scratch."""
        return self.config.teacher if self.config.init == "alternate" else None


class TaughtRows(MaskedRows[Config]):
    """Rows, [CLS], sentences of a document, [SEP], that the teacher reads too."""

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each loss term; the divergence's includes the temperature squared."""
        config = self.config
        kl = config.kl_weight * config.temperature**2
        return {"mlm": config.mlm_weight, "kl": kl, "cosine": config.cosine_weight}

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The rows ``samples`` with the masks of their epochs.

        Args:
            epochs: [B].
            samples: [B], each below ``len(self)``.

        Returns:
            inputs: input_ids, attention_mask, token_type_ids [B, L], and positions [N], all but
            padding; targets [N]: mlm, the token if it is masked; kl and cosine, 0 at each token
            that they include: the teacher's output is the target.
        """
        import torch

        from plmctl.models.batch import Batch, TargetList

        masked = self.masked(epochs, samples)
        real = masked.inputs["attention_mask"].flatten()
        mlm = torch.full_like(real, IGNORE)
        mlm[masked.inputs["positions"]] = masked.targets["mlm"]
        positions = real.nonzero().squeeze(1)
        mlm = mlm[positions]
        everywhere = torch.zeros_like(mlm)
        kl = (
            everywhere
            if self.config.kl_tokens == "all"
            else everywhere.masked_fill(mlm < 0, IGNORE)
        )
        return Batch(
            {**masked.inputs, "positions": positions},
            {"mlm": mlm, "kl": kl, "cosine": everywhere},
            masked.tokens,
            masked.padded_tokens,
            lists=(TargetList(("positions",), self.loss_terms),),
        )

    @property
    def counted_terms(self) -> tuple[str, ...]:
        """The others compare the student with its teacher."""
        return ("mlm",)

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The three losses, summed over their tokens."""
        return self._sums(network(**batch.inputs), batch)

    def _sums(self, outputs: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        from torch.nn.functional import cosine_similarity

        from plmctl.models.losses import distilled_sums
        from plmctl.models.teacher import teach

        inputs, config, targets = batch.inputs, self.config, batch.targets
        lesson = teach(
            config.teacher, inputs["input_ids"], inputs["attention_mask"], inputs["positions"]
        )
        compared = targets["kl"] != IGNORE
        mlm, kl = distilled_sums(
            outputs["mlm"], lesson.rows, targets["mlm"], compared, config.temperature
        )
        if not config.cosine_weight:
            return {"mlm": mlm, "kl": kl, "cosine": 0 * kl}
        distance_N = 1 - cosine_similarity(outputs["hidden"].float(), lesson.states, dim=-1)
        cosine = distance_N.where(targets["cosine"] != IGNORE, 0).sum()
        return {"mlm": mlm, "kl": kl, "cosine": cosine}

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The losses, and the number of masked tokens that are predicted correctly."""
        from plmctl.models.losses import score_sums

        outputs = network(**batch.inputs)
        right = score_sums(outputs, {"mlm": batch.targets["mlm"]})["mlm/correct"]
        undefined = right.new_tensor(float("nan"))
        return self._sums(outputs, batch) | {
            "mlm/correct": right,
            "kl/correct": undefined,
            "cosine/correct": undefined,
        }


def _counts(store: TokenStore, size: int) -> Ints:
    """[V] how often each token occurs, in samples that are spread over all of a large store."""
    total = store.num_tokens
    places = np.arange(min(total, _COUNTED))
    if total > _COUNTED:
        stretch = _COUNTED // _STRETCHES
        first = np.linspace(0, total - stretch, _STRETCHES).astype(np.int64)
        places = (first[:, None] + np.arange(stretch)).reshape(-1)
    return np.bincount(store.tokens(places), minlength=size)


# --- Whether a teacher can teach a student ---


def check_teacher(teacher: str, tokenizer: PreTrainedTokenizerBase, rows: int) -> None:
    """Refuse a teacher with another vocabulary.

    Args:
        teacher: A folder or Hub id.
        rows: Ids in the student's embedding table.

    Raises:
        ConfigError: The folder has no model, or its vocabulary differs.
        DataError: Its weights are incomplete.
    """
    from transformers import AutoConfig, AutoModelForMaskedLM

    from plmctl.models.load import load_network
    from plmctl.tokenization.load import open_tokenizer

    _check_teacher_folder(teacher)
    try:
        size = AutoConfig.from_pretrained(hub.local(teacher)).vocab_size
        teacher_vocab = open_tokenizer(teacher).get_vocab()
    except OSError as error:
        raise ConfigError(
            f"objective.teacher: {teacher} cannot be loaded: {str(error).splitlines()[0]}",
            "give the folder of a model, or download it first",
        ) from error
    vocab = tokenizer.get_vocab()
    if teacher_vocab != vocab or size != rows:
        raise ConfigError(
            f"objective.teacher: {teacher} has another vocabulary ({len(teacher_vocab):,} tokens, "
            f"{size:,} rows) than {tokenizer.name_or_path} ({len(vocab):,} tokens, {rows:,} rows)",
            f"use the teacher's tokenizer: `tokenizer: {teacher}`",
        )
    load_network(AutoModelForMaskedLM, teacher)


def check_teacher_shape(
    teacher: str,
    student: PreTrainedConfig,
    seq_len: int,
    *,
    compares_states: bool,
) -> None:
    """Refuse a teacher that is too short for the text, or has states of another size.

    A student that starts from its layers checks their shapes: ``Family.check_teacher``.

    Args:
        teacher: A folder or Hub id.

    Raises:
        ConfigError: With the key and what would fit.
    """
    from plmctl.families.base import longest_input
    from plmctl.models.load import config_of

    config: Any = config_of(teacher)
    positions = longest_input(config)
    if positions is not None and seq_len > positions:
        raise ConfigError(
            f"train.phases: seq_len {seq_len} is longer than the teacher's {positions} positions",
            "shorten the sequences, or use a teacher with more positions",
        )
    if compares_states and student.hidden_size != config.hidden_size:
        key, needed = student.attribute_map.get("hidden_size", "hidden_size"), config.hidden_size
        raise ConfigError(
            f"model.{key}: {student.hidden_size}, but the teacher has {needed}",
            f"set `model.{key}: {needed}`, or the `model.size` of the teacher",
        )


def _check_teacher_folder(teacher: str) -> None:
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
                f"objective.teacher: {teacher}: no {part} in this folder (no {' or '.join(names)})",
                "pretrain the teacher first, or give a Hub id",
            )
