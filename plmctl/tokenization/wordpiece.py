"""WordPiece with BERT's text cleaning, special tokens and template.

Ids of a fresh vocabulary: [PAD] [UNK] [CLS] [SEP] [MASK] = 0..4. No training code was published for
BERT's vocabulary; the trainer of the tokenizers library merges by frequency.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from plmctl.config.tokenizer import TokenizerConfig
from plmctl.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def train(config: TokenizerConfig, texts: Iterable[str]) -> "PreTrainedTokenizerBase":
    """A BertTokenizer with a vocabulary learnt from ``texts``."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import BertTokenizer

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=config.lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=list(SPECIAL_TOKENS),
        limit_alphabet=config.limit_alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() > config.vocab_size:
        # The trainer goes over the asked size rather than leave a character out, and one that is
        # seen within words has two entries.
        raise ConfigError(
            f"vocab_size: {config.vocab_size:,} is too small for the text's characters, which need "
            f"{tokenizer.get_vocab_size():,} ids",
            "raise vocab_size, or lower limit_alphabet to leave rare characters out",
        )
    return BertTokenizer(
        vocab=tokenizer.get_vocab(),
        do_lower_case=config.lowercase,
        model_max_length=config.max_length,
    )
