from hypothesis import given
from hypothesis import strategies as st

from plmctl.reporting.html import Html, element, escape, join, page
from tests.reporting.markup import read


def test_text_is_escaped_and_markup_is_not():
    inside = element("b", "1 < 2 & 'so'")
    assert inside == "<b>1 &lt; 2 &amp; &#39;so&#39;</b>"
    assert element("p", "a", inside) == f"<p>a{inside}</p>"
    assert join("<", inside) == f"&lt;{inside}"


def test_attributes():
    markup = element(
        "a", "x", href='"><script>', class_="y", data_name="z", hidden=True, title=None
    )
    assert markup == ('<a href="&quot;&gt;&lt;script&gt;" class="y" data-name="z" hidden>x</a>')


def test_elements_without_content_have_no_end():
    assert element("br") == "<br>"
    assert element("td") == "<td></td>"


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_as_it_was(text):
    document = page("t", element("p", text, title=text))
    elements = read(document)
    expected = "".join(c if c >= " " or c in "\n\t" else "\ufffd" for c in text)
    assert elements.texts("p") == [expected]
    assert elements.attributes("p")[0].get("title") == expected


def test_markup_is_only_what_elements_made():
    assert not isinstance(element("p", "x") + "<", Html)
    assert escape(Html("<i>")) == "<i>"
