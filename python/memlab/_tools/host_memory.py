"""The memory that the machine and its control groups leave to this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def available_host_memory() -> int:
    """Bytes that can be allocated without swapping or exceeding the memory limit of a control group."""
    return min([_available(), *_left_in_groups()])


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise OSError("/proc/meminfo does not contain the available memory")


def _left_in_groups() -> Iterator[int]:
    """Bytes left in the process's control group and those above it (version 2 of control groups)."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    path = next((line[3:] for line in lines if line.startswith("0::")), None)
    if path is None:
        return
    group = _CGROUPS / path.strip("/")
    while True:
        try:
            limit, used = (group / "memory.max").read_text().strip(), int((group / "memory.current").read_text())
            if limit != "max":
                # The cache of files counts as used, but is freed when memory is needed.
                yield max(int(limit) - used + _file_cache(group), 0)
        except (OSError, ValueError):
            pass  # The root group, or a group without memory accounting.
        if group == _CGROUPS or _CGROUPS not in group.parents:
            return
        group = group.parent


def _file_cache(group: Path) -> int:
    for line in (group / "memory.stat").read_text().splitlines():
        if line.startswith("inactive_file "):
            return int(line.split()[1])
    return 0
