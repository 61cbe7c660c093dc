"""``memlab.Plan``: the places of a model's weights, and the speed of its forwards."""

from __future__ import annotations

from typing import Any

from memlab._paging.plan_state import PlannedUnit, PlanQueries, PlanState, Stage
from memlab._paging.sizes import milliseconds, readable

__all__ = ["Plan", "PlannedUnit"]


class Plan:
    """The places of a paged or chunked model's weights, and the time of a forward: ``model.memlab``.

    ``print`` shows it as a table. Sizes are in bytes, times in nanoseconds unless the name contains another unit. The first
    forward is traced, the second timed. The third may change the plan once more (with ``budget=None``); then the plan is
    final. Until the third, unknown figures are 0.

    >>> import memlab, torch
    >>> model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    >>> model = memlab.page(model, "cpu", max_layer_size=64 * 65, budget="min")
    >>> with torch.no_grad():
    ...     for _ in range(3):
    ...         result = model(torch.zeros(1, 64))
    >>> plan = model.memlab
    >>> plan.stage
    'settled'
    >>> [unit.name for unit in plan.units]
    ['0', '1', '2', '3']
    >>> plan.device_bytes  # Two layers of 64 x 64 float32, each with its bias padded to 512 bytes.
    33792
    >>> repr(plan).split(",")[0]
    '<memlab.Plan: paged on cpu'
    """

    def __init__(self, state: PlanState, queries: PlanQueries) -> None:
        self._state = state
        self._queries = queries

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        return self  # A copy of a model is not paged, and needs no plan of its copy.

    @property
    def device(self) -> str:
        """The device of the model, such as ``"cuda:0"``, or ``"cuda:0, cuda:1"``."""
        return self._state.device

    @property
    def devices(self) -> list[Plan]:
        """The plans of the devices. The figures of this plan are their sums. For one device: this plan.

        Plans of several devices are known from the second forward on. An unused device has none.
        """
        return [Plan(part, PlanQueries()) for part in self._state.parts] or [self]

    @property
    def stage(self) -> str:
        """``"untraced"`` until the first forward, ``"measuring"`` until the second, then ``"settled"``."""
        return self._state.stage.value

    @property
    def units(self) -> list[PlannedUnit]:
        """The weights that are copied together, in the order of the traced forward."""
        return self._state.units

    @property
    def resident_bytes(self) -> int:
        """Device memory of the resident units."""
        return self._state.resident_unit_bytes

    @property
    def ring_bytes(self) -> int:
        """Device memory through which the other units pass."""
        return self._state.ring_bytes

    @property
    def kept(self) -> dict[str, int]:
        """Bytes of tensors that always stay on the device and belong to no unit, by reason."""
        return self._state.resident_tensors

    @property
    def kept_bytes(self) -> int:
        """The sum of `kept`."""
        return self._state.resident_tensor_bytes

    @property
    def device_bytes(self) -> int:
        """Total device memory of the weights."""
        return self.resident_bytes + self.ring_bytes + self.kept_bytes

    @property
    def gathered_bytes(self) -> int:
        """Bytes of embeddings on the host, of which a forward reads only the rows that it looks up."""
        return self._state.gathered_bytes

    @property
    def streamed_bytes(self) -> int:
        """Bytes copied to the device in each forward."""
        return self._state.streamed_bytes

    @property
    def host_bytes(self) -> int:
        """Host memory of the weights."""
        return self._state.host_bytes

    @property
    def shared_bytes(self) -> int:
        """The part of `host_bytes` that processes of this host share (``shared="host"``)."""
        return self._state.shared_bytes

    @property
    def sharing(self) -> int:
        """Number of processes that share `shared_bytes` now, including this one; 0 if nothing is shared."""
        return self._queries.sharing()

    @property
    def pinned(self) -> bool:
        """True if the host memory is pinned. If not, copies are slower, and `notes` contains the reason."""
        return self._state.pinned

    @property
    def bytes_per_second(self) -> float:
        """The measured speed of copies to the device."""
        return self._state.bytes_per_second

    @property
    def compute_ns(self) -> int:
        """Computing time of the device in a forward, without waiting for copies."""
        return self._state.compute_ns

    @property
    def floor_ns(self) -> int:
        """``max(compute_ns, streamed_bytes / bytes_per_second)``: no plan with these residents can be faster."""
        return self._state.floor_ns

    @property
    def predicted_ns(self) -> int:
        """The predicted time of a forward."""
        return self._state.predicted_ns

    @property
    def predicted_ms(self) -> float:
        """`predicted_ns` in milliseconds."""
        return self.predicted_ns / 1e6

    @property
    def achieved_ms(self) -> float:
        """Milliseconds of the last forward, from its first operation on the device to its last. Waits for it to end."""
        return self._queries.forward_ns() / 1e6

    @property
    def gigabytes_per_second(self) -> float:
        """`streamed_bytes` over the time of the last forward, in 10⁹ bytes a second."""
        nanoseconds = self._queries.forward_ns()
        return self.streamed_bytes / nanoseconds if nanoseconds else 0.0

    @property
    def counters(self) -> dict[str, int]:
        """Counts since the model was paged: ``forwards``, ``copies``, ``copied_bytes``, ``on_demand``, and more.

        ``on_demand`` counts units that were not prefetched in time, ``out_of_order`` turns that the first forward did not
        take, ``reloads`` units that were copied again. On several devices, ``hops`` counts the changes of device within
        forwards, and ``hop_bytes`` the bytes moved at them.
        """
        return dict(sorted(self._queries.counters().items()))

    @property
    def notes(self) -> list[str]:
        """Remarks, such as why the host memory is not pinned."""
        return self._state.notes

    def refresh(self) -> None:
        """Accepts the current weights, after edits in place (``on_change="error"`` refuses them otherwise).

        Raises: RuntimeError if a weight has another type, shape or strides than when the model was paged.
        """
        self._queries.accept_edits()

    def __repr__(self) -> str:
        resident = sum(unit.resident for unit in self.units)
        return f"<memlab.Plan: {self._how} on {self.device}, {self.stage}, {resident} of {len(self.units)} units resident>"

    @property
    def _how(self) -> str:
        return "chunked" if self._state.chunked else "paged"

    def __str__(self) -> str:
        chunked = self._state.chunked
        lines = [f"{self._how} on {self.device}: {self.stage}"]
        if self._state.stage is Stage.TRACING:
            lines[0] = f"{self._how} on {self.device}: the plan is made in the first forward"
        for label, nbytes, remark in (
            ("resident", self.resident_bytes, f"{sum(u.resident for u in self.units)} of {len(self.units)} units"),
            ("ring", self.ring_bytes, f"{readable(self.streamed_bytes)} copied through it per forward"),
            *(("kept", nbytes, reason) for reason, nbytes in self.kept.items()),
            ("gathered", self.gathered_bytes, "embeddings, read row by row from the host"),
            ("host", self.host_bytes, "" if self.pinned or chunked else "not pinned: copies are slower"),
            ("shared", self.shared_bytes, f"of it, held once by {self.sharing} processes of this host"),
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
                place = "resident" if unit.resident else "cpu" if chunked else "ring"
                lines.append(f"  {name:<{width}}  {readable(unit.nbytes):>12}  {compute:>10}  {place}")
        return "\n".join(lines)
