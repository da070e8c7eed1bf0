"""Which documents are held out: decided by their text alone."""

import hashlib


def share_of(text: str) -> float:
    """Where a text falls in [0, 1).

    A document is held out if this is below the validation share. So the same document is on the
    same side in every corpus and on every machine, an exact duplicate is never on both sides, and
    a larger share holds out all that a smaller one does.

    Args:
        text: The document; space around it does not count.
    """
    digest = hashlib.blake2b(text.strip().encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
