"""Maps torch.compile's output to its origin: the TorchDynamo graph from which each Inductor wrapper was generated.

Run in the namespace of `agent.py`, after `graphs.py`. The agent attributes nothing here. It gives the library
the facts that only Python can read, and the library reads the wrappers' text (the crate `compiled`).

TorchDynamo traces in every process, even when everything else comes from a cache. It calls hooks with the code that it
generated, while its graph is still alive in the frame of the caller. The wrappers can be reached from that code, the
wrapper of backward only once it runs. So the agent looks for wrappers when they run.
"""

import contextlib
import itertools
import json
import os
import re
import sys
import types
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # These files run before this one, in the same namespace.
    from graphs import _Description
    from guards import _Harmless

_WRAPPER = re.compile(r".*/([a-z2-7]{2})/c\1[a-z2-7]{49}\.py")
_MADE_BY = ("torch._dynamo", "torch._functorch", "torch._inductor", "functools")
_FORWARD_AND_BACKWARD = 2
_MOST_OBJECTS = 5000  # Limit on objects searched for the wrappers of one compiled function; a few hundred are usual.
_MOST_ITEMS = 64  # Limit on items of one collection.
_qualified_name = type.__dict__["__qualname__"].__get__
_TIMES_TOLD = 16  # Number of searches for a wrapper that belongs to no known graph.


class _Graph:
    """A graph of TorchDynamo, known to the library by a number."""

    def __init__(self, number, function, reader):
        self.number = number
        self.function = weakref.ref(function)
        self.reader = reader
        self.wrappers: set = set()  # Paths.
        self.look()

    def look(self):
        """Looks for the wrappers generated from the graph. The wrapper of backward exists only after the first backward."""
        function = self.function()
        if function is not None and len(self.wrappers) < _FORWARD_AND_BACKWARD:
            self.wrappers |= _wrappers_of(function, self.reader)


class _Compiled:
    def __init__(self, native, reader):
        self.native = native
        self.reader = reader
        self.pid = os.getpid()  # A forked child has another agent, and this agent's hook.
        self.is_watching = self.has_failed = False
        self.graphs = []
        self.outermost = {}  # address -> weak module that compiled code runs, and no other module
        self.told = {}  # wrapper -> number of times it was passed to the library

    def watch(self):
        """Adds a hook that TorchDynamo calls after each compilation, as soon as TorchDynamo is imported.

        The dictionary must not change while a thread calls its hooks. The key differs from PyTorch's keys, which are visible
        to the program.
        """
        module: Any = sys.modules.get("torch._dynamo.convert_frame")
        hooks = getattr(module, "_bytecode_hooks", None)
        if self.is_watching or hooks is None or self.native.is_compiling():
            return
        self.is_watching = True
        known = dict.copy(hooks)
        hooks[next(number for number in itertools.count(-1, -1) if number not in known)] = self.after_compilation
        self.native.compilation_is_watched()

    def after_compilation(self, code, made):
        if self.pid != os.getpid():
            return
        with _Harmless(self.failed):
            # Before CPython 3.13, a frame keeps the copies of `f_locals` until it ends. This frame of TorchDynamo ends soon.
            caller = sys._getframe(1).f_locals
            tracer = caller.get("tracer_output")  # Before PyTorch 2.11, the graph itself is there.
            output = caller["output"] if tracer is None else tracer.output_graph
            for name in made.co_names:
                function = output.global_scope.get(name) if name.startswith("__compiled_fn") else None
                if type(function) is types.FunctionType:
                    description = _Description(output, self.reader)
                    self.outermost.update(description.outermost())
                    number = self.native.compiled_graph(description.as_json())
                    graph = _Graph(number, function, self.reader)
                    self.graphs.append(graph)
                    for wrapper in graph.wrappers:  # A graph that the library knows may share the wrapper.
                        self.told.pop(wrapper, None)

    def outermost_at(self, address):
        return self.outermost[address]() if address in self.outermost else None

    def failed(self, error):
        if not self.has_failed:
            self.has_failed = True
            self.native.warn(f"lines of compiled code are unknown ({type(error).__name__}: {error})")

    def meet(self, wrapper):
        """Passes to the library the graphs from which a wrapper was generated."""
        times = self.told.get(wrapper, 0)
        if times == _TIMES_TOLD:
            return
        self.told[wrapper] = times + 1
        self.graphs = [graph for graph in self.graphs if graph.function() is not None]
        known = next((graph for graph in self.graphs if wrapper in graph.wrappers), None)
        for graph in reversed(self.graphs if known is None else ()):
            graph.look()
            if wrapper in graph.wrappers:
                for other in self.graphs:  # Graphs with the same forward have the same backward.
                    if other.wrappers & graph.wrappers:
                        other.look()
                break
        made = [[graph.number, sorted(graph.wrappers)] for graph in self.graphs if wrapper in graph.wrappers]
        if made:
            self.native.compiled_wrapper(wrapper, json.dumps({"graphs": made, **_traces_of_lines(wrapper)}))
            self.told[wrapper] = _TIMES_TOLD


def _traces_of_lines(wrapper):
    """Returns the traces of the nodes by wrapper line: from each line on, the trace of the last node of the launched
    kernel."""
    cache: Any = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
    lines, nodes = (getattr(cache, "linemaps", {}).get(wrapper) or ((), ()))[:2]
    traces: dict = {}
    starts = [[line, traces.setdefault(trace, len(traces)) if trace else None] for line, trace in zip(lines, nodes)]  # noqa: B905
    return {"lines": starts, "traces": list(traces)}


def _wrappers_of(function, reader):
    """Returns the paths of the wrappers that a compiled function runs. Inspects PyTorch's objects, and calls none of
    them."""
    found, met = set(), {}
    waiting = [function]
    while waiting and len(met) < _MOST_OBJECTS:
        thing = waiting.pop(0)
        if id(thing) in met:
            continue
        met[id(thing)] = thing
        kind = type(thing)
        if kind is types.FunctionType:
            if _WRAPPER.fullmatch(thing.__code__.co_filename):
                found.add(thing.__code__.co_filename)
                continue
            for cell in thing.__closure__ or ():
                with contextlib.suppress(ValueError):  # An empty cell.
                    waiting.append(cell.cell_contents)
            waiting += [*thing.__dict__.values(), *(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        elif kind is types.MethodType:
            waiting += [thing.__func__, thing.__self__]
        elif kind is types.BuiltinMethodType:  # Such as `apply` of an autograd function's class.
            waiting.append(thing.__self__)
        elif kind in (list, tuple):
            waiting += thing[:_MOST_ITEMS]
        elif kind is dict:
            waiting += list(thing.values())[:_MOST_ITEMS]
        elif kind in (staticmethod, classmethod):
            waiting.append(thing.__func__)
        elif reader.is_kind(thing, type):
            if "<locals>" in _qualified_name(thing) and reader.module_name(thing).startswith(_MADE_BY):
                waiting += reader.namespace(thing).values()
        elif reader.module_name(kind).startswith(_MADE_BY) or _is_runner(kind, reader):
            if kind.__name__ == "partial":
                waiting += [thing.func, *thing.args]
            waiting += [*(getattr(thing, "__dict__", None) or {}).values()]
            waiting += [getattr(thing, name) for name in getattr(kind, "__slots__", ()) if hasattr(thing, name)]
    return found


def _is_runner(kind, reader):
    """Returns True for the class `Runner` of a wrapper."""
    call = reader.namespace(kind).get("call")
    return type(call) is types.FunctionType and _WRAPPER.fullmatch(call.__code__.co_filename) is not None
