"""Addresses with user names, passwords and queries: kept out of everything that is written.

A password or a signature in a URL would get into run folders, cards, reports and logs. So one that
is written out is refused; ``${NAME}`` in an address stands for a variable of the environment, whose
value is put in only when the address is opened. Where an address is shown or published, it has no
user name and no query.
"""

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from plmctl.errors import ConfigError

# What stands between the slashes and the next `/` is a user before `@`, but not a container of
# Azure or a repository of GitHub. A password may have a `/` although a URL may not.
_NO_USER = ("abfs", "abfss", "wasb", "wasbs", "github")
_USER = re.compile(
    # With one slash: as `Path` writes an address that was read as a path.
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*(?=://)|https?|s3a?|gs|gcs|ssh|s?ftp|smb|webdavs?):/{1,2}"
    r"(?P<user>[^\s/?#\"'<>@:]*(?::(?!\d+(?:[/?#]|$))(?:(?!://)[^\s\"'<>])*)?|[^\s/?#\"'<>]*)@"
)
_QUERY = re.compile(r"(https?:/{1,2}[^\s?#\"'<>]*)[?#][^\s\"'<>]*?(?=[:,;)\]]*(?:[\s\"'<>]|$))")
_SECRET = re.compile(
    r"(?i)sig|token|secret|pass|pwd|cred|auth|key|jwt|session|^x-(amz|goog|oss|cos|ms)-|policy"
)
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def shown(text: str) -> str:
    """A text in which addresses have no user, no password and no query."""
    if ":/" not in text:
        return text
    return _QUERY.sub(r"\1", _USER.sub(_without_user, text))


def _without_user(match: re.Match[str]) -> str:
    return match[0] if match["scheme"].lower() in _NO_USER else f"{match['scheme']}://"


def all_shown(value: Any) -> Any:
    """Plain data in which every text is ``shown``."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, Mapping):
        return {key: all_shown(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(all_shown(inner) for inner in value)
    return value


def secret_in(address: str) -> str | None:
    """What an address has that must not be written: a message without it; None: nothing."""
    for match in _USER.finditer(address):
        name, _, password = match["user"].partition(":")
        of_web = match["scheme"].lower() in ("http", "https")
        written = _VARIABLE.sub("", password + (name if of_web else ""))
        if written and match["scheme"].lower() not in _NO_USER:
            return "an address with a user name or a password"
    for match in re.finditer(r"https?://[^\s?#]*\?([^\s#]*)", address):
        for name, value in parse_qsl(match[1], keep_blank_values=True):
            if (secret := _SECRET.search(name)) and _VARIABLE.sub("", value):
                return f"an address with a secret ({secret[0]}...) in its query"
    return None


INSTEAD = (
    "it would be written into run folders and cards: put it into a variable of the environment and "
    "write ${NAME} in its place; or into ~/.netrc (https), or the settings of the storage's library"
)


def refuse_secrets(address: str) -> None:
    """Refuse an address with a password or a signature in it.

    Raises:
        ConfigError: Without them in the message.
    """
    if what := secret_in(address):
        raise ConfigError(f"{shown(address)}: {what}", INSTEAD)


def filled(address: str) -> str:
    """An address with the values of the variables that it names, to be opened and not kept.

    Raises:
        ConfigError: A variable is not set.
    """
    for name in _VARIABLE.findall(address):
        if name not in os.environ:
            raise ConfigError(
                f"{shown(address)}: the variable {name} of the environment is not set",
                f"set it, as in `export {name}=...`",
            )
    return _VARIABLE.sub(lambda match: os.environ[match[1]], address)


def unfilled(text: str, address: str) -> str:
    """What a library says of an address that was ``filled``, without the values."""
    for name in _VARIABLE.findall(address):
        if value := os.environ.get(name):
            text = text.replace(value, f"${{{name}}}")
    return text
