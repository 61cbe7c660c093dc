"""Makes room in a program of which some memory is on the host, because it exceeds its limit or the card.

Embedded in libmemlab.so and run before agent.py, in its namespace. Kernels use such memory over the bus, which is slow. So
after each step of the optimizer that needed it, the next of these changes is made. All leave results as they are, bit for
bit, and each is measured before the next one:

1. Around the optimizer's step, PyTorch returns cached memory, and memory in use moves back, as far as there is room.
2. The loss is computed in rows: see fit_loss.py.
3. State of the optimizer is on the host between steps (see fit_state.py), if a half of it is enough.
4. Activations leave the GPU, as with `memlab.offload_activations`. Its budget is what they took, less what is missing.
5. All of the optimizer's state is on the host between steps.

The rest stays on the host.
"""

import ctypes
import importlib
import os
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fit_loss import _LossInRows
    from fit_state import _HostState
    from guards import _Harmless

_LEAST_MISSING = 64 << 20  # Bytes of room beyond what was missing.
_RESTORE_SECONDS = 5
_LEAST_EFFECT = 16  # A change that saves less than this part of what is missing is not made.
_LEAST_SHARE = 16  # The least budget is this part of the activations.


def _size(nbytes):
    return f"{nbytes / 2**30:.2f} GiB"


class _AwayActivations:
    """Measures the activations of forwards, and keeps them within a budget once it has one.

    A forward is a call of an outermost module in which autograd records."""

    def __init__(self, torch, away, fail):
        self.torch = torch
        self.away = away  # Returns the bytes of other memory that is on the host for a part of the step.
        self.fail = fail  # Called with an exception, after which activations stay.
        self.offload: Any = None  # Makes the block of a forward with a budget.
        self.budget: Any = None
        self.largest: Any = None  # Most bytes that a forward without a budget left on the GPU.
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

    def allocated(self):
        return self.torch.cuda.memory_allocated() + self.away()

    def begin(self, module, _arguments):
        torch = self.torch
        if torch.compiler.is_compiling():
            return  # Dynamo traces this line, and no break of the graph is needed.
        if self.outer is not None:
            self.depth += module is self.outer
        elif torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1:  # -1: not in backward.
            with _Harmless(self.fail):
                self.before = self.allocated()
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
                    self.largest = max(self.largest or 0, self.allocated() - self.before)


class _Spilling:
    """Watches the memory on the host, and makes changes until there is none, or no change is left."""

    def __init__(self, native, torch, tag_state, fit=None):
        self.native = native
        self.torch = torch
        self.loss = fit.loss if fit is not None else None
        self.host_state = fit.host_state if fit is not None else None
        self.tag_state = tag_state
        self.activations: Any = _AwayActivations(torch, self.state_away, self.activations_fail)
        self.optimizer: Any = None  # Whose steps are counted: weak.
        self.device: Any = None
        self.library = ctypes.CDLL(None)  # Preloaded.
        self.may_restore = hasattr(self.library, "memlab_restore")
        self.pid = os.getpid()
        self.steps = 0
        self.most = 0  # Most bytes on the host in this step.
        self.patience = 0  # Steps until the last change has its effect.
        self.is_clear = True
        self.has_given_up = False
        self.has_warned_of_step = False

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
            if self.is_mine(optimizer):
                self.take_back()  # Before the first step makes the state.

    def after_step(self, optimizer, *_):
        with _Harmless(self.stop):
            if not self.is_mine(optimizer):
                return
            self.steps += 1
            most, self.most = self.most, 0
            self.take_back()
            in_step, self.most = self.most, 0
            if self.patience:
                self.patience -= 1
            elif most:
                self.is_clear = False
                self.make_room(most, optimizer)
            elif in_step:
                self.is_clear = False
                self.warn_of_step(in_step)
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
        """Brings memory back from the host: cached memory returns to the driver, and the rest moves if there is room."""
        now, most = self.native.spilled(self.device.index)
        self.most = max(self.most, most)
        if not now or self.torch.cuda.is_current_stream_capturing():
            return
        self.torch.cuda.empty_cache()
        now, _ = self.native.spilled(self.device.index)
        if now and self.may_restore:
            why = ctypes.create_string_buffer(1024)
            # The GIL is free meanwhile: other threads may need it to reach a point at which memory can move.
            failed = self.library.memlab_restore(ctypes.c_double(_RESTORE_SECONDS), 0, why, ctypes.c_size_t(len(why)))
            if failed and b"no room" not in why.value and b"nothing is" not in why.value:
                self.may_restore = False
                self.warn(f"{self.device}: memory cannot come back from the host: {why.value.decode(errors='replace')}")

    def warn_of_step(self, nbytes):
        if not self.has_warned_of_step:
            self.has_warned_of_step = True
            found = f"{self.device}: {_size(nbytes)} were on the host while the optimizer updated the weights"
            self.warn(f"{found}. Its temporary tensors need them: fused=True makes none")

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
        least = most // _LEAST_EFFECT
        moved = self.host_state.wanted_bytes
        if moved == 0 and missing <= state // 2:
            self.host_state.move(missing)
            self.patience = 2
            self.warn(f"{found}. {_size(missing)} of the optimizer's state are now on the host between steps")
            return
        if activations.handles and activations.largest is None:
            return  # Known after the next step.
        largest = activations.largest or 0
        before = largest if activations.budget is None else activations.budget
        budget = max(before - missing - missing // 4, largest // _LEAST_SHARE)
        if activations.handles and before - budget > least:
            with _Harmless(self.activations_fail):
                activations.limit(budget)
                self.patience = 3  # Two forwards measure.
                self.warn(f"{found}. Activations now keep {_size(budget)} of {_size(largest)} on the GPU")
            return
        if state - moved > least:
            self.host_state.move(state)
            self.patience = 2
            self.warn(f"{found}. All of the optimizer's state is now on the host between steps")
            return
        self.has_given_up = True
        self.warn(f"{found}. It stays there: memlab has nothing more to move")

    def state_away(self):
        return sum(state.away_size for state in list(self.host_state.states.values()))

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
