"""Weights from safetensors files: matches tensors with the bytes of files, and reads them into the arena."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from memlab import _native
from memlab._paging.arena import ArenaMemory, copy_in, point_at_arena
from memlab._paging.collect import tensors_of
from memlab._paging.paged_tensor import ModuleEntry, Weight

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
    """A tensor in a file, with `nbytes` bytes from `offset` on."""

    name: str
    path: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int


_Group = tuple[Tensor, list[str], list[ModuleEntry]]  # A tensor of the model, its names, and the entries that hold it.


def read_weights(weights: list[Weight], sources: dict[int, Source], memory: ArenaMemory) -> None:
    """Reads weights into the arena. `sources` maps ids of tensors to sources."""
    direct = [w for w in weights if all(_is_direct(sources, paged.tensor) for paged in w.tensors)]
    parts = []
    for weight in direct:
        for paged in weight.tensors:
            source = sources[id(paged.tensor)]
            parts.append((source.path, source.offset, weight.offset + paged.byte_offset, source.nbytes))
    memory.arena.read(parts)
    for weight in direct:
        point_at_arena(weight, memory)
    for weight in weights:
        if weight.arena_storage is None:
            for paged in weight.tensors:
                _read_converted(sources, paged.tensor)
            copy_in([weight], memory)


def read_residents(residents: list[list[Tensor]], sources: dict[int, Source]) -> None:
    """Reads resident tensors into their own memory."""
    for tensors in residents:
        for tensor in tensors:
            _read_converted(sources, tensor)


def files_of(sources: Collection[Source]) -> list[tuple[str | int, ...]]:
    """Returns an identity of the files to compare between processes: byte ranges and modification times."""
    identities = {}
    for path in {source.path: None for source in sources}:
        found = os.stat(path)
        identities[path] = (os.path.realpath(path), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    of_tensors = [(source.name, str(source.dtype), source.offset, *identities[source.path]) for source in sources]
    return sorted(of_tensors)


def sources_in(path: str) -> Iterator[Source]:
    """Yields the tensors of a .safetensors file, a sharded index, or a folder with either. Raises ValueError or OSError."""
    for name, file, kind, shape, offset, nbytes in _native.checkpoint_tensors(path):
        if kind not in _TYPES:
            raise ValueError(f"{name} in {file} is of type {kind}, which memlab.load does not read")
        yield Source(name, file, _TYPES[kind], tuple(shape), offset, nbytes)


def give_memory(model: nn.Module, sources: dict[str, Source], dtype: torch.dtype | None, strict: bool) -> dict[int, Source]:
    """Gives the tensors of the model uninitialised memory where they have none.

    Returns the source of each tensor, by its id.

    Raises: KeyError, ValueError; see `memlab.load`.
    """
    groups: dict[int, _Group] = {}
    for name, tensor, entry in tensors_of(model):
        _, names, entries = groups.setdefault(id(tensor), (tensor, [], []))
        names.append(name)
        entries.append(entry)
    if strict:
        _compare(model, groups, sources)
    found: list[tuple[Tensor, list[ModuleEntry], Source]] = []
    for tensor, names, entries in groups.values():
        source = next((sources[name] for name in names if name in sources), None)
        if source is None:
            if tensor.is_meta:
                raise ValueError(
                    f"{names[0]} is on the meta device and not in the file: take a file that has it, or give it a value "
                    "before (buffers have values in a model built under memlab.skeleton())"
                )
            continue
        if tuple(tensor.shape) != source.shape:
            raise ValueError(f"{source.name}: the model has {tuple(tensor.shape)}, the file {source.shape}")
        found.append((tensor, entries, source))
    by_tensor: dict[int, Source] = {}
    for tensor, entries, source in found:
        wanted = dtype if dtype is not None and source.dtype.is_floating_point else source.dtype
        if tensor.is_meta or tensor.dtype != wanted:
            made: Tensor = torch.empty(source.shape, dtype=wanted)
            if isinstance(tensor, nn.Parameter):
                made = nn.Parameter(made, requires_grad=tensor.requires_grad and wanted.is_floating_point)
            made.__dict__.update(tensor.__dict__)
            for entry in entries:
                entry.put(made)
            tensor = made
        by_tensor[id(tensor)] = source
    return by_tensor


def _compare(model: nn.Module, groups: dict[int, _Group], sources: dict[str, Source]) -> None:
    """Raises KeyError unless file and model have the same names. One name of a tied tensor is enough."""
    wanted = set(model.state_dict())
    alike = [set(names) & wanted for _, names, _ in groups.values()]
    missing = sorted(min(names) for names in alike if names and not names & sources.keys())
    unexpected = sorted(sources.keys() - wanted)
    for kind, names in (("missing in the file", missing), ("in the file but not in the model", unexpected)):
        if names:
            listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            raise KeyError(f"{kind}: {listed}. Pass strict=False if this is intended.")


def _is_direct(sources: dict[int, Source], tensor: Tensor) -> bool:
    """Returns True if the file's bytes are the tensor's without conversion."""
    source = sources.get(id(tensor))
    return source is not None and source.dtype == tensor.dtype and tensor.is_contiguous()


def _read_converted(sources: dict[int, Source], tensor: Tensor) -> None:
    """Reads a tensor that is converted or resident, through temporary memory."""
    source = sources.get(id(tensor))
    if source is None:
        return
    memory = ArenaMemory(_native.Arena(max(source.nbytes, 1)))
    memory.arena.read([(source.path, source.offset, 0, source.nbytes)])
    bytes_read = torch.empty(0, dtype=source.dtype).set_(memory.filled, 0, source.shape)
    tensor.detach().copy_(bytes_read)
