"""The base class of all optimizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from plmctl import registry
from plmctl.config.base import OptimizerConfig

if TYPE_CHECKING:
    import torch
    from torch import nn

C = TypeVar("C", bound=OptimizerConfig)


class Optimizer(ABC, Generic[C]):
    """A config, and the PyTorch optimizer that it describes.

    A subclass names its config as a type and as an object: ``class Lamb(Optimizer[Config],
    config=Config)``. No file imports PyTorch at its top, because reading a config imports all.

    Attributes:
        STATE_BYTES: Bytes of its state per parameter, about.
        SHARDS: Whether it can update weights that are sharded over processes.
        LAYER_DECAY: Whether layers can have learning rates of their own (``train.layer_decay``).
    """

    Config: ClassVar[type[OptimizerConfig]]
    STATE_BYTES: ClassVar[int] = 8
    SHARDS: ClassVar[bool] = True
    LAYER_DECAY: ClassVar[bool] = True

    def __init_subclass__(cls, config: type[OptimizerConfig] | None = None) -> None:
        """Set ``Config``."""
        super().__init_subclass__()
        if config is not None:
            cls.Config = config

    def __init__(self, config: C) -> None:
        self.config = config

    @abstractmethod
    def make(self, network: nn.Module, *, fused: bool) -> torch.optim.Optimizer:
        """An optimizer over the parameters that require gradients.

        Args:
            fused: The form for a GPU: few kernels for all parameters.
        """


def get_optimizer(name: str) -> type[Optimizer[OptimizerConfig]]:
    """The optimizer of that name.

    Raises:
        ConfigError: No optimizer has that name; the message has the nearest.
    """
    return registry.member("optimizers", name, Optimizer)
