"""What ``plmctl init`` finds out about a corpus: its scripts, copies, faults and overlaps."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from plmctl.config.sections import TextConfig
from plmctl.corpus.languages import check_language, is_unusual, language_of_script
from plmctl.corpus.profile import NearCopies, Profile, _in_lines, profile
from plmctl.corpus.source import resolve
from plmctl.errors import ConfigError

# Frequent words, put together at random: it has the look of the language, and no meaning.
SWAHILI = """
mtu watu mtoto watoto nyumba shule kitabu vitabu maji chakula mwalimu rafiki kazi leo kesho jana
sana pia lakini kwa sababu anasoma wanasoma anakula tunakwenda nitakuja alikuja wamefika ninapenda
mzuri wazuri kubwa ndogo mpya na ya wa katika kutoka mji soko barabara asubuhi jioni habari
"""
KHMER = """
ខ្ញុំ អ្នក គាត់ យើង ពួកគេ មនុស្ស ផ្ទះ សាលា សៀវភៅ ទឹក បាយ គ្រូ មិត្ត ការងារ ថ្ងៃ ស្អែក ម្សិលមិញ ណាស់ ដែរ ប៉ុន្តែ
ដោយសារ អាន ញ៉ាំ ទៅ មក ដល់ ចូលចិត្ត ល្អ ធំ តូច ថ្មី និង របស់ នៅ ពី ទីក្រុង ផ្សារ ផ្លូវ ព្រឹក ល្ងាច ដំណឹង ភាសា ប្រទេស
"""


def language_text(words: str, gap: str, stop: str, documents: int = 120) -> str:
    draws, known = random.Random(7), words.split()
    return "\n\n".join(
        "\n".join(
            gap.join(draws.choices(known, k=draws.randint(5, 12))).capitalize() + stop
            for _ in range(draws.randint(3, 9))
        )
        for _ in range(documents)
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def profile_of(text: str, *evaluation: str) -> Profile:
    Path("corpus.txt").write_text(text, encoding="utf-8")
    names = ("corpus.txt",)
    return profile(resolve(names), TextConfig(train=names), resolve(evaluation))


def test_copies_are_counted(folder: Path) -> None:
    draws = random.Random(1)
    words = [f"word{n}" for n in range(2000)]
    texts = [" ".join(draws.choices(words, k=60)) for _ in range(50)]
    near = [text + " and two more" for text in texts[:10]]
    looked = profile_of("\n\n".join([*texts, *texts[:5], *near]))
    assert looked.documents == 65
    assert looked.exact == pytest.approx(5 / 65)
    assert looked.near.share == pytest.approx(10 / 65)
    assert looked.near.example is not None
    copy, original = (Path(one).name for one in reversed(looked.near.example))
    # Each text is a line, and a blank line follows; the near copies come after 55 others.
    assert int(copy.split(":")[1]) - int(original.split(":")[1]) == 2 * 55
    assert looked.whole


def test_near_copies_are_counted_in_all_that_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A sample of a tenth of the documents would have a hundredth of the pairs.
    monkeypatch.setattr("plmctl.corpus.profile._SAMPLE", 3_000)
    draws = random.Random(1)
    words = [f"word{n}" for n in range(2000)]
    texts = [" ".join(draws.choices(words, k=20)) for _ in range(100)]
    looked = profile_of("\n\n".join([*texts, *(text + " end" for text in texts)]))
    assert len(looked.sample) < 50
    assert looked.near.share == 0.5


def test_texts_on_one_topic_are_no_copies(folder: Path) -> None:
    rng = np.random.default_rng(0)
    words = [f"w{n}" for n in range(40)]
    texts = [" ".join(words[i] for i in rng.integers(0, 40, 80)) for _ in range(100)]
    assert profile_of("\n\n".join(texts)).near.share == 0


def test_scripts_and_languages(folder: Path) -> None:
    khmer = profile_of(language_text(KHMER, "", " ។"))
    assert khmer.script == "Khmer"
    assert khmer.scripts["Khmer"] > 0.99  # the vowel signs too
    assert not khmer.spaced
    assert language_of_script(khmer.scripts) == "km"
    swahili = profile_of(language_text(SWAHILI, " ", "."))
    assert swahili.spaced
    assert language_of_script(swahili.scripts) is None  # the Latin script is that of many
    assert is_unusual("sw", "Khmer")
    assert not is_unusual("sw", "Latin")
    assert is_unusual("km", "Thai")
    assert is_unusual("zh", "Latin")
    assert not is_unusual("hi", "Latin")


def test_the_share_of_traditional_characters(folder: Path) -> None:
    looked = profile_of("这个国家的学生说话。\n\n" * 30 + "這個國家的學生說話。\n\n" * 10)
    assert looked.traditional == pytest.approx(0.25)
    assert looked.chinese
    assert looked.sentences.rule == "zh"


def test_faults_are_counted(folder: Path) -> None:
    texts = ["plain text\n\n", "a \ufffd b\n\n", "cafÃ©\n\n", "<p>x</p>\n\n", "e\u0301\n\n"]
    looked = profile_of("".join(texts))
    assert sorted(looked.faults.values()) == [1, 1, 1, 1]


def test_the_overlap_with_an_evaluation_file(folder: Path) -> None:
    words = [f"word{n}" for n in range(100)]
    rows = [" ".join(words[10:30]), " ".join(reversed(words[10:30])), "too short"]
    lines = "".join(json.dumps({"text": row, "label": 1}) + "\n" for row in rows)
    Path("dev.jsonl").write_text(lines, encoding="utf-8")
    looked = profile_of(" ".join(words).upper() + "\n\nmore", "dev.jsonl")
    (overlap,) = looked.overlaps
    assert (overlap.rows, overlap.short, overlap.shared) == (2, 1, 1)


def test_chinese_overlap_is_by_characters(folder: Path) -> None:
    Path("dev.txt").write_text(
        "今天我们去学校读书写字唱歌跳舞\n完全不同的一句话没有相同的地方\n", encoding="utf-8"
    )
    looked = profile_of("昨天和今天我们去学校读书写字唱歌跳舞。\n\n更多", "dev.txt")
    assert looked.overlaps[0].shared == 1


def test_a_large_corpus_is_sampled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plmctl.corpus.profile._READ", 40_000)
    monkeypatch.setattr("plmctl.corpus.profile._PIECE", 4_000)
    text = "\n\n".join(f"document {n} of many " + "x y z " * 20 for n in range(3000))
    looked = profile_of(text)
    assert not looked.whole
    assert looked.read < 50_000
    assert looked.all_characters == pytest.approx(len(text), rel=0.1)
    numbers = [int(document.text.split()[1]) for document in looked.sample]
    assert min(numbers) < 1000
    assert max(numbers) > 2000
    again = profile_of(text)
    assert [d.text for d in again.sample] == [d.text for d in looked.sample]


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ("swa", "did you mean 'sw (Swahili)'"),
        ("swahili", "did you mean 'sw (Swahili)'"),
        ("xx", "unknown language"),
        ("e n", "unknown language"),
    ],
)
def test_unknown_languages(tag: str, message: str) -> None:
    with pytest.raises(ConfigError, match="unknown language") as error:
        check_language(tag)
    assert message in str(error.value)


def test_known_languages() -> None:
    assert [check_language(tag) for tag in ("en", "ZH-Hant", "pt_BR", "yue")] == [
        "en", "zh", "pt", "yue"
    ]  # fmt: skip


def test_an_example_in_the_middle_of_a_file_has_its_line(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("one\ntwo\nthree\nfour\n")
    sources = resolve([str(file)])
    near = NearCopies(0.1, (f"{sources[0].name}:1", f"{sources[0].name}:byte 8"))
    looked = _in_lines(near, sources).example
    assert looked is not None
    assert [Path(one).name for one in looked] == ["text.txt:1", "text.txt:3"]
