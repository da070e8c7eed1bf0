"""PyTorch's Adagrad in a form for a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.optim import Adagrad

from plmctl.optimizers._gpu import Flagged, gradients_of, move


class AdagradOnGpu(Flagged, Adagrad):
    """The same in lists of tensors, with the counts of updates on the host and a flag."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update; there is no closure in this project, nor a decay of the rate."""
        self.updated = ()
        for group in self.param_groups:
            for batch in self.batches(group["params"]):
                self.count([self.state[parameter] for parameter in batch])
                sums = [self.state[parameter]["sum"] for parameter in batch]
                gradients = gradients_of(batch)
                if group["weight_decay"]:
                    decay = group["weight_decay"]
                    gradients = list(torch._foreach_add(gradients, batch, alpha=decay))
                move(sums, list(torch._foreach_mul(gradients, gradients)), -1.0, self.found_inf)
                roots = list(torch._foreach_sqrt(sums))
                if group["eps"]:
                    torch._foreach_add_(roots, group["eps"])
                by = torch._foreach_div(gradients, roots)
                move(batch, list(by), group["lr"], self.found_inf)
