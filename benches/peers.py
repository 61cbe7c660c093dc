"""Imports other projects' implementations for comparison, as published, without their other dependencies.

`make peers` puts torchtune, TRL and sentence-transformers into `target/peers` without their dependencies: pure Python, 12
MB, so that it can be carried to a machine with a GPU and without a network. Their files are imported unchanged. Stand-ins
replace missing packages that the measured code does not use, or uses only for one line (a logger, a comparison of versions).
The packages' `__init__` do not run, because they import everything.
"""

import importlib
import importlib.util
import logging
import sys
from contextlib import contextmanager
from importlib.metadata import Distribution, distributions
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "target" / "peers"


class Absent(Exception):
    """A peer is not available; the message states the reason."""


class _Unused:
    """Replaces a class or function that the measured code does not use."""


class _StandIn(ModuleType):
    """A module with only the given attributes."""

    def __init__(self, name: str, path: Path | None = None, **given: Any) -> None:
        super().__init__(name)
        self.__path__ = [] if path is None else [str(path)]
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unused


def _others() -> dict[str, ModuleType]:
    """Stand-ins for the modules that the peers' files import from missing packages."""
    log = {"get_logger": lambda *_: logging.getLogger("peers")}
    # PyTorch is newer than any version in these comparisons.
    versions = {"is_torch_version": lambda *_: True}
    # For a warning when the host's memory is nearly full.
    memory = {"virtual_memory": lambda: SimpleNamespace(percent=0)}
    given: dict[str, dict[str, Any]] = {
        "accelerate": {},
        "accelerate.logging": log,
        "accelerate.utils": {},
        "accelerate.utils.versions": versions,
        "psutil": memory,
        "scipy": {},
        "scipy.sparse": {},
        "sklearn": {},
        "sklearn.metrics": {},
        "torchao": {"__version__": "0"},
        "torchao.dtypes": {},
        "torchao.dtypes.nf4tensor": {},
        "transformers": {"is_torch_npu_available": lambda: False},
        "transformers.utils": {"logging": SimpleNamespace(**log)},
    }
    if importlib.util.find_spec("numpy") is None:
        given["numpy"] = {"ndarray": _Unused}
    return {name: _StandIn(name, **values) for name, values in given.items()}


def _packages(*names: str, **given: dict[str, Any]) -> dict[str, ModuleType]:
    """The peers' packages without their `__init__`, so that single files in them can be imported."""
    return {name: _StandIn(name, FOLDER / name.replace(".", "/"), **given.get(name, {})) for name in names}


@contextmanager
def _in_place_of(modules: dict[str, ModuleType]):
    """Replaces modules during an import, and restores others of the same names afterwards."""
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    sys.path.insert(0, str(FOLDER))
    try:
        yield
    finally:
        sys.path.remove(str(FOLDER))
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def version(package: str) -> str:
    """Version of a peer. Raises `Absent` if it is missing."""
    found: list[Distribution] = list(distributions(name=package, path=[str(FOLDER)]))
    if not found:
        raise Absent(f"no {package} in {FOLDER}: `make peers` puts it there")
    return found[0].version


def _imported(package: str, name: str, modules: dict[str, ModuleType]) -> Any:
    version(package)
    try:
        with _in_place_of(_others() | modules):
            return importlib.import_module(name)
    except ImportError as error:
        raise Absent(f"{package}: {error}") from error


def torchtune() -> Any:
    """Imports torchtune's module of `OffloadActivations`."""
    modules = _packages("torchtune", "torchtune.training")
    modules["torchtune.modules"] = _StandIn("torchtune.modules")
    modules["torchtune.utils"] = _StandIn("torchtune.utils", get_logger=lambda *_: logging.getLogger("torchtune"))
    return _imported("torchtune", "torchtune.training._activation_offloading", modules)


def trl() -> Any:
    """Imports TRL's module of `OffloadActivations`."""
    return _imported("trl", "trl.models.activation_offloading", _packages("trl", "trl.models"))


def cached_loss(model: Any, **options: Any) -> Any:
    """sentence-transformers' `CachedMultipleNegativesRankingLoss` of a model that returns a dictionary with
    `"sentence_embedding"` (samples, width) for one with tensors."""
    top, inner = "sentence_transformers", "sentence_transformers.sentence_transformer"
    modules = _packages(top, f"{top}.base", f"{top}.base.losses", f"{top}.util", inner, f"{inner}.losses")
    modules |= {name: _StandIn(name) for name in (f"{inner}.model", f"{inner}.modules")}
    version(top.replace("_", "-"))
    try:
        with _in_place_of(_others() | modules):
            similarity = importlib.import_module(f"{top}.util.similarity")
            modules[f"{top}.util"].__dict__.update(cos_sim=similarity.cos_sim)
            losses = importlib.import_module(f"{inner}.losses.cached_multiple_negatives_ranking")
            return losses.CachedMultipleNegativesRankingLoss(model, **options)
    except ImportError as error:
        raise Absent(f"sentence-transformers: {error}") from error
