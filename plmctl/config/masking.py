"""What the masked objectives let a user set; shared by all of them."""

from typing import Literal, Self

from pydantic import Field, model_validator

from plmctl.config.members import ObjectiveConfig


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
