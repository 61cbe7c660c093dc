"""Reads modules, optimizers and tensors without running any code of the program.

Programs override methods, properties and `__getattr__` of modules, and tensor subclasses override operations. So no
method of the objects is called. Attributes come from the instances' dictionaries. The facts about a tensor come from
functions of PyTorch's base class that run no operation, with overrides disabled. PyTorch still reports these calls to
recorders that are active on the thread (a JIT trace records `numel`), so tensors must not be read while `is_watched`.
"""

import gc
import sys
import types

# A metaclass of the program may override `kind.__name__`, `kind.__mro__` and `kind.__dict__`.
class_name = type.__dict__["__name__"].__get__
bases = type.__dict__["__mro__"].__get__
namespace = type.__dict__["__dict__"].__get__


_module = type.__dict__["__module__"].__get__


def module_name(kind):
    """Returns the name of the module in which a class was created; "" if the class has something else in its place."""
    name = _module(kind)
    return name if type(name) is str else ""


def name_of_class(kind):
    """Returns the name of a class, or of one that is given as the text `module.Class`."""
    return class_name(kind) if is_kind(kind, type) else str(kind).rpartition(".")[2]


_is_subclass = type.__dict__["__subclasscheck__"]


def is_kind(thing, kind):
    """Works like isinstance, but ignores `__class__` and metaclasses."""
    return _is_subclass(kind, type(thing))


def copied(thing):
    """Copies a dictionary of the program, atomically and without calling a subclass's methods."""
    return dict.copy(thing) if is_kind(thing, dict) else {}


def listed(thing):
    return list.copy(thing) if is_kind(thing, list) else list(thing) if type(thing) is tuple else []


_PARTS_OF_SPARSE = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}

_ARGUMENTS = 64  # Maximum number of items read from a list of arguments.


class Reader:
    class_name = staticmethod(class_name)
    module_name = staticmethod(module_name)
    name_of_class = staticmethod(name_of_class)
    namespace = staticmethod(namespace)
    is_kind = staticmethod(is_kind)
    copied = staticmethod(copied)

    def __init__(self, torch, instances):
        self.torch = torch
        self.instances = instances
        base = torch.Tensor.__mro__[1]  # Its name differs between versions.
        self.ask = ask = base.__dict__
        self.is_on_gpu = ask["is_cuda"].__get__
        self.device = ask["device"].__get__
        self.layout = ask["layout"].__get__
        self.elements = ask["numel"]
        self.element_size = ask["element_size"]
        self.is_leaf = ask["is_leaf"].__get__
        self.retains_gradient = ask["retains_grad"].__get__
        self.gradient = ask["grad"].__get__
        # Calling `data_ptr` of a copy-on-write tensor would copy it.
        self.storage_address = getattr(torch._C, "_data_address", None)
        self.offset = ask["storage_offset"]
        self.address = ask["data_ptr"]
        self.own_types = (torch.Tensor, torch.nn.Parameter)
        self.plain_dispatch = torch.Tensor.__dict__.get("__torch_dispatch__")
        self.attributes_of_module = torch.nn.Module.__dict__["__dict__"].__get__
        self.attributes_of_tensor = torch.Tensor.__dict__["__dict__"].__get__
        functorch = getattr(torch._C, "_functorch", None)
        self.tracing_state = getattr(torch._C, "_get_tracing_state", lambda: None)
        self.transform = getattr(functorch, "peek_interpreter_stack", lambda: None)
        self.dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
        self.function_modes = getattr(torch._C, "_len_torch_function_stack", lambda: 0)
        self.function_mode = getattr(torch._C, "_get_function_stack_at", lambda index: None)
        self.is_profiled = getattr(torch._C._autograd, "_profiler_enabled", lambda: False)

    def is_watched(self):
        """Returns True if this thread's calls of PyTorch are recorded: by a JIT trace, an export, a transform, or a mode."""
        if self.tracing_state() is not None or self.transform() is not None or self.dispatch_modes() > 0:
            return True
        # The permanent mode of `torch.set_default_device` sees only functions that create tensors.
        modes = (class_name(type(self.function_mode(index))) for index in range(self.function_modes()))
        if any(mode != "DeviceContext" for mode in modes):
            return True
        modules = sys.modules
        symbolic = getattr(modules.get("torch.fx._symbolic_trace"), "__dict__", {})
        compiler = getattr(modules.get("torch.compiler"), "__dict__", {})
        if (
            symbolic.get("_is_fx_tracing_flag")  # Process-wide, in versions where it is not thread-local.
            or getattr(symbolic.get("_is_fx_tracing_tls"), "flag", False)
            or compiler.get("_is_compiling_flag")
            or compiler.get("_is_exporting_flag")
        ):
            return True
        guards = getattr(getattr(modules.get("torch._guards"), "_TLS", None), "__dict__", {})
        if guards.get("compile_context") is not None or guards.get("tracing_context") is not None:
            return True
        # Before CPython 3.11 memlab cannot hide its functions from profilers that record calls.
        return sys.version_info < (3, 11) and self.is_profiled()

    # Modules ---------------------------------------------------------------------------------------------------------

    def is_module(self, thing):
        return is_kind(thing, self.torch.nn.Module)

    def has_own_call(self, kind):
        called = next(base.__dict__["__call__"] for base in kind.__mro__ if "__call__" in base.__dict__)
        return called is not self.torch.nn.Module.__dict__["__call__"]

    def attribute(self, module, name):
        return self.attributes_of_module(module).get(name)

    def children(self, module):
        """(name, module) of each child."""
        known = self.attribute(module, "_modules")
        if known is not None and not is_kind(known, dict):  # Of a script module.
            known = getattr(known, "__dict__", {}).get("_python_modules")
        return [(name, child) for name, child in copied(known).items() if type(name) is str and self.is_module(child)]

    def parts(self, root):
        """Yields (qualified name, module) of a module and its descendants, each once, in the order of `named_modules`."""
        met = set()
        waiting = [("", root)]
        while waiting:
            name, module = waiting.pop()
            if id(module) in met:
                continue
            met.add(id(module))
            yield name, module
            prefix = name + "." if name else ""
            below = [(prefix + child_name, child) for child_name, child in reversed(self.children(module))]
            compiled = self.compiled(module)
            waiting += [(name, child) if child is compiled else (path, child) for path, child in below]

    def compiled(self, module):
        """Returns the module that torch.compile, or torch.export while it traces, wraps in this one; both are one layer.
        None for other modules."""
        wrapped = {"OptimizedModule": "_orig_mod", "Wrapper": "_export_root"}.get(class_name(type(module)))
        return wrapped and next((child for name, child in self.children(module) if name == wrapped), None)

    def on_heap(self, kind):
        """Returns all objects of a class that the garbage collector tracks."""
        return self.instances(kind, gc.get_objects)

    def uncalled(self, called):
        """Returns (name, module) of the outermost modules on the heap that are neither among `called` nor below one of
        them."""
        known = {id(part) for root in called for _, part in self.parts(root)}
        found = [module for module in self.on_heap(self.torch.nn.Module) if id(module) not in known]
        below = {id(child) for module in found for _, child in self.children(module)}
        return [(class_name(type(module)), module) for module in found if id(module) not in below]

    def modules_in(self, value):
        return [thing for thing in listed(value) if self.is_module(thing)]

    def name_in(self, root, module):
        return next((name for name, part in self.parts(root) if part is module), None)

    def tensors(self, root, kind, instead):
        """Returns (qualified name, tensor) of all parameters or buffers (`kind`: the name of the dictionary), each once.
        `instead` contains tensors in place of some, by id of the module and name in it."""
        found = []
        met = set()
        for prefix, module in self.parts(root):
            known = self.attribute(module, kind)
            if known is not None and class_name(type(known)) == "OrderedDictWrapper":  # Of a script module.
                known = dict(known.items())
            for name, held in copied(known).items():
                tensor = instead.get((id(module), name), held) if instead and type(name) is str else held
                if type(name) is str and id(tensor) not in met and self.is_tensor(tensor):
                    met.add(id(tensor))
                    found.append((f"{prefix}.{name}" if prefix else name, tensor))
        return found

    def has_tensors(self, root):
        return any(
            known is not None and (not is_kind(known, dict) or dict.__len__(known) > 0)
            for _, module in self.parts(root)
            for known in (self.attribute(module, "_parameters"), self.attribute(module, "_buffers"))
        )

    def name_held(self, holder, thing):
        """Returns the name under which a dictionary holds this object; "" if it does not."""
        held = copied(holder)
        return next((name for name, value in held.items() if value is thing and type(name) is str and name[:1] != "_"), "")

    def attribute_held(self, holder, thing):
        """Returns the attribute of an object, or the name of a module's child, that is this object; "" if none is."""
        if self.is_module(holder):
            attributes = self.attributes_of_module(holder)
            return self.name_held(attributes.get("_modules"), thing) or self.name_held(attributes, thing)
        for base in bases(type(holder)):
            attributes = namespace(base).get("__dict__")
            if type(attributes) is types.GetSetDescriptorType:
                return self.name_held(attributes.__get__(holder), thing)
        return ""

    # Tensors ---------------------------------------------------------------------------------------------------------

    def is_tensor(self, thing):
        return is_kind(thing, self.torch.Tensor)

    def memory(self, tensor):
        """Returns (device, address, bytes) of the GPU memory of a tensor, or of the tensors that it wraps."""
        return [self.place(part) for part in self.with_memory(tensor) if self.is_on_gpu(part)]

    def place(self, tensor):
        size = self.element_size(tensor)
        if self.storage_address is None:
            address = self.address(tensor)
        else:
            address = self.storage_address(tensor) + self.offset(tensor) * size
        return self.device(tensor).index or 0, address, self.elements(tensor) * size

    def with_memory(self, tensor):
        """Returns the tensor itself. For a subclass that overrides dispatch (whose methods are not called), returns the
        tensors that it holds."""
        if not self.answers_for_itself(type(tensor)):
            return self.stored(tensor)
        held = list(copied(self.attributes_of_tensor(tensor)).values())
        for base in bases(type(tensor)):  # For the local shard of a DTensor.
            slot = namespace(base).get("_local_tensor")
            if type(slot) is types.MemberDescriptorType:
                held.append(slot.__get__(tensor))
        plain = [part for part in held if self.is_tensor(part) and not self.answers_for_itself(type(part))]
        return [part for tensor in plain for part in self.stored(tensor)]

    def stored(self, tensor):
        """Returns the tensor itself; for a sparse one its indices and values."""
        parts = _PARTS_OF_SPARSE.get(str(self.layout(tensor)), ())
        return [self.ask[part](tensor) for part in parts] or [tensor]

    def answers_for_itself(self, kind):
        if any(kind is own for own in self.own_types):
            return False
        named = map(namespace, bases(kind))
        dispatch = next((names["__torch_dispatch__"] for names in named if "__torch_dispatch__" in names), None)
        return dispatch is not None and dispatch is not self.plain_dispatch

    def gradient_of(self, parameter):
        # For other tensors, PyTorch warns when the gradient is read.
        if self.is_leaf(parameter) or self.retains_gradient(parameter):
            return self.gradient(parameter)
        return None

    def tensors_in(self, value):
        """Returns (suffix, tensor) pairs for a value of an optimizer's state."""
        if self.is_tensor(value):
            return [("", value)]
        return [(f".{index}", item) for index, item in enumerate(listed(value)) if self.is_tensor(item)]

    def tensors_within(self, value, depth=5):
        """Returns the tensors in nested lists, tuples and dictionaries, such as a module's arguments."""
        if self.is_tensor(value):
            return [value]
        held = listed(value) or list(copied(value).values())
        few = held[:_ARGUMENTS] if depth > 0 else []
        return [tensor for part in few for tensor in self.tensors_within(part, depth - 1)]

    # Optimizers ------------------------------------------------------------------------------------------------------

    def optimized(self, optimizer):
        """Yields (group, index, parameter, its state by name) of all parameters of an optimizer."""
        attributes = self.torch.optim.Optimizer.__dict__["__dict__"].__get__(optimizer)
        # Indexing `state` by parameter would call the parameter's `__hash__`.
        states = {id(parameter): state for parameter, state in copied(attributes.get("state")).items()}
        for number, group in enumerate(listed(attributes.get("param_groups"))):
            for index, parameter in enumerate(listed(copied(group).get("params"))):
                if self.is_tensor(parameter):
                    state = copied(states.get(id(parameter)))
                    yield number, index, parameter, {name: kept for name, kept in state.items() if type(name) is str}
