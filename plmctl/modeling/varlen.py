"""An encoder's attention by a GPU's kernel for rows of varying length, one after the other.

The kernel is FlashAttention-2 (Dao, 2023, arXiv:2307.08691) as PyTorch has it built in. Of its two
public ways there, ``torch.nn.attention.varlen`` has no dropout, and nested tensors, which PyTorch
calls a prototype, choose their kernel by rules of their own and cannot be traced without a GPU.
Both come down to one operator, with a backward and with rules for the compiler: it is called here.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface

from plmctl.modeling.attention import on_the_grid
from plmctl.modeling.cells import Cells
from plmctl.modeling.masks import unseen

NAME = "varlen"

_PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
_LARGEST_HEAD = 192  # above, some cards have no backward


def forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls.

    Where the kernel is not for it, it is PyTorch's usual one on rows that are padded for it.

    Args:
        module: The layer.
        query: [1, heads, T, d] of what is real of a batch, or [B, heads, L, d].
        key: As query.
        value: As query.
        attention_mask: [B, 1, L, L]; the kernel has no use for it.
        **options: transformers': dropout and scaling; and ``cells`` (``modeling.encoder``).

    Returns:
        [1, T, heads, d] or [B, L, heads, d], and no weights.
    """
    cells: Cells | None = options.pop("cells", None)
    plain: Any = sdpa_attention_forward
    if cells is None:
        found: tuple[Tensor, None] = plain(module, query, key, value, attention_mask, **options)
        return found
    if cells.offsets is None or not takes(query.device, query.dtype, query.shape[-1]):
        return on_the_grid(plain, cells, module, (query, key, value), attention_mask, **options)
    attended_ThD = torch.ops.aten._flash_attention_forward(
        *(x[0].transpose(0, 1) for x in (query, key, value)),
        *(cells.offsets, cells.offsets, cells.length, cells.length),
        options.get("dropout", 0.0),
        is_causal=False,
        return_debug_mask=False,
        scale=options.get("scaling"),
    )[0]
    return attended_ThD[None], None


def takes(device: torch.device, dtype: torch.dtype, head: int) -> bool:
    """Whether the kernel computes heads of a size in a precision on a device."""
    fits = dtype in _PRECISIONS.values() and head % 8 == 0 and head <= _LARGEST_HEAD
    return _built() and device.type == "cuda" and fits


def in_words(config: PreTrainedConfig, device: str, precision: str) -> str:
    """What an encoder's attention comes to.

    Args:
        config: Of the encoder.
        device: "cpu", "cuda" or "mps".
        precision: "fp32", "bf16" or "fp16".
    """
    head, dtype = config.hidden_size // config.num_attention_heads, _PRECISIONS.get(precision)
    if dtype is not None and takes(torch.device(device), dtype, head):
        return "flash attention, no padding"
    return "sdpa on padded rows, no padding elsewhere"


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # theirs
def _built() -> bool:
    """Whether it is there at all; NVIDIA's Ampere was the first to have it."""
    return (
        torch.version.cuda is not None
        and torch.cuda.is_available()
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability() >= (8, 0)
    )


AttentionInterface.register(NAME, forward)
AttentionMaskInterface.register(NAME, unseen)
