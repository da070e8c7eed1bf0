"""``plmctl train-tokenizer`` as a user runs it."""

import json
import random
from functools import partial
from pathlib import Path

import pytest
import yaml

from plmctl.commands import train_tokenizer
from plmctl.errors import ConfigError
from plmctl.tokenization.encode import Encoder
from plmctl.tokenization.load import Vocab, load_tokenizer
from plmctl.tokenization.units import pattern
from tests.conftest import Cli
from tests.tokenization.conftest import TEXTS

FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer_probe.json", "SHA256SUMS")


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> Cli:
    """``command(overrides...)`` trains on a small corpus in a new working directory."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    config = {
        "run": "tok",
        "algorithm": "wordpiece",
        "family": "bert",
        "vocab_size": 150,
        "data": {"train": ["text.txt"]},
    }
    Path("tok.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")

    return partial(cli, "train-tokenizer", "tok.yaml")


def content(folder: str) -> dict[str, bytes]:
    return {name: (Path(folder) / name).read_bytes() for name in FILES}


def test_a_folder_for_any_use(command: Cli) -> None:
    code, out, _ = command()
    assert code == 0
    assert "vocabulary" in out
    assert "150" in out
    assert set(FILES) | {"config.yaml", "eval", "status.json", ".lock"} == {
        path.name for path in Path("tok").iterdir()
    }
    assert load_tokenizer("tok").mask_token_id == Vocab.from_folder("tok").mask == 4
    assert Encoder("tok").vocab_size == 150


def test_json_is_one_document(command: Cli) -> None:
    code, out, _ = command("--json")
    assert code == 0
    figures = json.loads(out)
    assert figures["vocabulary"] == 150
    assert figures["class"] == "BertTokenizer"


def test_the_same_command_gives_the_same_bytes(command: Cli) -> None:
    for algorithm, family, size in (("wordpiece", "bert", "150"), ("byte_bpe", "gpt2", "300")):
        settings = [f"algorithm={algorithm}", f"family={family}", f"vocab_size={size}"]
        assert command(f"run={family}-1", *settings)[0] == 0
        assert command(f"run={family}-2", *settings)[0] == 0
        assert content(f"{family}-1") == content(f"{family}-2")


def test_a_finished_tokenizer_is_left_alone(command: Cli) -> None:
    assert command()[0] == 0
    before = {path: path.stat().st_mtime_ns for path in Path("tok").rglob("*")}
    code, out, err = command()
    assert (code, out) == (0, "")
    assert "finished" in err
    assert {path: path.stat().st_mtime_ns for path in Path("tok").rglob("*")} == before


def test_a_folder_of_another_config_is_refused_and_kept(command: Cli) -> None:
    assert command()[0] == 0
    before = content("tok")
    code, _, err = command("vocab_size=140")
    assert code == 2
    assert "vocab_size: 150 -> 140" in err
    assert content("tok") == before
    assert command("vocab_size=140", "--fresh")[0] == 0
    [old] = Path().glob("tok.old-*")
    assert content(str(old)) == before


def test_a_run_that_was_cut_short_is_done_again(command: Cli) -> None:
    assert command()[0] == 0
    before = content("tok")
    Path("tok/SHA256SUMS").unlink()  # it comes last
    Path("tok/.saving").mkdir()
    Path("tok/.saving/tokenizer.json").write_text("{")
    Path("tok/tokenizer.json").write_text("{")
    assert command()[0] == 0
    assert content("tok") == before
    assert not Path("tok/.saving").exists()


def test_what_was_measured_is_measured_again_where_it_is_lost(command: Cli) -> None:
    """As a version that measured last left it when it was killed before."""
    assert command()[0] == 0
    before, results = content("tok"), json.loads(Path("tok/eval/tokenizer.json").read_text())
    held_out = Path("tok/eval/held_out.txt").read_bytes()
    trained = Path("tok/tokenizer.json").stat().st_mtime_ns
    for lost in (["eval/tokenizer.json"], ["eval/held_out.txt", "status.json"]):
        for name in lost:
            Path("tok", name).unlink()
        code, _, err = command()
        assert code == 0, err
        assert "is now complete" in err
    again = json.loads(Path("tok/eval/tokenizer.json").read_text())
    del results["results"]["seconds"]
    assert again["results"] == results["results"]
    assert Path("tok/eval/held_out.txt").read_bytes() == held_out
    assert content("tok") == before
    assert Path("tok/tokenizer.json").stat().st_mtime_ns == trained


def test_a_tokenizer_that_was_changed_is_refused(command: Cli) -> None:
    assert command()[0] == 0
    path = Path("tok/tokenizer.json")
    path.write_text(path.read_text(encoding="utf-8").replace("##", "@@"), encoding="utf-8")
    for use in (Encoder, Vocab.from_folder, load_tokenizer):
        with pytest.raises(ConfigError, match=r"tok/tokenizer\.json: changed since it was trained"):
            use("tok")
    code, _, err = command()
    assert code == 2
    assert "changed" in err


def test_fewer_merges_than_asked_for_are_told(command: Cli) -> None:
    code, out, err = command("vocab_size=5000", "--json")
    assert code == 0
    size = json.loads(out)["vocabulary"]
    assert size < 400
    assert f"{size} ids instead of 5,000" in err


@pytest.mark.parametrize(
    ("settings", "words"), [([], "20 pieces of this text instead of 5"), (["pattern=marks"], "")]
)
def test_words_that_a_pattern_cuts_are_told(command: Cli, settings: list[str], words: str) -> None:
    Path("text.txt").write_text("हिन्दी भाषा में किताबें हैं\n", encoding="utf-8")
    code, _, err = command("algorithm=byte_bpe", "family=gpt2", "vocab_size=300", *settings)
    assert code == 0
    assert ("GPT-2's pattern cuts words" in err) == bool(words)
    assert words in err


@pytest.mark.parametrize(
    ("overrides", "code", "words"),
    [
        (["vocab_size=101", "limit_alphabet=100"], 2, "vocab_size: 101 is too small"),
        (["special_tokens=[[MASK]]"], 2, "special_tokens"),
        (["special_tokens=['[MASK]']"], 2, "'[MASK]' is there twice"),
        (["family=gpt2"], 2, "expected bert or distilbert or electra or spanbert with algorithm"),
        (["algorithm=bpe"], 2, "expected gpt1 with algorithm bpe"),
        (["pattern=marks"], 2, "pattern is only supported with algorithm byte_bpe"),
        (["data.train=[nothing.txt]"], 3, "nothing.txt: no such file"),
        (["max_memory=900TB", "data.max_bytes=900TB"], 0, ""),
    ],
)
def test_bad_input(command: Cli, overrides: list[str], code: int, words: str) -> None:
    got, _, err = command(*overrides)
    assert got == code, err
    assert words in err
    assert "Traceback" not in err
    assert Path("tok").exists() == (code == 0)


def test_more_memory_than_the_machine_has(command: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plmctl.commands.train_tokenizer.usable_memory", lambda: 400_000_000)
    code, _, err = command()
    assert code == 2
    assert "max_memory: learning may take 0.5 GB, and this machine has 0.4 GB" in err
    assert not Path("tok").exists()


def test_an_empty_corpus(command: Cli) -> None:
    Path("text.txt").write_text(" \n\n")
    code, _, err = command()
    assert code == 3
    assert "no text in text.txt" in err
    assert not Path("tok").exists()


def words(count: int, seed: int) -> list[str]:
    """Words of two to four syllables; few are alike."""
    draws = random.Random(seed)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    return ["".join(draws.choices(syllables, k=draws.randint(2, 4))) for _ in range(count)]


@pytest.mark.parametrize("lines", [1, 50])
def test_some_text_is_held_out_of_any_lines(command: Cli, lines: int) -> None:
    """Of a large text about its share of the bytes, of one long line too; nothing is lost."""
    text = words(180_000, seed=1)
    each = len(text) // lines
    content = "\n".join(" ".join(text[n * each : (n + 1) * each]) for n in range(lines))
    Path("text.txt").write_text(content)
    code, out, err = command("--json")
    assert code == 0, err
    assert "held-out text: 0.0 % of its 8-grams stand in the training text; 0.0 % of" in err
    figures = json.loads(out)
    assert figures["tokens per word"] > 1
    held_out = Path("tok/eval/held_out.txt").read_text().splitlines()
    size = sum(map(len, held_out))
    assert figures["measured on"] == f"{size / 1e6:,.3f} MB held out"
    assert 0.005 <= size / len(content) < 0.006
    assert len(held_out) >= 5
    assert all(line.strip() in content for line in held_out)
    assert not {word for line in held_out for word in line.split()} - set(text)  # none is cut


def test_what_is_held_out_does_not_depend_on_the_order_of_files(command: Cli) -> None:
    for name in ("a", "b"):
        text = words(75_000, seed=ord(name))
        lines = (" ".join(text[n : n + 25]) for n in range(0, len(text), 25))
        Path(f"{name}.txt").write_text("\n".join(lines))
    results = {}
    for run, order in (("ab", "[a.txt, b.txt]"), ("ba", "[b.txt, a.txt]")):
        assert command(f"run={run}", f"data.train={order}")[0] == 0
        held_out = Path(run, "eval", "held_out.txt").read_text().splitlines()
        results[run] = sorted(held_out), content(run)["tokenizer.json"]
    assert results["ab"] == results["ba"]


def test_a_small_text_in_a_large_file_is_measured_on_itself(command: Cli) -> None:
    """Only reading shows that a table has little text: none of it can be spared."""
    row = {"text": "a word and another word", "other": "x" * 1_200_000}
    Path("text.jsonl").write_text(json.dumps(row))
    code, out, err = command("data.train=[text.jsonl]", "--json")
    assert code == 0, err
    assert json.loads(out)["measured on"] == "0.000 MB of the text that it learned from"
    assert Path("tok/eval/held_out.txt").read_text() == "a word and another word\n"


def test_pieces_of_a_line_are_the_line() -> None:
    """And they are cut where no unit of a tokenizer is."""
    draws = random.Random(3)
    spaced = "".join(w + " " * draws.randint(1, 3) for w in words(3000, seed=2))
    for line in (spaced, f"  {spaced}", "中文" * 3000, " " * 5000, "a" + " " * 3000 + "b"):
        pieces = list(train_tokenizer._pieces(line))
        assert "".join(pieces) == line
        assert max(map(len, pieces)) <= 1000
    for kind in ("bert", "bytes", "spaces"):
        find = pattern(kind).findall
        assert [unit for piece in train_tokenizer._pieces(spaced) for unit in find(piece)] == find(
            spaced
        )
