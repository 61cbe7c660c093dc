"""Namespaces: modules with some of the names of `memlab`, imported on first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import memlab


def lazy_names(module: str, names: Sequence[str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns ``__getattr__`` and ``__dir__`` of a namespace."""

    def __getattr__(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(memlab, name)

    return __getattr__, lambda: sorted(names)
