"""How a model is taken over and given back: its modules' ``forward`` wrapped, the rest of it untouched.

No wrapper modules and no hooks: a module gets an instance attribute ``forward`` (what accelerate does too), which
PyTorch's fast paths, that look for hooks, do not notice. What is put on a module for this is left out when it is
pickled or copied: a copy of a paged model is an ordinary model.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from memlab.plan import Plan
from memlab._paging.paged_tensor import KINDS, version_of

MARK = "_memlab_plan"  # The attribute of the outermost module that holds the plan.
_ABSENT = object()


class Replaced(functools.partial[Any]):
    """What stands in a module's attribute for its method. In a copy of the module it becomes the method again.

    Most copies do not take it along (see `Takeover.state`); those of parametrized modules copy all attributes. A partial
    is called without a step in Python: some models call hundreds of modules in a few milliseconds.
    """

    def __new__(cls, _module: nn.Module, _name: str, function: Callable[..., Any]) -> Replaced:
        return super().__new__(cls, function)

    def __init__(self, module: nn.Module, name: str, function: Callable[..., Any]) -> None:
        self.module = weakref.ref(module)
        self.name = name
        functools.update_wrapper(self, function)
        # The module's own signature is what people (transformers among them) ask for.
        self._torchdynamo_disable = True

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        owner = memo.get(id(self.module()))
        return MethodType(getattr(type(owner), self.name), owner) if owner is not None else self

    def __reduce__(self) -> Any:
        raise TypeError("memlab's part of a paged module cannot be pickled by itself: pickle the model")


class Takeover:
    """The attributes that were put on a model's modules, so that they can be taken off again."""

    def __init__(self, model: nn.Module, what: str, outside: Callable[[nn.Module], dict[str, Any]]) -> None:
        self.model = model
        self.what = what  # "paged", "chunked": for messages.
        self.outside = outside  # A module's dictionaries as they are outside of forwards.
        self.put: dict[nn.Module, dict[str, tuple[Any, Any]]] = {}  # What was there before, and what was put there.
        self.kept: set[int] = set()  # Tensors that were moved to the device, by their ids.
        self.copies: dict[int, tuple[weakref.ref[Tensor], int]] = {}  # Of those, on the host, and of which version.

    def guard(self) -> None:
        """Makes every module refuse to be moved or cast, and be copied and saved as what it was."""
        for module in self.model.modules():
            self._set(module, "_apply", Replaced(module, "_apply", self._refuse))
            self._set(module, "__getstate__", Replaced(module, "__getstate__", functools.partial(self.state, module)))
            save = functools.partial(self._save_to_state_dict, module)
            self._set(module, "_save_to_state_dict", Replaced(module, "_save_to_state_dict", save))

    def mark(self, plan: Plan) -> None:
        """Puts the plan on the model, as `memlab` too unless that is a name of its own."""
        plan.owner = weakref.ref(self.model)
        self._set(self.model, MARK, plan)
        if not hasattr(self.model, "memlab"):
            self._set(self.model, "memlab", plan)

    def wrap(self, module: nn.Module, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Puts `wrapper(forward)` where `module.forward` is looked up."""
        original = module.forward
        wrapped = wrapper(original)
        left_to_python(wrapped)
        functools.update_wrapper(wrapped, original)
        self._set(module, "forward", Replaced(module, "forward", wrapped))

    def silence(self, module: nn.Module, name: str) -> None:
        """Has a method do nothing."""
        self._set(module, name, Replaced(module, name, lambda: None))

    def unwrap(self, module: nn.Module) -> None:
        self._restore(module, "forward")

    def release(self) -> None:
        """Takes everything off again."""
        for module, names in list(self.put.items()):
            for name in list(names):
                self._restore(module, name)

    def _set(self, module: nn.Module, name: str, value: Any) -> None:
        before, _ = self.put.setdefault(module, {}).get(name, (module.__dict__.get(name, _ABSENT), None))
        self.put[module][name] = before, value
        module.__dict__[name] = value

    def _restore(self, module: nn.Module, name: str) -> None:
        before, ours = self.put[module].pop(name, (None, None))
        if ours is None or module.__dict__.get(name) is not ours:
            return  # Somebody else has put something of theirs there since.
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
        """`state_dict` of one module, of the true values, also while a forward is under way."""
        twin = object.__new__(type(module))
        twin.__dict__.update(module.__dict__)
        twin.__dict__.update(self.outside(module))
        type(module)._save_to_state_dict(twin, *args, **kwargs)

    def state(self, module: nn.Module) -> Any:
        """What pickle and copy are given: the module as it would be without memlab."""
        method = getattr(type(module), "__getstate__", None)
        state = module.__dict__
        if method is not None and method is not getattr(object, "__getstate__", None):
            state = method(module)
            if not isinstance(state, dict) or "_parameters" not in state:
                return state
        state = state | self.outside(module)
        for name, (before, ours) in self.put.get(module, {}).items():
            if state.get(name) is ours:
                state[name] = before
                if before is _ABSENT:
                    del state[name]
        for kind in KINDS:
            state[kind] = {name: self._on_the_host(tensor) for name, tensor in state[kind].items()}
        return state

    def _on_the_host(self, tensor: Any) -> Any:
        """What stays on the device is on the host in a copy, as all the rest of it."""
        if id(tensor) not in self.kept or tensor.device.type == "cpu":
            return tensor
        # Two modules that share it do so in the copy: that lives, while it is made, with whoever copies or pickles.
        known, version = self.copies.get(id(tensor), (None, 0))
        copy: Tensor | None = known() if known is not None else None
        if copy is None or version != version_of(tensor):
            copy = tensor.detach().cpu()
            if isinstance(tensor, nn.Parameter):
                copy = nn.Parameter(copy, requires_grad=tensor.requires_grad)
            self.copies[id(tensor)] = weakref.ref(copy), version_of(tensor)
        return copy


def plan_on(model: nn.Module) -> Plan | None:
    """The plan of a model that is paged or chunked itself."""
    plan = model.__dict__.get(MARK)
    return plan if isinstance(plan, Plan) and plan.owner is not None and plan.owner() is model else None


def taken(model: nn.Module) -> bool:
    """Whether a model, a part of it, or the whole around it is paged or chunked."""
    for module in model.modules():
        guard = module.__dict__.get("_apply")
        if isinstance(guard, Replaced) and guard.module() is module:
            return True
    return False


def left_to_python(function: Any) -> None:
    """Has torch.compile run a function as it is, and compile only what it calls.

    The marks are those that ``torch.compiler.disable(recursive=False)`` sets, which would import all of the compiler.
    """
    function._torchdynamo_disable = True
    _skip(function.__code__)


def _skip(code: CodeType) -> None:
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        actions = frames._FrameAction
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(actions.SKIP, actions.DEFAULT))
    elif hasattr(frames, "skip_code"):  # PyTorch 2.6 and before.
        frames.skip_code(code)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            _skip(inner)


def modules_left_to_python(*modules: ModuleType) -> None:
    """The same for all functions and methods of these modules."""
    for module in modules:
        for value in vars(module).values():
            members = vars(value).values() if isinstance(value, type) else [value]
            for member in members:
                function = inspect.unwrap(getattr(member, "__func__", member)) if callable(member) else member
                if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                    left_to_python(function)
