"""State of the parts of a module at one moment, apart from the values of tensors.

Embedded in libmemlab.so and run before fit_recompute.py, in the same namespace.
"""

import array
import collections
import contextlib
import functools
import operator
import random
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guards import _dictionary

# The first of them that is a base counts.
_CONTAINERS = (collections.OrderedDict, dict, list, set, collections.deque)
_SCALARS = frozenset((int, float, bool, str, type(None)))
# The content of longer containers is not searched.
_SEARCHED_ITEMS = 1000
# Objects and functions are followed to this depth.
_DEPTH = 3
# Larger arrays of numpy are not copied.
_ARRAY_BYTES = 1 << 20


class _Snapshot:
    """Attributes of a module's parts, the content of their containers and plain objects, and states of their generators.

    `put_back` makes all of it as it was. Containers keep their identity, because the program may hold them elsewhere too.
    """

    def __init__(self, torch, parts, ignored):
        """`ignored`: names of attributes that are left out."""
        self.torch = torch
        self.ignored = ignored
        self.members = []  # (dictionary of the parameters, buffers or modules of a part, its content)
        self.attributes = []  # (dictionary of a part's attributes, those that are not ignored)
        self.contents: dict = {}  # By the id of a container: its kind, it, and its content.
        # By the id of a generator, an array or a variable of a closure: a function that puts its state back, and the state.
        self.states: dict = {}
        # (attributes of a part or None if further inside, name of the part, name of the attribute, tensor)
        self.tensors: list = []
        for part_name, part in parts:
            attributes = part.__dict__
            for members in (part._parameters, part._buffers, part._modules):
                if isinstance(members, dict):  # Others are those of compiled modules of TorchScript.
                    self.members.append((members, dict(members)))
            found = {name: attributes[name] for name in attributes.keys() - ignored}
            self.attributes.append((attributes, found))
            for name, value in found.items():
                kind = type(value)
                if kind in _SCALARS or (kind is tuple and _SCALARS.issuperset(map(type, value))):
                    continue  # Or a size, as most modules have several.
                if issubclass(kind, torch.Tensor):
                    self.tensors.append((attributes, part_name, name, value))
                else:
                    self.look_at(part_name, name, value)

    def keep(self, container, kind):
        self.contents[id(container)] = kind, container, (dict if issubclass(kind, dict) else list)(container)

    def look_at(self, part_name, name, value, depth=0):
        kind = type(value)
        if kind in _SCALARS or id(value) in self.contents or id(value) in self.states:
            return
        container = next((base for base in _CONTAINERS if issubclass(kind, base)), None)
        if container is not None or issubclass(kind, tuple):
            if container is not None:
                self.keep(value, container)
            items = list(value.values() if isinstance(value, dict) else value) if len(value) <= _SEARCHED_ITEMS else []
            attributes = None if kind in (dict, list, tuple) else _dictionary(value)
            if attributes and attributes is not value and id(attributes) not in self.contents:
                self.keep(attributes, dict)
                items += attributes.values()
            for item in items:
                self.look_at(part_name, name, item, depth)
        elif kind in (types.MethodType, functools.partial, types.FunctionType):
            if depth < _DEPTH:
                self.look_into(part_name, name, value, depth + 1)
        elif issubclass(kind, self.torch.Tensor):
            self.tensors.append((None, part_name, name, value))
        elif (state := self.state_of(value, kind)) is not None:
            self.states[id(value)] = state
        elif depth < _DEPTH and self.is_plain(kind):
            attributes = _dictionary(value)
            if attributes and id(attributes) not in self.contents:
                self.keep(attributes, dict)
                for inner in attributes.values():
                    self.look_at(part_name, name, inner, depth + 1)

    def look_into(self, part_name, name, function, depth):
        """Looks at what a function is bound to."""
        if type(function) is types.MethodType:
            self.look_at(part_name, name, function.__self__, depth)
        elif type(function) is functools.partial:
            self.look_at(part_name, name, (function.func, *function.args, *function.keywords.values()), depth)
        else:
            for cell in function.__closure__ or ():
                if id(cell) in self.states:
                    continue
                with contextlib.suppress(ValueError):  # It has no value yet.
                    self.states[id(cell)] = functools.partial(setattr, cell, "cell_contents"), cell.cell_contents
                if id(cell) in self.states:
                    self.look_at(part_name, name, self.states[id(cell)][1], depth)

    def state_of(self, value, kind):
        """Returns a function that sets the state of a generator or the values of an array, and this state; None: it is
        neither."""
        if issubclass(kind, (bytearray, array.array)) and len(value) <= _ARRAY_BYTES:
            return functools.partial(value.__setitem__, slice(None)), value[:]
        if issubclass(kind, self.torch.Generator):
            return value.set_state, value.get_state()
        if issubclass(kind, random.Random):
            return value.setstate, value.getstate()
        if kind.__module__.partition(".")[0] == "numpy":
            if kind.__name__ == "Generator":
                return functools.partial(setattr, value.bit_generator, "state"), value.bit_generator.state
            if kind.__name__ == "RandomState":
                return value.set_state, value.get_state()
            if kind.__name__ == "ndarray" and value.nbytes <= _ARRAY_BYTES and value.flags.writeable:
                return functools.partial(value.__setitem__, ...), value.copy()
        return None

    def is_plain(self, kind):
        """Returns True for classes whose objects hold nothing but attributes, such as a configuration."""
        if issubclass(kind, (self.torch.nn.Module, type, types.ModuleType)):
            return False
        return kind.__module__.partition(".")[0] not in ("torch", "builtins", "numpy") or kind.__name__ == "SobolEngine"

    @staticmethod
    def is_same(now, before):
        if len(now) != len(before):
            return False
        if not before:
            return True
        if not all(map(operator.is_, now, before)):
            return False
        return type(before) is list or all(map(operator.is_, now.values(), before.values()))

    def put_back(self):
        for attributes, before in self.attributes:
            for name in attributes.keys() - before.keys() - self.ignored:
                del attributes[name]
            for name, value in before.items():
                if attributes.get(name) is not value:
                    attributes[name] = value
        for members, before in self.members:
            if not self.is_same(members, before):
                members.clear()
                members.update(before)
        for kind, container, before in self.contents.values():
            if not self.is_same(container, before):
                # Not the methods of subclasses, which may do more.
                kind.clear(container)
                (kind.update if hasattr(kind, "update") else kind.extend)(container, before)
        for put, state in self.states.values():
            put(state)
