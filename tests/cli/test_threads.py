"""Threads spin for a moment only, unless somebody wants them to."""

import os
import sys

import pytest

from plmctl.__main__ import main

THREADS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
QUIET = (
    "TRANSFORMERS_VERBOSITY",
    "HF_HUB_DISABLE_PROGRESS_BARS",
    "HF_DATASETS_DISABLE_PROGRESS_BARS",
)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ("PASSIVE", "3000")),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, ("ACTIVE", None)),
        ({"GOMP_SPINCOUNT": "7"}, ("PASSIVE", "7")),
    ],
)
def test_the_policy_of_waiting(
    variables: dict[str, str], expected: tuple[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*THREADS, *QUIET):
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["plmctl", "--version"])
    with pytest.raises(SystemExit):
        main()
    assert (os.environ["OMP_WAIT_POLICY"], os.environ.get("GOMP_SPINCOUNT")) == expected
