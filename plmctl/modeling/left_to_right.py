"""The hidden states of GPT-1, GPT-2 and GPT-3 for any head, without a mask that is looked at."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plmctl.modeling.gpt1_attention import block_mask


def hidden_states(model: Any, input_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
    """The last states, as transformers' own forward computes them.

    GPT-1's own cannot take a mask for several texts in a row. GPT-2's looks at the positions to
    know whether a row has several, for which the host waits for a GPU; and where it is compiled it
    cannot look, and makes a mask of T * T a row that keeps attention from its fastest kernel.

    Args:
        model: Of transformers, with any head on a ``transformer`` of model type "openai-gpt", its
            attention fused, or "gpt2".
        input_ids: [B, T]. Padding is at the end, where no real token sees it: there is no mask.
        position_ids: [B, T], beginning again at 0 where attention shall not look back any further;
            None: each row is one text.

    Returns:
        [B, T, H].
    """
    whole, gpt1 = model.transformer, model.config.model_type == "openai-gpt"
    states_BTH: Tensor = model.get_input_embeddings()(input_ids)
    if not gpt1 and not _masked_here(model.config._attn_implementation):
        # A cache would cost memory, and switches transformers' own handling of packed rows off; of
        # ids without a mask it warns where the config has a padding token.
        run = whole(inputs_embeds=states_BTH, position_ids=position_ids, use_cache=False)
        theirs_BTH: Tensor = run.last_hidden_state
        return theirs_BTH
    mask, places = None, position_ids
    if position_ids is None:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
    else:
        mask = block_mask(position_ids)
    embed = whole.positions_embed if gpt1 else whole.wpe
    states_BTH = whole.drop(states_BTH + embed(places))
    for block in whole.h:
        states_BTH = block(states_BTH, mask)[0] if gpt1 else block(states_BTH, None, mask)
    return states_BTH if gpt1 else whole.ln_f(states_BTH)


def _masked_here(attention: str | None) -> bool:
    """Whether GPT-2 gets its mask here, or none where each row is one text: PyTorch's kernels."""
    return attention == "sdpa" or str(attention).startswith("plmctl")
