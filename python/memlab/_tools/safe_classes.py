"""Safe access to the classes of objects in a heap search, without running the program's code.

`isinstance` asks proxies for their `__class__`, and `==`, hashes and `cls.__name__` ask metaclasses: all of them can raise.
"""

from __future__ import annotations

from typing import Any

_is_subclass: Any = type.__dict__["__subclasscheck__"]

class_name: Any = type.__dict__["__name__"].__get__
bases: Any = type.__dict__["__mro__"].__get__


def is_subclass(cls: type, base: type) -> bool:
    """`issubclass` by bases only.

    >>> is_subclass(bool, int), is_subclass(int, bool)
    (True, False)
    """
    result: bool = _is_subclass(base, cls)
    return result


def is_kind(thing: object, kind: type) -> bool:
    """`isinstance` by the object's own class only.

    >>> is_kind(True, int), is_kind("text", int)
    (True, False)
    """
    return is_subclass(type(thing), kind)
