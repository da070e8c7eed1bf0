"""Generating, measuring by prompts and asking for neighbours from the command line."""

import json
from pathlib import Path

import pytest

from tests.commands.conftest import Cli, write

FEW = ("--max-new-tokens", "6")


def test_generate_from_prompts_and_files(cli: Cli, pretrained: dict[str, Path]) -> None:
    model = str(pretrained["gpt2"] / "model")
    prompts = ["Anna sees", "Carl likes Dora at the"]
    code, out, err = cli("generate", model, "--prompt", prompts[0], "--prompt", prompts[1], *FEW)
    assert code == 0, err
    assert [line for line in out.splitlines() if line.startswith("> ")] == [
        f"> {prompt}" for prompt in prompts
    ]
    Path("prompts.txt").write_text("\n".join(prompts) + "\n", encoding="utf-8")
    Path("prompts.jsonl").write_text(
        "".join(json.dumps({"ask": prompt}) + "\n" for prompt in prompts), encoding="utf-8"
    )
    code, out, err = cli("generate", model, "--input", "prompts.txt", *FEW, "--json")
    assert code == 0, err
    answers = json.loads(out)["answers"]
    assert [answer["prompt"] for answer in answers] == prompts
    assert all(answer["tokens"] <= 6 for answer in answers)
    of_rows = ("--input", "prompts.jsonl", "--column", "ask", "--batch-size", "1")
    code, out, err = cli("generate", model, *of_rows, *FEW, "--output", "texts.jsonl")
    assert code == 0, err
    assert out == ""
    lines = Path("texts.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == answers
    code, _, err = cli("generate", model, *of_rows, *FEW, "--output", "texts.jsonl")
    assert code == 2
    assert "texts.jsonl: this file exists already" in err
    assert Path("texts.jsonl").read_text(encoding="utf-8").splitlines() == lines


def test_draws_are_repeated_by_their_seed(cli: Cli, pretrained: dict[str, Path]) -> None:
    model = str(pretrained["gpt2"] / "model")

    def texts(*options: str) -> list[str]:
        code, out, err = cli("generate", model, "--prompt", "Anna", *options, *FEW, "--json")
        assert code == 0, err
        return [answer["text"] for answer in json.loads(out)["answers"]]

    assert texts("--temperature", "1") == texts("--temperature", "1")
    assert texts("--top-p", "0.9") != texts("--top-p", "0.9", "--seed", "7")
    assert texts("--top-k", "1") == texts()
    answers = json.loads(cli("generate", model, "Anna", *FEW, "--json")[1])["answers"]
    assert [answer["text"] for answer in answers] == texts()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "one of the two is needed"),
        (("--prompt", "a", "--input", "text.txt"), 2, "one of the two is needed"),
        (("--input", "no-such.txt"), 3, "no-such.txt"),
        (("--input", "rows.tsv", "--column", "txt"), 3, "rows.tsv:2: no column 'txt'"),
        (("--prompt", "a", "--beams", "2", "--top-k", "3"), 2, "beam search draws no tokens"),
        (("--prompt", "a", "--temperature", "0"), 2, "temperature"),
        (("--prompt", "a", "--max-new-tokens", "5000"), 2, "1024 positions"),
    ],
)
def test_wrong_requests(
    arguments: tuple[str, ...],
    code: int,
    message: str,
    cli: Cli,
    pretrained: dict[str, Path],
) -> None:
    exit_code, out, err = cli("generate", str(pretrained["gpt2"] / "model"), *arguments)
    assert (exit_code, out) == (code, "")
    assert message in err


def test_an_encoder_is_sent_to_predict(cli: Cli, pretrained: dict[str, Path]) -> None:
    code, _, err = cli("generate", str(pretrained["bert"] / "model"), "--prompt", "Anna")
    assert code == 2
    assert "plmctl predict" in err


def test_measures_by_prompts(cli: Cli, pretrained: dict[str, Path]) -> None:
    items = [
        {"q": "Who sees Bela?", "options": ["Anna", "the tower"], "answer": 0, "answers": ["Anna"]},
        {"q": "Where is it?", "options": ["at the garden", "on"], "answer": 0, "answers": "x"},
    ]
    Path("items.jsonl").write_text(
        "".join(json.dumps(item) + "\n" for item in items), encoding="utf-8"
    )
    data = {
        "data": ["items.jsonl"],
        "template": "{q}",
        "shots": {"count": 1, "train": ["items.jsonl"]},
    }
    config = {
        "run": "prompted",
        "model": str(pretrained["gpt2"] / "model"),
        "compute": {"device": "cpu"},
        "measures": [
            {"name": "multiple_choice", **data},
            {"name": "closed_book_qa", "max_new_tokens": 4, **data},
            {"name": "lambada", "data": ["items.jsonl"], "text": "q"},
        ],
    }
    write("prompted.yaml", config)
    code, out, err = cli("eval", "prompted.yaml", "--json")
    assert code == 0, err
    results = json.loads(out)["results"]
    assert results["multiple_choice"]["shots"] == results["closed_book_qa"]["shots"] == 1
    assert results["lambada"]["items"] == 2
    write(
        "wrong.yaml",
        {
            **config,
            "run": "wrong",
            "measures": [{"name": "multiple_choice", "data": ["items.jsonl"], "template": "{q"}],
        },
    )
    code, _, err = cli("eval", "wrong.yaml")
    assert code == 2
    assert "a lone '{'" in err
    bert = f"model={pretrained['bert'] / 'model'}"
    code, _, err = cli("eval", "prompted.yaml", "run=other", bert)
    assert code == 2
    assert "does not generate text" in err


def test_neighbours_of_a_word(cli: Cli, pretrained: dict[str, Path]) -> None:
    model = str(pretrained["bert"] / "model")
    code, out, err = cli(
        "neighbours", model, "text.txt", "--word", "garden", "--top", "3", "--json"
    )
    assert code == 0, err
    document = json.loads(out)
    assert "garden" in document["sentence"]
    assert len(document["neighbours"]) == 3
    values = [one["similarity"] for one in document["neighbours"]]
    assert values == sorted(values, reverse=True)
    options = ("--sentence", "Anna sees the tower.", "--word", "tower")
    code, out, err = cli("neighbours", model, "text.txt", *options)
    assert code == 0, err
    assert "Anna sees the [tower]." in out
    code, _, err = cli("neighbours", model, "text.txt", "--word", "xyz")
    assert code == 3
    assert "'xyz' is in none of" in err
    code, _, err = cli(
        "neighbours", str(pretrained["gpt2"] / "model"), "text.txt", "--word", "Anna"
    )
    assert code == 2
    assert "plmctl generate" in err
