"""State of the parts of a module at one moment, apart from the values of tensors.

Embedded in libmemlab.so and run before fit_recompute.py, in the same namespace.
"""

import collections
import operator
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guards import _dictionary

_DICTIONARIES = (dict, collections.OrderedDict, collections.defaultdict)
_CONTAINERS = (*_DICTIONARIES, list, set, collections.deque)
_SCALARS = (int, float, bool, str, type(None))
# The content of longer containers is not searched.
_SEARCHED_ITEMS = 1000


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
        self.contents: dict = {}  # By the id of a container: it, and its content.
        self.generators: dict = {}  # By the id of a generator: it, and its state.
        # (attributes of a part or None if further inside, name of the part, name of the attribute, tensor)
        self.tensors: list = []
        for part_name, part in parts:
            attributes = part.__dict__
            for members in (part._parameters, part._buffers, part._modules):
                if type(members) in _DICTIONARIES:  # Others are those of compiled modules of TorchScript.
                    self.members.append((members, dict(members)))
            found = {name: attributes[name] for name in attributes.keys() - ignored}
            self.attributes.append((attributes, found))
            for name, value in found.items():
                if issubclass(type(value), torch.Tensor):
                    self.tensors.append((attributes, part_name, name, value))
                elif type(value) not in _SCALARS:
                    self.look_at(part_name, name, value)

    def keep(self, container):
        content = dict if type(container) in _DICTIONARIES else list
        self.contents[id(container)] = container, content(container)

    def look_at(self, part_name, name, value, is_followed=True):
        kind = type(value)
        if kind in _SCALARS:
            return
        if kind in _CONTAINERS or kind is tuple:
            if id(value) in self.contents:
                return
            if kind is not tuple:
                self.keep(value)
            if len(value) <= _SEARCHED_ITEMS:
                for item in value.values() if kind in _DICTIONARIES else value:
                    self.look_at(part_name, name, item, is_followed)
        elif issubclass(kind, self.torch.Tensor):
            self.tensors.append((None, part_name, name, value))
        elif issubclass(kind, self.torch.Generator):
            self.generators[id(value)] = value, value.get_state()
        elif is_followed and self.is_plain(kind):
            attributes = _dictionary(value)
            if attributes and id(attributes) not in self.contents:
                self.keep(attributes)
                for inner in attributes.values():
                    self.look_at(part_name, name, inner, is_followed=False)

    def is_plain(self, kind):
        """Returns True for classes whose objects hold nothing but attributes, such as a configuration."""
        others = (self.torch.nn.Module, type, types.ModuleType)
        return not issubclass(kind, others) and kind.__module__.partition(".")[0] not in ("torch", "builtins")

    @staticmethod
    def is_same(now, before):
        if len(now) != len(before) or not all(map(operator.is_, now, before)):
            return False
        return type(before) is list or all(map(operator.is_, now.values(), before.values()))

    def put_back(self):
        for attributes, before in self.attributes:
            for name in attributes.keys() - before.keys() - self.ignored:
                del attributes[name]
            for name, value in before.items():
                if attributes.get(name) is not value:
                    attributes[name] = value
        for container, before in (*self.members, *self.contents.values()):
            if not self.is_same(container, before):
                container.clear()
                (container.update if type(before) is dict or type(container) is set else container.extend)(before)
        for generator, state in self.generators.values():
            generator.set_state(state)
