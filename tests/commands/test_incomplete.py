"""A file of a folder is missing, empty, or of another model: one message, or the right result."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.commands.conftest import Cli, run_main, write
from tests.commands.test_bad_input import finetune_config, refused

FILES = {
    "bert": ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
    "gpt2": ("config.json", "model.safetensors", "tokenizer.json", "generation_config.json"),
    "ft": ("config.json", "model.safetensors", "tokenizer.json", "task.json"),
}
COMMANDS = ("predict", "eval", "preview", "tokenizers", "finetune", "init_from")
TEXT = "Anna sees [MASK] at the garden."


@pytest.fixture(scope="module")
def folders(pretrained: dict[str, Path]) -> dict[str, Path]:
    write("ft.yaml", finetune_config(pretrained["bert"]) | {"run": "ft"})
    assert run_main("finetune", "ft.yaml") == 0
    return {name: path / "model" for name, path in pretrained.items()} | {"ft": Path("ft/model")}


def lines(model: str, of: str) -> dict[str, list[str]]:
    """Commands that read a model folder, all with results in JSON."""
    write("use.yaml", finetune_config(Path(model)) | {"run": "used", "model": model})
    measure = {"name": "clm" if of == "gpt2" else "mlm", "data": ["text.txt"], "seq_len": 32}
    measure = {"name": "task", "data": ["rows.tsv"]} if of == "ft" else measure
    base = {"run": "used", "model": model, "compute": {"device": "cpu"}}
    write("measure.yaml", {**base, "measures": [measure]})
    yaml = f"{'gpt2' if of == 'gpt2' else 'bert'}.yaml"
    start = f"model={{family: {yaml.removesuffix('.yaml')}, init_from: {model}}}"
    steps = ["run=used", "train.phases=[{seq_len: 32, steps: 1}]", start]
    return {
        "predict": ["predict", model, TEXT, "--json"],
        "eval": ["eval", "measure.yaml", "--json"],
        "preview": ["preview", yaml, f"tokenizer={model}", "--json"],
        "tokenizers": ["compare-tokenizers", model, "--text", "text.txt", "--json"],
        "finetune": ["finetune", "use.yaml", "train.epochs=1", "--json"],
        "init_from": ["pretrain", yaml, *steps, "--json"],
    }


QUICK = [("bert", "tokenizer.json", "missing", "predict"), ("ft", "config.json", "bert", "predict")]
ALL = [
    (of, file, change, command)
    for of, files in FILES.items()
    for file in files
    for change in ("missing", "empty", *(other for other in FILES if other != of))
    for command in COMMANDS
]


def check(
    cli: Cli, folders: dict[str, Path], of: str, file: str, change: str, command: str
) -> None:
    shutil.rmtree("changed", ignore_errors=True)
    shutil.copytree(folders[of], "changed")
    shutil.rmtree("used", ignore_errors=True)
    before = cli(*lines("changed", of)[command])
    path, other = Path("changed") / file, folders.get(change, Path()) / file
    if change in folders and not other.is_file():
        return
    path.unlink()
    if change == "empty":
        path.touch()
    elif change in folders:
        shutil.copyfile(other, path)
    shutil.rmtree("used", ignore_errors=True)
    code, out, err = cli(*lines("changed", of)[command])
    assert code in (0, 2, 3), err
    assert "Traceback" not in err
    if code == 0 and file != "model.safetensors":  # other weights are another model
        assert before[0] == 0
        results, changed = json.loads(before[1]), json.loads(out)
        for document in (results, changed):
            for key in [key for key in document if "seconds" in key or "time" in key]:
                del document[key]
            for method in document.get("yardsticks", ()):
                del method["seconds"]
        assert changed == results


@pytest.mark.parametrize(("of", "file", "change", "command"), QUICK)
def test_a_file_of_a_model(
    cli: Cli, folders: dict[str, Path], of: str, file: str, change: str, command: str
) -> None:
    check(cli, folders, of, file, change, command)


@pytest.mark.sweep
@pytest.mark.parametrize(("of", "file", "change", "command"), ALL)
def test_every_file_of_every_model(
    cli: Cli, folders: dict[str, Path], of: str, file: str, change: str, command: str
) -> None:
    check(cli, folders, of, file, change, command)


# --- Vocabularies without a tokenizer.json ---


def vocabulary(folder: Path, model: Path, family: str) -> None:
    """A folder of a model with its vocabulary as the original code has it."""
    shutil.copytree(model, folder)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    own = json.loads((model / "tokenizer.json").read_text())["model"]
    if family == "bert":
        (folder / "vocab.txt").write_text("\n".join(own["vocab"]) + "\n")
    else:
        merges = (" ".join(pair) if isinstance(pair, list) else pair for pair in own["merges"])
        (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
        (folder / "vocab.json").write_text(json.dumps(own["vocab"]))


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_every_command_says_the_same_of_a_vocabulary(
    cli: Cli, folders: dict[str, Path], family: str
) -> None:
    name = f"vocab-{family}"
    vocabulary(Path(name), folders[family], family)
    files = "vocab.txt" if family == "bert" else "vocab.json and merges.txt"
    told = f"{name}: no tokenizer.json here, and {files} alone does not say how text is cut"
    for line in lines(name, family).values():
        shutil.rmtree("used", ignore_errors=True)
        code, out, err = cli(*line)
        assert (code, out) == (2, ""), err
        assert told in err
        assert "python -c" in err
    command = err.split('python -c "')[1].split('"')[0]
    subprocess.run([sys.executable, "-c", command], check=True, timeout=120)
    want = AutoTokenizer.from_pretrained(folders[family])(TEXT)["input_ids"]
    assert AutoTokenizer.from_pretrained(name)(TEXT)["input_ids"] == want
    before = cli("predict", str(folders[family]), TEXT, "--json")[1]
    assert (
        json.loads(cli("predict", name, TEXT, "--json")[1])["answers"]
        == (json.loads(before)["answers"])
    )
    (Path(name) / "tokenizer.json").unlink()  # what is left says how text is cut
    code, out, err = cli("preview", f"{family}.yaml", f"tokenizer={name}", "--json")
    assert code == (0 if (Path(name) / "tokenizer_config.json").is_file() else 2), err
    for path in Path(name).glob("vocab*"):
        path.unlink()
    rest = lines(name, family)
    if family == "bert":  # of weights alone, as those of an ELMo that was converted
        code, _, err = cli(*rest.pop("init_from"))
        assert code == 0
        assert "whether its ids are those of tok-bert is unknown" in err
    for line in rest.values():
        shutil.rmtree("used", ignore_errors=True)
        refused(cli(*line), 2)


def test_a_config_without_the_number_of_heads(cli: Cli, folders: dict[str, Path]) -> None:
    for of, key in (("bert", "num_attention_heads"), ("gpt2", "n_head")):
        shutil.copytree(folders[of], f"headless-{of}")
        path = Path(f"headless-{of}/config.json")
        config = json.loads(path.read_text())
        del config[key]
        path.write_text(json.dumps(config))
        refused(cli("predict", f"headless-{of}", TEXT), 3, "config.json: lacks", key)
