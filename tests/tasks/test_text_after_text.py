"""Text to text by networks that read from left to right: what is learned, and what is written."""

import numpy as np
import pytest
import torch

from plmctl.evaluation.scoring import answers
from plmctl.models.fast import use_fused_attention
from plmctl.models.network import Network
from plmctl.tasks.base import get_task
from tests.tasks.conftest import Folder, load_head, rows_of

TASK = get_task("text_to_text")
FAMILIES = ("gpt1", "gpt2", "gpt3")
ROWS = rows_of(
    {"source": "a b c", "target": "x y"},
    {"source": "d", "target": "z"},
    {"source": "e f g h i j", "target": "u v w x"},
)


def make_case(
    model: str, use: str = "score", rows: list = ROWS, longest: int = 16, **fields: object
):
    config = TASK.Config(max_target_length=8, **fields)
    tokens = TASK(config).tokenizer(model)
    examples = TASK(config).make(rows, tokens, TASK(config).labels(ROWS), longest, use)
    loaded = load_head(TASK(config), model)
    return examples, Network(loaded, TASK.forward).eval(), tokens


def batch_of(examples, *which: int):  # noqa: ANN001, ANN201
    return examples.collate(np.zeros(len(which), dtype=np.int64), np.array(which))


@pytest.mark.parametrize("family", FAMILIES)
def test_source_target_and_end_stand_in_one_sequence(family: str, folder: Folder) -> None:
    examples, _, tokens = make_case(folder(family))
    row = batch_of(examples, 1).inputs["input_ids"][0].tolist()
    text = "".join(tokens.convert_ids_to_tokens(row)).replace("</w>", "")
    expected = "_start_d_delimiter_z_classify_" if family == "gpt1" else "dĊz<|endoftext|>"
    assert text == expected
    examples, _, tokens = make_case(folder(family), longest=4)
    assert examples.cut == 2
    assert max(map(len, examples.sources)) == 4


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_is_of_the_target_alone_and_that_of_transformers(
    family: str, folder: Folder
) -> None:
    examples, network, _ = make_case(folder(family))
    batch = batch_of(examples, 0, 1, 2)
    ours = examples.loss(network, batch)["lm"].detach()
    theirs, count = 0.0, 0
    for source, target in zip(examples.sources, examples.targets, strict=True):
        ids = torch.tensor([[*source, *target]])
        labels = torch.tensor([[-100] * len(source) + list(target)])
        with torch.no_grad():
            theirs += float(network.model(ids, labels=labels).loss) * len(target)
        count += len(target)
    assert batch.targets["lm"].numel() == count
    torch.testing.assert_close(float(ours), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("fields", [{}, {"decoding": "beam", "beams": 2}])
def test_a_batch_writes_what_each_row_writes_alone(
    family: str, fields: dict, folder: Folder
) -> None:
    examples, network, _ = make_case(folder(family), "predict", **fields)
    together = [one["prediction"] for one in answers(network, examples, torch.device("cpu"))]
    alone = []
    for row in ROWS:
        examples, _, _ = make_case(folder(family), "predict", [row], **fields)
        alone += [one["prediction"] for one in answers(network, examples, torch.device("cpu"))]
    assert together == alone
    scored, _, _ = make_case(folder(family), **fields)  # the targets are not read
    assert [a["prediction"] for a in answers(network, scored, torch.device("cpu"))] == alone


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_the_likeliest_token_again_and_again(family: str, folder: Folder) -> None:
    examples, network, _ = make_case(folder(family), "predict", ROWS[:1])
    ids = list(examples.sources[0])
    with torch.no_grad():
        for _ in range(8):
            ids.append(int(network.model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == examples.format.end:
                break
    written = examples.outputs(network, batch_of(examples, 0))["ids"][0].tolist()
    generated = ids[len(examples.sources[0]) :]
    assert written[: len(generated)] == generated


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_ranking_is_the_loss_of_each_label(family: str, fast: bool, folder: Folder) -> None:
    """Of a long source too, which is read once for all labels."""
    data = [*ROWS, *rows_of({"source": "a b c d e f g h " * 3, "target": "z"})]
    examples, network, _ = make_case(folder(family), rows=data, longest=24, decoding="rank")
    if fast:
        use_fused_attention(network.model)
    assert len(examples.sources[3]) > 20
    scores = examples.outputs(network, batch_of(examples, 0, 1, 2, 3))["label"]
    for number, label in enumerate(examples.labels):
        rows = [row.values | {"target": label} for row in data]
        labelled, _, _ = make_case(folder(family), rows=rows_of(*rows), longest=24)
        for place in range(4):
            loss = examples.loss(network, batch_of(labelled, place))["lm"]
            torch.testing.assert_close(scores[place, number], -loss, rtol=1e-4, atol=1e-4)


def test_random_weights_are_of_the_same_network(folder: Folder) -> None:
    config = TASK.Config()
    for family in FAMILIES:
        one, two = (
            load_head(TASK(config), folder(family), pretrained=trained) for trained in (True, False)
        )
        shapes = [[(n, p.shape) for n, p in model.named_parameters()] for model in (one, two)]
        assert shapes[0] == shapes[1]
        first = next(p for p in one.parameters())
        assert not torch.equal(first, next(p for p in two.parameters()))


def test_both_texts_have_to_fit_the_positions() -> None:
    assert TASK(TASK.Config(max_target_length=30)).positions(40) == 70
    assert get_task("classification")(get_task("classification").Config()).positions(40) == 40
