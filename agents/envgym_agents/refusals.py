"""Which errors of a model's forward pass say that the model cannot take what it was given, and which say more.

A short cut that is tried on a model is left alone where the model has no such argument, or its tensors do not fit.
Anything else (no memory left, a device that failed, a kernel's own error) is no property of the model, and ends
what was tried.
"""

__all__ = ["says_cannot"]

_UNFIT = ("size of tensor", "sizes of tensors", "shape", "expanded size", "dimension", "must match", "broadcast")
_MORE = ("memory", "alloc", "cuda error", "nccl", "cublas")


def says_cannot(error: Exception) -> bool:
    """Whether an error is the model's refusal of an input: a missing argument, a value, tensors that do not fit."""
    if isinstance(error, TypeError | ValueError | IndexError):
        return True
    told = str(error).lower()
    unfit = any(word in told for word in _UNFIT) and not any(word in told for word in _MORE)
    return isinstance(error, RuntimeError) and unfit
