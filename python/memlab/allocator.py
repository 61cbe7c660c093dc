"""A model of PyTorch's caching allocator: the memory that a sequence of requests takes from a card, without that card.

    snapshot = torch.cuda.memory._snapshot()              # of a run with torch.cuda.memory._record_memory_history()
    then = memlab.allocator.replay(snapshot, settings="expandable_segments:True", card="24GiB")
    print(then.peak_reserved, then.fits)
    memlab.allocator.replay("memlab-train-4242.jsonl", settings="max_split_size_mb:128")      # or a run that was recorded

From the command line, for such a recording, or for a snapshot that ``torch.cuda.memory._dump_snapshot()`` has written::

    python -m memlab.allocator snapshot.pickle --card 24GiB --settings expandable_segments:True

The model implements the rules of PyTorch 2.1 to 2.15, with all settings of ``PYTORCH_ALLOC_CONF`` that change device memory.

>>> from memlab import allocator
>>> allocator.replay([("alloc", 0, 3 << 20)], settings="large_segment_size_mb:40").reserved >> 20
40
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import pickle
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from memlab import _native
from memlab._tools.tables import aligned

__all__ = ["OutOfMemory", "Replay", "replay", "requests_of"]

#: ``("alloc", id, bytes)``, ``("alloc", id, bytes, stream)``, ``("alloc", id, bytes, stream, pool)``, ``("free", id)``,
#: ``("free_requested", id)``, ``("free_completed", id)``, ``("empty_cache",)``, ``("release_pool", pool)`` or
#: ``("outside", bytes)``.
Request = tuple[Any, ...]


@dataclass(frozen=True)
class OutOfMemory:
    """A request that did not fit on the card. All figures are in bytes."""

    index: int  #: The request's index.
    size: int  #: The requested bytes.
    segment: int  #: The segment that the allocator would have requested for it.
    allocated: int  #: Allocated at that moment.
    reserved: int  #: Reserved at that moment.


@dataclass(frozen=True)
class Replay:
    """The result of a sequence of requests. Figures are bytes, except for counts."""

    allocated: int  #: Allocated at the end: ``torch.cuda.memory_allocated()``.
    reserved: int  #: Reserved at the end: ``torch.cuda.memory_reserved()``.
    peak_allocated: int  #: ``torch.cuda.max_memory_allocated()``.
    peak_reserved: int  #: ``torch.cuda.max_memory_reserved()``.
    retries: int  #: Number of times that the card was full and unused memory was returned to it (``num_alloc_retries``).
    out_of_memory: Sequence[OutOfMemory]  #: The requests that did not fit; without `keep_going` at most one.
    counters: Mapping[str, int]  #: More figures, by the names of ``torch.cuda.memory_stats()``.
    segments: Sequence[Mapping[str, Any]]  #: The segments at the end, as in ``torch.cuda.memory_snapshot()``.
    timeline: Sequence[tuple[int, int]]  #: (allocated, reserved) after each request, if requested.

    @property
    def fits(self) -> bool:
        """True if all requests fit."""
        return not self.out_of_memory


def replay(
    requests: Mapping[str, Any] | str | PathLike[str] | Iterable[Request],
    settings: str = "",
    card: int | str | None = None,
    *,
    device: int = 0,
    keep_going: bool = False,
    timeline: bool = False,
    torch: str | None = None,
) -> Replay:
    """Replays requests on a model of PyTorch's caching allocator.

    Args:
        requests: a snapshot of ``torch.cuda.memory._snapshot()`` with history, the file of a run that memlab recorded, or
            tuples: ``("alloc", id, bytes)``, optionally with stream and private pool, ``("free", id)``, ``("empty_cache",)``
            and others (see `Request`). Recordings of ``memlab plan --keep FOLDER`` contain requested sizes. Those of
            ``memlab run`` contain the sizes of the returned blocks, up to a MiB larger, so results for other settings are
            approximate.
        settings: the value of ``PYTORCH_ALLOC_CONF``.
        card: maximum memory of the allocator, in bytes or as ``"24GiB"``, without the context and the libraries, which take
            some hundred MiB. ``None``: unlimited.
        device: the device whose history is read from a snapshot. (For a recorded run, the device with the most allocated
            memory is used.)
        keep_going: whether to continue after a request that does not fit, as a program that catches the error does.
        timeline: whether to record allocated and reserved bytes after each request.

        torch: the version of PyTorch whose rules apply, as ``"2.8"``. ``None``: that of the recorded run, or the newest.

    Raises:
        ValueError: the settings or a request are not valid; the snapshot has no history; the file is no recording.

    >>> import memlab
    >>> requests = [("alloc", 0, 30 << 20), ("alloc", 1, 1000), ("free", 0), ("alloc", 2, 12 << 20)]
    >>> memlab.allocator.replay(requests).peak_reserved >> 20
    32
    >>> memlab.allocator.replay(requests, card="24MiB").out_of_memory
    [OutOfMemory(index=0, size=31457280, segment=31457280, allocated=0, reserved=0)]
    """
    size = _native.parse_size(card) if isinstance(card, str) else card
    if isinstance(requests, Mapping):
        requests = requests_of(requests, device)
    elif isinstance(requests, (str, PathLike)):
        recorded_with, requests = _recorded(requests)
        torch = torch or recorded_with
    model = _native.AllocatorModel(settings, size, size, _version(torch) if torch else None)
    with _as_value_error("a request is not valid"):
        failed, figures = model.apply(_numbered(model, requests), keep_going, timeline)
    counters = model.counters()
    return Replay(
        allocated=counters["allocated_bytes.all.current"],
        reserved=counters["reserved_bytes.all.current"],
        peak_allocated=counters["allocated_bytes.all.peak"],
        peak_reserved=counters["reserved_bytes.all.peak"],
        retries=counters["num_alloc_retries"],
        out_of_memory=[OutOfMemory(index, *why) for index, why in failed],
        counters=counters,
        segments=[_segment(*segment, device=device) for segment in model.segments()],
        timeline=figures,
    )


def requests_of(snapshot: Mapping[str, Any], device: int = 0) -> list[Request]:
    """The requests in a snapshot's history.

    Allocations from before the history are missing. Prefer a history recorded on a card that was never full: memory returned
    to a full card looks like ``torch.cuda.empty_cache()``.

    Raises:
        ValueError: the snapshot has no history of the device, or is not as PyTorch writes it.
    """
    with _as_value_error("the snapshot has an unknown form: use one of torch.cuda.memory._dump_snapshot"):
        return _requests_of(snapshot, device)


def _requests_of(snapshot: Mapping[str, Any], device: int) -> list[Request]:
    traces = snapshot.get("device_traces", ())
    entries = traces[device] if 0 <= device < len(traces) else ()
    if not entries:
        raise ValueError(
            f"the snapshot has no history of device {device}: call torch.cuda.memory._record_memory_history() before the "
            "part to record"
        )
    # Before PyTorch 2.9, history entries do not name their pool.
    pools = [
        (segment["address"], segment["address"] + segment["total_size"], tuple(segment["segment_pool_id"]))
        for segment in snapshot.get("segments", ())
        if tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
    ]

    def pool_of(entry: Mapping[str, Any]) -> tuple[int, int]:
        if "pool_id" in entry:
            return tuple(entry["pool_id"])
        return next((pool for begin, end, pool in pools if begin <= entry.get("addr", 0) < end), (0, 0))

    requests: list[Request] = []
    names: dict[int, int] = {}  # id by address
    given_back = False
    for entry in entries:
        action, address = entry["action"], entry.get("addr", 0)
        if action in ("alloc", "oom"):
            name = len(requests)
            if action == "alloc":
                names[address] = name
            requests.append(("alloc", name, entry["size"], entry["stream"], pool_of(entry)))
        elif action == "free_requested" and address in names:
            requests.append(("free_requested", names[address]))
        elif action == "free_completed" and address in names:
            name = names.pop(address)
            if requests[-1] == ("free_requested", name):
                requests[-1] = ("free", name)
            else:
                requests.append(("free_completed", name))
        elif action in ("segment_free", "segment_unmap") and not given_back:
            requests.append(("empty_cache",))
        given_back = action in ("segment_free", "segment_unmap")
    return requests


@contextlib.contextmanager
def _as_value_error(what: str) -> Iterator[None]:
    """Raises a ValueError for the errors caused by missing keys, wrong types and numbers out of range."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"{what}: {type(error).__name__}: {error}") from error


def _recorded(path: str | PathLike[str]) -> tuple[str, list[Request]]:
    """The version of PyTorch and the requests of a recorded run."""
    (major, minor), rows = _native.recorded_requests(path)
    requests: list[Request] = []
    for kind, name, size, stream, pool in rows:
        if kind == "alloc":
            requests.append((kind, name, size, stream, pool))
        else:
            requests.append((kind,) if kind == "empty_cache" else (kind, name))
    return f"{major}.{minor}", requests


def _version(text: str) -> tuple[int, int]:
    try:
        major, minor = text.split(".")[:2]
        return int(major), int(minor)
    except ValueError:
        raise ValueError(f"a version of PyTorch has the form 2.8, not {text!r}") from None


def _numbered(model: _native.AllocatorModel, requests: Iterable[Request]) -> list[tuple[str, int, int, int]]:
    """The requests with ids counted from 0, and with place numbers."""
    ids: dict[Any, int] = {}
    places: dict[tuple[int, tuple[int, int]], int] = {}

    def place_of(stream: int = 0, pool: tuple[int, int] = (0, 0)) -> int:
        if (stream, pool) not in places:
            places[stream, pool] = model.place(stream, pool)
        return places[stream, pool]

    numbered = []
    for kind, *rest in requests:
        if kind == "alloc":
            name, size, *place = rest
            ids[name] = len(ids)
            numbered.append((kind, ids[name], size, place_of(*place)))
        elif kind in ("free", "free_requested", "free_completed"):
            if rest[0] not in ids:
                raise ValueError(f"{rest[0]!r} is freed, but was not allocated")
            numbered.append((kind, ids[rest[0]], 0, 0))
        elif kind == "release_pool":
            numbered.append((kind, 0, 0, place_of(0, rest[0])))
        else:
            numbered.append((kind, 0, rest[0] if rest else 0, 0))
    return numbered


def _segment(
    address: int,
    stream: int,
    pool: tuple[int, int],
    small: bool,
    expandable: bool,
    blocks: Sequence[tuple[int, int, str]],
    *,
    device: int,
) -> dict[str, Any]:
    active = [block for block in blocks if block[2] != "inactive"]
    return {
        "device": device,
        "address": address,
        "total_size": sum(size for size, _, _ in blocks),
        "allocated_size": sum(size for size, _, state in blocks if state == "active_allocated"),
        "active_size": sum(size for size, _, _ in active),
        "requested_size": sum(requested for _, requested, _ in active),
        "stream": stream,
        "segment_type": "small" if small else "large",
        "segment_pool_id": pool,
        "is_expandable": expandable,
        "blocks": [{"size": size, "requested_size": requested, "state": state} for size, requested, state in blocks],
    }


class _PlainData(pickle.Unpickler):
    """Reads a snapshot of lists, dicts, numbers and texts, without running anything that a pickle may request."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"not a snapshot of PyTorch's allocator: it contains a {module}.{name}")


def _read(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            snapshot = _PlainData(file).load()
    except OSError:
        raise
    except Exception as error:  # A broken pickle may raise any exception.
        raise ValueError(f"cannot be read: {str(error) or type(error).__name__}") from error
    if not isinstance(snapshot, dict) or "device_traces" not in snapshot:
        raise ValueError("not a snapshot of PyTorch's allocator (torch.cuda.memory._dump_snapshot)")
    return snapshot


def _is_trace(path: Path) -> bool:
    """True if the file contains lines of JSON, or is compressed with zstd, as memlab's traces are."""
    with path.open("rb") as file:
        start = file.read(4)
    return start.startswith(b"{") or start == bytes.fromhex("28b52ffd")


def _table(replays: Mapping[str, Replay]) -> str:
    head = ("allocated", "reserved", "unused", "retries", "out of memory at", "settings")
    lines: list[tuple[str, ...]] = [head]
    for settings, done in replays.items():
        allocated, reserved = max(done.timeline, key=lambda figures: figures[1], default=(0, 0))
        where = f"request {done.out_of_memory[0].index:,}" if done.out_of_memory else "–"
        figures = (_native.format_size(size) for size in (done.peak_allocated, done.peak_reserved, reserved - allocated))
        lines.append((*figures, f"{done.retries:,}", where, settings or "PyTorch's default"))
    return "\n".join(aligned(lines, left=[len(head) - 1]))


def _main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m memlab.allocator",
        description="Replays a recorded run in a simulator of PyTorch's caching allocator, with other settings or another "
        "card size. 'unused' is reserved minus allocated memory when most was reserved.",
    )
    help_ = "a trace of memlab run, or a snapshot of torch.cuda.memory._dump_snapshot() with history"
    parser.add_argument("recording", type=Path, help=help_)
    parser.add_argument("--card", help="memory limit of the allocator, as 24GiB [default: none]")
    parser.add_argument(
        "--settings",
        action="append",
        help="value for PYTORCH_ALLOC_CONF; may be repeated [default: none, and the settings worth trying]",
    )
    parser.add_argument("--device", type=int, default=0, help="device whose history is read from a snapshot [default: 0]")
    parser.add_argument(
        "--torch", help="version of PyTorch whose allocator is simulated, as 2.8 [default: that of the trace]"
    )
    parser.add_argument(
        "--timeline", type=Path, help="write the bytes after each request to this CSV file, with the first settings"
    )
    options = parser.parse_args(arguments)
    try:
        torch = options.torch
        if _is_trace(options.recording):
            recorded_with, requests = _recorded(options.recording)
            torch = torch or recorded_with
        else:
            requests = requests_of(_read(options.recording), options.device)
        all_settings = options.settings or _native.SETTINGS_TO_TRY
        replays = {
            settings: replay(requests, settings, options.card, timeline=True, torch=torch) for settings in all_settings
        }
    except (OSError, ValueError) as error:
        return _failed(options.recording, error)
    print(_table(replays))
    if options.timeline:
        try:
            _write_timeline(options.timeline, replays[all_settings[0]].timeline)
        except OSError as error:
            return _failed(options.timeline, error)
    return 0


def _failed(path: Path, error: Exception) -> int:
    reason = str(error.strerror) if isinstance(error, OSError) else str(error)
    # The reason may quote the file. Print it on one line, without terminal escapes.
    line = "".join(letter if letter.isprintable() else " " for letter in reason)
    print(f"memlab: {path}: {line}", file=sys.stderr)
    return 2


def _write_timeline(path: Path, timeline: Sequence[tuple[int, int]]) -> None:
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("request", "allocated_bytes", "reserved_bytes", "unused_bytes"))
        table.writerows((at, *figures, figures[1] - figures[0]) for at, figures in enumerate(timeline))


if __name__ == "__main__":
    sys.exit(_main())
