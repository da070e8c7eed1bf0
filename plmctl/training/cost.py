"""What training a network costs: arithmetic and memory, from its sizes.

FLOPs are counted as is the custom (PaLM, appendix B; Kaplan et al. 2020): 6 a parameter and token
for a forward and a backward, the output matrix included and the look-up of embeddings not, and 12
a layer, hidden unit, position and token for attention. What is saved by heads that run at masked
positions only is not taken off.
"""

from dataclasses import dataclass
from typing import Any

_STATE_BYTES = {"adamw": 8, "lamb": 8, "adagrad": 4, "muon": 4, "adafactor": 0}
"""An optimizer's bytes a parameter; adafactor keeps rows and columns, which is next to nothing."""


@dataclass(frozen=True)
class Sizes:
    """Of a network.

    Attributes:
        parameters: All of them, shared ones once.
        used: Those that take part in products, as often as they do: those of layers that share
            weights count in each of them; the output matrix counts, embeddings do not.
        layers: Of the encoder, the decoder, or both together.
        width: Hidden units.
        heads: Of attention; 0 without attention.
        outputs: Ids that are predicted.
        two_stacks: It is an encoder and a decoder.
    """

    parameters: int
    used: int
    layers: int
    width: int
    heads: int
    outputs: int
    two_stacks: bool


def sizes_of(model: Any, outputs: int) -> Sizes:
    """The sizes of a model of transformers, which may be on the meta device.

    Args:
        model: The network.
        outputs: Ids that it predicts.
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
    if getattr(config, "tie_word_embeddings", False) and tables:
        used += outputs * (getattr(config, "embedding_size", None) or width)
    return Sizes(
        parameters,
        used,
        layers + (getattr(config, "num_decoder_layers", None) or 0),
        width,
        getattr(config, "num_attention_heads", 0) if layers else 0,
        outputs,
        bool(getattr(config, "is_encoder_decoder", False)),
    )


def flops_per_token(sizes: Sizes, seq_len: int, targets: float = 1.0) -> float:
    """Floating-point operations of a forward and a backward, an input token.

    Args:
        sizes: Of the network.
        seq_len: Tokens of an input.
        targets: Of two stacks: target tokens an input token.
    """
    attention = 12 * sizes.layers * sizes.width * seq_len if sizes.heads else 0
    if not sizes.two_stacks:
        return float(6 * sizes.used + attention)
    # A token goes through one of the stacks, and those of the output through its matrix.
    matrix = sizes.outputs * sizes.width
    half = 6 * (sizes.used - matrix) / 2 + attention / 2
    return half + targets * (half + 6 * matrix)


def memory(sizes: Sizes, optimizer: str, *, mixed: bool) -> dict[str, float]:
    """Bytes of what is kept from step to step, in 32 bits; exact but for small change.

    Args:
        sizes: Of the network.
        optimizer: Its name.
        mixed: Whether products are in 16 bits, of copies of the weights.
    """
    count = float(sizes.parameters)
    return {
        "weights": 4 * count + (2 * count if mixed else 0.0),
        "gradients": 4 * count,
        "optimizer": _STATE_BYTES.get(optimizer, 8) * count,
    }


@dataclass(frozen=True)
class Kept:
    """What is kept from the forward for the backward.

    Attributes:
        mixed: Products are in 16 bits.
        scores: Attention keeps its scores, which fused kernels do not.
        inputs_only: Layers keep their inputs; one at a time has the rest, in the backward.
    """

    mixed: bool
    scores: bool
    inputs_only: bool = False


def activations(sizes: Sizes, rows: int, seq_len: int, *, targets: float, kept: Kept) -> float:
    """Bytes that a forward keeps for its backward; an estimate, right within a factor of two.

    34 bytes a layer, unit and token in 16 bits, and 5 a head and pair of positions where the scores
    of attention are kept (Korthikanti et al. 2022, equation 1); 2 of those 34 are a layer's input;
    three copies of the logits.

    Args:
        sizes: Of the network.
        rows: Of a micro-batch.
        seq_len: Tokens of a row.
        targets: Share of the tokens at which a head predicts.
        kept: In what form.
    """
    unit = 1 if kept.mixed else 2
    pairs = 5 * sizes.heads * seq_len if kept.scores else 0
    layer = unit * (34 * sizes.width + pairs)
    layers = sizes.layers * layer
    if kept.inputs_only and sizes.layers:
        layers = sizes.layers * unit * 2 * sizes.width + layer
    return float(rows * seq_len * (layers + 3 * 4 * sizes.outputs * targets))
