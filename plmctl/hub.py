"""The Hugging Face Hub: names that are not local folders."""

import socket
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit
from urllib.request import getproxies

from plmctl.errors import ConfigError


def refuse_unreachable(
    name: str, hint: str, kind: Literal["models", "datasets"] = "models"
) -> None:
    """Refuse a name immediately if it can only be on the Hub and the Hub cannot be reached.

    The Hub's library would retry for half a minute, with a line for each try. Most such names are
    typing mistakes.

    Args:
        name: A name that is not a local folder.
        hint: What to do instead.
        kind: What the name is of.

    Raises:
        ConfigError: The Hub's host cannot be resolved, and no earlier download of that name exists.
    """
    from huggingface_hub import constants

    kept = Path(constants.HF_HUB_CACHE) / f"{kind}--{name.replace('/', '--')}"
    if constants.HF_HUB_OFFLINE or getproxies() or kept.is_dir():  # a proxy resolves host names
        return
    host = urlsplit(constants.ENDPOINT).hostname
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        what = f"{name}: no such folder, and" if kind == "models" else f"hf:{name}:"
        where = f" (looked for the folder in {Path.cwd()})" if kind == "models" else ""
        raise ConfigError(f"{what} the Hub ({host}) cannot be reached{where}", hint) from None
