"""The Hugging Face Hub, where a name that is no folder may be."""

import socket
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from plmctl.errors import ConfigError


def refuse_unreachable(name: str, hint: str) -> None:
    """Refuse at once what would be looked for on the Hub where that cannot be found.

    Its library tries for half a minute, and says so line by line; most such names are slips.

    Args:
        name: No folder here.
        hint: What else may have been meant.

    Raises:
        ConfigError: The Hub's host is not known here, and no earlier download of that name is.
    """
    from huggingface_hub import constants

    kept = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    if constants.HF_HUB_OFFLINE or getproxies() or kept.is_dir():  # a proxy looks hosts up itself
        return
    host = urlsplit(constants.ENDPOINT).hostname
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        raise ConfigError(
            f"{name}: no such folder, and the Hub ({host}) cannot be reached", hint
        ) from None
