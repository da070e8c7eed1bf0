"""Documents in other languages are left out of a store: `data.languages`."""

from pathlib import Path

import pytest

from plmctl.config.sections import DataConfig
from plmctl.corpus.build import find_stores
from plmctl.corpus.languages import check_detectable, is_other, language_of
from plmctl.errors import ConfigError
from tests.corpus.encoders import LetterEncoder
from tests.corpus.test_build import NOTICES, make, tree

pytest.importorskip("py3langid", reason="needs py3langid: pip install 'plmctl[documents]'")

TEXTS = {
    "en": "The committee met on Tuesday and discussed the budget of the coming year.",
    "de": "Der Ausschuss traf sich am Dienstag und sprach über den Haushalt des nächsten Jahres.",
    "sw": "Kamati ilikutana siku ya Jumanne na kujadili bajeti ya mwaka ujao wa serikali.",
    "zh": "委员会星期二开会，讨论了明年的预算。没有人对结果感到惊讶。",
    "km": "គណៈកម្មាធិការបានជួបប្រជុំនៅថ្ងៃអង្គារ និងពិភាក្សាអំពីថវិកា។",
}


def test_languages_of_documents() -> None:
    assert {code: language_of(text) for code, text in TEXTS.items()} == {c: c for c in TEXTS}
    for short in ("", "ok", "12 34 56", "Hello"):
        assert language_of(short) is None
    assert is_other(TEXTS["en"], ("km",))
    assert not is_other("ok", ("km",))
    assert not is_other("你好", ("zh",))  # which looks like Cantonese


def test_the_middle_of_a_long_document_counts() -> None:
    assert language_of("Home. About. Contact. Imprint.\n" + 50 * TEXTS["sw"]) == "sw"


def test_a_store_without_other_languages(tmp_path: Path) -> None:
    texts = [f"{text} {n}" for n in range(30) for text in TEXTS.values()]
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join([*texts, "ok"]), encoding="utf-8")
    everything = DataConfig(train=(str(path),), valid=0.2)
    own = everything.model_copy(update={"languages": ("sw", "km")})
    NOTICES.clear()
    stores = make(own, tmp_path / "one")
    assert NOTICES == ["languages: 90 documents dropped (data.languages: sw, km)"]
    sides = [stores.manifest[side] for side in ("train", "valid")]
    assert [sum(side[name] for side in sides) for name in ("documents", "other_languages")] == [
        61, 90,
    ]  # fmt: skip
    make(own, tmp_path / "two", processes=2)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert find_stores(everything, LetterEncoder(), root=tmp_path / "one") is None


def test_a_language_that_is_not_known() -> None:
    check_detectable(("km", "zh", "nb"))
    with pytest.raises(ConfigError, match=r"data.languages: wo \(Wolof\) is not among the 1"):
        check_detectable(("km", "wo"))
