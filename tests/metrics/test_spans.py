import pytest
from hypothesis import given
from hypothesis import strategies as st

from plmctl.errors import DataError
from plmctl.metrics import spans as metrics
from plmctl.metrics.spans import Span, spans

TAGS = ["O", "O", *(f"{letter}-{kind}" for letter in "BIES" for kind in ("PER", "LOC"))]
SENTENCES = st.lists(
    st.lists(st.tuples(*[st.sampled_from(TAGS)] * 2), min_size=1, max_size=8), min_size=1
)


def test_entities_begin_and_end_where_conlleval_has_them() -> None:
    assert spans(["B-PER", "I-PER", "O", "B-LOC"]) == [Span("PER", 0, 2), Span("LOC", 3, 4)]
    assert spans(["B-PER", "B-PER"]) == [Span("PER", 0, 1), Span("PER", 1, 2)]
    assert spans(["O", "I-PER", "I-PER", "O"]) == [Span("PER", 1, 3)]  # begins without a B
    assert spans(["B-PER", "I-LOC", "I-LOC"]) == [Span("PER", 0, 1), Span("LOC", 1, 3)]
    assert spans(["I-PER", "B-PER", "I-PER"]) == [Span("PER", 0, 1), Span("PER", 1, 3)]  # IOB1
    assert spans(["B-X-Y", "I-X-Y"]) == [Span("X-Y", 0, 2)]  # a type with a hyphen
    assert spans([]) == spans(["O", "O"]) == []


def test_bioes_and_its_other_spellings() -> None:
    expected = [Span("PER", 0, 3), Span("LOC", 3, 4)]
    for tags in ("B-PER I-PER E-PER S-LOC", "B-PER M-PER E-PER S-LOC", "B-PER I-PER L-PER U-LOC"):
        assert spans(tags.split()) == spans(tags.split(), "bioes", strict=True) == expected
    assert spans(["E-PER", "E-PER"]) == [Span("PER", 0, 1), Span("PER", 1, 2)]
    assert spans(["S-PER", "I-PER"]) == [Span("PER", 0, 1), Span("PER", 1, 2)]


def test_strict_takes_only_what_the_scheme_allows() -> None:
    assert spans(["I-PER", "I-PER", "O", "B-LOC"], strict=True) == [Span("LOC", 3, 4)]
    assert spans(["B-PER", "I-LOC"], strict=True) == [Span("PER", 0, 1)]
    for unfinished in ("B-PER O", "B-PER I-PER", "I-PER E-PER", "B-PER E-LOC"):
        assert spans(unfinished.split(), "bioes", strict=True) == []


def test_results_by_hand() -> None:
    true = [["B-PER", "I-PER", "O", "B-LOC"], ["B-ORG", "O", "B-PER"], ["O", "O"]]
    predicted = [["B-PER", "I-PER", "O", "B-ORG"], ["B-ORG", "I-ORG", "B-PER"], ["O", "O"]]
    # Found: PER 0-2 (right), ORG 3-4 (wrong), ORG 0-2 (wrong: too long), PER 2-3 (right).
    results = metrics.entities(predicted, true)
    assert (results["precision"], results["recall"], results["f1"]) == (2 / 4, 2 / 4, 0.5)
    assert results["accuracy"] == 7 / 9
    assert results["entities"] == 4
    assert results["per_class"] == [
        {"label": "LOC", "precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 1},
        {"label": "ORG", "precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 1},
        {"label": "PER", "precision": 1.0, "recall": 1.0, "f1": 1.0, "support": 2},
    ]
    assert metrics.f1(predicted, true) == 0.5


def test_entities_of_two_sentences_are_not_one() -> None:
    assert metrics.f1([["B-PER"], ["O"]], [["O"], ["B-PER"]]) == 0
    # The last of a sentence and the first of the next do not run together.
    assert metrics.entities([["I-PER"], ["I-PER"]], [["I-PER"], ["I-PER"]])["entities"] == 2


def test_no_entity_anywhere_is_zero_and_no_words_are_an_error() -> None:
    assert metrics.entities([["O"]], [["O"]])["f1"] == 0
    with pytest.raises(DataError, match="no words"):
        metrics.entities([[]], [[]])
    with pytest.raises(DataError, match="sentence 2: 1 predicted tags for 2 words"):
        metrics.entities([["O"], ["O"]], [["O"], ["O", "O"]])
    with pytest.raises(DataError, match="tags of 1 sentences for 2 sentences"):
        metrics.accuracy([["O"]], [["O"], ["O"]])


@given(SENTENCES)
def test_spans_cover_every_tag_but_o_once(sentences: list[list[tuple[str, str]]]) -> None:
    predicted, true = ([[pair[k] for pair in s] for s in sentences] for k in (0, 1))
    for tags in predicted:
        covered = [n for span in spans(tags) for n in range(span.start, span.stop)]
        assert covered == [n for n, tag in enumerate(tags) if tag != "O"]
        assert set(spans(tags, "bioes", strict=True)) <= set(spans(tags))
    there, back = metrics.entities(predicted, true), metrics.entities(true, predicted)
    assert there["f1"] == back["f1"]
    assert there["precision"] == back["recall"]
    assert metrics.entities(true, true)["f1"] == float(any(t != "O" for s in true for t in s))


def test_which_tags_a_scheme_has() -> None:
    for tag in ("O", "B-PER", "I-PER"):
        assert metrics.is_entity_tag(tag, "bio")
        assert metrics.is_entity_tag(tag, "bioes")
    assert not metrics.is_entity_tag("S-PER", "bio")
    assert metrics.is_entity_tag("S-PER", "bioes")
    assert not any(metrics.is_entity_tag(tag, "bioes") for tag in ("nn", "B", "B-", "PER-B", ""))
