"""What an encoder-decoder answers: the text that it writes, or the likeliest of given texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


def generated(
    model: Any, inputs: dict[str, Tensor], *, longest: int, beams: int, length_penalty: float
) -> Tensor:
    """The most probable continuation, token by token or by beams.

    Args:
        model: An encoder-decoder of transformers.
        inputs: input_ids and attention_mask, [B, L].
        longest: Tokens of an answer, at most.
        beams: 1 is greedy.
        length_penalty: The sum of the log-probabilities is divided by the length to this power.

    Returns:
        [B, T]: the start token, the answer, and padding after its end.
    """
    from transformers import GenerationConfig

    settings = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=longest,
        num_beams=beams,
        length_penalty=length_penalty if beams > 1 else None,
        early_stopping=beams > 1,
        do_sample=False,
        decoder_start_token_id=model.config.decoder_start_token_id,
        pad_token_id=model.config.pad_token_id,
        eos_token_id=model.config.eos_token_id,
    )
    ids: Tensor = model.generate(**inputs, generation_config=settings)
    return ids


def label_scores(model: Any, inputs: dict[str, Tensor], labels: Sequence[Sequence[int]]) -> Tensor:
    """The log-probability of each label as the whole answer; the encoder runs once a row.

    Args:
        model: An encoder-decoder of transformers.
        inputs: input_ids and attention_mask, [B, L].
        labels: C token sequences, each with its end token: a label that is the beginning of another
            one is no likelier for it.

    Returns:
        [B, C], in nats.
    """
    import torch

    encoded = model.get_encoder()(**inputs)
    rows = len(inputs["input_ids"])
    scores = []
    for label in labels:
        target_T = torch.tensor(label, device=inputs["input_ids"].device)
        target_BT = target_T.expand(rows, -1)
        start_B1 = torch.full_like(target_BT[:, :1], model.config.decoder_start_token_id)
        logits_BTV = model(
            encoder_outputs=encoded,
            attention_mask=inputs["attention_mask"],
            decoder_input_ids=torch.cat([start_B1, target_BT[:, :-1]], dim=1),
            use_cache=False,
        ).logits
        each_BT = logits_BTV.float().log_softmax(-1).gather(-1, target_BT[..., None]).squeeze(-1)
        scores.append(each_BT.sum(-1))
    return torch.stack(scores, dim=1)


def ranked(labels: Sequence[str], scores: NDArray[Any]) -> dict[str, Any]:
    """The likeliest label, with the probabilities of all as if there were no others.

    Args:
        labels: C.
        scores: [C] log-probabilities.
    """
    shares = np.exp(scores.astype(np.float64) - scores.max())
    shares /= shares.sum()
    return {
        "prediction": labels[int(scores.argmax())],
        "probabilities": dict(zip(labels, shares.tolist(), strict=True)),
    }
