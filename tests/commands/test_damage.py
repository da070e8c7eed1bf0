"""Every single damage of every file that plmctl writes and reads: refused, made good, or harmless.

A damaged file may never end in a traceback or a hang, and a command that succeeds over one gives
what it gives without the damage.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.commands.conftest import pretrain_config, run_main, write
from tests.commands.test_bad_input import finetune_config

Damage = Callable[[bytes], bytes]


def _flipped(at: float) -> Damage:
    def flip(content: bytes) -> bytes:
        place = min(int(len(content) * at), len(content) - 1)
        return content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :]

    return flip


DAMAGES: dict[str, Damage | None] = {
    "a bit at the start": _flipped(0),
    "a bit at a tenth": _flipped(0.1),
    "a bit in the middle": _flipped(0.5),
    "a bit at the end": _flipped(0.999),
    "half": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "a list": lambda content: b"[]",
    "an object": lambda content: b"{}",
    "null": lambda content: b"null",
    "deep": lambda content: b"[" * 100_000,
    "binary": lambda content: bytes(range(256)) * 4,
    "deleted": None,
}
MOST = ("a bit in the middle", "empty", "an object", "deleted")
"""Of runs and stores, where each damage costs a second."""

FEW = ("a bit in the middle", "an object", "deep", "deleted")


def damaged_copies(folder: Path, kinds: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    """Copies of a folder with one damage each, under the same name as the folder.

    Args:
        folder: Moved aside while its copies are in its place.
        kinds: Names of ``DAMAGES``.
    """
    aside = folder.rename(folder.with_name(f"{folder.name}.whole"))
    try:
        for path in sorted(path for path in aside.rglob("*") if path.is_file()):
            for kind in kinds:
                content, damage = path.read_bytes(), DAMAGES[kind]
                if not content or path.suffix == ".html" or path.name == ".lock":
                    continue
                shutil.copytree(aside, folder)
                target = folder / path.relative_to(aside)
                if damage is None:
                    target.unlink()
                else:
                    target.write_bytes(damage(content))
                yield f"{path.relative_to(aside)}: {kind}", folder
                shutil.rmtree(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)


def exit_codes(folder: Path, kinds: tuple[str, ...], *arguments: str) -> dict[str, object]:
    """The exit code of a command line over each damage; the exception where it raises one."""
    codes: dict[str, object] = {}
    for name, _ in damaged_copies(folder, kinds):
        try:
            codes[name] = run_main(*arguments)
        except Exception as error:  # noqa: BLE001 - what the test is about
            codes[name] = repr(error)[:200]
    return codes


def faulty(codes: dict[str, object]) -> dict[str, object]:
    return {name: code for name, code in codes.items() if code not in (0, 1, 2, 3, 75)}


@pytest.fixture(scope="module")
def folders(world: Path) -> Path:
    """A tokenizer, a finetuned model, and a run stopped after step 4 with its store."""
    shutil.copytree("tok-bert", "damage-tok")
    config = pretrain_config("bert") | {"run": "damage-run", "tokenizer": "damage-tok"}
    config["data"] |= {"store": "damage-store"}
    write("damage.yaml", config | {"checkpoint": {"every": 2}})
    assert run_main("pretrain", "damage.yaml", "run=damage-whole") == 0
    assert run_main("pretrain", "damage.yaml", "--until=4") == 75
    write("damage-ft.yaml", finetune_config(world / "damage-whole") | {"run": "damage-ft"})
    assert run_main("finetune", "damage-ft.yaml") == 0
    return world


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("folder", "arguments"),
    [
        ("damage-ft/model", ("predict", "damage-ft/model", "a")),
        ("damage-tok", ("preview", "damage.yaml", "--count=64", "--json")),
        ("damage-ft", ("report", "damage-ft")),
    ],
)
def test_every_damage(folder: str, arguments: tuple[str, ...], folders: Path) -> None:
    assert not faulty(exit_codes(folders / folder, tuple(DAMAGES), *arguments))


@pytest.mark.sweep
@pytest.mark.parametrize("folder", ["damage-run", "damage-store"])
def test_a_run_over_damage_is_refused_or_the_same(folder: str, folders: Path) -> None:
    wrong: dict[str, object] = {}
    reference = load_file(folders / "damage-whole/model/model.safetensors")
    for name, _ in damaged_copies(folders / folder, MOST):
        run = folders / "damage-run"
        before = [] if folder == "damage-run" else [shutil.copytree(run, run.with_name("kept"))]
        try:
            code: object = run_main("pretrain", "damage.yaml")
            if code == 0:
                weights = load_file(run / "model/model.safetensors")
                if any(not weights[key].equal(value) for key, value in reference.items()):
                    code = "other weights"
        except Exception as error:  # noqa: BLE001
            code = repr(error)[:200]
        wrong |= faulty({name: code})
        for kept in before:
            shutil.rmtree(run)
            os.rename(kept, run)
    assert not wrong, "\n".join(f"{name}: {code}" for name, code in wrong.items())


def test_damaged_model_folders(folders: Path) -> None:
    codes = exit_codes(folders / "damage-ft/model", FEW, "predict", "damage-ft/model", "a")
    assert not faulty(codes)
    assert {codes[f"{name}: an object"] for name in ("config.json", "task.json")} <= {2, 3}
