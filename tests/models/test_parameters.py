"""Every family's layers are found: how deep each parameter lies, what is frozen or drawn anew.

Attention that starts local: where heads look, and that a masked model learns sooner. Embeddings
that start from counts: what else stays.
"""

import pytest
import torch
import transformers as hf
from pydantic import ValidationError
from torch import nn
from torch.nn.functional import cross_entropy

from plmctl.corpus.cooccurrence import embeddings_of
from plmctl.corpus.store import TokenStore
from plmctl.errors import ConfigError
from plmctl.families.base import get_family
from plmctl.models.parameters import (
    depths,
    extend_vocabulary,
    freeze,
    layer_rates,
    reinit,
    start_embeddings_,
)
from tests.builders import make_model, random_documents

TINY = {"vocab_size": 40, "num_labels": 2}
MADE = {
    "bert": lambda: hf.BertForSequenceClassification(
        hf.BertConfig(
            **TINY, hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=8
        )
    ),
    "roberta": lambda: hf.RobertaForTokenClassification(
        hf.RobertaConfig(
            **TINY, hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=8
        )
    ),
    "distilbert": lambda: hf.DistilBertForSequenceClassification(
        hf.DistilBertConfig(**TINY, dim=8, n_layers=3, n_heads=2, hidden_dim=8)
    ),
    "gpt2": lambda: hf.GPT2ForSequenceClassification(
        hf.GPT2Config(**TINY, n_embd=8, n_layer=3, n_head=2)
    ),
    "gpt1": lambda: hf.OpenAIGPTForSequenceClassification(
        hf.OpenAIGPTConfig(**TINY, n_embd=8, n_layer=3, n_head=2)
    ),
    "t5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=40, d_model=8, d_ff=8, d_kv=4, num_layers=3, num_heads=2,
            decoder_start_token_id=0,
        )
    ),
}  # fmt: skip
LOWEST = {
    "bert": "bert.encoder.layer.0.",
    "roberta": "roberta.encoder.layer.0.",
    "distilbert": "distilbert.transformer.layer.0.",
    "gpt2": "transformer.h.0.",
    "gpt1": "transformer.h.0.",
    "t5": "encoder.block.0.",
}


def albert() -> hf.PreTrainedModel:
    return hf.AlbertForSequenceClassification(
        hf.AlbertConfig(
            **TINY, embedding_size=4, hidden_size=8, num_hidden_layers=3, num_attention_heads=2,
            intermediate_size=8,
        )
    )  # fmt: skip


@pytest.mark.parametrize("family", MADE)
def test_layers_embeddings_and_head_have_their_depths(family: str) -> None:
    model = MADE[family]()
    depth = depths(model)
    assert depth.layers == 3
    assert depth.of.keys() == {name for name, _ in model.named_parameters()}
    lowest = {name for name, at in depth.of.items() if at == 1 and not name.startswith("decoder")}
    assert lowest == {name for name in depth.of if name.startswith(LOWEST[family])}
    table = model.get_input_embeddings().weight
    assert {depth.of[n] for n, p in model.named_parameters() if p is table} == {0}
    for name in depth.of:
        if name.startswith(("classifier", "pre_classifier", "score", "bert.pooler")):
            assert depth.of[name] == 4
        if ".ln_f." in name or "final_layer_norm" in name:
            assert depth.of[name] == 4
    if family == "t5":
        assert all(
            depth.of[n] == int(n.split(".")[2]) + 1 for n in depth.of if n.startswith("decoder.bl")
        )


def test_albert_has_one_layer_of_weights() -> None:
    model = albert()
    depth = depths(model)
    assert depth.layers == 1
    assert depth.of["albert.encoder.embedding_hidden_mapping_in.weight"] == 0
    with pytest.raises(ConfigError, match="share one set"):
        freeze(model, 2)


def test_elmo() -> None:
    from plmctl.models.elmo import ElmoConfig, ElmoForPreTraining

    depth = depths(ElmoForPreTraining(ElmoConfig(vocab_size=50, projection_size=16, cell_size=32)))
    assert depth.layers == 2
    assert {at for name, at in depth.of.items() if ".layers.1." in name} == {2}
    assert {at for name, at in depth.of.items() if "convolutions" in name} == {0}


def test_rates_fall_from_the_head_down() -> None:
    shares = layer_rates(depths(MADE["bert"]()), 0.5)
    assert shares["classifier.weight"] == shares["bert.pooler.dense.weight"] == 1
    assert [shares[f"bert.encoder.layer.{n}.output.dense.bias"] for n in (2, 1, 0)] == [
        0.5, 0.25, 0.125,
    ]  # fmt: skip
    assert shares["bert.embeddings.word_embeddings.weight"] == 0.0625


@pytest.mark.parametrize(
    ("what", "expected"), [("embeddings", {0}), (1, {0, 1}), ("all", {0, 1, 2, 3})]
)
def test_freeze(what: str | int, expected: set[int]) -> None:
    model = MADE["gpt2"]()
    depth = depths(model)
    freeze(model, what)
    frozen = {depth.of[n] for n, p in model.named_parameters() if not p.requires_grad}
    trained = {depth.of[n] for n, p in model.named_parameters() if p.requires_grad}
    assert frozen == expected
    assert trained == set(range(5)) - expected


@pytest.mark.parametrize("family", MADE)
def test_reinit_draws_the_top_layers_as_the_library_does(family: str, tmp_path) -> None:
    MADE[family]().save_pretrained(tmp_path)
    model = type(MADE[family]()).from_pretrained(tmp_path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(3.0)
    depth = depths(model)
    torch.manual_seed(1)
    reinit(model, 2)
    for name, parameter in model.named_parameters():
        redrawn = depth.of[name] in (2, 3) or (depth.of[name] == 4 and _in_base(model, name))
        assert bool((parameter != 3.0).any()) == redrawn, name
        if redrawn and parameter.ndim == 1:
            assert set(parameter.tolist()) <= {0.0, 1.0}, name
        elif redrawn:
            assert 0 < parameter.std() < 2, name


def _in_base(model: nn.Module, name: str) -> bool:
    return any(f".{part}." in f".{name}" for part in ("pooler", "ln_f", "final_layer_norm"))


# A larger vocabulary: old ids answer as before, new rows are the means that were asked for.


FAMILIES = {
    "bert": ("mlm", "nsp"), "roberta": ("mlm",), "albert": ("mlm", "sop"), "distilbert": ("mlm",),
    "spanbert": ("mlm",), "gpt1": ("lm",), "gpt2": ("lm",), "t5": ("lm",),
}  # fmt: skip


def random_model(family: str, **fields: object):
    model = make_model(family, 50, FAMILIES[family], size="tiny", **fields)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def logits(model) -> torch.Tensor:
    ids = torch.arange(5, 25)[None]
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        out = model(input_ids=ids, **more)
    return out.logits if "logits" in out else out.prediction_logits


@pytest.mark.parametrize("family", FAMILIES)
def test_old_ids_answer_as_before_and_new_ones_by_the_mean(family: str) -> None:
    model = random_model(family)
    before, state = logits(model), torch.get_rng_state()
    rows = model.get_input_embeddings().num_embeddings
    extend_vocabulary(model, {rows: [7, 9], rows + 1: []})
    after = logits(model)
    assert torch.equal(torch.get_rng_state(), state)  # nothing was drawn
    assert model.config.vocab_size == after.shape[-1] == rows + 2
    assert torch.allclose(after[..., :50], before[..., :50], atol=1e-5)
    assert torch.allclose(after[..., rows], before[..., [7, 9]].mean(-1), atol=1e-4)
    assert torch.allclose(after[..., rows + 1], before[..., :rows].mean(-1), atol=1e-4)


def test_a_separate_output_matrix_grows_too() -> None:
    model = random_model("t5", version="v1.1")
    head = model.lm_head.weight.detach().clone()
    rows = len(head)
    extend_vocabulary(model, {rows: [3, 4]})
    assert torch.allclose(model.lm_head.weight[rows], head[[3, 4]].mean(0))
    assert not torch.allclose(model.lm_head.weight[rows], model.shared.weight[rows])


def test_rows_that_are_there_already_are_filled() -> None:
    """T5 has 28 rows more than its tokenizer has ids."""
    model = random_model("gpt2")
    table = model.get_input_embeddings().weight.detach().clone()
    extend_vocabulary(model, {48: [3], 49: [3, 4]})
    now = model.get_input_embeddings().weight
    assert torch.allclose(now[48], table[3])
    assert torch.allclose(now[49], table[[3, 4]].mean(0))
    assert torch.equal(now[:48], table[:48])


def test_a_network_of_characters_is_refused() -> None:
    model = make_model("elmo", 50, ("forward", "backward"), size="tiny")
    with pytest.raises(ConfigError, match="reads characters"):
        extend_vocabulary(model, {50: []})


# --- Attention that starts local ---


LOCAL = {
    "bert": (("mlm", "nsp"), (-1, 1, -2, 2)),
    "roberta": (("mlm",), (-1, 1, -2, 2)),
    "spanbert": (("mlm", "sbo"), (-1, 1, -2, 2)),
    "gpt2": (("lm",), (-1, -2, -3, -4)),
    "gpt3": (("lm",), (-1, -2, -3, -4)),
}


@pytest.mark.parametrize("family", LOCAL)
def test_each_head_of_the_first_layer_looks_at_a_near_token(family: str) -> None:
    """Half of a head's weight is at its offset; uniform: 1 in 200. The next layer is as before."""
    terms, offsets = LOCAL[family]
    model = make_model(family, 300, terms, pad_id=1, size="mini", initial_attention="local").eval()
    model.set_attn_implementation("eager")
    ids = torch.randint(5, 300, (2, 200))
    first_BHLL, second_BHLL, *_ = model.base_model(ids, output_attentions=True).attentions
    for head, offset in enumerate(offsets):
        weights = first_BHLL[:, head].diagonal(offset, dim1=-2, dim2=-1)
        assert weights[:, 4:].mean() > 0.5, (head, offset)
    assert second_BHLL[..., 100:, :100].max() < 0.1


def test_nothing_but_positions_queries_and_keys_differs() -> None:
    published, local = (
        make_model("roberta", 300, ("mlm",), pad_id=1, size="tiny", initial_attention=how)
        for how in ("published", "local")
    )
    changed = {
        name
        for (name, one), other in zip(published.named_parameters(), local.parameters(), strict=True)
        if not torch.equal(one, other)
    }
    attention = "roberta.encoder.layer.0.attention.self"
    assert changed == {
        "roberta.embeddings.position_embeddings.weight",
        f"{attention}.query.weight",
        f"{attention}.key.weight",
    }
    assert published.config.to_dict() == local.config.to_dict()
    positions = local.get_parameter("roberta.embeddings.position_embeddings.weight")
    assert not positions[1].any()  # the padding token's
    assert positions[2:].square().mean().sqrt().item() == pytest.approx(0.04, rel=1e-3)


@pytest.mark.parametrize("how", ["published", "local"])
def test_what_the_token_before_decides_is_learned_at_once(how: str) -> None:
    """Each token follows from the one before it. Chance: ln 36 = 3.58 nats."""
    options = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = make_model("bert", 40, ("mlm",), size="tiny", initial_attention=how, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    follower = torch.randperm(36, generator=generator) + 4
    for _ in range(60):
        ids = [torch.randint(4, 40, (16,), generator=generator)]
        while len(ids) < 24:
            ids.append(follower[ids[-1] - 4])
        text_BL = torch.stack(ids, dim=1)
        masked_BL = torch.rand(text_BL.shape, generator=generator) < 0.2
        logits = model(text_BL.masked_fill(masked_BL, 3)).logits
        loss = cross_entropy(logits[masked_BL], text_BL[masked_BL])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (loss.item() < 2.0) == (how == "local"), loss.item()


@pytest.mark.parametrize(("hidden", "heads"), [(1, 1), (4, 4), (6, 2), (50, 5), (63, 3)])
def test_any_size_of_heads_can_start_local(hidden: int, heads: int) -> None:
    """Odd sizes, and heads of one unit, which have no room for a wave."""
    fields = {"hidden_size": hidden, "num_attention_heads": heads, "initial_attention": "local"}
    model = make_model("bert", 30, ("mlm",), size="tiny", **fields)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert model(torch.arange(10)[None]).logits.isfinite().all()


def test_pretrained_weights_are_not_initial_ones() -> None:
    with pytest.raises(ValidationError, match="initial_attention: the weights come from init_from"):
        get_family("bert").Config(init_from="folder", initial_attention="local")


# --- Token embeddings from counts ---


@pytest.mark.parametrize(
    ("family", "terms"),
    [("bert", ("mlm", "nsp")), ("albert", ("mlm", "sop")), ("gpt1", ("lm",)), ("t5", ("lm",))],
)
def test_nothing_but_the_embeddings_of_the_text_differs(
    family: str, terms: tuple[str, ...]
) -> None:
    model = make_model(family, 50, terms, size="tiny")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    table = model.get_input_embeddings().weight
    special = table[0].clone()
    text = TokenStore.from_lists(random_documents(0, (3, 40)), 50)
    start_embeddings_(table, embeddings_of(text, *table.shape))
    assert torch.equal(table[0], special)
    expected = 1.0 if family == "t5" else 0.1
    assert table[3:40].square().mean().sqrt().item() == pytest.approx(expected, rel=0.02)
    same = {id(value) for value in model.parameters() if value is table}
    for name, value in model.named_parameters():
        assert torch.equal(before[name], value) == (id(value) not in same), name


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_pretrained_embeddings_are_not_initial_ones(family: str) -> None:
    with pytest.raises(ValidationError, match="initial_embeddings: the weights come from init_fro"):
        get_family(family).Config(init_from="folder", initial_embeddings="cooccurrence")
