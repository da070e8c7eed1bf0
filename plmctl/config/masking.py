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
