"""The matrix products of a step, recorded and run alone: the limit of what a step can reach.

A product is an operator that PyTorch's flop counter knows, or its form in place. Attention kernels
and convolutions count as products.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.flop_counter import flop_registry

_aten = torch.ops.aten
_attention = "_scaled_dot_product_flash_attention"

FORMULAS: dict[Any, Callable[..., int]] = flop_registry | {
    _aten.addmm_: flop_registry[_aten.addmm],
    _aten.baddbmm_: flop_registry[_aten.baddbmm],
    getattr(_aten, f"{_attention}_for_cpu"): flop_registry[getattr(_aten, _attention)],
    getattr(_aten, f"{_attention}_for_cpu_backward"): flop_registry[
        getattr(_aten, f"{_attention}_backward")
    ],
}
"""Floating point operations of each product: PyTorch's, and of what it does not know."""


def names() -> set[str]:
    """The operators' names, as the profiler has them."""
    return {str(packet).replace(".", "::") for packet in FORMULAS}


class _Operand(tuple[Any, ...]):
    """Sizes, strides, dtype and device of a tensor."""

    __slots__ = ()


class Products:
    """Products in the order in which they came: ``with products.recording(): step()``.

    ``run`` runs them once more, each with random operands of the same shapes, strides and dtypes;
    those with the same operands' shapes share them.
    """

    def __init__(self) -> None:
        self._order: list[Any] = []
        self._calls: dict[Any, tuple[Any, Any, Any]] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the products of what runs meanwhile, forward and backward."""
        with _Recorder(self):
            yield

    def add(self, operator: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Record one call."""
        leaves, shape = tree_flatten((arguments, options))
        leaves = [_operand(leaf) for leaf in leaves]
        key = (operator, tuple(map(repr, leaves)))
        if key not in self._calls:
            fresh = [_random(leaf) if isinstance(leaf, _Operand) else leaf for leaf in leaves]
            args, kwargs = tree_unflatten(fresh, shape)
            self._calls[key] = operator, args, kwargs
        self._order.append(key)

    @torch.no_grad()
    def run(self) -> None:
        """All of them once, in order."""
        for key in self._order:
            operator, args, kwargs = self._calls[key]
            operator(*args, **kwargs)

    @torch.no_grad()
    def flops(self) -> int:
        """Floating point operations of one run."""
        of_each = {
            key: FORMULAS[operator.overloadpacket](
                *args, **kwargs, out_val=operator(*args, **kwargs)
            )
            for key, (operator, args, kwargs) in self._calls.items()
        }
        return sum(of_each[key] for key in self._order)

    def counts(self) -> Counter[str]:
        """How often each operator was called, by its name."""
        return Counter(str(operator.overloadpacket) for operator, _ in self._order)


class _Recorder(TorchDispatchMode):
    def __init__(self, products: Products) -> None:
        super().__init__()
        self._products = products

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.overloadpacket in FORMULAS:
            self._products.add(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _operand(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return _Operand((tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device))


def _random(operand: _Operand) -> torch.Tensor:
    """A tensor of these sizes and strides, also where several places are one (``expand``)."""
    sizes, strides, dtype, device = operand
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    storage = torch.empty(max(0, last) + 1, dtype=dtype, device=device)
    storage = storage.normal_(std=0.1) if dtype.is_floating_point else storage.zero_()
    return storage.as_strided(sizes, strides)
