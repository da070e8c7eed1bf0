"""Every head's loss is transformers' own, and cutting a step up does not change it."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForMultipleChoice, AutoModelForSequenceClassification

from plmctl.models.fast import apply_fast_paths
from plmctl.models.network import Network
from plmctl.tasks.base import get_task
from plmctl.training.engine import Engine
from plmctl.training.loop import take_step
from tests.builders import assert_cut_up_is_the_same, cpu_engine
from tests.tasks.conftest import ENCODERS, FAMILIES, Folder, load_head, rows_of

WORDS = ["a b c", "d e", "f", "g h i j k l", "m n", "o p q", "r", "s t u v w x y z"]
ROWS = rows_of(
    *(
        {
            "a": WORDS[n % 8],
            "b": WORDS[(3 * n + 1) % 8],
            "label": "xyz"[(7 * n // 4) % 3],
            "labels": [c for k, c in enumerate("xyz") if (n >> k) % 2],
            "score": n / 4,
            "options": [WORDS[(n + k) % 8] for k in range(3 if n % 3 else 2)],
            "answer": n % 2,
            "tags": ["xyz"[(n + k) % 3] for k in range(len(WORDS[n % 8].split()))],
        }
        for n in range(16)
    )
)
CASES = {
    "text": ("classification", {"text": "a"}),
    "pair": ("classification", {"text": ("a", "b")}),
    "several": ("classification", {"text": "a", "label": "labels", "problem": "multi_label"}),
    "number": ("classification", {"text": ("a", "b"), "label": "score", "problem": "regression"}),
    "weighted": (
        "classification",
        {"text": "a", "class_weights": "balanced", "label_smoothing": 0.1},
    ),
    "weighted, several": (
        "classification",
        {
            "text": "a", "label": "labels", "problem": "multi_label",
            "class_weights": "balanced", "label_smoothing": 0.1,
        },
    ),
    "both orders": ("classification", {"text": ("a", "b"), "both_orders": True}),
    "choice": ("multiple_choice", {"passage": "a", "question": "b", "label": "answer"}),
    "first vector": ("classification", {"text": "a", "pooling": "cls"}),
    "mean": ("classification", {"text": "a", "pooling": "mean"}),
    "tags": ("tagging", {"tokens": "a", "scheme": "pos"}),
    "lemmas": ("lemmas", {"tokens": "a", "tags": "tags"}),
    "tags, all layers": ("tagging", {"tokens": "a", "scheme": "pos", "layers": "mix"}),
}  # fmt: skip


def make_case(name: str, fields: dict, folder: str, use: str = "train"):  # noqa: ANN201
    task = get_task(name)
    config = task.Config(name=name, **fields)
    labels = task(config).labels(ROWS)
    examples = task(config).make(ROWS, task(config).tokenizer(folder), labels, 40, use)
    torch.manual_seed(5)
    model = load_head(task(config), folder, labels, new_heads=print)
    if fields.get("layers") == "mix":
        model.dropout.p = 0.0  # the head's own
    return examples, Network(model, task.forward)


def whole(examples):  # noqa: ANN001, ANN201
    samples = np.arange(len(examples))
    return examples.collate(np.zeros_like(samples), samples)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", ["text", "pair", "several", "number"])
def test_the_loss_is_that_of_transformers(case: str, family: str, folder: Folder, tmp_path) -> None:
    name, fields = CASES[case]
    examples, network = make_case(name, fields, folder(family))
    network.model.save_pretrained(tmp_path)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    batch = whole(examples)
    with torch.no_grad():
        loss = examples.loss(network.eval(), batch)["label"] / batch.counts()["label"]
        inputs = {k: v for k, v in batch.inputs.items() if k != "lm_cells"}
        expected = theirs(**inputs, labels=batch.targets["label"]).loss
    assert theirs.config.problem_type == {"several": "multi_label_classification"}.get(
        case, "regression" if case == "number" else "single_label_classification"
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("family", ENCODERS)
def test_the_loss_of_a_choice_is_that_of_transformers(family: str, folder: Folder) -> None:
    name, fields = CASES["choice"]
    examples, network = make_case(name, fields, folder(family))
    theirs = AutoModelForMultipleChoice.from_pretrained(folder(family))
    theirs.load_state_dict(network.model.state_dict())
    three = np.array([n for n in range(16) if n % 3])  # theirs takes as many options everywhere
    batch = examples.collate(np.zeros_like(three), three)
    inputs = {k: v for k, v in batch.inputs.items() if k != "options"}
    with torch.no_grad():
        loss = examples.loss(network.eval(), batch)["choice"] / batch.counts()["choice"]
        expected = theirs.eval()(**inputs, labels=batch.targets["choice"]).loss
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def outcome(examples, network) -> tuple[float, list[torch.Tensor]]:  # noqa: ANN001
    """The summed losses, and the gradients of all weights that have one."""
    network.zero_grad()
    loss = torch.stack(list(examples.loss(network, whole(examples)).values())).sum()
    loss.backward()
    return loss.item(), [p.grad.clone() for p in network.parameters() if p.grad is not None]


# With the smallest dropout no element is dropped, by the code that drops.
@pytest.mark.parametrize("dropout", [0.0, 1e-9])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", ["text", "pair", "choice", "first vector", "mean"])
def test_the_top_layer_is_computed_where_a_head_reads_it(
    case: str, family: str, dropout: float, folder: Folder
) -> None:
    name, fields = CASES[case]
    if "pooling" in fields and family not in ENCODERS:
        pytest.skip("this family has no such head")
    examples, network = make_case(name, fields, folder(family, dropout=dropout))
    model = network.train().model
    loss, gradients = outcome(examples, network)
    apply_fast_paths(model, device="cpu", compiled=False, sharded=False)
    top = [m for n, m in model.named_modules() if n.endswith(TOP_PROJECTION[family])][-1]
    shapes: list[torch.Size] = []
    top.register_forward_hook(lambda m, inputs, output: shapes.append(output.shape[:-1]))
    fast_loss, fast = outcome(examples, network)
    assert fast_loss == pytest.approx(loss, rel=1e-5)
    largest = max(float(gradient.abs().max()) for gradient in gradients)
    for one, right in zip(fast, gradients, strict=True):
        torch.testing.assert_close(one, right, rtol=1e-3, atol=1e-5 * largest)
    rows = whole(examples).inputs["input_ids"].flatten(0, -2)
    everywhere = case == "mean" or family in ("gpt1", "distilbert")
    assert (shapes[-1].numel() > len(rows)) == everywhere


TOP_PROJECTION = {
    "bert": "output.dense", "spanbert": "output.dense", "roberta": "output.dense",
    "albert": "ffn_output", "distilbert": "lin2", "gpt1": "mlp.c_proj", "gpt2": "mlp.c_proj",
    "gpt3": "mlp.c_proj",
}  # fmt: skip


@pytest.mark.parametrize("family", ["bert", "gpt1", "gpt2"])
def test_fewer_options_are_as_if_there_were_no_others(family: str, folder: Folder) -> None:
    name, fields = CASES["choice"]
    examples, network = make_case(name, fields, folder(family))
    network.eval()
    with torch.no_grad():
        together = examples.loss(network, whole(examples))
        alone = [
            examples.loss(network, examples.collate(np.zeros(1, int), np.array([n])))
            for n in range(16)
        ]
    for part in examples.loss_terms:
        summed = sum(loss[part].item() for loss in alone)
        assert together[part].item() == pytest.approx(summed, rel=1e-5)
    assert "lm" in examples.loss_terms if family == "gpt1" else examples.loss_terms == ("choice",)


STEPS = [
    *((case, "bert") for case in CASES if case != "both orders"),
    *((case, "gpt1") for case in ("text", "pair", "number", "both orders", "choice")),
    ("pair", "roberta"), ("pair", "albert"), ("pair", "distilbert"), ("pair", "gpt2"),
    ("choice", "gpt2"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "family"), STEPS)
def test_a_step_cut_up_is_the_same_step(case: str, family: str, folder: Folder) -> None:
    examples, _ = make_case(*CASES[case], folder(family))

    def make() -> Engine:
        return cpu_engine(make_case(*CASES[case], folder(family))[1])

    assert_cut_up_is_the_same(make, examples, (16, 4, 3), 1e-5)


def test_weights_and_smoothing_by_hand(folder: Folder) -> None:
    examples, network = make_case(*CASES["weighted"], folder("bert"))
    batch = whole(examples)
    with torch.no_grad():
        logs = network.eval()(**batch.inputs)["label"].log_softmax(-1).numpy()
        loss = examples.loss(network, batch)["label"].item()
        plain = examples.score(network, batch)["label"].item()
    targets = batch.targets["label"].numpy()
    expected = 0.0
    for row, target in zip(logs, targets, strict=True):
        counted = 16 / (3 * (targets == target).sum())
        expected += counted * -(0.9 * row[target] + 0.1 * row.mean())
    assert loss == pytest.approx(expected, rel=1e-5)
    assert plain == pytest.approx(-logs[np.arange(16), targets].sum(), rel=1e-5)
    assert sum(16 / (3 * (targets == t).sum()) for t in targets) == pytest.approx(16)
    assert batch.counts() == {"label": 16}


def test_weights_of_several_labels_by_hand(folder: Folder) -> None:
    examples, network = make_case(*CASES["weighted, several"], folder("bert"))
    batch = whole(examples)
    with torch.no_grad():
        p = network.eval()(**batch.inputs)["label"].sigmoid().double().numpy()
        loss = examples.loss(network, batch)["label"].item()
    there = batch.targets["label"].numpy() > 0.5
    expected = 0.0
    for label in range(3):
        having = there[:, label].sum()
        for row in range(16):
            yes = there[row, label]
            soft = 0.95 if yes else 0.05
            counted = 16 / (2 * (having if yes else 16 - having))
            expected -= counted * (
                soft * np.log(p[row, label]) + (1 - soft) * np.log(1 - p[row, label])
            )
    assert loss == pytest.approx(expected, rel=1e-5)
    assert batch.counts() == {"label": 48}


def test_gpt1_by_hand(folder: Folder) -> None:
    """Cross-entropy of the label, and half the mean over rows of a row's mean next-token loss."""
    examples, network = make_case(*CASES["pair"], folder("gpt1"))
    model = network.model.eval()
    batch = whole(examples)
    expected_label = expected_lm = 0.0
    with torch.no_grad():
        losses = examples.loss(network, batch)
        for ids, target in zip(examples.rows.ids, batch.targets["label"], strict=True):
            assert (ids[0], ids[-1]) == (model.config.vocab_size - 3, model.config.vocab_size - 1)
            states = model.transformer(torch.tensor([ids])).last_hidden_state[0]
            label = (model.score.weight @ states[-1]).log_softmax(-1)
            expected_label -= label[target].item()
            logs = (states @ model.transformer.tokens_embed.weight.T).log_softmax(-1)
            steps = [logs[t, ids[t + 1]].item() for t in range(len(ids) - 1)]
            expected_lm -= sum(steps) / len(steps)
    assert losses["label"].item() == pytest.approx(expected_label, rel=1e-5)
    assert losses["lm"].item() == pytest.approx(expected_lm, rel=1e-5)
    assert batch.counts() == {"label": 16, "lm": 16}
    assert examples.weights == {"label": 1.0, "lm": 0.5}
    engine = cpu_engine(network)
    done = take_step(engine, examples, [batch], None, 1)
    assert done.loss == pytest.approx((expected_label + 0.5 * expected_lm) / 16, rel=1e-5)


def test_gpt1_adds_the_vectors_of_both_orders(folder: Folder) -> None:
    examples, network = make_case(*CASES["both orders"], folder("gpt1"))
    model = network.model.eval()
    row = examples.collate(np.zeros(1, int), np.array([3]))
    assert row.inputs["input_ids"].shape[:2] == (1, 2)
    with torch.no_grad():
        got = network(**row.inputs)["label"][0]
        both = [examples.rows.ids[k] for k in examples.rows.sequences[3]]
        ends = [model.transformer(torch.tensor([ids])).last_hidden_state[0, -1] for ids in both]
        assert both[0] != both[1]
        assert sorted(both[0]) == sorted(both[1])
        assert torch.allclose(got, model.score.weight @ (ends[0] + ends[1]), atol=1e-5)


def test_new_embeddings_are_small_and_the_old_ones_stay(folder: Folder) -> None:
    from transformers import AutoModel

    before = AutoModel.from_pretrained(folder("gpt1")).get_input_embeddings().weight
    _, network = make_case(*CASES["text"], folder("gpt1"))
    after = network.model.get_input_embeddings().weight
    assert len(after) == len(before) + 3
    assert torch.equal(after[:-3], before)
    assert 0.01 < after[-3:].std().item() < 0.03


def test_options_of_an_item_have_one_dropout_mask(folder: Folder) -> None:
    examples, network = make_case(*CASES["choice"], folder("gpt1"))
    network.train()
    network.model.config.summary_first_dropout = 0.5
    head = network.model.multiple_choice_head.summary
    with torch.no_grad():
        head.weight.fill_(1.0)
    seen = []
    head.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0] == 0))
    network(**whole(examples).inputs)
    zero = seen[0]  # [B, O, H]
    assert torch.equal(zero, zero[:, :1].expand_as(zero))
    assert 0.3 < zero[:, 0].float().mean() < 0.7
