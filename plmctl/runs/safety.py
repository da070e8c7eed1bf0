"""What a config says about saving, and about steps that go wrong, as the loop takes it."""

from typing import TYPE_CHECKING, Any

from plmctl.config.finetune import FinetuneConfig
from plmctl.config.pretrain import PretrainConfig
from plmctl.config.run import CheckpointConfig

if TYPE_CHECKING:
    from plmctl.training.checkpoint import Retention


def retention(config: CheckpointConfig) -> "Retention":
    """Which checkpoints stay."""
    from plmctl.training.checkpoint import Retention

    return Retention(config.keep, config.keep_every, config.keep_best)


def safety(config: PretrainConfig | FinetuneConfig) -> dict[str, Any]:
    """Fields of a ``Plan``: when it saves, and what it does where it cannot go on as it is."""
    from plmctl.training.loop import Guard

    return {
        "save_every": config.checkpoint.every,
        "save_best": config.checkpoint.keep_best,
        "background": config.checkpoint.background,
        "guard": Guard(**config.divergence.model_dump()),
        # Without all processes nothing of a sharded network can be tried, or tried again.
        "elastic": config.train.micro_batch_size == "auto" and config.launch.strategy == "ddp",
    }
