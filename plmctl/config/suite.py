"""What a suite's run folder remembers of how it was started."""

from plmctl.config.base import Model, Text


class SuiteConfig(Model):
    """A suite of finetunings, as ``plmctl eval MODEL --suite NAME`` was asked for it.

    Tasks and seeds are not among it: the same folder takes more of them.
    """

    run: Text
    """The folder of all its runs and of its table."""
    suite: Text
    """Its name."""
    model: Text
    """The pretrained folder or Hub id."""
    data: Text | None = None
    """The data directory; empty: the recipes' own, from the Hub."""
    settings: tuple[Text, ...] = ()
    """What was set otherwise than in the recipes, as KEY=VALUE or TASK.KEY=VALUE."""
    grid: bool = False
    """Whether the recipes' grids were tried."""
