"""The states that predict the scored tokens, of causal models and of T5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plmctl.arrays import padded

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.evaluation.prompting.encoding import Encoded
    from plmctl.evaluation.prompting.model import Generative
    from plmctl.evaluation.prompting.sharing import Group


def predicting(model: Generative, texts: Sequence[Encoded], groups: Sequence[Group]) -> Tensor:
    """The states before the output layer that predict the scored tokens of a batch.

    Args:
        model: A model that writes.
        texts: All texts.
        groups: Those of this batch.

    Returns:
        [K, H], the texts in the order of the groups.
    """
    import torch

    run = _text_to_text if model.text_to_text else _causal
    with model.accelerator.autocast():
        hidden_BTH = run(model, texts, groups)
    places = [
        (row, at - 1 - group.shared)
        for row, (group, member) in enumerate(_rows(groups))
        for at in range(texts[member].first, len(texts[member].ids))
    ]
    row_K, column_K = torch.tensor(places, device=model.device).T
    return hidden_BTH[row_K, column_K]


def _causal(model: Generative, texts: Sequence[Encoded], groups: Sequence[Group]) -> Tensor:
    """Rows are padded at the right, where a causal model does not look."""
    import torch

    network: Any = model.network.base_model
    rows = _rows(groups)
    ids_BT, live_BT = _padded([texts[m].ids[group.shared : -1] for group, m in rows], model)
    if not groups[0].shared:
        hidden: Tensor = network(ids_BT)[0]
        return hidden
    context_GT, context_live_GT = _padded(
        [texts[g.members[0]].ids[: g.shared] for g in groups], model
    )
    cache = network(context_GT, attention_mask=context_live_GT, use_cache=True).past_key_values
    group_B = torch.tensor(
        [number for number, group in enumerate(groups) for _ in group.members], device=model.device
    )
    cache.batch_select_indices(group_B)
    shared_B = torch.tensor([group.shared for group, _ in rows], device=model.device)
    place_BT = shared_B[:, None] + torch.arange(ids_BT.shape[1], device=model.device)
    after = network(
        ids_BT,
        past_key_values=cache,
        attention_mask=torch.cat([context_live_GT[group_B], live_BT], dim=1),
        position_ids=place_BT.clamp(max=model.network.config.max_position_embeddings - 1),
        use_cache=True,
    )
    last: Tensor = after.last_hidden_state
    return last


def _text_to_text(model: Generative, texts: Sequence[Encoded], groups: Sequence[Group]) -> Tensor:
    import torch

    network: Any = model.network
    source_GL, live_GL = _padded([texts[group.members[0]].source for group in groups], model)
    encoded_GLH = network.encoder(source_GL, attention_mask=live_GL).last_hidden_state
    group_B = torch.tensor(
        [number for number, group in enumerate(groups) for _ in group.members], device=model.device
    )
    ids_BT, _ = _padded([texts[member].ids[:-1] for _, member in _rows(groups)], model)
    hidden: Tensor = network.decoder(
        ids_BT,
        encoder_hidden_states=encoded_GLH[group_B],
        encoder_attention_mask=live_GL[group_B],
        use_cache=False,
    ).last_hidden_state
    return hidden * network.config.d_model**-0.5 if network.config.scale_decoder_outputs else hidden


def _rows(groups: Sequence[Group]) -> list[tuple[Group, int]]:
    return [(group, member) for group in groups for member in group.members]


def _padded(rows: Sequence[Sequence[int]], model: Generative) -> tuple[Tensor, Tensor]:
    """[B, T] ids with zeros at the right, and 1 where there is a token."""
    import torch

    ids, live = padded(rows, 0)
    device = model.device
    return torch.from_numpy(ids).to(device), torch.from_numpy(live).to(device).long()
