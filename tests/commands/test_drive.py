"""A run on a mounted drive: no locks, no links, slow writes; names that come late; a quota."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.commands.test_faults import PLMCTL, records

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]

# Below the folder DRIVE: locks and links fail as they do on drives of FUSE, a rename takes a while
# and its new name is not there at once, and a flush to the disk takes a while.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int here(const char *path) {
  char whole[4096];
  const char *drive = getenv("DRIVE");
  if (!drive || !path) return 0;
  if (path[0] != '/') {
    if (!getcwd(whole, sizeof whole / 2)) return 0;
    strncat(whole, "/", 2); strncat(whole, path, 2000); path = whole;
  }
  return !strncmp(path, drive, strlen(drive));
}
static int handle_here(int file) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return here(path);
}
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
int link(const char *a, const char *b) {
  if (here(b)) { errno = EPERM; return -1; }
  return REAL(link)(a, b);
}
int linkat(int c, const char *a, int d, const char *b, int flags) {
  if (here(b)) { errno = EPERM; return -1; }
  return REAL(linkat)(c, a, d, b, flags);
}
int rename(const char *a, const char *b) {
  if (here(b)) usleep(150000);
  return REAL(rename)(a, b);
}
int fsync(int file) {
  if (handle_here(file)) usleep(20000);
  return REAL(fsync)(file);
}
static int locks(int file, int command, va_list list) {
  void *argument = va_arg(list, void *);
  if ((command == F_SETLK || command == F_SETLKW) && handle_here(file)) {
    errno = ENOSYS;
    return -1;
  }
  return REAL(fcntl)(file, command, argument);
}
int fcntl(int file, int command, ...) {
  va_list list; va_start(list, command);
  int result = locks(file, command, list);
  va_end(list);
  return result;
}
int fcntl64(int file, int command, ...) {
  va_list list; va_start(list, command);
  int result = locks(file, command, list);
  va_end(list);
  return result;
}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shim")
    (folder / "drive.c").write_text(SHIM)
    library = folder / "drive.so"
    line = ["cc", "-shared", "-fPIC", "-o", str(library), str(folder / "drive.c"), "-ldl"]
    subprocess.run(line, check=True, capture_output=True)
    return library


def start(shim: Path, drive: Path, *arguments: str) -> subprocess.Popen[str]:
    env = os.environ | {"OMP_NUM_THREADS": "1", "LD_PRELOAD": str(shim), "DRIVE": str(drive)}
    return subprocess.Popen([*PLMCTL, *arguments], stderr=subprocess.PIPE, text=True, env=env)


COMMAND = ["pretrain", "gpt2.yaml", "log.every=1", "checkpoint.every=3", "checkpoint.keep=2"]


def test_a_lost_machine_on_a_drive_continues_exactly(
    world: Path, shim: Path, tmp_path: Path
) -> None:
    subprocess.run([*PLMCTL, *COMMAND, "run=at-home"], check=True, capture_output=True)
    drive = tmp_path / "drive"
    drive.mkdir()
    line = [*COMMAND, f"run={drive}/run", f"data.store={drive}/stores"]
    first = start(shim, drive, *line)
    while not list(drive.glob("run/checkpoints/step-*")):
        assert first.poll() is None, first.communicate()[1]
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    _, err = first.communicate()
    assert "this file system has no locks" in err
    again = start(shim, drive, *line)
    _, err = again.communicate(timeout=600)
    assert again.returncode == 0, err
    assert "continuing after step" in err
    assert records(drive / "run") == records("at-home")
    weights = [Path(run) / "model/model.safetensors" for run in ("at-home", drive / "run")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_quota_is_one_message_and_more_room_is_enough(
    world: Path, shim: Path, tmp_path: Path
) -> None:
    drive = tmp_path / "quota"
    drive.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(drive)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        line = [*COMMAND, f"run={drive}/run"]
        _, err = (first := start(shim, drive, *line)).communicate(timeout=600)
        assert first.returncode == 1, err
        assert "No space left on device" in err
        assert "Traceback" not in err
        more = ["mount", "-o", "remount,size=50m", str(drive)]
        subprocess.run(more, check=True, capture_output=True)
        _, err = (again := start(shim, drive, *line)).communicate(timeout=600)
        assert again.returncode == 0, err
        if not Path("at-home").is_dir():
            subprocess.run([*PLMCTL, *COMMAND, "run=at-home"], check=True, capture_output=True)
        assert records(drive / "run") == records("at-home")
    finally:
        subprocess.run(["umount", str(drive)], check=True)
