"""What the machine can do, as far as the choice of precision goes by it."""

import sys
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
# As Linux names them: x86's AVX-512 and tile instructions, and Arm's.
_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "avx10_bf16", "bf16"}


def native_bf16(cpuinfo: Path = _CPUINFO) -> bool | None:
    """Whether the CPU has instructions for products in bf16; None where that cannot be told.

    Without them PyTorch computes in bf16 all the same, element by element.

    Args:
        cpuinfo: Linux's description of its processors.
    """
    if sys.platform != "linux":
        return None
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), None)
    if flags is None:
        return None
    return not _BF16_FLAGS.isdisjoint(flags.lower().partition(":")[2].split())
