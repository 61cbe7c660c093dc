"""The Rust extension: host memory for weights, the pipeline that copies them, the planner, checkpoints; the live books.

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

PAGE_SIZE: int  # Alignment of the borders between pinned pieces of an arena.
PIN_GRANULE: int  # Bytes pinned at a time: some systems refuse much larger pieces.
SETTINGS_TO_TRY: list[str]  # Settings of the allocator that may reduce memory.

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
        """Replays requests: (kind, id, bytes, place). Returns the failed requests as (index, (requested bytes, bytes of the
        segment, allocated, reserved)), and (allocated, reserved) after each request. Raises ValueError for an unknown
        kind."""

    def counters(self) -> dict[str, int]: ...
    def segments(
        self,
    ) -> list[tuple[int, int, tuple[int, int], bool, bool, list[tuple[int, int, str]]]]:
        """(address, stream, pool, is small, is expandable, blocks as (bytes, requested bytes, state))"""

def recorded_requests(
    path: str | PathLike[str],
) -> tuple[tuple[int, int], list[tuple[str, int, int, int, tuple[int, int]]]]:
    """The requests to PyTorch's allocator in a recorded run: (version of PyTorch, requests as (kind, id, bytes, stream,
    pool)). Raises ValueError if the file is no trace of a run with PyTorch."""

_Line = tuple[str, int | None, str] | None

@final
class PlanFamily:
    """A program at any batch size, derived from traces at some. See `memlab.inspect`."""

    def __new__(cls, traces: Sequence[tuple[int, str | PathLike[str]]], harness: str) -> PlanFamily:
        """`traces`: (batch size, file), two or more. `harness`: the folder of code that only runs the program; its lines
        count if the stack contains no others. Raises ValueError with the reason if the traces do not allow a plan."""

    @property
    def recorded_batches(self) -> list[int]:
        """The batch sizes of the traces, in order."""

    def is_far(self, batch: int) -> bool:
        """True if a batch size is so far from the recorded ones that kernels may choose other algorithms."""

    @property
    def outside(self) -> int:
        """Bytes of the device held outside PyTorch's allocator, by libraries."""

    def unmatched(self, batch: int) -> tuple[int, int, int, int, int]:
        """Unmatched allocations between the two recordings that a batch size is planned from: allocations at the larger
        batch without a counterpart at the smaller one; all allocations; peak bytes of the former; the smaller batch; the
        larger."""

    @property
    def read_backs(self) -> list[tuple[_Line, int]]:
        """Lines that read values back from the device, with the number of reads."""

    @property
    def warnings(self) -> list[str]: ...
    def needs(self, batch: int, settings: str, context: int) -> tuple[int, int, int, str, int]:
        """(allocated, reserved, memory of the smallest card, "steady", "grows", "not yet" or "unknown", bytes that each step
        keeps). `context`: bytes of the card used by neither the allocator nor libraries."""

    def largest_batch(self, memory: int, settings: str, context: int) -> int:
        """The largest batch that runs on a card with this memory; 0 if none does."""

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
        """(allocated, completed steps, phase, the line of the last allocated block, its layer, and (name, bytes, blocks) by
        category, line and layer). A line is (file, number, function)."""

    def activation_bytes(self, batch: int) -> int:
        """Peak bytes of tensors that autograd saves."""

@final
class Arena:
    """Host memory for all weights. It is freed with this object and the last `Pipeline` that uses it."""

    def __new__(cls, nbytes: int, borders: list[int] | None = None, share: HostShare | None = None) -> Arena:
        """Reserves addresses; memory is allocated when it is written. Raises MemoryError with the system's reason.

        The arena is pinned in pieces. `borders` (multiples of 4096) are their ends, None for one every GiB. The memory of
        `share` is the beginning of the arena, which ends at a border or with the arena.
        """

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def shared_nbytes(self) -> int:
        """Bytes at the beginning that several processes share; 0 without a `share`."""

    @property
    def view_address(self) -> int | None:
        """Address at which this process may write to the shared bytes; only this process sees such writes."""

    @property
    def shielded(self) -> bool:
        """True if the device can only read the shared bytes, once they are pinned."""

    def publish(self) -> None:
        """Ends the writing of the shared bytes, and makes them available to other processes."""

    def differs(self, offset: int, address: int, nbytes: int) -> bool:
        """True if host memory differs from the arena's. Reads with several threads and without the GIL."""

    @property
    def pinned(self) -> bool: ...
    @property
    def inherited(self) -> bool:
        """True if a forked child has the bytes: it does not inherit pinned pages."""

    @property
    def refused(self) -> str | None:
        """The reason why the system refused to pin."""

    def fill(self, offset: int, address: int, nbytes: int) -> None:
        """Copies host memory into the arena, with several threads and without the GIL."""

    def read(self, parts: list[tuple[str, int, int, int]]) -> None:
        """Reads parts of files: (path, offset in the file, offset in the arena, bytes). Raises OSError with the file."""

    def unpin(self) -> None:
        """Makes the arena pageable again. No copy may be under way."""

    def pin(self, device: int) -> bool:
        """Registers the arena with CUDA, so that copies are asynchronous. Returns True on success; else see `refused`."""

@final
class HostShare:
    """This process's share of memory that processes of one user hold once. The last process frees it."""

    @staticmethod
    def join(name: str, nbytes: int, waiting: Callable[[int], None] | None = None) -> HostShare:
        """Joins the processes that share `nbytes`, a multiple of 4096, under a name of letters, digits and dashes.

        Waits while another process fills the memory or does not answer, without the GIL; signals are handled. Meanwhile
        calls `waiting` about ten times a second, with the id of that process (0: not known); its exceptions end the wait.
        Raises RuntimeError if another user's process has the name, MemoryError with the system's reason.
        """

    @property
    def first(self) -> bool:
        """True if this process has to fill the memory, and then call `Arena.publish`."""

    def members(self) -> int:
        """Number of processes that have the memory."""

    def abandon(self) -> None:
        """Leaves the filling to the next process. Does nothing after the memory was published."""

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
        least_piece: int,
        stream: int,
    ) -> None:
        """Replaces all units, once `stream` is done with the device memory, and loads the resident ones.

        units: for each unit its ranges (offset in the arena, address on the device, bytes).
        places: for each unit its place in the ring (offset, bytes), or None: resident.
        schedule: the points of a forward in order: (key, units needed from here to the next point).
        fallback: for a key that the schedule lacks, the units it needs.
        lookahead: maximum number of units loaded ahead; None: as many as the ring holds; 0: only on demand.
        least_piece: minimum bytes of a unit that are copied without a wait, where a part of its place is free first.
        """

    def session(self) -> Session:
        """A thread's connection to the pipeline. Each thread needs one."""

    def reload(self, unit: int, stream: int) -> None:
        """Copies an edited unit again, after its readers. `stream` waits for the copy."""

    def timed(self, on: bool) -> None:
        """Turns on or off the timing of each point of the schedule. Clears earlier measurements."""

    def captured(self) -> bool:
        """True if a forward was captured into a graph."""

    def timings(self) -> list[int]:
        """Nanoseconds of compute per point of the schedule in the last timed forward; 0: not reached. Waits for the
        device."""

    def counters(self) -> dict[str, int]:
        """forwards, copies, copied_bytes, on_demand, out_of_order, reloads, waits, and on the host backend waited_ns."""

    def synchronize(self) -> None:
        """Waits until all copies are done."""

@final
class Session:
    """A thread's position in the schedule."""

    def enter(self, key: int, stream: int) -> tuple[list[int], list[int]] | None:
        """Enters a point of the schedule. Returns (units released, units acquired), or None if nothing changes.

        Work queued on `stream` after it may use the acquired units.
        """

    def leave(self, stream: int) -> list[int]:
        """Ends the outermost forward, also after an exception: releases all units and returns them."""

# The host side of paging. -------------------------------------------------------------------------------------------------

@final
class TensorReads:
    """Reads versions and addresses of tensors, use counts of storages by their keys, the current stream of a CUDA device."""

    def __new__(
        cls, tensor_class: type, use_count: Callable[[int], int], current_stream: Callable[[int], int]
    ) -> TensorReads: ...

@final
class EditCounters:
    """Versions and reference counts of `PagedTensor`s, addresses of some, and use counts of storages, at creation."""

    def __new__(cls, reads: TensorReads, paged: list[Any], addressed: list[Any], storages: list[int]) -> EditCounters: ...
    def unchanged(self) -> bool:
        """True if none has changed."""

@final
class Versions:
    """Versions of tensors, to compare with later ones."""

    def __new__(cls, reads: TensorReads, tensors: list[_Tensor]) -> Versions: ...
    def changed(self) -> bool:
        """True if a tensor was written to since creation, or since `note`."""

    def note(self) -> None:
        """Records the current versions."""

@final
class SwappedDicts:
    """The `SwappedDict`s of a model, exchanged in one call."""

    def __new__(cls, swapped: list[Any]) -> SwappedDicts: ...
    def enter(self) -> None:
        """Puts the `inside` entries into the modules."""

    def leave(self) -> None:
        """Puts the `outside` entries into the modules, with the assignments made by forwards."""

@final
class UnitForms:
    """A unit's tensors on the device, and the dictionary entries that expose them in a forward.

    entries: (dictionary, key, tensor while it is loaded, tensor while it is not, `PagedTensor` if it is a buffer).
    has_lists: modules hold its tensors in lists too, which `ForwardContext.show_lists` changes.
    storages: keys of its weights' storages on the device.
    """

    resident: bool
    on_device_versions: list[int]  # Versions at the last check for writes to its tensors on the device.

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
        """Takes the current users of its memory as the model's own tensors."""

    def has_views(self) -> bool:
        """True if other tensors use its memory."""

@final
class PlacedUnits:
    """The units of a placement, by their indices, for the contexts of threads. One object for all placements."""

    def __new__(cls) -> PlacedUnits: ...
    def place(self, units: list[UnitForms], needed_at: dict[int, list[int]]) -> None:
        """Takes another placement. `needed_at`: by key, the units that may be needed from a boundary on."""

    def observe(self, observer: Callable[[int], None]) -> None:
        """Calls a function with each unit that a thread has acquired. For tests."""

    def needed_at(self, key: int) -> list[int]:
        """The units that may be needed from a boundary on."""

@disjoint_base
class Boundaries:
    """The boundaries of a module's calls. Before `watch` is called, both are points of the schedule."""

    enter_key: int
    exit_key: int

    def __new__(cls, enter_key: int, exit_key: int) -> Self: ...
    def watch(self, at_enter: bool, at_exit: bool, needs: list[int]) -> None:
        """Sets which boundaries are points of the schedule. `needs`: streamed units with weights of the module itself."""

@disjoint_base
class UnitHolder:
    """The units that a thread holds in a forward. In rare cases it calls methods of `ForwardContext`."""

    def __new__(
        cls,
        reads: TensorReads,
        placed: PlacedUnits,
        session: Session,
        viewed: dict[int, None],
        device: int | None,
    ) -> Self:
        """viewed: units that a thread holds for a view. device: a CUDA ordinal; None: the CPU."""

    def enter(self, boundaries: Boundaries) -> None:
        """Begins a module's call. At a point of the schedule, releases units no longer needed and loads the needed ones."""

    def exit(self, boundaries: Boundaries) -> None:
        """Ends a module's call."""

    def pause(self) -> None:
        """Called before the thread goes on on another device: releases all units and loads those of the next forward."""

    def save(self) -> None:
        """Saves tensors that may be overwritten once units are released. A unit with a live view stays held."""

    def release_all(self) -> None:
        """Releases all units, and loads those of the next forward."""

@disjoint_base
class WatchedForward:
    """Replaces a module's `forward`, and reports its calls to `thread.context`.

    A `UnitHolder` is entered and exited. Another context has a method `call`, which receives the boundaries, `original`, and
    its arguments as a tuple and a dictionary. Without a context, `outermost` is called with these.
    """

    def __new__(
        cls, boundaries: Boundaries, original: Callable[..., Any], thread: Any, outermost: Callable[..., Any]
    ) -> WatchedForward: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

@final
class OffloadStream:
    """Copies of device memory to the host and back, in the order of the requests."""

    def __new__(cls, device: int | None, bytes_per_second: float | None = None) -> OffloadStream:
        """`device`: a CUDA ordinal, or None for the host backend, whose copies are paced at `bytes_per_second`."""

    def growth(self, nbytes: int) -> int:
        """Bytes of host memory that `grow` must add to save `nbytes`; 0 if a place is free."""

    def grow(self, nbytes: int) -> None:
        """Adds host memory, pinned. Raises MemoryError if the system refuses."""

    @property
    def host_nbytes(self) -> int:
        """Bytes of host memory of the lane."""

    def save(self, address: int, nbytes: int, stream: int) -> HostCopy:
        """Begins to copy device memory to the host, after the work queued on `stream`. Raises MemoryError without a free
        place.

        The memory must not change before work that waits for the copy (`HostCopy.wait_saved`).
        """

    def timed(self, on: bool) -> None:
        """Turns the timing of copies on or off."""

    def bytes_per_second(self) -> float | None:
        """Speed of the copies since `timed(True)` or the last call; None without copies. Waits for them."""

    def synchronize(self) -> None:
        """Waits until all copies are done."""

@final
class HostCopy:
    """Bytes of device memory on the host. Its place is free again when this object is gone."""

    @property
    def nbytes(self) -> int: ...
    def wait_saved(self, stream: int) -> None:
        """Makes work queued on `stream` from now on wait until the bytes are on the host."""

    def load(self, address: int, stream: int) -> None:
        """Begins to copy the bytes to device memory, after the work queued on `stream`.

        No other code may use the memory before work that waits for the copy (`wait_loaded`).
        """

    def wait_loaded(self, stream: int) -> None:
        """Makes work queued on `stream` from now on wait for the last `load`."""

def choose_recomputation(
    operations: Sequence[tuple[int, Sequence[int], Sequence[int], bool]],
    values: Sequence[tuple[int, bool]],
    room: int,
    ns_per_byte: float,
) -> tuple[list[bool], list[bool]]:
    """Chooses the operations of a forward to repeat in backward, and the values to store.

    operations: (nanoseconds, inputs, outputs, whether it can run again); inputs and outputs are numbers of values.
    values: (bytes, whether backward needs it).
    room: bytes that can be stored without cost; each byte beyond costs `ns_per_byte`.
    """

@type_check_only
class Plan(TypedDict):
    """The result of the planner. At run time it is a dict, without this name."""

    resident: list[bool]
    places: list[tuple[int, int] | None]
    ring_bytes: int
    resident_bytes: int
    predicted_ns: int
    floor_ns: int
    compute_ns: int
    streamed_bytes: int

def checkpoint_tensors(path: str) -> list[tuple[str, str, str, list[int], int, int]]:
    """The tensors of a .safetensors file, of a sharded index, or of a folder that contains one of them.

    Each: (name, file, dtype as safetensors spells it, shape, offset in the file, bytes). Raises ValueError or OSError.
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
    """Chooses the units that stay on the device, and the places of the others in the ring.

    unit_bytes: bytes per unit, multiples of 512.
    schedule: per point the units needed and the nanoseconds of compute; 0: unknown.
    copy_overhead_ns: overhead of each copy.
    least_piece: minimum bytes of a unit that are copied without a wait, where a part of its place is free first.
    resident: the units that must stay on the device.
    budget: maximum device memory for weights; None: the minimum that still hides the copies.
    minimum: the smallest ring that loads one unit while another is used.
    capacity: the available device memory.
    together: sets of units that may be needed at the same time, without a point that needs them all.
    host_ns, host_copy_ns: host time of a forward without copies, and of each copy; 0: unknown.

    Raises ValueError if the budget is too small for one of the points; the message contains the memory needed.
    """

def range_push(name: str) -> None:
    """Enters a range on this thread. Does nothing if libmemlab.so is not in the process."""

def range_pop() -> None:
    """Leaves the range that this thread entered last with `range_push`."""

def steps_recorded() -> int | None:
    """Number of completed optimizer steps in the recording; None if libmemlab.so is not in the process."""

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
    """Bytes of a size with its unit, as ``8GiB`` or ``8GB``. The message of ``ValueError`` suggests a valid size."""

def format_size(nbytes: int) -> str:
    """Three significant digits and a binary unit, as ``1.50 GiB``."""

def short_size(nbytes: int) -> str:
    """Two decimals and one letter, as ``1.50G``: the format of pytorch_memlab's tables."""

# Functions for the memory reporter. ----------------------------------------------------------------------------------------

def of_types(objects: list[object], types: list[type]) -> list[Any]:
    """The objects whose type is one of `types`, in their order. Runs no code of the objects."""

def referents(references: list[ref[_Tensor]], others: list[_Tensor]) -> list[_Tensor]:
    """The objects of weak references, and those of `others` that are not among them."""

def without(objects: list[_Tensor], left_out: list[_Tensor]) -> list[_Tensor]:
    """`objects` without those in `left_out`."""

def held_alone(
    use_count: Callable[[_Tensor], int], tensors: list[_Tensor], unheld: list[_Tensor]
) -> tuple[list[_Tensor], list[_Tensor]]:
    """The remaining tensors, and those with several holders that have one reference more than the only object in
    `unheld`."""

def optimizer_tensors(optimizer: Any, tensor_class: type) -> list[_Tensor]:
    """The tensors in an optimizer's state, and in the settings of its groups; not the parameters."""

@final
class TensorNames:
    """Names that stay the same from one report to the next, and are dropped with their tensors."""

    def __new__(cls) -> TensorNames: ...
    def give_model(self, model: Any, module_class: type, tensor_class: type) -> list[_Tensor]:
        """Names the tensors of a model and returns them, each once: parameters, buffers, and plain attributes of modules.

        A tensor with several names has all of them, joined by ``+``. Overridden methods `named_modules`, `named_parameters`
        and `named_buffers` are called, as in Python.
        """

    def give_state(self, label: str, optimizer: Any, tensor_class: type, named: list[_Tensor]) -> None:
        """Names the tensors of an optimizer's state, ``label.parameter.key``, and appends them to `named`.

        Leaves out those that are in `named`. A parameter without a name gets the next number.
        """

    def forget_dead(self) -> None:
        """Drops the names of dead tensors, if they may be many."""

@final
class TensorReader:
    """Reads device, shape and memory of tensors, and their gradients.

    `plain` are the classes whose tensors can be one strided array. For other tensors, `parts` returns the inner tensors with
    suffixes for their names. `memory_of_other` returns device, shape, elements, address and bytes of a part that is no
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

    The size of a tensor is that of its block if `is_tracked`, else (and outside any block) that of its storage. Each tensor
    is followed by its gradient, unless that is in `named`. No warnings are issued.
    """

    devices: list[str]

    def __new__(
        cls, reader: TensorReader, names: TensorNames, named: list[_Tensor], others: list[_Tensor], is_tracked: bool
    ) -> TensorTable: ...
    def add_hidden(self, reader: TensorReader, names: TensorNames, tensors: list[_Tensor]) -> None:
        """Adds tensors without their gradients, except those that share memory with a listed tensor or are tracked."""

    def columns(self, device: str, card: int | None) -> _Columns:
        """The tensors of a device, as columns, and other uses of the device.

        `card`: the index of a CUDA device with known blocks; None: sizes are those of memory alone. Sizes are rounded as in
        the allocator. Memory shared by several tensors counts for the first.
        """

@type_check_only
class _Columns(TypedDict):
    names: list[str]
    shapes: list[str]
    elements: list[int]
    sizes: list[int]
    shares: list[str | None]  # The name of the tensor that counts the memory; None: the tensor itself.
    foreign: int  # Bytes of tensors in no block, if blocks are known.
    unseen: list[tuple[str, int, str | None, str | None, int | None, str | None]]  # Category to function, the largest first.
    outside: list[tuple[str, int]]  # Category and bytes of memory in no block.

def table_rows(
    names: list[str],
    shares: list[str | None] | None,
    shapes: list[str],
    sizes: list[int],
    widths: tuple[int, int, int],
) -> tuple[str, int]:
    """The lines of a table, and the width of its first column: names flush left, shapes and sizes flush right.

    The columns have these widths; the first is wider if a name is longer. With `shares`, these follow the names:
    ``view(->weight)``.
    """

# The recording of this process. ------------------------------------------------------------------------------------------

def card(text: str) -> tuple[str, int, int, bool]:
    """(name, bytes, bytes of the context, whether it was measured) of a card by name or size. Raises ValueError with the
    reason."""

def driver_found() -> bool:
    """True if a usable CUDA driver is present. Does not initialise it."""

def library_found() -> bool:
    """True if libmemlab.so is in this process and has the functions that this package needs."""

def load_library(path: str) -> None:
    """Loads libmemlab.so into the running process. Raises OSError with the reason on failure."""

def set_output(path: str | None = None) -> None:
    """Continues the recording in this file; None: in memory. Raises RuntimeError with the reason on failure."""

def recording_status() -> str | None:
    """The status of the recording as the control socket reports it, JSON; None if nothing is recorded."""

def ask_for_tags() -> None:
    """Makes the main thread report the owners of memory, the next time that it runs a bytecode."""

def offload(timeout_s: float) -> None:
    """Moves all device memory to host memory. Raises RuntimeError with the reason on failure."""

def restore(timeout_s: float, free_host: bool) -> None:
    """Moves it back. Raises RuntimeError with the reason on failure."""

# The live books: bytes, by the columns of memlab.tracking and memlab.watching. ---------------------------------------------

_Text = str | None

def books_start() -> None: ...
def books_stop() -> None: ...
def books_active() -> bool: ...
def books_error() -> str | None:
    """The reason why the recording cannot be read; None: it can."""

def totals(device: int) -> tuple[int, int, int, int, int]: ...
def peak(device: int) -> tuple[int, int, int, float, int]: ...
def reset_peak(device: int | None = None) -> None: ...
def latest_time() -> float:
    """Time of the latest event, in seconds since the recording began."""

def lost_events() -> int:
    """Number of missing events, dropped because they came faster than the recording could be kept small."""

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
    """Allocated at the start, at the peak and at the end; the peak of reserved; True if events are missing."""

def watch_timeline(watch: int, device: int) -> tuple[int, int, int, list[tuple[int, int, int, int, int]]]:
    """Duration of the block, time of its peak, and width of a point, in nanoseconds. Points: nanoseconds since the block
    began; minimum, maximum and last value of allocated; maximum of reserved. Between points nothing changes."""

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
    """Starts or stops counting of a profile. Returns True if the books have it."""

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
