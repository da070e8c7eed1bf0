"""A finetuned classifier on labelled rows."""

from typing import Any, Literal

from pydantic import Field

from plmctl.config.members import MeasureConfig
from plmctl.errors import ConfigError
from plmctl.evaluation.measures import Subject


class Config(MeasureConfig):
    """Accuracy, F1 and a table of the classes of a finetuned model."""

    name: Literal["classification"] = "classification"
    data: tuple[str, ...] = Field(min_length=1)
    """Labelled rows, as `data.train` of finetuning."""
    text: str | tuple[str, str] = "text"
    """Column of the text; two columns for a pair."""
    label: str = "label"
    """Column of the label."""
    max_length: int = Field(default=128, ge=8)
    """Tokens a row, special ones included; longer rows are cut."""


def measure(config: Config, subject: Subject) -> dict[str, Any]:
    """See ``metrics.classification``; the labels are those of the model's config."""
    import torch
    from transformers import AutoModelForSequenceClassification

    from plmctl.corpus.tables import read_rows
    from plmctl.evaluation import metrics
    from plmctl.evaluation.predict import predict
    from plmctl.modeling.network import Network
    from plmctl.tasks import classification
    from plmctl.tokenization.load import load_tokenizer

    model = AutoModelForSequenceClassification.from_pretrained(subject.model, dtype=torch.float32)
    if "ForSequenceClassification" not in (model.config.architectures or [""])[0]:
        raise ConfigError(
            f"{subject.model}: no classifier, but a {(model.config.architectures or ['model'])[0]}",
            "finetune it first",
        )
    labels = tuple(model.config.id2label[number] for number in range(model.config.num_labels))
    columns = classification.Config(text=config.text, label=config.label)
    tokenizer = load_tokenizer(subject.model)
    step = classification.make(
        columns, read_rows(config.data), tokenizer, labels, config.max_length
    )
    network = Network(model, classification.forward).to(subject.accelerator.device)
    predictions = predict(network, step, subject.accelerator.device)["label"]
    return {**metrics.classification(predictions, step.targets, labels), "rows": len(step)}
