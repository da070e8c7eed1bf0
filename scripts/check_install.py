"""Is an installed plmctl whole? In environments of its own, from an empty folder.

    python scripts/check_install.py release           build, new environment, licences, a run
    python scripts/check_install.py ranges            do all ranges have versions, for each Python?
    python scripts/check_install.py versions lowest   the lowest versions of all ranges, tests
    python scripts/check_install.py versions newest   the newest ones, and tests with them
    python scripts/check_install.py use PYTHON        only the commands, with an interpreter

It writes to build/ and installs with uv. ``--python 3.13`` chooses the interpreter of ``versions``.
PyPI's torch for Linux brings CUDA: UV_TORCH_BACKEND=cpu avoids it.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
TINY = {
    "bert": "{family: bert, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2}",
    "gpt2": "{family: gpt2, n_embd: 16, n_layer: 1, n_head: 2}",
    "t5": "{family: t5, d_model: 16, d_ff: 32, d_kv: 8, num_layers: 1, num_heads: 2}",
}
OBJECTIVES = {"bert": "mlm+nsp", "gpt2": "clm", "t5": "span_corruption"}
ALGORITHMS = {"bert": "wordpiece", "gpt2": "byte_bpe", "t5": "unigram"}


def release() -> None:
    """Build as for PyPI: the wheel from the sdist, which so must have every file."""
    out = BUILD / "release"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    call(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(out), cwd=ROOT)
    (sdist,) = out.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (source,) = Path(folder).iterdir()
        call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out), cwd=source)
    (wheel,) = out.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    missing = [name for name in in_the_wheel() if name not in inside]
    if missing:
        raise SystemExit(f"{wheel.name} lacks {', '.join(missing)}")
    call(sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel))
    python = environment(out / "venv", sys.executable)
    # pip, as most people: and it may know builds of torch that uv does not look for.
    install = ("-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"))
    call(str(python), *install, tested("torch"))
    call(str(python), *install, f"{wheel}[samples]")
    bill_of_materials(python, out / f"{wheel.name.removesuffix('-py3-none-any.whl')}.cdx.json")
    use(python, ["bert"], sample=True)


def bill_of_materials(python: Path, out: Path) -> None:
    """Every package of an environment with its version and licence, as a CycloneDX file.

    Raises:
        SystemExit: A licence asks for the same licence of what uses the package.
    """
    options = ("--pyproject", str(ROOT / "pyproject.toml"), "--of", "JSON", "-o", str(out))
    call(sys.executable, "-m", "cyclonedx_py", "environment", *options, str(python))
    licences: dict[str, list[str]] = {}
    for part in json.loads(out.read_text(encoding="utf-8"))["components"]:
        name = f"{part['name']} {part['version']}"
        for one in part.get("licenses") or [{"expression": "not said"}]:
            given = one.get("license", {})
            licence = one.get("expression") or given.get("id") or given.get("name")
            licences.setdefault(licence, []).append(name)
    for licence, names in sorted(licences.items()):
        print(f"{licence}: {', '.join(names)}")
        if re.search(r"\b[AL]?GPL", licence):
            raise SystemExit(f"{licence}: not a licence for a dependency")
    print(f"{out}: {sum(map(len, licences.values()))} licences of packages")


def in_the_wheel() -> Iterator[str]:
    """What the checkout has and the wheel must have."""
    for path in ROOT.glob("plmctl/**/*"):
        if path.is_file() and path.suffix != ".pyc":
            yield path.relative_to(ROOT).as_posix()
    for path in ROOT.glob("configs/**/*.yaml"):
        yield f"plmctl/{path.relative_to(ROOT).as_posix()}"
    yield "plmctl/constraints.txt"


RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TESTED = {"lowest": ("models", "objectives"), "newest": ("models", "training", "objectives")}
SHOWN = ("numpy", "tokenizers", "torch", "transformers")


def ranges() -> None:
    """Find versions for all ranges and extras, for each Python; nothing is installed.

    No interpreter is needed: 3.14 is looked at too. Without a package index it is skipped.
    """
    for python in PYTHONS:
        for which, resolution in RESOLUTIONS.items():
            uv_command = (sys.executable, "-m", "uv", "pip", "compile", "-q", "--no-header")
            options = ("--all-extras", "--python-version", python, "--resolution", resolution)
            command = [*uv_command, *options, "pyproject.toml"]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if re.search(r"failed to fetch|error sending request|dns error", done.stderr, re.I):
                print(f"skipped, the package index cannot be reached:\n{done.stderr}", flush=True)
                return
            if done.returncode:
                raise SystemExit(f"Python {python}, {which} versions:\n{done.stderr}")
            lines = [line for line in done.stdout.splitlines() if line.partition("==")[0] in SHOWN]
            print(f"Python {python}, {which} versions:", *lines, flush=True)


def versions(which: str, interpreter: str) -> None:
    """Install the lowest or the newest versions that the ranges allow, and train with them.

    The newest must have every fast path. Both must pass the tests of what reaches into other
    packages: with the lowest, those of losses.
    """
    python = environment(BUILD / which, interpreter, pip=False)
    resolution = RESOLUTIONS[which]
    uv("pip", "install", "--python", str(python), "--resolution", resolution, f"{ROOT}[peft,text]")
    uv("pip", "list", "--python", str(python))
    use(python, list(TINY), whole=which == "newest")
    run_tests(python, TESTED[which])


def run_tests(python: Path, folders: tuple[str, ...]) -> None:
    """Run the tests of the inside of networks and training, from a folder without the package."""
    packages = ("pytest", "pytest-xdist", "hypothesis", "scikit-learn")
    uv("pip", "install", "-q", "--python", str(python), *packages)
    with tempfile.TemporaryDirectory() as name:
        for folder in ("tests", "configs", "docs", "scripts"):
            shutil.copytree(ROOT / folder, Path(name) / folder)
        for path in ROOT.glob("*.*"):
            if path.is_file():
                shutil.copy(path, name)
        places = (f"tests/{folder}" for folder in folders)
        call(str(python), "-m", "pytest", "-n", "2", *places, cwd=Path(name))


def use(python: Path, families: list[str], *, sample: bool = False, whole: bool = False) -> None:
    """What a new user does, in an empty folder; with the extra `samples` also the demo.

    Args:
        python: The interpreter of the environment.
        families: Of the networks that are trained.
        sample: Whether the demo runs too.
        whole: Whether a fast path that is left out is an error.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made_up_text(folder)

        def plmctl(*arguments: str) -> str:
            began = time.monotonic()
            done = subprocess.run(
                [python, "-m", "plmctl", *arguments],
                cwd=folder,
                env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
                capture_output=True,
                text=True,
                check=False,
            )
            seconds = time.monotonic() - began
            print(done.stderr, end="", flush=True)
            print(f"[exit {done.returncode} after {seconds:.0f} s] plmctl", *arguments, flush=True)
            if done.returncode:
                raise SystemExit("this command must not fail")
            if whole and "fast path is left out" in done.stderr:
                raise SystemExit("the newest versions have changed what a fast path needs")
            return done.stdout

        plmctl("--version")
        listed = json.loads(plmctl("config", "list", "--json"))
        assert "bert-base" in listed["configs"]["pretrain"], listed
        assert plmctl("config", "show", "bert-base").startswith("run: runs/bert-base\n")
        plmctl("config", "explain", "train.phases")
        plmctl("config", "copy", "demo/tokenizer", "tokenizer.yaml")
        if sample:
            demo = json.loads(plmctl("demo", "en", "--quick", "--json"))
            assert [row["model"] for row in demo["models"]] == ["bert", "gpt2"], demo
        for family in families:
            vocabulary = f"runs/{family}-tokenizer"
            text = "data.train=[text.txt]"
            rules = (f"algorithm={ALGORITHMS[family]}", f"family={family}", "vocab_size=400")
            plmctl("train-tokenizer", "tokenizer.yaml", f"run={vocabulary}", text, *rules)
            plmctl(
                "pretrain", "demo/pretrain", f"run=runs/{family}", f"tokenizer={vocabulary}", text,
                f"model={TINY[family]}", f"objective={{name: {OBJECTIVES[family]}}}",
                "data.valid=10%", "train.phases=[{seq_len: 32, steps: 6}]", "train.batch_size=8",
                "log.validate_samples=8", "schedule.warmup=0",
            )  # fmt: skip
            measure = {"bert": "mlm", "gpt2": "perplexity", "t5": "span_corruption"}[family]
            plmctl(
                "eval", "demo/eval", f"run=runs/{family}-eval", f"model=runs/{family}/model",
                f"measures=[{{name: {measure}, data: [text.txt]}}]", "--json",
            )  # fmt: skip
        family = families[0]
        plmctl(
            "finetune", "demo/finetune", "run=runs/rows", f"model=runs/{family}/model",
            "data={train: [rows.jsonl], valid: 20%}", "train.epochs=1",
        )  # fmt: skip
        plmctl("predict", "runs/rows/model", "the green boat waits")
    print("all commands ran")


def made_up_text(folder: Path) -> None:
    """Documents of a few words, and labelled rows."""
    colours, things = ("red", "green", "blue", "grey"), ("boat", "house", "river", "tree")
    lines = [
        f"The {colours[i % 4]} {things[i // 4 % 4]} number {i} waits. It is near a {things[i % 3]}."
        for i in range(400)
    ]
    (folder / "text.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    rows = [{"text": line, "label": colours[i % 4]} for i, line in enumerate(lines[:80])]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")


def environment(folder: Path, interpreter: str, *, pip: bool = True) -> Path:
    """The interpreter of a new environment."""
    shutil.rmtree(folder, ignore_errors=True)
    uv("venv", "-q", *["--seed"] * pip, "--python", interpreter, str(folder))
    return folder / "bin" / "python"


def tested(package: str) -> str:
    """The line of a package in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(f"{package}=="))


def uv(*arguments: str) -> None:
    call(sys.executable, "-m", "uv", *arguments)


def call(*command: str, cwd: Path | None = None) -> None:
    """Run a command; end with its exit code if it fails."""
    print("$", *command, flush=True)
    done = subprocess.run(command, cwd=cwd, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("release", "ranges", "versions", "use"))
    parser.add_argument("which", nargs="?", help="lowest or newest; the interpreter of `use`")
    parser.add_argument("--python", default=sys.executable, help="of versions: a path or 3.13")
    given = parser.parse_args()
    if given.what == "release":
        release()
    elif given.what == "ranges":
        ranges()
    elif given.what == "use" and given.which:
        use(Path(given.which).absolute(), list(TINY))
    elif given.which in ("lowest", "newest"):
        versions(given.which, given.python)
    else:
        parser.error("versions needs lowest or newest, use needs an interpreter")


if __name__ == "__main__":
    main()
