"""One file a finetuning task: rows to examples, the loss, and what a prediction is worth."""

from typing import Any, Protocol, cast

from plmctl import registry


class Task(Protocol):
    """What a file of this folder defines; the module itself is the object."""

    Config: Any
    """Its config model, a ``TaskConfig``."""
    PARTS: tuple[str, ...]
    METRICS: str
    """The function of ``evaluation.metrics`` that says what predictions are worth."""

    def text_columns(self, config: Any) -> tuple[str, ...]:
        """The columns that are read: rows that are equal in them never stand on both sides."""

    def labels_of(self, config: Any, rows: Any) -> tuple[str, ...]:
        """The labels of the training rows, sorted: they are fixed in the model's config."""

    def load(
        self, model: str, labels: tuple[str, ...], *, pretrained: bool, changes: dict[str, Any]
    ) -> Any:
        """The network with the task's head, from pretrained or from random weights."""

    def make(self, config: Any, rows: Any, tokenizer: Any, labels: Any, max_length: int) -> Any:
        """The task over rows: a ``training.step.Step`` with ``targets`` and ``lengths()``."""

    def forward(self, model: Any, **inputs: Any) -> dict[str, Any]:
        """Logits of each part."""


def get(name: str) -> Task:
    """The task of that name.

    Raises:
        ConfigError: There is none; the message has the nearest.
    """
    return cast(Task, registry.load("tasks", name))
