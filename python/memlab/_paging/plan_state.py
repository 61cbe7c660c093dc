"""The figures of a plan, which paging fills in and `memlab.Plan` shows, and the queries that `memlab.Plan` passes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

# Reasons why tensors are resident, that is, stay on the device.
SMALL_BUFFERS = "small buffers"
NO_PLAIN_MEMORY = "no plain memory: quantized, sparse, or another subclass of torch.Tensor"
WRITTEN = "written to in forwards"
ADDED = "added after the model was paged"
TRAINED = "trained: they required gradients in a forward with gradients enabled"


class Stage(Enum):
    """The stages of a model, in order, with their names in `memlab.Plan.stage`. A chunked model is not measured."""

    TRACING = "untraced"
    MEASURING = "measuring"
    SETTLED = "settled"


@dataclass(frozen=True)
class PlannedUnit:
    """Weights that are copied together.

    Attributes:
        name: of the module or the weights in it.
        nbytes: bytes on the device.
        resident: True if they stay on the device.
        compute_ns: nanoseconds that the device computes with them per forward; 0: not measured yet.
    """

    name: str
    nbytes: int
    resident: bool
    compute_ns: int


@dataclass
class PlanState:
    """Sizes are bytes, times nanoseconds; 0 until they are known. See `memlab.Plan` for their meanings."""

    device: str
    chunked: bool = False  # Units that are not resident stay on the CPU, and use no ring.
    stage: Stage = Stage.TRACING
    units: list[PlannedUnit] = field(default_factory=list)
    resident_unit_bytes: int = 0
    ring_bytes: int = 0
    resident_tensors: dict[str, int] = field(default_factory=dict)  # Bytes that stay on the device, in no unit, by reason.
    gathered_bytes: int = 0
    streamed_bytes: int = 0
    host_bytes: int = 0
    shared_bytes: int = 0  # Of these, in memory that other processes may share.
    pinned: bool = True
    bytes_per_second: float = 0.0
    compute_ns: int = 0
    floor_ns: int = 0
    predicted_ns: int = 0
    notes: list[str] = field(default_factory=list)
    parts: list[PlanState] = field(default_factory=list)  # One for each of several devices.

    def add_resident(self, reason: str, nbytes: int) -> None:
        """Counts bytes that stay on the device and are in no unit."""
        self.resident_tensors[reason] = self.resident_tensors.get(reason, 0) + nbytes

    @property
    def resident_tensor_bytes(self) -> int:
        return sum(self.resident_tensors.values())


@dataclass(frozen=True)
class PlanQueries:
    """Queries of `memlab.Plan` to the pager. The defaults are those of a chunked model, which has no pager."""

    forward_ns: Callable[[], int] = lambda: 0  # Of the last forward; waits for it.
    counters: Callable[[], dict[str, int]] = dict
    accept_edits: Callable[[], None] = lambda: None
    sharing: Callable[[], int] = lambda: 0  # Number of processes that hold the shared memory.
