"""Text that a tokenizer hardly knows, or that is too long: every command says it or refuses it."""

import json
import shutil
from pathlib import Path

import pytest

from plmctl.corpus.store import TokenStore
from tests.commands.conftest import Cli, sentence, write
from tests.commands.test_bad_input import finetune_config, refused
from tests.conftest import run_main
from tests.scripts_of_text import SCRIPTS

TOLD = "of the characters of"


@pytest.fixture(scope="module")
def tuned(pretrained: dict[str, Path]) -> Path:
    """A finetuned BERT."""
    write("tuned.yaml", finetune_config(pretrained["bert"]))
    assert run_main("finetune", "tuned.yaml", "train.epochs=0.2") == 0
    return Path("tuned/model")


def rows_of(text: str, count: int = 40) -> str:
    rows = [{"text": f"{text} {n}", "label": str(n % 2 > 0)} for n in range(count)]
    return "".join(json.dumps(row) + "\n" for row in rows)


PLACES = {
    "train-tokenizer": ["train-tokenizer", "tok-bert.yaml", "data.train=[other.txt]", "run=other"],
    "prepare": ["prepare", "bert.yaml", "data.train=[other.txt]", "data.valid=null", "run=other"],
    "validation": ["prepare", "bert.yaml", "data.valid=[other.txt]", "run=other"],
    "preview": ["preview", "bert.yaml", "data.train=[other.txt]", "data.valid=null", "run=other"],
    "pretrain": ["pretrain", "bert.yaml", "data.train=[other.txt]", "data.valid=null", "run=other"],
    "init_from": [
        "pretrain", "bert.yaml", "data.train=[other.txt]", "data.valid=null", "run=other",
        "model.init_from=done-bert/model",
    ],
    "finetune": ["finetune", "tuned.yaml", "data.train=[other.jsonl]", "run=other"],
    "finetune valid": ["finetune", "tuned.yaml", "data.valid=[other.jsonl]", "run=other"],
    "predict": ["predict", "tuned/model", "TEXT"],
    "predict rows": ["predict", "tuned/model", "--input", "other.jsonl"],
    "fill": ["predict", "done-bert/model", "TEXT [MASK]"],
    "eval text": ["eval", "eval-mlm.yaml"],
    "eval likelihood": ["eval", "eval-pppl.yaml"],
    "eval rows": ["eval", "eval-task.yaml"],
    "neighbours": ["neighbours", "done-bert/model", "other.txt", "--word", "WORD"],
}  # fmt: skip


def run_place(place: str, script: str, cli: Cli) -> tuple[int, str, str]:
    text = SCRIPTS[script]
    Path("other.txt").write_text("\n\n".join(f"{text} {text}" for _ in range(30)), encoding="utf-8")
    Path("other.jsonl").write_text(rows_of(text), encoding="utf-8")
    measures = {
        "mlm": {"name": "mlm", "data": ["other.txt"], "seq_len": 32},
        "pppl": {"name": "pseudo_perplexity", "data": ["other.txt"]},
        "task": {"name": "task", "data": ["other.jsonl"]},
    }
    for name, measure in measures.items():
        model = "tuned/model" if name == "task" else "done-bert/model"
        compute = {"device": "cpu"}
        fields = {"run": "other", "model": model, "measures": [measure], "compute": compute}
        write(f"eval-{name}.yaml", fields)
    shutil.rmtree("other", ignore_errors=True)
    words = {"TEXT": text, "WORD": text.split()[0]}
    arguments = [one.replace("TEXT", text) if "TEXT" in one else words.get(one, one)
                 for one in PLACES[place]]  # fmt: skip
    return cli(*arguments)


QUICK = [
    ("prepare", "devanagari"),
    ("finetune", "thai"),
    ("fill", "cyrillic"),
    ("eval rows", "greek"),
]


@pytest.mark.parametrize(
    ("place", "script"),
    [
        pytest.param(p, s, marks=() if (p, s) in QUICK else pytest.mark.sweep)
        for p in PLACES
        for s in SCRIPTS
    ],
)
def test_text_of_another_script_is_never_silent(
    place: str, script: str, cli: Cli, tuned: Path
) -> None:
    code, out, err = run_place(place, script, cli)
    assert "Traceback" not in err
    if place == "train-tokenizer":  # it learns the script; a word without spaces is too long
        assert (code, "max_word_length" in err) == ((3, True) if script == "dna" else (0, False)), (
            err
        )
        return
    latin = script in ("accents", "dna")  # without its accents, the tokenizer knows most letters
    assert TOLD in err or (latin and code == 0), (code, err)
    if code:
        assert (code, out) == (3, "")
        assert "train-tokenizer" in err
    if not latin and place not in ("validation", "finetune valid"):
        assert code == 3, err
    if code == 3:
        assert not Path("other", "model").exists()


def test_the_message_on_one_document_names_the_key(cli: Cli) -> None:
    lines = "\n".join(sentence(n) for n in range(100))
    Path("lines.txt").write_text(lines, encoding="utf-8")
    share = "data.valid=0.99"
    result = cli("prepare", "bert.yaml", "data.train=[lines.txt]", share, "run=other")
    refused(result, 3, "held out all 1 documents", "no blank lines", "data.documents=line")
    code, _, err = cli(
        "pretrain", "gpt2.yaml", "data.train=[lines.txt]", "data.valid=0.001", "run=one-document"
    )
    assert code == 0, err
    assert err.count("lines.txt was read as one document since it has no blank lines") == 2
    assert "the validation split (0.001 of the documents) is empty" in err
    assert "data.documents=line" in err


def test_marks_are_noted_and_a_separator_leaves_them_out(cli: Cli) -> None:
    story = [f"{sentence(n)}\n\n{sentence(n + 1)}" for n in range(40)]
    Path("marked.txt").write_text("\n<|endoftext|>\n".join(story), encoding="utf-8")
    arguments = ["prepare", "bert.yaml", "data.train=[marked.txt]", "data.valid=null", "run=other"]
    for _ in range(2):  # when it is prepared, and when it is opened
        code, _, err = cli(*arguments)
        assert code == 0, err
        assert "<|endoftext|> 39 times" in err
        assert "data.separator='\"<|endoftext|>\"'" in err
    code, out, err = cli(*arguments, "data.separator=<|endoftext|>", "--json")
    assert code == 0, err
    assert "endoftext" not in err
    contents = json.loads(out)
    assert contents["documents"] == 40
    assert TokenStore.open(Path(contents["folder"])).num_documents == 40
    code, _, err = cli(
        "train-tokenizer", "tok-bert.yaml", "data.train=[marked.txt]", "run=tok-marks"
    )
    assert "<|endoftext|> 39 times" in err


def test_held_out_text_that_is_training_text_is_said(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["prepare", "bert.yaml", "data.valid=[text.txt]", "run=other"]
    code, _, err = cli(*arguments)
    assert code == 0, err
    assert "held-out text: 100.0 % of its 8-grams stand in the training text" in err
    assert "hold out a share of the documents instead (data.valid=1%)" in err
    # It is measured once, and told again.
    monkeypatch.setattr("plmctl.commands.prepare.measure", None)
    code, _, err = cli(*arguments)
    assert code == 0, err
    assert "held-out text: 100.0 % of its 8-grams stand in the training text" in err


def test_predict_says_what_it_cuts(cli: Cli, tuned: Path, pretrained: dict[str, Path]) -> None:
    long = " ".join(sentence(n) for n in range(40))
    code, _, err = cli("predict", str(tuned), long, "Anna sees Carl.")
    assert code == 0, err
    assert "1 of 2 texts were cut: the model was finetuned on 32 tokens at most" in err
    Path("long.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in (long, "Anna.", long)), "utf-8"
    )
    code, _, err = cli("predict", str(tuned), "--input", "long.jsonl")
    assert code == 0, err
    assert "2 of 3 texts were cut" in err
    longer = " ".join(sentence(n) for n in range(400))
    code, _, err = cli("predict", str(pretrained["gpt2"] / "model"), longer)
    assert code == 0, err
    assert "1 of 1 texts were cut from the left" in err


def test_masks_far_into_a_long_text_are_filled(cli: Cli, pretrained: dict[str, Path]) -> None:
    model = str(pretrained["bert"] / "model")
    words = [sentence(n) for n in range(100)]
    text = " ".join([*words, "Anna sees [MASK] at the [MASK].", *words])
    code, out, err = cli("predict", model, text, "--json", "--top", "2")
    assert code == 0, err
    assert "1 of 1 texts were cut around their [MASK]" in err
    assert "512 tokens" in err
    answers = json.loads(out)["answers"][0]["answers"]
    assert [one["mask"] for one in answers] == [1, 1, 2, 2]
    code, short, _ = cli("predict", model, "Anna sees [MASK].", "--json")
    assert code == 0
    assert set(json.loads(short)["answers"][0]["answers"][0]) == {"token", "score"}
    refused(cli("predict", model, "Anna sees Carl."), 2, "no [MASK] in", "put [MASK] where")
    code, out, _ = cli("predict", model, "Anna sees [MASK].")
    assert "1:" not in out
