"""gelu_new in one kernel: the same function, under the name that was published."""

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModel,
    GPT2Config,
    GPT2Model,
    OpenAIGPTConfig,
    OpenAIGPTModel,
    PreTrainedModel,
    T5Config,
    T5EncoderModel,
)
from transformers.activations import NewGELUActivation

from plmctl.models.fast.layers import fuse_gelu

SMALL = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 2, "resid_pdrop": 0.0}


def models() -> list[PreTrainedModel]:
    torch.manual_seed(0)
    t5 = T5Config(vocab_size=50, d_model=32, num_layers=2, num_heads=2, d_kv=16, d_ff=64,
                  feed_forward_proj="gated-gelu")  # fmt: skip
    ids = {"bos_token_id": 1, "eos_token_id": 1}
    return [
        GPT2Model(GPT2Config(**SMALL, **ids, activation_function="gelu_new")),
        OpenAIGPTModel(OpenAIGPTConfig(**SMALL, afn="gelu")),
        T5EncoderModel(t5),
    ]


@pytest.mark.parametrize("number", range(3), ids=["gpt2", "gpt1", "t5"])
def test_the_function_and_its_name_stay(number: int, tmp_path: Path) -> None:
    model = models()[number].eval()
    for weight in model.parameters():
        weight.data.mul_(5)  # away from where the function is a straight line
    ids = torch.arange(24).reshape(2, 12)
    before, config = model(input_ids=ids).last_hidden_state, model.config.to_dict()
    assert any(type(m) is NewGELUActivation for m in model.modules())
    fuse_gelu(model)
    assert not any(type(m) is NewGELUActivation for m in model.modules())
    assert any(type(m) is NewGELUActivation for m in models()[number].modules())  # others keep it
    torch.testing.assert_close(model(input_ids=ids).last_hidden_state, before, rtol=1e-4, atol=1e-5)
    assert model.config.to_dict() == config
    model.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path)
    if number < 2:
        assert [type(m) for m in again.modules()] == [type(m) for m in models()[number].modules()]
