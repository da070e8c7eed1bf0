"""Files and folders that are complete or absent."""

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from plmctl.files import new_folder


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_weights_have_the_mode_of_other_files(tmp_path: Path, mask: int, mode: int) -> None:
    """safetensors writes files that only their owner can read."""
    before = os.umask(mask)
    try:
        with new_folder(tmp_path / "model") as folder:
            folder.mkdir()
            save_file({"a": np.zeros(2)}, folder / "model.safetensors")
            (folder / "config.json").write_text("{}")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()}
    assert modes == {"model.safetensors": mode, "config.json": mode}
