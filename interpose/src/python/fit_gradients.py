"""Releases gradients when the optimizer's step has ended, and finds programs that would read them.

Embedded in libmemlab.so and run before fit.py, in the same namespace.
"""

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fit_state import _before_update, _parameters


def release_gradients(optimizer, *_):
    for parameter in _parameters(optimizer):
        parameter.grad = None


release_gradients._torchdynamo_disable = True


class _Rehearsal:
    """Finds whether the program reads gradients between an optimizer's step and the moment when it drops them itself.

    Only then do they need to exist after the step. Once it has found that, it looks no more.
    """

    def __init__(self, native, torch, optimizers):
        self.native = native
        self.torch = torch
        self.kept: set = set()  # Ids of parameters whose gradients the program has not dropped since a step.
        self.in_zero_grad = 0
        self.is_over = False
        rehearsal = self

        class Watch(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, function, types, arguments=(), keywords=None):
                if rehearsal.kept and not rehearsal.in_zero_grad:
                    if function == get and id(arguments[0]) in rehearsal.kept:
                        rehearsal.refuse("the program reads them after the step")
                    elif function == put and arguments[1] is None:
                        rehearsal.kept.discard(id(arguments[0]))
                return function(*arguments, **(keywords or {}))

        get, put = torch.Tensor.grad.__get__, torch.Tensor.grad.__set__
        self.watch = Watch()
        optimizers.register_optimizer_step_pre_hook(self.before_step)
        self.wrap(optimizers.Optimizer, _parameters)
        self.wrap(torch.nn.Module, lambda it: it.parameters())
        self.is_watching = False

    def refuse(self, why):
        if not self.is_over:
            self.is_over = True
            self.native.warn(f"--fit: gradients are not released early: {why}")

    def wrap(self, kind, parameters):
        original = kind.zero_grad
        rehearsal = self

        @functools.wraps(original)
        def zero_grad(it, set_to_none=True):
            rehearsal.in_zero_grad += 1
            try:
                return original(it, set_to_none)
            finally:
                rehearsal.in_zero_grad -= 1
                mine = {id(parameter) for parameter in parameters(it)}
                if not set_to_none and mine & rehearsal.kept:
                    rehearsal.refuse("the program sets them to zero")
                rehearsal.kept -= mine

        kind.zero_grad = zero_grad

    def before_step(self, optimizer, *given):
        """Called before an optimizer's step: the program has dropped the gradients of the one before, or it needs them."""
        return _before_update(given, functools.partial(self.before_update, optimizer))

    def before_update(self, optimizer):
        if self.is_watching:
            self.is_watching = False
            self.watch.__exit__(None, None, None)
        mine = {id(parameter) for parameter in _parameters(optimizer)}
        if mine & self.kept:
            self.refuse("a later step uses them")
            self.kept -= mine

    def after_step(self, optimizer, *_):
        self.kept.update(id(parameter) for parameter in _parameters(optimizer) if parameter.grad is not None)
        release_gradients(optimizer)
        modes = self.torch.overrides._get_current_function_mode_stack()
        if any(type(mode).__name__ != "DeviceContext" for mode in modes):
            self.refuse("memlab cannot watch them beside another function mode")
        elif not self.is_watching and not self.is_over:
            self.is_watching = True
            self.watch.__enter__()
