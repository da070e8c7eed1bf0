"""A causal network as a text-to-text model: it reads a prompt and generates an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from plmctl import hub
from plmctl.arrays import batches
from plmctl.models.decoder import hidden_states
from plmctl.models.load import load_network
from plmctl.models.parameters import add_token_embeddings


@dataclass(frozen=True)
class Prompts:
    """The ids that are read before the answers are generated.

    Attributes:
        ids: [B, L].
        lengths: [B] how many of a row's ids are read.
    """

    ids: Tensor
    lengths: Tensor


def load_writer(
    model: str, new_ids: Sequence[int], *, pretrained: bool, changes: Mapping[str, Any]
) -> PreTrainedModel:
    """GPT-1, GPT-2 or GPT-3 with its language-model head, in float32.

    Args:
        model: A model folder or Hub id.
        new_ids: The ids of tokens that finetuning adds to the vocabulary (GPT-1).
        pretrained: False keeps the architecture and draws random weights.
        changes: To its config.
    """
    config = AutoConfig.from_pretrained(hub.local(model), **changes)
    cls: Any = AutoModelForCausalLM
    network: Any = (
        load_network(cls, model, config=config).network
        if pretrained
        else cls.from_config(config, dtype=torch.float32)
    )
    if new_ids and max(new_ids) >= network.get_input_embeddings().num_embeddings:
        add_token_embeddings(network, list(new_ids))
    writer: PreTrainedModel = network
    return writer


def write(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    positions: Tensor,
    prompts: Tensor,
    project: Callable[..., Any] = lambda hidden, layer: layer(hidden),
) -> dict[str, Any]:
    """Logits of the target tokens.

    Args:
        model: A causal network with its language-model head.
        input_ids: [B, L], padded at the end, where no token of a causal network sees it.
        attention_mask: [B, L], not used.
        positions: [K] positions of the flattened batch that predict a target token.
        prompts: [B], not used.
        project: Computes logits from the hidden states and the output layer.

    Returns:
        lm: [K, V].
    """
    states = hidden_states(model, input_ids).flatten(0, 1)
    return {"lm": project(states[positions], model.lm_head)}


def generate_answers(
    model: Any,
    prompts: Prompts,
    *,
    end: int,
    longest: int,
    beams: int,
    length_penalty: float,
) -> Tensor:
    """The most probable continuation of each prompt, token by token or by beams.

    GPT-1 counts its positions from the first one of a row, so that only its prompts of equal length
    are together; those of the others are moved to the right, with padding before them.

    Args:
        model: A causal network with its language-model head.
        prompts: B of them.
        end: The id that ends a text.
        longest: Tokens of an answer, at most.
        beams: 1 is greedy.
        length_penalty: The sum of the log-probabilities is divided by the length to this power.

    Returns:
        [B, longest], ``end`` after the end.
    """
    ids_BL, device = prompts.ids, prompts.ids.device
    answers_BT = torch.full((len(ids_BL), longest), end, device=device)
    caches = model.config.model_type != "openai-gpt"
    settings = GenerationConfig(  # type: ignore[no-untyped-call]  # theirs
        max_new_tokens=longest,
        num_beams=beams,
        length_penalty=length_penalty if beams > 1 else None,
        early_stopping=beams > 1,
        do_sample=False,
        eos_token_id=end,
        pad_token_id=end,
        use_cache=caches,
    )
    lengths = prompts.lengths.cpu().numpy()
    for which in batches(lengths, same_length=not caches):
        rows, width = torch.from_numpy(which).to(device), int(lengths[which[0]])
        places = torch.arange(width, device=device) - (width - prompts.lengths[rows, None])
        inputs = {"input_ids": ids_BL[rows].gather(1, places.clamp(min=0))}
        if caches:
            inputs["attention_mask"] = (places >= 0).long()
        ids = model.generate(**inputs, generation_config=settings)[:, width:]
        answers_BT[rows, : ids.shape[1]] = ids
    return answers_BT


def label_scores(model: Any, prompts: Prompts, labels: Sequence[Sequence[int]]) -> Tensor:
    """The log-probability of each label after each prompt, [B, C] in nats.

    Args:
        model: A causal network with its language-model head.
        prompts: B of them.
        labels: C token sequences, each with what ends it.
    """
    lengths, device = prompts.lengths, prompts.ids.device
    rows = torch.arange(len(lengths), device=device)[:, None]
    longest = int(lengths.max())
    scores = []
    for label in labels:
        label_T = torch.tensor(label, device=device)
        width = longest + len(label)
        positions_BT = lengths[:, None] + torch.arange(len(label), device=device)
        ids_BL = torch.nn.functional.pad(prompts.ids[:, :longest], (0, len(label)))
        ids_BL[rows, positions_BT] = label_T
        before_K = (rows * width + positions_BT - 1).flatten()
        logits_KV = write(model, ids_BL, ids_BL, before_K, lengths)["lm"].float().log_softmax(-1)
        each_K = logits_KV.gather(-1, label_T.repeat(len(lengths))[:, None])
        scores.append(each_K.view(len(lengths), -1).sum(-1))
    return torch.stack(scores, dim=1)
