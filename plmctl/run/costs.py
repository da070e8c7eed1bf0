"""The sizes of a network, the floating-point operations of its tokens, and its training state.

FLOPs are counted in the usual way (PaLM, appendix B; Kaplan et al. 2020): 6 per parameter and token
for a forward and a backward pass, with the output matrix and without the embedding lookup, and 12
per layer, hidden unit, position and token for attention. What heads save by running at masked
positions only is not subtracted. ELMo's convolutions count at each character, its output matrix in
each direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plmctl.objectives.base import make_objective
from plmctl.run.configs import PretrainConfig
from plmctl.run.display import say
from plmctl.run.network import fresh_model, loaded_model, make_network
from plmctl.tokenization.load import Vocab

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Sizes:
    """The sizes of a network.

    Attributes:
        parameters: All parameters; shared ones count once.
        used: Parameters that are multiplied, each as often as it is used: weights that layers share
            count once per layer; the output matrix counts, embeddings do not.
        layers: The number of layers of the encoder, the decoder, or both together.
        width: The hidden size.
        heads: Attention heads; 0 without attention.
        outputs: Ids that a target is compared with.
        output_width: Numbers of a token that the output layer reads.
        two_stacks: Whether it is an encoder-decoder.
    """

    parameters: int
    used: int
    layers: int
    width: int
    heads: int
    outputs: int
    output_width: int
    two_stacks: bool


def sizes_of(model: Any, outputs: int) -> Sizes:
    """The sizes of a model of transformers, which may be on the meta device.

    Args:
        outputs: Ids that a target is compared with.
    """
    from torch import nn

    config = model.config
    parameters = sum(p.numel() for p in model.parameters())
    tables = {m.weight for m in model.modules() if isinstance(m, nn.Embedding)}
    used = parameters - sum(table.numel() for table in tables)
    layers: int = getattr(config, "num_hidden_layers", 0)
    if groups := getattr(config, "num_hidden_groups", 0):  # ALBERT
        shared = sum(p.numel() for n, p in model.named_parameters() if "layer_groups" in n)
        used += shared * layers // groups - shared
    width: int = getattr(config, "hidden_size", 0)
    output_width: int = getattr(config, "embedding_size", None) or width
    if config.model_type == "elmo":
        output_width = config.projection_size
        # Both directions predict; the convolutions run at all characters of a word.
        used += (2 * outputs - config.vocab_size) * output_width
        for filters in (m for m in model.modules() if isinstance(m, nn.Conv1d)):
            used += filters.weight.numel() * (config.max_characters - filters.kernel_size[0])
    if getattr(config, "tie_word_embeddings", False) and tables:
        used += outputs * output_width
    return Sizes(
        parameters,
        used,
        layers + (getattr(config, "num_decoder_layers", None) or 0),
        width,
        getattr(config, "num_attention_heads", 0) if layers else 0,
        outputs,
        output_width,
        bool(getattr(config, "is_encoder_decoder", False)),
    )


def flops_per_token(sizes: Sizes, seq_len: int, targets: float = 1.0) -> float:
    """Floating-point operations of a forward and a backward pass, per input token.

    Args:
        sizes: The sizes of the network.
        targets: For an encoder-decoder: target tokens per input token.
    """
    attention = 12 * sizes.layers * sizes.width * seq_len if sizes.heads else 0
    if not sizes.two_stacks:
        return float(6 * sizes.used + attention)
    # A token goes through one of the two stacks; target tokens also through the output matrix.
    matrix = sizes.outputs * sizes.output_width
    half = 6 * (sizes.used - matrix) / 2 + attention / 2
    return half + targets * (half + 6 * matrix)


def phase_flops(
    config: PretrainConfig, vocab: Vocab, tokenizer: PreTrainedTokenizerBase | None = None
) -> tuple[float, ...]:
    """FLOPs per token of each phase; the arguments are those of ``network_sizes``."""
    sizes = network_sizes(config, vocab, tokenizer)
    objective = make_objective(config.objective)
    predicted = objective.targets_per_token()
    output = predicted if objective.ENCODER_DECODER else 1.0
    return tuple(flops_per_token(sizes, phase.seq_len, output) for phase in config.train.phases)


def network_sizes(
    config: PretrainConfig, vocab: Vocab, tokenizer: PreTrainedTokenizerBase | None = None
) -> Sizes:
    """The sizes of a config's network; a new one is made on the meta device, without weights.

    Args:
        vocab: The vocabulary of its tokenizer, or a stand-in.
        tokenizer: The tokenizer; None: it is not trained yet.
    """
    import torch

    objective = make_objective(config.objective)
    outputs = objective.outputs_per_target(objective.num_outputs(vocab.size))
    if config.model.init_from is not None:
        model = (
            loaded_model(config, new_heads=say)
            if tokenizer is None
            else make_network(config, tokenizer).model
        )
        return sizes_of(model, outputs)
    with torch.device("meta"):
        return sizes_of(fresh_model(config, vocab), outputs)


# --- Memory of the training state ---


_STATE_BYTES = {"adamw": 8, "lamb": 8, "adagrad": 4, "muon": 4, "adafactor": 0}
"""Bytes per parameter of an optimizer's state; adafactor keeps only sums of rows and columns."""


def state_memory(sizes: Sizes, optimizer: str, *, mixed: bool) -> dict[str, float]:
    """Bytes of the training state, in 32 bits; exact except for small buffers.

    Args:
        sizes: The sizes of the network.
        mixed: Whether products use 16-bit copies of the weights.
    """
    count = float(sizes.parameters)
    return {
        "weights": 4 * count + (2 * count if mixed else 0.0),
        "gradients": 4 * count,
        "optimizer": _STATE_BYTES.get(optimizer, 8) * count,
    }
