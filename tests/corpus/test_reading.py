import gzip
import json
import re
import tempfile
import tracemalloc
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from plmctl.config.sections import TextConfig
from plmctl.corpus.reading import Unit, cut_source, documents, opening, text_unit
from plmctl.corpus.source import FORMATS, Source, is_readable, resolve
from plmctl.errors import ConfigError, DataError, PlmError


def read(*names: str | Path, **options: str) -> list[tuple[str, str]]:
    """Text (without the space around it) and origin of every document, folders cut off."""
    config = TextConfig.model_validate({"train": tuple(map(str, names)), **options})
    sources = resolve(config.train, config.max_document)
    docs = [d for source in sources for d in documents(source, config)]
    return [(d.text.strip(), d.origin.rpartition("/")[2]) for d in docs]


def refusal(*names: str | Path, **options: str) -> PlmError:
    with pytest.raises((DataError, ConfigError)) as caught:
        read(*names, **options)
    return caught.value


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_blank_lines_separate_documents_of_a_text_file(here: Path) -> None:
    (here / "a.txt").write_bytes(b"\xef\xbb\xbf\r\nOne.\r\nTwo.\r\n \r\n\r\nThree.\r\n\r\n")
    assert read("a.txt") == [("One.\r\nTwo.", "a.txt:2"), ("Three.", "a.txt:6")]
    assert read("a.txt", documents="file") == [("One.\r\nTwo.\r\n \r\n\r\nThree.", "a.txt:1")]
    assert read("a.txt", documents="line") == [
        ("One.", "a.txt:2"),
        ("Two.", "a.txt:3"),
        ("Three.", "a.txt:6"),
    ]


def test_a_file_without_blank_lines_between_text_is_one_document(here: Path) -> None:
    (here / "a.txt").write_text("\n\nOne.\nTwo.\n\n\n", encoding="utf-8")
    assert text_unit(resolve(("a.txt",))[0]) == "file"
    assert read("a.txt") == [("One.\nTwo.", "a.txt:1")]


@pytest.mark.parametrize("empty", ["", "\n", " \n\r\n\t", "\ufeff", "\ufeff\n"])
def test_nothing_in_an_empty_file(here: Path, empty: str) -> None:
    (here / "a.txt").write_text(empty, encoding="utf-8")
    assert [text for text, _ in read("a.txt")] in ([], [""])
    assert read("a.txt", documents="line") == []


def test_globs_are_sorted_and_a_literal_bracket_is_a_name(here: Path) -> None:
    (here / "deep" / "er").mkdir(parents=True)
    for name in ("b.txt", "a.txt", "c[1].txt", "deep/er/d.txt"):
        (here / name).write_text(name, encoding="utf-8")
    assert [text for text, _ in read("*.txt")] == ["a.txt", "b.txt", "c[1].txt"]
    assert [text for text, _ in read("c[1].txt")] == ["c[1].txt"]
    assert [text for text, _ in read("**/*", "b.txt")][-2:] == ["deep/er/d.txt", "b.txt"]


def compress(path: Path, data: bytes) -> None:
    half = len(data) // 2
    for part in (data[:half], data[half:]):  # two members, two frames: both are legal
        with path.open("ab") as file:
            if path.suffix == ".gz":
                file.write(gzip.compress(part))
            else:
                file.write(zstandard.ZstdCompressor().compress(part))


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_compressed_files(here: Path, suffix: str) -> None:
    text = "".join(f"Line {n}.\n\n" for n in range(20_000))
    compress(here / f"a.txt.{suffix}", text.encode())
    docs = read(f"a.txt.{suffix}")
    assert len(docs) == 20_000
    assert docs[-1] == ("Line 19999.", f"a.txt.{suffix}:39999")


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_compressed_file_cut_short_is_refused(here: Path, suffix: str) -> None:
    compress(here / "whole", b"")
    path = here / f"a.txt.{suffix}"
    compress(path, "".join(f"{n * n} is a square\n" for n in range(9_000)).encode())
    path.write_bytes(path.read_bytes()[:-40])
    error = refusal(path.name, documents="line")
    assert error.exit_code == 3
    assert "the compressed file is damaged or truncated" in error.message


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_what_only_says_it_is_compressed_is_refused(here: Path, suffix: str) -> None:
    (here / f"a.txt.{suffix}").write_text("plain", encoding="utf-8")
    assert f"a.txt.{suffix}:1: the compressed file is damaged" in refusal(f"a.txt.{suffix}").message


BAD = "第一行\n\n".encode() + "第二行".encode("gb18030") + b"\n"


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.zst", "a.jsonl", "a.csv"])
def test_bytes_that_are_not_utf8_have_their_place(here: Path, name: str) -> None:
    data = BAD if "txt" in name else b'{"text": "x"}\n\n' + "x,第".encode("gb18030")
    if name.endswith((".gz", ".zst")):
        compress(here / name, data)
    else:
        (here / name).write_bytes(data)
    error = refusal(name)
    assert error.exit_code == 3
    assert error.message.startswith(f"{name}:3: not UTF-8: byte 0x")
    assert "GB18030" in str(error.hint)


def test_utf16_is_named(here: Path) -> None:
    (here / "a.txt").write_bytes("text".encode("utf-16"))
    assert "UTF-16" in str(refusal("a.txt").hint)


def test_latin_letters_with_accents_are_not_chinese(here: Path) -> None:
    (here / "a.txt").write_bytes("Ein schöner Text über Füchse.\n".encode("latin-1"))
    assert "WINDOWS-1252" in str(refusal("a.txt").hint)


def test_what_is_not_there(here: Path) -> None:
    (here / "corpus").mkdir()
    (here / "corpus" / "train.txt").write_text("x", encoding="utf-8")
    assert refusal("corpus/traim.txt").message == (
        "corpus/traim.txt: no such file; did you mean 'corpus/train.txt'?"
    )
    assert "did you mean 'corpus'?" in refusal("corpsu/train.txt").message
    assert refusal("corpus/*.text").message == "corpus/*.text: no file matches"
    assert "no file matches; did you mean 'corpus/*.txt'?" in refusal("corpsu/*.txt").message
    assert refusal("corpsu/*.html").message == "corpsu/*.html: no file matches"
    assert refusal("qqq.txt").message == "qqq.txt: no such file"
    assert "a folder, but not one saved by `datasets`" in refusal("corpus").message
    assert refusal("qqq.txt").exit_code == 3


def test_kinds_that_are_not_read(here: Path) -> None:
    for name in ("a.pdf", "a.parquet.gz"):
        (here / name).write_bytes(b"x")
        assert "files of this kind are not supported" in refusal(name).message
    assert "plmctl text FILE" in str(refusal("a.pdf").hint)
    for kind in re.findall(r"\.\w+", FORMATS):  # the one list of what is read
        assert kind in (".gz", ".zst") or is_readable(f"a{kind}"), kind
    assert is_readable("a.py")
    assert not is_readable("a.html")


def test_jsonl(here: Path) -> None:
    rows = [{"text": "One", "id": 1}, {"id": 2, "text": None}, {"text": "三"}]
    (here / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n", encoding="utf-8")
    assert read("a.jsonl") == [("One", "a.jsonl:1"), ("", "a.jsonl:2"), ("三", "a.jsonl:3")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "x"', "a.jsonl:3: not JSON"),
        ("[1]", "a.jsonl:3: a JSON list, not an object"),
        ('{"text": "\\ud83d"}', "a.jsonl:3: \\ud83d is a lone surrogate"),
        ('{"body": "x", "id": 1}', "a.jsonl:3: no column 'text'; the columns are: body, id"),
        ('{"text": 3}', "a.jsonl:3: column 'text' holds a int, not text"),
    ],
)
def test_a_malformed_row_has_its_line(here: Path, line: str, message: str) -> None:
    (here / "a.jsonl").write_text(f'{{"text": "\\ud83d\\ude00"}}\n\n{line}\n', encoding="utf-8")
    error = refusal("a.jsonl")
    assert error.exit_code == 3
    assert error.message.startswith(message)


def test_csv_and_tsv(here: Path) -> None:
    (here / "a.csv").write_bytes(b'\xef\xbb\xbftext,n\r\n"One, ""two""\r\nthree",1\r\nFour,2\r\n')
    assert read("a.csv") == [('One, "two"\r\nthree', "a.csv:2"), ("Four", "a.csv:4")]
    (here / "a.tsv").write_text('n\ttext\n1\tA " quote\n2\tB " quote\n', encoding="utf-8")
    assert read("a.tsv") == [('A " quote', "a.tsv:2"), ('B " quote', "a.tsv:3")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,n,text\n", "a.csv:1: two columns have the name 'text'"),
        ("text,n\nx,1\ny\n", "a.csv:3: 1 fields where the header has 2 columns"),
        ("text,n\nx, y, 1\n", "a.csv:2: 3 fields where the header has 2 columns"),
        ('text,n\n"x,1\ny,2\n', "a.csv:3: unexpected end of data"),
        ("body,n\nx,1\n", "a.csv:2: no column 'text'; the columns are: body, n"),
    ],
)
def test_a_malformed_csv_row_has_its_line(here: Path, content: str, message: str) -> None:
    (here / "a.csv").write_text(content, encoding="utf-8")
    assert refusal("a.csv").message.startswith(message)


def test_parquet(here: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"n": [1, 2, 3], "body": ["One", None, "三"]})
    pyarrow.parquet.write_table(table, "a.parquet", row_group_size=2)
    assert read("a.parquet", text="body") == [
        ("One", "a.parquet:row 1"),
        ("", "a.parquet:row 2"),
        ("三", "a.parquet:row 3"),
    ]
    assert refusal("a.parquet").message == "a.parquet: no column 'text'; the columns are: n, body"
    (here / "b.parquet").write_bytes(b"no")
    assert "b.parquet: cannot be read as parquet" in refusal("b.parquet").message


def test_folders_saved_by_datasets(here: Path) -> None:
    from datasets import Dataset, DatasetDict

    data = Dataset.from_dict({"text": ["One", "Two"], "n": [1, 2]})
    data.save_to_disk("one")
    DatasetDict({"train": data, "test": data.select([1])}).save_to_disk("both")
    DatasetDict({"test": data}).save_to_disk("tests")
    assert read("one") == [("One", "one:row 1"), ("Two", "one:row 2")]
    assert [text for text, _ in read("both")] == ["One", "Two"]
    assert [text for text, _ in read("both/test")] == ["Two"]
    assert refusal("one", text="body").message == "one: no column 'body'; the columns are: text, n"
    error = refusal("tests")
    assert error.message == "tests: no split 'train'; the splits are: test"
    assert error.hint == "name a split: tests/test"


def test_the_hub_without_a_network_is_a_data_error() -> None:
    error = refusal("hf:nobody/nothing")
    assert error.exit_code == 3
    assert error.message.startswith("hf:nobody/nothing: ")
    assert "network" in str(error.hint)


def test_opening_reads_a_little(here: Path) -> None:
    (here / "a.txt").write_text("abcdefghi\n" * 1_000, encoding="utf-8")
    (here / "a.jsonl").write_text('{"text": "abc"}\nnot read', encoding="utf-8")
    config = TextConfig(train=("a.txt",))
    assert 100 <= len(opening(resolve(("a.txt",))[0], config, 100)) < 130
    assert opening(resolve(("a.jsonl",))[0], config, 3) == "abc"


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.txt", "One.\n" + "x" * 2_000, "a.txt:2: a line of more than 1,000 bytes"),
        ("a.txt", "Two.\n\n" + "One.\n" * 400, "a.txt:3: a document of more than 1,000 bytes"),
        ("a.txt", "One.\n" * 400, "a.txt:1: a document of more than 1,000 bytes"),
        ("a.jsonl", '{"text": "a"}\n{"text": "' + "x" * 2_000, "a.jsonl:2: a line of more than"),
        ("a.csv", "text\na\n" + "x" * 2_000, "a.csv:3: a line of more than"),
        ("a.tsv", "text\na\n" + "x" * 2_000, "a.tsv:3: a line of more than"),
    ],
)
def test_what_would_fill_the_memory_is_refused(
    here: Path, name: str, content: str, place: str
) -> None:
    (here / name).write_text(content)
    error = refusal(name, max_document="1kB")
    assert place in error.message
    assert "`data.max_document`" in str(error.hint)
    assert ("documents: line" in str(error.hint)) == ("document of" in place)
    if "document of" in place:
        assert len(read(name, max_document="1kB", documents="line")) >= 400
        assert sum(len(text) for text, _ in read(name, max_document="3kB")) >= 1_999


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_small_file_with_much_text_in_it_is_refused(here: Path, suffix: str) -> None:
    """Of 300 MB, 70 are unpacked; text that is 80 times larger than the file is read."""
    line = b"x" * 2_999_999 + b"\n"
    path = here / f"a.txt{suffix}"
    with path.open("wb") as file:
        packed = (
            gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1)
            if suffix == ".gz"
            else zstandard.ZstdCompressor().stream_writer(file, closefd=False)
        )
        with packed:
            packed.write(b"first\n")
            for _ in range(100):
                packed.write(line)
    error = refusal(path.name, documents="line")
    assert path.name in error.message
    assert "bytes were unpacked from" in error.message
    unpacked = int(error.message.split(": ")[1].split()[0].replace(",", ""))
    assert unpacked < 80_000_000
    assert "unpack the file first" in str(error.hint)


def test_a_block_of_zstd_is_unpacked_in_parts(here: Path) -> None:
    """46 kB could have 1.5 GB of text, and a few kB are unpacked at once."""
    path = here / "a.txt.zst"
    with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as packed:
        for _ in range(300):
            packed.write(b"x" * 1_000_000)
    tracemalloc.start()
    refusal(path.name)
    assert tracemalloc.get_traced_memory()[1] < 300_000_000
    tracemalloc.stop()


BLANK = ["", " ", "\u3000", "\u200b", "\xa0\ufeff"]
MARKS = ["<eot>", " <eot>", "a <eot> b", "<eot>c<eot>", "***", "*** a", "<doc id=1>", "</doc>"]
LINES = st.lists(st.sampled_from([*BLANK, *MARKS, "One.", "Second line.", "三", "x" * 30]))


@settings(deadline=None)  # it writes files
@given(
    lines=LINES,
    end=st.sampled_from(["\n", "\r\n"]),
    unit=st.sampled_from(["blank_line", "line", "file"]),
    separator=st.sampled_from([None, "<eot>", "***", "wikiextractor"]),
    size=st.integers(1, 60),
    mark=st.booleans(),
)
def test_pieces_of_a_text_file_have_each_document_once(
    lines: list[str], end: str, unit: Unit, separator: str | None, size: int, mark: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.txt")
        path.write_bytes((("\ufeff" if mark else "") + end.join(lines)).encode())
        source = Source(str(path), "text")
        config = TextConfig(train=(str(path),), documents=unit, separator=separator)
        pieces = cut_source(source, unit, size, separator)
        from_pieces = [d.text for p in pieces for d in documents(source, config, p.start, p.end)]
        assert from_pieces == [d.text for d in documents(source, config)]
        assert sum(piece.size for piece in pieces) == path.stat().st_size


def test_a_separator_ends_documents_and_is_no_text(here: Path) -> None:
    stories = "One.\n\nStill one.\n<|eot|>\n\nTwo.\n\n<|eot|>Three.<|eot|>\n"
    (here / "a.txt").write_text(stories, encoding="utf-8")
    assert read("a.txt", separator="<|eot|>") == [
        ("One.\n\nStill one.", "a.txt:1"),
        ("Two.", "a.txt:6"),
        ("Three.", "a.txt:8"),
    ]
    assert [text for text, _ in read("a.txt", separator="<|eot|>", documents="blank_line")] == [
        "One.", "Still one.", "Two.", "Three.",
    ]  # fmt: skip
    (here / "b.txt").write_text("One ***.\n***\nTwo.\n\n ***\n\n****\n", encoding="utf-8")
    assert [text for text, _ in read("b.txt", separator="***")] == ["One ***.", "Two.", "****"]
    wiki = (
        '<doc id="1" url="https://x.org/?curid=1" title="A &lt;B&gt;">\nA\n\nText of A.\n\n</doc>\n'
        '\n<doc id="2" title="B">\nB\n\nText <doc> of B.\n</doc>\n'
    )
    (here / "wiki_00").write_text(wiki, encoding="utf-8")
    assert read("wiki_00", separator="wikiextractor") == [
        ("A\n\nText of A.", "wiki_00:2"),
        ("B\n\nText <doc> of B.", "wiki_00:9"),
    ]
    (here / "a.jsonl").write_text('{"text": "One.<|eot|>Two."}\n{"text": "Three."}\n')
    assert [text for text, _ in read("a.jsonl", separator="<|eot|>")] == ["One.", "Two.", "Three."]


def test_lines_of_what_shows_nothing_are_blank(here: Path) -> None:
    (here / "a.txt").write_text("One.\n\u200b\nTwo.\n\xa0\ufeff\nThree.\n", encoding="utf-8")
    assert [text for text, _ in read("a.txt")] == ["One.", "Two.", "Three."]


def test_a_large_file_is_cut_into_pieces_of_about_the_size(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("A line of text.\nAnother.\n\n" * 4_000, encoding="utf-8")  # 26 bytes each
    pieces = cut_source(Source(str(path), "text"), "blank_line", 10_000)
    assert len(pieces) == 11
    assert all(10_000 <= piece.size <= 10_026 for piece in pieces[:-1])
    assert all(piece.start % 26 == 0 for piece in pieces)
    assert len(cut_source(Source(str(path), "text"), "file", 10_000)) == 1


def test_pieces_of_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"text": "{n}"}}\n\n' for n in range(100)), encoding="utf-8")
    source = Source(str(path), "jsonl")
    config = TextConfig(train=(str(path),))
    pieces = cut_source(source, "file", 200)
    assert len(pieces) > 5
    from_pieces = [d.text for p in pieces for d in documents(source, config, p.start, p.end)]
    assert from_pieces == [str(n) for n in range(100)]


def test_a_mistake_in_a_later_piece_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "x"}\n' * 50 + b"{\n" + b'{"text": "x"}\n' * 50)
    source = Source(str(path), "jsonl")
    config = TextConfig(train=(str(path),))
    piece = next(p for p in cut_source(source, "file", 100) if p.end and p.start <= 700 < p.end)
    assert piece.start > 0
    with pytest.raises(DataError, match=r"a\.jsonl:51: not JSON"):
        list(documents(source, config, piece.start, piece.end))
    path.write_bytes(b"text\n\n" * 50 + b"\xff\n")
    with pytest.raises(DataError, match=r"a\.jsonl:101: not UTF-8"):
        list(documents(Source(str(path), "text"), TextConfig(train=("x",)), 120, None))


def test_pieces_of_parquet_are_row_groups(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    texts = [f"text {n} " + "long " * n for n in range(50)]
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path, row_group_size=7)
    source = Source(str(path), "parquet")
    config = TextConfig(train=(str(path),))
    pieces = cut_source(source, "file", 500)
    assert 1 < len(pieces) <= 8
    from_pieces = [d for p in pieces for d in documents(source, config, p.start, p.end)]
    assert [d.text for d in from_pieces] == texts
    assert [d.origin for d in from_pieces] == [f"{path}:row {n}" for n in range(1, 51)]


def test_pieces_of_a_datasets_folder(tmp_path: Path) -> None:
    from datasets import Dataset

    texts = [str(n) for n in range(30)]
    Dataset.from_dict({"text": texts}).save_to_disk(tmp_path / "data")
    source = Source(str(tmp_path / "data"), "datasets")
    config = TextConfig(train=("x",))
    pieces = cut_source(source, "file", 50)
    assert len(pieces) > 3
    assert [d.text for p in pieces for d in documents(source, config, p.start, p.end)] == texts
