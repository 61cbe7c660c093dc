"""What torch.compile made: which graph of TorchDynamo's each of Inductor's wrappers was generated from.

Run in the namespace of `agent.py`, after `guards.py`. The agent does not attribute anything here: it gives the library
what only Python can read, and the library reads the wrappers' text (the crate `compiled`).

TorchDynamo traces in every process, also when everything else comes from a cache. It calls hooks with the code that it
made, and its graph is still alive then, in the frame of the caller. From that code the wrappers can be reached, that of
backward only once it runs: so they are looked for when they run.
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

if TYPE_CHECKING:  # guards.py is run before this file, in the same namespace.
    from guards import _Harmless

_WRAPPER = re.compile(r".*/([a-z2-7]{2})/c\1[a-z2-7]{49}\.py")
_MADE_BY = ("torch._dynamo", "torch._functorch", "torch._inductor", "functools")
_FORWARD_AND_BACKWARD = 2
_MOST_OBJECTS = 5000  # That are looked at to find the wrappers of one compiled function; some hundreds are usual.
_MOST_ITEMS = 64  # Of a collection.
_TIMES_TOLD = 16  # How often a wrapper is looked for that belongs to no known graph.
_SCOPE = re.compile(r"^([LG])\['([^']*)'\]")  # How paths begin: with a variable of the function, or of its file.
_GENERATED_FILE = '  File "<eval_with_key>'
# Stands in traces for operations of which compiled autograd knows no line.
_NO_ORIGIN = re.compile(r"/torch/_dynamo/compiled_autograd\.py\", line [0-9]+, in set_node_origin\b")


class _Graph:
    """A graph of TorchDynamo's, which the library knows by a number."""

    def __init__(self, number, function, reader):
        self.number = number
        self.function = weakref.ref(function)
        self.reader = reader
        self.wrappers: set = set()  # Paths.
        self.look()

    def look(self):
        """Looks for the wrappers that were made from it; that of backward is there only after the first backward."""
        function = self.function()
        if function is not None and len(self.wrappers) < _FORWARD_AND_BACKWARD:
            self.wrappers |= _wrappers_of(function, self.reader)


class _Compiled:
    def __init__(self, native, reader):
        self.native = native
        self.reader = reader
        self.pid = os.getpid()  # A forked child has another agent, and this one's hook.
        self.is_watching = self.has_failed = False
        self.graphs = []
        self.outermost = {}  # address -> weak module that compiled code runs, and no other module
        self.told = {}  # How often the library was told of a wrapper.

    def watch(self):
        """Adds a hook that TorchDynamo calls after each compilation, as soon as TorchDynamo is imported.

        The dictionary must not change while a thread calls the hooks in it. The key is none of PyTorch's, which are
        visible to the program.
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
            caller = sys._getframe(1).f_locals
            tracer = caller.get("tracer_output")  # Before PyTorch 2.11, the graph itself is there.
            output = caller["output"] if tracer is None else tracer.output_graph
            for name in made.co_names:
                function = output.global_scope.get(name) if name.startswith("__compiled_fn") else None
                if type(function) is types.FunctionType:
                    description = _Description(output)
                    self.outermost.update(description.outermost(self.reader))
                    number = self.native.compiled_graph(description.as_json())
                    graph = _Graph(number, function, self.reader)
                    self.graphs.append(graph)
                    for wrapper in graph.wrappers:  # It may be shared with a graph that the library knows.
                        self.told.pop(wrapper, None)

    def outermost_at(self, address):
        return self.outermost[address]() if address in self.outermost else None

    def failed(self, error):
        if not self.has_failed:
            self.has_failed = True
            self.native.warn(f"lines of compiled code are unknown ({type(error).__name__}: {error})")

    def meet(self, wrapper):
        """Tells the library from which graphs a wrapper was made."""
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


class _Description:
    """The operations of a graph in order, and of those that it calls, in their place, as the library reads them."""

    def __init__(self, output):
        self.output = output
        self.traces, self.modules, self.nodes = {}, {}, []
        self.parts = dict(output.graph.owning_module.named_modules())
        backward = output.local_scope.get("self")
        self.is_backward = type(backward).__name__.startswith("CompiledAutograd")
        # What its nodes know by name. TorchDynamo traces the code of that graph, so nodes of its own know names and lines.
        self.captured = {node.name: node.meta for node in backward.graph.nodes} if self.is_backward else {}
        self.add(output.graph, "", {})

    def add(self, graph, prefix, numbers):
        """`numbers`: of the nodes of the graph that are known, which are those that it is called with."""
        for node in graph.nodes:
            if node in numbers:
                continue
            bodies = [used for used in node.all_input_nodes if used.op == "get_attr" and self.body(prefix, used) is not None]
            for used in bodies:  # Of an operation such as activation checkpointing.
                body = self.body(prefix, used)
                given = [numbers[other] for other in node.all_input_nodes if other not in bodies]
                inputs = [inner for inner in body.nodes if inner.op == "placeholder"]
                known = dict(zip(inputs, given)) if len(inputs) == len(given) else {}  # noqa: B905
                self.add(body, f"{prefix}{used.target}.", known)
            numbers[node] = len(self.nodes)
            trace, around = self.origin(node)
            self.nodes.append(
                {
                    "name": node.name,
                    "placeholder": node.op == "placeholder" and not prefix,
                    "trace": self.traces.setdefault(trace, len(self.traces)) if trace else None,
                    "modules": self.modules.setdefault(around, len(self.modules)),
                    "inputs": [numbers[used] for used in node.all_input_nodes],
                }
            )

    def origin(self, node):
        """The trace of a node, and the modules around it."""
        trace, stack = node.meta.get("stack_trace"), node.meta.get("nn_module_stack")
        if self.is_backward:
            captured = self.captured.get(node.name, {})
            trace = next(filter(_is_of_the_program, (trace, captured.get("stack_trace"))), None)
            stack = stack or captured.get("nn_module_stack") or captured.get("fwd_nn_module_stack")
        return trace, tuple(_described_module(address, *known) for address, known in (stack or {}).items())

    def outermost(self, reader):
        """Outermost modules that are called by no other, by address, as weak references."""
        found = {}
        for path, _, address in {around[0] for around in self.modules if around and around[0][2]}:
            held = _SCOPE.match(path)
            scope = held and (self.output.local_scope if held[1] == "L" else self.output.global_scope)
            holder = reader.copied(scope).get(held[2]) if held else None
            for _, part in reader.parts(holder) if reader.is_module(holder) else ():
                if id(part) == address:
                    found[address] = weakref.ref(part)
        return found

    def body(self, prefix, node):
        return getattr(self.parts.get(f"{prefix}{node.target}"), "graph", None)

    def as_json(self):
        modules = [
            [{"path": path, "class": kind, "address": address} for path, kind, address in around] for around in self.modules
        ]
        return json.dumps({"traces": list(self.traces), "modules": modules, "nodes": self.nodes})


def _described_module(address, path, kind):
    name = getattr(kind, "__name__", None) or str(kind).rpartition(".")[2]
    return str(path), name, int(address) if str(address).isdigit() else 0


def _is_of_the_program(trace):
    """Whether it says a line of the program: not of a graph's code, nor that there is none."""
    if not trace:
        return False
    last = trace.rfind("  File ")
    return not trace.startswith(_GENERATED_FILE, last) and _NO_ORIGIN.search(trace) is None


def _traces_of_lines(wrapper):
    """For lines of a wrapper, the trace of the last node of what is launched from there on."""
    cache: Any = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
    lines, nodes = (getattr(cache, "linemaps", {}).get(wrapper) or ((), ()))[:2]
    traces: dict = {}
    starts = [[line, traces.setdefault(trace, len(traces)) if trace else None] for line, trace in zip(lines, nodes)]  # noqa: B905
    return {"lines": starts, "traces": list(traces)}


def _wrappers_of(function, reader):
    """The paths of the wrappers that a compiled function runs. Looks at what PyTorch holds, and calls none of it."""
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
            if "<locals>" in thing.__qualname__ and str(thing.__module__).startswith(_MADE_BY):
                waiting += vars(thing).values()
        elif str(kind.__module__).startswith(_MADE_BY) or _is_runner(kind):
            if kind.__name__ == "partial":
                waiting += [thing.func, *thing.args]
            waiting += [*(getattr(thing, "__dict__", None) or {}).values()]
            waiting += [getattr(thing, name) for name in getattr(kind, "__slots__", ()) if hasattr(thing, name)]
    return found


def _is_runner(kind):
    """Whether it is the class `Runner` of a wrapper."""
    call = kind.__dict__.get("call")
    return type(call) is types.FunctionType and _WRAPPER.fullmatch(call.__code__.co_filename) is not None
