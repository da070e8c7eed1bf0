"""T5's text normalisation, in the form that its class in transformers takes.

SentencePiece's rule ``nmt_nfkc``: control characters go, all kinds of space are one, and the rest
is in Unicode's form NFKC. A tokenizer holds it as a table from characters to their replacements:
a trie in a double array (Aoe 1989; the layout is that of the darts-clone library), then the
replacements, each ended by a zero byte.
"""

import struct
import unicodedata
from collections.abc import Iterator
from functools import cache

_DELETED = {*range(0x01, 0x09), 0x0B, *range(0x0E, 0x20), 0x7F, 0x8F, 0x9F}
_SPACES = {
    0x09, 0x0A, 0x0C, 0x0D, 0x1680, *range(0x200B, 0x2010), 0x2028, 0x2029, 0x2581, 0xFEFF, 0xFFFD,
}  # fmt: skip
_KEPT = {0xFF5E}  # the wide tilde, which is no tilde in Japanese
_LEAF = 1 << 31


@cache
def nmt_nfkc() -> bytes:
    """The table for ``_spm_precompiled_charsmap``."""
    table = {key.encode(): value.encode() for key, value in replacements().items()}
    values = bytearray()
    places: dict[bytes, int] = {}
    for value in sorted(set(table.values())):
        places[value] = len(values)
        values += value + b"\0"
    units = _double_array({key: places[value] for key, value in table.items()})
    trie = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(trie)) + trie + bytes(values)


@cache
def replacements() -> dict[str, str]:
    """Each character, or letter with accents, that is not left as it is."""
    table: dict[str, str] = {}
    for code in _candidates():
        character = chr(code)
        if code in _KEPT or unicodedata.category(character) == "Cs":
            continue
        if code in _DELETED or code in _SPACES:
            table[character] = "" if code in _DELETED else " "
            continue
        normal = unicodedata.normalize("NFKC", character)
        if normal != character:
            table[character] = normal
        apart = unicodedata.normalize("NFD", character)
        if len(apart) > 1 and len(apart.encode()) < 6:  # longer ones are never looked up
            table[apart] = normal
    return table


def _candidates() -> Iterator[int]:
    """The code points of the blocks of 256 that have any that are not left as they are.

    Text in Unicode's decomposed form has no character with a decomposition: so most blocks are
    passed over at once.
    """
    special = {code >> 8 for code in _DELETED | _SPACES}
    for block in range(0x1100):
        codes = range(max(1, block << 8), (block + 1) << 8)
        text = "" if 0xD8 <= block <= 0xDF else "".join(map(chr, codes))  # surrogates
        if block in special or not unicodedata.is_normalized("NFKD", text):
            yield from codes


def _double_array(table: dict[bytes, int]) -> list[int]:
    """The units of a trie: a node's children lie at its base, exclusive-or their byte."""
    units, free = [0] * 256, [True] * 256
    free[0] = False
    waiting: list[tuple[int, list[bytes], int]] = [(0, sorted(table), 0)]
    last, bases = 0, set[int]()
    while waiting:
        node, keys, depth = waiting.pop()
        groups: dict[int, list[bytes]] = {}
        for key in keys:
            groups.setdefault(key[depth] if len(key) > depth else 0, []).append(key)
        base = last = _base(free, list(groups), last, bases, node)
        bases.add(base)
        while len(free) < (base | 255) + 1:
            units += [0] * 256
            free += [True] * 256
        units[node] |= (base ^ node) << 10 | (0 in groups) << 8
        for label, group in groups.items():
            child = base ^ label
            free[child] = False
            if label:
                units[child] = label
                waiting.append((child, group, depth + 1))
            else:
                units[child] = _LEAF | table[group[0]]
    return units


def _base(free: list[bool], labels: list[int], last: int, taken: set[int], node: int) -> int:
    """A place where a node's children fit, in the last block of 256 or a later one.

    No two nodes have one place, or each would have the other's children too; nor is it the node's.
    """
    base = last & ~255
    while (
        base == node
        or base in taken
        or not all((base ^ label) >= len(free) or free[base ^ label] for label in labels)
    ):
        base += 1
    return base
