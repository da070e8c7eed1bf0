"""A larger vocabulary: old ids answer as before, new rows are the means that were asked for."""

import pytest
import torch

from plmctl.errors import ConfigError
from plmctl.families.base import get_family
from plmctl.models.parameters import extend_vocabulary

FAMILIES = {
    "bert": ("mlm", "nsp"), "roberta": ("mlm",), "albert": ("mlm", "sop"), "distilbert": ("mlm",),
    "spanbert": ("mlm",), "gpt1": ("lm",), "gpt2": ("lm",), "t5": ("lm",),
}  # fmt: skip


def make_model(family: str, **fields: object):
    member = get_family(family)
    torch.manual_seed(0)
    config = member.Config(family=family, size="tiny", **fields)
    model = member.build(config, vocab_size=50, pad_id=0, loss_terms=FAMILIES[family])
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
    model = make_model(family)
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
    model = make_model("t5", version="v1.1")
    head = model.lm_head.weight.detach().clone()
    rows = len(head)
    extend_vocabulary(model, {rows: [3, 4]})
    assert torch.allclose(model.lm_head.weight[rows], head[[3, 4]].mean(0))
    assert not torch.allclose(model.lm_head.weight[rows], model.shared.weight[rows])


def test_rows_that_are_there_already_are_filled() -> None:
    """T5 has 28 rows more than its tokenizer has ids."""
    model = make_model("gpt2")
    table = model.get_input_embeddings().weight.detach().clone()
    extend_vocabulary(model, {48: [3], 49: [3, 4]})
    now = model.get_input_embeddings().weight
    assert torch.allclose(now[48], table[3])
    assert torch.allclose(now[49], table[[3, 4]].mean(0))
    assert torch.equal(now[:48], table[:48])


def test_a_network_of_characters_is_refused() -> None:
    member = get_family("elmo")
    config = member.Config(family="elmo", size="tiny")
    model = member.build(config, vocab_size=50, pad_id=0, loss_terms=("forward", "backward"))
    with pytest.raises(ConfigError, match="reads characters"):
        extend_vocabulary(model, {50: []})
