"""The examples of a step, however it is cut up: equal hashes, and hashes that can differ."""

from dataclasses import replace

import pytest

from plmctl.corpus.store import TokenStore
from plmctl.training.data import step_digests
from tests.training.conftest import tiny_plan


@pytest.mark.parametrize("objective", ["mlm", "mlm+nsp", "mlm+sop", "clm"])
def test_examples_do_not_depend_on_processes_or_micro_batches(
    objective: str, store: TokenStore
) -> None:
    plan = tiny_plan(objective, store, steps=(4, 3))
    whole = list(step_digests(plan, 7, world=1, micro=16))
    assert len(set(whole)) == 7
    for world, micro in ((2, 16), (3, 2), (1, 5), (16, 1)):
        assert list(step_digests(plan, 7, world=world, micro=micro)) == whole
    assert list(step_digests(plan, 5, world=2, micro=3)) == whole[:5]


def test_another_seed_has_other_examples(store: TokenStore) -> None:
    plan = tiny_plan("clm", store, steps=(3,))
    ours = list(step_digests(plan, 3, world=1, micro=16))
    theirs = list(step_digests(replace(plan, seed=8), 3, world=1, micro=16))
    assert not set(ours) & set(theirs)
