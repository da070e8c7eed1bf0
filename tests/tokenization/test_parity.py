"""Byte-level BPE by which languages pay the same, and what languages pay."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from tokenizers import trainers

from plmctl.errors import DataError
from plmctl.tokenization.encode import Encoder
from plmctl.tokenization.parity import check_parallel
from plmctl.tokenization.quality import Fairness, fairness
from tests.conftest import Cli
from tests.tokenization.conftest import TEXTS, config_of, train

needs_trainer = pytest.mark.skipif(
    not hasattr(trainers, "ParityBpeTrainer"), reason="tokenizers is older than 0.23.2"
)


def sentences(syllables: str, lines: int, seed: int) -> list[str]:
    """Sentences of one language: line i has as many words in each, of one word list."""
    draws, lengths = np.random.default_rng(seed), np.random.default_rng(7)
    vowels = "aeiou"
    words = ["".join(draws.choice(list(syllables)) + v for v in draws.choice(list(vowels), 3))
             for _ in range(60)]  # fmt: skip
    sizes = lengths.integers(3, 12, lines)
    return [" ".join(draws.choice(words, size)) for size in sizes]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Much text of one language, little of another, and parallel sentences of both."""
    monkeypatch.chdir(tmp_path)
    for name, syllables, lines in (("large", "bdgkmn", 3000), ("small", "клмнпр", 150)):
        text = sentences(syllables, lines + 100, 1)
        Path(f"{name}.txt").write_text("\n".join(text[100:]) + "\n", encoding="utf-8")
        Path(f"{name}.dev.txt").write_text("\n".join(text[:100]) + "\n", encoding="utf-8")
    mixture = [
        {"name": name, "train": [f"{name}.txt"], "parallel": f"{name}.dev.txt"}
        for name in ("large", "small")
    ]
    config = {
        "run": "tok", "algorithm": "byte_bpe", "family": "gpt2", "vocab_size": 330,
        "parity": True, "data": {"mixture": mixture},
    }  # fmt: skip
    Path("tok.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return tmp_path


@needs_trainer
def test_both_languages_pay_the_same(folder: Path, cli: Cli) -> None:
    code, out, err = cli("train-tokenizer", "tok.yaml", "--json")
    assert code == 0, err
    fair = json.loads(out)
    assert fair["vocabulary"] == 330
    assert "in 2 languages of the text that it learned from" in fair["measured on"]
    assert "small: held-out text" in err
    code, out, err = cli("train-tokenizer", "tok.yaml", "run=plain", "parity=false", "--json")
    assert code == 0, err
    assert "languages" not in json.loads(out)  # one text
    code, out, err = cli(
        "compare-tokenizers", "tok", "plain", "--parallel", "large=large.dev.txt",
        "--parallel", "small=small.dev.txt", "--json",
    )  # fmt: skip
    assert code == 0, err
    paid = json.loads(out)["languages"]
    assert paid["tok"] == fair["languages"]
    assert paid["tok"]["spread"] < 1.15
    assert paid["plain"]["spread"] > 1.5  # the language with little text pays more
    assert paid["plain"]["tokens"]["small"] > paid["tok"]["tokens"]["small"]
    encoder = Encoder("tok")  # an ordinary byte-level BPE: what is fast for others is for it
    assert encoder.open().decode(encoder(["кала naïve 中"])[0][0].tolist()) == "кала naïve 中"


@needs_trainer
def test_the_same_command_gives_the_same_tokenizer(folder: Path, cli: Cli) -> None:
    for run in ("one", "two"):
        assert cli("train-tokenizer", "tok.yaml", f"run={run}", "--json")[0] == 0
    one, two = (Path(run, "tokenizer.json").read_bytes() for run in ("one", "two"))
    assert one == two


@pytest.mark.parametrize(
    ("overrides", "code", "words"),
    [
        (["data.mixture.1.parallel=null"], 2, "each with its `parallel` file"),
        (["algorithm=wordpiece", "family=bert"], 2, "parity is only supported with algorithm"),
        (["extend=runs/old"], 2, "parity is only supported for a new tokenizer"),
        (["data.train=[large.txt]"], 2, "expected `train` or `mixture`, and not both"),
        (["data.mixture.1.name=large"], 2, "a different name for each source"),
        (["data.mixture.1.parallel=none.txt"], 3, "none.txt: no such file"),
        (["data.mixture.1.parallel=small.txt"], 3, "different numbers of lines: large 100, small"),
        (["vocab_size=200"], 2, "vocab_size: 200 is too small"),
    ],
)
def test_bad_input(folder: Path, cli: Cli, overrides: list[str], code: int, words: str) -> None:
    got, _, err = cli("train-tokenizer", "tok.yaml", *overrides)
    assert (got, "Traceback" in err) == (code, False), err
    assert words in err
    assert not Path("tok").exists()


@pytest.mark.parametrize(
    ("parallel", "words"),
    [
        (["large=large.dev.txt"], "expected two or more languages"),
        (["large.dev.txt", "small=small.dev.txt"], "--parallel large.dev.txt: expected"),
        (["a=large.dev.txt", "b=blank.txt"], "blank.txt:2: a blank line"),
    ],
)
def test_bad_languages(folder: Path, cli: Cli, parallel: list[str], words: str) -> None:
    Path("blank.txt").write_text("a\n\nb\n", encoding="utf-8")
    train(config_of("byte_bpe", "gpt2"), TEXTS).tokenizer.save_pretrained("plain")
    options = [part for one in parallel for part in ("--parallel", one)]
    code, _, err = cli("compare-tokenizers", "plain", "--text", "large.txt", *options)
    assert code in (2, 3)
    assert words in err


def test_lines_that_do_not_look_parallel() -> None:
    said: list[str] = []
    lines = ["x" * n for n in range(1, 101)]
    check_parallel({"a": lines, "b": [2 * line for line in lines]}, said.append)
    assert said == []
    check_parallel({"a": lines, "b": lines[::-1]}, said.append)
    assert "lines of a and b do not look parallel" in said[0]
    with pytest.raises(DataError, match="3 parallel lines"):
        check_parallel({"a": lines[:3], "b": lines[:3]}, said.append)


def test_what_languages_pay(tmp_path: Path) -> None:
    """Two languages of 1 and 3 tokens: the differences are 0, 2, 2, 0, the mean is 2."""
    figures = Fairness({"a": 1, "b": 3}, {}, {}, {}).metrics()
    assert figures["gini"] == pytest.approx(4 / (2 * 4 * 2))
    assert figures["spread"] == 3
    tokenizer = train(config_of("wordpiece", "bert"), TEXTS).tokenizer.backend_tokenizer
    paid = fairness(tokenizer, {"en": ["the cat", "the"], "other": ["\U00010348 the", "the mat"]})
    assert paid.tokens == {"en": 1.5, "other": 2}
    assert paid.pieces == {"en": 1.5, "other": 2}
    assert paid.bytes == {"en": 5, "other": 7.5}
    assert paid.unknown == {"en": 0, "other": 0.25}
