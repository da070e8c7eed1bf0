"""Encoder-decoders (T5): likelihood of hidden spans, as the model was pretrained to fill them.

A span of a text is replaced by the first sentinel; the encoder reads the rest and the end token,
the decoder is given the sentinel and then the span, token by token. Spans follow one another, so
that every token is in one; the sentinel's and the end token's own likelihoods are left out. Within
a span this is the chain rule, over the spans it is a pseudo-likelihood. A span that is the whole
text makes it log p(text | a hidden text): the encoder reads the sentinel alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from plmctl.arrays import Ints, batches, lengths_of, padded
from plmctl.evaluation.likelihood.reader import Reader, Tokens
from plmctl.evaluation.likelihood.scores import Scores, token_nll
from plmctl.evaluation.likelihood.windows import pieces


def score(reader: Reader, texts: Sequence[Tokens], size: int, span: int | None) -> Scores:
    """Every token of each text hidden and scored once.

    Args:
        reader: An encoder-decoder.
        texts: N of them.
        size: Tokens of a piece, the end token included; longer texts are cut into pieces, each
            scored by itself.
        span: Tokens that are hidden together; None: the whole piece.

    Returns:
        The sums of each text.
    """
    import torch

    eos, pad, sentinel = (reader.special(name) for name in ("eos", "pad", "sentinels"))
    sources: list[Ints] = []
    hidden: list[Ints] = []
    texts_of: list[int] = []
    for number, text in enumerate(texts):
        for start, end in pieces(len(text.ids), size - 1):
            piece = text.ids[start:end]
            for first in range(0, len(piece), span or len(piece)):
                last = first + (span or len(piece))
                sources.append(np.concatenate([piece[:first], [sentinel], piece[last:], [eos]]))
                hidden.append(piece[first:last])
                texts_of.append(number)
    scores, of = Scores.empty(len(texts)), np.array(texts_of, dtype=np.int64)
    lengths = lengths_of(sources) + lengths_of(hidden)
    with torch.inference_mode():
        for which in batches(lengths, cells=min(reader.cells, reader.predictions)):
            source, there = padded([sources[number] for number in which], pad)
            targets, hides = padded([hidden[number] for number in which], -1)
            rows, places = np.nonzero(hides)
            # The decoder's first input is the padding token, its first output the sentinel.
            before = np.full((len(which), targets.shape[1] + 1), pad, dtype=np.int64)
            before[:, 1] = sentinel
            before[:, 2:] = np.maximum(targets[:, :-1], 0)
            logits = reader.logits(
                input_ids=source,
                attention_mask=there.astype(np.int64),
                decoder_input_ids=before,
                positions=rows * before.shape[1] + places + 1,
            )
            scores.add(of[which][rows], token_nll(logits["lm"], targets[rows, places]))
    return scores
