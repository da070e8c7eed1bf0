"""Folders and files from elsewhere, through the commands: complete, and data."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.commands.conftest import Cli, write
from tests.commands.test_bad_input import finetune_config, refused


def test_links_out_of_a_model_folder(cli: Cli, pretrained: dict[str, Path]) -> None:
    Path("secret.txt").write_text("secret")
    shutil.copytree(pretrained["bert"] / "model", "linked")
    for name in ("notes.txt", "sub/h"):
        link = Path("linked") / name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(Path("secret.txt").absolute())
        refused(cli("push", "linked", "me/x", "--dry-run"), 2, f"linked/{name}: a link that leads")
        link.unlink()
    text = "Anna sees [MASK] at the garden."
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        moved = Path("linked") / name
        moved.rename(name)
        moved.symlink_to(Path(name).absolute())
        refused(cli("predict", "linked", text), 2, f"linked/{name}: a link that leads out")
        fields = finetune_config(Path("linked")) | {"run": "never", "model": "linked"}
        write("never.yaml", fields)
        refused(cli("finetune", "never.yaml"), 2, f"linked/{name}: a link that leads out")
        assert not Path("never").exists()
        moved.unlink()
        Path(name).rename(moved)
    Path("whole").symlink_to("linked")
    assert cli("predict", "whole", text)[0] == 0


def test_a_run_folder_with_odd_files(cli: Cli, world: Path) -> None:
    Path("odd").mkdir()
    os.mkfifo("odd/.lock")
    Path("victim").touch()
    for options in ((), ("--fresh",)):
        refused(cli("pretrain", "bert.yaml", "run=odd", *options), 2, "odd/.lock: no file, but a")
    Path("odd/.lock").unlink()
    Path("odd/events").symlink_to("../victim")
    refused(cli("pretrain", "bert.yaml", "run=odd"), 2, "odd/events: a link that leads out")
    refused(cli("train-tokenizer", "tok-bert.yaml", "run=odd"), 2, "odd/events: a link")


def test_names_that_no_folder_has(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "n" * 300
    refused(cli("pretrain", "bert.yaml", f"run={long}"), 2, "nnn...nnn", "name too long")
    refused(cli("train-tokenizer", "tok-bert.yaml", f"run={long}"), 2, "name too long")
    monkeypatch.setenv("HOME", str(Path.cwd() / "home"))
    code, out, err = cli("config", "show", "bert.yaml", "run=~/x", "data.store=~/stores")
    assert code == 0, err
    assert f"run: {Path.cwd()}/home/x" in out
    assert f"store: {Path.cwd()}/home/stores" in out


def test_text_at_a_url_is_pretrained_on(cli: Cli) -> None:
    url = f"file://{Path.cwd()}/text.txt"
    code, _, err = cli("pretrain", "bert.yaml", "run=of-url", f'data.train=["{url}"]')
    assert code == 0, err
    text = json.loads(Path("of-url/environment.json").read_text())["text"]
    assert list(text["sources"]) == [url]
    assert text["sources"][url]  # its stamp
    assert url in Path("of-url/model/README.md").read_text()
    code, _, err = cli("prepare", "bert.yaml", f'data.train=["{url}"]', "--card", "url-card.md")
    assert code == 0, err
    assert text["sources"][url] in Path("url-card.md").read_text()
