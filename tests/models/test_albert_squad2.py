"""ALBERT's head for questions that may have no answer."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AlbertConfig, AlbertForPreTraining

from plmctl.errors import ConfigError
from plmctl.models.heads.question_answering import BEAM, AlbertForAnswerOrNone
from plmctl.models.network import Network
from plmctl.tasks import question_answering as task
from tests.tasks.conftest import load_head
from tests.tasks.test_question_answering import LETTERS, albert, row

CONFIG = AlbertConfig(
    vocab_size=len(LETTERS) + 20,
    embedding_size=8,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=128,
)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    torch.manual_seed(0)
    AlbertForPreTraining(CONFIG).save_pretrained(tmp_path)
    albert().save_pretrained(tmp_path)
    return str(tmp_path)


def inputs(rows: int = 2, cells: int = 12) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    ids = torch.randint(5, CONFIG.vocab_size, (rows, cells))
    allowed = torch.zeros(rows, cells, dtype=torch.bool)
    allowed[:, 0] = allowed[:, 4:-1] = True
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "allowed": allowed}


def test_beams_are_those_of_the_head_with_each_start() -> None:
    torch.manual_seed(0)
    model = AlbertForAnswerOrNone(CONFIG).eval()
    batch = inputs()
    with torch.no_grad():
        beams = model(**batch)
        assert beams["score"].shape == (2, BEAM, BEAM)
        for place in range(BEAM):
            forced = model(**batch, start_positions=beams["first"][:, place])
            start, end = forced["start"].log_softmax(-1), forced["end"].log_softmax(-1)
            assert (start.argsort(descending=True)[:, place] == beams["first"][:, place]).all()
            rows = torch.arange(2)[:, None]
            expected = start[rows, beams["first"][:, [place]]] + end[rows, beams["last"][:, place]]
            torch.testing.assert_close(beams["score"][:, place], expected)
            torch.testing.assert_close(forced["none"], beams["none"])
    assert torch.isneginf(forced["start"][~batch["allowed"]]).all()
    # The end depends on the start, and on what is there.
    assert not torch.allclose(
        model(**batch, start_positions=torch.tensor([4, 4]))["end"],
        model(**batch, start_positions=torch.tensor([5, 5]))["end"],
    )


def test_it_is_chosen_for_an_albert_with_version2(folder: str) -> None:
    config = task.Config(version2=True)
    model = load_head(task.QuestionAnswering(config), folder, new_heads=print)
    assert type(model).__name__ == "AlbertForAnswerOrNone"
    before = AlbertForPreTraining.from_pretrained(folder).albert.state_dict()
    for name, weight in model.albert.state_dict().items():
        assert torch.equal(weight, before[name])
    fresh = load_head(task.QuestionAnswering(config), folder, pretrained=False)
    assert not torch.equal(fresh.start.weight, model.start.weight)
    for options in ({"version2": False}, {"version2": True, "head": "linear"}):
        linear = load_head(task.QuestionAnswering(task.Config(**options)), folder, new_heads=print)
        assert type(linear).__name__ == "AlbertForQuestionAnswering"
    with pytest.raises(ConfigError, match="head: albert, for albert without"):
        load_head(task.QuestionAnswering(task.Config(head="albert")), folder)


def test_it_learns_answers_and_that_there_is_none(folder: str) -> None:
    config = task.Config(version2=True, doc_stride=40)
    rows = [row("Elbe", question="river?"), row(None, question="x?")]
    tokenizer = task.QuestionAnswering(config).tokenizer(folder)
    examples = task.QuestionAnswering(config).make(rows, tokenizer, (), 100, "train")
    assert examples.loss_terms == ("start", "end", "none")
    model = load_head(task.QuestionAnswering(config), folder, new_heads=print)
    network = Network(model, task.QuestionAnswering.forward)
    whole = np.arange(len(examples))
    batch = examples.collate(whole * 0, whole)
    assert batch.inputs["token_type_ids"].unique().tolist() == [0, 1]
    assert batch.targets["none"].tolist() == (batch.targets["start"] == 0).int().tolist()
    optimizer = torch.optim.Adam(network.parameters(), lr=4e-3)  # 1e-2: some seeds get stuck
    counts = batch.counts()
    for _ in range(200):
        optimizer.zero_grad()
        sums = examples.loss(network, batch)
        loss = sum(0.5 * sums[part] / counts[part] for part in examples.loss_terms)
        loss.backward()
        optimizer.step()
    network.eval()
    scores = examples.score(network, batch)
    assert scores["none/correct"] == len(examples)
    with torch.no_grad():
        outputs = examples.outputs(network, batch)
    answers = examples.answers({name: list(value.numpy()) for name, value in outputs.items()})
    assert [one["prediction"] for one in answers] == ["Elbe", ""]
    least = min(outputs["none"][examples.windows.row == 1].tolist())
    assert answers[1]["probability"] == pytest.approx(1 / (1 + math.exp(-least)))
    assert examples.compute_metrics(answers)["f1"] == 100


def test_a_saved_head_is_loaded_again(folder: str, tmp_path: Path) -> None:
    config = task.Config(version2=True)
    model = load_head(task.QuestionAnswering(config), folder, new_heads=print)
    model.save_pretrained(tmp_path / "saved")
    answering = task.QuestionAnswering(config)
    again = load_head(answering, str(tmp_path / "saved"), (), answering.tokenizer(folder))
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
