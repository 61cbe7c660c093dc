"""Makes room in a program of which some memory is on the host, because it exceeds its limit or the card.

Embedded in libmemlab.so and run before agent.py, in its namespace. Kernels use such memory over the bus, which is slow. So
after each step of the optimizer that needed it, the next of these changes is made. All leave results as they are, bit for
bit, and each is measured before the next one:

1. PyTorch returns cached memory before the optimizer steps. Memory that is taken again then finds room on the GPU.
2. The loss is computed in rows: see fit_loss.py.
3. State of the optimizer is on the host between steps (see fit_state.py), if a half of it is enough.
4. Activations leave the GPU, as with `memlab.offload_activations`. Its budget is what they took, less what is missing.
5. All of the optimizer's state is on the host between steps.

What still does not fit stays on the host.
"""

import importlib
import os
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fit_loss import _LossInRows
    from fit_state import _HostState
    from guards import _Harmless

_LEAST_MISSING = 64 << 20  # Bytes of room beyond what was missing.
_LEAST_SHARE = 16  # The least budget is this part of the activations.


def _size(nbytes):
    return f"{nbytes / 2**30:.2f} GiB"


def _uses(torch, tensor):
    """Returns the number of references to a tensor's memory."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


class _AwayActivations:
    """Measures the activations of forwards, and keeps them within a budget once it has one.

    A forward is a call of an outermost module in which autograd records."""

    def __init__(self, torch, fail):
        self.torch = torch
        self.fail = fail  # Called with an exception, after which activations stay.
        self.offload: Any = None  # Makes the block of a forward with a budget.
        self.budget: Any = None
        self.largest = 0  # Most bytes that a forward without a budget left on the GPU.
        self.outer: Any = None  # The outermost module that runs.
        self.depth = 0  # Of its calls within each other.
        self.block: Any = None
        self.before = 0
        self.handles: list = []

    def attach(self):
        if not self.handles:
            hooks = self.torch.nn.modules.module
            self.handles = [
                hooks.register_module_forward_pre_hook(self.begin),
                hooks.register_module_forward_hook(self.end, always_call=True),
            ]

    def detach(self):
        while self.handles:
            self.handles.pop().remove()

    def limit(self, budget):
        self.offload = importlib.import_module("memlab").offload_activations
        self.budget = budget

    def begin(self, module, _arguments):
        torch = self.torch
        if torch.compiler.is_compiling():
            return  # Dynamo traces this line, and no break of the graph is needed.
        if self.outer is not None:
            self.depth += module is self.outer
        elif torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1:  # -1: not in backward.
            with _Harmless(self.fail):
                self.before = torch.cuda.memory_allocated()
                if self.budget is not None:
                    block = self.offload(self.budget)
                    block.__enter__()
                    self.block = block
                self.outer, self.depth = module, 1

    def end(self, module, _arguments, _output):
        if self.torch.compiler.is_compiling() or module is not self.outer:
            return
        self.depth -= 1
        if self.depth == 0:
            self.outer, block, self.block = None, self.block, None
            with _Harmless(self.fail):
                if block is not None:
                    block.__exit__(None, None, None)
                else:
                    self.largest = max(self.largest, self.torch.cuda.memory_allocated() - self.before)


class _Spilling:
    """Watches the memory on the host, and makes changes until there is none, or no change is left."""

    def __init__(self, native, torch, tag_state, fit=None):
        self.native = native
        self.torch = torch
        self.loss = fit.loss if fit is not None else None
        self.host_state = fit.host_state if fit is not None else None
        self.tag_state = tag_state
        self.activations: Any = _AwayActivations(torch, self.activations_fail)
        self.optimizer: Any = None  # Whose steps are counted: weak.
        self.device: Any = None
        self.uses_of_one = _uses(torch, torch.zeros(1, device="cpu"))
        self.pid = os.getpid()
        self.steps = 0
        self.most = 0  # Most bytes on the host in this step.
        self.patience = 0  # Steps until the last change has its effect.
        self.is_clear = True
        self.has_given_up = False

    def attach(self, optimizers):
        if self.loss is None:
            self.loss = _LossInRows(self.torch)
            self.loss.is_on = False
            self.loss.install()
        optimizers.register_optimizer_step_pre_hook(self.before_step)
        optimizers.register_optimizer_step_post_hook(self.after_step)
        # Now, because hooks cannot be added while an optimizer calls them.
        if self.host_state is None:
            self.host_state = _HostState(self.warn, self.torch, self.tag_state)
            self.host_state.attach(optimizers)

    def warn(self, text):
        self.native.warn(text)

    def before_step(self, optimizer, *_):
        with _Harmless(self.stop):
            if self.is_mine(optimizer) and self.take_back():
                # The state that the first step makes would take the free memory beside them.
                self.renew_gradients(optimizer)
                self.take_back()

    def after_step(self, optimizer, *_):
        with _Harmless(self.stop):
            if not self.is_mine(optimizer):
                return
            self.steps += 1
            self.take_back()
            most, self.most = self.most, 0
            if self.patience:
                self.patience -= 1
            elif most:
                self.is_clear = False
                self.make_room(most, optimizer)
            elif not self.is_clear:
                self.is_clear = True
                if self.activations.budget is None:
                    self.activations.detach()
                self.warn(f"{self.device}: all memory is on the GPU since step {self.steps}")

    for _hook in (before_step, after_step):
        _hook._torchdynamo_disable = True

    def stop(self, error):
        self.has_given_up = True
        self.warn(f"memory stays on the host ({error})")

    def activations_fail(self, error):
        self.activations.detach()
        self.activations.budget = None
        self.warn(f"activations stay on the GPU ({error})")

    def is_mine(self, optimizer):
        """Returns True for steps of the optimizer that stepped first, on a GPU, in this process."""
        if self.has_given_up or os.getpid() != self.pid:
            return False
        known = self.optimizer and self.optimizer()
        if known is None:
            parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
            self.device = next((parameter.device for parameter in parameters if parameter.is_cuda), None)
            if self.device is None:
                return False
            self.optimizer = weakref.ref(optimizer)
            return True
        return known is optimizer

    def take_back(self):
        """Returns cached memory to the driver if there is memory on the host. Returns the bytes that are still there."""
        now, most = self.native.spilled(self.device.index)
        self.most = max(self.most, most)
        if now and not self.torch.cuda.is_current_stream_capturing():
            # PyTorch keeps a workspace for the matrix products of each thread.
            getattr(self.torch._C, "_cuda_clearCublasWorkspaces", int)()
            self.torch.cuda.empty_cache()
            now, _ = self.native.spilled(self.device.index)
        return now

    def renew_gradients(self, optimizer):
        """Gives gradients new memory, on the GPU. Otherwise they hold their memory on the host until the next backward, and
        PyTorch's cache keeps it for the gradients that follow."""
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            gradient = parameter.grad
            if (
                type(gradient) is self.torch.Tensor
                and gradient.device == self.device
                and gradient.layout is self.torch.strided
                and gradient.untyped_storage().nbytes() == gradient.nbytes
                and _uses(self.torch, gradient) == self.uses_of_one
            ):
                gradient.data = gradient.detach().clone()

    def make_room(self, most, optimizer):
        missing = most + most // 16 + _LEAST_MISSING
        found = f"{self.device}: {_size(most)} were on the host in step {self.steps}"
        activations = self.activations
        activations.attach()
        if self.loss.largest and not self.loss.is_on:
            self.loss.is_on = True
            self.warn(f"{found}. The loss is now computed in rows")
            return
        state = self.state_bytes(optimizer)
        moved = self.host_state.wanted_bytes
        if moved == 0 and missing <= state // 2:
            self.host_state.move(missing)
            self.patience = 2
            self.warn(f"{found}. {_size(missing)} of the optimizer's state are now on the host between steps")
            return
        if activations.handles and not activations.largest and activations.budget is None:
            return  # Known after the next step.
        before = activations.largest if activations.budget is None else activations.budget
        budget = max(before - missing - missing // 4, activations.largest // _LEAST_SHARE)
        if activations.handles and budget < before:
            with _Harmless(self.activations_fail):
                activations.limit(budget)
                self.patience = 3  # Two forwards measure.
                self.warn(f"{found}. Activations now keep {_size(budget)} of {_size(activations.largest)} on the GPU")
            return
        if moved < state:
            self.host_state.move(state)
            self.patience = 2
            self.warn(f"{found}. All of the optimizer's state is now on the host between steps")
            return
        self.has_given_up = True
        self.warn(f"{found}. It stays there: memlab has nothing more to move")

    def state_bytes(self, optimizer):
        values = (value for state in optimizer.state.values() for value in state.values())
        return sum(value.nbytes for value in values if isinstance(value, self.torch.Tensor) and value.is_cuda)


def start_spilling(native, torch, tag_state, fit):
    """Makes room as soon as memory is on the host. `fit`: the decision of `memlab run --fit`, or None."""
    if "spill" not in (os.environ.get(name, "").strip().lower() for name in ("MEMLAB_ON_LIMIT", "MEMLAB_ON_OOM")):
        return None
    spilling = _Spilling(native, torch, tag_state, fit)
    spilling.attach(importlib.import_module("torch.optim.optimizer"))
    return spilling
