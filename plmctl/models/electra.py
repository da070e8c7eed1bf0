"""ELECTRA's two networks: a generator that replaces tokens, a discriminator that finds them.

They share the embeddings: tokens, positions, segments and their LayerNorm; the output layer of the
generator is the same table.
"""

from __future__ import annotations

from typing import Any

from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from plmctl.models.pair import Pair


class ElectraPair(Pair):
    """A discriminator and its generator."""

    config_class = ElectraConfig
    _supports_sdpa = True

    DISCRIMINATOR = ElectraForPreTraining
    MASKED = ElectraForMaskedLM

    @staticmethod
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
        own = {**config.to_dict(), **narrow, "architectures": ["ElectraForMaskedLM"]}
        return ElectraConfig(**own)

    def share_embeddings(self) -> None:
        """Give the generator the embeddings of the discriminator."""
        body: Any = self.discriminator.electra
        self.generator.electra.embeddings = body.embeddings
        self.generator.generator_lm_head.weight = body.embeddings.word_embeddings.weight
