"""Tags: maps addresses to parameters, gradients, buffers, inputs and optimizer state.

Run in the namespace of `agent.py`, after `guards.py`, `throttle.py` and `parallel.py`. Tags need PyTorch's help, and are
put off while a call of PyTorch would be recorded (`reader.py`).
"""

import functools
import threading
import time
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # These files run before this one, in the same namespace.
    from guards import _Harmless
    from parallel import _Parallel
    from throttle import _SHARE, _Throttle

_PARAMETER, _GRADIENT, _OPTIMIZER_STATE, _BUFFER, _INPUT = range(5)

# Tags are refreshed at each of the first optimizer steps, and later so rarely that they take below 1 % of the time.
_STEPS_TAGGED_ALWAYS = 8
_TAGGING_GROWTH = 0.1
_PAUSE = 0.1


class _Tagger:
    def __init__(self, native, torch, reader, roots, forget_dead, warn_once):
        self.native = native
        self.torch = torch
        self.reader = reader
        self.roots = roots  # layer id -> weak outermost module; shared with the agent.
        self.forget_dead = forget_dead
        self.warn_once = warn_once
        self.parallel = _Parallel(native, reader)
        self.started = time.monotonic()
        self.optimizers = {}  # id -> [weak optimizer, its steps, earliest time of the next tagging]
        self.backwards = -1  # Backwards seen while no optimizer stepped; -1: not counting yet.
        self.names: dict = {}  # id(parameter) -> (root layer, name), at the last tagging.
        self.untagged = False  # True if modules were called for the first time since the last tags.
        self.next_tagging = 0.0
        self.looks = 0  # Number of times that arguments of modules were tagged.
        self.argument_looks = _Throttle()
        self.uncalled_searches = _Throttle()
        self.surveyed: list = []  # (name, weak module) of modules that hold tensors and are not called.
        self.finished = False

    def met_model(self):
        """Called when an outermost module with tensors was called for the first time."""
        self.untagged = True
        if self.backwards < 0:
            self.backwards = 0
            self.native.await_backward(0.0)

    def tag_new(self):
        """Tags modules that are new since the last tags. Models that are created continually are tagged as rarely as
        optimizers."""
        if self.untagged and (len(self.roots) <= _STEPS_TAGGED_ALWAYS or time.monotonic() >= self.next_tagging):
            self.tag_all([])

    def tag(self, tensor, category, root, name):
        with _Harmless():  # It may be fake, meta, quantised or otherwise without separate memory.
            shard = self.parallel.sharding(tensor)
            for device, address, size in self.reader.memory(tensor):
                self.native.tag(device, address, category, size, root, name, shard)

    def tag_arguments(self):
        """Tags the arguments of the outermost running modules. Tensors that the script creates for each call could later be
        recognised as inputs by their lifetime, but not those that it creates once. Losses that are created at every step are
        checked as rarely as optimizers are tagged."""
        if self.looks >= _STEPS_TAGGED_ALWAYS and not self.argument_looks.is_open():
            return
        with self.argument_looks, _Harmless():
            if not self.reader.is_watched():
                self.looks += 1
                with self.torch._C.DisableTorchFunction():
                    for tensor in self.reader.tensors_within(self.native.arguments()):
                        self.tag(tensor, _INPUT, 0, "")

    def tag_all(self, optimizers, with_gradients=False):
        """Tags modules (with gradients, if wanted), and the gradients and state of these optimizers. Puts that off while it
        would be recorded.

        Gradients are read only if no backward can be in progress: autograd's threads replace them without the GIL, and
        another thread's model may be in the middle of a backward.
        """
        with _Harmless(functools.partial(self.warn_once, "parameters have no names")):
            if self.reader.is_watched():
                self.untagged = True
                self.native.run_later()
                return
            self.forget_dead()
            before = time.monotonic()
            with self.torch._C.DisableTorchFunction():
                names = self.names = self.tag_modules(with_gradients)
                self.untagged = False
                for optimizer in optimizers:
                    self.tag_optimizer(optimizer, names)
                self.parallel.survey()
            after = time.monotonic()
            self.next_tagging = after + max((after - before) / _SHARE, _TAGGING_GROWTH * (after - self.started))

    def tag_modules(self, with_gradients):
        """Tags the tensors of modules; returns parameters by id: (root layer, name)."""
        called = [(root, module) for root, reference in list(self.roots.items()) if (module := reference()) is not None]
        shards: dict = {}
        with _Harmless():
            shards = self.parallel.sharded_parameters()
        roots = [(root, *self.tensors_of(module, "", shards)) for root, module in called]
        # If a part was called alone before the whole module, the whole module names its parameters.
        roots.sort(key=lambda known: len(known[1]) + len(known[2]), reverse=True)
        roots += [(0, *self.tensors_of(module, f"{name}.", shards)) for name, module in self.uncalled(called)]
        names: dict = {}
        buffers = set()
        for root, named_parameters, named_buffers in roots:
            for name, parameter in named_parameters:
                if id(parameter) not in names:
                    names[id(parameter)] = (root, name)
                    self.tag(parameter, _PARAMETER, root, name)
                    if with_gradients:
                        self.tag_gradient(parameter, root, name)
            for name, buffer in named_buffers:
                if id(buffer) not in buffers:
                    buffers.add(id(buffer))
                    self.tag(buffer, _BUFFER, root, name)
        return names

    def tensors_of(self, module, prefix, shards):
        """Returns [(name, parameter)] and [(name, buffer)] of a module. `shards`: replacements of parameters that are
        gathered."""
        return [
            [(prefix + name, tensor) for name, tensor in self.reader.tensors(module, kind, shards)]
            for kind in ("_parameters", "_buffers")
        ]

    def uncalled(self, called):
        """Returns modules that hold tensors without being called, such as averages of weights. Searches the whole heap, so
        it is done rarely, and the result is kept."""
        if self.uncalled_searches.is_open() or self.finished:
            with self.uncalled_searches:
                found = self.reader.uncalled([module for _, module in called])
                self.surveyed = [(name, weakref.ref(module)) for name, module in found]
        return [(name, module) for name, reference in self.surveyed if (module := reference()) is not None]

    def tag_optimizer(self, optimizer, names):
        for group, index, parameter, state in self.reader.optimized(optimizer):
            known = names.get(id(parameter))
            if known is None:  # Optimized, but not in a called module.
                known = (0, f"param_groups.{group}.{index}")
                self.tag(parameter, _PARAMETER, *known)
            self.tag_gradient(parameter, *known)
            for key, value in state.items():
                for suffix, tensor in self.reader.tensors_in(value):
                    self.tag(tensor, _OPTIMIZER_STATE, known[0], f"{known[1]}:{key}{suffix}")

    def tag_state(self, parameter, tensor, key):
        """Tags a tensor of an optimizer's state that has a new address."""
        root, name = self.names.get(id(parameter), (0, "parameter"))
        self.tag(tensor, _OPTIMIZER_STATE, root, f"{name}:{key}")

    def tag_gradient(self, parameter, root, name):
        with _Harmless():
            gradient = self.reader.gradient_of(parameter)
            if gradient is not None:
                self.tag(gradient, _GRADIENT, root, name)

    def after_backward(self):
        """Called by the library when an awaited backward has ended. Programs that update parameters themselves have no
        optimizer steps after which gradients could be read."""
        if self.optimizers:
            return
        self.backwards += 1
        # One backward usually precedes the first step of an optimizer.
        if self.backwards > 1 and not self.native.is_in_backward():
            self.tag_all([], with_gradients=True)
        always = self.backwards <= _STEPS_TAGGED_ALWAYS
        self.native.await_backward(0.0 if always else max(self.next_tagging - time.monotonic(), _PAUSE))

    def after_step(self, optimizer):
        """Called by the library, on the thread that has stepped."""
        with _Harmless():
            known = self.optimizers.get(id(optimizer))
            if known is None or known[0]() is not optimizer:
                known = self.optimizers[id(optimizer)] = [weakref.ref(optimizer), 0, 0.0]
            known[1] += 1
            if known[1] <= _STEPS_TAGGED_ALWAYS or time.monotonic() >= known[2]:
                self.tag_all([optimizer])
                known[2] = self.next_tagging

    def asked(self):
        """Called by the library when a tool in the program requests the current use of memory."""
        if self.native.is_in_backward():
            return
        alive = [reference() for reference, _, _ in self.optimizers.values()]
        self.uncalled_searches.reopen()
        self.tag_all([optimizer for optimizer in alive if optimizer is not None], with_gradients=True)

    def last(self):
        """Tags the live tensors before Python tears the program down."""
        self.finished = True
        alive = [reference() for reference, _, _ in self.optimizers.values()]
        alone = threading.active_count() == 1  # Otherwise a backward may be in progress.
        stepped = [optimizer for optimizer in alive if optimizer is not None]
        self.tag_all(stepped if alone else [], with_gradients=alone and not stepped)
