"""Side effects of a forward: the state of random numbers, and buffers."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from memlab._paging.torch_private import versions_of


class RandomState:
    """The random states of PyTorch on the CPU and on some devices, of Python and of NumPy."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._devices = [device for device in devices if device.type == "cuda"]
        self._cpu = torch.get_rng_state()
        self._cuda = [torch.cuda.get_rng_state(device) for device in self._devices]
        #: The states of Python and NumPy.
        self.host = (random.getstate(), _numpy_state())

    def restore(self) -> None:
        """Restores the states, so that the same numbers are drawn again."""
        torch.set_rng_state(self._cpu)
        for device, state in zip(self._devices, self._cuda, strict=True):
            torch.cuda.set_rng_state(state, device)
        python, numpy = self.host
        random.setstate(python)
        if numpy is not None:
            kind, key, *rest = numpy
            module = sys.modules["numpy"]
            module.random.set_state((kind, module.frombuffer(key, module.uint32), *rest))

    @staticmethod
    def seed(seed: int, devices: Iterable[torch.device]) -> None:
        """Seeds all generators that a RandomState covers."""
        torch.default_generator.manual_seed(seed)
        for device in devices:
            if device.type == "cuda":
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
        RandomState.seed_host(seed)

    @staticmethod
    def seed_host(seed: int) -> None:
        """Seeds Python's random numbers and NumPy's."""
        random.seed(seed)
        if _numpy_state() is not None:
            sys.modules["numpy"].random.seed(seed % 2**32)

    def digest(self) -> bytes:
        """A hash of the states of PyTorch."""
        return hashlib.blake2b(b"".join(state.numpy().tobytes() for state in [self._cpu, *self._cuda])).digest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RandomState):
            return NotImplemented
        pairs = zip([self._cpu, *self._cuda], [other._cpu, *other._cuda], strict=True)
        return self.host == other.host and all(torch.equal(one, another) for one, another in pairs)

    __hash__ = None  # type: ignore[assignment]


def _numpy_state() -> tuple[Any, ...] | None:
    """NumPy's state, with its array as bytes; None: NumPy is not imported, or its generator is not the default kind."""
    numpy = sys.modules.get("numpy")
    state = None if numpy is None else numpy.random.get_state(legacy=True)
    return (state[0], state[1].tobytes(), *state[2:]) if isinstance(state, tuple) else None


class Autocast:
    """The current autocast, for use in another thread or later."""

    def __init__(self) -> None:
        self._modes = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            for kind in ("cpu", "cuda")
            if kind == "cpu" or torch.cuda.is_available()
        ]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Runs a block with this autocast. Clears the cache of cast weights: older versions of PyTorch (2.4) would reuse
        weights that were cast without a graph, and lose their gradients."""
        torch.clear_autocast_cache()
        with ExitStack() as stack:
            for kind, dtype, enabled in self._modes:
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
            yield

    @staticmethod
    @contextmanager
    def off() -> Iterator[None]:
        """Runs a block without autocast, as PyTorch recommends for backward."""
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Runs a block with the model in evaluation mode and without gradients. Restores modes and random numbers."""
    training = [module for module in model.modules() if module.training]
    random = RandomState({parameter.device for parameter in model.parameters()})
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
        random.restore()


# Buffers that a model's forward writes, with the training modes of its modules, by model.
_WRITTEN: WeakKeyDictionary[nn.Module, tuple[list[bool], list[str]]] = WeakKeyDictionary()


class Buffers:
    """A model's buffers around the pieces of a batch: each piece finds the values from before the batch."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._training = [module.training for module in model.modules()]
        named = dict(model.named_buffers())
        training, known = _WRITTEN.get(model, (None, []))
        is_known = training == self._training
        self._named = {name: named[name] for name in known if name in named} if is_known else named
        self._versions = versions_of(list(self._named.values()))
        self._before = {name: buffer.detach().clone() for name, buffer in self._named.items()}
        self._after: dict[str, Tensor] | None = None

    def rewind(self) -> str | None:
        """Restores the buffers after a piece, for the next. Returns the name of a buffer that depends on the samples, since
        its value differs from that after the first piece; None: none."""
        if self._after is None:
            versions = versions_of(list(self._named.values()))
            written = [
                name for name, before, after in zip(self._named, self._versions, versions, strict=True) if before != after
            ]
            if _WRITTEN.get(self._model, (None,))[0] != self._training:
                _WRITTEN[self._model] = (self._training, written)
            self._named = {name: self._named[name] for name in written}
            self._before = {name: self._before[name] for name in written}
            self.keep_after()
            different = None
        else:
            pairs = ((name, buffer, self._after[name]) for name, buffer in self._named.items())
            different = next((name for name, buffer, after in pairs if not same_values(buffer, after)), None)
        self.set_before()
        return different

    def keep_after(self) -> None:
        """Takes the current values as those after the batch."""
        self._after = {name: buffer.detach().clone() for name, buffer in self._named.items()}

    def set_before(self) -> None:
        """Restores the values from before the batch."""
        self._set(self._before)

    def set_after(self) -> None:
        """Sets the values after the batch: those that the first piece left, if they do not depend on the samples."""
        if self._after is not None:
            self._set(self._after)

    def _set(self, values: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, buffer in self._named.items():
                buffer.copy_(values[name])


def same_values(one: Tensor, other: Tensor, *, is_exact: bool = False) -> bool:
    """True if two tensors are equal: exactly, or with `is_exact=False` up to rounding."""
    if one.shape != other.shape:
        return False
    if is_exact and one.is_floating_point():
        one, other = one.nan_to_num(), other.nan_to_num()
    # Writes into zeroed memory: on a simulated card, whose kernels compute nothing, the result stays False.
    is_other = torch.zeros((), dtype=torch.bool, device=one.device)
    is_rounded = one.is_floating_point() and not is_exact
    different = ~torch.isclose(one, other, equal_nan=True) if is_rounded else one != other
    return not bool(torch.any(different, out=is_other))
