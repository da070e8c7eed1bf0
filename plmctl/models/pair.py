"""Two networks that learn together: a generator replaces tokens, a discriminator finds them.

What is saved is an ordinary folder of the discriminator, which all finetuning reads, with one of
the generator in it. How they share embeddings is a family's own: ``models.electra``,
``models.deberta``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from plmctl import hub
from plmctl.models.load import NewHeads, config_of, load_network, report_or_refuse

GENERATOR = "generator"
"""The folder of the generator, in that of the discriminator."""


class Pair(PreTrainedModel):
    """A discriminator and its generator.

    Attributes:
        DISCRIMINATOR: Its class; called with ids [B, L] and a mask it gives ``logits`` [B, L].
        MASKED: The class of the generator, which predicts masked tokens.
    """

    base_model_prefix = "discriminator"
    supports_gradient_checkpointing = True

    DISCRIMINATOR: ClassVar[type[PreTrainedModel]]
    MASKED: ClassVar[type[PreTrainedModel]]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.discriminator: Any = self.DISCRIMINATOR(config)
        self.generator: Any = self.MASKED(self.generator_config(config))
        self.start_alike()
        self.share_embeddings()

    # --- What a pair defines ---

    @staticmethod
    @abstractmethod
    def generator_config(config: Any) -> Any:
        """The config of the generator, by that of the discriminator."""

    @abstractmethod
    def share_embeddings(self) -> None:
        """Let two networks that have tables of their own share them."""

    # --- What a pair may define ---

    def start_alike(self) -> None:
        """Give a new generator what it will share with the discriminator."""
        return  # the default: what they share is one table

    @classmethod
    def load_generator(cls, folder: str, **changes: Any) -> Any:
        """The generator of a folder."""
        return load_network(cls.MASKED, folder, **changes).network

    def get_input_embeddings(self) -> nn.Module:
        """The generator's table of tokens."""
        table: nn.Module = self.generator.get_input_embeddings()
        return table

    def get_output_embeddings(self) -> nn.Module:
        """The generator's output layer."""
        layer: nn.Module = self.generator.get_output_embeddings()
        return layer

    def resize_token_embeddings(self, new_num_tokens: int, **options: Any) -> nn.Module:  # type: ignore[override]
        """Give both networks rows for as many tokens."""
        for network in (self.generator, self.discriminator):
            network.resize_token_embeddings(new_num_tokens, **options)
        self.config.vocab_size = new_num_tokens
        return self.get_input_embeddings()

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> None:  # type: ignore[override]  # one way to save
        """Write the folder of the discriminator, and that of the generator in it."""
        self.discriminator.save_pretrained(save_directory, **options)
        self.generator.save_pretrained(Path(save_directory) / GENERATOR, **options)

    # --- What callers use ---

    @classmethod
    def from_folder(cls, folder: str, *, new_heads: NewHeads | None = None, **changes: Any) -> Self:
        """A folder or Hub id of a discriminator, in float32, with its generator.

        Args:
            folder: With the generator's folder, or without.
            new_heads: Called with a message if the folder lacks a part; None: an error.

        Raises:
            DataError: As ``load_network``.
        """
        config: Any = config_of(folder)
        for name, value in changes.items():
            setattr(config, name, value)
        pair = cls(config)
        read = load_network(cls.DISCRIMINATOR, folder, new_heads=new_heads, **changes)
        pair.discriminator = read.network
        if (inner := generator_folder(folder)) is not None:
            pair.generator = cls.load_generator(inner, **changes)
        else:
            report_or_refuse(folder, pair, [GENERATOR], new_heads)
            pair.start_alike()
        pair.share_embeddings()
        return pair


def generator_folder(folder: str) -> str | None:
    """The generator in the folder of a discriminator; None: it has none."""
    inner = Path(hub.local(folder)) / GENERATOR
    return str(inner) if inner.is_dir() else None


def judged_tokens(
    discriminate: Callable[[Tensor], Tensor],
    logits_KV: Tensor,
    original_BL: Tensor,
    positions_K: Tensor,
    draws_K: Tensor,
) -> dict[str, Tensor]:
    """What the generator says, and what the discriminator says of tokens drawn from it.

    Args:
        discriminate: Gives the logits [B, L] of "replaced" for ids [B, L].
        original_BL: The tokens before they were masked.
        draws_K: In (0, 1]; 0: the slot is not used.

    Returns:
        mlm: [K, V].
        rtd: [B, L] the logit of "replaced" where the token is the original one, and minus it
            where it was replaced: below 0 the discriminator is right.
    """
    tokens_K = drawn_tokens(logits_KV, draws_K)
    ids_BL = replaced_tokens(original_BL, positions_K, tokens_K, draws_K > 0)
    replaced_BL = discriminate(ids_BL)
    return {"mlm": logits_KV, "rtd": replaced_BL.where(ids_BL == original_BL, -replaced_BL)}


def drawn_tokens(logits_KV: Tensor, draws_K: Tensor) -> Tensor:
    """[K] a token of each distribution, by inversion; no gradient.

    The original draws Gumbel noise, which has the same distribution; a number per token is a pure
    function of seed and example, as all of an example is.

    Args:
        draws_K: In (0, 1].
    """
    with torch.no_grad():
        below_KV = logits_KV.float().softmax(-1).cumsum(-1)
        wanted_K1 = (draws_K[:, None] * below_KV[:, -1:]).to(below_KV.dtype)
        return torch.searchsorted(below_KV, wanted_K1).squeeze(1).clamp(max=logits_KV.shape[1] - 1)


def replaced_tokens(
    original_BL: Tensor, positions_K: Tensor, tokens_K: Tensor, used_K: Tensor
) -> Tensor:
    """[B, L] the original tokens with others at these positions, where they are used."""
    places_K = torch.where(used_K, positions_K, original_BL.numel())
    room = torch.cat([original_BL.flatten(), original_BL.new_zeros(1)])
    return room.scatter(0, places_K, tokens_K)[:-1].view_as(original_BL)
