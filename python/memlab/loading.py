"""``memlab.load``: weights from safetensors files, read directly into the memory from which they are paged."""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import NoneType
from typing import Any, TypeVar

import torch
from torch import nn

from memlab._arguments import a_or_an, require_model
from memlab._paging.checkpoint import files_of, give_memory, read_residents, read_weights, sources_in
from memlab._paging.collect import collect
from memlab._paging.host_sharing import arena_memory, fill
from memlab._paging.settings import Settings
from memlab._paging.start import refuse_patched, start_paging
from memlab.paged_model import page
from memlab.plan import Plan

Model = TypeVar("Model", bound=nn.Module)


def load(
    path_or_index: str | os.PathLike[str],
    model: Model,
    device: torch.device | str = "cuda",
    *,
    dtype: torch.dtype | None = None,
    strict: bool = True,
    **options: Any,
) -> Model:
    """Reads a model's weights from safetensors files and pages it. The host holds the weights once. Modifies the model.

    Files are read in parallel, directly into the pinned memory from which the weights are paged. Build the model without
    memory, under ``memlab.skeleton()`` or ``torch.device("meta")``. With ``shared="host"``, one process of the host reads
    the files.

    Args:
        path_or_index: a .safetensors file, the .safetensors.index.json of a sharded one, or the folder of either.
        model: any module. The shapes of its tensors match those in the file.
        device: one device, as for `memlab.page`.
        dtype: the type to convert floating-point weights to; None for the type in the file, regardless of the model's.
        strict: raise if the file and the model do not have the same names.
        options: those of `memlab.page`.

    Returns: the model.

    Raises:
        KeyError: tensors are missing or left over; the message names them.
        OSError: a file cannot be read; the message names it.
        RuntimeError: the model is paged already.
        TypeError: the path or the model has another type, or an option is unknown; the message names valid ones.
        ValueError: a shape differs, the file is broken, or a tensor is on the meta device and not in the file.

    >>> import memlab, tempfile, torch
    >>> from safetensors.torch import save_file
    >>> saved = torch.nn.Linear(3, 2)
    >>> with memlab.skeleton():
    ...     model = torch.nn.Linear(3, 2)
    >>> with tempfile.TemporaryDirectory() as folder, torch.no_grad():
    ...     save_file(saved.state_dict(), f"{folder}/model.safetensors")
    ...     model = memlab.load(folder, model, device="cpu")
    ...     torch.equal(model(torch.ones(1, 3)), saved(torch.ones(1, 3)))
    True
    """
    path = _path(path_or_index, model)
    require_model("load", model)
    if not isinstance(dtype, (torch.dtype, NoneType)):
        raise TypeError(f"dtype={dtype!r}: must be a type such as torch.bfloat16, or None for the type in the file")
    known = list(inspect.signature(page).parameters)[2:]
    for name in options.keys() - known:
        raise TypeError(f"memlab.load has no option {name!r}: it takes dtype, strict, {', '.join(known)}")
    settings = Settings.checked(device, **options)
    refuse_patched(model)
    sources = give_memory(model, {source.name: source for source in sources_in(path)}, dtype, strict)
    weights, residents = collect(model, settings.device)
    memory = arena_memory(model, weights, settings.shared, files_of(sources.values()))
    with torch.no_grad(), torch.inference_mode(False):
        fill(weights, memory, lambda some: read_weights(some, sources, memory), sources)
        read_residents(residents, sources)
    pager = start_paging(model, weights, residents, memory, settings)
    pager.patch.mark(Plan(pager.state, pager.queries), pager.release, settings.device)
    return model


@contextmanager
def skeleton() -> Iterator[None]:
    """A context in which modules are created with parameters that have shapes and no memory. Buffers are real.

    Under ``torch.device("meta")`` buffers have no memory either. Buffers that no file contains, such as the frequencies of
    rotary embeddings, would be lost.

    >>> import memlab, torch
    >>> with memlab.skeleton():
    ...     model = torch.nn.BatchNorm1d(4)
    >>> model.weight.device.type, model.running_mean.device.type
    ('meta', 'cpu')
    """
    register = nn.Module.register_parameter
    made: dict[int, tuple[weakref.ref[nn.Parameter], nn.Parameter]] = {}  # By id, so that tied parameters stay tied.

    def without_memory(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            known = made.get(id(param))
            if known is None or known[0]() is not param:
                skeleton = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
                skeleton.__dict__.update(param.__dict__)
                made[id(param)] = weakref.ref(param), skeleton
            param = made[id(param)][1]
        register(module, name, param)

    nn.Module.register_parameter = without_memory  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _path(given: Any, model: Any) -> str:
    """The path as text. Raises a TypeError with advice for other values."""
    if isinstance(given, (str, bytes, os.PathLike)):
        return os.fsdecode(given)
    if isinstance(given, nn.Module):
        raise TypeError(
            "memlab.load takes the path first and the model second: "
            + ("these are the other way round" if isinstance(model, (str, os.PathLike)) else "load(path, model)")
        )
    raise TypeError(
        "memlab.load takes the path of a .safetensors file, of its .index.json, or of their folder, not "
        f"{'None' if given is None else a_or_an(type(given).__name__)}"
    )
