"""Releases gradients when the optimizer's step has ended, and finds programs that would read them.

Embedded in libmemlab.so and run before fit.py, in the same namespace.
"""

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fit_state import _allow_swaps, _before_update, _ParameterRef, _parameters


# PyTorch reads and sets gradients there to carry them along: when it moves, shards, copies or compiles parameters.
_CARRYING = (
    "torch.nn.modules.module",
    "torch._tensor",
    "torch._dynamo",
    "torch._subclasses",
    "torch._functorch",
    "torch.fx",
    "torch.distributed.fsdp",
)


def _is_carrying(frame):
    # The copy of a tensor that is no parameter has a copy of the gradient, which the program may read.
    return frame.f_globals.get("__name__", "").startswith(_CARRYING) and frame.f_code.co_name != "__deepcopy__"


class _EarlyGradients:
    """Releases gradients after each step, and watches them until the program drops them itself.

    Only if it reads them before, do they need to exist after the step. In a rehearsal that is reported once. Later, it is an
    error: the program would compute something else without one. Reads are seen by a property in the parameters' classes.
    """

    def __init__(self, native, torch, optimizers, rehearses):
        self.native = native
        self.rehearses = rehearses
        self.kept: dict = {}  # Parameters whose gradients the program has not dropped since a step: id -> weak reference.
        self.of_thread = threading.local()
        self.is_over = False
        self.watched: set = set()  # Classes that have the property now.
        self.lock = threading.RLock()  # Threads may train different models.
        self.original = original = torch.Tensor.grad
        early = self

        def get(tensor):
            released = early.kept.get(id(tensor))
            is_read = released is not None and released() is tensor and not early.is_in_zero_grad()
            if is_read and not _is_carrying(sys._getframe(1)):
                early.refuse("the program reads them after the step")
            return original.__get__(tensor)

        def put(tensor, gradient):
            if not _is_carrying(sys._getframe(1)):
                early.drop([id(tensor)])
            original.__set__(tensor, gradient)

        def delete(tensor):
            if not _is_carrying(sys._getframe(1)):
                early.drop([id(tensor)])
            original.__delete__(tensor)

        self.property: Any = property(get, put, delete)
        _allow_swaps(torch)
        optimizers.register_optimizer_step_pre_hook(self.before_step)
        optimizers.register_optimizer_step_post_hook(self.after_step)
        self.wrap(optimizers.Optimizer, _parameters)
        self.wrap(torch.nn.Module, lambda it: it.parameters())

    def is_in_zero_grad(self):
        return getattr(self.of_thread, "is_in_zero_grad", False)

    def refuse(self, why):
        if not self.rehearses:
            self.drop(list(self.kept))
            raise RuntimeError(
                f"memlab --fit: gradients were released when the optimizer's step ended, but {why}. Run with "
                "--fit-without gradients"
            )
        if not self.is_over:
            self.is_over = True
            self.native.warn(f"--fit: gradients are not released early: {why}")

    def kept_of(self, parameters):
        if not self.kept:
            return []
        pairs = [(parameter, self.kept.get(id(parameter))) for parameter in parameters]
        return [id(parameter) for parameter, kept in pairs if kept is not None and kept() is parameter]

    def drop(self, ids):
        """Notes that the program has dropped these gradients."""
        with self.lock:
            for one in ids:
                self.kept.pop(one, None)
            if not self.kept:
                for kind in self.watched:
                    del kind.grad
                self.watched.clear()

    def wrap(self, kind, parameters):
        original = kind.zero_grad
        early = self

        @functools.wraps(original)
        def zero_grad(it, set_to_none=True):
            mine = early.kept_of(parameters(it))
            outer = early.is_in_zero_grad()
            early.of_thread.is_in_zero_grad = True
            try:
                return original(it, set_to_none)
            finally:
                early.of_thread.is_in_zero_grad = outer
                early.drop(mine)
                if mine and not set_to_none:
                    early.refuse("the program sets them to zero")

        kind.zero_grad = zero_grad

    def before_step(self, optimizer, *given):
        """Called before an optimizer's step: the program has dropped the gradients of the one before, or it needs them."""
        return _before_update(given, functools.partial(self.before_update, optimizer))

    def before_update(self, optimizer):
        mine = self.kept_of(_parameters(optimizer))
        self.drop(mine)
        if mine:
            self.refuse("a later step uses them")

    def after_step(self, optimizer, *_):
        with self.lock:
            self.drop([one for one, kept in self.kept.items() if kept() is None])
            for parameter in _parameters(optimizer):
                kind = type(parameter)
                known = next((base.__dict__["grad"] for base in kind.__mro__ if "grad" in base.__dict__), None)
                # A class with another property may need the gradient.
                if (known is self.original or known is self.property) and self.original.__get__(parameter) is not None:
                    self.original.__set__(parameter, None)
                    self.kept[id(parameter)] = _ParameterRef(parameter)
                    if kind not in self.watched:
                        self.watched.add(kind)
                        kind.grad = self.property

    for _hook in (before_step, after_step):
        _hook._torchdynamo_disable = True  # type: ignore[attr-defined]
