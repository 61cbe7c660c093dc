"""The attributes that memlab sets on a model's modules and removes again: wrapped ``forward`` methods, guards, the plan.

A module gets an instance attribute ``forward`` (as accelerate does), not a wrapper module or a hook. PyTorch takes no fast
path for modules with hooks, and the last bits of results would differ. Copies and pickles omit the patch, so a copy of a
paged model is an ordinary model.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn

from memlab import _native
from memlab._paging.other_hooks import ACCELERATE, ExecutionDevice
from memlab._paging.torch_private import (
    APPLY,
    SAVE_TO_STATE_DICT,
    TENSOR_DICTS,
    exclude_from_compile,
    mark_excluded,
    version_of,
)

MARK = "_memlab_plan"  # Attribute of the outermost module that holds the mark.
_ABSENT = object()


class Mark:
    """Marks a paged or chunked model: its plan, and the function that ends paging."""

    def __init__(self, model: nn.Module, plan: Any, release: Callable[[], None]) -> None:
        self.model = weakref.ref(model)
        self.plan = plan
        self.release = release

    def __deepcopy__(self, memo: dict[int, Any]) -> Mark:
        return self  # In a copy of the model it still names the original, and so does not mark the copy.


class InPlaceOfMethod:
    """Object that replaces a method in a module's attribute. In a copy of the module it becomes the method again.

    Most copies omit it (see `ModulePatch.state`). Copies of parametrized modules contain all attributes.
    """

    module: weakref.ref[nn.Module]
    name: str

    def stand_in(self, module: nn.Module, name: str, function: Callable[..., Any]) -> None:
        """Makes it look like `function`: programs (transformers among them) read the signature of a forward."""
        self.module = weakref.ref(module)
        self.name = name
        functools.update_wrapper(cast("Callable[..., Any]", self), function)
        mark_excluded(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        owner = memo.get(id(self.module()))
        return MethodType(getattr(type(owner), self.name), owner) if owner is not None else self

    def __reduce__(self) -> Any:
        raise TypeError("memlab's part of a paged module cannot be pickled by itself: pickle the model")


class PatchedMethod(InPlaceOfMethod, functools.partial[Any]):
    """A function in place of a method. A partial, because it is called without a Python frame."""

    def __new__(cls, _module: nn.Module, _name: str, function: Callable[..., Any]) -> PatchedMethod:
        return super().__new__(cls, function)

    def __init__(self, module: nn.Module, name: str, function: Callable[..., Any]) -> None:
        self.stand_in(module, name, function)


class PatchedForward(InPlaceOfMethod, _native.WatchedForward):
    """A watched forward in place of a module's own. One native object: models call hundreds of modules in milliseconds."""


class ModulePatch:
    """Attributes that memlab has set on a model's modules."""

    def __init__(self, model: nn.Module, what: str, originals: Callable[[nn.Module], dict[str, Any]]) -> None:
        self.model = model
        self.what = what  # "paged", "chunked": for messages.
        self.originals = originals  # A module's dictionaries of tensors, as they are outside of forwards.
        self.attributes: dict[nn.Module, dict[str, tuple[Any, Any]]] = {}  # By name: the value before, memlab's value.
        self.residents: set[int] = set()  # Ids of the tensors that stay on the device.
        self.host_copies: dict[int, tuple[weakref.ref[Tensor], int]] = {}  # By id: a copy, and the copied version.

    def guard(self) -> None:
        """Makes every module refuse moves and casts, and keeps memlab out of copies, pickles and state dictionaries."""
        for module in self.model.modules():
            self._set(module, APPLY, PatchedMethod(module, APPLY, self._refuse))
            self._set(module, "__getstate__", PatchedMethod(module, "__getstate__", functools.partial(self.state, module)))
            save = functools.partial(self._save_to_state_dict, module)
            self._set(module, SAVE_TO_STATE_DICT, PatchedMethod(module, SAVE_TO_STATE_DICT, save))

    def mark(self, plan: Any, release: Callable[[], None], device: torch.device) -> None:
        """Stores the plan and the device on the model.

        The plan is also its attribute `memlab`, unless that name is taken.
        """
        self._set(self.model, MARK, Mark(self.model, plan, release))
        self._set(self.model, ACCELERATE, ExecutionDevice(device))
        if not hasattr(self.model, "memlab"):
            self._set(self.model, "memlab", plan)

    def wrap(
        self, module: nn.Module, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]], name: str = "forward"
    ) -> None:
        """Puts `wrapper(forward)` in place of `module.forward`, or of another method."""
        original = getattr(module, name)
        wrapped = wrapper(original)
        if isinstance(wrapped, FunctionType):
            exclude_from_compile(wrapped)
        patched = wrapped if isinstance(wrapped, InPlaceOfMethod) else PatchedMethod(module, name, wrapped)
        patched.stand_in(module, name, original)
        self._set(module, name, patched)

    def make_no_op(self, module: nn.Module, name: str) -> None:
        """Replaces a method by a function that does nothing."""
        self._set(module, name, PatchedMethod(module, name, lambda: None))

    def unwrap(self, module: nn.Module) -> None:
        self._restore(module, "forward")

    def release(self) -> None:
        """Removes all attributes again."""
        for module, names in list(self.attributes.items()):
            for name in list(names):
                self._restore(module, name)

    def _set(self, module: nn.Module, name: str, value: Any) -> None:
        before, _ = self.attributes.setdefault(module, {}).get(name, (module.__dict__.get(name, _ABSENT), None))
        self.attributes[module][name] = before, value
        module.__dict__[name] = value

    def _restore(self, module: nn.Module, name: str) -> None:
        before, ours = self.attributes[module].pop(name, (None, None))
        if ours is None or module.__dict__.get(name) is not ours:
            return  # The program has replaced the attribute since.
        if before is _ABSENT:
            module.__dict__.pop(name, None)
        else:
            module.__dict__[name] = before

    def _refuse(self, *_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError(
            f"this model is {self.what} by memlab: it runs on its device already, and its weights cannot be moved or cast. "
            "Give it back with memlab.unpage(model) first."
        )

    def _save_to_state_dict(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        """Writes `state_dict` of one module with the true values, even during a forward."""
        twin = object.__new__(type(module))
        twin.__dict__.update(module.__dict__)
        twin.__dict__.update(self.originals(module))
        getattr(type(module), SAVE_TO_STATE_DICT)(twin, *args, **kwargs)

    def state(self, module: nn.Module) -> Any:
        """Returns the state for pickle and copy: the module as it would be without memlab."""
        method = getattr(type(module), "__getstate__", None)
        state = module.__dict__
        if method is not None and method is not getattr(object, "__getstate__", None):
            state = method(module)
            if not isinstance(state, dict) or "_parameters" not in state:
                return state
        state = state | self.originals(module)
        for name, (before, ours) in self.attributes.get(module, {}).items():
            if state.get(name) is ours:
                state[name] = before
                if before is _ABSENT:
                    del state[name]
        for attribute in TENSOR_DICTS:
            state[attribute] = {name: self._on_host(tensor) for name, tensor in state[attribute].items()}
        return state

    def _on_host(self, tensor: Any) -> Any:
        """Returns a copy of a resident tensor in host memory. All other tensors are already on the host."""
        if id(tensor) not in self.residents or tensor.device.type == "cpu":
            return tensor
        # Modules that share a tensor share its copy. While the model is copied or pickled, the copier keeps it alive.
        known, version = self.host_copies.get(id(tensor), (None, 0))
        copy: Tensor | None = known() if known is not None else None
        if copy is None or version != version_of(tensor):
            copy = tensor.detach().cpu()
            if isinstance(tensor, nn.Parameter):
                copy = nn.Parameter(copy, requires_grad=tensor.requires_grad)
            self.host_copies[id(tensor)] = weakref.ref(copy), version_of(tensor)
        return copy


def mark_on(model: nn.Module) -> Mark | None:
    """Returns the mark of a model that was itself passed to `page` or `chunk`."""
    mark = model.__dict__.get(MARK)
    return mark if isinstance(mark, Mark) and mark.model() is model else None


def is_patched(model: nn.Module) -> bool:
    """Returns True if a model, a part of it, or a model around it is paged or chunked."""
    for module in model.modules():
        guard = module.__dict__.get(APPLY)
        if isinstance(guard, PatchedMethod) and guard.module() is module:
            return True
    return False
