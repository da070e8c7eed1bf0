"""Languages by code, and the scripts that they are written in.

The codes are those of ISO 639-1, and a few of ISO 639-3 for languages that have none there.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from plmctl.errors import ConfigError, did_you_mean, near_names

_NAMES = """
aa Afar|ab Abkhazian|af Afrikaans|ak Akan|am Amharic|an Aragonese|ar Arabic|as Assamese|av Avaric|
ay Aymara|az Azerbaijani|ba Bashkir|be Belarusian|bg Bulgarian|bi Bislama|bm Bambara|bn Bengali|
bo Tibetan|br Breton|bs Bosnian|ca Catalan|ce Chechen|ch Chamorro|co Corsican|cr Cree|cs Czech|
cu Church Slavic|cv Chuvash|cy Welsh|da Danish|de German|dv Divehi|dz Dzongkha|ee Ewe|el Greek|
en English|eo Esperanto|es Spanish|et Estonian|eu Basque|fa Persian|ff Fulah|fi Finnish|fj Fijian|
fo Faroese|fr French|fy Western Frisian|ga Irish|gd Scottish Gaelic|gl Galician|gn Guarani|
gu Gujarati|gv Manx|ha Hausa|he Hebrew|hi Hindi|hr Croatian|ht Haitian Creole|hu Hungarian|
hy Armenian|ia Interlingua|id Indonesian|ig Igbo|ii Sichuan Yi|ik Inupiaq|is Icelandic|it Italian|
iu Inuktitut|ja Japanese|jv Javanese|ka Georgian|kg Kongo|ki Kikuyu|kk Kazakh|kl Kalaallisut|
km Khmer|kn Kannada|ko Korean|kr Kanuri|ks Kashmiri|ku Kurdish|kv Komi|kw Cornish|ky Kyrgyz|
la Latin|lb Luxembourgish|lg Ganda|li Limburgish|ln Lingala|lo Lao|lt Lithuanian|lu Luba-Katanga|
lv Latvian|mg Malagasy|mh Marshallese|mi Maori|mk Macedonian|ml Malayalam|mn Mongolian|mr Marathi|
ms Malay|mt Maltese|my Burmese|na Nauru|nb Norwegian Bokmål|nd North Ndebele|ne Nepali|ng Ndonga|
nl Dutch|nn Norwegian Nynorsk|no Norwegian|nr South Ndebele|nv Navajo|ny Chichewa|oc Occitan|
oj Ojibwa|om Oromo|or Odia|os Ossetian|pa Punjabi|pi Pali|pl Polish|ps Pashto|pt Portuguese|
qu Quechua|rm Romansh|rn Rundi|ro Romanian|ru Russian|rw Kinyarwanda|sa Sanskrit|sc Sardinian|
sd Sindhi|se Northern Sami|sg Sango|si Sinhala|sk Slovak|sl Slovenian|sm Samoan|sn Shona|so Somali|
sq Albanian|sr Serbian|ss Swati|st Southern Sotho|su Sundanese|sv Swedish|sw Swahili|ta Tamil|
te Telugu|tg Tajik|th Thai|ti Tigrinya|tk Turkmen|tl Tagalog|tn Tswana|to Tonga|tr Turkish|
ts Tsonga|tt Tatar|tw Twi|ty Tahitian|ug Uyghur|uk Ukrainian|ur Urdu|uz Uzbek|ve Venda|
vi Vietnamese|vo Volapük|wa Walloon|wo Wolof|xh Xhosa|yi Yiddish|yo Yoruba|za Zhuang|zh Chinese|
zu Zulu|ast Asturian|awa Awadhi|bcl Central Bikol|bho Bhojpuri|ceb Cebuano|ckb Central Kurdish|
csb Kashubian|dsb Lower Sorbian|fil Filipino|fur Friulian|gsw Swiss German|hak Hakka Chinese|
haw Hawaiian|hmn Hmong|hsb Upper Sorbian|ilo Iloko|kab Kabyle|kmr Northern Kurdish|lzh Literary
Chinese|mai Maithili|mni Manipuri|nah Nahuatl|nan Min Nan Chinese|nds Low German|nso Northern Sotho|
pap Papiamento|pcm Nigerian Pidgin|sah Yakut|sat Santali|scn Sicilian|sco Scots|shn Shan|tet Tetum|
tpi Tok Pisin|tyv Tuvinian|war Waray|wuu Wu Chinese|yue Cantonese
"""

LANGUAGES = dict(entry.split(maxsplit=1) for entry in " ".join(_NAMES.split()).split("|"))
"""The name of each language by its code."""

_TAG = re.compile(r"[a-z]{2,3}(-[a-z0-9]{2,8})*")

_SCRIPTS = {
    "Han": "zh ja yue wuu nan hak lzh",
    "Kana": "ja",
    "Hangul": "ko",
    "Khmer": "km",
    "Thai": "th",
    "Lao": "lo",
    "Myanmar": "my shn",
    "Tibetan": "bo dz",
    "Georgian": "ka",
    "Armenian": "hy",
    "Greek": "el",
    "Hebrew": "he yi",
    "Bengali": "bn as mni",
    "Gujarati": "gu",
    "Gurmukhi": "pa",
    "Oriya": "or",
    "Tamil": "ta",
    "Telugu": "te",
    "Kannada": "kn",
    "Malayalam": "ml",
    "Sinhala": "si",
    "Ethiopic": "am ti",
    "Thaana": "dv",
    "Devanagari": "hi mr ne sa mai bho awa ks sd",
    "Arabic": "ar fa ur ps ug ckb ks sd ku az",
    "Cyrillic": (
        "ru uk be bg sr mk kk ky mn tg tt ba cv ce os ab av kv cu sah tyv uz az bs ku ro tk mo"
    ),
}
"""The languages that are usually written in a script; of a script with one language, the language
of a text is known."""

NO_SPACES = ("Khmer", "Thai", "Lao", "Myanmar", "Tibetan", "Javanese", "Balinese", "Tai")
"""Scripts without spaces between words, apart from Chinese and Japanese."""

_RENAMED = {"CJK": "Han", "HIRAGANA": "Kana", "KATAKANA": "Kana", "KATAKANA-HIRAGANA": "Kana"}


def check_language(tag: str) -> str:
    """The code of a language tag such as ``sw`` or ``zh-Hant``.

    Raises:
        ConfigError: It is no tag, or the language is unknown; the message has the nearest.
    """
    known = tag.strip().lower().replace("_", "-")
    code = known.partition("-")[0]
    if _TAG.fullmatch(known) and code in LANGUAGES:
        return code
    names = {name.lower(): code for code, name in LANGUAGES.items()}
    if known in names:
        near = [known]
    else:
        same_start = [one for one in (*LANGUAGES, *names) if one[0] == code[:1]]
        near = near_names(code, same_start, most=2)
    codes = [names.get(name, name) for name in near]
    hint = did_you_mean(f"{code} ({LANGUAGES[code]})" for code in codes)
    raise ConfigError(
        f"--lang {tag}: unknown language{hint}",
        "give a code of ISO 639, such as en, zh, sw or km; leave --lang out for a language "
        "without one",
    )


@cache
def _script(character: str) -> str:
    """The script of a letter or mark; empty: of no script."""
    name = unicodedata.name(character, "").split(" ")[0].split("-")[0]
    if name in ("COMBINING", "MODIFIER", "FULLWIDTH", "MICRO", "VARIATION"):
        return ""
    return _RENAMED.get(name, name.capitalize())


def script_shares(letters: Counter[str]) -> dict[str, float]:
    """The share of each script in counted letters and marks, the most frequent first.

    A script is the first word of a character's name in Unicode, such as Latin or Khmer; Han is
    Chinese characters, Kana is both Japanese syllabaries.
    """
    counts = Counter[str]()
    for character, count in letters.items():
        if script := _script(character):
            counts[script] += count
    total = sum(counts.values())
    return {script: count / total for script, count in counts.most_common()}


def language_of_script(shares: dict[str, float]) -> str | None:
    """The language of a text by its scripts; None if several languages use them."""
    if shares.get("Kana", 0) > 0.1:
        return "ja"
    main = next(iter(shares), "")
    if main == "Han":
        return "zh"
    codes = _SCRIPTS.get(main, "").split()
    return codes[0] if len(codes) == 1 else None


def scripts_of(code: str) -> set[str]:
    """The scripts that a language is usually written in; none: unknown."""
    usual = {name for name, codes in _SCRIPTS.items() if code in codes.split()}
    return usual | ({"Latin"} if code in (*_LATIN.split(), *_LATIN_TOO.split()) else set())


_ENGLISH = "the of and to that is for with was it are this not"

_WORDS = 30  # fewer say little about a language


def looks_english(text: str) -> bool | None:
    """Whether a text in Latin letters is English, by its most frequent words.

    Of the words of English text, 15 to 25 % are these; of other languages hardly any, though some
    of them have one or two of these words.

    Returns:
        None: The text is too short, or between the two.
    """
    words = re.findall(r"[^\W\d_]+", text.lower())
    if len(words) < _WORDS:
        return None
    counts = Counter(word for word in words if word in _ENGLISH.split())
    share = counts.total() / len(words)
    if share >= 0.1 and len(counts) >= 3:
        return True
    return False if share < 0.05 else None


# --- The language of a document, by py3langid, which carries its model ---


_LOOKED_AT = 1_000  # characters of the beginning of a document, and of its middle

_CERTAIN = 0.5  # below this probability, such as in very short texts, the language is unknown

_SAME = {"zh": ("wuu", "yue"), "no": ("nn",), "nb": ("no", "nn"), "fil": ("tl",), "he": ("hbo",)}
"""Languages that the library tells apart, and a user who names one hardly does."""


@cache
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise ConfigError(
            "data.languages: the library py3langid is not installed",
            "pip install 'plmctl[documents]'",
        ) from None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def language_of(text: str) -> str | None:
    """The code of a document's language; None: it is too short, unclear or no language at all."""
    middle = max(_LOOKED_AT, len(text) // 2)
    code, share = _identifier().classify(
        f"{text[:_LOOKED_AT]}\n{text[middle : middle + _LOOKED_AT]}"
    )
    return None if share < _CERTAIN or code == "zxx" else str(code)


def is_other(text: str, wanted: Sequence[str]) -> bool:
    """Whether a document is clearly in another language than these."""
    code = language_of(text)
    return code is not None and not any(is_same(code, one) for one in wanted)


def is_same(code: str, wanted: str) -> bool:
    """Whether a language is the wanted one, or one that hardly differs from it."""
    return code in (wanted, *_SAME.get(wanted, ()))


def is_detectable(code: str) -> bool:
    """Whether the library knows a language."""
    return any(is_same(one, code) for one in _identifier().labels)


def check_detectable(codes: Sequence[str]) -> None:
    """Refuse languages that the library does not know.

    Raises:
        ConfigError: There is one, or the library is not installed.
    """
    known = set(_identifier().labels)
    for code in codes:
        if not is_detectable(code):
            name = f" ({LANGUAGES[code]})" if code in LANGUAGES else ""
            raise ConfigError(
                f"data.languages: {code}{name} is not among the {len(known)} languages that "
                f"py3langid tells apart{did_you_mean(near_names(code, known, most=2))}",
                "leave data.languages out: documents in it would look like another language",
            )


_LATIN = """
af ca cs cy da de en es et eu fi fo fr ga gl ha ht hr hu id is it lb lg ln lt lv mg mi mt nb nl nn
no ny om pl pt qu rn rw sk sl sm sn so sq st sv sw tl tn tr ts ve vi wo xh yo zu ceb fil
"""

_LATIN_TOO = "sr uz az ku bs kk tk tt mo"
"""Languages that are written in Latin letters and in others."""
