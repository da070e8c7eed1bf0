"""GPT's hidden states by hand under every head: transformers' own, without a mask and a wait."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
import transformers
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from plmctl.config.sections import LoraConfig
from plmctl.families.base import get_family
from plmctl.models.batch import Batch
from plmctl.models.decoder import hidden_states
from plmctl.models.heads.text_generation import caches
from plmctl.models.network import Network
from plmctl.models.parameters import add_lora
from plmctl.tasks.base import get_task
from tests.tasks.conftest import Folder, load_head
from tests.tasks.conftest import folder as folder
from tests.tasks.test_losses import ROWS

FIELDS: dict[str, dict[str, Any]] = {
    "classification": {"text": ("a", "b")},
    "multiple_choice": {"passage": "a", "question": "b", "label": "answer"},
    "text_to_text": {"source": "a", "target": "b", "max_target_length": 8},
}
FAMILIES = ("gpt1", "gpt2", "gpt3")
META = torch.device("meta")


def make_case(name: str, folder: str) -> tuple[Any, Network, Batch]:
    """Rows of a task, a network and a batch of rows of many lengths."""
    task = get_task(name)
    config = task.Config(**FIELDS[name])
    labels = task(config).labels(ROWS)
    examples = task(config).make(ROWS, task(config).tokenizer(folder), labels, 40, "train")
    torch.manual_seed(5)
    network = Network(
        load_head(task(config), folder, labels, new_heads=print),
        task.forward,
    )
    three = np.array([n for n in range(len(ROWS)) if n % 3])  # so many options each
    batch = examples.collate(np.zeros_like(three), three)
    mask = batch.inputs["attention_mask"]
    assert (mask.flatten(0, -2).sum(1) < mask.shape[-1]).any()
    return examples, network, batch


def reference(name: str, network: Network, batch: Batch) -> tuple[Any, Tensor]:
    """transformers' class and its logits, with its own attention and its mask of padding."""
    whole, inputs = network.model, batch.inputs
    own: Any = getattr(transformers, type(whole).__name__)(whole.config)
    own.load_state_dict(whole.state_dict())
    if whole.config.model_type == "gpt2":
        own.set_attn_implementation("eager")
    seen = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
    own.eval()
    if name == "multiple_choice":
        last = inputs["attention_mask"].sum(-1) - 1
        if whole.config.model_type == "openai-gpt":  # which takes no mask of several options
            del seen["attention_mask"]
        return own, own(**seen, mc_token_ids=last).mc_logits
    logits = own(**seen).logits
    return own, logits if name == "classification" else logits.flatten(0, 1)[inputs["positions"]]


PART = {"classification": "label", "multiple_choice": "choice", "text_to_text": "lm"}


@pytest.mark.parametrize("attention", ["sdpa", "plmctl_cpu"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", FIELDS)
def test_logits_and_gradients_are_those_of_transformers(
    name: str, family: str, attention: str, folder: Folder
) -> None:
    _, network, batch = make_case(name, folder(family))
    model = network.model
    if family != "gpt1":
        model.set_attn_implementation(attention)
    own, expected = reference(name, network, batch)
    logits = network.eval()(**batch.inputs)[PART[name]]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    along = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    (logits * along).sum().backward()
    (expected * along).sum().backward()
    gradients = {n: p.grad for n, p in own.named_parameters() if p.grad is not None}
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    seen = {n for n, p in model.named_parameters() if p.grad is not None}
    assert seen == set(gradients)
    for weight, parameter in model.named_parameters():
        if weight in seen:
            torch.testing.assert_close(
                parameter.grad, gradients[weight], rtol=1e-3, atol=1e-6 * largest
            )


@pytest.mark.parametrize("attention", ["sdpa", "plmctl_cpu"])
@pytest.mark.parametrize("family", FAMILIES)
def test_draws_of_dropout_are_those_of_transformers_forward(
    family: str, attention: str, folder: Folder
) -> None:
    """To the bit, with adapters, on a CPU."""
    _, network, batch = make_case("text_to_text", folder(family, dropout=0.2))
    model: Any = network.model.train()
    add_lora(LoraConfig(dropout=0.1), model, get_family(family).LORA_TARGETS)
    if family != "gpt1":
        model.set_attn_implementation(attention)
    ids, outputs = batch.inputs["input_ids"], []
    embedded = model.get_input_embeddings()
    for run in (
        lambda: hidden_states(model, ids),
        lambda: model.transformer(inputs_embeds=embedded(ids)).last_hidden_state,
    ):
        torch.manual_seed(3)
        outputs.append(run())
    assert torch.equal(*outputs)
    torch.manual_seed(4)
    assert not torch.equal(hidden_states(model, ids), outputs[0])


@pytest.mark.parametrize(
    ("attention", "left"),
    [("sdpa", False), ("plmctl_cpu", False), ("eager", True), ("flash_attention_2", True)],
)
def test_other_attention_is_left_to_transformers(
    attention: str, left: bool, folder: Folder
) -> None:
    class Asked(Exception):
        pass

    def called(*_: Any) -> None:
        raise Asked

    _, network, batch = make_case("classification", folder("gpt2"))
    model: Any = network.model.eval()
    model.transformer.register_forward_pre_hook(called)
    model.config._attn_implementation = attention
    with pytest.raises(Asked) if left else nullcontext():
        network(**batch.inputs)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", FIELDS)
def test_a_step_never_waits(name: str, family: str, folder: Folder) -> None:
    """See ``test_no_waiting``: on the meta device a look at what is in a tensor is an error."""
    examples, network, batch = make_case(name, folder(family, dropout=0.2))
    network.to(META).train()
    losses = examples.loss(network, batch.to(META))
    assert set(losses) == set(examples.loss_terms)
    torch.stack(list(losses.values())).sum().backward()
    missing = [n for n, p in network.named_parameters() if p.grad is None]
    assert len(missing) <= 1  # the language model's, which this device unties


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("classification", "gpt2"),
        pytest.param("multiple_choice", "gpt1", marks=pytest.mark.slow),
        pytest.param("text_to_text", "gpt2", marks=pytest.mark.slow),
    ],
)
def test_compiled_in_one_graph_without_a_mask(name: str, family: str, folder: Folder) -> None:
    examples, network, batch = make_case(name, folder(family))
    network.train()
    expected = examples.loss(network, batch)
    torch._dynamo.reset()
    attended: list[tuple[Any, Any]] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        attended[:] = [
            (node.kwargs["attn_mask"], node.kwargs["is_causal"])
            for node in graph.graph.nodes
            if node.target is scaled_dot_product_attention
        ]
        return graph.forward

    network.compile(backend=backend, fullgraph=True, dynamic=True)
    losses = examples.loss(network, batch)
    torch.stack(list(losses.values())).sum().backward()
    for part, loss in expected.items():
        torch.testing.assert_close(losses[part], loss, rtol=1e-5, atol=0)
    assert attended == [(None, True)] * network.model.config.n_layer
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("name", "has_one"),
    [("GPT2LMHeadModel", True), ("OpenAIGPTLMHeadModel", False),
     ("T5ForConditionalGeneration", True)],
)  # fmt: skip
def test_which_networks_have_a_cache(name: str, has_one: bool) -> None:
    assert caches(getattr(transformers, name)) == has_one
