"""The plan of a paged model, as people read it: ``print(model.memlab)``."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from memlab._paging.sizes import milliseconds, readable

# Why weights are on the device all the time.
SMALL_BUFFERS = "small buffers"
NO_PLAIN_MEMORY = "no plain memory: quantized, sparse, or another subclass of torch.Tensor"
WRITTEN = "written to in forwards"
TRAINED = "trained: they required gradients in a forward with gradients enabled"


@dataclass(frozen=True)
class PlannedUnit:
    """Weights that are copied together.

    `nbytes` is what they take on the device; `resident` whether they stay there; `compute_ns` what the device computes
    with them per forward (0: not measured yet).
    """

    name: str
    nbytes: int
    resident: bool
    compute_ns: int


@dataclass
class Plan:
    """Where the weights of a paged or chunked model are, and how long a forward takes.

    Sizes are bytes, times nanoseconds where the name does not say otherwise. Times are 0 until the forwards that they
    are measured in: the first is traced, the second timed, from the third on the plan is final.
    """

    device: str
    stage: str = "untraced"  # "untraced" → "measuring" → "settled"
    units: list[PlannedUnit] = field(default_factory=list)
    points: int = 0
    resident_bytes: int = 0
    ring_bytes: int = 0
    kept: dict[str, int] = field(default_factory=dict)  # On the device all the time: bytes by the reason.
    gathered_bytes: int = 0  # Embeddings of which only the rows asked for are read, from the host.
    streamed_bytes: int = 0  # Copied in each forward.
    host_bytes: int = 0  # The arena.
    pinned: bool = True
    bytes_per_second: float = 0.0  # Measured, of copies to the device.
    compute_ns: int = 0
    floor_ns: int = 0  # max(compute, streamed bytes / bandwidth): no plan with these residents can be faster.
    predicted_ns: int = 0
    elsewhere: str = "ring"  # Where units are that are not resident: they come through the ring, or stay on the CPU.
    notes: list[str] = field(default_factory=list)
    measure: Callable[[], dict[str, Any]] = field(default=dict, repr=False)
    accept: Callable[[], None] = field(default=lambda: None, repr=False)
    release: Callable[[], None] = field(default=lambda: None, repr=False)  # memlab.unpage
    owner: weakref.ref[Any] | None = field(default=None, repr=False)  # The model.

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        return self

    def keep(self, reason: str, nbytes: int) -> None:
        """Counts what is on the device all the time."""
        self.kept[reason] = self.kept.get(reason, 0) + nbytes

    @property
    def kept_bytes(self) -> int:
        """What is on the device all the time, for whichever reason."""
        return sum(self.kept.values())

    @property
    def device_bytes(self) -> int:
        """Device memory that the weights take."""
        return self.resident_bytes + self.ring_bytes + self.kept_bytes

    @property
    def predicted_ms(self) -> float:
        return self.predicted_ns / 1e6

    @property
    def achieved_ms(self) -> float:
        """The last forward, from its first operation on the device to its last."""
        return float(self.measure().get("forward_ns", 0)) / 1e6

    @property
    def gigabytes_per_second(self) -> float:
        """Streamed bytes over the time of the last forward, in 10⁹ bytes a second."""
        nanoseconds = self.measure().get("forward_ns", 0)
        return self.streamed_bytes / nanoseconds if nanoseconds else 0.0

    @property
    def counters(self) -> dict[str, int]:
        """Forwards, copies, copied_bytes, on_demand (not prefetched in time), out_of_order, reloads."""
        return {name: value for name, value in sorted(self.measure().items()) if name != "forward_ns"}

    def refresh(self) -> None:
        """Takes weights that were edited in place as they are now (``on_change="error"`` refuses them otherwise)."""
        self.accept()

    def __str__(self) -> str:
        how = "paged" if self.elsewhere == "ring" else "chunked"
        lines = [f"{how} on {self.device}: {self.stage}"]
        if self.stage == "untraced":
            lines[0] = f"{how} on {self.device}: the plan is made in the first forward"
        for label, nbytes, remark in (
            ("resident", self.resident_bytes, f"{sum(u.resident for u in self.units)} of {len(self.units)} units"),
            ("ring", self.ring_bytes, f"{readable(self.streamed_bytes)} come through it per forward"),
            *(("kept", nbytes, reason) for reason, nbytes in self.kept.items()),
            ("gathered", self.gathered_bytes, "embeddings, read row by row from the host"),
            ("host", self.host_bytes, "" if self.pinned or self.elsewhere == "cpu" else "not pinned: copies are slower"),
        ):
            if nbytes:
                lines.append(f"  {label:<10}{readable(nbytes):>12}  {remark}".rstrip())
        if self.bytes_per_second:
            lines.append(f"  {'bus':<10}{self.bytes_per_second / 1e9:>7.1f} GB/s")
        if self.predicted_ns:
            lines.append(
                f"  {'forward':<10}{milliseconds(self.predicted_ns):>12}  predicted (compute "
                f"{milliseconds(self.compute_ns)}, floor {milliseconds(self.floor_ns)}), {self.achieved_ms:.2f} ms achieved"
            )
        lines.extend(f"  {note}" for note in self.notes)
        if self.units:
            width = min(max(len(unit.name) for unit in self.units), 60)
            lines.append(f"  {'unit':<{width}}  {'size':>12}  {'compute':>10}  place")
            for unit in self.units:
                name = unit.name if len(unit.name) <= width else unit.name[: width - 1] + "…"
                compute = milliseconds(unit.compute_ns) if unit.compute_ns else "-"
                place = "resident" if unit.resident else self.elsewhere
                lines.append(f"  {name:<{width}}  {readable(unit.nbytes):>12}  {compute:>10}  {place}")
        return "\n".join(lines)
