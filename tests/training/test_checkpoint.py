import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from plmctl.errors import PlmError
from plmctl.training.checkpoint import Checkpoints, Trained, restore


def trained(seed: int = 0) -> Trained:
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1)
    for _ in range(3):
        network(torch.randn(5, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return Trained(network, optimizer)


def test_what_is_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    before, after = trained(1), trained(2)
    folder = Checkpoints(tmp_path, 3).save(7, before, {"tokens": 123})
    assert restore(folder, after) == {"step": 7, "tokens": 123}
    for a, b in zip(before.network.parameters(), after.network.parameters(), strict=True):
        assert torch.equal(a, b)
        for field in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(before.optimizer.state[a][field], after.optimizer.state[b][field])


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 2)
    for step in (9, 10, 11, 100):
        checkpoints.save(step, trained(), {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000011", "step-000100"]


NO_MANIFEST = ["{", "{}", "[]", '{"model.safetensors": 3}', '{"metrics.jsonl": {"lines": 1}}']


@pytest.mark.parametrize("damage", ["bytes", "size", "missing", "unlisted", *NO_MANIFEST])
def test_a_damaged_checkpoint_is_passed_over_and_kept(tmp_path: Path, damage: str) -> None:
    checkpoints = Checkpoints(tmp_path, 3)
    good = checkpoints.save(1, trained(), {})
    bad = checkpoints.save(2, trained(), {})
    weights = bad / "model.safetensors"
    if damage == "bytes":
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
    elif damage == "size":
        os.truncate(weights, 10)
    elif damage == "missing":
        weights.unlink()
    elif damage == "unlisted":  # a file that no hash is known of would be believed
        (bad / "carried.safetensors").write_bytes(weights.read_bytes())
    else:
        (bad / "manifest.json").write_text(damage)
    newest, faults = checkpoints.newest()
    assert newest == good
    assert len(faults) == 1
    assert "step-000002" in faults[0]
    assert bad.is_dir()
    (tmp_path / "step-notes").mkdir()  # somebody's own
    assert checkpoints.newest()[0] == good


def test_a_half_written_one_is_not_seen(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 3)
    checkpoints.save(1, trained(), {})
    (tmp_path / ".step-000002.writing").mkdir()
    assert checkpoints.newest()[0] == tmp_path / "step-000001"
    assert checkpoints.save(2, trained(), {}).is_dir()


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    folder = Checkpoints(tmp_path, 3).save(1, trained(), {})
    network = nn.Sequential(nn.Linear(4, 8))
    other = Trained(network, torch.optim.AdamW(network.parameters()))
    with pytest.raises(PlmError, match="another network"):
        restore(folder, other)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """/dev/full refuses every write, as a full disk does."""
    checkpoints = Checkpoints(tmp_path, 1)
    good = checkpoints.save(1, trained(), {})
    writing = tmp_path / ".step-000002.writing"
    target = writing / "state.json"
    original = Path.mkdir

    def with_full_disk(self: Path, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        if self == writing:
            target.symlink_to("/dev/full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "mkdir", with_full_disk)
        with pytest.raises(PlmError, match="No space left on device"):
            checkpoints.save(2, trained(), {})
    assert not writing.exists()
    assert checkpoints.newest() == (good, [])


def test_no_pickle_in_a_checkpoint(tmp_path: Path) -> None:
    folder = Checkpoints(tmp_path, 1).save(1, trained(), {"tokens": 5})
    assert {p.suffix for p in folder.iterdir()} == {".safetensors", ".json"}
    assert json.loads((folder / "state.json").read_text()) == {"step": 1, "tokens": 5}
