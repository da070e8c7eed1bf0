"""Marks between documents and other text that is none: which are named."""

import pytest

from plmctl.corpus.marks import notes_on

NOTED = [
    (
        "a\n<|endoftext|>\nb\n<|endoftext|>",
        None,
        ["<|endoftext|> 2 times", "separator='\"<|endoft"],
    ),
    ("a</s>b</s>", None, ["</s> 2 times", "data.separator='\"</s>\"'"]),
    ("a [SEP] b", None, ["[SEP] 1 times"]),
    ("a\n***\nb\n***\nc\n***\n", None, ["*** 3 times", "data.separator='\"***\"'"]),
    ("a\n* * *\n" * 3, None, ["* * * 3 times"]),
    ("a\n---\nb\n", None, []),
    ('<doc id="1" title="A">\nA\n\ntext\n</doc>\n', None, ["1 lines <doc", "wikiextractor"]),
    ("<page>\na\n</page>\n" * 3, None, ["only a tag", "<page> 6 times"]),
    ("a\n\u200b\nb\n\xa0\nc", None, ["2 lines", "U+00A0 (no-break space), U+200B (zero width sp"]),
    ("a\n \t\nb", None, []),
    ("a <b> c, see <https://x.org> and a[0] = 1; x = a--b ## c", None, []),
    ("a<eos>b", "<eos>", []),
    ("a\n***\nb", "***", []),
    ('<doc id="1">\nA\n</doc>\n', "wikiextractor", []),
    ("a\n\nb", "<eos>", ["data.separator: '<eos>' does not occur"]),
    ("a<eos>b</s>c", "<eos>", ["</s> 1 times"]),
]


@pytest.mark.parametrize(("text", "separator", "words"), NOTED)
def test_what_is_noted(text: str, separator: str | None, words: list[str]) -> None:
    notes = " ".join(notes_on([text], separator))
    assert all(word in notes for word in words), notes
    assert words or not notes, notes
