"""One file a family: sizes, how to build and load its network, where its heads begin."""

from typing import TYPE_CHECKING, Any, Protocol, cast

from plmctl import registry

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from plmctl.config.members import ModelConfig
    from plmctl.modeling.load import NewHeads


class Family(Protocol):
    """What a file of this folder defines; the module itself is the object."""

    OBJECTIVE: str
    """The objective of the family's paper."""
    TOKENIZER: str
    """The tokenizer algorithm of the family's paper."""
    MODEL_TYPE: str
    """What transformers calls its architecture, where that is not the family's name."""
    HEADS: tuple[str, ...]
    """Parts of a loss that it has heads for."""
    ENCODER_DECODER: bool
    """Whether it reads one text and writes another; left out: no."""
    DROPOUT: tuple[str, ...]
    """Names of the dropout probabilities in transformers' config."""

    def build(
        self, config: "ModelConfig", *, vocab_size: int, pad_id: int, parts: tuple[str, ...]
    ) -> "PreTrainedModel":
        """A network with fresh weights and the heads for ``parts``."""

    def load(
        self,
        folder: str,
        parts: tuple[str, ...],
        *,
        new_heads: "NewHeads | None" = None,
        **changes: Any,
    ) -> "PreTrainedModel":
        """A pretrained network with the heads for ``parts``.

        Args:
            folder: A model folder or Hub id.
            parts: Of the loss, which decide the heads.
            new_heads: Called with heads that the folder lacks; None: it has to have them all.
            **changes: To its config.

        Raises:
            DataError: See ``modeling.load.load_network``.
        """

    def begin_as(self, model: "PreTrainedModel", teacher: str) -> None:
        """Give a student the weights of alternate layers of a teacher's folder; of students."""

    def positions(self, config: "ModelConfig") -> int:
        """The longest input."""

    def forward(self, model: Any, **inputs: "Tensor") -> dict[str, "Tensor"]:
        """Logits of each part."""


def get(name: str) -> Family:
    """The family of that name.

    Raises:
        ConfigError: There is none; the message has the nearest.
    """
    return cast(Family, registry.load("families", name))


def fits(family: str, objective: str) -> bool:
    """Whether a family's networks can learn from an objective, or be measured by it."""
    network, asked = registry.load("families", family), registry.load("objectives", objective)
    both = {getattr(member, "ENCODER_DECODER", False) for member in (network, asked)}
    return set(asked.PARTS) <= set(network.HEADS) and len(both) == 1
