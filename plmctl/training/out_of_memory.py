"""Whether an error says that there is no memory left, and how to free some."""

from __future__ import annotations

import gc

import torch

_NO_MEMORY = (
    "out of memory",  # CUDA, HIP and Triton, NCCL with a last error of CUDA, Apple's GPUs
    "alloc_failed",  # CUBLAS_STATUS_ALLOC_FAILED; cuDNN, cuSOLVER, cuFFT and hipBLAS have the like
    "defaultcpuallocator",
    "can't allocate memory",
    "not enough memory",  # Windows
    "bad_alloc",
)
"""What libraries say, in small letters. PyTorch's allocator has a class of error; what a handle, a
kernel or a communicator allocates past it is an error of its library, in words."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device, or the CPU's allocator, has no memory left.

    cuDNN's NOT_SUPPORTED and INTERNAL_ERROR can have that cause too, and others: they are not.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower() if isinstance(error, RuntimeError) else ""
    return any(words in text for words in _NO_MEMORY)


def release_memory() -> None:
    """Free the memory of a step that did not fit."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()
