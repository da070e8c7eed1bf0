"""Threads wait without spinning, unless somebody wants them to."""

import os
import sys

import pytest

from plmctl.__main__ import main

SET = ("OMP_WAIT_POLICY", "TRANSFORMERS_VERBOSITY", "HF_HUB_DISABLE_PROGRESS_BARS")


@pytest.mark.parametrize(("given", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_the_policy_of_waiting(
    given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*SET, "HF_DATASETS_DISABLE_PROGRESS_BARS"):
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)
    if given is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    monkeypatch.setattr(sys, "argv", ["plmctl", "--version"])
    with pytest.raises(SystemExit):
        main()
    assert os.environ["OMP_WAIT_POLICY"] == expected
