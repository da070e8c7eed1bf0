"""The judge of lost and stuck processes: observations and their verdicts."""

import pytest

from plmctl.training.judge import (
    BUILDING,
    COMPUTING,
    CONNECTING,
    COUNTING,
    FINISHING,
    LOADING,
    PREPARING,
    SAVING,
    Observation,
    Peer,
    Report,
    Stop,
    Verdict,
    Work,
    judge,
    message,
)

TIMEOUT = 100.0  # a report every 2 s; lost after 50 s; a limit of 96 s


def seen(work: Work, seconds: float, *others: Peer, **more: object) -> Observation:
    peers = dict(enumerate(others, 1))
    return Observation(TIMEOUT, work, 7, seconds, peers=peers, **more)  # type: ignore[arg-type]


def heard(*, late: bool = False, unheard: float = 1.0, work: Work = COMPUTING) -> Peer:
    return Peer(Report(9, "b", work.name, 7, 97.0, late), unheard)


LOST = heard(unheard=51)
FAILED, HUNG = Stop(1, "b", "no text", 3), Stop(1, "b", "who is stuck", 1, stuck=True)


@pytest.mark.parametrize(
    ("observation", "verdict"),
    [
        # One process: only a batch that never comes ends the run.
        (seen(COMPUTING, 1000), Verdict.FINE),
        (seen(LOADING, 95), Verdict.FINE),
        (seen(LOADING, 97), Verdict.NO_BATCH),
        (seen(LOADING, 97, busy=40.0), Verdict.BUSY),
        (seen(LOADING, 97, busy=4.0), Verdict.NO_BATCH),
        # Several: as long as one of them works, the others wait.
        (seen(COMPUTING, 95, heard()), Verdict.FINE),
        (seen(COMPUTING, 97, heard()), Verdict.LATE),
        (seen(COMPUTING, 97, heard(late=True)), Verdict.STUCK),
        (seen(COMPUTING, 97, heard(late=True), heard(work=SAVING)), Verdict.LATE),
        (seen(LOADING, 97, heard(late=True), busy=40.0), Verdict.BUSY),
        (seen(SAVING, 97, heard(late=True)), Verdict.FINE),  # six limits
        (seen(PREPARING, 10_000, heard(late=True)), Verdict.FINE),  # no limit
        (seen(COUNTING, 10_000, heard(work=COUNTING)), Verdict.FINE),
        # One is lost: nobody waits for longer than the time limit, whatever the work's own is.
        (seen(COMPUTING, 95, LOST), Verdict.FINE),
        (seen(COMPUTING, 97, LOST), Verdict.LOST),
        (seen(BUILDING, 97, heard(), LOST), Verdict.LOST),
        (seen(PREPARING, 97, LOST), Verdict.LOST),
        (seen(FINISHING, 10_000, LOST), Verdict.FINE),  # it may have ended
        # Another process has ended the run: this one has a few seconds to fail by itself.
        (seen(COMPUTING, 97, LOST, stop=FAILED), Verdict.FINE),
        (seen(COMPUTING, 0, heard(), stop=FAILED, since_stop=6.0), Verdict.ENDED),
        (seen(COMPUTING, 0, heard(), stop=HUNG), Verdict.ENDED),
    ],
)
def test_the_verdict(observation: Observation, verdict: Verdict) -> None:
    assert judge(observation) is verdict


@pytest.mark.parametrize(
    ("observation", "parts"),
    [
        (seen(LOADING, 97), ["step 7: no batch for 100 s", "compute.workers=0"]),
        (
            seen(COMPUTING, 97, LOST),
            ["process 1 on b is lost: nothing heard from it for 51 s; the last was: computing"],
        ),
        (
            seen(COMPUTING, 97, Peer(unheard=51)),
            ["process 1 on an unknown machine is lost: nothing heard from it for 51 s\n"],
        ),
        (
            seen(COMPUTING, 97, heard(late=True, work=LOADING)),
            ["process 1 on b is stuck: waiting for the batch, step 7 for 97 s"],
        ),
        (
            seen(COMPUTING, 97, heard(late=True)),
            ["no process makes progress for 100 s", "process 0 on a: computing, step 7 for 97 s"],
        ),
        (seen(CONNECTING, 97, *[LOST] * 9), ["and 5 more", "GLOO_SOCKET_IFNAME"]),
    ],
)
def test_the_message_names_who_is_waited_for(observation: Observation, parts: list[str]) -> None:
    text = message(judge(observation), observation, 0, "a", machines=True)
    assert all(part in text for part in [*parts, "on every machine"]), text
