"""The result of `memlab.MemReporter`, as numbers, as text and as HTML."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from memlab.compat._reporter.device_report import NAME_WIDTH, SHAPE_WIDTH, SIZE_WIDTH, DeviceReport
from memlab.compat._reporter.html import report_html


@dataclass
class Report:
    """The result of `memlab.MemReporter.collect`, by device. `str()` is the table; notebooks show it in HTML."""

    devices: dict[str, DeviceReport]

    def text(self, verbose: bool = False) -> str:
        """Returns the text that `memlab.MemReporter.report` prints."""
        heading = f"{'Element type':<{NAME_WIDTH}}{'Size':>{SHAPE_WIDTH}}{'Used MEM':>{SIZE_WIDTH}}"
        return "\n".join([heading, *chain.from_iterable(table.pieces(verbose) for table in self.devices.values())])

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        found = ", ".join(f"{len(one.names)} tensors on {name}" for name, one in self.devices.items())
        return f"<memlab.Report: {found or 'no tensors'}>"

    def _repr_html_(self) -> str:
        return report_html(self.devices)
