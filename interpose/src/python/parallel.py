"""Reads from PyTorch's objects how a program trains in parallel: how tensors are sharded, which parameters FSDP
manages, and the place of the process in a mesh and in a pipeline.

Run in the namespace of `agent.py`, after `guards.py` and `throttle.py`. It reads attributes of PyTorch's objects, but no
tensor data.
"""

import json
import sys
import types
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # These files run before this one, in the same namespace.
    from guards import _bases, _dictionary, _Harmless, _namespace
    from throttle import _Throttle

_MOST_DIMENSIONS = 64
_MOST_STAGES = 1024


def _slot(thing, name):
    """Returns the value of a slot or attribute of an object; None if it has none."""
    for base in _bases(type(thing)):
        slot = _namespace(base).get(name)
        if type(slot) is types.MemberDescriptorType:
            try:
                return slot.__get__(thing)
            except AttributeError:  # Not filled.
                return None
    return _dictionary(thing).get(name)


class _Parallel:
    def __init__(self, native, reader):
        self.native = native
        self.reader = reader
        self.surveys = _Throttle()
        self.told: dict = {"mesh": [], "stages": []}

    # Shards ----------------------------------------------------------------------------------------------------------

    def sharding(self, tensor):
        """Returns the sharding of a DTensor: `Shard(0)/4 on dp`, for each mesh dimension; "" for other tensors. Omits the
        dimensions over which it is replicated, unless it is replicated on all."""
        if not self.reader.answers_for_itself(type(tensor)):
            return ""
        spec = _slot(tensor, "_spec")
        placements = _dictionary(spec).get("placements")
        mesh = _dictionary(spec).get("mesh")
        if type(placements) is not tuple or mesh is None:
            return ""
        dimensions = self.dimensions(mesh, len(placements))
        said = []
        replicated = []
        for placement, (name, size) in zip(placements, dimensions, strict=True):
            kind = self.reader.class_name(type(placement)).lstrip("_")
            if kind == "Replicate":
                replicated.append(f"Replicate on {name}" if name else "Replicate")
                continue
            is_shard = kind in ("Shard", "StridedShard")
            text = f"Shard({getattr(placement, 'dim', None)})/{size}" if is_shard else f"{kind}/{size}"
            said.append(f"{text} on {name}" if name else text)
        return ", ".join(said or replicated)

    def dimensions(self, mesh, count):
        """Returns (name, size) of each dimension of a mesh. A name is "" if the mesh has one dimension and it has no
        name."""
        names = self.names_of(mesh) or [f"dim{number}" if count > 1 else "" for number in range(count)]
        return [(name, self.size(mesh, number)) for number, name in enumerate(names)]

    def names_of(self, mesh):
        attributes = _dictionary(mesh)
        names = attributes.get("_mesh_dim_names") or attributes.get("mesh_dim_names")
        return [str(name) for name in names] if names else []

    def size(self, mesh, number):
        # Calls the method of PyTorch's class: programs may subclass it.
        return int(self.module("torch.distributed.device_mesh").DeviceMesh.size(mesh, number))

    def module(self, name) -> Any:
        return sys.modules[name]

    # FSDP2's parameters ------------------------------------------------------------------------------------------------

    def sharded_parameters(self):
        """Returns the shards that FSDP2 manages, by id of the module and name in it. Modules hold them only while parameters
        are not gathered; optimizers always do."""
        shards: dict = {}
        states = sys.modules.get("torch.distributed._composable_state")
        mapping = getattr(states, "_module_state_mapping", None)
        if mapping is None or len(_dictionary(mapping).get("data", ())) == 0:
            return shards
        for state in dict.copy(_dictionary(mapping)["data"]).values():
            state = state() if type(state) is weakref.ReferenceType else state
            held = _dictionary(state)
            groups = held.get("_fsdp_param_groups") or [held.get("_fsdp_param_group")]
            for group in groups:
                for parameter in _dictionary(group).get("fsdp_params", ()):
                    shard = _dictionary(parameter).get("sharded_param")
                    of = _dictionary(_dictionary(parameter).get("_module_info"))
                    modules = [of.get("module"), *of.get("shared_modules", ())]
                    names = [of.get("param_name"), *of.get("shared_param_names", ())]
                    if shard is not None:
                        shards.update(dict.fromkeys(zip(map(id, modules), names, strict=False), shard))
        return shards

    # Meshes and stages -------------------------------------------------------------------------------------------------

    def survey(self):
        """Reports the place of the process in meshes and pipelines to the library. Searches the whole heap, so it is done
        rarely."""
        if not self.surveys.is_open():
            return
        with self.surveys, _Harmless():
            self.tell("mesh", self.mesh())
            stages, count = self.stages()
            self.tell("stages", stages, of=count)

    def tell(self, what, found, **more):
        if found and found != self.told[what]:
            self.told[what] = found
            self.native.parallel(json.dumps({what: found, **more}))

    def on_heap(self, module, name):
        kind = getattr(sys.modules.get(module), name, None)
        return self.reader.on_heap(kind) if isinstance(kind, type) else []

    def mesh(self):
        """Returns [name, place, size] of each dimension of the meshes that contain the process, the largest mesh first."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return []
        meshes = []
        for mesh in self.on_heap("torch.distributed.device_mesh", "DeviceMesh"):
            place = _dictionary(mesh).get("_coordinate_on_dim")
            if place:
                names = self.names_of(mesh)
                sizes = [self.size(mesh, number) for number in range(len(place))]
                meshes.append((names, [int(number) for number in place], sizes))
        # A part of a mesh is also a mesh. Unnamed meshes count only without named ones.
        meshes.sort(key=lambda mesh: (bool(mesh[0]), len(mesh[1])), reverse=True)
        found: dict = {}
        for names, place, sizes in meshes:
            if not names and found:
                break
            for name, number, size in zip(names or [f"dim{n}" for n in range(len(place))], place, sizes, strict=True):
                found.setdefault(name, [name, number, size])
        return list(found.values())[:_MOST_DIMENSIONS]

    def stages(self):
        """Returns the numbers of the pipeline stages that the process holds, and the number of stages in the pipeline."""
        found = self.on_heap("torch.distributed.pipelining.stage", "_PipelineStageBase")
        held = [_dictionary(stage) for stage in found]
        numbers = sorted({stage["stage_index"] for stage in held if type(stage.get("stage_index")) is int})
        count = max((stage["num_stages"] for stage in held if type(stage.get("num_stages")) is int), default=0)
        return numbers[:_MOST_STAGES], count
