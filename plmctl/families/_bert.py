"""What BERT, DistilBERT and SpanBERT share: BERT's tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plmctl.tokenization.templates import CLEANED, TokenizerTemplate

if TYPE_CHECKING:
    pass


class BertTemplate(TokenizerTemplate):
    """BERT's tokenizer, uncased or cased."""

    ALGORITHM = "wordpiece"
    CLASS = "BertTokenizer"
    KIND = "marks"
    # A new vocabulary starts with these five; the published ones have them at 0 and 100 to 103.
    FIRST = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    RULES = CLEANED

    def class_options(self) -> tuple[dict[str, Any], bool]:
        """The class has a switch for case, accents and Chinese, but none for the rest."""
        rules = self.rules
        long_words = self.config.max_word_length not in (None, 100)
        accents = None if rules.strip_accents == rules.lowercase else rules.strip_accents
        return {
            "do_lower_case": rules.lowercase,
            "strip_accents": accents,
            "tokenize_chinese_chars": rules.space_chinese,
        }, rules.normalization != self.RULES.normalization or rules.keep_joiners or long_words
