"""Names that are no folders, where there is no network."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from huggingface_hub import constants

from plmctl import hub
from plmctl.corpus.source import resolve
from plmctl.corpus.tabular import open_dataset
from plmctl.errors import ConfigError, DataError
from plmctl.folders import check_model
from plmctl.tokenization.encode import Encoder
from tests import hub_stub

NOWHERE = {"HF_ENDPOINT": "https://hub.invalid", "HF_HUB_OFFLINE": "0"}
CONFIG = """
run: r
tokenizer: tokeniser
model: {family: bert, size: tiny}
data: {train: [text.txt]}
train: {phases: [{seq_len: 32, steps: 2}]}
"""


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "p.yaml").write_text(CONFIG)
    (folder / "text.txt").write_text("a b c")
    environment = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    return subprocess.run(
        [sys.executable, "-m", "plmctl", *arguments],
        cwd=folder, env=environment | NOWHERE | {"HF_HOME": str(folder)} | variables,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        pytest.param(["pretrain", "p.yaml"], "tokeniser", marks=pytest.mark.slow),
        (["generate", "a/model", "--prompt=x"], "a/model"),
    ],
)
def test_a_slip_is_reported_immediately(arguments: list[str], name: str, tmp_path: Path) -> None:
    """Not after half a minute of somebody's tries."""
    done = run(tmp_path, *arguments)
    assert done.returncode == 2
    assert f"plmctl: {name}: no such folder, and the Hub (hub.invalid) cannot" in done.stderr
    assert "etry" not in done.stderr
    assert len(done.stderr.splitlines()) == 2


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A Hub that does not exist, with an empty cache."""
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.lower(), raising=False)
    hub._answers.cache_clear()
    return monkeypatch


def test_a_data_set_is_refused_immediately(
    endpoint: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (source,) = resolve(("hf:nobody/nothing",))
    with pytest.raises(DataError, match=r"hf:nobody/nothing: the Hub \(hub.invalid\) cannot"):
        open_dataset(source)
    assert capfd.readouterr() == ("", "")  # the libraries report each of their tries
    endpoint.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="not in the cache .* and HF_HUB_OFFLINE is set"):
        open_dataset(source)
    for name in ("hf:../..", "hf:/etc", "hf:", "hf:a/b/c"):
        with pytest.raises(DataError, match="not a name on the Hub"):
            open_dataset(resolve((name,))[0])


@pytest.mark.parametrize("address", ["http://u:pass@h:x", "http://h:99999", "http://[::1"])
def test_an_address_with_which_the_libraries_cannot_be_imported(address: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "plmctl", "doctor"],
        env={**os.environ, "HF_ENDPOINT": address},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("plmctl: HF_ENDPOINT: ")
    assert "Traceback" not in done.stderr
    assert "pass" not in done.stderr


@pytest.mark.parametrize("address", ["hf-mirror.com", "ftp://hub", "https://", "https://h:x"])
def test_a_wrong_address(address: str, endpoint: pytest.MonkeyPatch) -> None:
    endpoint.setattr(constants, "ENDPOINT", address)
    with pytest.raises(ConfigError, match=r"HF_ENDPOINT: .* is not an address"):
        hub.unavailable("a/b", "models")


def test_the_address_is_shown_without_a_password(endpoint: pytest.MonkeyPatch) -> None:
    endpoint.setattr(constants, "ENDPOINT", "https://user:secret@mirror.example:8443/hub")
    assert hub.endpoint() == "https://mirror.example:8443/hub"
    assert hub.is_mirror()
    endpoint.setattr(constants, "ENDPOINT", "user:secret@mirror.example")
    with pytest.raises(ConfigError) as error:
        hub.endpoint()
    assert "secret" not in str(error.value)
    endpoint.setattr(constants, "ENDPOINT", "https://huggingface.co")
    assert not hub.is_mirror()


def test_a_mirror_is_used_without_xet(
    endpoint: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    endpoint.delenv("HF_HUB_DISABLE_XET", raising=False)
    endpoint.setattr(constants, "HF_HUB_DISABLE_XET", False)
    endpoint.setattr(hub, "find_spec", lambda name: object())  # hf_xet may not be installed here
    hub.avoid_xet.cache_clear()
    with hub_stub.running() as server:
        endpoint.setattr(constants, "ENDPOINT", server.url)
        assert hub.unavailable("me/bert", "models") is None
        assert hub.unavailable("me/gpt", "models") is None
    assert constants.HF_HUB_DISABLE_XET
    assert os.environ.pop("HF_HUB_DISABLE_XET") == "1"
    err = capfd.readouterr().err
    assert err.count("plain downloads, because Xet would bypass it") == 1
    hub.avoid_xet.cache_clear()
    hub._answers.cache_clear()


def test_names_on_modelscope() -> None:
    (source,) = resolve(("ms:owner/name:subset:train",))
    assert (source.kind, source.files) == ("ms", ())
    assert hub.local("google-bert/bert-base-cased") == "google-bert/bert-base-cased"
    for name in ("ms:../..", "ms:name", "ms:/etc/x", "ms:a/b/c"):
        with pytest.raises(ConfigError, match="not a name on ModelScope"):
            hub.local(name)
    if find_spec("modelscope") is None:
        with pytest.raises(ConfigError, match="library is not installed") as error:
            hub.local("ms:owner/name")
        assert error.value.hint == "pip install 'plmctl[modelscope]'"
        with pytest.raises(ConfigError, match="ms:owner/name: ModelScope's library"):
            open_dataset(source)


@pytest.mark.slow
def test_a_model_of_a_mirror(tmp_path: Path) -> None:
    """HF_ENDPOINT, from outside: push a folder, and generate from it by its name."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(["<eos>", "<unk>", "a", "b", "c"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", bos_token="<eos>", unk_token="<unk>"
    )
    fast.save_pretrained(tmp_path / "gpt")
    shape = GPT2Config(vocab_size=5, n_embd=8, n_head=2, n_layer=1, n_positions=32)
    GPT2LMHeadModel(shape).save_pretrained(tmp_path / "gpt")
    with hub_stub.running() as server:
        variables = {"HF_ENDPOINT": server.url, "HF_TOKEN": hub_stub.WRITE}
        variables["HF_HUB_DISABLE_XET"] = "1"
        done = run(tmp_path, "push", "gpt", "gpt", "--yes", **variables)
        assert done.returncode == 0, done.stderr
        assert hub_stub.WRITE not in done.stdout + done.stderr
        generate = ("generate", "me/gpt", "--prompt", "a b", "--max-new-tokens", "3")
        done = run(tmp_path, *generate, **variables)
        assert done.returncode == 0, done.stderr
        assert any("/me/gpt/resolve/" in line for line in server.requests)
    # Without the Hub, its cache is used, without half a minute of tries.
    done = run(tmp_path, *generate, HF_ENDPOINT=server.url)
    assert done.returncode == 0, done.stderr
    assert "cannot be reached: what its cache has is used" in done.stderr
    assert "etry" not in done.stderr


def test_a_folder_that_does_not_exist_is_named_with_the_working_directory() -> None:
    for check in (Encoder, check_model):
        with pytest.raises(ConfigError, match=f"runs/t/wp: no such folder in {Path.cwd()}"):
            check("runs/t/wp")
