"""Secrets in addresses: commands refuse them, and leave no trace of those of the environment."""

import base64
import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from tests.commands.conftest import Cli, write
from tests.commands.test_bad_input import finetune_config

USER, WORD = "SECRETNAME", "SECRETWORD"


class Guarded(http.server.SimpleHTTPRequestHandler):
    """Files for those who know name and password, or the signature."""

    def send_head(self):  # noqa: ANN201  # as the base class has it
        basic = "Basic " + base64.b64encode(f"{USER}:{WORD}".encode()).decode()
        if self.headers.get("Authorization") == basic or f"sig={WORD}" in self.path:
            return super().send_head()
        return self.send_error(401)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def host(world: Path) -> Iterator[str]:
    handler = functools.partial(Guarded, directory=str(world))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    fsspec.filesystem("http").clear_instance_cache()


def traces(world: Path, *texts: str) -> list[str]:
    """Where a secret is."""
    files = [path for path in world.rglob("*") if path.is_file() and path.suffix != ".safetensors"]
    found = [str(path) for path in files if b"SECRET" in path.read_bytes()]
    return found + [text for text in texts if "SECRET" in text]


def commands(text: str, rows: str, run: str, pretrained: dict[str, Path]) -> dict[str, list[str]]:
    """Every command that takes text or rows, with addresses of them."""
    model = str(pretrained["bert"] / "model")
    fields = finetune_config(pretrained["bert"]) | {"run": f"{run}-ft"}
    write("rows.yaml", fields)
    measure = {"name": "mlm", "data": ["text.txt"], "seq_len": 32}
    base = {"run": f"{run}-ev", "model": model, "compute": {"device": "cpu"}}
    write("measure.yaml", {**base, "measures": [measure]})
    train = f'data.train=["{text}"]'
    return {
        "prepare": ["prepare", "bert.yaml", train, "--card", f"{run}.md"],
        "init": ["init", text, "--out", f"{run}-init"],
        "preview": ["preview", "bert.yaml", train],
        "train-tokenizer": ["train-tokenizer", "tok-bert.yaml", train, f"run={run}-tok"],
        "pretrain": ["pretrain", "bert.yaml", train, f"run={run}-pre"],
        "plan": ["plan", "bert.yaml", train],
        "config": ["config", "show", "bert.yaml", train],
        "store": ["prepare", "bert.yaml", f"data.store={text}"],
        "finetune": ["finetune", "rows.yaml", f'data.train=["{rows}"]'],
        "eval": ["eval", "measure.yaml", f'measures.0.data=["{text}"]'],
        "compare-tokenizers": ["compare-tokenizers", "tok-bert", "--text", text],
        "predict": ["predict", model, "--input", rows],
        "model": ["predict", text, "Anna sees [MASK]."],
        "report": ["report", text],
    }


NAMES = (
    "prepare", "init", "preview", "train-tokenizer", "pretrain", "plan", "config", "store",
    "finetune", "eval", "compare-tokenizers", "predict", "model", "report",
)  # fmt: skip
QUICK = ("prepare", "init", "finetune", "model")
FORMS = {
    "password": f"http://{USER}:{WORD}@HOST/FILE",
    "query": f"http://HOST/FILE?sig={WORD}",
    "storage": f"s3://{USER}:{WORD}@HOST/FILE",
}


def check_refused(cli: Cli, world: Path, host: str, name: str, form: str, given: dict) -> None:
    text, rows = (
        FORMS[form].replace("HOST", host).replace("FILE", file) for file in ("text.txt", "rows.tsv")
    )
    code, out, err = cli(*commands(text, rows, f"{name.split()[0]}-{form}", given)[name])
    assert code in (2, 3), err
    assert "Traceback" not in err
    assert not traces(world, out, err)


@pytest.mark.parametrize("name", QUICK)
def test_a_password_in_an_address_is_refused(
    cli: Cli, world: Path, host: str, pretrained: dict[str, Path], name: str
) -> None:
    check_refused(cli, world, host, name, "password", pretrained)


@pytest.mark.sweep
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_secrets_in_addresses_are_refused(
    cli: Cli, world: Path, host: str, pretrained: dict[str, Path], name: str, form: str
) -> None:
    check_refused(cli, world, host, name, form, pretrained)


@pytest.mark.slow
@pytest.mark.sweep
def test_secrets_of_the_environment_leave_no_trace(
    cli: Cli, world: Path, host: str, pretrained: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHO", USER)
    monkeypatch.setenv("WORD", WORD)
    text = f"http://${{WHO}}:${{WORD}}@{host}/text.txt"
    rows = f"http://{host}/rows.tsv?sig=${{WORD}}"
    given = commands(text, rows, "kept", pretrained)
    for name in ("prepare", "init", "preview", "train-tokenizer", "pretrain", "finetune", "eval"):
        code, out, err = cli(*given[name])
        assert code == 0, err
        assert not traces(world, out, err), name
    for line in (
        ["report", "kept-pre", "kept-ft", "--out", "kept.html"],
        ["board", ".", "--out", "kept-board.html"],
        ["push", "kept-pre", "me/x", "--dry-run"],
        ["export", "kept-pre", "kept-export"],
        ["compare", "kept-pre", str(pretrained["bert"])],
        ["pretrain", "bert.yaml", f'data.train=["{text}"]', "run=kept-pre"],
        ["predict", "kept-ft/model", "--input", rows, "--output", "kept.jsonl"],
    ):
        code, out, err = cli(*line)
        assert code == 0, err
        assert not traces(world, out, err), line
    for shown in ("kept.md", "kept-pre/model/README.md", "kept.html"):
        assert "${WORD}" not in Path(shown).read_text()
        assert f"http://{host}/text.txt" in Path(shown).read_text()
    monkeypatch.setenv("WORD", f"{WORD}2")  # the server's answer has the address
    shutil.rmtree("stores")
    code, out, err = cli("pretrain", "bert.yaml", f'data.train=["{text}"]', "run=other")
    assert code in (1, 3)
    assert not traces(world, out, err)


def test_netrc_has_the_password(
    cli: Cli, world: Path, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = Path("netrc")
    netrc.write_text(f"machine 127.0.0.1 login {USER} password {WORD}\n")
    monkeypatch.setenv("NETRC", str(netrc.absolute()))
    code, out, err = cli("prepare", "bert.yaml", f'data.train=["http://{host}/text.txt"]')
    netrc.unlink()
    assert code == 0, err
    assert not traces(world, out, err)
