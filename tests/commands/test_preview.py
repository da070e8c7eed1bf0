"""``plmctl preview`` as a user sees it."""

import json
import re
from pathlib import Path

import pytest

from plmctl.tokenization.load import load_tokenizer, token_texts
from tests.commands.conftest import Cli, write
from tests.commands.test_bad_input import finetune_config, refused


def test_masked_examples_with_plain_marks(cli: Cli) -> None:
    code, out, err = cli("preview", "bert.yaml", "--count", "200", "--examples", "2")
    assert code == 0, err
    assert "\x1b" not in out  # no terminal, no colours
    assert out.count("[CLS]") == 2
    assert re.search(r"\[MASK\]\{\S+\}", out)
    assert len(re.findall(r"label [01]: B ", out)) == 2
    assert re.search(r"random_next_share_multi +0\.\d+ +0\.500", out)


def test_figures_of_a_masked_objective_as_numbers(cli: Cli) -> None:
    code, out, err = cli("preview", "bert.yaml", "--count", "600", "--json")
    assert code == 0, err
    figures = json.loads(out)
    assert figures["examples"] == 600
    assert all(isinstance(value, int | float) for value in figures.values())
    assert figures["masked_share"] == pytest.approx(0.15, abs=0.02)
    assert figures["mask_share"] == pytest.approx(0.8, abs=0.03)
    assert figures["random_next_share"] >= figures["random_next_share_multi"]
    segments = figures["mean_length_a"] + figures["mean_length_b"]
    assert segments + 3 == pytest.approx(figures["mean_length"])


def test_causal_examples(cli: Cli) -> None:
    code, out, err = cli("preview", "gpt2.yaml", "--count", "20", "--examples", "1")
    assert code == 0, err
    assert "last target: " in out
    assert " = 5-gram, on the validation text" in err
    assert "mean_length" in out
    assert re.search(
        r"day \d+\.⏎[A-Z]", out.replace("\n", "")
    )  # line ends are there, and can be seen
    assert "sentences: none (clm reads text as it is)" in err


def test_how_sentences_were_found_is_said(cli: Cli) -> None:
    code, _, err = cli("prepare", "bert.yaml")
    assert code == 0
    assert "line (blank lines between documents, and 100% of the lines are one sentence)" in err
    assert "en (data.sentences)" in cli("preview", "bert.yaml", "data.sentences=en")[2]
    # What reads no sentences has the ids of whole documents, whatever the lines of its text are.
    _, _, err = cli("preview", "gpt2.yaml", "data.sentences=line")
    assert "none (clm reads text as it is)" in err


def test_a_store_is_verified(cli: Cli, world: Path) -> None:
    own = ("data.store=verified", "train.batch_size=4")
    assert cli("prepare", "gpt2.yaml", *own)[0] == 0
    (path,) = world.glob("verified/*/shards/00000/train/tokens")
    path.write_bytes(path.read_bytes()[::-1])
    code, _, err = cli("prepare", "gpt2.yaml", *own, "--verify")
    assert code == 0
    assert "is damaged (shards/00000/train): building that part again" in err
    assert "damaged" not in cli("prepare", "gpt2.yaml", *own, "--verify")[2]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a  b\n\n\tc d\r\n", "a··b⏎⏎⇥c d␍⏎"),
        ("中国人民。Ōsaka", "中国人民。Ōsaka"),  # characters of several tokens
    ],
)
def test_white_space_and_characters_in_pieces_can_be_read(
    world: Path, text: str, shown: str
) -> None:
    tokenizer = load_tokenizer("tok-gpt2")
    texts, gap = token_texts(tokenizer)
    pieces = texts(tokenizer(text)["input_ids"])
    assert gap == ""
    assert re.sub(r"<[0-9A-F]+>", "", "".join(pieces)) == shown
    assert all(pieces)


def test_more_examples_than_an_epoch_has(cli: Cli) -> None:
    few, many = (
        json.loads(cli("preview", "gpt2.yaml", "--count", count, "--json")[1])
        for count in ("10", "5000")
    )
    assert few["mean_length"] == many["mean_length"]
    assert many["examples"] == 5000


def test_hashes_of_the_examples_of_steps(cli: Cli, pretrained: dict[str, Path]) -> None:
    """Equal for other micro-batches and processes, another where the examples are others."""

    def digests(*arguments: str) -> list[str]:
        code, out, err = cli("preview", *arguments, "--digest", "5", "--json")
        assert code == 0, err
        document = json.loads(out)
        assert document["steps"] == len(document["digests"]) == 5
        return [*document["digests"], document["digest"]]

    whole = digests("bert.yaml")
    assert len(set(whole)) == 6
    assert digests("bert.yaml", "train.micro_batch_size=3", "launch.processes=2") == whole
    assert not set(digests("bert.yaml", "seed=43")) & set(whole)
    assert not set(digests("bert.yaml", "objective={name: mlm+nsp, rate: 0.3}")) & set(whole)
    code, out, _ = cli("preview", "bert.yaml", "--digest", "2")
    assert code == 0
    assert f"2  {whole[1]}" in re.sub(" +", "  ", out)
    write("rows.yaml", finetune_config(pretrained["bert"]))
    rows = digests("rows.yaml")
    assert digests("rows.yaml", "train.micro_batch_size=3") == rows
    assert digests("rows.yaml", "seed=43") != rows
    refused(cli("preview", "bert.yaml", "--digest", "7"), 2, "--digest 7: the run has 6 steps")
    refused(cli("preview", "tok-bert.yaml", "--digest", "7"), 2, "a config of the kind tokenizer")
    refused(cli("preview", "bert.yaml", "--digest", "1", "--batch", "1"), 2, "--batch")


def test_wrong_counts_and_configs_are_refused(cli: Cli) -> None:
    refused(cli("preview", "bert.yaml", "--count", "0"), 2, "--count")
    refused(cli("preview", "bert.yaml", "data.train=[none.txt]"), 3, "none.txt: no such file")
