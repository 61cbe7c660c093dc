"""The Rust extension: host memory for weights, the copy pipeline, the planner, checkpoints, the live books.

The caller keeps the memory of passed addresses alive. Sizes are in bytes, times in nanoseconds. Streams are CUDA handles (0:
the legacy default stream); the host backend ignores them.
"""

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from types import CodeType
from typing import Any, TypedDict, final, type_check_only
from weakref import ref

from torch import Tensor as _Tensor
from typing_extensions import Self, disjoint_base

__all__ = [
    "PAGE_SIZE",
    "PIN_GRANULE",
    "SETTINGS_TO_TRY",
    "AllocatorModel",
    "Arena",
    "Boundaries",
    "EditCounters",
    "HostCopy",
    "HostShare",
    "LineMarks",
    "OffloadStream",
    "Pipeline",
    "PlacedUnits",
    "PlanFamily",
    "Session",
    "SwappedDicts",
    "TensorNames",
    "TensorReader",
    "TensorReads",
    "TensorTable",
    "UnitForms",
    "UnitHolder",
    "Versions",
    "WatchedForward",
    "ask_for_tags",
    "blocks",
    "books_active",
    "books_error",
    "books_start",
    "books_stop",
    "card",
    "categories",
    "checkpoint_tensors",
    "choose_recomputation",
    "device_facts",
    "devices",
    "driver_found",
    "format_size",
    "held_alone",
    "latest_time",
    "layers",
    "library_found",
    "lines",
    "load_library",
    "lost_events",
    "of_types",
    "offload",
    "optimizer_tensors",
    "parse_size",
    "peak",
    "plan",
    "profile_add",
    "profile_clear",
    "profile_drop",
    "profile_enable",
    "profile_figures",
    "profile_new",
    "range_pop",
    "range_push",
    "recorded_requests",
    "recording_status",
    "referents",
    "reset_peak",
    "restore",
    "set_output",
    "set_target_device",
    "short_size",
    "step_trained",
    "steps_recorded",
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

PAGE_SIZE: int  # Memory is mapped, shared and pinned in multiples of this size.
PIN_GRANULE: int  # Size of a chunk pinned by one call. Some systems refuse larger ones.
SETTINGS_TO_TRY: list[str]  # Allocator settings that may reduce memory.

@final
class AllocatorModel:
    """Simulates PyTorch's caching allocator on one card. See `memlab.allocator`."""

    def __new__(
        cls, settings: str, total: int | None, available: int | None, torch: tuple[int, int] | None = None
    ) -> AllocatorModel: ...
    def place(self, stream: int, pool: tuple[int, int]) -> int:
        """Registers a stream of a pool. Returns its number for requests."""

    def apply(
        self, requests: list[tuple[str, int, int, int]], keep_going: bool, timeline: bool
    ) -> tuple[list[tuple[int, tuple[int, int, int, int]]], list[tuple[int, int]]]:
        """Executes requests, (kind, id, bytes, place), up to the first failure, or all with `keep_going`.

        Returns the failures as (index, (requested bytes, bytes of the segment, allocated, reserved)) and, with `timeline`,
        (allocated, reserved) after each request. Raises ValueError for an unknown kind.
        """

    def counters(self) -> dict[str, int]: ...
    def segments(
        self,
    ) -> list[tuple[int, int, tuple[int, int], bool, bool, list[tuple[int, int, str]]]]:
        """All segments: (address, stream, pool, is small, is expandable, blocks as (bytes, requested bytes, state))."""

def recorded_requests(
    path: str | PathLike[str],
) -> tuple[tuple[int, int], list[tuple[str, int, int, int, tuple[int, int]]]]:
    """Returns a recorded run's requests to PyTorch's allocator.

    The result is (version of PyTorch, requests as (kind, id, bytes, stream, pool)). Raises ValueError if the file is not the
    trace of a run with PyTorch.
    """

_Line = tuple[str, int | None, str] | None

@final
class PlanFamily:
    """Memory of a program at any batch size, computed from traces at several. See `memlab.inspect`."""

    def __new__(cls, traces: Sequence[tuple[int, str | PathLike[str]]], harness: str) -> PlanFamily:
        """Reads the traces of one program: (batch size, file), two or more.

        `harness` is the folder of code that only runs the program. Its lines count only if no other lines are on the stack.
        Raises ValueError with the reason if the traces do not allow a plan.
        """

    @property
    def recorded_batches(self) -> list[int]:
        """Batch sizes of the traces, in order."""

    def is_far(self, batch: int) -> bool:
        """True if a batch size is so far from the recorded ones that kernels may choose other algorithms."""

    @property
    def outside(self) -> int:
        """Bytes of the device held outside PyTorch's allocator, by libraries."""

    def unmatched(self, batch: int) -> tuple[int, int, int, int, int]:
        """Returns the unmatched allocations between the two recordings from which a batch size is planned.

        The result is (number of allocations at the larger batch without a counterpart at the smaller one, number of all
        allocations, peak bytes of the former, the smaller batch, the larger).
        """

    @property
    def read_backs(self) -> list[tuple[_Line, int]]:
        """Lines that read values back from the device, and the number of reads of each."""

    @property
    def warnings(self) -> list[str]: ...
    def needs(self, batch: int, settings: str, context: int) -> tuple[int, int, int, str, int]:
        """Returns (allocated, reserved, memory of the smallest card, steadiness, bytes that each step keeps).

        Steadiness is "steady", "grows", "not yet" or "unknown". `context`: bytes of the card that belong neither to the
        allocator nor to the libraries.
        """

    def largest_batch(self, memory: int, settings: str, context: int) -> int:
        """Returns the largest batch that runs on a card with `memory` bytes; 0 if none does."""

    def peak(
        self, batch: int, settings: str
    ) -> tuple[
        int,
        int,
        str,
        _Line,
        str | None,
        list[tuple[str, int, int]],
        list[tuple[_Line, int, int]],
        list[tuple[str | None, int, int]],
    ]:
        """Returns the memory at the peak of allocated bytes.

        The result is (allocated, completed steps, phase, line of the last allocation, its layer, and (name, bytes, blocks)
        by category, line and layer). A line is (file, number, function).
        """

    def activation_bytes(self, batch: int) -> int:
        """Returns the peak bytes of tensors that autograd saves, in one step."""

@final
class Arena:
    """Host memory that holds all weights. It is freed with this object and the last `Pipeline` that uses it."""

    def __new__(cls, nbytes: int, borders: list[int] | None = None, share: HostShare | None = None) -> Arena:
        """Reserves addresses; pages are committed on the first write. Raises MemoryError with the system's reason.

        The arena is pinned in chunks. `borders` (multiples of 4096) are the ends of the chunks; None: one every GiB. With
        `share`, several processes share the first bytes. The shared part ends at a border, or with the arena.
        """

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def shared_nbytes(self) -> int:
        """Size of the shared part at the start; 0 without a `share`."""

    @property
    def view_address(self) -> int | None:
        """Address at which this process may write to the shared part, and sees only its own writes."""

    @property
    def shielded(self) -> bool:
        """True if the device can only read the shared part once it is pinned."""

    def publish(self) -> None:
        """Makes the shared part read-only, and available to other processes."""

    def differs(self, offset: int, address: int, nbytes: int) -> bool:
        """Returns True if memory at `address` differs from the `nbytes` at `offset`.

        Uses several threads, and releases the GIL.
        """

    @property
    def pinned(self) -> bool: ...
    @property
    def inherited(self) -> bool:
        """True if a forked child inherits the bytes. It does not inherit pinned pages."""

    @property
    def refused(self) -> str | None:
        """Reason why the last attempt did not pin the whole arena."""

    def fill(self, offset: int, address: int, nbytes: int) -> None:
        """Copies `nbytes` from host memory at `address` to `offset`. Uses several threads, and releases the GIL."""

    def read(self, parts: list[tuple[str, int, int, int]]) -> None:
        """Reads parts of files: (path, offset in the file, offset in the arena, bytes). Raises OSError with the file."""

    def unpin(self) -> None:
        """Makes the arena pageable again. No copy may be in progress."""

    def pin(self, device: int) -> bool:
        """Pins the arena, so that copies are asynchronous. Returns True if all of it is pinned; otherwise see `refused`."""

@final
class HostShare:
    """Share of this process in memory that the processes of one user on this host share. The last process frees it."""

    @staticmethod
    def join(name: str, nbytes: int, waiting: Callable[[int], None] | None = None) -> HostShare:
        """Joins the processes that share `nbytes`, a multiple of 4096, under a name of letters, digits and dashes.

        Waits while another process fills the memory or does not answer. The wait releases the GIL and handles signals.
        Meanwhile calls `waiting` about ten times a second with that process's id (0 if unknown). An exception from `waiting`
        ends the wait.

        Raises RuntimeError if another user's process has the name, MemoryError with the system's reason.
        """

    @property
    def first(self) -> bool:
        """True if this process is the first. It must fill the memory and then call `Arena.publish`."""

    def members(self) -> int:
        """Number of processes that have the memory."""

    def abandon(self) -> None:
        """Leaves filling the memory to the next process. Has no effect after `Arena.publish`."""

@final
class Pipeline:
    """Copies weights from an arena to a device in the order of the forward pass, ahead of the compute."""

    def __new__(cls, arena: Arena, device: int | None, bytes_per_second: float | None = None) -> Pipeline:
        """`device`: a CUDA ordinal, or None for the host backend, whose copies are paced at `bytes_per_second`."""

    def bandwidth(self, address: int, nbytes: int, stream: int) -> float:
        """Measures the bytes per second of copies from the arena to `address`.

        Overwrites the bytes there, and waits for the device.
        """

    def configure(
        self,
        units: list[list[tuple[int, int, int]]],
        places: list[tuple[int, int] | None],
        schedule: list[tuple[int, list[int]]],
        fallback: dict[int, list[int]],
        lookahead: int | None,
        least_piece: int,
        stream: int,
    ) -> None:
        """Replaces all units. Waits for `stream` and earlier copies, then loads the resident units.

        units: ranges of each unit (offset in the arena, address on the device, bytes).
        places: place of each unit in the ring (offset, bytes); None: resident.
        schedule: points of a forward, in order: (key, units needed until the next point).
        fallback: keys outside the schedule, and the units they need.
        lookahead: maximum number of units to load ahead; None: as many as fit in the ring; 0: only on demand.
        least_piece: minimum bytes of a piece of a unit that is copied while the rest of its place is still in use.
        """

    def session(self) -> Session:
        """Creates a session for one thread."""

    def reload(self, unit: int, stream: int) -> None:
        """Copies a unit again if it is on the device, because its weights were changed in the arena.

        `stream` waits for the copy.
        """

    def timed(self, on: bool) -> None:
        """Turns timing on or off for forwards that begin from now on. Clears earlier measurements."""

    def captured(self) -> bool:
        """Returns True if a forward was captured into a graph."""

    def timings(self) -> list[int]:
        """Nanoseconds of compute of each point in the last timed forward; 0: not reached. Waits for the device."""

    def counters(self) -> dict[str, int]:
        """Counts since creation: forwards, copies, copied_bytes, on_demand, out_of_order, reloads, waits.

        The host backend adds waited_ns.
        """

    def synchronize(self) -> None:
        """Waits until all copies are done."""

@final
class Session:
    """Position of one thread in the schedule. Each thread has its own session."""

    def enter(self, key: int, stream: int) -> tuple[list[int], list[int]] | None:
        """Moves the thread to a point. Returns (units released, units acquired), or None if nothing changed.

        Later work on `stream` may use the acquired units, and must not use the released ones.
        """

    def leave(self, stream: int) -> list[int]:
        """Ends the outermost forward, with or without an error. Releases all units and returns them."""

# Host side of paging. -----------------------------------------------------------------------------------------------------

@final
class TensorReads:
    """Reads versions and addresses of tensors, use counts of storages by key, and the current stream of a CUDA device."""

    def __new__(
        cls, tensor_class: type, use_count: Callable[[int], int], current_stream: Callable[[int], int]
    ) -> TensorReads: ...

@final
class EditCounters:
    """Versions and reference counts of `PagedTensor`s, addresses of some, and use counts of storages, at creation.

    Does not detect edits that change none of them.
    """

    def __new__(cls, reads: TensorReads, paged: list[Any], addressed: list[Any], storages: list[int]) -> EditCounters: ...
    def unchanged(self) -> bool:
        """Returns True if all counters are unchanged."""

@final
class Versions:
    """Versions of tensors, to compare with later ones."""

    def __new__(cls, reads: TensorReads, tensors: list[_Tensor]) -> Versions: ...
    def changed(self) -> bool:
        """Returns True if a tensor was written to since creation, or since `note`."""

    def note(self) -> None:
        """Stores the present versions."""

@final
class SwappedDicts:
    """`SwappedDict`s of a model, swapped in one call."""

    def __new__(cls, swapped: list[Any]) -> SwappedDicts: ...
    def enter(self) -> None:
        """Makes modules hold `inside`."""

    def leave(self) -> None:
        """Makes modules hold `outside`, with the assignments of forwards."""

@final
class UnitForms:
    """Native part of a `PlacedUnit`: its tensors on the device, and the dictionary entries that show them in a forward.

    entries: (dictionary, key, tensor while it is loaded, tensor while it is not, `PagedTensor` if it is a buffer).
    has_lists: true if lists of modules hold its tensors too. `ForwardContext.show_lists` changes these.
    storages: keys of its weights' storages on the device.
    """

    resident: bool
    on_device_versions: list[int]  # Versions of its tensors on the device at the last check for writes.

    def __new__(
        cls,
        reads: TensorReads,
        resident: bool,
        entries: list[tuple[dict[str, Any], str, _Tensor, _Tensor, Any]],
        has_lists: bool,
        paged: list[Any],
        on_device: list[_Tensor],
        storages: list[int],
    ) -> UnitForms: ...
    def note_own_uses(self) -> None:
        """Records the present users of its memory, and the references to its tensors, as the model's.

        No thread may have it loaded.
        """

    def has_views(self) -> bool:
        """Returns True if tensors besides those that modules hold use its memory."""

@final
class PlacedUnits:
    """Units that a `DevicePool` has placed, by index. One object for all placements."""

    def __new__(cls) -> PlacedUnits: ...
    def place(self, units: list[UnitForms], needed_at: dict[int, list[int]]) -> None:
        """Replaces the placement, or removes it. `needed_at`: units that may be needed from a boundary on, by key."""

    def observe(self, observer: Callable[[int], None]) -> None:
        """Sets a function to call with each unit that a thread has acquired. For tests."""

    def needed_at(self, key: int) -> list[int]:
        """Returns the units that may be needed from a boundary on."""

@disjoint_base
class Boundaries:
    """Boundaries of a module's calls. Before `watch` is called, both are points of the schedule."""

    enter_key: int
    exit_key: int

    def __new__(cls, enter_key: int, exit_key: int) -> Self: ...
    def watch(self, at_enter: bool, at_exit: bool, needs: list[int]) -> None:
        """Sets the points and the needs of a module.

        at_enter, at_exit: true if the schedule has a point at the start or the end of a call.
        needs: streamed units with weights that the module itself holds.
        """

@disjoint_base
class UnitHolder:
    """Units that a thread holds in a forward. Methods of the derived class, `ForwardContext`, handle rare cases."""

    def __new__(
        cls,
        reads: TensorReads,
        placed: PlacedUnits,
        session: Session,
        viewed: dict[int, None],
        device: int | None,
    ) -> Self:
        """viewed: units that some thread holds for a view. device: index of the CUDA device; None: the CPU."""

    def enter(self, boundaries: Boundaries) -> None:
        """Starts a call of a module. At a point of the schedule, releases unneeded units and loads the needed ones."""

    def exit(self, boundaries: Boundaries) -> None:
        """Ends a call of a module."""

    def pause(self) -> None:
        """Saves tensors that may be overwritten, and releases all units.

        Called before the thread continues on another device.
        """

    def save(self) -> None:
        """Saves tensors that may be overwritten after this. A unit with a live view is held until the forward's end."""

    def release_all(self) -> None:
        """Releases all units, and loads the first units of the next forward."""

@disjoint_base
class WatchedForward:
    """Replaces a module's `forward`, and reports the start and end of its calls to `thread.context`.

    Enters and exits a `UnitHolder`. Calls `call` of another context, with the boundaries, `original`, and its arguments as a
    tuple and a dictionary. Outside of forwards, calls `outermost` with the same arguments.
    """

    def __new__(
        cls, boundaries: Boundaries, original: Callable[..., Any], thread: Any, outermost: Callable[..., Any]
    ) -> WatchedForward: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

@final
class OffloadStream:
    """Copies device memory to the host and back, in the order of the calls."""

    def __new__(cls, device: int | None, bytes_per_second: float | None = None) -> OffloadStream:
        """`device`: a CUDA ordinal, or None for the host backend, whose copies are paced at `bytes_per_second`."""

    def growth(self, nbytes: int) -> int:
        """Bytes of host memory that `grow` would add to save `nbytes`; 0 if a place is free."""

    def grow(self, nbytes: int) -> None:
        """Adds pinned host memory. Raises MemoryError if the system refuses."""

    @property
    def host_nbytes(self) -> int:
        """Bytes of host memory that the stream has."""

    def save(self, address: int, nbytes: int, stream: int) -> HostCopy:
        """Starts copying device memory to the host, after the work queued on `stream`.

        Raises MemoryError if no place is free. The memory must stay unchanged until work that waits for the copy
        (`HostCopy.wait_saved`).
        """

    def timed(self, on: bool) -> None:
        """Turns the timing of copies on or off."""

    def bytes_per_second(self) -> float | None:
        """Speed of the copies since `timed(True)` or the last call; None without copies. Waits for them."""

    def synchronize(self) -> None:
        """Waits until all copies are done."""

@final
class HostCopy:
    """Bytes of device memory on the host. Dropping this object frees the place."""

    @property
    def nbytes(self) -> int: ...
    def wait_saved(self, stream: int) -> None:
        """Makes later work on `stream` wait until the bytes are on the host."""

    def load(self, address: int, stream: int) -> None:
        """Starts copying the bytes to device memory, after the work queued on `stream`.

        No other code may use the memory until work that waits for the copy (`wait_loaded`).
        """

    def wait_loaded(self, stream: int) -> None:
        """Makes later work on `stream` wait for the last `load`."""

def choose_recomputation(
    operations: Sequence[tuple[int, Sequence[int], Sequence[int], bool]],
    values: Sequence[tuple[int, bool]],
    room: int,
    ns_per_byte: float,
) -> tuple[list[bool], list[bool]]:
    """Chooses the operations of a forward to run again in backward, and the values to store: (repeated, stored).

    operations: (nanoseconds, inputs, outputs, true if it can run again). Inputs and outputs are numbers of values.
    values: (bytes, true if backward needs it).
    room: bytes that can be stored at no cost; each byte beyond takes `ns_per_byte`.
    """

@type_check_only
class Plan(TypedDict):
    """Result of the planner. At run time it is a plain dict."""

    resident: list[bool]
    places: list[tuple[int, int] | None]
    ring_bytes: int
    resident_bytes: int
    predicted_ns: int
    floor_ns: int
    compute_ns: int
    streamed_bytes: int

def checkpoint_tensors(path: str) -> list[tuple[str, str, str, list[int], int, int]]:
    """Returns the tensors of a `.safetensors` file, of an index of several files, or of a folder with either.

    Each is (name, file, dtype in the spelling of safetensors, shape, offset in the file, bytes).
    Raises ValueError or OSError.
    """

def plan(
    unit_bytes: list[int],
    schedule: list[tuple[list[int], int]],
    resident: list[bool],
    bytes_per_second: float,
    copy_overhead_ns: int,
    least_piece: int,
    budget: int | None,
    minimum: bool,
    capacity: int,
    together: list[list[int]] = ...,
    host_ns: int = 0,
    host_copy_ns: int = 0,
) -> Plan:
    """Chooses which units stay on the device and where the others go in the ring.

    unit_bytes: bytes per unit, multiples of 512.
    schedule: per point of a forward, the units needed and the nanoseconds of compute (0: unknown).
    copy_overhead_ns: overhead of each copy.
    least_piece: minimum bytes of a piece of a unit that is copied while the rest of its place is still in use.
    resident: units that must stay on the device.
    budget: device bytes for resident units and ring; None: the fewest that hide the transfers.
    minimum: the smallest ring that loads one unit while another is used.
    capacity: the most bytes available on the device.
    together: sets of units that may be needed at the same time outside the points.
    host_ns, host_copy_ns: host time to queue a forward without copies, and each copy; 0: unknown.

    Raises ValueError if the budget is too small for one of the points; the message contains the memory needed.
    """

def range_push(name: str) -> None:
    """Enters a range on this thread. Does nothing if libmemlab.so is not in the process."""

def range_pop() -> None:
    """Leaves the range that this thread entered last with `range_push`."""

def steps_recorded() -> int | None:
    """Number of optimizer steps that have ended in the recording; None if libmemlab.so is not in the process."""

def step_trained(
    step: int,
    *,
    epoch: int,
    batch: int,
    phase: str | None,
    samples: int,
    seconds: float,
    loss: float | None,
    way: str | None,
    pieces: int,
    offloaded_nbytes: int,
) -> None:
    """Adds a training step to the recording. Does nothing if libmemlab.so is not in the process."""

def parse_size(text: str) -> int:
    """Parses a size with a unit, such as ``8GiB`` or ``8GB``. The message of ``ValueError`` suggests a valid size."""

def format_size(nbytes: int) -> str:
    """Formats a size with three significant digits and a binary unit, such as ``1.50 GiB``."""

def short_size(nbytes: int) -> str:
    """Formats a size with two decimals and a letter, such as ``1.50G``, as in pytorch_memlab's tables."""

# Functions for the memory reporter. ----------------------------------------------------------------------------------------

def of_types(objects: list[object], types: list[type]) -> list[Any]:
    """Returns the objects whose type is one of `types`, in their order. Runs no code of the objects."""

def referents(references: list[ref[_Tensor]], others: list[_Tensor]) -> list[_Tensor]:
    """Returns the objects that `references` refer to, and those of `others` that are not among them."""

def without(objects: list[_Tensor], left_out: list[_Tensor]) -> list[_Tensor]:
    """Returns `objects` without those in `left_out`."""

def held_alone(
    use_count: Callable[[_Tensor], int], tensors: list[_Tensor], unheld: list[_Tensor]
) -> tuple[list[_Tensor], list[_Tensor]]:
    """Returns the tensors that Python refers to, and the tensors that only PyTorch keeps.

    The latter have a `use_count` above 1, and one reference more than the only object in `unheld`.
    """

def optimizer_tensors(optimizer: Any, tensor_class: type) -> list[_Tensor]:
    """Returns the tensors in an optimizer's state and in the settings of its groups, except the parameters."""

@final
class TensorNames:
    """Names of tensors. A tensor keeps its name from one report to the next, until it is freed."""

    def __new__(cls) -> TensorNames: ...
    def give_model(self, model: Any, module_class: type, tensor_class: type) -> list[_Tensor]:
        """Names the tensors of a model and returns them, each once: parameters, buffers, and plain attributes of modules.

        A tensor with several names gets all of them, joined by ``+``. If a class overrides `named_modules`,
        `named_parameters` or `named_buffers`, the override is called, as in Python.
        """

    def give_state(self, label: str, optimizer: Any, tensor_class: type, named: list[_Tensor]) -> None:
        """Names the tensors of an optimizer's state, ``label.parameter.key``, and appends them to `named`.

        Skips tensors in `named`. A parameter without a name gets the next number.
        """

    def forget_dead(self) -> None:
        """Drops the names of dead tensors once many names are stored."""

@final
class TensorReader:
    """Reads device, shape and memory of tensors, and their gradients.

    `plain` are the classes whose tensors can be one strided array. For other tensors, `parts` returns the inner tensors with
    suffixes for their names. `memory_of_other` returns device, shape, elements, address and bytes of a part that is not an
    array.
    """

    def __new__(
        cls,
        tensor_class: type,
        plain: list[type],
        storage_class: type,
        storage_key: Callable[[Any], int],
        parts: Callable[[_Tensor], Iterable[tuple[str, _Tensor]]],
        memory_of_other: Callable[[_Tensor], tuple[str, str, int, int, int]],
    ) -> TensorReader: ...

@final
class TensorTable:
    """Tensors with their names and inner tensors, by device. Keeps none of them alive.

    A tensor has the size of its block if `is_tracked`; otherwise, or outside any block, that of its storage. Each tensor is
    followed by its gradient, unless `named` contains the gradient. Issues no warnings.
    """

    devices: list[str]

    def __new__(
        cls, reader: TensorReader, names: TensorNames, named: list[_Tensor], others: list[_Tensor], is_tracked: bool
    ) -> TensorTable: ...
    def add_hidden(self, reader: TensorReader, names: TensorNames, tensors: list[_Tensor]) -> None:
        """Adds tensors without their gradients, except those that share memory with a listed tensor or are tracked."""

    def columns(self, device: str, card: int | None) -> _Columns:
        """Returns the tensors of a device as columns, and other uses of the device.

        `card`: index of a CUDA device with known blocks; None: sizes come from the tensors alone. Sizes are rounded as in
        the allocator. Memory shared by several tensors counts for the first.
        """

@type_check_only
class _Columns(TypedDict):
    names: list[str]
    shapes: list[str]
    elements: list[int]
    sizes: list[int]
    shares: list[str | None]  # Name of the tensor that counts the memory; None: the tensor itself.
    foreign: int  # Bytes of tensors outside all blocks, if blocks are known.
    unseen: list[tuple[str, int, str | None, str | None, int | None, str | None]]  # Category to function, the largest first.
    unseen_blocks: list[int]  # Addresses of the blocks of `unseen`, without those of libraries.
    outside: list[tuple[str, int]]  # Category and bytes of memory outside all blocks.

def table_rows(
    names: list[str],
    shares: list[str | None] | None,
    shapes: list[str],
    sizes: list[int],
    widths: tuple[int, int, int],
) -> tuple[str, int]:
    """Returns the lines of a table, and the width of its first column.

    Names are flush left, shapes and sizes flush right. The columns have the given widths; long names widen the first. With
    `shares`, the owner of the memory follows the name: ``view(->weight)``.
    """

# Recording of this process. ----------------------------------------------------------------------------------------------

def card(text: str) -> tuple[str, int, int, bool]:
    """Returns (name as in CUDA, bytes, bytes of the context, true if these were measured) of a card by its name or size.

    Raises ValueError with the reason.
    """

def driver_found() -> bool:
    """Returns True if a CUDA driver is available to the program. Does not initialise it."""

def library_found() -> bool:
    """Returns True if libmemlab.so is in this process and has the functions that this package needs."""

def load_library(path: str) -> None:
    """Loads libmemlab.so into the running process. Raises OSError with the reason on failure."""

def set_output(path: str | None = None) -> None:
    """Continues the recording in this file; None: in memory. Raises RuntimeError with the reason on failure."""

def recording_status() -> str | None:
    """Status of the recording as JSON, as the control socket reports it; None if nothing is recorded."""

def ask_for_tags() -> None:
    """Makes the main thread record the memory of parameters, gradients, buffers and optimizer state.

    It does so at its next bytecode.
    """

def offload(timeout_s: float) -> None:
    """Moves all device memory to host memory. Raises RuntimeError with the reason on failure."""

def restore(timeout_s: float, free_host: bool) -> None:
    """Moves the device memory back. Raises RuntimeError with the reason on failure."""

# Live books: bytes, in the columns of memlab.tracking and memlab.watching. -------------------------------------------------

_Text = str | None

_HolderRow = tuple[list[str], str, str, int, str, int, int, int, int, int, list[str], str]

def search_holders(
    device: int | None = None, addresses: list[int] | None = None, line: tuple[str, int] | None = None
) -> tuple[list[_HolderRow], int]:
    """Searches for what holds the memory of the blocks at `addresses`, of a line, or all. Returns the holders, and the bytes
    that no Python object leads to."""

def books_start() -> None: ...
def books_stop() -> None: ...
def books_active() -> bool: ...
def books_error() -> str | None:
    """Reason why the recording cannot be read; None: it can."""

def totals(device: int) -> tuple[int, int, int, int, int]: ...
def peak(device: int) -> tuple[int, int, int, float, int]: ...
def reset_peak(device: int | None = None) -> None: ...
def latest_time() -> float:
    """Seconds from the start of the recording to its latest event."""

def lost_events() -> int:
    """Number of missing events. They came faster than the recording could be kept small."""

def devices() -> list[int]: ...
def device_facts(device: int) -> tuple[_Text, int]:
    """Name of a device and its memory in bytes; None and 0 if the driver was not queried."""

def lines(device: int) -> list[tuple[_Text, int | None, _Text, _Text, int, int, int, int, int, int, int]]: ...
def layers(device: int) -> list[tuple[_Text, _Text, _Text, int, int, int, int, int, int, int]]: ...
def categories(device: int) -> list[tuple[str, int, int]]: ...
def blocks(device: int) -> list[tuple[int, int, str, _Text, int | None, _Text, _Text, str]]: ...
def watch_begin() -> int:
    """Starts a watch. Returns its id, or 0 if no books are kept."""

def watch_end(watch: int) -> None: ...
def watch_drop(watch: int) -> None: ...
def watch_figures(watch: int, device: int) -> tuple[int, int, int, int, bool]:
    """Figures of a watched block.

    Allocated at its start, at its peak, at its end or now; reserved at its peak; true if events are missing.
    """

def watch_timeline(watch: int, device: int) -> tuple[int, int, int, list[tuple[int, int, int, int, int]]]:
    """A watched block over time: its duration (so far), the time of its peak and the width of a point, in ns; the points.

    A point: nanoseconds since the start of the block; minimum, maximum and last value of allocated; maximum of reserved.
    Nothing changes between points.
    """

def watch_categories(watch: int, device: int) -> list[tuple[str, int, int]]:
    """Category, at the peak and at the end of a watched block, in display order."""

def watch_lines(watch: int, device: int) -> list[tuple[_Text, int | None, _Text, _Text, int, int, int, int, int]]: ...
def watch_layers(watch: int, device: int) -> list[tuple[_Text, _Text, _Text, int, int, int]]: ...

# Line profiles. -----------------------------------------------------------------------------------------------------------

@final
class LineMarks:
    """Marks the lines of profiled functions, by callbacks of `sys.monitoring` or as a trace function of `sys.settrace`."""

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
    """Adds an empty profile. Returns its id, or 0 if no books are kept."""

def profile_drop(profile: int) -> None: ...
def profile_add(profile: int, files: list[str], names: list[str], first_line: int, last_line: int) -> int | None: ...
def profile_enable(profile: int, enabled: bool) -> bool:
    """Enables or disables a profile. Returns True if the books contain it."""

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
    """Returns the figures of all lines that ran or allocated.

    Function, line, device, hits; current, peak, allocated, freed; peak growth; the line's own allocations; samples.
    """
