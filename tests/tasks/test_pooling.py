"""Pooled encoders: the vectors by hand, folders that load again, and families that have none."""

from pathlib import Path

import numpy as np
import pytest
import torch

from plmctl.errors import ConfigError
from plmctl.models.network import Network
from plmctl.tasks.base import Finetuned, get_task, read_finetuned
from tests.tasks.conftest import ENCODERS, Folder, load_head, rows_of

TASK = get_task("classification")
LABELS = ("x", "y", "z")
ROWS = rows_of({"text": "a b c", "label": "x"}, {"text": "d", "label": "z"})


def logits(config, folder: str, **options) -> tuple[torch.Tensor, Network]:  # noqa: ANN001
    torch.manual_seed(2)
    model = load_head(TASK(config), folder, LABELS, **{"new_heads": print, **options})
    examples = TASK(config).make(ROWS, TASK(config).tokenizer(folder), LABELS, 20, "score")
    network = Network(model, TASK.forward).eval()
    with torch.no_grad():
        batch = examples.collate(np.zeros(2, int), np.arange(2))
        return network(**batch.inputs)["label"], network


@pytest.mark.parametrize("family", ENCODERS)
@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_by_hand_and_loaded_again(
    pooling: str, family: str, folder: Folder, tmp_path: Path
) -> None:
    from transformers import AutoModel, AutoModelForSequenceClassification

    config = TASK.Config(pooling=pooling)
    got, network = logits(config, folder(family))
    tokenizer = TASK(config).tokenizer(folder(family))
    encoder = AutoModel.from_pretrained(folder(family)).eval()
    for row, row_logits in zip(ROWS, got, strict=True):  # one by one: there is no padding
        with torch.no_grad():
            inputs = tokenizer(row.values["text"], return_tensors="pt")
            states = encoder(**inputs).last_hidden_state[0]
        vector = {"cls": states[0], "mean": states.mean(0), "max": states.max(0).values}[pooling]
        head = network.model.classifier
        assert torch.allclose(row_logits, head.weight @ vector + head.bias, atol=1e-5)
    network.model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    Finetuned(TASK(config), LABELS, 20).write(tmp_path)
    again = read_finetuned(str(tmp_path))
    assert again.config.pooling == pooling
    assert torch.equal(logits(again.config, str(tmp_path))[0], got)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert theirs.config.id2label == dict(enumerate(LABELS))


def test_dropout_and_random_weights(folder: Folder) -> None:
    config = TASK.Config(pooling="mean")
    changes = {"hidden_dropout_prob": 0.3, "classifier_dropout": 0.2}
    _, network = logits(config, folder("bert"), changes=changes, pretrained=False)
    assert network.model.dropout.p == 0.2
    assert network.model.encoder.config.hidden_dropout_prob == 0.3
    _, pretrained = logits(config, folder("bert"))
    one, two = (n.model.encoder.embeddings.word_embeddings.weight for n in (network, pretrained))
    assert not torch.equal(one, two)


def test_other_families_say_so(folder: Folder) -> None:
    for family in ("gpt1", "gpt2"):
        with pytest.raises(ConfigError, match="pooling is for encoders"):
            logits(TASK.Config(pooling="mean"), folder(family))
