"""The Hugging Face Hub and ModelScope: names of models and data sets that are not local.

``hf:NAME``, or a model name that is no folder, is on the Hub: huggingface.co, or the mirror that
HF_ENDPOINT names. ``ms:NAME`` is on ModelScope, and is opened as the folder that its library
downloads to.

The Hub's libraries try again for half a minute, with a line for each try, if there is no network.
So whether the Hub answers is found out here, once, before a library opens a name on it.
"""

import functools
import os
import re
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any, Literal
from urllib.parse import urlsplit

from plmctl.errors import ConfigError, PlmError
from plmctl.formatting import printable

Kind = Literal["models", "datasets", "spaces"]

MODELSCOPE = "ms:"
"""The beginning of a name on ModelScope."""

_PATIENCE = 4.0  # seconds; HF_HUB_ETAG_TIMEOUT, a variable of the libraries, changes it
_HUB_HOSTS = ("huggingface.co", "hf.co")


# --- Where the Hub is ---


def endpoint() -> str:
    """The address of the Hub: HF_ENDPOINT, without a user name or a password in it.

    Raises:
        ConfigError: HF_ENDPOINT is not an address.
    """
    from huggingface_hub import constants

    parts = _parts(constants.ENDPOINT)
    if parts is None:
        raise _no_address(constants.ENDPOINT)
    host, port = parts
    scheme = urlsplit(constants.ENDPOINT).scheme
    path = urlsplit(constants.ENDPOINT).path
    usual = {"http": 80, "https": 443}[scheme]
    return f"{scheme}://{host}{'' if port == usual else f':{port}'}{path}"


def check_port() -> None:
    """Refuse an HF_ENDPOINT whose port is no number: with it, the libraries cannot be imported.

    Raises:
        ConfigError: It is none.
    """
    address = os.environ.get("HF_ENDPOINT", "")
    try:
        _ = urlsplit(address).port
    except ValueError as error:
        raise _no_address(address) from error


def _no_address(address: str) -> ConfigError:
    shown = address.rpartition("@")[2]  # without a user name or a password
    host = re.sub(r"\A\w*:?//", "", shown)
    host = (re.match(r"[\w.-]*", host) or [""])[0] or "HOST"
    return ConfigError(
        f"HF_ENDPOINT: {shown!r} is not an address", f"write https://{host}, or unset HF_ENDPOINT"
    )


def is_mirror() -> bool:
    """Whether HF_ENDPOINT names another host than the Hub's own."""
    host = urlsplit(endpoint()).hostname or ""
    return not any(host == own or host.endswith(f".{own}") for own in _HUB_HOSTS)


def unavailable(name: str, kind: Kind) -> str | None:
    """Why a name on the Hub cannot be opened; None if it can be tried.

    Call it before a library opens the name. If the Hub does not answer, and the cache has the name,
    the libraries work offline from here on. If HF_ENDPOINT is a mirror, they do not use Xet: its
    files come from another host than the mirror.

    Args:
        name: An id, such as ``google-bert/bert-base-cased``.

    Raises:
        ConfigError: HF_ENDPOINT is not an address.
    """
    from huggingface_hub import constants

    host = urlsplit(endpoint()).netloc
    if constants.HF_HUB_OFFLINE:
        if _is_cached(name, kind):
            return None
        return f"it is not in the cache ({constants.HF_HUB_CACHE}), and HF_HUB_OFFLINE is set"
    if not _answers():
        if not _is_cached(name, kind):
            return f"the Hub ({host}) cannot be reached"
        _work_offline(host)
    elif is_mirror():
        avoid_xet()
    return None


def refuse_unreachable(name: str, hint: str) -> None:
    """Refuse a model or tokenizer immediately if it can only be on the Hub and cannot be opened.

    Most such names are typing mistakes.

    Args:
        name: A name that is not a local folder.

    Raises:
        ConfigError: The Hub cannot be reached, and no earlier download of that name exists; or
            HF_ENDPOINT is not an address.
    """
    reason = unavailable(name, "models")
    if reason:
        raise ConfigError(f"{name}: no such folder, and {reason}", hint)


@functools.cache
def avoid_xet() -> None:
    """Transfer files by plain HTTP, unless HF_HUB_DISABLE_XET says what to do; reported once."""
    from huggingface_hub import constants

    if "HF_HUB_DISABLE_XET" in os.environ or find_spec("hf_xet") is None:
        return
    os.environ["HF_HUB_DISABLE_XET"] = "1"  # for processes that this one starts
    constants.HF_HUB_DISABLE_XET = True
    _report(
        f"the Hub is {urlsplit(endpoint()).netloc} (HF_ENDPOINT): plain downloads, because Xet "
        "would bypass it; HF_HUB_DISABLE_XET=0 allows Xet"
    )


@functools.cache
def _work_offline(host: str) -> None:
    from huggingface_hub import constants

    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_EVALUATE_OFFLINE"] = "1"
    constants.HF_HUB_OFFLINE = True
    # These two copy the value when they are imported.
    if datasets := sys.modules.get("datasets"):
        datasets.config.HF_HUB_OFFLINE = True
    if evaluate := sys.modules.get("evaluate"):
        evaluate.config.HF_EVALUATE_OFFLINE = True
    _report(f"the Hub ({host}) cannot be reached: what its cache has is used")


def answers() -> bool:
    """Whether something answers at the address of the Hub.

    Raises:
        ConfigError: HF_ENDPOINT is not an address.
    """
    endpoint()
    return _answers()


@functools.cache
def _answers() -> bool:
    """Whether any HTTP response comes, by the libraries' own client: its proxies, its certificates.

    So a wrong certificate, which they would also try again for half a minute, is no answer.
    """
    from huggingface_hub import get_session

    patience = float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or _PATIENCE)
    answered: list[bool] = []

    def request() -> None:
        with suppress(Exception):  # of httpx, ssl, socket: whatever it is, there is no answer
            get_session().head(endpoint(), timeout=patience)
            answered.append(True)

    # Looking up a host has no timeout of its own, and can take half a minute.
    thread = Thread(target=request, daemon=True)
    thread.start()
    thread.join(patience + 1)
    return bool(answered)


def _parts(address: str) -> tuple[str, int] | None:
    """Host and port of an address; None if it is none."""
    try:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return None
        return parts.hostname, parts.port or {"http": 80, "https": 443}[parts.scheme]
    except ValueError:  # a port that is no number
        return None


def _is_cached(name: str, kind: Kind) -> bool:
    """Whether an earlier download of a name exists."""
    from huggingface_hub import constants

    if (Path(constants.HF_HUB_CACHE) / f"{kind}--{name.replace('/', '--')}").is_dir():
        return True
    if kind == "spaces":  # the code of metrics, which `evaluate` copies
        from evaluate import config as of_evaluate

        copies = Path(of_evaluate.HF_MODULES_CACHE) / "evaluate_modules" / "metrics"
        return (copies / name.replace("/", "--")).is_dir()
    if kind == "models":
        return False
    from datasets import config
    from datasets.naming import camelcase_to_snakecase

    *owner, own_name = name.split("/")
    folder = "___".join([*owner, camelcase_to_snakecase(own_name)])
    return (Path(config.HF_DATASETS_CACHE) / folder).is_dir()


def _report(line: str) -> None:
    """A line on stderr, from the first process of each machine only."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(printable(line), file=sys.stderr, flush=True)


# --- The token ---


def token() -> str:
    """The user's token of the Hub, which is never written or shown.

    Raises:
        ConfigError: There is none, or it has characters that no token has.
    """
    from huggingface_hub import get_token

    value = get_token()
    if not value:
        raise ConfigError(
            "no token of the Hub", "log in with `hf auth login`, or set HF_TOKEN to a write token"
        )
    if not re.fullmatch(r"[!-~]+", value):  # the libraries would show it in their error
        raise ConfigError(
            "the Hub token contains an invalid character",
            "log in again with `hf auth login`, or correct HF_TOKEN",
        )
    return value


def has_token() -> bool:
    """Whether a token is set, by HF_TOKEN or by `hf auth login`."""
    try:
        return bool(token())
    except ConfigError:
        return False


# --- ModelScope ---


def local(name: str) -> str:
    """The folder of a model ``ms:NAME``; every other name unchanged.

    Raises:
        ConfigError: The name is not one of ModelScope's, or its library is not installed.
        PlmError: It cannot be downloaded.
    """
    if not name.startswith(MODELSCOPE):
        return name
    return _download_from_modelscope(name.removeprefix(MODELSCOPE), "models")


def local_dataset(name: str) -> str:
    """The folder of a data set NAME of ModelScope; errors as ``local``."""
    return _download_from_modelscope(name, "datasets")


@functools.cache
def _download_from_modelscope(name: str, kind: Kind) -> str:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or ".." in name:
        raise ConfigError(
            f"{MODELSCOPE}{name}: not a name on ModelScope", f"write {MODELSCOPE}OWNER/NAME"
        )
    try:
        from modelscope.hub import snapshot_download as library
    except ImportError as error:
        raise ConfigError(
            f"{MODELSCOPE}{name}: ModelScope's library is not installed",
            "pip install 'plmctl[modelscope]'",
        ) from error
    download: Any = (
        library.snapshot_download if kind == "models" else library.dataset_snapshot_download
    )
    try:
        return str(download(name))
    except Exception as error:  # its errors have no common base class
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise PlmError(
            f"{MODELSCOPE}{name}: cannot be downloaded: {reason}",
            "check the name, and the network connection, which the first download needs",
        ) from error
