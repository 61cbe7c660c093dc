"""``memlab.load``: weights from safetensors files straight into the arena of a paged model."""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import NoneType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from memlab import _native
from memlab._arguments import a_or_an, require_model
from memlab.paging import attach, page, refuse_twice, settings_of
from memlab._paging.paged_tensor import Bytes, Place, arena_for, collect, move_in, settle_in, tensors_of

Model = TypeVar("Model", bound=nn.Module)

_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
}


@dataclass(frozen=True)
class Source:
    """A tensor in a file."""

    name: str
    path: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def load(
    path_or_index: str | os.PathLike[str],
    model: Model,
    device: torch.device | str = "cuda",
    *,
    dtype: torch.dtype | None = None,
    strict: bool = True,
    **options: Any,
) -> Model:
    """Gives a model its weights from safetensors files and pages it; the host holds them once.

    Files are read in parallel straight into the pinned memory that the weights are paged from. Build the model without
    memory, under ``memlab.skeleton()`` or ``torch.device("meta")``:

        with memlab.skeleton():
            model = LlamaForCausalLM(config)
        memlab.load("weights/", model.eval(), budget="8GiB")

    Args:
        path_or_index: a .safetensors file, the .safetensors.index.json of a sharded one, or the folder of either.
        dtype: what floating-point weights are converted to; None for the type in the file, whatever the model says.
        strict: raise if the file and the model do not name the same tensors.
        options: those of `memlab.page`.

    Raises:
        KeyError: tensors are missing or left over; names them.
        ValueError: a shape differs, the file is broken, or a tensor is on the meta device and not in the file.
        OSError: a file cannot be read; names it.
        TypeError: what was given is no path or no model; says what to give.
    """
    path = _path(path_or_index, model)
    require_model("load", model)
    if not isinstance(dtype, (torch.dtype, NoneType)):
        raise TypeError(f"dtype={dtype!r}: must be a type such as torch.bfloat16, or None for that in the file")
    known = list(inspect.signature(page).parameters)[2:]
    for name in options.keys() - known:
        listed = ", ".join(name for name in known if not name.startswith("_"))
        raise TypeError(f"memlab.load has no option {name!r}: it takes dtype, strict, {listed}")
    settings = settings_of(device, **options)
    refuse_twice(model)
    sources = {source.name: source for source in _sources(path)}
    backed = _give_memory(model, sources, dtype, strict)

    weights, kept = collect(model, settings.device)
    memory = Bytes(arena_for(weights))
    with torch.no_grad(), torch.inference_mode(False):
        straight = [w for w in weights if all(_straight(backed, home.tensor) for home in w.homes)]
        parts = []
        for weight in straight:
            for home in weight.homes:
                source = backed[id(home.tensor)]
                parts.append((source.path, source.offset, weight.offset + home.byte_offset, source.nbytes))
        memory.arena.read(parts)
        for weight in straight:
            settle_in(weight, memory)
        for weight in weights:
            if weight.in_arena is None:
                for home in weight.homes:
                    _read_apart(backed, home.tensor)
                move_in([weight], memory)
        for tensors in kept:
            for tensor in tensors:
                _read_apart(backed, tensor)
    attach(model, weights, kept, memory, settings)
    return model


@contextmanager
def skeleton() -> Iterator[None]:
    """Modules made in this context have parameters without memory; their buffers are real.

    (Under ``torch.device("meta")`` buffers have no memory either, and those that no file holds, such as the frequencies
    of rotary embeddings, would be lost.)
    """
    register = nn.Module.register_parameter
    made: dict[int, tuple[weakref.ref[nn.Parameter], nn.Parameter]] = {}  # What is tied stays tied.

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
    """Where the files are. Raises TypeError that says what to give."""
    if isinstance(given, (str, bytes, os.PathLike)):
        return os.fsdecode(given)
    if isinstance(given, nn.Module):
        raise TypeError(
            "memlab.load takes the path first and the model second: "
            + ("these are the other way round" if isinstance(model, (str, os.PathLike)) else "load(path, model)")
        )
    raise TypeError(
        "memlab.load takes the path of a .safetensors file, of its .index.json, or of their folder, and was given "
        f"{'None' if given is None else a_or_an(type(given).__name__)}"
    )


def _sources(path: str) -> Iterator[Source]:
    for name, file, kind, shape, offset, nbytes in _native.checkpoint_tensors(path):
        if kind not in _TYPES:
            raise ValueError(f"{name} in {file} is of type {kind}, which PyTorch has no name for")
        yield Source(name, file, _TYPES[kind], tuple(shape), offset, nbytes)


def _give_memory(model: nn.Module, sources: dict[str, Source], dtype: torch.dtype | None, strict: bool) -> dict[int, Source]:
    """Puts tensors with (untouched) memory where the model has none. Which tensor is to be read from where, by its id."""
    groups: dict[int, tuple[Tensor, list[str], list[Place]]] = {}
    for name, tensor, place in tensors_of(model):
        _, names, places = groups.setdefault(id(tensor), (tensor, [], []))
        names.append(name)
        places.append(place)
    if strict:
        _compare(model, groups, sources)
    found: list[tuple[Tensor, list[Place], Source]] = []
    for tensor, names, places in groups.values():
        source = next((sources[name] for name in names if name in sources), None)
        if source is None:
            if tensor.is_meta:
                raise ValueError(
                    f"{names[0]} is on the meta device and not in the file: take a file that holds it, or give it a value "
                    "before (a buffer keeps its own in a model built under memlab.skeleton())"
                )
            continue
        if tuple(tensor.shape) != source.shape:
            raise ValueError(f"{source.name}: the model has {tuple(tensor.shape)}, the file {source.shape}")
        found.append((tensor, places, source))
    backed: dict[int, Source] = {}
    for tensor, places, source in found:
        wanted = dtype if dtype is not None and source.dtype.is_floating_point else source.dtype
        if tensor.is_meta or tensor.dtype != wanted:
            made: Tensor = torch.empty(source.shape, dtype=wanted)
            if isinstance(tensor, nn.Parameter):
                made = nn.Parameter(made, requires_grad=tensor.requires_grad and wanted.is_floating_point)
            made.__dict__.update(tensor.__dict__)
            for place in places:
                place.put(made)
            tensor = made
        backed[id(tensor)] = source
    return backed


def _compare(model: nn.Module, groups: dict[int, tuple[Tensor, list[str], list[Place]]], sources: dict[str, Source]) -> None:
    """Raises KeyError unless file and model name the same; of tied tensors one name is enough."""
    wanted = set(model.state_dict())
    alike = [set(names) & wanted for _, names, _ in groups.values()]
    missing = sorted(min(names) for names in alike if names and not names & sources.keys())
    unexpected = sorted(sources.keys() - wanted)
    for kind, names in (("missing in the file", missing), ("in the file but not in the model", unexpected)):
        if names:
            listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            raise KeyError(f"{kind}: {listed}. Say strict=False if that is meant.")


def _straight(backed: dict[int, Source], tensor: Tensor) -> bool:
    """Whether the file's bytes are the tensor's, as they are."""
    source = backed.get(id(tensor))
    return source is not None and source.dtype == tensor.dtype and tensor.is_contiguous()


def _read_apart(backed: dict[int, Source], tensor: Tensor) -> None:
    """Reads a tensor that is converted, or that stays on the device, by way of memory of its own."""
    source = backed.get(id(tensor))
    if source is None:
        return
    memory = Bytes(_native.Arena(max(source.nbytes, 1)))
    memory.arena.read([(source.path, source.offset, 0, source.nbytes)])
    bytes_read = torch.empty(0, dtype=source.dtype).set_(memory.storage, 0, source.shape)
    tensor.detach().copy_(bytes_read)
