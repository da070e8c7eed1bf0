"""The config of an ELMo network."""

from transformers import PreTrainedConfig

from plmctl.modeling.elmo.characters import SYMBOLS, WIDTH


class ElmoConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]  # theirs
    """Sizes of an ELMo network; the defaults are the original model's.

    Attributes:
        vocab_size: Words that the language model predicts; its input has no vocabulary.
        char_embedding_size: Width of a character.
        filters: Convolutions over the characters: (characters, features) of each.
        num_highway_layers: Highway layers between the convolutions and the projection.
        projection_size: Width of a layer's output in each direction, and of a token.
        cell_size: Width of an LSTM's cell.
        num_hidden_layers: LSTM layers in each direction.
        cell_clip: The cell is kept within this, and its projection within ``projection_clip``.
        skip_connections: Layers after the first add their input to their output.
        dropout: Of every layer's input and of the top layer's output.
        pad_token_id: What character ids are at a place without a word.
        frozen: In a finetuned network: the biLM stays as it is (published).
        head_size: Width of a finetuned network's BiLSTM in each direction.
        head_layers: Its layers.
        head_dropout: Of the mixed vectors and of the BiLSTM.
    """

    model_type = "elmo"

    vocab_size: int = 793_471
    num_characters: int = SYMBOLS
    max_characters: int = WIDTH
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
