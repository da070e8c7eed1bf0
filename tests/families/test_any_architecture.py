"""Networks of any architecture: losses, refusals, heads, positions, folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy

from plmctl.errors import ConfigError
from plmctl.families._generic import GenericDecoder, GenericEncoder, GenericEncoderDecoder
from plmctl.families.auto import Auto, Config
from plmctl.families.base import family_of, make_family
from plmctl.models.any_head import ability, head_of, logits_at
from plmctl.models.completions import EncodedCompletion, score_encoded
from plmctl.models.encoder import PartialEncoder
from plmctl.models.fast import apply_fast_paths
from plmctl.models.losses import Projection
from plmctl.models.network import Network
from scripts.architectures import FORM_OF, losses, tiny_family, tiny_options


def built(architecture: str, **options: Any) -> Any:
    """A tiny network of an architecture, in evaluation mode."""
    torch.manual_seed(0)
    known = {**tiny_options(architecture), **options}
    config = Config.model_validate({"architecture": architecture, **known})
    family = make_family(config)
    model = family.build(vocab_size=120, pad_id=1, eos_id=2, loss_terms=family.HEADS)
    return model.eval()


def refused(architecture: str, **options: Any) -> str:
    with pytest.raises(ConfigError) as error:
        built(architecture, **options)
    return str(error.value)


# --- Losses are those of transformers' own classes ---


QUICK = ("xlm-roberta", "mpnet", "gemma2", "opt", "bloom", "mbart", "mt5")


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in FORM_OF],
)
def test_the_loss_of_one_batch_is_that_of_the_class(architecture: str) -> None:
    if architecture not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {architecture}")
    own, theirs = losses(architecture)
    assert own == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize("architecture", ["xlm-roberta", "deberta-v2", "gemma2", "bloom", "mbart"])
def test_so_is_its_gradient(architecture: str) -> None:
    family, model = tiny_family(architecture), built(architecture)
    ids = torch.randint(5, 120, (2, 12))
    inputs = {"input_ids": ids}
    if family.FORM != "decoder":
        inputs |= {"attention_mask": torch.ones_like(ids), "positions": torch.arange(24)}
    if family.FORM == "encoder":
        inputs["token_type_ids"] = torch.zeros_like(ids)
    if family.FORM == "encoder_decoder":
        inputs["decoder_input_ids"] = ids.roll(1, 1)
    term = family.HEADS[0]
    targets = ids if family.FORM == "decoder" else ids.flatten()
    Network(model, family.forward)(loss_on={term: targets}, **inputs)[term].backward()
    own = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad()
    theirs = {n: i for n, i in inputs.items() if n not in ("positions", "token_type_ids")}
    logits = model(**theirs).logits.flatten(0, 1)
    cross_entropy(logits, ids.flatten(), reduction="sum").backward()
    for name, weight in model.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(own[name], weight.grad, rtol=1e-4, atol=1e-5)


# --- What is tried on a network, and what that is used for ---


def test_a_soft_cap_is_seen_although_small_logits_hardly_show_it() -> None:
    capped, plain = built("gemma2"), built("gemma2", final_logit_softcapping=None)
    assert not ability(capped).in_pieces
    assert ability(plain).in_pieces
    ids = torch.randint(5, 120, (2, 12))
    torch.testing.assert_close(capped(ids).logits, plain(ids).logits, rtol=1e-4, atol=1e-4)


def test_so_is_a_bias_after_the_output_layer(tmp_path: Path) -> None:
    model = built("mbart")
    assert ability(model).in_pieces
    model.final_logits_bias.fill_(1.0)
    model.save_pretrained(tmp_path)
    chosen = Auto.chosen(Config(init_from=str(tmp_path)))
    assert not ability(chosen.load(str(tmp_path), ("lm",))).in_pieces


def test_logits_of_a_large_vocabulary_are_not_computed_as_a_whole() -> None:
    model = built("xlm-roberta")
    ids, positions = torch.randint(5, 120, (2, 12)), torch.tensor([3, 7, 20])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    projection = logits_at(model, inputs, positions, Projection)
    assert projection.hidden.shape == (3, 32)
    whole = model(**inputs).logits.flatten(0, 1)[positions]
    torch.testing.assert_close(projection.logits(), whole)


@pytest.mark.parametrize("architecture", ["bloom", "gemma2", "opt", "cohere", "mbart", "mt5"])
def test_a_completion_has_the_probability_that_the_class_gives_it(architecture: str) -> None:
    model = built(architecture)
    ids = torch.randint(5, 120, (4, 30)).tolist()
    two = bool(model.config.is_encoder_decoder)
    texts = [
        EncodedCompletion(tuple(ids[0][:20] + row[20:]), 20, tuple(ids[1][:9]) if two else ())
        for row in ids
    ]
    scores = score_encoded(model, texts, 8)
    for text, score in zip(texts, scores, strict=True):
        row = torch.tensor([text.ids])
        with torch.no_grad():
            if two:
                given = {"input_ids": torch.tensor([text.source]), "decoder_input_ids": row}
            else:
                given = {"input_ids": row}
            logs = model(**given).logits[0].log_softmax(-1)
        right = sum(logs[at - 1, text.ids[at]] for at in range(20, 30))
        assert score.log_prob == pytest.approx(float(right), rel=1e-4)


@pytest.mark.parametrize("architecture", ["gemma2", "t5", "bert", "opt", "cohere"])
def test_a_head_is_a_function_of_states(architecture: str) -> None:
    model = built(architecture)
    ids = torch.randint(5, 120, (1, 12))
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if architecture == "t5" else {})
    with torch.no_grad():
        if architecture == "t5":
            encoded = model.get_encoder()(ids).last_hidden_state
            states = model.get_decoder()(ids, encoder_hidden_states=encoded).last_hidden_state
        else:
            states = model.base_model(ids).last_hidden_state
        torch.testing.assert_close(head_of(model)(states[0]), model(**inputs).logits[0])


@pytest.mark.parametrize("architecture", ["xlm-roberta", "camembert", "ernie", "data2vec-text"])
def test_copies_of_bert_compute_some_positions_only(architecture: str) -> None:
    model = built(architecture)
    ids = torch.randint(5, 120, (3, 16))
    mask = torch.ones_like(ids)
    mask[0, 10:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    positions = torch.tensor([1, 4, 20, 40])
    plain = GenericEncoder.forward(model, positions=positions, **inputs)["mlm"]
    apply_fast_paths(model, device="cpu", compiled=False, sharded=False)
    assert any(isinstance(module, PartialEncoder) for module in model.modules())
    fast = GenericEncoder.forward(model, positions=positions, **inputs)["mlm"]
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-6)


# --- What cannot be right is refused, by name ---


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'xlm-roberta'"):
        make_family(Config(architecture="xlm-robert"))
    with pytest.raises(ConfigError, match="no language model of text alone"):
        make_family(Config(architecture="llava"))
    with pytest.raises(ConfigError, match=r"model\.architecture: missing"):
        make_family(Config())
    assert "no encoder-decoder of bert" in refused("bert", network="encoder_decoder")
    assert "no such option; did you mean 'hidden_size'" in refused("llama", hiden_size=3)
    assert "padding after a text" in refused("fnet")
    assert "is to predict" in refused("xlnet")
    assert "has experts" in refused("mixtral")
    assert "hidden size is not divisible" in refused("gpt_neox", hidden_size=33)


def test_options_have_the_names_of_transformers_the_common_ones_too() -> None:
    assert built("gpt2", n_embd=40).config.hidden_size == 40
    options = {"hidden_size": 40, "num_hidden_layers": 1, "n_head": 4}
    common = make_family(Config.model_validate({"architecture": "gpt2", **options}))
    network: Any = common.build(vocab_size=50, pad_id=0, loss_terms=("lm",)).config
    assert (network.n_embd, network.n_layer) == (40, 1)
    undeclared = built("deberta-v2", position_buckets=16, relative_attention=True)
    assert undeclared.config.position_buckets == 16


def test_a_decoder_of_an_encoder_s_architecture_looks_back_only() -> None:
    model = built("camembert", network="decoder")
    assert model.config.is_decoder
    assert not ability(model).backwards


@pytest.mark.parametrize("architecture", ["xlm-roberta", "mpnet", "bloom", "gpt_neox", "m2m_100"])
def test_a_text_as_long_as_its_positions_can_be_read(architecture: str) -> None:
    model, family = built(architecture), tiny_family(architecture)
    longest = min(family.positions(model.config), 300)
    ids = torch.full((1, longest), 7)
    decoder = {"decoder_input_ids": ids} if family.ENCODER_DECODER else {}
    assert model(ids, **decoder).logits.shape[1] == longest
    if architecture in ("xlm-roberta", "mpnet"):
        with pytest.raises((IndexError, RuntimeError)):
            model(torch.full((1, longest + 1), 7))


# --- Folders ---


@pytest.mark.parametrize(
    ("architecture", "network", "form"),
    [
        ("camembert", "decoder", GenericDecoder),
        ("camembert", "encoder", GenericEncoder),
        ("bart", "decoder", GenericDecoder),
        ("bart", None, GenericEncoderDecoder),
        ("qwen2", None, GenericDecoder),
    ],
)
def test_a_folder_says_which_network_it_has(
    architecture: str, network: Any, form: type, tmp_path: Path
) -> None:
    model = built(architecture, network=network)
    model.save_pretrained(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    family = family_of(config)
    assert type(family) is form
    chosen = Auto.chosen(Config(init_from=str(tmp_path)))
    assert type(chosen) is form
    again: Any = chosen.load(str(tmp_path), family.HEADS).eval()
    ids = torch.randint(5, 120, (2, 8))
    given = {"decoder_input_ids": ids} if form is GenericEncoderDecoder else {}
    assert torch.equal(again(ids, **given).logits, model(ids, **given).logits)


def test_texts_begin_as_they_are_trained(tmp_path: Path) -> None:
    """BART's own begin with the end token, plmctl's with padding."""
    model = built("bart")
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = 2
    model.config.forced_eos_token_id = model.generation_config.forced_eos_token_id = 2
    model.save_pretrained(tmp_path)
    started: Any = Auto.chosen(Config(init_from=str(tmp_path))).load_start(("lm",), print)
    for config in (started.config, started.generation_config):
        assert (config.decoder_start_token_id, config.forced_eos_token_id) == (1, None)


def test_only_dropout_can_be_changed_beside_a_folder(tmp_path: Path) -> None:
    built("xlm-roberta").save_pretrained(tmp_path)
    start: dict[str, Any] = {"init_from": str(tmp_path)}
    family = make_family(Config.model_validate({**start, "hidden_dropout_prob": 0.0}))
    assert family.load_start(("mlm",), print).config.hidden_dropout_prob == 0
    with pytest.raises(ConfigError, match="hidden_size: the folder of init_from decides it"):
        make_family(Config.model_validate({**start, "hidden_size": 64})).load_start(("mlm",), print)
