from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plmctl.corpus.sentences import (
    Rule,
    choose_rule,
    decide,
    sentence_spans,
    sentence_starts,
    split_sentences,
)

RULES = ["line", "en", "zh", "none"]
ALPHABET = "aB 1.!?…\"'”)]»。！？；」\n\r\t。.\u3000中文Mr. No. U.S. i.e"


@given(text=st.text(alphabet=ALPHABET) | st.text(), rule=st.sampled_from(RULES))
def test_no_character_but_space_is_lost_or_moved(text: str, rule: str) -> None:
    sentences = split_sentences(text, rule)  # type: ignore[arg-type]  # a rule from the list
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)


# A bar stands where a cut belongs.
ENGLISH = [
    "He came. | She left! | Did they? | Yes.",
    "Mr. Smith met Dr. J. R. R. Tolkien and Gen. Grant. | They talked.",
    "J.R.R. Tolkien wrote it. | A. B. Smith read it.",
    "It cost $3.50, or 1.250.000 in all. | No. 5 was No. 1. | He said no. | Then he left.",
    "See pp. 3-5 of vol. 2. | It is Fig. 4.",
    "She works for Acme Inc. in the U.S. Senate at 5 p.m. on Jan. 5.",
    "They live in the U.S. | The people like it. | It was 5 p.m. | We ate.",
    "Fruit, e.g. Apples, i.e. Malus, etc. were there.",
    "The war of 1914. | 1918 ended it.",
    "\"Why?\" he asked. | 'Go.' | (He left.) | She stayed.",
    'He said "Go." | Then he went. | “Well!” | “Now?”',
    "He waited... and waited. | Wait... | He ran.",
    "It ended in 1945.[1] | Then came peace.[2][13] | All was well.",
    "1. The first point. | 2. The second point. | B. Another.",
    "World War II. | The end of World War I. | The beginning.",
    "www.example.org is a site. | So is a.b.c too.",
    "Он пришёл. | Она ушла. | А ты?",
    "यह है। | वह था।",
    "كيف حالك؟ | أنا بخير.",
    "ខ្ញុំទៅផ្សារ។ | គាត់នៅផ្ទះ។",
    "ང་འགྲོ། | ཁོ་སྡོད།",
    "他来了。 | 她走了！ | English too. | 好。",
    "No stop at the end",
]


@pytest.mark.parametrize("marked", ENGLISH)
def test_english_and_other_scripts_with_spaces(marked: str) -> None:
    assert split_sentences(marked.replace(" | ", " "), "en") == marked.split(" | ")


CHINESE = [
    "他来了。|她走了！|你呢？|好",
    "他说：“你好！”|然后走了。|（新华社记者摄）",
    "真的吗？！|是的……好！……|对。",
    "他想……不行，还是走吧。",
    "苹果；香蕉；梨。|全都有。",
    "《你是谁？》|是一本书。",
    "「走吧。」|他说。|『好！』",
    "见http://a.cn/x?id=1&b=2，好吧!|行?|去3个人?|行。",
    "占１．５％，即3.5万元。|同比增长。",
    "This is one. |And two! |中文。",
]


@pytest.mark.parametrize("marked", CHINESE)
def test_chinese(marked: str) -> None:
    expected = [part.strip() for part in marked.split("|")]
    assert split_sentences(marked.replace("|", ""), "zh") == expected


def test_wrapped_lines_are_joined_and_long_lines_are_paragraphs() -> None:
    wrapped = "A heading\n\nThis text is\nwrapped. It goes\r\non.\n \nNext"
    assert split_sentences(wrapped, "en") == [
        "A heading",
        "This text is wrapped.",
        "It goes on.",
        "Next",
    ]
    long = "word " * 30
    assert split_sentences(f"A heading\n{long}\nAnother", "en") == [
        "A heading",
        long.strip(),
        "Another",
    ]
    assert split_sentences("标题\n正文\n", "zh") == ["标题", "正文"]


def test_line_rule_takes_lines_as_they_are() -> None:
    assert split_sentences("One. Two.\r\n\n  Mr. X\u2028y \n", "line") == [
        "One. Two.",
        "Mr. X\u2028y",
    ]
    assert split_sentences("One. Two.\nThree", "none") == ["One. Two.\nThree"]


@pytest.mark.parametrize("rule", RULES)
def test_nothing_in_nothing(rule: str) -> None:
    assert split_sentences(" \n\n\t\r\n", rule) == []  # type: ignore[arg-type]  # as above


def test_rule_follows_the_script() -> None:
    assert choose_rule(["中文的句子。", "还有 some English in it"]) == "zh"
    assert choose_rule(["これはペンです。"]) == "zh"
    assert choose_rule(["An article that cites 北京 once"]) == "en"
    assert choose_rule(["Русский текст"]) == "en"
    assert choose_rule(["", "123"]) == "en"


ARTICLE = "It was late. The streets were empty, and nobody spoke. Then a door opened."
BERT_INPUT = "It was late.\nThe streets were empty.\nThen a door opened.\n\nAnother text.\nIt ends."
VERSE = "Before we proceed any further\nhear me speak\n\nSpeak, speak\nYou are all resolved\n\n"
WRAPPED = (
    "This paragraph was wrapped at some forty\ncolumns. Its lines are as long as they can\n"
    "be. They do not end where sentences end,\nbut where no other word would have fitted.\n"
)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (BERT_INPUT, "line"),
        (VERSE * 3, "line"),  # all lines are short
        ("他来了。\n我走了。\n\n你好。\n再见。\n\n他来了。\n走吧。", "line"),
        (f"{ARTICLE}\n{ARTICLE}\n\n{ARTICLE}\n{ARTICLE}", "en"),  # a paragraph per line
        (f"{ARTICLE}\n\n{ARTICLE}\n\n{ARTICLE}", "en"),  # a line per document
        (f"{WRAPPED}\n{WRAPPED}\n{WRAPPED}", "en"),
        (BERT_INPUT.replace("\n\n", "\n"), "en"),  # nothing says where documents end
        ("他来了。我走了。\n你好。再见。\n\n他来了。我走了。\n走吧。", "zh"),
    ],
)
def test_one_sentence_per_line_is_seen(text: str, rule: str) -> None:
    assert decide([text], [text]).rule == rule
    assert decide([text], []).rule != "line"  # rows of a table are no lines
    if rule == "line":
        assert decide([text, ARTICLE], [text, ARTICLE]).rule != "line"
        assert "blank lines between documents" in decide([text], [text]).reason


def test_sentences_carry_the_white_space_before_them() -> None:
    text = "  One.  Two!\n\n\tThree \n"
    starts = sentence_starts(text, "en")
    assert [text[a:b] for a, b in pairwise([*starts, len(text)])] == [
        "  One.", "  Two!", "\n\n\tThree \n",
    ]  # fmt: skip
    assert sentence_starts(" \n ", "en") == []


@pytest.mark.parametrize("rule", ["en", "zh", "line", "none"])
def test_spans_are_the_sentences(rule: Rule) -> None:
    @given(st.text(st.sampled_from("ab.!。 \n\r\t”“Mr1中,\u2028\x85")))
    def check(text: str) -> None:
        spans = sentence_spans(text, rule)
        assert all(a < b and text[a:b] == text[a:b].strip() for a, b in spans)
        flat = [at for span in spans for at in span]
        assert flat == sorted(flat)
        outside = [
            text[a:b] for a, b in zip([0, *flat[1::2]], [*flat[::2], len(text)], strict=True)
        ]
        assert not "".join(outside).strip()

    check()
