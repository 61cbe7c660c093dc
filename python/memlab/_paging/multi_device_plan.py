"""The plan of a model over several devices, computed from the plans of its devices."""

from __future__ import annotations

from collections import Counter

from memlab._paging.plan_state import PlanState


def sum_up(whole: PlanState, parts: list[PlanState]) -> None:
    """Writes the sums of the devices' plans into the model's plan, whose forward runs theirs one after another."""
    if parts == [whole]:
        return
    whole.parts = parts
    whole.stage = parts[0].stage
    whole.units = [unit for part in parts for unit in part.units]
    kept: Counter[str] = Counter()
    for part in parts:
        kept.update(part.resident_tensors)
    whole.resident_tensors = dict(kept)
    whole.resident_unit_bytes = sum(part.resident_unit_bytes for part in parts)
    whole.ring_bytes = sum(part.ring_bytes for part in parts)
    whole.gathered_bytes = sum(part.gathered_bytes for part in parts)
    whole.streamed_bytes = sum(part.streamed_bytes for part in parts)
    whole.bytes_per_second = min(part.bytes_per_second for part in parts)
    whole.compute_ns = sum(part.compute_ns for part in parts)
    whole.floor_ns = sum(part.floor_ns for part in parts)
    whole.predicted_ns = sum(part.predicted_ns for part in parts)
