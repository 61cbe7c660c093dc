"""The figures of a plan, which paging fills in and `memlab.Plan` shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

# Why tensors are resident: on the device for good.
SMALL_BUFFERS = "small buffers"
NO_PLAIN_MEMORY = "no plain memory: quantized, sparse, or another subclass of torch.Tensor"
WRITTEN = "written to in forwards"
TRAINED = "trained: they required gradients in a forward with gradients enabled"

# The stages of a model, in this order. (A chunked one has no "measuring".)
UNTRACED, MEASURING, SETTLED = "untraced", "measuring", "settled"


@dataclass(frozen=True)
class PlannedUnit:
    """Weights that are copied together.

    Attributes:
        name: of the module or the weights that it is made of.
        nbytes: what they take on the device.
        resident: whether they stay there.
        compute_ns: nanoseconds that the device computes with them per forward; 0: not measured yet.
    """

    name: str
    nbytes: int
    resident: bool
    compute_ns: int


@dataclass
class PlanState:
    """Sizes are bytes, times nanoseconds; 0 until they are known. See `memlab.Plan` for what each means."""

    device: str
    chunked: bool = False  # Units that are not resident stay on the CPU, and come through no ring.
    stage: str = UNTRACED
    units: list[PlannedUnit] = field(default_factory=list)
    resident_unit_bytes: int = 0
    ring_bytes: int = 0
    resident_tensors: dict[str, int] = field(default_factory=dict)  # Bytes on the device for good, in no unit, by reason.
    gathered_bytes: int = 0
    streamed_bytes: int = 0
    host_bytes: int = 0
    pinned: bool = True
    bytes_per_second: float = 0.0
    compute_ns: int = 0
    floor_ns: int = 0
    predicted_ns: int = 0
    notes: list[str] = field(default_factory=list)
    forward_ns: Callable[[], int] = lambda: 0  # Of the last forward.
    counters: Callable[[], dict[str, int]] = dict
    accept_edits: Callable[[], None] = lambda: None

    def add_resident(self, reason: str, nbytes: int) -> None:
        """Counts bytes that are on the device for good and are in no unit."""
        self.resident_tensors[reason] = self.resident_tensors.get(reason, 0) + nbytes

    @property
    def resident_tensor_bytes(self) -> int:
        return sum(self.resident_tensors.values())
