"""FlashAttention's operator for rows of varying length on a CPU, written out row by row.

PyTorch has it for GPUs only. With it the code that a GPU has runs here, forward and backward.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, library
from torch._dynamo.utils import counters

from plmctl.modeling import varlen


def _weights(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """[heads, T, T] of one row."""
    return (torch.einsum("qhd,khd->hqk", q, k) * scale).softmax(-1)


def _rows(offsets: Tensor, most: int) -> list[slice]:
    ends = offsets.tolist()
    rows = [slice(a, b) for a, b in zip(ends, ends[1:], strict=False)]
    assert all(0 < row.stop - row.start <= most for row in rows)
    return rows


def _kept(seed: Tensor, number: int, q: Tensor, p: float) -> Tensor:
    draws = torch.Generator().manual_seed(int(seed[0]) + number)
    chosen = torch.rand(q.shape[1], len(q), len(q), generator=draws) >= p
    return chosen / (1 - p)


def flash_forward(
    q: Tensor, k: Tensor, v: Tensor, cum_q: Tensor, cum_k: Tensor, max_q: int, max_k: int,
    dropout_p: float, is_causal: bool, return_debug_mask: bool, *, scale: float, **rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    assert cum_q.dtype == torch.int32
    assert cum_q is cum_k
    assert not is_causal
    assert int(cum_q[-1]) == len(q)
    seed = torch.randint(1 << 30, (2,)).to(torch.uint64)
    rows = []
    for n, r in enumerate(_rows(cum_q, max_q)):
        weights = _weights(q[r], k[r], scale) * _kept(seed, n, q[r], dropout_p)
        rows.append(torch.einsum("hqk,khd->qhd", weights, v[r]))
    unused, mask = torch.empty((), dtype=torch.uint64), torch.empty(0)
    return torch.cat(rows), q.new_zeros(q.shape[1], len(q)), seed, unused, mask


def flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cum_q: Tensor,
    cum_k: Tensor, max_q: int, max_k: int, dropout_p: float, is_causal: bool, rng: Tensor,
    unused: Tensor, *, scale: float, **rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    for n, r in enumerate(_rows(cum_q, max_q)):
        weights, keep = _weights(q[r], k[r], scale), _kept(rng, n, q[r], dropout_p)
        dv[r] = torch.einsum("hqk,qhd->khd", weights * keep, grad[r])
        inner = torch.einsum("qhd,khd->hqk", grad[r], v[r]) * keep
        scores = weights * (inner - (weights * inner).sum(-1, keepdim=True)) * scale
        dq[r] = torch.einsum("hqk,khd->qhd", scores, k[r])
        dk[r] = torch.einsum("hqk,qhd->khd", scores, q[r])
    return dq, dk, dv


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernel's operator on a CPU, and as if it were made for it."""
    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(varlen, "takes", lambda device, dtype, head: True)
    registered = library.Library("aten", "IMPL")
    registered.impl("_flash_attention_forward", flash_forward, "CPU")
    registered.impl("_flash_attention_backward", flash_backward, "CPU")
    yield
    registered._destroy()
    torch._dynamo.reset()
