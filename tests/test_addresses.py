"""Addresses: what is refused in them, and what is left out where they are shown."""

import pytest

from plmctl.addresses import filled, secret_in, shown, unfilled
from plmctl.errors import ConfigError


@pytest.mark.parametrize(
    ("address", "to_show", "refused"),
    [
        ("http://me:SECRET@host/a.txt", "http://host/a.txt", True),
        ("https://SECRET@host:80/a", "https://host:80/a", True),
        ("http://me:SEC/RET@host/a", "http://host/a", True),
        ("http://me:SEC#RET@host/a", "http://host/a", True),
        ("s3://me:SECRET@bucket/a", "s3://bucket/a", True),
        ("sftp://me:SECRET@host/a", "sftp://host/a", True),
        ("http://host/a?X-Amz-Signature=SECRET&b=1", "http://host/a", True),
        ("https://host/a?b=1&sig=SECRET#c", "https://host/a", True),
        ("zip://a::https://me:SECRET@host/b?token=SECRET", "zip://a::https://host/b", True),
        ('[one, "http://me:SECRET@h/a"]', '[one, "http://h/a"]', True),
        ("https:/me:SECRET@host/a?sig=SECRET: no such file", "https://host/a: no such file", True),
        ("host:/me@here/x:y", "host:/me@here/x:y", False),
        ("http://host/a?download=true", "http://host/a", False),
        ("http://${ME}:${WORD}@host/a?sig=${SIG}", "http://host/a", False),
        ("sftp://me@host/a", "sftp://host/a", False),
        ("http://host:80/a@b.txt", "http://host:80/a@b.txt", False),
        ("abfs://container@account/a", "abfs://container@account/a", False),
        ("github://owner:repo@main/a", "github://owner:repo@main/a", False),
        ("hf://datasets/a/b@main/c", "hf://datasets/a/b@main/c", False),
        ("s3://bucket/part-?.txt", "s3://bucket/part-?.txt", False),
        ("no address: a@b?c", "no address: a@b?c", False),
    ],
)
def test_user_names_passwords_and_queries(address: str, to_show: str, refused: bool) -> None:
    assert shown(address) == to_show
    assert shown(to_show) == to_show
    what = secret_in(address)
    assert (what is not None) == refused
    assert "SECRET" not in str(what)


def test_variables_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", "SECRET")
    monkeypatch.delenv("NONE", raising=False)
    address = "http://me:${WORD}@host/a"
    assert filled(address) == "http://me:SECRET@host/a"
    assert unfilled(f"cannot open {filled(address)}", address) == f"cannot open {address}"
    with pytest.raises(ConfigError, match="the variable NONE of the environment is not set"):
        filled("https://host/${NONE}")
