"""The agent: finds the names of modules, parameters, gradients and optimizer state, which requires Python.

Embedded in libmemlab.so and run inside the traced program, on its main thread, after the program has called modules
that are new to memlab, and after optimizers' steps. It must not keep the program's objects alive, change them, or
raise: it must have no effect on the program. Names are read without PyTorch's help. Tags need PyTorch, and are put off
while a call of PyTorch would be recorded (`reader.py`).

`native` has: layer(id, name, class or "", variable or "", layer id of a replica's outermost module), tensorless(layer
id), frame(id, file, line, function), variables(), arguments(), replicas(), instances(class, gc.get_objects),
tag(device, address, category, bytes, root, name, sharding), parallel(json), step_hook(), add_step_hook(hooks, key,
code), measure_data_wait(class), await_backward(seconds), is_in_backward(), forget(address), when_dead(address),
take_dead(), software(name, version, root), is_compiling(), compilation_is_watched(), compiled_graph(json),
compiled_wrapper(path, json), compiled_origin(frame), compiled_root(class, variable), package_node(frame), warn(text),
spilled(device), host_has(bytes), run_again(), run_later(), out_of_memory(device, bytes, device_bytes, free_bytes), finish(),
hold_signals(), release_signals(), and `reader`, the module.
"""

import atexit
import collections
import functools
import itertools
import os
import re
import sys
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # These files run before this one, in the same namespace.
    from compiled import _Compiled
    from fit import start_fit
    from graphs import _SCOPE
    from guards import _dictionary, _Harmless, _interrupted
    from spill import start_spilling
    from tags import _Tagger
    from throttle import _Throttle

_SOURCE_LINE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')

_GETATTR = re.compile(r"getattr\(([^()]*), '([^']*)'\)")
_LOCAL = re.compile(r"^[A-Z]\['[^']*'\]")
_ITEM = re.compile(r"\[['\"]?([^]'\"]*)['\"]?\]")

_NODE = 0xFFFFFFFF  # In place of a frame: the layer is a graph's node, run by torch.fx's interpreter.


def _described(error):
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _qualified(path):
    """Returns the module's name in the graph's outermost module. Its path has the form L['self'].h.1.out, L['self'][1].out,
    getattr(L['fn'], '1').out or L['self']._modules['1']."""
    while (shorter := _GETATTR.sub(r"\1.\2", path)) != path:
        path = shorter
    return _ITEM.sub(r".\1", _LOCAL.sub("", path)).replace("._modules", "").strip(".")


def _no_object():
    """Stands for a weak reference to a dead object."""
    return None


class Agent:
    def __init__(self, native, torch):
        self.native = native
        self.torch = torch
        self.reader = native.reader.Reader(torch, native.instances)
        self.pid = os.getpid()  # A forked child has another agent.
        self.layers = {}  # layer id -> (weak module, root layer id, qualified name)
        self.layers_of = {}  # id(module) -> its layer ids
        self.watched = {}  # id(module) -> weakref whose death forgets the address
        self.roots: dict = {}  # layer id -> weak root module
        self.heap_searches = _Throttle()
        self.put_off: list = []  # Layers of `resolve` whose modules the next heap search may find.
        self.compiled = _Compiled(native, self.reader)
        self.packages: dict = {}  # path of an AOTInductor package that no module calls -> its layer id
        self.compiled_roots: dict = {}  # (path, class) of a module that only compiled code runs -> its layer id
        self.tags = _Tagger(native, torch, self.reader, self.roots, self.forget_dead, self.warn_once)
        # Called by the library.
        self.after_step, self.after_backward, self.asked = self.tags.after_step, self.tags.after_backward, self.tags.asked
        self.finished = False
        self.warned = False
        self.torch_folder = os.path.dirname(os.path.abspath(torch.__file__))
        native.software("torch", str(torch.__version__), self.torch_folder)
        self.has_step_hook = False
        self.has_oom_observer = False
        self.fit = None
        self.spilling = None

    def attach(self):
        self.register_step_hook()
        self.register_oom_observer()
        self.measure_data_wait()
        with _Harmless(lambda error: self.native.warn(f"--fit is not applied ({_described(error)})")):
            self.fit = start_fit(self.native, self.torch, self.tags.tag_state)
        with _Harmless(lambda error: self.native.warn(f"memory beyond the limit stays on the host ({_described(error)})")):
            self.spilling = start_spilling(self.native, self.torch, self.tags.tag_state, self.fit)
        atexit.register(self.native.release_signals)  # Called after `at_exit`: handlers then run outside of memlab's frames.
        atexit.register(self.at_exit)

    def detach(self):
        atexit.unregister(self.at_exit)
        atexit.unregister(self.native.release_signals)

    def register_step_hook(self):
        """Registers a function of the library that PyTorch calls after each optimizer step. It is registered once in a
        process and never removed.

        PyTorch raises in the program if hooks are added or removed while it calls them, even on another thread. The library
        therefore adds the hook only to an empty dictionary or while no thread is in a step; otherwise it retries later.
        """
        # Not an attribute of `torch.optim`, which deletes the name.
        module: Any = sys.modules.get("torch.optim.optimizer")
        hooks = getattr(module, "_global_optimizer_post_hooks", None)  # Absent before PyTorch 2.1.
        if self.has_step_hook or type(hooks) is not collections.OrderedDict:
            return
        hook = self.native.step_hook()
        known = dict.copy(hooks)
        if any(value is hook for value in known.values()):  # Added by the process from which this one was forked.
            self.has_step_hook = True
            return
        # PyTorch's keys count up from 0 and are visible to the program, so this key is negative.
        key = next(number for number in itertools.count(-1, -1) if number not in known)
        step = next(
            constant
            for constant in module.Optimizer.profile_hook_step.__code__.co_consts
            if getattr(constant, "co_name", None) == "wrapper"
        )
        self.has_step_hook = self.native.add_step_hook(hooks, key, step)
        if not self.has_step_hook:
            self.native.run_later()

    def measure_data_wait(self):
        """Measures the time in which the program waits for a DataLoader, if GPU time is recorded."""
        loaders = sys.modules.get("torch.utils.data.dataloader")
        iterator = getattr(loaders, "_BaseDataLoaderIter", None)
        if iterator is not None:
            with _Harmless():
                self.native.measure_data_wait(iterator)

    def register_oom_observer(self):
        """Makes PyTorch call memlab before it raises an out-of-memory error: what holds the memory is known only then.

        Only once the program has initialized CUDA in PyTorch, because registering does that.
        """
        if not self.has_oom_observer and self.torch.cuda.is_initialized():
            self.has_oom_observer = True
            with _Harmless():
                self.torch._C._cuda_attach_out_of_memory_observer(self.native.out_of_memory)

    # Modules ---------------------------------------------------------------------------------------------------------

    def resolve(self, unnamed):
        """Names layers. `unnamed`: (layer id, parent layer id, module or None, its address, frame of generated code or _NODE
        or 0, its line, the name of its class, the path of the frame's wrapper or ""), callers before callees.

        A signal handler of the program may raise at any point. Layers without a name are then passed here once more. So a
        layer gets its name last, and modules that are already watched take no time.
        """
        try:
            self.name_all(unnamed)
            with _Harmless():
                self.register_step_hook()
                self.register_oom_observer()
                self.compiled.watch()
            # After all names: tagging may take long.
            self.tags.tag_arguments()
            self.tags.tag_new()
        except BaseException as error:
            if _interrupted(error):
                self.native.run_again()
            raise

    def name_all(self, unnamed):
        graph_modules: dict = {}
        found: dict = {}  # Keeps them alive until they are named.
        unnamed = [*self.put_off, *unnamed]
        put_off: dict = {}
        is_searched = True
        with _Harmless():
            self.forget_dead()
            is_searched = self.search(unnamed, found)
        for layer, parent, module, address, generated, line, kind, wrapper in unnamed:
            with _Harmless(functools.partial(self.warn_once, f"a layer keeps its class name, {kind}")):
                if wrapper:
                    node = self.native.package_node(generated)
                    if node is None:
                        self.name_wrapper(layer, parent, generated, wrapper)
                    else:
                        self.name_package_node(layer, parent, wrapper, node)
                    continue
                if module is None:
                    module = self.alive_at(address)
                if generated and module is None:
                    graph_modules = graph_modules or self.find_graph_modules()
                    module = self.graph_part_at(address, graph_modules)
                if generated == _NODE:
                    if module is not None:
                        self.name_node(layer, parent, module, None)
                elif generated:
                    self.name_generated(layer, parent, module, generated, line)
                elif parent in put_off or (module is None and not is_searched):
                    put_off[layer] = (layer, parent, None, address, 0, line, kind, "")
                elif module is not None and self.reader.is_module(module):
                    self.name_module(layer, parent, module)
                else:
                    self.native.forget(address)  # It died before it could be read; it keeps its class name.
        self.put_off = list(put_off.values())
        if put_off:
            self.native.run_later()

    def name_module(self, layer, parent, module):
        self.watch(module)
        if parent != 0:
            name = self.name_below(parent, module)
            if name is not None:
                self.add_layer(layer, module, self.layers[parent][1], name)
                self.native.layer(layer, name, "", "")
            return
        for _, submodule in self.reader.parts(module):
            self.watch(submodule)
        original, name = self.original_of(module)
        if original != 0:
            self.add_layer(layer, module, original, name)
            self.native.tensorless(layer)  # The next replica takes over this layer.
            self.native.layer(layer, name, "", "", original)
            return
        root, name = self.running_root(module)
        if root != 0:
            self.add_layer(layer, module, root, name)
            self.native.layer(layer, name, "", "", root)
            return
        self.add_layer(layer, module, layer, "")
        self.roots[layer] = weakref.ref(module)
        variable = ""
        # Losses and similar modules are created at every step: modules without tensors need no tags.
        if self.reader.has_tensors(module):
            self.tags.met_model()
            with _Harmless():
                variable = self.variable_of(module)
        else:
            self.native.tensorless(layer)
        compiled = self.reader.compiled(module)
        kind = self.reader.class_name(type(compiled)) if compiled is not None else ""
        self.native.layer(layer, "", kind, variable)

    def running_root(self, module):
        """Returns (layer, qualified name in it) of the outermost running module that runs `module` and whose class overrides
        `__call__`, which may bypass PyTorch's; 0 if no such module exists."""
        for _, _, value in reversed(self.native.variables()):
            if value is not module and self.reader.is_module(value) and self.reader.has_own_call(type(value)):
                name = self.reader.name_in(value, module)
                if name is not None:
                    known = (layer for layer, reference in list(self.roots.items()) if reference() is value)
                    kind = self.reader.class_name(type(value))
                    return next(known, 0) or self.add_root(kind, self.variable_of(value), value), name
        return 0, ""

    def original_of(self, replica):
        """Returns (layer of the outermost module, qualified name in it) of the module that `nn.DataParallel` has copied; 0
        if unknown. A copy has a separate dictionary that contains the same objects."""
        if self.reader.attribute(replica, "_is_replica") is not True:
            return 0, ""
        hooks = self.reader.attribute(replica, "_forward_hooks")
        for layer, reference in list(self.roots.items()):
            root = reference()
            for name, part in self.reader.parts(root) if root is not None else ():
                if part is not replica and self.reader.attribute(part, "_forward_hooks") is hooks:
                    return layer, name
        return 0, ""

    def variable_of(self, module):
        """Returns the variable, or attribute of an object, that holds an outermost module that is being called; "" if none
        does."""
        main = _dictionary(sys.modules.get("__main__"))
        named = self.reader.name_held(main, module)
        if named:
            return named
        running = self.native.variables()
        for name, address, _ in running:
            if address == id(module) and name != "self" and not name.startswith("_"):
                return name
        for name, _, value in running:
            if name == "self" and value is not None:
                attribute = self.reader.attribute_held(value, module)
                if attribute:
                    return f"{self.reader.class_name(type(value))}.{attribute}"
        return ""

    def add_layer(self, layer, module, root, name):
        self.layers[layer] = (weakref.ref(module), root, name)
        self.layers_of.setdefault(id(module), []).append(layer)

    def warn_once(self, what, error):
        if not self.warned:
            self.warned = True
            self.native.warn(f"{what} ({_described(error)})")

    def search(self, unnamed, found):
        """Fills `found` with the modules, by address, that have no layer and that no thread runs any more: threads called
        them while the main thread waited. Replicas of `nn.DataParallel` are on the stack. Others require a search of the
        whole heap, so it is done rarely. Returns True if another search is pointless, False if it is too early for one."""
        wanted = {
            address: kind
            for _, _, module, address, generated, _, kind, _ in unnamed
            if module is None and not generated and self.alive_at(address) is None
        }
        if not wanted:
            return True
        replicas = [module for modules in self.native.replicas() for module in self.reader.modules_in(modules)]
        found.update((id(part), part) for replica in replicas for _, part in self.reader.parts(replica))
        is_complete = wanted.keys() <= found.keys()
        if not is_complete and self.heap_searches.is_open():
            with self.heap_searches:
                found.update(
                    (id(module), module)
                    for module in self.reader.on_heap(self.torch.nn.Module)
                    if wanted.get(id(module)) == self.reader.class_name(type(module))
                )
                is_complete = True
        for module in [*replicas, *found.values()]:
            for _, part in self.reader.parts(module):
                self.watch(part)
        return is_complete

    # Code generated by torch.fx (torch.compile's backends) ------------------------------------------------------------

    def find_graph_modules(self):
        """Graph modules by address. Searches the whole heap, but only for code run by autograd's own threads."""
        return {id(module): module for module in self.reader.on_heap(self.torch.fx.GraphModule)}

    def name_generated(self, layer, parent, module, frame, line):
        """Assigns a line of generated code to the module and the source line from which its graph node was traced."""
        if not self.reader.is_kind(module, self.torch.fx.GraphModule):
            return
        lines, prologue, code = map(
            functools.partial(self.reader.attribute, module), ("_lineno_map", "_prologue_start", "_code")
        )
        if prologue is None:  # Older versions also count from there, without reporting it.
            prologue = str(code).partition("def forward(")[0].count("\n") + 1
        index = self.reader.copied(lines).get(line - prologue)
        node = next(itertools.islice(self.nodes_of(module), index, None), None) if index is not None else None
        if node is None:
            return
        source = _SOURCE_LINE.findall(node.meta.get("stack_trace") or "")
        if source:
            # Exported graphs also contain the lines of PyTorch's modules.
            of_program = [found for found in source if not found[0].startswith(self.torch_folder + os.sep)]
            file, line, function = (of_program or source)[-1]
            self.native.frame(frame, file, int(line), function)
        self.name_node(layer, parent, node, module)

    def nodes_of(self, module):
        graph = self.reader.attribute(module, "_graph")
        return () if graph is None else graph.nodes

    def graph_part_at(self, address, graph_modules):
        """Returns the graph module, or the node of one, at the address."""
        nodes = (node for module in graph_modules.values() for node in self.nodes_of(module))
        return graph_modules.get(address) or next((node for node in nodes if id(node) == address), None)

    def name_node(self, layer, parent, node, module):
        """Assigns a graph's node to the module from which it was traced. `module`: the graph module, if known."""
        modules = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
        caller, _, caller_name = self.layers.get(parent, (_no_object, 0, ""))
        # Without modules, autograd created the node, such as the sum of two gradients. A part of an unflattened program is
        # called as a module, and runs nothing of other modules.
        if not modules or self.reader.class_name(type(caller())) == "InterpreterModule":
            self.name_as_caller(layer, parent)
            return
        address, (path, kind) = next(reversed(modules.items()))
        traced = self.alive_at(int(address)) if str(address).isdigit() else None
        name = self.name_below(parent, traced) if traced is not None else None
        if name is None:
            name = ".".join(filter(None, [caller_name, _qualified(str(path))]))
        if parent in self.layers:
            owner = traced if traced is not None else module if module is not None else caller()
            if owner is not None:
                self.add_layer(layer, owner, self.layers[parent][1], name)
        self.native.layer(layer, name, self.reader.name_of_class(kind), "")

    def name_as_caller(self, layer, parent):
        if parent in self.layers:
            caller, root, name = self.layers[parent]
            if caller() is not None:
                self.add_layer(layer, caller(), root, name)
                self.native.layer(layer, name, self.reader.class_name(type(caller())), "")

    def name_wrapper(self, layer, parent, frame, wrapper):
        """Assigns a line of Inductor's code to the module for whose operation it allocates memory."""
        self.compiled.meet(wrapper)
        modules = self.native.compiled_origin(frame)
        if not modules:
            self.name_as_caller(layer, parent)  # Outside of all modules it stays without a class, and is not a layer.
            return
        path, kind, _ = modules[-1]
        name = _qualified(path)
        outermost = parent
        if parent in self.layers:
            owner, root, caller = self.layers[parent]
            name = ".".join(filter(None, [caller, name]))
            if owner() is not None:
                self.add_layer(layer, owner(), root, name)
        elif parent == 0:
            outermost, caller = self.compiled_root(*modules[0])
            name = ".".join(filter(None, [caller, name.removeprefix(_qualified(modules[0][0])).lstrip(".")]))
        self.native.layer(layer, name, kind, "", outermost)

    def name_package_node(self, layer, parent, package, node):
        """Gives a node of an AOTInductor package a name below the module that calls the package."""
        outermost, name = parent, node
        if parent in self.layers:
            caller, root, caller_name = self.layers[parent]
            name = ".".join(filter(None, [caller_name, node]))
            if caller() is not None:
                self.add_layer(layer, caller(), root, name)
        elif parent == 0:
            if package not in self.packages:
                self.packages[package] = self.native.compiled_root("AOTInductor", "")
            outermost = self.packages[package]
        self.native.layer(layer, name, "AOTInductor", "", outermost)

    def compiled_root(self, path, kind, address):
        """Returns (layer, name in it) of an outermost module that is not called: the function that calls it is compiled, or
        it is the backward of a compiled function."""
        for layer, reference in list(self.roots.items()):
            root = reference()
            for name, part in self.reader.parts(root) if root is not None else ():
                if id(part) == address and self.reader.class_name(type(part)) == kind:
                    return layer, name
        key = path, kind, address
        if key not in self.compiled_roots:
            module = self.compiled.outermost_at(address)
            held = _SCOPE.fullmatch(path)
            variable = (self.variable_of(module) if module is not None else "") or (held[2] if held else "")
            self.compiled_roots[key] = self.add_root(kind, variable, module)
        return self.compiled_roots[key], ""

    def add_root(self, kind, variable, module):
        """Adds the layer of an outermost module that PyTorch's `__call__` does not call, and returns it."""
        layer = self.native.compiled_root(kind, variable)
        if module is not None:
            self.watch(module)
            self.add_layer(layer, module, layer, "")
            self.roots[layer] = weakref.ref(module)
            self.tags.met_model()
        return layer

    def alive_at(self, address):
        watched = self.watched.get(address)
        return watched() if watched is not None else None

    def name_below(self, parent, module):
        reference, root_layer, caller_name = self.layers.get(parent, (_no_object, 0, ""))
        caller = reference()
        if caller is None:
            return None
        if module is self.reader.compiled(caller):
            return caller_name
        relative = next((name for name, child in self.reader.children(caller) if child is module), None)
        if relative is None:
            relative = self.reader.name_in(caller, module)
        if relative is None:  # Not registered in its caller: held in a list, or passed as an argument.
            root = self.roots.get(root_layer, _no_object)()
            if root is not None:
                found = self.reader.name_in(root, module)
                if found is not None:
                    return found
            relative = f"({self.reader.class_name(type(module))})"
        return f"{caller_name}.{relative}" if caller_name else relative

    def watch(self, module):
        address = id(module)
        known = self.watched.get(address)
        if known is not None and known() is module:
            return
        self.forget_address(address)
        self.watched[address] = weakref.ref(module, self.native.when_dead(address))

    def forget_dead(self):
        """Forgets modules that died: other objects may have their addresses by now."""
        for address in self.native.take_dead():
            if self.alive_at(address) is None:
                self.forget_address(address)

    def forget_address(self, address):
        self.watched.pop(address, None)
        for layer in self.layers_of.pop(address, ()):
            self.layers.pop(layer, None)
            self.roots.pop(layer, None)

    def at_exit(self):
        """Tags the live tensors once more before Python tears the program down."""
        if not self.finished and os.getpid() == self.pid:
            self.finished = True
            self.native.hold_signals()
            try:
                with _Harmless():
                    if self.put_off:
                        self.heap_searches.reopen()
                        self.name_all([])
                    self.tags.last()
            finally:
                self.native.finish()


def start(native):
    torch = sys.modules.get("torch")
    if torch is None or not {"optim", "nn"} <= vars(torch).keys():  # Still being imported.
        return None
    agent = None
    try:
        agent = Agent(native, torch)
        agent.attach()
        if native.earlier is not None:
            with _Harmless(lambda error: native.warn(f"PyTorch's earlier allocations are missing ({_described(error)})")):
                native.earlier.look(native, torch)
        return agent
    except BaseException as error:
        if agent is not None:
            agent.detach()
        if _interrupted(error):
            native.run_again()
            raise
        native.warn(f"layers keep their class names ({_described(error)})")
        return None
