"""Descriptions of the graphs of TorchDynamo, as the library reads them.

Run in the namespace of `agent.py`, before `compiled.py`.
"""

import json
import re
import weakref

_SCOPE = re.compile(r"^([LG])\['([^']*)'\]")  # Start of a path: a variable of the function, or of its file.
_GENERATED_FILE = '  File "<eval_with_key>'
# Appears in traces of operations for which compiled autograd has no line.
_NO_ORIGIN = re.compile(r"/torch/_dynamo/compiled_autograd\.py\", line [0-9]+, in set_node_origin\b")


class _Description:
    """The operations of a graph in order, with the operations of called graphs in their place."""

    def __init__(self, output, reader):
        self.output = output
        self.reader = reader
        self.traces, self.modules, self.nodes, self.results = {}, {}, [], []
        self.parts = dict(reader.parts(output.graph.owning_module))
        captured = output.local_scope.get("self")
        if reader.class_name(type(captured)).startswith("CompiledAutograd"):
            self.add_backward(output.graph, _CapturedBackward(captured))
        else:
            self.add(output.graph, "", {})

    def add(self, graph, prefix, numbers):
        """Adds a graph. `numbers`: numbers of the graph's known nodes, which are the arguments of its call."""
        for node in graph.nodes:
            if node in numbers:
                continue
            bodies = [used for used in node.all_input_nodes if used.op == "get_attr" and self.body(prefix, used) is not None]
            is_autograd = self.operator(node) == "autograd_function_apply"
            for used in bodies:  # Bodies of an operation such as activation checkpointing.
                body = self.body(prefix, used)
                given = [numbers[other] for other in node.all_input_nodes if other not in bodies]
                inputs = [inner for inner in body.nodes if inner.op == "placeholder"]
                # With several bodies, only the forward of an autograd function certainly takes the operation's arguments.
                is_called_alike = len(inputs) == len(given) and (len(bodies) == 1 or (is_autograd and used is bodies[0]))
                known = dict(zip(inputs, given)) if is_called_alike else {}  # noqa: B905
                self.add(body, f"{prefix}{used.target}.", known)
            numbers[node] = len(self.nodes)
            is_input = node.op == "placeholder" and not prefix
            trace, modules = node.meta.get("stack_trace"), node.meta.get("nn_module_stack")
            self.add_node(node.name, is_input, trace, modules, [numbers[used] for used in node.all_input_nodes])
            self.nodes[-1]["parameters"] = self.parameters(node, numbers)

    def add_backward(self, graph, backward):
        """Adds the graph of a backward that compiled autograd has captured. Its inputs come in one list."""
        numbers: dict = {}
        for node in [*backward.inputs(graph), *graph.nodes]:
            passed = backward.passed(node)
            if node.op == "output":
                results = [numbers.get(result) for result in _flat(node.args)]
                self.results = [result for result in results if result is not None]
            elif passed is not None:
                numbers[node] = numbers.get(passed)
            elif node not in numbers and not backward.is_list(node) and not backward.passes(node):
                inputs = [numbers[used] for used in node.all_input_nodes if numbers.get(used) is not None]
                numbers[node] = len(self.nodes)
                self.add_node(node.name, backward.is_input(node), *backward.origin(node), inputs)

    def add_node(self, name, is_input, trace, modules, inputs):
        around = tuple(
            (str(path), self.reader.name_of_class(kind), int(address) if str(address).isdigit() else 0)
            for address, (path, kind) in (modules or {}).items()
        )
        self.nodes.append(
            {
                "name": name,
                "placeholder": is_input,
                "trace": self.traces.setdefault(trace, len(self.traces)) if trace else None,
                "modules": self.modules.setdefault(around, len(self.modules)),
                "inputs": inputs,
            }
        )

    def outermost(self):
        """Returns the outermost modules that no other module calls, by address, as weak references."""
        found = {}
        for path, _, address in {around[0] for around in self.modules if around and around[0][2]}:
            held = _SCOPE.match(path)
            scope = held and (self.output.local_scope if held[1] == "L" else self.output.global_scope)
            holder = self.reader.copied(scope).get(held[2]) if held else None
            for _, part in self.reader.parts(holder) if self.reader.is_module(holder) else ():
                if id(part) == address:
                    found[address] = weakref.ref(part)
        return found

    def body(self, prefix, node):
        part = self.parts.get(f"{prefix}{node.target}")
        return self.reader.attribute(part, "_graph") if self.reader.is_kind(part, self.reader.torch.fx.GraphModule) else None

    def operator(self, node):
        """Returns the name of the higher-order operator that a node calls; "" for others, which may be the program's
        objects."""
        is_operator = self.reader.is_kind(node.target, self.reader.torch._ops.HigherOrderOperator)
        return str(node.target) if is_operator else ""

    def parameters(self, node, numbers):
        """Returns the arguments of a call to a kernel written by the program, by parameter."""
        given = node.kwargs.get("kwargs") if self.operator(node).startswith("triton_kernel_wrapper") else None
        if not isinstance(given, dict):
            return {}
        return {name: numbers[taken] for name, taken in given.items() if type(taken) is type(node) and taken in numbers}

    def as_json(self):
        modules = [
            [{"path": path, "class": kind, "address": address} for path, kind, address in around] for around in self.modules
        ]
        return json.dumps({"traces": list(self.traces), "modules": modules, "nodes": self.nodes, "results": self.results})


class _CapturedBackward:
    """A backward that compiled autograd has captured. TorchDynamo traces the code of that graph, so its nodes know little
    but their names, which are the same."""

    def __init__(self, captured):
        self.known = {node.name: node.meta for node in captured.graph.nodes}

    def origin(self, node):
        """Returns the trace of a node, and the modules around it."""
        known = self.known.get(node.name, {})
        trace = next(filter(_is_of_the_program, (node.meta.get("stack_trace"), known.get("stack_trace"))), None)
        modules = (node.meta.get("nn_module_stack"), known.get("nn_module_stack"), known.get("fwd_nn_module_stack"))
        return trace, next(filter(None, modules), None)

    def inputs(self, graph):
        """Returns the inputs of the graph in order: those in a list one by one."""
        inputs = []
        for node in graph.nodes:
            if node.op == "placeholder":
                inputs += sorted(node.users, key=lambda item: item.args[1]) if self.is_list(node) else [node]
        return inputs

    def is_input(self, node):
        return node.op == "placeholder" or (self.is_item(node) and node.args[0].op == "placeholder")

    def is_list(self, node):
        """Returns True for an input of which only items are used."""
        return node.op == "placeholder" and all(self.is_item(user) for user in node.users)

    def is_item(self, node):
        return getattr(node.target, "__name__", "") == "getitem" and isinstance(node.args[1], int)

    def passes(self, node):
        """Returns the values that an operation of compiled autograd passes on; none for other operations."""
        kind, arguments = getattr(node.target, "__name__", ""), node.args
        if kind in ("validate_outputs", "AccumulateGrad"):
            return _flat(arguments[0])
        if kind == "call_aot_bwd_prologue":
            saved, sizes, *others = arguments
            return [*_flat(sizes), *_flat(saved), *_flat(others)]
        return []

    def passed(self, node):
        """Returns the node whose value this one only passes on."""
        if not self.is_item(node):
            return None
        source, index = node.args
        values = self.passes(source)
        return values[index] if index < len(values) and hasattr(values[index], "op") else None


def _flat(value):
    return [inner for item in value for inner in _flat(item)] if isinstance(value, (list, tuple)) else [value]


def _is_of_the_program(trace):
    """Returns True if the trace contains a line of the program: it must not end in a graph's code, or report a missing
    origin."""
    if not trace:
        return False
    last = trace.rfind("  File ")
    return not trace.startswith(_GENERATED_FILE, last) and _NO_ORIGIN.search(trace) is None
