"""RoBERTa, SpanBERT, DistilBERT: published sizes, initial weights, folders for the Auto classes."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM, BertForMaskedLM

from plmctl.errors import ConfigError, DataError
from plmctl.families.base import get_family
from plmctl.models.teacher import alternate, copy_alternate_layers
from tests.builders import make_model
from tests.families.test_families import count

HEAD_FILE = "span_boundary.safetensors"

# Parameters with all pretraining heads, tied weights once, as transformers counts them on the meta
# device; SpanBERT: cased BERT without pooler and NSP, and the head by its formula.
SIZES = {
    ("roberta", "base", 50_265): 124_697_433,
    ("roberta", "large", 50_265): 355_412_057,
    ("distilbert", "base", 30_522): 66_985_530,
    ("spanbert", "base", 28_996): 108_340_804 + 1_959_676,
    ("spanbert", "large", 28_996): 333_610_308 + 3_388_668,
}
HEADS = {"roberta": ("mlm",), "distilbert": ("mlm", "kl", "cosine"), "spanbert": ("mlm", "sbo")}


@pytest.mark.parametrize(("family", "size", "vocab_size"), SIZES)
def test_parameter_counts(family: str, size: str, vocab_size: int) -> None:
    with torch.device("meta"):
        model = make_model(family, vocab_size, HEADS[family], size=size)
    assert count(model) == SIZES[family, size, vocab_size]


@pytest.mark.parametrize(("hidden", "vocab_size", "expected"), [(768, 28_996, 1_959_676)])
def test_span_boundary_head_by_hand(hidden: int, vocab_size: int, expected: int) -> None:
    layers = (2 * hidden + 200) * hidden + hidden + hidden * hidden + hidden
    norms, places = 4 * hidden, 15 * 200
    assert layers + norms + places + vocab_size == expected


@pytest.mark.parametrize("family", HEADS)
def test_weights_start_as_published(family: str) -> None:
    """N(0, 0.02) without a cut, zero biases, the padding token's embedding zero."""
    model = make_model(family, 2000, HEADS[family], size="tiny")
    largest = 0.0
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            if parameter.numel() > 10_000:
                assert parameter.std().item() == pytest.approx(0.02, rel=0.03), name
            largest = max(largest, parameter.abs().max().item())
        elif "norm" in name.lower() and name.endswith("weight"):
            assert (parameter == 1).all(), name
        else:
            assert (parameter == 0).all(), name
    assert largest > 0.07  # 3.5 standard deviations: nothing was cut
    assert (model.get_input_embeddings().weight[0] == 0).all()


def test_roberta_is_the_published_network() -> None:
    with torch.device("meta"):
        config = make_model("roberta", 50_265, ("mlm",)).config
    assert config.max_position_embeddings == 514
    assert config.type_vocab_size == 1
    assert config.layer_norm_eps == 1e-5
    assert config.hidden_act == "gelu"
    assert get_family("roberta").positions(config) == 512


def test_roberta_takes_512_tokens_and_no_more() -> None:
    fields = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    family = get_family("roberta")
    model = make_model("roberta", 50, ("mlm",), pad_id=1, **fields).eval()
    ids = torch.randint(5, 50, (1, 512))
    ids[0, 100] = 1  # a random token may be the padding token: positions go on being counted
    inputs = {"attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    family.forward(model, input_ids=ids, positions=torch.arange(4), **inputs)
    longer = torch.cat([ids, ids[:, :1]], dim=1)
    with pytest.raises((IndexError, RuntimeError)):
        family.forward(
            model,
            input_ids=longer,
            attention_mask=torch.ones_like(longer),
            token_type_ids=torch.zeros_like(longer),
            positions=torch.arange(4),
        )


def test_roberta_needs_a_padding_token_near_zero() -> None:
    with pytest.raises(ConfigError, match="padding token has id 40"):
        make_model("roberta", 50, ("mlm",), pad_id=40, size="tiny")


@pytest.mark.parametrize("family", HEADS)
def test_a_folder_loads_with_auto_and_gives_our_logits(family: str, tmp_path: Path) -> None:
    model = make_model(family, 300, HEADS[family], size="tiny").eval()
    model.save_pretrained(tmp_path)
    auto = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    assert AutoConfig.from_pretrained(tmp_path).architectures == [type(auto).__name__]
    ids, mask = torch.randint(5, 300, (3, 12)), torch.ones(3, 12, dtype=torch.long)
    mask[1, 7:] = 0
    ids[1, 7:] = 0
    positions = torch.tensor([2, 15, 30])
    ours = get_family(family).forward(
        model,
        input_ids=ids,
        attention_mask=mask,
        token_type_ids=torch.zeros_like(ids),
        positions=positions,
    )
    theirs = auto(ids, attention_mask=mask).logits.flatten(0, 1)[positions]
    assert torch.allclose(ours["mlm"], theirs, atol=1e-6)
    again = get_family(family)().load(str(tmp_path), HEADS[family])
    reloaded = dict(again.named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, reloaded[name]), name


def test_the_boundary_head_is_beside_the_model(tmp_path: Path) -> None:
    """A folder is a plain BERT; a BERT folder begins with a fresh head."""
    model = make_model("spanbert", 100, ("mlm", "sbo"), size="tiny")
    model.save_pretrained(tmp_path / "with")
    assert (tmp_path / "with" / HEAD_FILE).is_file()
    plain, info = BertForMaskedLM.from_pretrained(tmp_path / "with", output_loading_info=True)
    assert not info["unexpected_keys"]
    assert not info["missing_keys"]
    plain.save_pretrained(tmp_path / "without")
    torch.manual_seed(1)
    family, without, messages = get_family("spanbert"), str(tmp_path / "without"), []
    with pytest.raises(DataError, match=HEAD_FILE):
        family().load(without, ("mlm", "sbo"))
    again = family().load(without, ("mlm", "sbo"), new_heads=messages.append)
    assert messages == [f"{without}: new, with random weights: sbo ({HEAD_FILE})"]
    embeddings = plain.get_input_embeddings().weight
    assert torch.equal(again.get_input_embeddings().weight, embeddings)
    assert again.sbo.linear1.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not torch.equal(again.sbo.linear1.weight, model.sbo.linear1.weight)


def test_boundary_head_against_a_plain_computation() -> None:
    """Two layers, exact GELU and LayerNorm after each, then the embeddings: term by term."""
    from torch.nn.functional import layer_norm

    model = make_model(
        "spanbert", 60, ("mlm", "sbo"), size="tiny", hidden_size=8, num_attention_heads=2
    )
    head = model.sbo
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()
        left, right, words = torch.randn(3, 8), torch.randn(3, 8), torch.randn(60, 8)
        place = torch.tensor([0, 14, 3])
        got = head(left, right, place, words)

        def gelu(x: torch.Tensor) -> torch.Tensor:
            return x * 0.5 * (1 + torch.erf(x / 2**0.5))

        x = torch.cat([left, right, head.position_embeddings.weight[place]], 1)
        for linear, norm in ((head.linear1, head.norm1), (head.linear2, head.norm2)):
            x = gelu(x @ linear.weight.T + linear.bias)
            x = layer_norm(x, (8,), norm.weight, norm.bias, 1e-12)
        assert torch.allclose(got, x @ words.T + head.bias, atol=1e-5)


def test_alternate_layers() -> None:
    assert alternate(12, 6) == [0, 2, 4, 7, 9, 11]  # as published
    assert alternate(2, 1) == [0]
    assert alternate(4, 4) == [0, 1, 2, 3]
    assert alternate(24, 12)[0] == 0
    assert alternate(24, 12)[-1] == 23


def test_a_student_begins_as_its_teacher(tmp_path: Path) -> None:
    """With all of the teacher's layers a student says what the teacher says."""
    teacher = make_model("bert", 80, ("mlm",), size="tiny").eval()
    with torch.no_grad():  # biases and norms that are told apart; no token types in a student
        for parameter in teacher.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        teacher.bert.embeddings.token_type_embeddings.weight.zero_()
    teacher.config.hidden_act = "gelu"
    teacher.save_pretrained(tmp_path)
    teacher = BertForMaskedLM.from_pretrained(tmp_path).eval()
    student = make_model("distilbert", 80, ("mlm",), size="tiny", n_layers=2).eval()
    family = get_family("distilbert")
    family.init_from_teacher(student, str(tmp_path))
    ids = torch.randint(5, 80, (2, 9))
    assert torch.allclose(student(ids).logits, teacher(ids).logits, atol=1e-5)


def test_layers_of_a_student_are_those_of_the_list() -> None:
    torch.manual_seed(0)
    fields = {"hidden_size": 8, "num_attention_heads": 2}
    teacher = make_model("bert", 30, ("mlm",), num_hidden_layers=12, **fields)
    student = make_model("distilbert", 30, ("mlm",), dim=8, n_heads=2)
    copy_alternate_layers(student, teacher, get_family("distilbert").NAMES_IN_BERT)
    for layer, source in enumerate((0, 2, 4, 7, 9, 11)):
        assert torch.equal(
            student.distilbert.transformer.layer[layer].ffn.lin1.weight,
            teacher.bert.encoder.layer[source].intermediate.dense.weight,
        )
