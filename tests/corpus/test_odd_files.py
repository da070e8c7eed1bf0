"""Damaged and odd files, as `scripts/fuzz.py` has them: refused with file and row, or read."""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plmctl.config.sections import DataConfig
from plmctl.corpus.labelled import read_rows
from plmctl.corpus.reading import documents, opening
from plmctl.corpus.source import resolve
from plmctl.corpus.subsample import subsample_bytes
from plmctl.errors import DataError
from plmctl.tasks.base import get_task


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(name: str) -> str:
    with pytest.raises(DataError) as refused:
        read_rows([name])
    return str(refused.value)


def written(name: str, *rows: dict[str, Any]) -> str:
    Path(name).write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return name


def test_a_file_that_zstd_packed_with_a_long_window_is_not_called_damaged(here: Path) -> None:
    import zstandard

    window = zstandard.ZstdCompressionParameters(window_log=31, enable_ldm=1)
    with zstandard.ZstdCompressor(compression_params=window).stream_writer(
        (here / "rows.jsonl.zst").open("wb")
    ) as file:
        file.write(b'{"text": "a", "label": 1}\n' * 100)
    message = refusal("rows.jsonl.zst")
    assert message.startswith("rows.jsonl.zst: it was packed with zstd --long")
    assert "zstd -d --long=31 rows.jsonl.zst" in message


def test_a_sample_for_a_tokenizer_reads_no_line_without_end(here: Path) -> None:
    with Path("zeros.txt").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(DataError) as refused:
        subsample_bytes(DataConfig(train=("zeros.txt",), max_document=1_000_000), 1 << 20, 0)
    assert "zeros.txt: after byte" in str(refused.value)
    assert "a line of more than 1,000,000 bytes" in str(refused.value)


def test_parquet_that_is_damaged_in_its_pages(here: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"text": [f"text {n} " * 20 for n in range(4000)]})
    options = {"compression": "zstd", "use_dictionary": False, "row_group_size": 1000}
    pyarrow.parquet.write_table(table, "a.parquet", **options)
    whole = Path("a.parquet").read_bytes()
    column = pyarrow.parquet.ParquetFile("a.parquet").metadata.row_group(2).column(0)
    at, size = column.data_page_offset, column.total_compressed_size
    for part in (0.0, 0.3, 0.9):  # the header of a page, and its content
        place = at + int(part * size)
        damage = bytes(byte ^ 0x55 for byte in whole[place : place + 20])
        Path("b.parquet").write_bytes(whole[:place] + damage + whole[place + 20 :])
        assert refusal("b.parquet").startswith("b.parquet: damaged after row 2000: ")


def test_a_parquet_text_that_is_not_utf8(here: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    texts = pyarrow.array([b"one", b"two", b"\xff\xfe", b"four"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), "a.parquet")
    message = refusal("a.parquet")
    assert message.startswith("a.parquet:row 3: ")
    assert "UTF8" in message
    (source,) = resolve(("a.parquet",))
    with pytest.raises(DataError, match=r"^a.parquet:row 3: "):
        list(documents(source, DataConfig(train=("a.parquet",))))


def test_a_parquet_number_that_is_no_number_is_no_value(here: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"label": [1.0, float("nan")]}), "a.parquet")
    assert [row.values["label"] for row in read_rows(["a.parquet"])] == [1.0, None]


def test_damaged_folders_of_datasets(here: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features(
        {"text": Value("string"), "x": Value("float64"), "label": ClassLabel(names=["no", "yes"])}
    )
    values = {"text": ["a", "b"], "x": [0.5, float("nan")], "label": [0, 1]}
    Dataset.from_dict(values, features=features).save_to_disk("whole")
    assert [row.values["x"] for row in read_rows(["whole"])] == [0.5, None]
    (arrow,) = Path("whole").glob("*.arrow")
    content = arrow.read_bytes()
    arrow.write_bytes(content.replace(b"ab" + bytes(6), b"\xff\xfe" + bytes(6)))  # the column text
    assert refusal("whole").startswith("whole: damaged in rows 1 to 2: ")
    labels = (1).to_bytes(8, "little")
    assert content.count(bytes(8) + labels) == 1
    arrow.write_bytes(content.replace(bytes(8) + labels, bytes(8) + (9).to_bytes(8, "little")))
    assert "whole:row 2: column 'label': 9 is none of the 2 class labels" in refusal("whole")
    Path("whole/state.json").write_text("{}")
    assert "whole/state.json: missing or damaged" in refusal("whole")


@pytest.mark.parametrize("name", ["x" * 5000, "x" * 5000 + "/*.txt", "a/" + "x" * 300, "a\0b"])
def test_names_that_no_file_can_have(here: Path, name: str) -> None:
    message = refusal(name)
    assert ("File name too long" in message) == (name == "x" * 5000), message
    assert len(message) < 500 or "*" in name


def test_not_a_number_in_json_is_no_value(here: Path) -> None:
    name = written("a.jsonl", {"text": float("nan"), "label": "b"}, {"text": "c", "label": "b"})
    assert [row.values["text"] for row in read_rows([name])] == [None, "c"]
    name = written("b.jsonl", {"text": "a", "label": float("nan")})
    task = get_task("classification")
    with pytest.raises(DataError, match=r"b.jsonl:1: column 'label' is empty"):
        task(task.Config()).labels(read_rows([name]))
    assert not task(task.Config(unlabelled="drop")).is_labelled(read_rows([name])[0])


def test_half_of_a_surrogate_pair_in_squad(here: Path) -> None:
    question = {"id": "1", "question": "\ud800", "answers": []}
    paragraph = {"context": "a", "qas": [question]}
    for indent in (None, 1):
        document = json.dumps({"data": [{"paragraphs": [paragraph]}]}, indent=indent)
        Path("a.json").write_text(document)
        assert "\\ud800 is a lone surrogate" in refusal("a.json")


def test_very_many_columns(here: Path) -> None:
    names = [f"c{n}" for n in range(100_000)]
    Path("a.csv").write_text(",".join(names) + "\n" + "," * 99_999 + "\n")
    (row,) = read_rows(["a.csv"])
    with pytest.raises(DataError, match=r"a.csv:2: no column 'tixt'.*and 99,950 more") as refused:
        row.cell("tixt")
    assert len(str(refused.value)) < 1000


# --- Any bytes, and very many lines ---


PIECES = (
    b"a b", b"a\tO", b"x B-X", b'{"text": "a"}', b'{"data": [', b"]}", b'"', b"'", b",", b"\t",
    b"\n", b"\r\n", b"\r", b"\n\n", b"\0", b"\xff", b"\xef\xbb\xbf", b"\x85", "\u2028".encode(),
    b"NaN", b"\\ud800", b"[" * 2000, b"9" * 5000, b"-DOCSTART-", "中".encode(),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["a.txt", "a.jsonl", "a.json", "a.csv", "a.tsv", "a.conll"]),
    pieces=st.lists(st.sampled_from(PIECES) | st.binary(max_size=6), max_size=12),
)
def test_any_bytes_are_read_or_refused_with_the_file(name: str, pieces: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(b"".join(pieces))
        config = DataConfig(train=(str(path),))
        for reader in (
            lambda: read_rows([str(path)]),
            lambda: [list(documents(source, config)) for source in resolve(config.train)],
            lambda: [opening(source, config, 99) for source in resolve(config.train)],
        ):
            try:
                reader()
            except DataError as error:
                assert str(path) in error.message  # noqa: PT017
                error.message.encode()


@pytest.mark.parametrize("line", ["\n", "a\n\n", "a" * 399_999 + "\n"])
def test_the_opening_of_many_lines(here: Path, line: str) -> None:
    """Its time is linear: with a sum over the lines for each line this would take minutes."""
    Path("a.txt").write_text(line * (400_000 // len(line)))
    (source,) = resolve(("a.txt",))
    start = time.process_time()
    assert len(opening(source, DataConfig(train=("a.txt",)), 399_000)) == 399_000
    assert time.process_time() - start < 5


# --- Labels and answers of another type than expected ---


def labels_of(values: list[object], **fields: Any) -> tuple[str, ...]:
    task = get_task("classification")
    name = written("rows.jsonl", *({"text": "a", "label": value} for value in values))
    return task(task.Config(**fields)).labels(read_rows([name]))


def test_an_id_instead_of_a_label(here: Path) -> None:
    with pytest.raises(DataError, match=r"have 10,001 labels; at most 10,000 are supported"):
        labels_of(list(range(10_001)))


@pytest.mark.parametrize("values", [[False, True, 0], [True, 0, 1], [1.0, "a", True]])
def test_equal_numbers_that_would_be_two_classes(here: Path, values: list[object]) -> None:
    with pytest.raises(DataError, match=r"rows.jsonl:3: .*two classes"):
        labels_of(values)


def test_lists_with_a_null(here: Path) -> None:
    with pytest.raises(DataError, match=r"rows.jsonl:2: column 'label': a label is null"):
        labels_of([["a"], [None]], problem="multi_label")
    task = get_task("multiple_choice")
    name = written("o.jsonl", {"question": "a", "options": ["b", None], "label": 0})
    rows = read_rows([name])
    with pytest.raises(DataError, match=r"o.jsonl:1: column 'options': option 2 is null"):
        task(task.Config()).make(rows, None, (), 8, "predict")


@pytest.mark.parametrize("value", [10**400, 1e308, "1e39", "9" * 400])
def test_a_number_that_float32_cannot_hold(here: Path, value: object) -> None:
    task = get_task("classification")
    rows = read_rows([written("rows.jsonl", {"text": "a", "label": value})])
    with pytest.raises(
        DataError, match=r"rows.jsonl:1: column 'label': .* is no number"
    ) as refused:
        task(task.Config(problem="regression")).make(rows, None, (), 8, "score")
    assert len(refused.value.message) < 200
