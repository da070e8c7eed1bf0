"""ELMo (Peters et al., 2018, arXiv:1802.05365) as a transformers model.

transformers has no ELMo. Importing this module makes its Auto classes know ours: ``AutoConfig``,
``AutoModel`` (the layers), ``AutoModelForPreTraining`` (with the language model's head),
``AutoModelForTokenClassification`` and ``AutoModelForSequenceClassification`` (with a task's
network on top). Source: allenai/bilm-tf, training.py (``LanguageModel``), and TensorFlow's
``LSTMCell``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import embedding
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput
from transformers.utils.generic import ModelOutput

from plmctl.errors import DataError, PlmError, read_error

# --- Words as rows of character ids: all that ELMo knows of a word ---
#
# A character is a byte of the word's UTF-8. Ids of the published code (allenai/bilm-tf, data.py):
# 0 to 255 the bytes, then the five below; here all are one more, so that 0 is padding, a place
# without a word. Published weights have rows for the 261 ids; the row of 0 is zero.


BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PAD = 257, 258, 259, 260, 261

SYMBOLS = 262

WORD_LENGTH = 50

Characters = NDArray[np.int16]


def encode_words(words: Sequence[str], width: int = WORD_LENGTH) -> Characters:
    """Character ids of words: begin, the bytes, end, padding.

    Args:
        words: N words; the bytes of a word that do not fit are left out.

    Returns:
        [N, width].
    """
    encoded = [word.encode("utf-8", "ignore")[: width - 2] for word in words]
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    column = np.arange(width)
    table = np.full((len(encoded), width), PAD, dtype=np.int16)
    table[:, 0] = BEGIN_WORD
    table[(column >= 1) & (column <= lengths[:, None])] = 1 + np.frombuffer(
        b"".join(encoded), dtype=np.uint8
    ).astype(np.int16)
    table[np.arange(len(encoded)), lengths + 1] = END_WORD
    return table


def boundary(symbol: int, width: int = WORD_LENGTH) -> Characters:
    """The word that begins or ends a sentence: [width] ids of BEGIN_SENTENCE or END_SENTENCE."""
    row = np.full(width, PAD, dtype=np.int16)
    row[:3] = BEGIN_WORD, symbol, END_WORD
    return row


def encode_sentences(sentences: Sequence[Sequence[str]], width: int = WORD_LENGTH) -> Characters:
    """What ``ElmoModel`` takes: [B, T, width] of B sentences of words, padded with zeros."""
    lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
    batch = np.zeros((len(sentences), int(lengths.max(initial=0)), width), dtype=np.int16)
    inside = np.arange(batch.shape[1]) < lengths[:, None]
    batch[inside] = encode_words([word for sentence in sentences for word in sentence], width)
    return batch


# --- The config ---


class ElmoConfig(PreTrainedConfig):
    """Sizes of an ELMo network; the defaults are the original model's.

    Attributes:
        vocab_size: Words that the language model predicts; its input has no vocabulary.
        filters: Convolutions over the characters: (characters, features) of each.
        num_highway_layers: Highway layers between the convolutions and the projection.
        projection_size: Width of a layer's output in each direction, and of a token.
        cell_size: Width of an LSTM's cell.
        num_hidden_layers: LSTM layers in each direction.
        cell_clip: The cell is kept within this, and its projection within ``projection_clip``.
        skip_connections: Layers after the first add their input to their output.
        dropout: The dropout rate of every layer's input and of the top layer's output.
        pad_token_id: The character id at positions without a word.
        frozen: In a finetuned network: the biLM stays as it is (published).
        head_size: Width of a finetuned network's BiLSTM in each direction.
        head_dropout: The dropout rate of the mixed vectors and of the BiLSTM.
    """

    model_type = "elmo"

    vocab_size: int = 793_471
    num_characters: int = SYMBOLS
    max_characters: int = WORD_LENGTH
    char_embedding_size: int = 16
    filters: list[list[int]] | None = None
    activation: str = "relu"
    num_highway_layers: int = 2
    projection_size: int = 512
    cell_size: int = 4096
    num_hidden_layers: int = 2
    cell_clip: float = 3.0
    projection_clip: float = 3.0
    skip_connections: bool = True
    dropout: float = 0.1
    pad_token_id: int | None = 0
    frozen: bool = True
    head_size: int = 200
    head_layers: int = 1
    head_dropout: float = 0.5
    tie_word_embeddings: bool = False

    @property
    def convolutions(self) -> list[tuple[int, int]]:
        """(characters, features) of each convolution."""
        published = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
        return [(width, size) for width, size in self.filters or published]

    @property
    def hidden_size(self) -> int:
        """Width of a layer: both directions side by side."""
        return 2 * self.projection_size


# --- The layers: the character encoder and the LSTM with a projection ---


FORGET_BIAS = 1.0  # TensorFlow's LSTMCell adds it to the forget gate; it is no weight


class Gate(nn.Linear):
    """How much of a highway's input is transformed; it starts with a bias of -2, mostly closed."""


class Highway(nn.Module):
    """``g * relu(W x + b) + (1 - g) * x`` with the gate ``g = sigmoid(V x + c)``."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transform = nn.Linear(size, size)
        self.gate = Gate(size, size)

    def forward(self, x: Tensor) -> Tensor:
        """[N, size] to [N, size]."""
        return torch.lerp(x, self.transform(x).relu(), self.gate(x).sigmoid())


class CharacterEncoder(nn.Module):
    """A word's characters to a vector: convolutions, maximum over places, highway, projection."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(
            config.num_characters, config.char_embedding_size, padding_idx=0
        )
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.char_embedding_size, size, width)
            for width, size in config.convolutions
        )
        features = sum(size for _, size in config.convolutions)
        self.highways = nn.ModuleList(Highway(features) for _ in range(config.num_highway_layers))
        self.projection = nn.Linear(features, config.projection_size)
        self._activation = torch.tanh if config.activation == "tanh" else torch.relu

    def forward(self, characters_NC: Tensor) -> Tensor:
        """Vectors [N, P] of words [N, C]."""
        embedded_NEC = self.embedding(characters_NC).transpose(1, 2)
        x = torch.cat(
            [self._activation(conv(embedded_NEC).amax(-1)) for conv in self.convolutions], dim=-1
        )
        for highway in self.highways:
            x = highway(x)
        projected: Tensor = self.projection(x)
        return projected


class ProjectedLstm(nn.Module):
    """One LSTM layer with a projection, of both directions at once.

    Weights have a leading axis of 2, so that a time step of both directions is one product. The
    direction is a matter of the order in which the words are given.

    Args:
        size: Width P of input and output.
        cell: Width C of the cell.
        cell_clip: The cell is kept within this.
        projection_clip: And its projection within this.
    """

    def __init__(self, size: int, cell: int, cell_clip: float, projection_clip: float) -> None:
        super().__init__()
        # Gates in TensorFlow's order: input, candidate, forget, output.
        self.weight_input = nn.Parameter(torch.empty(2, size, 4 * cell))
        self.weight_recurrent = nn.Parameter(torch.empty(2, size, 4 * cell))
        # One dimension, as biases have, by which optimizers know what not to decay.
        self.bias = nn.Parameter(torch.empty(2 * 4 * cell))
        self.projection = nn.Parameter(torch.empty(2, cell, size))
        self._clips = cell_clip, projection_clip

    def forward(
        self, x_DBTP: Tensor, state: tuple[Tensor, Tensor], live_BT: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run over T words.

        Args:
            x_DBTP: The words of each direction in its own order.
            state: Output [2, B, P] and cell [2, B, C] before the first word.
            live_BT: False at padding, which leaves the state as it is.

        Returns:
            Outputs [2, B, T, P], and the state after the last word.
        """
        directions, rows, length, _ = x_DBTP.shape
        # The inputs' share of all gates in one product; only the recurrent one goes word by word.
        bias = self.bias.view(directions, 1, -1)
        gates = torch.baddbmm(bias, x_DBTP.flatten(1, 2), self.weight_input)
        gates_TDBG = gates.view(directions, rows, length, -1).permute(2, 0, 1, 3)
        output, cell = state
        outputs = []
        for step, gates_DBG in enumerate(gates_TDBG.unbind(0)):
            new_output, new_cell = self._step(gates_DBG, output, cell)
            if live_BT is None:
                output, cell = new_output, new_cell
            else:
                live = live_BT[:, step, None]
                output = torch.where(live, new_output, output)
                cell = torch.where(live, new_cell, cell)
            outputs.append(output)
        return torch.stack(outputs, dim=2), (output, cell)

    def _step(self, gates_DBG: Tensor, output: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        cell_clip, projection_clip = self._clips
        recurrent = torch.bmm(output.to(gates_DBG.dtype), self.weight_recurrent)
        enter, candidate, forget, leave = (gates_DBG + recurrent).chunk(4, dim=-1)
        cell = (forget + FORGET_BIAS).sigmoid() * cell + enter.sigmoid() * candidate.tanh()
        cell = cell.clamp(-cell_clip, cell_clip)
        output = torch.bmm(leave.sigmoid() * cell.tanh(), self.projection)
        return output.clamp(-projection_clip, projection_clip), cell


# --- The networks: characters to layers, and the bidirectional language model ---


@dataclass
class ElmoOutput(ModelOutput):
    """The output of ``ElmoModel``.

    Attributes:
        last_hidden_state: [B, T, 2P], the top layer, forward and backward side by side.
        hidden_states: Every layer so; the first is the token's own vector, twice.
        attention_mask: [B, T], False at padding.
        state: [B, layers, 2, P + C], after the sentences; may be given to the next call.
    """

    last_hidden_state: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attention_mask: Tensor | None = None
    state: Tensor | None = None


@dataclass
class ElmoForPreTrainingOutput(ModelOutput):
    """The output of ``ElmoForPreTraining``: logits [B, T, V] of each direction, and the state."""

    forward_logits: Tensor | None = None
    backward_logits: Tensor | None = None
    state: Tensor | None = None


class ElmoPreTrainedModel(PreTrainedModel):
    """Published initial weights, loading and saving."""

    config: ElmoConfig
    config_class = ElmoConfig
    base_model_prefix = "elmo"
    main_input_name = "character_ids"

    def get_input_embeddings(self) -> None:  # type: ignore[override]
        """None: it reads characters, and has no row for a token id."""

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialize as allenai/bilm-tf, training.py; the LSTM as TensorFlow's default (Glorot).

        transformers calls it for every module that has weights itself.
        """
        if isinstance(module, nn.Embedding):
            init.uniform_(module.weight, -1.0, 1.0)
            init.zeros_(module.weight[0])
        elif isinstance(module, nn.Conv1d):
            self._init_convolution(module)
        elif isinstance(module, nn.Linear):
            init.normal_(module.weight, std=1 / math.sqrt(module.in_features))
            init.constant_(module.bias, -2.0 if isinstance(module, Gate) else 0.0)
        elif isinstance(module, ProjectedLstm):
            size, gates = module.weight_input.shape[1:]
            bound = math.sqrt(6 / (2 * size + gates))  # one matrix [input + output, gates] there
            init.uniform_(module.weight_input, -bound, bound)
            init.uniform_(module.weight_recurrent, -bound, bound)
            init.zeros_(module.bias)
            bound = math.sqrt(6 / (gates // 4 + size))
            init.uniform_(module.projection, -bound, bound)

    def _init_convolution(self, convolution: nn.Conv1d) -> None:
        if self.config.activation == "relu":
            init.uniform_(convolution.weight, -0.05, 0.05)
        else:
            init.normal_(convolution.weight, std=1 / math.sqrt(convolution.weight[0].numel()))
        if convolution.bias is not None:  # there always is; PyTorch's types do not know
            init.zeros_(convolution.bias)


class ElmoModel(ElmoPreTrainedModel):
    """The layers of a sentence's words, from their characters alone."""

    _keys_to_ignore_on_load_unexpected = [r"^head\."]

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.characters = CharacterEncoder(config)
        self.layers = nn.ModuleList(
            ProjectedLstm(
                config.projection_size, config.cell_size, config.cell_clip, config.projection_clip
            )
            for _ in range(config.num_hidden_layers)
        )
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()

    def forward(self, character_ids: Tensor, state: Tensor | None = None) -> ElmoOutput:
        """The layers of sentences, which get their begin and end marks here.

        Args:
            character_ids: [B, T, C] of ``encode_sentences``, zeros at padding.
            state: ``ElmoOutput.state`` of an earlier call with as many sentences, which the
                published code continues from; None: every sentence starts from zeros.
        """
        character_ids = character_ids.long()
        rows, length, _ = character_ids.shape
        mask_BT = (character_ids > 0).any(-1)
        sizes = mask_BT.sum(1)
        inner = self._with_boundaries(character_ids, sizes)
        place = torch.arange(length + 2, device=sizes.device)
        live = place < sizes[:, None] + 2
        # Each sentence backwards, its padding where it was; the same order undoes it.
        order = torch.where(live, sizes[:, None] + 1 - place, place)[..., None]
        tokens_BTP = self.characters(inner.flatten(0, 1)).view(rows, length + 2, -1)
        both = torch.stack([tokens_BTP, _ordered(tokens_BTP, order)])
        layers, state = self.run(both, state, live)
        hidden = tuple(
            torch.cat([forward, _ordered(backward, order)], dim=-1)[:, 1:-1] * mask_BT[..., None]
            for forward, backward in layers
        )
        return ElmoOutput(hidden[-1], hidden, mask_BT, state)

    def run(
        self, tokens_DBTP: Tensor, state: Tensor | None = None, live_BT: Tensor | None = None
    ) -> tuple[list[Tensor], Tensor]:
        """Token vectors through the LSTMs.

        Args:
            tokens_DBTP: Vectors of the forward stream and of the backward one, each in its order.
            state: [B, layers, 2, P + C] before the first word; None: zeros.
            live_BT: False at padding.

        Returns:
            The token layer and each LSTM's outputs, [2, B, T, P], and the state after the last
            word.
        """
        size = self.config.projection_size
        if state is None:
            shape = (tokens_DBTP.shape[1], len(self.layers), 2, size + self.config.cell_size)
            state = torch.zeros(shape, device=tokens_DBTP.device)
        x, outputs, after = tokens_DBTP, [tokens_DBTP], []
        for number, layer in enumerate(self.layers):
            x = self.dropout(x)
            before = state[:, number].transpose(0, 1)  # [2, B, P + C]
            y, (output, cell) = layer(x, (before[..., :size], before[..., size:]), live_BT)
            x = y + x if number and self.config.skip_connections else y
            outputs.append(x)
            after.append(torch.cat([output.float(), cell.float()], dim=-1).transpose(0, 1))
        outputs[-1] = self.dropout(x)
        return outputs, torch.stack(after, dim=1)

    def _with_boundaries(self, character_ids: Tensor, sizes: Tensor) -> Tensor:
        rows, length, width = character_ids.shape
        begin, end = (
            torch.from_numpy(boundary(symbol, width)).to(character_ids)
            for symbol in (BEGIN_SENTENCE, END_SENTENCE)
        )
        inner = character_ids.new_zeros(rows, length + 2, width)
        inner[:, 0] = begin
        inner[:, 1:-1] = character_ids
        inner[torch.arange(rows, device=sizes.device), sizes + 1] = end
        return inner


class ElmoForPreTraining(ElmoPreTrainedModel):
    """The bidirectional language model: one softmax for both directions, never tied."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.elmo = ElmoModel(config)
        self.head = nn.Linear(config.projection_size, config.vocab_size)
        self.post_init()

    def top(self, characters: Tensor, words: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """The top layer [2, B, T, P] of streams, and the state after them; see ``forward``."""
        # Dropout comes after the encoder, so each distinct word is encoded once. Not by an index:
        # threads would add up the gradients of a frequent word in any order, with other bits each
        # time. In float32, since there may be hundreds of them.
        vectors_UP = self.elmo.characters(characters.long())
        wide = torch.promote_types(vectors_UP.dtype, torch.float32)
        layers, after = self.elmo.run(embedding(words, vectors_UP.to(wide)), state)
        return layers[-1], after

    def forward(
        self, characters: Tensor, words: Tensor, state: Tensor | None = None
    ) -> ElmoForPreTrainingOutput:
        """Logits of the next word in each stream.

        Args:
            characters: [U, C] of distinct words.
            words: [2, B, T], rows of ``characters``: the forward streams and the backward ones,
                each in its own order, with sentence marks as words.
            state: [B, layers, 2, P + C], that of the window before.
        """
        top_DBTP, after = self.top(characters, words, state)
        forward, backward = self.head(top_DBTP)
        return ElmoForPreTrainingOutput(forward, backward, after)


AutoConfig.register(ElmoConfig.model_type, ElmoConfig)
AutoModel.register(ElmoConfig, ElmoModel)
AutoModelForPreTraining.register(ElmoConfig, ElmoForPreTraining)


def _ordered(x_BTP: Tensor, order_BT1: Tensor) -> Tensor:
    return x_BTP.gather(1, order_BT1.expand(-1, -1, x_BTP.shape[-1]))


# --- The layers as one vector per word ---


class ScalarMix(nn.Module):
    """``gamma * sum_j softmax(w)_j * h_j`` (Peters et al., 2018, equation 1), learned with a task.

    Weights start equal and gamma at 1.

    Args:
        layer_norm: Bring each layer to mean 0 and variance 1 over the batch's words first.
    """

    def __init__(self, layers: int = 3, *, layer_norm: bool = False) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))
        self.layer_norm = layer_norm

    def forward(self, layers: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """The mix.

        Args:
            layers: Each [B, T, H].
            mask: [B, T], 0 where there is no word; read by ``layer_norm`` alone.

        Returns:
            [B, T, H].
        """
        shares = self.weights.softmax(0)
        if self.layer_norm:
            layers = [_normalized(layer, mask) for layer in layers]
        mixed: Tensor = self.gamma * torch.stack(
            [share * layer for share, layer in zip(shares, layers, strict=True)]
        ).sum(0)
        return mixed


def _normalized(layer_BTH: Tensor, mask_BT: Tensor | None) -> Tensor:
    """One mean and one variance over all words and features."""
    if mask_BT is None:
        mask_BT = layer_BTH.new_ones(layer_BTH.shape[:2])
    live = mask_BT.to(layer_BTH.dtype).unsqueeze(-1)
    count = live.sum() * layer_BTH.shape[-1]
    mean = (layer_BTH * live).sum() / count
    variance = (((layer_BTH - mean) * live) ** 2).sum() / count
    return (layer_BTH - mean) / (variance + 1e-12).sqrt()


# --- A small network for a task on top (Peters et al., 2018, section 3.3) ---
#
# The biLM is frozen and runs without dropout. What is learned is the mix of its layers and the
# network that reads the mixed vectors: a BiLSTM, then a linear layer per word (tagging), or pooling
# and an MLP (classification). The paper's tagger also has a CRF, GloVe vectors and a CNN; these
# have none, and no L2 penalty on the weights of the mix. A biLM with random weights is trained too.


class _ElmoWithHead(ElmoPreTrainedModel):
    """The biLM, the mix of its layers, and a BiLSTM over it."""

    _keys_to_ignore_on_load_unexpected = [r"^head\."]

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.elmo = ElmoModel(config)
        self.mix = ScalarMix(config.num_hidden_layers + 1)
        self.dropout = nn.Dropout(config.head_dropout)
        self.lstm = nn.LSTM(
            config.hidden_size,
            config.head_size,
            num_layers=config.head_layers,
            dropout=config.head_dropout if config.head_layers > 1 else 0.0,
            bidirectional=True,
            batch_first=True,
        )

    def train(self, mode: bool = True) -> _ElmoWithHead:
        """Set the training mode; a frozen biLM stays without dropout."""
        super().train(mode)
        self.elmo.train(mode and not self.config.frozen)
        # Here, since loading puts new parameters in the place of those of the constructor.
        self.elmo.requires_grad_(not self.config.frozen)
        return self

    def read(self, character_ids: Tensor) -> tuple[Tensor, Tensor]:
        """The words as the BiLSTM has them, [B, T, 2 * head_size], and which there are [B, T]."""
        layers = self.elmo(character_ids)
        mixed_BTH = self.dropout(self.mix(layers.hidden_states, layers.attention_mask))
        # Packed, so that no row depends on the padding that longer rows cause.
        sizes = layers.attention_mask.sum(1).clamp(min=1).cpu()
        packed = pack_padded_sequence(mixed_BTH, sizes, batch_first=True, enforce_sorted=False)
        read, _ = pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=character_ids.shape[1]
        )
        return self.dropout(read), layers.attention_mask

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Glorot for the BiLSTM, equal shares for the mix; the rest as the biLM's."""
        if isinstance(module, nn.LSTM):
            for name, weight in module.named_parameters():
                if name.startswith("weight"):
                    init.xavier_uniform_(weight)
                else:
                    init.zeros_(weight)
        elif isinstance(module, ScalarMix):
            init.zeros_(module.weights)
            init.ones_(module.gamma)
        else:
            super()._init_weights(module)


class ElmoForTokenClassification(_ElmoWithHead):
    """A linear layer on the BiLSTM's vector of each word."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(2 * config.head_size, len(config.id2label or ()))
        self.post_init()

    def forward(self, character_ids: Tensor) -> TokenClassifierOutput:
        """Logits [B, T, labels] of words [B, T, C] (``encode_sentences``)."""
        read_BTH, _ = self.read(character_ids)
        return TokenClassifierOutput(logits=self.classifier(read_BTH))


class ElmoForSequenceClassification(_ElmoWithHead):
    """The largest value of each feature and a learned average of the words, then an MLP."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        width = 2 * config.head_size
        self.attention = nn.Linear(width, 1)
        self.dense = nn.Linear(2 * width, config.head_size)
        self.classifier = nn.Linear(config.head_size, len(config.id2label or ()))
        self.post_init()

    def forward(self, character_ids: Tensor) -> SequenceClassifierOutput:
        """Logits [B, labels] of sentences [B, T, C] (``encode_sentences``)."""
        read_BTH, mask_BT = self.read(character_ids)
        absent = ~mask_BT[..., None]
        absent[:, 0] = False  # a sentence without words: its first place, which is padding
        shares = self.attention(read_BTH).masked_fill(absent, float("-inf")).softmax(1)
        largest = read_BTH.masked_fill(absent, float("-inf")).amax(1)
        pooled = torch.cat([(shares * read_BTH).sum(1), largest], dim=-1)
        hidden = self.dropout(self.dense(pooled).relu())
        return SequenceClassifierOutput(logits=self.classifier(hidden))


AutoModelForTokenClassification.register(ElmoConfig, ElmoForTokenClassification)
AutoModelForSequenceClassification.register(ElmoConfig, ElmoForSequenceClassification)


# --- Published weights (allenai/bilm-tf: ``options.json`` and an HDF5 file) ---


Read = Callable[[str], NDArray[np.float32]]
"""Gives an array of the HDF5 file by its name."""


def convert_published(options: Path, weights: Path) -> ElmoModel:
    """The network of a pair of published files.

    The files have no softmax: they give the layers, not the language model.

    Args:
        options: ``options.json``.
        weights: The HDF5 file.

    Raises:
        PlmError: h5py is not installed.
        DataError: The files are not those of an ELMo with characters.
    """
    try:
        import h5py
    except ImportError as error:
        raise PlmError(
            "reading HDF5 files needs the package h5py", "install it: pip install 'plmctl[elmo]'"
        ) from error
    config = read_options(options)
    model = ElmoModel(config)
    try:
        with h5py.File(weights) as file:
            tensors = _published_tensors(
                config, lambda name: np.asarray(file[name], dtype=np.float32)
            )
        model.load_state_dict(tensors)
    except (OSError, KeyError, RuntimeError) as error:
        raise DataError(
            f"{weights}: not the weights of {options}: {str(error).splitlines()[0]}",
            "give the options and the weights of one published model",
        ) from error
    model.train(False)
    return model


def read_options(path: Path) -> ElmoConfig:
    """The config that ``options.json`` stands for.

    Raises:
        DataError: It has no characters, or is no such file.
        PlmError: The machine is the reason, such as too many open files.
    """
    try:
        options: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        lstm, characters = options["lstm"], options["char_cnn"]
        return ElmoConfig(
            vocab_size=options.get("n_tokens_vocab", 793_471),
            max_characters=characters["max_characters_per_token"],
            char_embedding_size=characters["embedding"]["dim"],
            filters=characters["filters"],
            activation=characters["activation"],
            num_highway_layers=characters.get("n_highway", 0),
            projection_size=lstm["projection_dim"],
            cell_size=lstm["dim"],
            num_hidden_layers=lstm["n_layers"],
            cell_clip=float(lstm["cell_clip"]),
            projection_clip=float(lstm["proj_clip"]),
            skip_connections=lstm["use_skip_connections"],
            dropout=options.get("dropout", 0.1),
        )
    except (OSError, ValueError, KeyError) as error:
        other = DataError(
            f"{path}: not the options of an ELMo with characters: {error}",
            "it is the options.json that was published with the weights",
        )
        raise read_error(error, other) from error


def _published_tensors(config: ElmoConfig, read: Read) -> dict[str, Tensor]:
    """Every weight by our name; matrices there are [in, out]."""
    named = {"characters.embedding.weight": _published_embedding(read("char_embed"))}
    for number in range(len(config.convolutions)):
        kernel = read(f"CNN/W_cnn_{number}")  # [1, width, in, out]
        named[f"characters.convolutions.{number}.weight"] = kernel[0].transpose(2, 1, 0)
        named[f"characters.convolutions.{number}.bias"] = read(f"CNN/b_cnn_{number}")
    for number in range(config.num_highway_layers):
        for part, published in (("transform", "transform"), ("gate", "carry")):
            at = f"characters.highways.{number}.{part}"
            named[f"{at}.weight"] = read(f"CNN_high_{number}/W_{published}").T
            named[f"{at}.bias"] = read(f"CNN_high_{number}/b_{published}")
    named["characters.projection.weight"] = read("CNN_proj/W_proj").T
    named["characters.projection.bias"] = read("CNN_proj/b_proj")
    for number in range(config.num_hidden_layers):
        cells = [f"RNN_{d}/RNN/MultiRNNCell/Cell{number}/LSTMCell" for d in (0, 1)]
        both = [read(f"{cell}/W_0") for cell in cells]  # [input + output, gates]
        size = config.projection_size
        named[f"layers.{number}.weight_input"] = np.stack([w[:size] for w in both])
        named[f"layers.{number}.weight_recurrent"] = np.stack([w[size:] for w in both])
        named[f"layers.{number}.bias"] = np.concatenate([read(f"{cell}/B") for cell in cells])
        named[f"layers.{number}.projection"] = np.stack([read(f"{c}/W_P_0") for c in cells])
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in named.items()}


def _published_embedding(published: NDArray[np.float32]) -> NDArray[np.float32]:
    """The published embedding with the row of padding before its 261."""
    if len(published) != SYMBOLS - 1:
        raise KeyError(f"char_embed has {len(published)} rows, not {SYMBOLS - 1}")
    return np.concatenate([np.zeros_like(published[:1]), published])
