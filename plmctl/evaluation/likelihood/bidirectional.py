"""ELMo: the mean of the log-likelihoods of both directions.

A text is a stream of its sentences, each from <S> to its last word; the backward stream has the
last sentence first and each from </S> to its first word, as in pretraining. The state goes on
through a text and begins at zero. The marks' own likelihoods are left out. A word that is not in
the vocabulary is predicted as <UNK>.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Ints, batches, padded
from plmctl.errors import ConfigError
from plmctl.evaluation.likelihood.reader import Reader, Tokens
from plmctl.evaluation.likelihood.scores import Scores, token_nll

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.modeling.batch import Rows

_WINDOW = 64  # words whose logits are there at once; the state goes on
_NONE = -1


def score(reader: Reader, texts: Sequence[Tokens]) -> Scores:
    """Every word of each text scored once in each direction.

    Returns:
        The sums of each text: of both directions, halved.
    """
    import torch

    from plmctl.modeling.batch import Rows

    unknown, bos, eos = (reader.special(name) for name in ("unk", "bos", "eos"))
    streams = [_stream(text, bos, eos) for text in texts]
    table, scores = _characters(reader, bos, eos), Scores.empty(len(texts))
    lengths = np.array([stream.shape[-1] for stream in streams], dtype=np.int64)
    with torch.inference_mode():
        cells = min(reader.cells, reader.predictions // 2)
        for which in batches(lengths, cells=cells, window=_WINDOW):
            chosen = [streams[number] for number in which]
            inputs, targets = (
                np.stack([padded([stream[side, d] for stream in chosen], fill)[0] for d in (0, 1)])
                for side, fill in ((0, bos), (1, _NONE))
            )
            targets[targets >= reader.outputs] = unknown
            with reader.network.apart():  # so that the state begins anew
                for number, start in enumerate(range(0, inputs.shape[-1], _WINDOW)):
                    part = np.s_[:, :, start : start + _WINDOW]
                    rows = Rows(0, len(which), len(which), number)
                    _add(scores, which, targets[part], _read(reader, table, inputs[part], rows))
    scores.nll[:] /= 2
    scores.scored[:] //= 2
    return scores


def _stream(text: Tokens, bos: int, eos: int) -> Ints:
    """Inputs and targets of the forward and of the backward stream, [2 sides, 2 directions, S]."""
    sentences = np.split(text.ids, np.cumsum(text.sentences)[:-1])
    forward = [np.concatenate([[bos], sentence]) for sentence in sentences]
    backward = [np.concatenate([[eos], sentence[::-1]]) for sentence in reversed(sentences)]
    inputs = np.stack([np.concatenate(forward), np.concatenate(backward)])
    targets = np.full_like(inputs, _NONE)  # what follows a sentence's last word is not scored
    for direction, stream in enumerate((forward, backward)):
        ends = np.cumsum([len(sentence) for sentence in stream]) - 1
        targets[direction, :-1] = inputs[direction, 1:]
        targets[direction, ends] = _NONE
    return np.stack([inputs, targets])


def _characters(reader: Reader, bos: int, eos: int) -> NDArray[np.int16]:
    """The characters of every word and mark."""
    from plmctl.modeling.elmo.characters import BEGIN_SENTENCE, END_SENTENCE, boundary, encode_words

    if reader.vocab.words is None:
        raise ConfigError(
            f"{reader.name}: its tokenizer is none of whole words, which ELMo needs",
            "measure a model that was saved with the tokenizer it was pretrained with",
        )
    table = encode_words(reader.vocab.words)
    table[bos], table[eos] = boundary(BEGIN_SENTENCE), boundary(END_SENTENCE)
    return table


def _read(reader: Reader, table: NDArray[np.int16], inputs: Ints, rows: Rows) -> dict[str, Tensor]:
    """Logits of a window of both directions, going on from the window before."""
    distinct, words = np.unique(inputs, return_inverse=True)
    return reader.logits(rows=rows, characters=table[distinct], words=words.reshape(inputs.shape))


def _add(scores: Scores, which: Ints, targets: Ints, logits: dict[str, Tensor]) -> None:
    import torch

    for direction, part in enumerate(("forward", "backward")):
        asked = targets[direction] >= 0
        chosen = logits[part][torch.from_numpy(asked).to(logits[part].device)]
        scores.add(which[np.nonzero(asked)[0]], token_nll(chosen, targets[direction][asked]))
