"""``memlab.determinize`` and comparisons of networks: infinitybatch's tools for reproducible runs."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

__all__ = ["determinize", "first_difference", "is_equal_network", "is_equal_with_error"]


def determinize(seed: int | None = None, be_deterministic: bool = True) -> None:
    """Seeds Python's, NumPy's and PyTorch's random numbers, and makes PyTorch compute the same results each time.

    Args:
        seed: None: 0 if runs are to be deterministic, otherwise a new random seed.
        be_deterministic: use deterministic kernels only (``torch.use_deterministic_algorithms``, which raises in operations
            that have none), and do not search for fast ones.

    cuBLAS is deterministic only if ``CUBLAS_WORKSPACE_CONFIG=:4096:8`` was set before the program began; otherwise PyTorch
    reports it.

    >>> import memlab, torch
    >>> memlab.determinize(3, be_deterministic=False)
    >>> one = torch.rand(2)
    >>> memlab.determinize(3, be_deterministic=False)
    >>> torch.equal(torch.rand(2), one)
    True
    """
    if seed is None:
        seed = 0 if be_deterministic else torch.seed() % 2**32
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = _numpy()
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    torch.use_deterministic_algorithms(be_deterministic)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = be_deterministic


def is_equal_network(one: nn.Module, other: nn.Module) -> bool:
    """Returns True if two networks have bit-identical parameters and buffers: a NaN equals its copy, and 0.0 not -0.0.

    >>> import memlab, torch
    >>> memlab.is_equal_network(torch.nn.Linear(2, 2), torch.nn.Linear(2, 3))
    False
    """
    return first_difference(one, other) is None


def first_difference(one: nn.Module, other: nn.Module, error: float = 0.0) -> str | None:
    """Returns the name of the first parameter or buffer that differs by more than `error`; None: no difference.

    A name that only one network has, another shape and another type are differences. With an `error` of 0, different bits
    are too (a NaN equals its copy, and 0.0 not -0.0). With a larger one, NaN equals nothing.

    >>> import memlab, torch
    >>> one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    >>> _ = other.load_state_dict(one.state_dict())
    >>> print(memlab.first_difference(one, other))
    None
    >>> _ = torch.nn.init.zeros_(other.bias)
    >>> memlab.first_difference(one, other)
    'bias'
    """
    ours, theirs = one.state_dict(), other.state_dict()
    for name in dict.fromkeys([*ours, *theirs]):
        if name not in ours or name not in theirs:
            return name
        mine, its = ours[name], theirs[name]
        both_tensors = isinstance(mine, torch.Tensor) and isinstance(its, torch.Tensor)
        if not (_same_kind(mine, its, error) if both_tensors else mine == its):
            return name
    return None


def is_equal_with_error(one: Any, other: Any, error: float | bool = 1e-7, detach: float | bool = True) -> bool:
    """Returns True if two tensors, numbers or networks differ by at most `error` in each element. NaN equals nothing.

    Args:
        one: a tensor, a number, a list of them, or a network.
        other: the same.
        error: the largest allowed distance. True and False are `detach`, which is third in infinitybatch.
        detach: has no effect: values are compared, never their graphs. If `error` is a bool, a number here is the error.

    >>> import memlab, torch
    >>> memlab.is_equal_with_error(torch.tensor(1.0), torch.tensor(1.0 + 1e-3))
    False
    >>> memlab.is_equal_with_error(torch.ones(2), torch.ones(2) + 1e-3, error=0.01)
    True
    """
    if isinstance(error, bool):
        error = 1e-7 if isinstance(detach, bool) else detach
    if isinstance(one, nn.Module):
        return first_difference(one, other, error) is None
    return _same(torch.as_tensor(one), torch.as_tensor(other), error)


def _same_kind(one: torch.Tensor, other: torch.Tensor, error: float) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if error > 0 or one.layout != torch.strided or other.layout != torch.strided:
        return _same(one, other, error)
    return torch.equal(_bytes(one), _bytes(other.to(one.device)))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous().view(torch.uint8)


def _same(one: torch.Tensor, other: torch.Tensor, error: float) -> bool:
    if one.shape != other.shape:
        return False
    other = other.to(one.device)
    wide = torch.complex128 if one.is_complex() or other.is_complex() else torch.float64
    # Equal infinities have no distance.
    return bool(((one == other) | ((one.to(wide) - other.to(wide)).abs() <= error)).all())


def _numpy() -> Any:
    """NumPy, if it is installed."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy
