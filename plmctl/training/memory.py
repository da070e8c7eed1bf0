"""Running out of memory."""

import gc

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device, or the CPU's allocator, has no memory left."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def release_memory() -> None:
    """Give back what a step that did not fit has left."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
