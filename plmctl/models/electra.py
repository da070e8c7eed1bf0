"""ELECTRA's two networks: a generator that replaces tokens, a discriminator that finds them.

They share the embeddings: tokens, positions, segments and their LayerNorm; the output layer of the
generator is the same table. What is saved is an ordinary folder of the discriminator, which all
finetuning reads, with one of the generator in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    PreTrainedModel,
)

from plmctl import hub
from plmctl.models.load import NewHeads, config_of, load_network, report_or_refuse

GENERATOR = "generator"
"""The folder of the generator, in that of the discriminator."""


def generator_config(config: ElectraConfig) -> ElectraConfig:
    """That of the generator: narrower layers by ``generator_size``, heads of 64.

    Source: google-research/electra, run_pretraining.py (``get_generator_config``).
    """
    share = float(getattr(config, "generator_size", None) or 0.25)
    width = round(config.hidden_size * share)
    narrow = {
        "hidden_size": width,
        "num_attention_heads": max(1, width // 64),
        "intermediate_size": 4 * width,
    }
    return ElectraConfig(**{**config.to_dict(), **narrow, "architectures": ["ElectraForMaskedLM"]})


class ElectraPair(PreTrainedModel):
    """A discriminator and its generator."""

    config_class = ElectraConfig
    base_model_prefix = "discriminator"
    supports_gradient_checkpointing = True
    _supports_sdpa = True

    def __init__(self, config: ElectraConfig) -> None:
        super().__init__(config)
        self.discriminator = ElectraForPreTraining(config)
        self.generator = ElectraForMaskedLM(generator_config(config))
        self.share_embeddings()

    def share_embeddings(self) -> None:
        """Give the generator the embeddings of the discriminator."""
        body: Any = self.generator.electra
        body.embeddings = self.discriminator.electra.embeddings
        head: Any = self.generator.generator_lm_head
        head.weight = self.get_input_embeddings().weight

    def get_input_embeddings(self) -> nn.Module:
        """The table of tokens."""
        table: nn.Module = self.discriminator.get_input_embeddings()
        return table

    def get_output_embeddings(self) -> nn.Module:
        """The generator's output layer."""
        layer: nn.Module = self.generator.generator_lm_head
        return layer

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> None:  # type: ignore[override]  # one way to save
        """Write the folder of the discriminator, and that of the generator in it."""
        self.discriminator.save_pretrained(save_directory, **options)
        self.generator.save_pretrained(Path(save_directory) / GENERATOR, **options)

    @classmethod
    def from_folder(
        cls, folder: str, *, new_heads: NewHeads | None = None, **changes: Any
    ) -> ElectraPair:
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
        read = load_network(ElectraForPreTraining, folder, new_heads=new_heads, **changes)
        pair.discriminator = read.network
        if (inner := generator_folder(folder)) is not None:
            pair.generator = load_network(ElectraForMaskedLM, inner, **changes).network
        else:
            report_or_refuse(folder, pair, [GENERATOR], new_heads)
        pair.share_embeddings()
        return pair


def generator_folder(folder: str) -> str | None:
    """The generator in the folder of a discriminator; None: it has none."""
    inner = Path(hub.local(folder)) / GENERATOR
    return str(inner) if inner.is_dir() else None


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
