"""The layers of ELMo: the character encoder and the LSTM with a projection.

Source: allenai/bilm-tf, training.py (``LanguageModel``), and TensorFlow's ``LSTMCell``.
"""

import torch
from torch import Tensor, nn

from plmctl.modeling.elmo.config import ElmoConfig

FORGET_BIAS = 1.0  # TensorFlow's LSTMCell adds it to the forget gate; it is no weight


class Gate(nn.Linear):
    """How much of a highway's input is transformed; it starts with a bias of -2, mostly shut."""


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
