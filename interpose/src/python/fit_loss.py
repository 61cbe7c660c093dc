"""The cross entropy of large logits, computed some rows at a time: the same loss and gradient, bit for bit, in less memory.

Embedded in libmemlab.so and run before fit.py, in the same namespace.

PyTorch keeps the log-softmax of all logits until backward, and makes its gradient at once. Both work row by row, so this
does them for some rows at a time, and keeps the logits instead. The rows are added up in PyTorch's order: its `nll_loss`
runs once, over all of them. The gradient takes the memory of the logits if nothing else holds them.
"""

import contextlib
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guards import _Harmless

_PARTS = 32
_ROWS_BYTES = 128 << 20  # Most bytes of float32 of the rows at a time.
_LEAST_ROWS = 256  # A kernel needs that many to occupy a GPU.
_ROWS_MULTIPLE = 64  # Then each row has the alignment that it has in the whole, on which the order of sums depends.
_NONE, _MEAN = 0, 1  # Reductions, as PyTorch numbers them.
_LOSS_REFUSED = "memlab: the loss cannot be computed in rows"
_LEAST_LOGITS = 64 << 20  # Bytes of float32. Smaller ones are not worth it.


def _needed(torch):
    """Returns what older versions of PyTorch lack: modules or classes, and names in them."""
    return (
        (torch, "get_autocast_dtype"),
        (torch.Tensor, "_use_count"),
        (torch._C._functorch, "is_legacy_batchedtensor"),
        (torch._C._autograd, "_get_current_graph_task_keep_graph"),
    )


def _holders(torch, tensor):
    """Counts what holds a tensor, the tensor of which it is a view, and their memory."""
    counts = [torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)]
    base = tensor._base
    if base is not None:
        counts += [base._use_count(), sys.getrefcount(base)]
    return [*counts, tensor._use_count(), sys.getrefcount(tensor)]


class _LossInRows:
    """Stands for `torch._C._nn.cross_entropy_loss`, which `torch.nn.functional.cross_entropy` calls."""

    def __init__(
        self,
        torch,
        report=None,
        part=contextlib.nullcontext,
        least_bytes=_LEAST_LOGITS,
        rows_bytes=_ROWS_BYTES,
        least_rows=_LEAST_ROWS,
    ):
        self.torch = torch
        self.report = report  # Called at the first loss, on a simulated card, where values do not matter.
        self.rehearses = report is not None
        self.part = part  # Returns a context in which the time is measured.
        self.least_bytes = least_bytes
        self.rows_bytes = rows_bytes
        self.least_rows = least_rows
        self.function = self.function_class()
        self.is_on = True
        self.largest = 0  # Bytes of float32 of the largest logits to which it applies.
        self.is_changed = False  # True if the program changed logits between a loss and its backward.
        # Counts of `_holders` for logits that only the loss holds; the key: do memlab's hooks pack what is saved?
        self.alone: dict = {}

    def install(self):
        if not all(hasattr(place, name) for place, name in _needed(self.torch)):
            return  # Before PyTorch 2.4.
        original = self.torch._C._nn.cross_entropy_loss

        def cross_entropy_loss(*arguments, **keywords):
            # `torch.nn.functional.cross_entropy` passes all six.
            if len(arguments) != 6 or self.torch.compiler.is_compiling() or not self.applies(*arguments):
                return original(*arguments, **keywords)
            logits, target, _, reduction, ignored, _ = arguments
            self.largest = max(self.largest, 4 * logits.numel())
            if not self.is_on:
                value = original(*arguments, **keywords)
                with _Harmless():
                    self.watch(logits, value)
                return value
            is_packed = self.has_own_hooks()
            if is_packed not in self.alone:
                self.find_alone(is_packed)
            if self.report is not None:
                self.report, report = None, self.report
                report("the loss is computed in rows")
            with self.part():
                return self.function.apply(logits, target, reduction, ignored, self.alone[is_packed], None)

        self.original = original
        self.torch.jit._builtins._register_builtin(cross_entropy_loss, "aten::cross_entropy_loss")
        self.torch._C._nn.cross_entropy_loss = cross_entropy_loss

    def watch(self, logits, value):
        """Finds whether the program changes logits between their loss and its backward, which would then find others."""
        if value.grad_fn is None or self.is_changed:
            return
        counter = logits.detach()  # Shares the counter of versions. Without the memory:
        counter.data = self.torch.empty(0, dtype=logits.dtype, device=logits.device)
        version = logits._version

        def before_backward(_):
            self.is_changed |= counter._version != version

        value.grad_fn.register_prehook(before_backward)

    def applies(self, logits, target, weight, _reduction, _ignored, label_smoothing):
        torch = self.torch
        return (
            type(logits) is torch.Tensor
            and type(target) is torch.Tensor
            and logits.dim() == 2
            and logits.numel() * 4 >= self.least_bytes
            and target.dtype == torch.int64
            and target.shape == logits.shape[:1]
            and target.device == logits.device
            and logits.is_contiguous()
            and logits.is_floating_point()
            and logits.device.type in ("cuda", "cpu")
            and weight is None
            and label_smoothing == 0.0
            and not torch.jit.is_tracing()
            and torch._C._functorch.peek_interpreter_stack() is None
            and torch.autograd.forward_ad._current_level < 0
            and not torch.is_inference(logits)
            and torch.utils._python_dispatch._get_current_dispatch_mode() is None
            and all(type(mode).__name__ in ("DeviceContext", "Watch") for mode in self.modes())
        )

    def has_own_hooks(self):
        """Returns True if the innermost hooks on saved tensors are memlab's. They hold what PyTorch would hold."""
        top = getattr(self.torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)(True)
        return top is not None and getattr(top[0], "__module__", "").startswith("memlab.")

    def find_alone(self, is_packed):
        """Counts what holds logits during backward in two samples: their own tensor, and a view."""
        self.alone[is_packed] = []
        with _Harmless():
            if is_packed:
                self.sample(is_packed)
            else:
                # Hooks on saved tensors and other modes of the program are those of its thread.
                thread = threading.Thread(target=self.sample, args=(is_packed,), daemon=True)
                thread.start()
                thread.join()

    def sample(self, is_packed):
        torch = self.torch
        target = torch.zeros(2, dtype=torch.int64, device="cpu")
        sampled: list = []
        with _Harmless(lambda _: sampled.clear()), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            for is_view in (False, True):
                logits = torch.ones(2, 2, device="cpu", requires_grad=True) * 1
                value = self.function.apply(logits.view(2, 2) if is_view else logits, target, _MEAN, -100, (), sampled)
                del logits
                value.backward()
        self.alone[is_packed] = sampled

    def modes(self):
        return self.torch.overrides._get_current_function_mode_stack()

    def chunks(self, logits):
        size = min(self.rows_bytes, 4 * logits.numel() // _PARTS)
        rows = size // (4 * logits.shape[1]) // _ROWS_MULTIPLE * _ROWS_MULTIPLE
        rows = max(rows, self.least_rows)
        for start in range(0, logits.shape[0], rows):
            yield slice(start, start + rows)

    def function_class(self):
        torch, chunks = self.torch, self.chunks
        aten = torch.ops.aten
        loss = self

        class CrossEntropyInRows(torch.autograd.Function):
            @staticmethod
            def forward(context, logits, target, reduction, ignored, alone, sampled):
                """`alone`: what `_holders` returns for logits that nothing else holds. `sampled`: gets what it returns."""
                column = None
                for rows in chunks(logits):
                    found = loss.original(logits[rows], target[rows], None, _NONE, ignored, 0.0)
                    if column is None:
                        column = found.new_empty(target.shape)
                    column[rows] = found.neg_()
                only = torch.zeros_like(target).masked_fill_(target == ignored, -100)
                value, total_weight = aten.nll_loss_forward(column.unsqueeze(1), only, None, reduction, -100)
                context.save_for_backward(logits, target, total_weight)
                context.set_materialize_grads(False)
                context.reduction, context.ignored = reduction, ignored
                context.alone, context.sampled = alone, sampled
                kind = logits.device.type
                context.autocast = (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
                return value

            @staticmethod
            def backward(context, gradient):
                if gradient is None:
                    return (None,) * 6
                try:
                    logits, target, total_weight = context.saved_tensors
                except RuntimeError as error:
                    raise RuntimeError(f"{_LOSS_REFUSED}: {error}. With --fit, add --fit-without loss") from error
                with torch.autocast(*context.autocast):
                    is_batched = torch._C._functorch.is_legacy_batchedtensor(gradient)  # `is_grads_batched`.
                    if not torch.is_grad_enabled() and not is_batched:
                        holders = _holders(torch, logits)
                        if context.sampled is not None:
                            context.sampled.append(holders)
                        # Nothing reads the logits after their gradient.
                        is_free = holders in context.alone and not torch._C._autograd._get_current_graph_task_keep_graph()
                        found = logits.detach() if is_free else torch.empty_like(logits)
                        with loss.part():
                            in_rows(context, (logits, target, total_weight), gradient, found)
                        return found, *(None,) * 5
                    # The gradient is differentiated again, or there are several.
                    is_again = torch.is_grad_enabled()
                    with torch.enable_grad():
                        value = loss.original(logits, target, None, context.reduction, context.ignored, 0.0)
                return torch.autograd.grad(value, logits, gradient, create_graph=is_again)[0], *(None,) * 5

        def in_rows(context, saved, gradient, found):
            logits, target, total_weight = saved
            gradient = gradient / total_weight if context.reduction == _MEAN else gradient
            gradient = gradient.expand(target.shape)
            for rows in chunks(logits):
                part = logits[rows].detach().requires_grad_()
                with torch.enable_grad():
                    losses = loss.original(part, target[rows], None, _NONE, context.ignored, 0.0)
                (of_part,) = torch.autograd.grad(losses, part, gradient[rows])
                if not loss.rehearses:
                    found[rows] = of_part

        return CrossEntropyInRows
