"""Lockstep: the gradients of a batch through BatchNorm in training, from concurrent micro-batches.

BatchNorm needs the statistics of the whole batch before any sample goes on. So each micro-batch has a thread. One thread
runs at a time, and all meet in each BatchNorm: once in forward, and once in backward. The loss is computed once, from the
outputs of all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, finalize

import torch
from torch import Tensor, nn

from memlab._batches.batch import Batch
from memlab._batches.first_order import first_order
from memlab._batches.inputs import InputGradients
from memlab._batches.lockstep_history import LockstepHistory
from memlab._batches.mixing import look_for_mixing
from memlab._batches.out_of_memory import is_out_of_memory, make_room
from memlab._batches.output_leaves import as_output
from memlab._batches.ranks import WITHIN_A_BACKWARD
from memlab._batches.requested_gradients import RequestedGradients
from memlab._batches.sizing import FixedSize
from memlab._batches.state import Autocast
from memlab._batches.threaded_batch import ThreadedBatch
from memlab._paging.torch_private import tree_flatten, tree_unflatten

# Default number of micro-batches: each meets the others twice in each layer.
_MOST = 32
# Half the size of the micro-batches that did not fit, by model.
_LIMITS: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()

Scale = Callable[[Tensor], Tensor]


class Lockstep:
    """One batch through a model, forward and backward.

    All micro-batches of a batch have the same size. By default a batch has 32, or fewer where larger ones are known to fit.
    A forward that runs out of memory begins again: first with nothing kept on the GPU, then with micro-batches of half the
    size.
    """

    def __init__(self, batch: Batch, *, spill: bool | None = None) -> None:
        """`spill`: keep waiting micro-batches in host memory; None: only if the batch is on a GPU."""
        self._batch = batch
        self._has_backward = torch.is_grad_enabled()
        self._spills = batch.device.type == "cuda" if spill is None else spill
        _refuse(batch)

    def run(self, loss_of_outputs: Callable[[Any], Tensor], scale: Scale = lambda loss: loss) -> Tensor:
        """Adds to the gradients, and returns the loss without a graph.

        `loss_of_outputs` receives the model's outputs for the whole batch. `scale` receives the loss before backward.

        Raises:
            RuntimeError: micro-batches run different layers; a buffer depends on the samples; gradients are off.
            ValueError: the loss is not one number, or an output has no row for each sample.
            torch.OutOfMemoryError: a single sample does not fit, or a backward that has added to gradients does not.
        """

        def whole(threaded: ThreadedBatch) -> tuple[Tensor, InputGradients]:
            outputs, form = tree_flatten(threaded.forward())
            leaves = [_as_leaf(one) for one in outputs]
            loss = loss_of_outputs(tree_unflatten([as_output(leaf) for leaf in leaves], form))
            if not isinstance(loss, Tensor) or loss.dim() != 0:
                found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
                raise ValueError(f"the loss is {found}: it must be a scalar tensor")
            with Autocast.off():
                scaled = scale(loss)
                threaded.has_added = True
                scaled.backward()
            return loss.detach(), threaded.backward([leaf.grad if isinstance(leaf, Tensor) else None for leaf in leaves])

        def attempt(threaded: ThreadedBatch) -> tuple[Tensor, InputGradients]:
            with threaded:
                return whole(threaded)

        if not self._has_backward:
            raise RuntimeError("gradients are off here (no_grad or inference_mode), but the batch needs them")
        self._batch.ranks.share_buffers()
        loss, inputs = self._attempted(attempt)
        self._batch.ranks.average()
        inputs.backward()
        return loss

    def outputs(self) -> Any:
        """The model's outputs for the whole batch, with a graph whose backward adds to the gradients of parameters. Without
        a graph where gradients are off.

        Raises:
            RuntimeError: as in `run`; or the model is spread over ranks, which cannot wait for each other in a backward.
            ValueError: an output has no row for each sample.
            torch.OutOfMemoryError: a single sample does not fit; in backward: some samples do not fit.
        """
        if not self._has_backward:
            threaded, outputs = self._forward()
            threaded.end(undo=False)
            return outputs
        if self._batch.ranks.are_several:
            raise RuntimeError(WITHIN_A_BACKWARD)
        form: list[Any] = []
        # An output has a graph if one of its inputs has one: here the anchor guarantees that.
        anchor = torch.empty(0, requires_grad=True)
        inputs = [leaf for leaf in self._batch.samples.leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
        leaves = _LockstepOutputs.apply(self, form, anchor, *inputs, *self._batch.parameters)
        return tree_unflatten(list(leaves), form[0])

    def _forward(self) -> tuple[ThreadedBatch, Any]:
        """Runs the forward of all threads, which then wait for their gradients. Returns them and the outputs."""

        def attempt(threaded: ThreadedBatch) -> tuple[ThreadedBatch, Any]:
            try:
                return threaded, threaded.forward()
            except BaseException:
                threaded.end(undo=True)
                raise

        return self._attempted(attempt)

    def _attempted(self, work: Callable[[ThreadedBatch], Any]) -> Any:
        """Runs `work` in threads, and repeats it with less memory until it fits."""
        batch = self._batch
        while True:
            size = self._size()
            if size < len(batch.samples):
                look_for_mixing(batch, joins=True, size=size)
            pieces = _pieces(len(batch.samples), size)
            lockstep_history = LockstepHistory.of(batch.model, batch.device, batch.memory, pieces, batch.samples.form)
            threaded = ThreadedBatch(batch, pieces, lockstep_history, spills=self._spills, has_backward=self._has_backward)
            try:
                return work(threaded)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                if not lockstep_history.failed():
                    if len(pieces[0]) == 1:
                        raise
                    self._halve(len(pieces[0]))
                if threaded.has_added:
                    raise _in_backward(error) from error
                make_room(error)

    def _halve(self, size: int) -> None:
        """Halves the size of micro-batches, since this one does not fit."""
        self._batch.sizing.failed(size)
        _LIMITS[self._batch.model] = size // 2

    def _size(self) -> int:
        """Samples in a micro-batch."""
        count, sizing = len(self._batch.samples), self._batch.sizing
        size = sizing.size(count)
        if isinstance(sizing, FixedSize):
            return size
        return max(size, min(-(-count // _MOST), _LIMITS.get(self._batch.model, count)))


class _LockstepOutputs(torch.autograd.Function):
    """A model's outputs for all samples. Their threads wait for backward, or until no backward is possible any more."""

    @staticmethod
    def forward(ctx: Any, lockstep: Lockstep, form: list[Any], anchor: Tensor, *begin: Tensor) -> tuple[Any, ...]:
        threaded, outputs = lockstep._forward()
        leaves, shape = tree_flatten(outputs)
        form.append(shape)
        ctx.threaded, ctx.parameters = threaded, lockstep._batch.parameters
        # (Finalizes `ctx` rather than the batch, which its threads keep alive.)
        finalize(ctx, threaded.end, undo=False).atexit = False
        ctx.set_materialize_grads(False)
        outputs = tuple(leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        ctx.mark_non_differentiable(*[one for one in outputs if isinstance(one, Tensor) and not one.dtype.is_floating_point])
        return outputs

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        threaded: ThreadedBatch | None = ctx.threaded
        if threaded is None:
            raise RuntimeError(
                "backward ran a second time through a batch in lockstep, whose micro-batches have ended: add the losses, "
                "and call backward once"
            )
        ctx.threaded = None
        requested = RequestedGradients(ctx, ctx.parameters)
        try:
            with threaded, requested.apart():
                inputs = threaded.backward(gradients, requested.wanted)
            return (None, None, None, *inputs.whole(), *requested.returned())
        except Exception as error:
            raise (_in_backward(error) if is_out_of_memory(error) else error) from error


def _as_leaf(output: Any) -> Any:
    return output.detach().requires_grad_() if isinstance(output, Tensor) and output.requires_grad else output


def _in_backward(error: Exception) -> Exception:
    return torch.cuda.OutOfMemoryError(
        f"{error}\nmemlab: a backward did not fit. The next batch keeps less on the GPU at a time. Drop the gradients of "
        "this one (zero_grad)"
    )


def _refuse(batch: Batch) -> None:
    for name, module in batch.model.named_modules():
        if type(module).__name__ == "OptimizedModule" or isinstance(module, torch.jit.ScriptModule):
            raise RuntimeError(
                f"{name or 'the model'} is compiled: its BatchNorm cannot wait for other micro-batches. Pass the model "
                "before compilation"
            )
        if isinstance(module, nn.DataParallel):
            raise RuntimeError(f"{name or 'the model'} is a DataParallel, which starts threads: pass its module")
        if isinstance(module, nn.SyncBatchNorm) and module.training and _processes(module) > 1:
            raise RuntimeError(
                f"{name or 'the model'} is a SyncBatchNorm of several processes: BatchNorm in lockstep supports one process"
            )


def _processes(norm: nn.SyncBatchNorm) -> int:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return 1
    return torch.distributed.get_world_size(norm.process_group)


def _pieces(count: int, size: int) -> list[range]:
    return [range(begin, min(begin + size, count)) for begin in range(0, count, size)]
