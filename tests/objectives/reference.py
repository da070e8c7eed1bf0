"""The text, vocabulary and settings that the original codes were run with, as a store."""

from pathlib import Path

import numpy as np

from plmctl.corpus.store import TokenStore
from plmctl.tokenization.load import Vocab


def reference_store(shared_data: Path) -> tuple[TokenStore, Vocab, np.ndarray]:
    """181 documents of Shakespeare's plays in 8k WordPiece tokens; which ids continue a word."""
    from tokenizers import BertWordPieceTokenizer

    folder = shared_data / "parity" / "objectives"
    tokenizer = BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=True)
    documents, starts = [], []
    for block in (folder / "shakespeare_docs.txt").read_text(encoding="utf-8").split("\n\n"):
        lines = [line for line in block.splitlines() if line.strip()]
        encodings = tokenizer.encode_batch(lines, add_special_tokens=False)
        documents.append([encoding.ids for encoding in encodings])
        for encoding in encodings:
            starts += (np.diff(encoding.word_ids, prepend=-1) != 0).tolist()
    size = tokenizer.get_vocab_size()
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    ids = {name: tokenizer.token_to_id(token) for name, token in names.items()}
    continues = np.zeros(size, bool)
    continues[[id_ for token, id_ in tokenizer.get_vocab().items() if token.startswith("##")]] = (
        True
    )
    return TokenStore.from_lists(documents, size, starts), Vocab(size=size, **ids), continues
