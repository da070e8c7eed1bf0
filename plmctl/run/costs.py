"""The sizes of a network, the floating-point operations of its tokens, and its training state.

FLOPs are counted in the usual way (PaLM, appendix B; Kaplan et al. 2020): 6 per parameter and token
for a forward and a backward pass, without the embedding lookup, and 12 per layer, hidden unit,
position and token for attention. The output matrix counts where it runs: at the targets. ELMo's
convolutions count at each character, its output matrix in each direction. The forward pass of a
teacher is not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plmctl.families.base import Sizes
from plmctl.optimizers.base import get_optimizer
from plmctl.run.prepared import Outline, Prepared, make_network

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def flops_per_token(sizes: Sizes, seq_len: int, targets: float = 1.0) -> float:
    """Floating-point operations of a forward and a backward pass, per input token.

    Args:
        targets: Targets per input token; of an encoder-decoder, the tokens of its decoder.
    """
    attention = 12 * sizes.layers * sizes.width * seq_len if sizes.heads else 0
    matrix = sizes.outputs * sizes.output_width
    if not sizes.two_stacks:
        # ELMo has two targets per token, and ``used`` has its matrix twice.
        return 6 * (sizes.used - max(0.0, 1 - targets) * matrix) + attention
    # A token goes through one of the two stacks; target tokens also through the output matrix.
    half = 6 * (sizes.used - matrix) / 2 + attention / 2
    return half + targets * (half + 6 * matrix)


def phase_flops(run: Outline) -> tuple[float, ...]:
    """FLOPs per token of each phase."""
    sizes, targets = network_sizes(run), run.objective.targets_per_token()
    return tuple(
        flops_per_token(sizes, phase.seq_len, targets) for phase in run.config.train.phases
    )


def network_sizes(run: Outline) -> Sizes:
    """The sizes of a run's network; a new one is made on the meta device, without weights."""
    import torch

    outputs = run.objective.outputs_per_target(run.outputs)
    if run.config.model.init_from is None:
        with torch.device("meta"):
            return run.family.sizes(run.bare_model(), outputs)
    if isinstance(run, Prepared):
        return run.family.sizes(make_network(run, run.tokenizer).model, outputs)
    return run.family.sizes(run.bare_model(), outputs)


def network_facts(model: PreTrainedModel) -> dict[str, int]:
    """Its number of parameters and its sizes, in the words of a card; unknown ones are left out."""
    names = {
        "layers": "num_hidden_layers",
        "hidden size": "hidden_size",
        "attention heads": "num_attention_heads",
        "positions": "max_position_embeddings",
        "vocabulary": "vocab_size",
    }
    sizes = {name: getattr(model.config, key, None) for name, key in names.items()}
    known = {name: size for name, size in sizes.items() if isinstance(size, int)}
    return {"parameters": sum(one.numel() for one in model.parameters()), **known}


# --- Memory of the training state ---


def state_memory(sizes: Sizes, optimizer: str, *, mixed: bool) -> dict[str, float]:
    """Bytes of the training state, in 32 bits; exact except for small buffers.

    Args:
        mixed: Whether products use 16-bit copies of the weights.
    """
    count = float(sizes.parameters)
    return {
        "weights": 4 * count + (2 * count if mixed else 0.0),
        "gradients": 4 * count,
        "optimizer": get_optimizer(optimizer).STATE_BYTES * count,
    }
