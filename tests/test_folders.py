"""Folders from elsewhere: links and odd files in them."""

import os
from pathlib import Path

import pytest

from plmctl.errors import ConfigError
from plmctl.folders import check_run_files, leads_out, refuse_links


def test_links_that_lead_out(tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "sub").mkdir(parents=True)
    for name in ("outside", "model/inside", "model/sub/below"):
        (tmp_path / name).touch()
    (model / "within").symlink_to("sub/below")
    (model / "folder").symlink_to(tmp_path)  # no command reads a folder of a model
    refuse_links(model)
    (tmp_path / "whole").symlink_to(model)  # the user's own link
    refuse_links(tmp_path / "whole")
    for target in ("../outside", str(tmp_path / "outside"), "/dev/zero", "sub/../../outside"):
        (model / "weights").symlink_to(target)
        for folder in (model, tmp_path / "whole"):
            with pytest.raises(ConfigError, match=r"weights: a link that leads out of its folder"):
                refuse_links(folder)
        (model / "weights").unlink()
    (model / "sub2").symlink_to("sub")
    assert not leads_out(model / "sub2" / "below", model)
    assert leads_out(model / "folder" / "outside", model)


def test_the_hubs_cache_has_its_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    snapshot = tmp_path / "snapshots" / "a1"
    snapshot.mkdir(parents=True)
    (tmp_path / "blobs" / "b1").touch()
    (snapshot / "config.json").symlink_to("../../blobs/b1")
    refuse_links(snapshot)
    (tmp_path / "refs").touch()
    (snapshot / "vocab.txt").symlink_to("../../refs")
    with pytest.raises(ConfigError, match=r"vocab\.txt"):
        refuse_links(snapshot)


@pytest.mark.parametrize("name", [".lock", "status.json", "events", "metrics.jsonl", "config.yaml"])
def test_what_is_no_file_of_a_run(tmp_path: Path, name: str) -> None:
    run, path = tmp_path / "run", tmp_path / "run" / name
    run.mkdir()
    check_run_files(run)
    for make, word in (
        (path.mkdir, "no file, but a folder"),
        (lambda: os.mkfifo(path), "no file, but a pipe"),
        (lambda: path.symlink_to("../victim"), "a link that leads out"),
    ):
        make()
        with pytest.raises(ConfigError, match=rf"{name}: {word}"):
            check_run_files(run)
        path.unlink() if path.is_symlink() or not path.is_dir() else path.rmdir()
    (run / "checkpoints").touch()
    with pytest.raises(ConfigError, match="checkpoints: no folder, but a file"):
        check_run_files(run)
