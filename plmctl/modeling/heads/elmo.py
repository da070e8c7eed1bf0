"""ELMo with a small network for a task on top (Peters et al., 2018, section 3.3).

The biLM is frozen and runs without dropout; what is learnt is the mix of its layers and the network
that reads the mixed vectors: a BiLSTM, then a linear layer a word (tagging), or pooling and an MLP
(classification). The paper's tagger has a CRF, GloVe vectors and a CNN beside; these have none, and
no L2 penalty on the weights of the mix. A biLM that starts from random weights is trained too.

Importing this makes transformers' Auto classes know both.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification
from transformers import initialization as init
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput

from plmctl.modeling.elmo.config import ElmoConfig
from plmctl.modeling.elmo.mix import ScalarMix
from plmctl.modeling.elmo.network import ElmoModel, ElmoPreTrainedModel


class _ElmoWithHead(ElmoPreTrainedModel):  # type: ignore[no-untyped-call]  # theirs
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
        """Training mode, but not of a frozen biLM: its dropout stays off."""
        super().train(mode)
        self.elmo.train(mode and not self.config.frozen)
        # Here, since loading puts new parameters in the place of those of the constructor.
        self.elmo.requires_grad_(not self.config.frozen)
        return self

    def read(self, character_ids: Tensor) -> tuple[Tensor, Tensor]:
        """The words as the BiLSTM has them, [B, T, 2 * head_size], and which there are [B, T]."""
        layers = self.elmo(character_ids)
        mixed_BTH = self.dropout(self.mix(layers.hidden_states, layers.attention_mask))
        # Packed, so that no row depends on how far others fill it up.
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
        self.post_init()  # type: ignore[no-untyped-call]  # theirs

    def forward(self, character_ids: Tensor) -> TokenClassifierOutput:
        """Logits [B, T, labels] of words [B, T, C] (``encode_sentences``)."""
        read_BTH, _ = self.read(character_ids)
        return TokenClassifierOutput(logits=self.classifier(read_BTH))


class ElmoForSequenceClassification(_ElmoWithHead):
    """The largest value of each feature and a learnt average of the words, then an MLP."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        width = 2 * config.head_size
        self.attention = nn.Linear(width, 1)
        self.dense = nn.Linear(2 * width, config.head_size)
        self.classifier = nn.Linear(config.head_size, len(config.id2label or ()))
        self.post_init()  # type: ignore[no-untyped-call]  # theirs

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
