"""Models larger than the GPU: `page`, `chunk`, `load`, and the plan of a paged model.

>>> import memlab
>>> memlab.paging.page is memlab.page
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlab._namespace import lazy_names

if TYPE_CHECKING:
    from memlab import (
        Plan,
        chunk,
        load,
        page,
        plan_of,
        skeleton,
        unpage,
    )

__all__ = [
    "Plan",
    "chunk",
    "load",
    "page",
    "plan_of",
    "skeleton",
    "unpage",
]

__getattr__, __dir__ = lazy_names(__name__, __all__)
