import io
import os
import pty
import re
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plmctl.formatting import format_duration
from plmctl.run.display import Display, Pace

RUN = """
import time
from plmctl.run import display
display._PLAIN = 600.0  # a busy machine may take longer than the usual seconds
from plmctl.run.display import Display
from plmctl.run.display import work_progress
with work_progress("preparing") as progress:
    for done in range(0, 101, 20):
        progress(done * 10**6, 100 * 10**6)
with Display("pretraining bert", 30, quiet=False) as display:
    display.begin(10)
    display.tick(11, None)  # nobody has read a loss yet
    time.sleep(0.2)
    for step in range(11, 31):
        time.sleep(0.01)
        display.tick(step, 5.25, 2_000)
        speed = {"tokens_per_second": 31002.4, "data_wait": 0.1, "memory_gb": 0.75}
        terms = {"loss/mlm": 4.5, "loss/nsp": 0.75}
        display.log({"step": step, "loss": 5.25, **terms, "lr": 9e-4, **speed})
        if step == 20:
            display.log({"step": 20, "valid/loss": 4.5, "valid/accuracy/mlm": 0.25})
            time.sleep(0.2)
        if step == 21:
            time.sleep(0.3)  # time to draw it
"""


def test_pace_is_exact_at_a_steady_speed():
    pace = Pace(100)
    for second in range(11):
        pace.mark(float(second), 2 * second)
    assert pace.remaining() == 40.0  # 80 left at 2 a second


def test_pace_forgets_how_slow_the_beginning_was():
    pace = Pace(1000, window=60.0)
    pace.mark(0.0, 0)
    pace.mark(300.0, 1)  # five minutes of compiling
    for second in range(1, 121):
        pace.mark(300.0 + second, 1 + second)
    assert pace.remaining() == pytest.approx(1000 - 121)


def test_steps_slower_than_the_window_have_a_pace_too():
    pace = Pace(10, window=60.0)
    for step in range(4):
        pace.mark(step * 600.0, step)
    assert pace.remaining() == 7 * 600.0


@given(st.floats(0.01, 1e4), st.integers(2, 200))
def test_pace_of_any_steady_work(seconds, done):
    pace = Pace(1000)
    for step in range(done):
        pace.mark(step * seconds, step)
    assert pace.remaining() == pytest.approx((1001 - done) * seconds, rel=1e-6)


def test_before_the_first_step_nobody_knows_how_long_it_takes():
    pace = Pace(10)
    pace.mark(0.0, 0)
    assert format_duration(pace.remaining()) == "-"


def plain(**environment: str) -> str:
    """What stderr gets when it is a file."""
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize("environment", [{}, {"FORCE_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_file_gets_plain_lines_and_no_control_codes(environment):
    lines = plain(**environment).splitlines()
    assert lines[0] == "pretraining bert: 30 steps, continuing after step 10"
    loss = "loss 5.2500 (mlm 4.500, nsp 0.750)"
    known = f"{loss}  lr 9.00e-04  31,002 tok/s  10% waiting for data"
    assert lines[1].startswith(f"step 11/30  {known}  eta ")
    assert lines[3].startswith(f"step 30/30  {known}  in ")
    assert lines[2] == "step 20  validation  loss 4.500  accuracy/mlm 0.250"
    assert len(lines) == 4  # twenty records between two due lines: the first and the last are shown


def on_terminal(columns: str) -> str:
    """What a terminal of some width gets."""
    main, side = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", RUN],
        stderr=side,
        env={**os.environ, "COLUMNS": columns, "TERM": "xterm"},
    )
    os.close(side)
    seen = io.BytesIO()

    def read() -> None:
        while True:
            try:
                piece = os.read(main, 65536)
            except OSError:  # Linux's way of saying that the other side has closed
                return
            if not piece:
                return
            seen.write(piece)

    reader = threading.Thread(target=read)
    reader.start()
    assert process.wait(timeout=300) == 0
    reader.join(timeout=60)
    os.close(main)
    return seen.getvalue().decode()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("columns", ["60", "120", "140"])
def test_a_terminal_gets_a_bar_that_fits(columns):
    seen = on_terminal(columns)
    assert "100.0/100.0 MB" in seen
    assert "━" in seen
    assert "\x1b[2K" in seen or "\r" in seen  # redrawn in place
    assert "11/30  eta" in seen
    # Whole, at any width and on a busy machine.
    wide = int(columns) >= 110
    valid, rest = (r" \(valid 4\.500\)", "  10% waiting for data  0.8 GB") if wide else ("", "")
    assert re.search(rf"30/30  loss 5\.250{valid}  31,002 tok/s{rest}  in \d+:\d\d", seen)
    assert "validation  loss 4.500" in seen
    assert ("0.8 GB  saves at 2,000  eta" in seen) == (columns == "140")


def test_a_quiet_display_costs_and_shows_nothing(capsys):
    with Display("pretraining", 10, quiet=True) as display:
        display.begin(0)
        display.tick(10, 1.0)
        display.log({"step": 10, "loss": 1.0, "lr": 1.0, "valid/loss": 1.0})
    assert capsys.readouterr() == ("", "")
