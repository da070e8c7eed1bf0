"""ELMo: characters to layers, and the bidirectional language model that they are learnt by."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForPreTraining, PreTrainedModel
from transformers import initialization as init
from transformers.utils.generic import ModelOutput

from plmctl.modeling.elmo.characters import BEGIN_SENTENCE, END_SENTENCE, boundary
from plmctl.modeling.elmo.config import ElmoConfig
from plmctl.modeling.elmo.layers import CharacterEncoder, Gate, ProjectedLstm


@dataclass
class ElmoOutput(ModelOutput):
    """What ``ElmoModel`` gives.

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
    """What ``ElmoForPreTraining`` gives: logits [B, T, V] of each direction, and the state."""

    forward_logits: Tensor | None = None
    backward_logits: Tensor | None = None
    state: Tensor | None = None


class ElmoPreTrainedModel(PreTrainedModel):  # type: ignore[no-untyped-call]  # theirs
    """Published initial weights, loading and saving."""

    config: ElmoConfig
    config_class = ElmoConfig
    base_model_prefix = "elmo"
    main_input_name = "character_ids"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """As in allenai/bilm-tf, training.py; the LSTM as TensorFlow's default (Glorot).

        transformers gives it every module that has weights of its own.
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


class ElmoModel(ElmoPreTrainedModel):  # type: ignore[no-untyped-call]  # theirs
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
        self.post_init()  # type: ignore[no-untyped-call]  # theirs

    def forward(self, character_ids: Tensor, state: Tensor | None = None) -> ElmoOutput:
        """The layers of sentences, which get their begin and end marks here.

        Args:
            character_ids: [B, T, C] of ``encode_sentences``, zeros at padding.
            state: ``ElmoOutput.state`` of an earlier call with as many sentences, which the
                published code goes on from; None: every sentence starts from zeros.
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


class ElmoForPreTraining(ElmoPreTrainedModel):  # type: ignore[no-untyped-call]  # theirs
    """The bidirectional language model: one softmax for both directions, never tied."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.elmo = ElmoModel(config)
        self.head = nn.Linear(config.projection_size, config.vocab_size)
        self.post_init()  # type: ignore[no-untyped-call]  # theirs

    def top(self, characters: Tensor, words: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """The top layer [2, B, T, P] of streams, and the state after them; see ``forward``."""
        # Dropout comes after the encoder, so each distinct word is encoded once.
        vectors_UP = self.elmo.characters(characters.long())
        layers, after = self.elmo.run(vectors_UP[words], state)
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
