"""The wheel alone, from an empty folder: what a user without the repository has."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel."""
    pytest.importorskip("hatchling", reason="the build requirement of plmctl; the dev extra has it")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, check=True, cwd=ROOT, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


@pytest.fixture
def plmctl(installed: Path, tmp_path: Path):
    """``plmctl(*arguments)``: a command of the unpacked wheel, in an empty folder."""

    def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "plmctl", *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout, done.stderr

    return run


def test_the_wheel_has_every_config_and_page(installed: Path) -> None:
    paths = [*(ROOT / "configs").rglob("*.yaml"), *(ROOT / "docs").rglob("*.md")]
    for place in (path.relative_to(ROOT) for path in paths):
        assert (installed / "plmctl" / place).read_bytes() == (ROOT / place).read_bytes()


def test_the_wheel_has_the_pages_parts(installed: Path) -> None:
    pages = [f"{page}.{kind}" for page in ("board", "try") for kind in ("html", "css", "js")]
    for name in ("report.css", "page.js", *pages):
        path = Path("plmctl/reporting") / name
        assert (installed / path).read_bytes() == (ROOT / path).read_bytes()


@pytest.mark.slow
def test_names_work_from_an_empty_folder(plmctl, installed: Path, tmp_path: Path) -> None:
    out, _ = plmctl("config", "list", "--json")
    assert json.loads(out)["folder"] == str(installed / "plmctl" / "configs")
    out, err = plmctl("config", "show", "configs/pretrain/bert-base.yaml")
    assert out.startswith("run: runs/bert-base\n")
    assert str(installed / "plmctl/configs/pretrain/bert-base.yaml") in err
    _, err = plmctl("pretrain", "bert-bas", code=2)
    assert "did you mean 'bert-base'" in err
    plmctl("config", "copy", "demo/tokenizer", "mine.yaml")
    assert "vocab_size" in (tmp_path / "mine.yaml").read_text()


@pytest.mark.slow
def test_a_suite_finds_its_recipes(plmctl, tmp_path: Path) -> None:
    """The recipes are there: what is missing is the data, and it is said where to put them."""
    model = {"model_type": "bert", "hidden_size": 8, "num_attention_heads": 2}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(model))
    (tmp_path / "glue").mkdir()
    arguments = ("suite", "model", "glue", "--data", "glue")
    _, err = plmctl(*arguments, code=3)
    assert "rte: glue/rte/train.jsonl" in err
