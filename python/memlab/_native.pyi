"""The Rust part: host memory for weights, the pipeline that copies them, the planner, checkpoints; the live books.

Addresses are of memory that the caller keeps alive. Sizes are in bytes, times in nanoseconds. Streams are CUDA handles (0:
the legacy default stream); the host backend ignores them.
"""

from collections.abc import Callable
from types import CodeType
from typing import Any, TypedDict, final, type_check_only
from weakref import ref

from torch import Tensor as _Tensor

__all__ = [
    "PAGE_SIZE",
    "PIN_GRANULE",
    "AllocatorModel",
    "Arena",
    "LineMarks",
    "Pipeline",
    "Session",
    "TensorNames",
    "ask_for_tags",
    "below_tensors",
    "blocks",
    "books_active",
    "books_error",
    "books_start",
    "books_stop",
    "categories",
    "checkpoint_tensors",
    "device_facts",
    "devices",
    "driver_found",
    "format_size",
    "gradients",
    "held_alone",
    "latest_time",
    "layers",
    "library_found",
    "lines",
    "load_library",
    "lost_events",
    "of_types",
    "offload",
    "parse_size",
    "peak",
    "plain_tensors",
    "plan",
    "profile_add",
    "profile_clear",
    "profile_drop",
    "profile_enable",
    "profile_figures",
    "profile_new",
    "range_pop",
    "range_push",
    "recording_status",
    "referents",
    "reset_peak",
    "restore",
    "set_output",
    "set_target_device",
    "simulate",
    "table_rows",
    "totals",
    "watch_begin",
    "watch_categories",
    "watch_drop",
    "watch_end",
    "watch_figures",
    "watch_layers",
    "watch_lines",
    "watch_timeline",
    "without",
]

PAGE_SIZE: int  # Borders between pinned pieces of an arena are multiples of it.
PIN_GRANULE: int  # Bytes that are pinned at a time: some systems refuse much larger pieces.

@final
class AllocatorModel:
    """PyTorch's caching allocator for one card. See `memlab.allocator`."""

    def __new__(
        cls, settings: str, total: int | None, available: int | None, torch: tuple[int, int] | None = None
    ) -> AllocatorModel: ...
    def place(self, stream: int, pool: tuple[int, int]) -> int:
        """The number of a stream of a private pool, for requests."""

    def apply(
        self, requests: list[tuple[str, int, int, int]], keep_going: bool, timeline: bool
    ) -> tuple[list[tuple[int, tuple[int, int, int, int]]], list[tuple[int, int]]]:
        """Carries out requests: (kind, id, bytes, place). Returns those that failed, (index, (bytes asked for, bytes of the
        segment, allocated, reserved)), and (allocated, reserved) after each. Raises ValueError for an unknown kind."""

    def counters(self) -> dict[str, int]: ...
    def segments(
        self,
    ) -> list[tuple[int, int, tuple[int, int], bool, bool, list[tuple[int, int, str]]]]:
        """(address, stream, pool, is small, is expandable, blocks as (bytes, bytes asked for, state))"""

@final
class Arena:
    """Host memory that holds all weights. It is freed with this object and the last `Pipeline` that uses it."""

    def __new__(cls, nbytes: int, borders: list[int] | None = None) -> Arena:
        """Reserves addresses; memory is allocated when it is written. Raises MemoryError with the system's reason.

        The arena is pinned in pieces; `borders` (multiples of 4096) are their ends, None for one every GiB.
        """

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def pinned(self) -> bool: ...
    @property
    def refused(self) -> str | None:
        """Why the system refused to pin."""

    def fill(self, offset: int, address: int, nbytes: int) -> None:
        """Copies host memory into the arena, with several threads and without the GIL."""

    def read(self, parts: list[tuple[str, int, int, int]]) -> None:
        """Reads parts of files: (path, offset in the file, offset in the arena, bytes). Raises OSError with the file."""

    def unpin(self) -> None:
        """Makes it pageable again. No copy may be under way."""

    def pin(self, device: int) -> bool:
        """Registers the arena with CUDA, so that copies are asynchronous. Returns whether it did; `refused` says why not."""

@final
class Pipeline:
    """Copies units of an arena to the device ahead of their use."""

    def __new__(cls, arena: Arena, device: int | None, bytes_per_second: float | None = None) -> Pipeline:
        """`device`: a CUDA ordinal, or None for the host backend, whose copies are paced at `bytes_per_second`."""

    def bandwidth(self, address: int, nbytes: int, stream: int) -> float:
        """The measured bytes per second of copies from the arena to `address`. Waits for the device."""

    def configure(
        self,
        units: list[list[tuple[int, int, int]]],
        places: list[tuple[int, int] | None],
        schedule: list[tuple[int, list[int]]],
        fallback: dict[int, list[int]],
        lookahead: int | None,
        stream: int,
    ) -> None:
        """Replaces all units, once `stream` is done with the device memory, and loads the resident ones.

        units: per unit its ranges (offset in the arena, address on the device, bytes).
        places: per unit its place in the ring (offset, bytes), or None: resident.
        schedule: the points of a forward in order: (key, units needed from here to the next point).
        fallback: for a key that the schedule lacks, the units it needs.
        lookahead: how many units may be loaded ahead; None: as many as the ring holds; 0: only on demand.
        """

    def session(self) -> Session:
        """A thread's connection to the pipeline. Each thread needs one."""

    def reload(self, unit: int, stream: int) -> None:
        """Copies an edited unit once more, after its readers. `stream` waits for the copy."""

    def timed(self, on: bool) -> None:
        """Whether to measure what each point of the schedule computes."""

    def timings(self) -> list[int]:
        """Nanoseconds of compute per point of the schedule in the last timed forward; 0: not seen. Waits for the device."""

    def counters(self) -> dict[str, int]:
        """forwards, copies, copied_bytes, on_demand, out_of_order, reloads, waits, and on the host backend waited_ns."""

    def synchronize(self) -> None:
        """Waits until all copies are done."""

@final
class Session:
    """A thread's position in the schedule."""

    def enter(self, key: int, stream: int) -> tuple[list[int], list[int]] | None:
        """The thread reached a point: (units released, units acquired), or None where nothing changes.

        Work queued on `stream` after it may use the acquired units.
        """

    def leave(self, stream: int) -> list[int]:
        """The outermost forward ended, also by an exception: releases all units and returns them."""

@type_check_only
class Plan(TypedDict):
    """What the planner found. At run time it is a dict, without this name."""

    resident: list[bool]
    places: list[tuple[int, int] | None]
    ring_bytes: int
    resident_bytes: int
    predicted_ns: int
    floor_ns: int
    compute_ns: int
    streamed_bytes: int

def checkpoint_tensors(path: str) -> list[tuple[str, str, str, list[int], int, int]]:
    """The tensors of a .safetensors file, of a sharded index, or of a folder that holds one of them.

    Each: (name, file, dtype as safetensors spells it, shape, offset in the file, bytes). Raises ValueError or OSError.
    """

def plan(
    unit_bytes: list[int],
    schedule: list[tuple[list[int], int]],
    resident: list[bool],
    bytes_per_second: float,
    copy_overhead_ns: int,
    budget: int | None,
    minimum: bool,
    capacity: int,
    together: list[list[int]] = ...,
) -> Plan:
    """Which units stay on the device, and where in the ring the others go.

    unit_bytes: bytes per unit, multiples of 512.
    schedule: per point the units needed and the nanoseconds of compute; 0: unknown.
    resident: the units that must stay on the device.
    budget: the most device memory for weights; None: as little as still hides the copies.
    minimum: the smallest ring that loads one unit while another is used.
    capacity: the device memory that is available.
    together: sets of units that may be needed at the same time, without a point that needs them all.

    Raises ValueError if the budget is too small for one of the points; it says how much is needed.
    """

def simulate(
    unit_bytes: list[int],
    schedule: list[tuple[list[int], int]],
    places: list[tuple[int, int] | None],
    bytes_per_second: float,
    copy_overhead_ns: int,
) -> list[tuple[int, int]]:
    """When the compute of each point begins and ends, once forwards have become periodic."""

def range_push(name: str) -> None:
    """Enters a range on this thread; nothing if libmemlab.so is not in the process."""

def range_pop() -> None:
    """Leaves the range that this thread entered last with `range_push`."""

def parse_size(text: str) -> int:
    """Bytes of a size with its unit, as ``8GiB`` or ``8GB``. ``ValueError`` says what to write instead."""

def format_size(nbytes: int) -> str:
    """Three significant digits and a binary unit, as ``1.50 GiB``."""

# What the reporter asks. ---------------------------------------------------------------------------------------------------

def of_types(objects: list[object], types: list[type]) -> list[Any]:
    """The objects whose type is one of `types`, in their order. Asks no object anything."""

def plain_tensors(
    tensor_class: type,
    plain: list[type],
    storage_class: type,
    storage_key: Callable[[Any], int],
    tensors: list[_Tensor],
    is_tracked: bool,
) -> tuple[list[str], list[str], list[int], list[int], list[int], list[int]] | None:
    """Device, shape, elements, key, address and bytes of each tensor.

    With `is_tracked`, the bytes are those of the tensor's block, and key and address are where it begins. Without, and for a
    tensor in no block, they are its storage's; the key of a storage without memory is its negative `storage_key`. None if a
    tensor's class is none of the two in `plain`, or it is quantized, or has no shape or memory of its own.
    """

def gradients(tensor_class: type, tensors: list[_Tensor]) -> list[tuple[int, _Tensor]]:
    """The gradients of tensors that have one, each with the place of its tensor. No warning is given."""

def referents(references: list[ref[_Tensor]], others: list[_Tensor]) -> list[_Tensor]:
    """The objects that weak references refer to, and those of `others` that are not among them."""

def table_rows(names: list[str], shapes: list[str], sizes: list[int], widths: tuple[int, int, int]) -> str:
    """The lines of a table: names to the left, shapes and sizes to the right of columns of these widths."""

def below_tensors(
    device: int, addresses: list[int], nbytes: list[int]
) -> tuple[
    list[int | None],
    list[tuple[str, int, str | None, str | None, int | None, str | None]],
    list[tuple[str, int]],
]:
    """How much of its block each tensor's memory takes (None: it is in no block); the memory of blocks that is below no
    tensor (category, bytes, layer, file, line, function), the largest first; and what is in use outside of blocks.

    Sizes are rounded as the allocator does it. Of memory that several tensors count, the first has all.
    """

def held_alone(use_count: Callable[[_Tensor], int], tensors: list[_Tensor], unheld: list[_Tensor]) -> list[int]:
    """The places of tensors with several holders that have one reference more than the only object in `unheld`."""

def without(objects: list[_Tensor], left_out: list[_Tensor]) -> list[_Tensor]:
    """`objects` without those that are in `left_out`."""

@final
class TensorNames:
    """Names that stay the same from one report to the next, and are kept no longer than their tensors."""

    def __new__(cls) -> TensorNames: ...
    def give(self, names: list[str], tensors: list[_Tensor]) -> None:
        """Names tensors, or renames them."""

    def give_state(self, prefix: str, state: dict[Any, Any], tensor_class: type, named: dict[int, _Tensor]) -> bool:
        """Names what an optimizer keeps for a parameter, ``prefix.key``, and adds it to `named`, which has tensors by `id`.

        Leaves out what `named` has. False, and nothing is named, if there is more in `state` than tensors and numbers.
        """

    def of(self, tensors: list[_Tensor]) -> list[str]:
        """The names of tensors. Those that have none are given the next numbers."""

    def of_one(self, tensor: _Tensor) -> str:
        """The name of a tensor."""

    def with_gradients(
        self, tensors: list[_Tensor], gradients: list[tuple[int, _Tensor]]
    ) -> tuple[list[str], list[_Tensor]]:
        """Names and tensors, each with its gradient behind it: ``weight``, ``weight.grad``.

        `gradients`: each with the place of its tensor, in the order of the tensors.
        """

    def forget_dead(self) -> None:
        """Drops the names of tensors that are gone, if they can be many."""

# The recording of this process. ------------------------------------------------------------------------------------------

def driver_found() -> bool:
    """Whether there is a CUDA driver that a program could use. Does not initialise it."""

def library_found() -> bool:
    """Whether libmemlab.so is in this process and has what this package needs."""

def load_library(path: str) -> None:
    """Loads libmemlab.so into the running process. OSError says why that failed."""

def set_output(path: str | None = None) -> None:
    """Continues the recording in this file; None: in memory. RuntimeError says why it cannot."""

def recording_status() -> str | None:
    """The status of the recording as the control socket reports it, JSON; None if nothing is recorded."""

def ask_for_tags() -> None:
    """Has the main thread say which memory is whose, the next time that it runs a bytecode."""

def offload(timeout_s: float) -> None:
    """Moves all device memory to host memory. RuntimeError says why it cannot."""

def restore(timeout_s: float, free_host: bool) -> None:
    """Moves it back. RuntimeError says why it cannot."""

# The live books: bytes, by the columns of memlab.tracking and memlab.watching. ---------------------------------------------

_Text = str | None

def books_start() -> None: ...
def books_stop() -> None: ...
def books_active() -> bool: ...
def books_error() -> str | None:
    """Why the recording cannot be read; None: it can."""

def totals(device: int) -> tuple[int, int, int, int, int]: ...
def peak(device: int) -> tuple[int, int, int, float, int]: ...
def reset_peak(device: int | None = None) -> None: ...
def latest_time() -> float:
    """Seconds since the recording began at its latest event."""

def lost_events() -> int:
    """How many events are missing, because they came faster than the recording could be kept small."""

def devices() -> list[int]: ...
def device_facts(device: int) -> tuple[_Text, int]:
    """The name of a device and its memory; None and 0: not known."""

def lines(device: int) -> list[tuple[_Text, int | None, _Text, _Text, int, int, int, int, int, int, int]]: ...
def layers(device: int) -> list[tuple[_Text, _Text, _Text, int, int, int, int, int, int, int]]: ...
def categories(device: int) -> list[tuple[str, int, int]]: ...
def blocks(device: int) -> list[tuple[int, int, str, _Text, int | None, _Text, _Text, str]]: ...
def watch_begin() -> int:
    """Begins to watch; returns the id of the watch, 0 if no books are kept."""

def watch_end(watch: int) -> None: ...
def watch_drop(watch: int) -> None: ...
def watch_figures(watch: int, device: int) -> tuple[int, int, int, int, bool]:
    """Allocated at the start, at the peak and at the end; the peak of reserved; whether events are missing."""

def watch_timeline(watch: int, device: int) -> tuple[int, int, int, list[tuple[int, int, int, int, int]]]:
    """How long the block took, when its peak was, the width of a point, in nanoseconds; points: nanoseconds since the block
    began, the least, most and last allocated, the most reserved. Between points nothing changed."""

def watch_categories(watch: int, device: int) -> list[tuple[str, int, int]]:
    """Category, at the peak, at the end."""

def watch_lines(watch: int, device: int) -> list[tuple[_Text, int | None, _Text, _Text, int, int, int, int, int]]: ...
def watch_layers(watch: int, device: int) -> list[tuple[_Text, _Text, _Text, int, int, int]]: ...

# Line profiles. -----------------------------------------------------------------------------------------------------------

@final
class LineMarks:
    """Marks the lines of profiled functions, as callbacks of `sys.monitoring` and as a trace function of `sys.settrace`."""

    def __new__(cls, sampler: Callable[[int], list[tuple[int, ...]]]) -> LineMarks: ...
    def register(self, code: CodeType, first_line: int, profile: int, function: int) -> None: ...
    def unregister(self, code: CodeType, profile: int) -> None: ...
    def on_line(self, code: CodeType, line: int) -> None: ...
    def on_start(self, code: CodeType, _offset: int) -> None: ...
    def on_resume(self, code: CodeType, _offset: int) -> None: ...
    def on_leave(self, code: CodeType, _offset: int, _value: Any) -> None: ...
    def on_throw(self, code: CodeType, _offset: int, _error: Any) -> None: ...
    def __call__(self, frame: Any, event: str, _argument: Any) -> LineMarks | None: ...

def set_target_device(device: int) -> None: ...
def profile_new() -> int:
    """Adds an empty profile; returns its id, 0 if no books are kept."""

def profile_drop(profile: int) -> None: ...
def profile_add(profile: int, files: list[str], names: list[str], first_line: int, last_line: int) -> int | None: ...
def profile_enable(profile: int, enabled: bool) -> bool:
    """The profile counts from now on, or no longer. Returns whether the books have it."""

def profile_clear(profile: int) -> None: ...

_Counters = list[list[int]]

def profile_figures(
    profile: int,
) -> list[
    tuple[
        int,
        int,
        int,
        int,
        _Counters,
        _Counters,
        _Counters,
        _Counters,
        int,
        tuple[int, int, int, int],
        list[list[int]] | None,
    ]
]:
    """Function, line, device, hits; current, peak, allocated, freed; peak growth; the line's own allocations; samples."""
