"""Distillation: a student learns from a teacher and from masked tokens (DistilBERT).

Loss = kl_weight * T^2 * KL(teacher || student), both softened by the temperature T, over all tokens
+ mlm_weight * cross-entropy of the masked tokens + cosine_weight * (1 - cosine of the last hidden
states), over all tokens. Each is a mean over its own tokens. The teacher sees the same input.
Sources: Sanh et al., 2019 (arXiv:1910.01108), and huggingface/transformers-research-projects,
distillation/distiller.py and train.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from plmctl.arrays import Ints
from plmctl.config.base import Text
from plmctl.config.masking import MaskingConfig
from plmctl.objectives import _inspection
from plmctl.objectives._masked import ROW_TOKENS, Masker, document_rows, masker
from plmctl.objectives._teacher import check_shape, check_teacher
from plmctl.shaping.examples import Example, Tallies
from plmctl.shaping.keys import Keys
from plmctl.shaping.masking import count_exact
from plmctl.shaping.rarity import choose_weighted, rarity
from plmctl.shaping.rows import Layout, layout

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.corpus.store import TokenStore
    from plmctl.modeling.batch import Batch
    from plmctl.modeling.network import Network
    from plmctl.tokenization.vocab import Vocab


PARTS = ("mlm", "kl", "cosine")
TOKENS = ROW_TOKENS

_COUNTED, _STRETCHES = 4_000_000, 1000  # tokens that are counted, and places they are taken from


class Config(MaskingConfig):
    """Learn what a teacher says of every token, and masked tokens."""

    name: Literal["distillation"] = "distillation"
    teacher: Text
    """Folder or Hub id of a pretrained masked model with the same vocabulary."""
    init: Literal["alternate", "random"] = "alternate"
    """How the student begins. alternate: as every other layer of the teacher, its embeddings and
    its head; random: with fresh weights."""
    temperature: float = Field(default=2.0, gt=0)
    """Softens what teacher and student say before they are compared."""
    kl_weight: float = Field(default=5.0, ge=0)
    """Weight of the divergence from the teacher, which is multiplied by temperature^2."""
    kl_tokens: Literal["all", "masked"] = "all"
    """Where the divergence is taken: at all tokens, or at the masked ones."""
    mlm_weight: float = Field(default=2.0, ge=0)
    """Weight of the masked tokens' loss."""
    cosine_weight: float = Field(default=1.0, ge=0)
    """Weight of the distance between the last hidden states; 0 lets widths differ."""
    smoothing: float = Field(default=0.7, ge=0)
    """Tokens are chosen for prediction in proportion to count^-smoothing, rare ones more often;
    0: all alike."""

    @model_validator(mode="after")
    def _rare_tokens_are_tokens(self) -> Self:
        if self.smoothing and (self.unit, self.count, self.mask_specials) != (
            "token",
            "exact",
            False,
        ):
            raise ValueError(
                "smoothing chooses single tokens, exactly so many: set `smoothing: 0` for another "
                "unit or count, or for special tokens"
            )
        return self


def check(config: Config, tokenizer: str, student: Any, seq_len: int) -> None:
    """Refuse a teacher that cannot teach, before any text is read; see ``check_teacher``."""
    begins = config.init == "alternate"
    check_teacher(config.teacher, tokenizer, student.vocab_size)
    check_shape(config.teacher, student, seq_len, begins=begins, width=config.cosine_weight > 0)


@dataclass(frozen=True)
class RareMasker(Masker):
    """Chooses rare tokens more often.

    Attributes:
        weights: [V] of each token.
    """

    weights: NDArray[np.float64]

    def _choose(self, layout: Layout, keys: Keys) -> NDArray[np.bool_]:
        text = layout.source >= 0
        weights = self.weights[self.store.tokens(np.maximum(layout.source, 0))] * text
        counts = count_exact(layout.lengths, self.config.rate, self.config.max_predictions)
        return choose_weighted(weights, counts, keys)


@dataclass(frozen=True)
class Distillation:
    """The rows of one store at one sequence length, and the teacher's folder."""

    config: Config
    masker: Masker
    starts: Ints
    ends: Ints
    parts: tuple[str, ...] = PARTS

    @property
    def weights(self) -> dict[str, float]:
        """What each part counts for."""
        config = self.config
        kl = config.kl_weight * config.temperature**2
        return {"mlm": config.mlm_weight, "kl": kl, "cosine": config.cosine_weight}

    def __len__(self) -> int:
        """Rows in an epoch."""
        return len(self.starts)

    def _masked(self, epochs: Ints, samples: Ints) -> Batch:
        passes = np.array([self.config.pass_of(int(epoch)) for epoch in epochs])
        rows = layout([self.starts[samples]], [self.ends[samples]])
        return self.masker.batch(rows, passes, samples)

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The rows ``samples`` with the masks of their epochs.

        Args:
            epochs: [B].
            samples: [B], each below ``len(self)``.

        Returns:
            inputs: input_ids, attention_mask, token_type_ids [B, L], and positions [N], all cells
            but padding; targets [N]: mlm, where it is masked; kl and cosine, 0 where they are
            asked for, since the teacher has the answers.
        """
        import torch

        from plmctl.modeling.batch import IGNORE, Batch

        masked = self._masked(epochs, samples)
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
            masked.cells,
        )

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The three losses, summed over their tokens."""
        return self._sums(network(**batch.inputs), batch)

    def _sums(self, said: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        from torch.nn.functional import cosine_similarity, kl_div, log_softmax

        from plmctl.modeling.batch import IGNORE
        from plmctl.modeling.losses import cross_entropy_sums
        from plmctl.modeling.teacher import teach

        inputs, config, targets = batch.inputs, self.config, batch.targets
        logits_NV, hidden_NH = teach(
            config.teacher, inputs["input_ids"], inputs["attention_mask"], inputs["positions"]
        )
        student_NV, student_NH = said["mlm"].float(), said["hidden"].float()
        mlm = cross_entropy_sums(said, {"mlm": targets["mlm"]})["mlm"]
        # No choice of rows by what is in them: a GPU would be waited for to count them.
        kl_NV = kl_div(
            log_softmax(student_NV / config.temperature, dim=-1),
            log_softmax(logits_NV / config.temperature, dim=-1),
            log_target=True,
            reduction="none",
        )
        kl = kl_NV.sum(-1).where(targets["kl"] != IGNORE, 0).sum()
        sums = {"mlm": mlm, "kl": kl}
        if config.cosine_weight:
            distance_N = 1 - cosine_similarity(student_NH, hidden_NH, dim=-1)
            return sums | {"cosine": distance_N.where(targets["cosine"] != IGNORE, 0).sum()}
        return sums | {"cosine": 0 * kl}

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The losses, and the number of masked tokens that are guessed right."""
        from plmctl.modeling.losses import score_sums

        said = network(**batch.inputs)
        right = score_sums(said, {"mlm": batch.targets["mlm"]})["mlm/correct"]
        undefined = right.new_tensor(float("nan"))
        return self._sums(said, batch) | {
            "mlm/correct": right,
            "kl/correct": undefined,
            "cosine/correct": undefined,
        }

    def tally(self, epochs: Ints, samples: Ints) -> Tallies:
        """Statistics of the rows ``samples``."""
        return _inspection.tally(self.masker, self._masked(epochs, samples))

    def expected(self) -> dict[str, float]:
        """What some of the statistics should come to."""
        return _inspection.expected(self.masker)

    def example(self, epoch: int, sample: int) -> Example:
        """One row for reading."""
        return _inspection.example(self.masker, self._masked(np.array([epoch]), np.array([sample])))


def make(config: Config, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> Distillation:
    """The objective over a store; ``seq_len`` counts [CLS] and [SEP].

    Raises:
        ConfigError: The tokenizer lacks a special token.
    """
    masks = masker(config, store, vocab, seed)
    if config.smoothing:
        weights = rarity(_counts(store, vocab.size), config.smoothing)
        masks = RareMasker(**vars(masks), weights=weights)
    starts, ends = document_rows(store, seq_len - 2)
    return Distillation(config, masks, starts, ends)


def _counts(store: TokenStore, size: int) -> Ints:
    """[V] how often each token is seen, in stretches that are spread over all of a large store."""
    total = store.num_tokens
    places = np.arange(min(total, _COUNTED))
    if total > _COUNTED:
        stretch = _COUNTED // _STRETCHES
        first = np.linspace(0, total - stretch, _STRETCHES).astype(np.int64)
        places = (first[:, None] + np.arange(stretch)).reshape(-1)
    return np.bincount(store.tokens(places), minlength=size)
