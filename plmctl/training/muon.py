"""PyTorch's Muon and AdamW behind one optimizer."""

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from plmctl.training.optim import trained


def hidden_matrices(network: nn.Module) -> list[nn.Parameter]:
    """Matrices between the embeddings and the heads.

    Left out: embedding tables (tied output matrices with them), an output matrix of its own, and
    everything outside the base model, which are the heads.
    """
    model: Any = getattr(network, "model", network)
    base: nn.Module = getattr(model, "base_model", model)
    outside = {id(m.weight) for m in network.modules() if isinstance(m, nn.Embedding)}
    output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if output is not None:
        outside.add(id(output.weight))
    return [p for p in trained(base) if p.ndim == 2 and id(p) not in outside]


class MuonAndAdamW(Optimizer):
    """Muon on one group, AdamW on the others: one state, one list of groups.

    Args:
        muon: The group of Muon, with its settings.
        adamw: The groups of AdamW.
        settings: AdamW's for all its groups.
    """

    def __init__(
        self, muon: dict[str, Any], adamw: list[dict[str, Any]], settings: dict[str, Any]
    ) -> None:
        self._muon, self._adamw = Muon([muon]), AdamW(adamw, **settings)
        super().__init__([*self._muon.param_groups, *self._adamw.param_groups], {})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of both; there is no closure in this project."""
        # Accelerate and a restored state replace these objects, so they are handed over each time.
        self._muon.state = self._adamw.state = self.state
        self._muon.param_groups = self.param_groups[:1]
        self._adamw.param_groups = self.param_groups[1:]
        self._muon.step()  # type: ignore[no-untyped-call]
        self._adamw.step()
