"""Several commands as stages of one: each in a separate process, with its output in a log."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from plmctl.config.tokenizer import TokenizerConfig
from plmctl.errors import PlmError, Preempted
from plmctl.files import writing
from plmctl.run.configs import EvalConfig, FinetuneConfig, PretrainConfig
from plmctl.run.display import say
from plmctl.run.folder import is_finished

StageConfig = TokenizerConfig | PretrainConfig | FinetuneConfig | EvalConfig


@dataclass(frozen=True)
class Stage:
    """A run of another command.

    Attributes:
        of: What it is a stage of, such as a model; may be empty.
        words: The command, its config and overrides, as a user would type them.
        path: The file of the config.
    """

    of: str
    name: str
    words: tuple[str, ...]
    path: Path
    config: StageConfig

    @property
    def run(self) -> Path:
        """Its run folder."""
        return Path(self.config.run)

    @property
    def log(self) -> Path:
        """The file of its output, in ``logs/`` beside its run."""
        return self.run.parent / "logs" / f"{self.run.name}.log"

    def is_finished(self) -> bool:
        """Whether the run is finished."""
        return is_finished(self.run)


class StageProcess:
    """A stage at work.

    Args:
        threads: Of its CPU work; None: as many as it takes by itself.
    """

    def __init__(self, stage: Stage, *, fresh: bool, threads: int | None = None) -> None:
        self.stage = stage
        command, _, *keys = stage.words
        variables = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        shown = [*(f"{name}={value}" for name, value in variables.items()), "plmctl"]
        self._began = time.monotonic()
        with writing(stage.log):
            stage.log.parent.mkdir(parents=True, exist_ok=True)
            with stage.log.open("ab") as log:
                self._start = log.tell()  # where its output begins
                log.write(f"$ {' '.join(shown)} {shlex.join(stage.words)}\n".encode())
                log.flush()
                # The config of the plan, also where the working directory has one of that name.
                line = [sys.executable, "-m", "plmctl", command, str(stage.path), *keys]
                self._process = subprocess.Popen(
                    line + ["--fresh"] * fresh,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=os.environ | variables,
                    process_group=0,  # Ctrl-C reaches only this process, which passes it on
                )

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return time.monotonic() - self._began

    def is_running(self) -> bool:
        """Whether it is at work."""
        return self._process.poll() is None

    def check(self, *, verbose: bool) -> None:
        """Raise the error of a stage that has failed, with its exit code.

        Args:
            verbose: Print what it has printed.

        Raises:
            PlmError: It failed; or, as ``Preempted``, it was stopped.
        """
        stage, code = self.stage, self._process.returncode
        printed = stage.log.read_bytes()[self._start :].decode("utf-8", "replace").strip()
        for line in printed.splitlines() if verbose else ():
            say(line)
        if code == 0:
            return
        _, _, text = printed.rpartition("\nplmctl: ")
        hint = f"all that it printed: {stage.log}"
        if code < 0:
            name = signal.Signals(-code).name
            why = ", perhaps because memory ran out" if -code == signal.SIGKILL else ""
            text, code = f"was killed by {name}{why}", 128 - code
        message, *more = (text or printed.rpartition("\n")[2]).split("\n")
        error = (Preempted if code == Preempted.exit_code else PlmError)(
            f"{f'{stage.of} {stage.name}'.strip()}: {message}",
            "\n  ".join([*(line.strip() for line in more), hint]),
        )
        error.exit_code = code
        raise error

    def terminate(self) -> None:
        """Ask it to stop; it saves what it has."""
        self._process.terminate()

    def wait(self) -> None:
        """Until it has ended."""
        self._process.wait()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()


@contextmanager
def ending(at_work: list[StageProcess]) -> Iterator[None]:
    """Stop what is left at work in the end; it saves what it has."""
    try:
        yield
    finally:
        try:
            for process in at_work:
                process.terminate()
            for process in at_work:
                process.wait()
        except BaseException:  # a second Ctrl-C
            for process in at_work:
                process.kill()
            raise
