"""The private parts of PyTorch that memlab uses: one table, a row per name.

No other module of memlab names a private part of PyTorch. `tests/page/test_page_private.py` compares the rows with the
installed version, and checks that the other modules name none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.conv import _ConvNd as Convolution
from torch.overrides import _get_current_function_mode_stack as function_modes
from torch.overrides import _push_mode as push_function_mode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as without_dispatch_modes
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as dispatch_modes
from torch.utils._python_dispatch import _push_mode as push_dispatch_mode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from memlab._tools.safe_classes import bases, class_name, is_kind, is_subclass

__all__ = [
    "APPLY",
    "COPIES",
    "EMBEDDINGS",
    "LIFT_FRESH",
    "RECURRENT_DROPOUT_STATE",
    "SAVE_TO_STATE_DICT",
    "TENSOR_DICTS",
    "BatchNorm",
    "Convolution",
    "OpOverload",
    "StorageWeakRef",
    "dispatch_modes",
    "function_modes",
    "push_dispatch_mode",
    "push_function_mode",
    "tree_flatten",
    "tree_leaves",
    "tree_map_only",
    "tree_unflatten",
    "without_dispatch_modes",
]

OLDEST = (2, 6)  # Oldest version of PyTorch whose models memlab pages.


@dataclass(frozen=True)
class PrivateName:
    """A private name of PyTorch, as an expression."""

    name: str
    used_for: str
    without: str = "memlab.page cannot work: importing it fails"
    first: tuple[int, int] = OLDEST
    last: tuple[int, int] | None = None  # None: the newest version has it too.
    needs_cuda: bool = False  # A CPU-only build of PyTorch lacks it.


TABLE = (
    PrivateName(
        "torch._C._storage_Use_Count",
        "how many tensors use a storage: finds views that outlive their layer, and references through which a weight may "
        "have been edited",
    ),
    PrivateName("torch.UntypedStorage(0)._cdata", "which tensors share one storage"),
    PrivateName(
        "torch._C._cuda_getCurrentRawStream",
        "the calling thread's stream, asked for at each module boundary: a tenth of the time of the documented call",
        without="torch.cuda.current_stream().cuda_stream",
        needs_cuda=True,
    ),
    PrivateName("torch.Tensor._version", "whether an operation has written to a tensor"),
    PrivateName(
        "torch.Tensor._post_accumulate_grad_hooks",
        "whether something runs whenever a gradient is complete",
        without="memlab.accumulate does not refuse such models, and their hooks run after each piece",
    ),
    PrivateName(
        "torch.Tensor._backward_hooks",
        "whether a tensor that is loaded already refuses gradients; batches in pieces: hooks on parameters run once",
    ),
    PrivateName(
        "torch._C._will_engine_execute_node",
        "batches in pieces: which gradients a backward of the caller's is for",
    ),
    PrivateName(
        "torch._C._autograd._top_saved_tensors_default_hooks",
        "the saved-tensor hooks of others (checkpointing, offloading), to which everything is handed on",
        without="others' hooks around the model are not called: results are right, but a checkpoint around it frees nothing",
        first=(2, 8),
    ),
    PrivateName(
        "torch._C._autograd.SavedTensor.data",
        "memlab.Courtesy: what autograd saved, without unpacking it",
        without="what autograd alone holds stays on the GPU",
        first=(2, 11),  # 2.8 lacks it; the versions between were not tried.
    ),
    PrivateName("torch._C._functions.AccumulateGrad", "memlab.Courtesy: the leaf whose gradient a node accumulates"),
    PrivateName("torch.utils._python_dispatch.TorchDispatchMode", "tracing: sees each operation with its tensors"),
    PrivateName(
        "torch.utils._python_dispatch._disable_current_modes",
        "tracing: runs a block once more, untraced, to see whether it gives the same in micro-batches",
    ),
    PrivateName(
        "torch.utils._python_dispatch._get_current_dispatch_mode_stack",
        "lockstep: the threads of a batch have the modes of the thread that asked for it",
    ),
    PrivateName("torch.utils._python_dispatch._push_mode", "the same"),
    PrivateName("torch.overrides._get_current_function_mode_stack", "the same, such as the default device"),
    PrivateName("torch.overrides._push_mode", "the same"),
    PrivateName(
        "torch.UntypedStorage._new_with_weak_ptr",
        "lockstep: the storage of a weak reference, whose bytes wait on the host while its thread does",
    ),
    PrivateName("torch._ops.OpOverload", "tracing: tells operations from control flow such as torch.cond"),
    PrivateName(
        "torch.ops.aten.add.Tensor._schema", "tracing: which arguments an operation writes to, or returns a view of"
    ),
    PrivateName("torch.ops.aten._embedding_bag.default", "tracing: lookups that read a few rows of a table"),
    PrivateName("torch.ops.aten._to_copy.default", "several devices: copies from one to another, which stay as they are"),
    PrivateName("torch.utils._pytree.tree_flatten", "tensors in nested arguments and results"),
    PrivateName("torch.utils._pytree.tree_unflatten", "micro-batches: arguments and results put together again"),
    PrivateName("torch.utils._pytree.tree_leaves", "tracing: the tensors of an operation"),
    PrivateName("torch.utils._pytree.tree_map_only", "tracing: an operation's arguments, with copies of its weights"),
    PrivateName("torch.nn.Module()._parameters", "the dictionary that is exchanged when a forward begins and ends"),
    PrivateName("torch.nn.Module()._buffers", "the same for buffers"),
    PrivateName("torch.nn.Module._apply", "replaced, to refuse .to(), .half() and .cuda()"),
    PrivateName("torch.nn.Module._save_to_state_dict", "replaced, so that state_dict() in a forward saves the true values"),
    PrivateName("torch.nn.LSTM(1, 1)._flat_weights_names", "the weights of nn.LSTM, nn.GRU and nn.RNN in cuDNN's order"),
    PrivateName("torch.nn.modules.conv._ConvNd", "chunk: layers that take inputs of their weights' type alone"),
    PrivateName("torch.nn.modules.batchnorm._BatchNorm", "micro-batches: refused for BatchNorm in training"),
    PrivateName(
        "torch.compiler.disable(lambda: None)._torchdynamo_disable",
        "marks functions that torch.compile runs as they are; the documented torch.compiler.disable imports the compiler",
        without="nothing: an attribute that is not read",
    ),
    PrivateName("torch._C._get_float32_matmul_precision()", "offload_activations: settings that rounding depends on"),
    PrivateName("torch._C._get_cudnn_allow_tf32()", "the same"),
    PrivateName("torch._C._get_cudnn_enabled()", "the same"),
    PrivateName("torch._C._get_cudnn_deterministic()", "the same"),
    PrivateName("torch._C._get_cudnn_benchmark()", "the same"),
    PrivateName("torch._C._get_mkldnn_enabled()", "the same"),
    PrivateName("torch._C._len_torch_dispatch_stack()", "offload_activations: modes that are open around its own"),
    PrivateName("torch.cuda._sleep", "offload_activations: operations that the GPU runs without waiting for its host"),
    PrivateName("torch.Tensor._use_count", "MemReporter: how many holders a tensor has, Python's object among them"),
    PrivateName("torch.Tensor._is_zerotensor", "offloading of activations: zeros without memory, which it leaves alone"),
    PrivateName("torch.Tensor._base", "courtesy: the tensor that a view is of"),
    PrivateName("torch.Tensor._indices", "courtesy: the parts of a sparse tensor that is not coalesced"),
    PrivateName("torch.Tensor._values", "the same"),
    PrivateName("torch._C.DisableTorchFunctionSubclass", "courtesy: the storage of a subclass that overrides functions"),
    PrivateName(
        "torch.ones(1, requires_grad=True).exp().grad_fn._raw_saved_result",
        "courtesy: what autograd saved, without unpacking it, where its `data` can be read: with PyTorch 2.15, not with 2.4",
        without="what autograd alone holds stays on the GPU, and is said to",
    ),
    PrivateName(
        "torch.multiprocessing.reductions.StorageWeakRef(torch.UntypedStorage(0))",
        "offloading of activations: whether a storage is still alive; as long as it is asked, its number is no other's",
    ),
    PrivateName(
        "torch._C._DisableTorchDispatch",
        "offloading of activations: a saved tensor is detached where the mode that notes operations does not see it",
    ),
    PrivateName(
        "torch._C._current_graph_task_id()",
        "offloading of activations: whether an operation belongs to a backward; -1 if not",
    ),
    PrivateName(
        "torch._C._DisableAutocast",
        "offloading of activations: an operation that runs again gets the types that it had",
    ),
    PrivateName(
        "torch.utils._python_dispatch.TorchDispatchMode.is_infra_mode",
        "offloading of activations: torch.compile does its work inside of the mode that notes operations",
        without="torch.compile runs models as they are written inside of memlab.offload_activations, and says so",
    ),
    PrivateName(
        "torch._C._cuda_clearCublasWorkspaces",
        "courtesy: gives back the memory that PyTorch keeps for cuBLAS",
        without="it stays on the GPU",
        needs_cuda=True,
    ),
    PrivateName(
        "torch._C._dynamo.eval_frame.skip_code",
        "has torch.compile run a function as it is, and compile what it calls",
        without="set_code_exec_strategy",
        last=(2, 6),
    ),
    PrivateName(
        "torch._C._dynamo.eval_frame.set_code_exec_strategy",
        "the same",
        without="skip_code; where there is neither, torch.compile looks into memlab's functions, and breaks the graph there",
        first=(2, 7),
    ),
    PrivateName("torch._C._dynamo.eval_frame._FrameAction", "an argument of it", without="skip_code", first=(2, 7)),
    PrivateName("torch._C._dynamo.eval_frame._FrameExecStrategy", "an argument of it", without="skip_code", first=(2, 7)),
)

# Dictionaries in which a module holds its tensors, and methods that are replaced on modules.
TENSOR_DICTS = ("_parameters", "_buffers")
APPLY = "_apply"
SAVE_TO_STATE_DICT = "_save_to_state_dict"

# Creates the state of the generator from which cuDNN's recurrent layers draw dropout.
RECURRENT_DROPOUT_STATE = torch.ops.aten._cudnn_init_dropout_state.default

EMBEDDINGS = frozenset({torch.ops.aten.embedding.default, torch.ops.aten._embedding_bag.default})

COPIES = frozenset({torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default})

LIFT_FRESH = torch.ops.aten.lift_fresh.default  # The last operation of `torch.tensor`.

# A context in which operations ignore autocast.
without_autocast = torch._C._DisableAutocast

# Number of the backward that this thread is in; -1: none.
backward_number: Callable[[], int] = torch._C._current_graph_task_id

# Number of tensors that use each storage, by `storage_key`. (Called for all weights before each forward.)
use_count: Callable[[int], int] = torch._C._storage_Use_Count


# Settings that rounding depends on, at a tenth of the time of ``torch.backends``.
float32_precision: Callable[[], str] = torch._C._get_float32_matmul_precision
cudnn_allows_tf32: Callable[[], bool] = torch._C._get_cudnn_allow_tf32
cudnn_is_enabled: Callable[[], bool] = torch._C._get_cudnn_enabled
cudnn_is_deterministic: Callable[[], bool] = torch._C._get_cudnn_deterministic
cudnn_measures: Callable[[], bool] = torch._C._get_cudnn_benchmark
mkldnn_is_enabled: Callable[[], bool] = torch._C._get_mkldnn_enabled


# Number of open `TorchDispatchMode`s.
open_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack


# Occupies the current stream for a number of cycles.
spin: Callable[[int], None] = torch.cuda._sleep


# Number of holders of a tensor, including its Python object.
tensor_use_count: Callable[[Tensor], int] = torch.Tensor._use_count


def storage_key(storage: torch.UntypedStorage) -> int:
    """Returns the same number for all tensors over one storage, for as long as it lives."""
    return storage._cdata


def storage_of(reference: StorageWeakRef) -> torch.UntypedStorage | None:
    """Returns the storage of a weak reference; None if it is gone."""
    storage: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
    return storage


def tensor_key(tensor: Tensor) -> int | None:
    """Returns `storage_key` of a tensor's storage; None if it has none: sparse, or a subclass."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None


def without_graph(tensor: Tensor) -> Tensor:
    """Returns the same tensor, with its count of writes, but without the autograd graph that created it."""
    if tensor.is_leaf:
        return tensor
    if type(tensor) is not Tensor:
        return tensor.detach()
    with torch._C._DisableTorchDispatch():
        return tensor.detach()


def raw_stream(device: torch.device) -> int:
    """Returns the handle of the calling thread's stream on a CUDA device; 0 on the CPU, which has none."""
    if device.type == "cpu":
        return 0
    return stream_of(device.index)


def _public_stream(index: int) -> int:
    return int(torch.cuda.current_stream(index).cuda_stream)


# Handle of the calling thread's stream on a CUDA device, by its index.
stream_of: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _public_stream)


def version_of(tensor: Tensor) -> int:
    """Returns the number of operations that wrote to a tensor; 0 for an inference tensor, which does not count them."""
    try:
        return tensor._version
    except RuntimeError:
        return 0


def versions_of(tensors: list[Tensor]) -> list[int]:
    """Returns `version_of` each, at a twentieth of a microsecond."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:
        return [version_of(tensor) for tensor in tensors]


def has_gradient_hook(tensor: Tensor) -> bool:
    """Returns True if `Tensor.register_hook` was called on it."""
    return bool(tensor._backward_hooks)


def gradient_hooks(tensor: Tensor) -> dict[int, Callable[[Tensor], Tensor | None]]:
    """Returns the hooks of `Tensor.register_hook`, as autograd reads them."""
    return tensor._backward_hooks or {}


def will_run(node: Any) -> bool | None:
    """Returns True if the current backward will reach a node.

    Call it within a backward. None: `torch.autograd.grad` computes the gradient of the node's leaf, and accumulates it
    nowhere.
    """
    if node is None:
        return False
    try:
        runs: bool = torch._C._will_engine_execute_node(node)
    except RuntimeError:  # PyTorch raises because it cannot answer for captured gradients.
        return None
    return runs


def has_accumulation_hook(tensor: Tensor) -> bool:
    """Returns True if `Tensor.register_post_accumulate_grad_hook` was called on it."""
    return bool(getattr(tensor, "_post_accumulate_grad_hooks", None))


def saved_tensor_hooks() -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]] | None:
    """Returns the pack and unpack functions of the innermost `torch.autograd.graph.saved_tensors_hooks`, or None."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return None if top is None else top(True)


def writes_to(func: Any) -> list[tuple[int, str]]:
    """Returns positions and names of the arguments that an operation writes to."""
    schema = func._schema
    if not schema.is_mutable:
        return []
    arguments = enumerate(schema.arguments)
    return [(at, argument.name) for at, argument in arguments if argument.alias_info and argument.alias_info.is_write]


def may_return_view(func: Any) -> bool:
    """Returns True if an operation may return its argument's memory without reading it."""
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)


def rnn_weights(module: nn.RNNBase) -> list[Tensor | None]:
    """Returns the parameters of an nn.LSTM, nn.GRU or nn.RNN in PyTorch's order; None if not a plain parameter."""
    return [module._parameters.get(name) for name in module._flat_weights_names]


def has_tensors(module: nn.Module) -> bool:
    """Returns True if a module itself can hold parameters or buffers."""
    return bool(module._parameters or module._buffers)


def exclude_from_compile(function: Any, *, calls: bool = False) -> None:
    """Makes torch.compile run a function as it is, and compile only its calls.

    With `calls`, these are not compiled either, from PyTorch 2.7 on.

    The marks are those of ``torch.compiler.disable(recursive=False)``, which would import the whole compiler.
    """
    function._torchdynamo_disable = True
    _skip_frames(function.__code__, calls)


class OperationMode(TorchDispatchMode):
    """A mode whose ``__torch_dispatch__`` torch.compile leaves as it is.

    PyTorch's own modes do that by importing the whole compiler at the first operation, which takes one to three seconds.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        dispatch = cls.__dict__["__torch_dispatch__"]
        super().__init_subclass__(**kwargs)
        if cls.__dict__["__torch_dispatch__"] is not dispatch:
            exclude_from_compile(dispatch, calls=True)
            cls.__torch_dispatch__ = dispatch  # type: ignore[method-assign]


def mark_excluded(wrapper: Any) -> None:
    """Excludes an object with ``__call__``, whose code is not Python's."""
    wrapper._torchdynamo_disable = True


def _skip_frames(code: CodeType, calls: bool) -> None:
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        actions = frames._FrameAction
        called = actions.SKIP if calls else actions.DEFAULT
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(actions.SKIP, called))
    elif hasattr(frames, "skip_code"):
        frames.skip_code(code)
    constants: Sequence[object] = code.co_consts
    for inner in constants:
        if isinstance(inner, CodeType):
            _skip_frames(inner, calls)


def plain_storage(tensor: Tensor) -> torch.UntypedStorage | None:
    """Returns the storage of a strided tensor, without calling overrides of its class; None if it has none."""
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return Tensor.untyped_storage(tensor)
    except (NotImplementedError, RuntimeError):
        return None


def sparse_parts(tensor: Tensor) -> list[Tensor]:
    """Returns the tensors of indices and values of a sparse tensor, coalesced or not."""
    try:
        if tensor.layout is torch.sparse_coo:
            return [tensor._indices(), tensor._values()]
        if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
        if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
            return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    except (NotImplementedError, RuntimeError):  # A fake one, or one of a backend without parts.
        pass
    return []


def has_no_memory(tensor: Tensor) -> bool:
    """Returns True if a tensor represents zeros, as in forward-mode differentiation, or several tensors."""
    return tensor._is_zerotensor() or tensor.is_nested


def base_of(tensor: Tensor) -> Tensor | None:
    """Returns the tensor that a tensor is a view of, for autograd."""
    base: Tensor | None = Tensor._base.__get__(tensor)  # type: ignore[attr-defined]
    return base


def is_node_type(cls: type) -> bool:
    """Returns True if the objects of a class are nodes of autograd graphs, by the rule of `torch.autograd.graph.Node`."""
    return is_subclass(cls, torch.autograd.function.BackwardCFunction) or (
        getattr(torch._C._functions, class_name(cls), None) is cls
    )


def shows_saved() -> bool:
    """Returns True if PyTorch shows saved tensors without unpacking them."""
    return hasattr(torch._C._autograd.SavedTensor, "data")


def saved_by(node: Any) -> Iterator[Tensor]:
    """Yields the tensors that a node of an autograd graph saved for backward, without unpacking those that hooks packed.

    Also yields the leaf whose gradient a node accumulates. Yields nothing if PyTorch cannot show saved tensors without
    unpacking them.
    """
    if type(node) is _ACCUMULATE:
        yield node.variable
    for name in _raw_names(type(node)) if shows_saved() else ():
        try:
            raw = getattr(node, name)
        except (AttributeError, RuntimeError):  # Freed by a backward.
            continue
        for entry in raw if isinstance(raw, (tuple, list)) else (raw,):
            try:
                data = getattr(entry, "data", None)
            except RuntimeError:  # Freed, or edited in place since.
                continue
            if is_kind(data, Tensor):
                yield data


_ACCUMULATE = torch._C._functions.AccumulateGrad
# By the id of the class, whose metaclass may be the program's. The classes are kept, so that no other class gets their id.
_RAW_NAMES: dict[int, tuple[type, tuple[str, ...]]] = {}


def _raw_names(cls: type) -> tuple[str, ...]:
    if id(cls) not in _RAW_NAMES:
        named = {name for base in bases(cls) for name in type.__dict__["__dict__"].__get__(base)}
        _RAW_NAMES[id(cls)] = (cls, tuple(name for name in named if name.startswith("_raw_saved_")))
    return _RAW_NAMES[id(cls)][1]


def clear_cublas_workspaces() -> None:
    """Frees the memory that PyTorch keeps for cuBLAS. The next matrix product allocates it again."""
    if hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
        torch._C._cuda_clearCublasWorkspaces()
