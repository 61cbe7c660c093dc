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
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fit_loss import _LossInRows
    from fit_state import _device_of, _HostState
    from guards import _Harmless, _on_module_calls

_LEAST_MISSING = 64 << 20  # Bytes of room beyond what was missing.
_RESTORE_SECONDS = 5
_LEAST_EFFECT = 16  # A change that saves less than this part of what is missing is not made.
_MOST_OTHERS = 256  # Steps of other optimizers after which one of them is watched instead.
_LEAST_SHARE = 16  # The least budget is this part of the activations.
_MOST_SPARE = 32  # Activations of this part leave beyond what is missing: little memory on the host costs whole steps.


def _size(nbytes):
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"


class _OutermostCall:
    """A call of an outermost module."""

    def __init__(self, module, before):
        self.module = module
        self.before = before
        self.depth = 1  # Of its calls within each other.
        self.block: Any = None
        self.hooks: Any = None  # Of the block, on saved tensors.
        self.are_hooks_gone = False
        self.frame = sys._getframe(2)  # PyTorch's, which calls the hook.

    def is_running(self):
        frame = sys._getframe(2)
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is not None


class _AwayActivations:
    """Measures the activations of forwards, and keeps them within a budget once it has one.

    A forward is a call of an outermost module in which autograd records."""

    def __init__(self, torch, away, warn):
        self.torch = torch
        self.away = away  # Returns the bytes of other memory that is on the host for a part of the step.
        self.warn = warn
        self.offload: Any = None  # Makes the block of a forward with a budget. Imported for the first one.
        self.budget: Any = None
        self.largest: Any = None  # Most bytes that a forward without a budget left on the GPU.
        self.blocks = 0  # Forwards with a budget.
        self.is_refused = False  # True after a failure: activations stay.
        self.local = threading.local()  # `call`: the outermost module that this thread runs.
        self.handles: list = []
        self.pid = os.getpid()

    def attach(self):
        if not self.handles and not self.is_refused:
            self.handles = _on_module_calls(self.torch, self.begin, self.end)

    def fail(self, error):
        """Activations stay from now on. Hooks stay: a call that has begun must end, on every thread."""
        if not self.is_refused:
            self.is_refused = True
            self.budget = None
            self.warn(f"activations stay on the GPU ({error})")

    def load(self):
        if self.offload is None:
            self.offload = importlib.import_module("memlab").offload_activations
            self.yield_to_others()

    def yield_to_others(self):
        """Code that forbids hooks on saved tensors, such as `torch.func.grad`, would raise while those of a block are in
        force: it finds none."""
        autograd = self.torch._C._autograd
        forbid = autograd._saved_tensors_hooks_disable

        def disable(message, *may_fail):
            call = getattr(self.local, "call", None) if may_fail in ((), (True,)) else None
            top = autograd._top_saved_tensors_default_hooks(True)
            if call is not None and call.hooks is not None and top is not None and top[0] == call.hooks[0]:
                autograd._pop_saved_tensors_default_hooks()
                call.are_hooks_gone = True
                with _Harmless():
                    self.fail("the program forbids hooks on saved tensors")
            return forbid(message, *may_fail)

        autograd._saved_tensors_hooks_disable = disable

    def allocated(self):
        return self.torch.cuda.memory_allocated() + self.away()

    def may_begin(self):
        """Returns True in a forward of training in which nothing else sees operations or saved tensors."""
        torch = self.torch
        return (
            torch.is_grad_enabled()
            and torch._C._current_graph_task_id() == -1  # Not in backward.
            and torch._C._autograd._top_saved_tensors_default_hooks(True) is None
            and torch._C._autograd._saved_tensors_hooks_is_enabled()
            and torch._C._functorch.peek_interpreter_stack() is None
            and torch.utils._python_dispatch._get_current_dispatch_mode() is None
            and not torch.jit.is_tracing()
            and os.getpid() == self.pid
        )

    def begin(self, module, _arguments):
        if self.torch.compiler.is_compiling():
            return  # Dynamo traces this line, and no break of the graph is needed.
        call = getattr(self.local, "call", None)
        if call is not None and module is call.module and not call.is_running():
            # PyTorch calls no hooks when KeyboardInterrupt or the like ends a call.
            call.depth = 1
            self.end(module, None, None)
            call = None
        if call is not None:
            call.depth += module is call.module
        elif not self.is_refused:
            with _Harmless(self.fail):
                if self.may_begin():
                    call = _OutermostCall(module, self.allocated())
                    if self.budget is not None:
                        self.load()
                        block = self.offload(self.budget)
                        block.__enter__()
                        call.block = block
                        self.blocks += 1
                        call.hooks = self.torch._C._autograd._top_saved_tensors_default_hooks(True)
                    self.local.call = call

    def end(self, module, _arguments, _output):
        if self.torch.compiler.is_compiling():
            return
        call = getattr(self.local, "call", None)
        if call is None or module is not call.module:
            return
        call.depth -= 1
        if call.depth == 0:
            self.local.call = None
            with _Harmless(self.fail):
                if call.block is None:
                    self.largest = max(self.largest or 0, self.allocated() - call.before)
                    return
                if call.are_hooks_gone:
                    self.torch._C._autograd._push_saved_tensors_default_hooks(*call.hooks)
                call.block.__exit__(None, None, None)


class _Spilling:
    """Watches the memory on the host, and makes changes until there is none, or no change is left."""

    def __init__(self, native, torch, tag_state, fit=None):
        self.native = native
        self.warn = native.warn
        self.torch = torch
        self.loss = fit.loss if fit is not None else None
        self.host_state = fit.host_state if fit is not None else None
        self.tag_state = tag_state
        self.activations: Any = fit.activations if fit is not None else None
        if self.activations is None:
            self.activations = _AwayActivations(torch, self.state_away, self.warn)
        self.optimizer: Any = None  # Whose steps are counted: weak.
        self.others = 0  # Steps and their begins of other optimizers since its last one.
        self.device: Any = None
        self.library = ctypes.CDLL(None)  # Preloaded.
        self.restores_left = 3 if hasattr(self.library, "memlab_restore") else 0  # Failures in a row before it gives up.
        self.pid = os.getpid()
        self.steps = 0
        self.most = 0  # Most bytes on the host in this step.
        self.patience = 0  # Steps until the last change has its effect.
        self.is_clear = True
        self.has_given_up = False
        self.has_warned_of_step = False
        self.has_awaited_forward = False

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
                self.warn(f"{self.device}: all memory is on the GPU since step {self.steps}")

    for _hook in (before_step, after_step):
        _hook._torchdynamo_disable = True

    def stop(self, error):
        self.has_given_up = True
        self.warn(f"memory stays on the host ({error})")

    def is_mine(self, optimizer):
        """Returns True for steps of the optimizer that stepped first, on a GPU, in this process."""
        if self.has_given_up or os.getpid() != self.pid:
            return False
        known = self.optimizer and self.optimizer()
        if known is not optimizer:
            self.others = self.others + 1 if known is not None else 0
            if known is not None and self.others < _MOST_OTHERS:
                return False
            self.others = 0
            device = _device_of(optimizer)
            if device is None:
                return False
            self.device, self.optimizer = device, weakref.ref(optimizer)
            return True
        self.others = 0
        return True

    def take_back(self):
        """Brings memory back from the host: cached memory returns to the driver, and the rest moves if there is room."""
        now, most = self.native.spilled(self.device.index)
        self.most = max(self.most, most)
        if not now or self.torch.cuda.is_current_stream_capturing():
            return
        self.torch.cuda.empty_cache()
        now, _ = self.native.spilled(self.device.index)
        if now and self.restores_left:
            why = ctypes.create_string_buffer(1024)
            # The GIL is free meanwhile: other threads may need it to reach a point at which memory can move.
            failed = self.library.memlab_restore(ctypes.c_double(_RESTORE_SECONDS), 0, why, ctypes.c_size_t(len(why)))
            if not failed or b"no room" in why.value or b"nothing is" in why.value:
                self.restores_left = 3
                return
            self.restores_left -= 1
            if not self.restores_left:
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
        if self.loss.largest and not self.loss.is_on and not self.loss.is_changed:
            self.loss.is_on = True
            self.warn(f"{found}. The loss is now computed in rows")
            return
        state = self.state_bytes(optimizer)
        least = most // _LEAST_EFFECT
        moved = self.host_state.wanted_bytes
        is_first = moved == 0 and activations.budget is None
        if is_first and missing <= state // 2 and self.native.host_has(missing):
            self.host_state.move(missing)
            self.patience = 2
            self.warn(f"{found}. {_size(missing)} of the optimizer's state are now on the host between steps")
            return
        if activations.handles and activations.largest is None and not self.has_awaited_forward:
            self.has_awaited_forward = True
            return  # Known after the next step, unless no module is called outside of compiled code.
        largest = activations.largest or 0
        before = largest if activations.budget is None else activations.budget
        budget = max(before - missing - missing // 4 - largest // _MOST_SPARE, largest // _LEAST_SHARE)
        if not activations.is_refused and before - budget > least:
            with _Harmless(activations.fail):
                activations.load()
                activations.budget = budget
                self.patience = 3  # Two forwards measure.
                self.warn(f"{found}. Activations now keep {_size(budget)} of {_size(largest)} on the GPU")
            return
        if state - moved > least and self.native.host_has(state - moved):
            self.host_state.move(state)
            self.patience = 2
            self.warn(f"{found}. All of the optimizer's state is now on the host between steps")
            return
        self.has_given_up = True
        self.warn(f"{found}. It stays there: memlab has nothing more to move")

    def state_away(self):
        return sum(state.away_size for state in list(self.host_state.states.values()))

    def state_bytes(self, optimizer):
        states = (state for state in optimizer.state.values() if isinstance(state, dict))
        values = (value for state in states for value in state.values())
        return sum(value.nbytes for value in values if isinstance(value, self.torch.Tensor) and value.is_cuda)


def start_spilling(native, torch, tag_state, fit):
    """Makes room as soon as memory is on the host. `fit`: the decision of `memlab run --fit`, or None."""
    if "spill" not in (os.environ.get(name, "").strip().lower() for name in ("MEMLAB_ON_LIMIT", "MEMLAB_ON_OOM")):
        return None
    spilling = _Spilling(native, torch, tag_state, fit)
    spilling.attach(importlib.import_module("torch.optim.optimizer"))
    return spilling
