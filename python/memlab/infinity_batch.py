"""``memlab.InfinityBatch``: a training with batches larger than the GPU, by epochs or in a loop that you write."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from memlab._batches.batch import Batch, described_size
from memlab._batches.evaluation import evaluated
from memlab._batches.kept_batches import KeptBatches, PieceOutputs
from memlab._batches.lockstep import Lockstep
from memlab._batches.nested import Samples, beside, is_stream
from memlab._batches.observers import Computation, note_strategy, observing
from memlab._batches.parameter_table import ParameterTable, parameter_table
from memlab._batches.replay import Replay
from memlab._batches.settings import Settings
from memlab._batches.sizing import peak_allocated
from memlab._batches.state import evaluating
from memlab._batches.strategies import LOCKSTEP, REPLAY, WHOLE, Strategy, strategy_of
from memlab._batches.traced_steps import write_losses
from memlab._batches.tracked_loader import divided
from memlab._batches.training_report import Memory, TrainingReport, training_report
from memlab._batches.whole_batch import TooLargeAtOnce, WholeBatch
from memlab._paging.torch_private import tree_map_only
from memlab.accumulation import accumulate

__all__ = ["InfinityBatch"]


_OUTPUTS: dict[str, Callable[[Batch], Any]] = {
    REPLAY: lambda batch: Replay(batch).outputs(),
    WHOLE: lambda batch: _together(batch),
    LOCKSTEP: lambda batch: Lockstep(batch).outputs(),
}


def _together(batch: Batch) -> Any:
    try:
        return WholeBatch(batch).outputs()
    except TooLargeAtOnce:
        note_strategy(LOCKSTEP)
        return Lockstep(batch).outputs()


class InfinityBatch(Settings):
    """Trains with batches of any size, each computed in pieces that fit the GPU.

        ib = memlab.InfinityBatch(model, optimizer, nn.CrossEntropyLoss(), dataloader)
        ib.train(10)                        # ten epochs
        ib.epoch()                          # one
        for inputs, targets in ib.dataloader:   # or a loop of your own
            outputs = ib.batch_()
            loss = ib.loss()            # or any of your own, of `outputs`
            loss.backward()
            ib.step()
            ib.zero_grad()

    Gradients are those of whole batches (see `memlab.accumulate`). In your own loop, any loss of the outputs of all samples
    is possible.

    Args:
        model: the model, or several in a list or dictionary, of which `phase` chooses one. The same holds for the next two
            arguments. This and the next three may be set as attributes later.
        optimizer: an optimizer of its parameters.
        criterion: the loss, of outputs and targets.
        dataloader: gives ``(inputs, targets)``; of more than two entries the last are the targets. Or iterables of these:
            batches in pieces, which are never in memory as a whole (for training by epochs).
        backward_device: the device to which `batch_` moves outputs. None: the model's.
        verbose: print a line for each epoch.
        memory: maximum GPU memory that may be allocated, in bytes or as ``"20GiB"``; ``"auto"``: all free memory.
        exact: refuse a computation that would not give the gradients of the whole batch.
        batchnorm: the mode of BatchNorm in training: ``"exact"``, ``"ghost"``, ``"frozen"`` or ``"refuse"``.
        micro_batch: samples in a piece. None: as many as fit.
        keep: the values in the containers `inputs`, `targets`, `outputs` and `losses`, by epoch and batch: ``"none"``, the
            ``"last"`` batch, ``"metrics"``: the losses alone, as ``(loss, samples)``, or everything, on the CPU (``"host"``)
            or on the disk (``"disk"``, read on access).
        keep_nbytes: maximum bytes of inputs, targets and outputs on the CPU or on the disk, as a number or ``"20GiB"``:
            those of the oldest batches are dropped, and read as None. None: no limit.
        keep_folder: the folder in which ``keep="disk"`` creates another one, which stays. None: a temporary one.
        callbacks: objects with any of the methods ``on_micro_batch(ib, rows, samples)`` (a piece is done: its rows, and the
            samples of the batch), ``on_outputs(ib, outputs)`` (of `batch_`), ``on_loss(ib, loss)``, ``on_step(ib)`` and
            ``on_epoch(ib, losses)`` (``(loss, samples)`` of its batches). Their exceptions stop the training and reach the
            caller; the gradients of the batch are then dropped.
        plan: the reaction to a loop that leaves something out (`memlab.training_warnings`): ``"strict"``: raise,
            ``"default"``: warn once, or ``"quiet"``. Later available as `warnings_level`.

    Raises:
        AttributeError: an unknown attribute is set: the message names the most similar one.

    >>> import memlab, torch
    >>> model, data = torch.nn.Linear(3, 2), torch.utils.data.TensorDataset(torch.randn(64, 3), torch.randn(64, 2))
    >>> ib = memlab.InfinityBatch(model, verbose=False, micro_batch=4)
    >>> ib.optimizer, ib.criterion = torch.optim.SGD(model.parameters(), 0.1), torch.nn.MSELoss()
    >>> ib.dataloader = torch.utils.data.DataLoader(data, batch_size=32)
    >>> ib.train(3)
    >>> [len(epoch) for epoch in ib.losses], ib.losses[2][1] < ib.losses[0][1]
    ([2, 2, 2], True)
    >>> [(epoch.samples, epoch.ways, epoch.pieces) for epoch in ib.report()][0]
    (64, ('micro-batches',), (8, 8))
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer: Any = None,
        criterion: Callable[..., Tensor] | None = None,
        dataloader: Iterable[Any] | None = None,
        backward_device: torch.device | str | None = None,
        verbose: bool = True,
        *,
        memory: str | int = "auto",
        exact: bool = True,
        batchnorm: str = "exact",
        micro_batch: int | None = None,
        keep: str = "metrics",
        keep_nbytes: str | int | None = None,
        keep_folder: str | os.PathLike[str] | None = None,
        callbacks: Iterable[Any] = (),
        plan: str = "default",
    ) -> None:
        super().__init__(plan)
        self.model = model
        self.optimizer = optimizer
        self.criterion = criterion
        self.backward_device = backward_device
        self.verbose = verbose
        self.memory = memory
        self.exact = exact
        self.batchnorm = batchnorm
        self.micro_batch = micro_batch
        self._kept = KeptBatches(keep, keep_nbytes, keep_folder)
        self.callbacks = callbacks
        self.dataloader = dataloader

    # Inspection.

    @property
    def plan(self) -> Strategy:
        """The strategy with which `epoch` computes a batch, and the reason for it. Print it.

        Raises:
            RuntimeError: no model is set, or no strategy is possible.
        """
        strategy = self._strategy(has_own_loop=False)
        if strategy.name == WHOLE:
            return strategy
        return replace(strategy, pieces=described_size(self._model(), self.forward_device, self.micro_batch))

    def _strategy(self, *, has_own_loop: bool, samples: int | None = None) -> Strategy:
        """The strategy of a batch of `samples` samples; None: of more than a piece has."""
        return strategy_of(
            self._model(),
            self._chosen("criterion", self._name),
            device=self.forward_device,
            in_pieces=self.micro_batch is not None and (samples is None or self.micro_batch < samples),
            exact=self.exact,
            batchnorm=self.batchnorm,
            has_own_loop=has_own_loop,
        )

    # Trainings.

    def __call__(self, epochs: int) -> None:
        """Calls `train`."""
        self.train(epochs)

    def train(self, epochs: int) -> None:
        """Trains for a number of epochs.

        Raises:
            RuntimeError: model, optimizer, criterion or dataloader is missing, or the optimizer has none of the model's
                parameters.
            ValueError: `epochs` is negative.
        """
        if epochs < 0:
            raise ValueError(f"epochs={epochs}: must be 0 or more")
        for _ in range(epochs):
            self.epoch()

    def epoch(self) -> None:
        """Trains on each batch of the dataloader once. Puts the model into training mode.

        Raises:
            RuntimeError: as `train`.
        """
        model, criterion = self._model(), self._required("criterion")
        batches, optimizer = self._required("dataloader").loader, self._required("optimizer")
        self._check_optimizer()
        model.train()
        self._kept.begin_epoch()
        self._traced.begin()
        began, count = time.perf_counter(), 0
        try:
            for batch in batches:
                comes_in_pieces = is_stream(batch)
                inputs, targets = (batch, None) if comes_in_pieces else divided(batch)
                optimizer.zero_grad()
                outputs = PieceOutputs() if self._kept.wants_outputs else None
                with self._telling(computation := Computation(), outputs):
                    loss = accumulate(
                        model,
                        inputs,
                        criterion,
                        targets=targets,
                        micro_batch=self.micro_batch,
                        memory=self.memory,
                        exact=self.exact,
                        batchnorm=self.batchnorm,
                    )
                self._callbacks.tell("on_loss", self, loss)
                self._phase.monitor.gradients()
                self._phase.monitor.step(optimizer)
                samples = computation.samples if comes_in_pieces else len(Samples(inputs))
                self._note(loss, samples, computation)
                # (Pieces from an iterable are gone once they are computed.)
                self._kept.add(
                    inputs=None if comes_in_pieces else inputs,
                    targets=targets,
                    outputs=None if outputs is None else outputs.whole(),
                )
                self._traced.step(self._name)
                count += samples
                self._callbacks.tell("on_step", self)
        finally:
            optimizer.zero_grad()  # Drops also gradients of a part of a batch.
        if count == 0:
            warnings.warn("the dataloader yielded no batch: nothing was trained", stacklevel=2)
            return
        # The only point of an epoch that waits for the GPU.
        losses = self._kept.records.losses()[-1] if self.verbose or self._callbacks.want("on_epoch") else []
        write_losses()
        if self.verbose:
            seconds, total = time.perf_counter() - began, sum(loss * samples for loss, samples in losses)
            print(f"loss {total / count:.4g}, {count:,} samples, {count / seconds:,.0f} samples/s")
        self._callbacks.tell("on_epoch", self, list(losses))

    def evaluate(
        self, dataloader: Iterable[Any] | None = None, metrics: Mapping[str, Callable[[Any, Any], Any]] | None = None
    ) -> dict[str, float]:
        """The loss of all samples, and other figures: in evaluation mode and without gradients.

        Batches go through in pieces that fit, which are larger than those of a training. Afterwards the model's mode and the
        state of random numbers are restored.

        Args:
            dataloader: gives ``(inputs, targets)``. None: that of the training.
            metrics: functions of outputs and targets of a batch, by name. Their means over samples are returned.

        Returns:
            ``"loss"``: the criterion's, as of one batch of all samples if it is one of PyTorch's means, otherwise the mean
            over batches, weighted by their samples; absent without a criterion. And the metrics, by their names.

        Raises:
            RuntimeError: the model or the dataloader is missing.
            ValueError: the dataloader gave no batch, or a metric is called "loss".
        """
        model, batches = self._model(), self._required("dataloader").loader if dataloader is None else dataloader
        with evaluating(model):
            return evaluated(
                batches, self._outputs_of, self._chosen("criterion", self._name), {} if metrics is None else metrics
            )

    def batch_(self, inputs: Any = None) -> Any:
        """The model's outputs for a whole batch, in the memory of a piece. Backward computes the pieces again.

        Args:
            inputs: the batch. None: that of the loop over `dataloader`.

        Raises:
            RuntimeError: no batch is given, or pieces would not give its gradients.
        """
        if inputs is None:
            inputs = None if self._batches is None else self._batches.inputs
        if inputs is None:
            raise RuntimeError("batch_() without inputs needs a loop over ib.dataloader: pass the inputs of the batch")
        if is_stream(inputs):
            raise RuntimeError(
                "batch_() returns the outputs of a whole batch, but this one comes in micro-batches: train by epochs "
                "(ib.epoch())"
            )
        self._kept.records.begin_batch()
        self._traced.begin()
        with self._telling(computation := Computation()):
            self._phase.outputs = self._outputs_of(inputs)
        self._phase.computation = computation if torch.is_grad_enabled() else None
        self._phase.monitor.forward(self._phase.outputs)
        self._callbacks.tell("on_outputs", self, self._phase.outputs)
        return self._phase.outputs

    def loss(self, outputs: Any = None, targets: Any = None) -> Tensor:
        """The criterion's loss, by default of the last `batch_` and its targets.

        Raises:
            RuntimeError: outputs or targets are missing.
        """
        outputs = self._phase.outputs if outputs is None else outputs
        if targets is None and self._batches is not None:
            targets = self._batches.targets
        if outputs is None or targets is None:
            raise RuntimeError("loss() needs outputs and targets: call batch_() in a loop over ib.dataloader, or pass them")
        self._phase.loss = self._required("criterion")(outputs, beside(outputs, targets))
        self._phase.monitor.loss(self._phase.loss)
        self._callbacks.tell("on_loss", self, self._phase.loss)
        return self._phase.loss

    def backward(self) -> None:
        """Runs the backward of the last `loss`.

        Raises:
            RuntimeError: no loss was computed.
        """
        if self._phase.loss is None:
            raise RuntimeError("backward() without a loss: call loss() first, or backward() of your own loss")
        self._phase.loss.backward()
        self._note_outputs()

    def step(self) -> None:
        """Runs the optimizer's step."""
        self._check_optimizer()
        phase = self._phase
        phase.monitor.step(self._required("optimizer"))
        if phase.computation is not None and not phase.has_noted:
            self._note_outputs()  # The caller ran backward, perhaps of another loss.
        phase.loss, phase.computation, phase.has_noted = None, None, False
        self._traced.step(self._name)
        self._callbacks.tell("on_step", self)

    def zero_grad(self) -> None:
        """Clears the gradients."""
        self._required("optimizer").zero_grad()

    def parameters_table(self, inputs: Any = None) -> ParameterTable:
        """The model's parameters by module: their number, trained or frozen, and the memory of weights, gradients and the
        optimizer's state. Shared parameters are counted once. Print it, or read its `rows`.

        With the inputs of a small batch, also the times of forward and backward of each module, and the bytes that autograd
        saves per sample. For this it runs two steps, and restores the state afterwards.

        Raises:
            RuntimeError: no model is set.
        """
        return parameter_table(self._model(), self._chosen("optimizer", self._name), inputs)

    def report(self) -> TrainingReport:
        """Reports on the training until now. Contains for each epoch: loss, samples, seconds, samples per second, the
        strategies of batches, their pieces, the peak of GPU memory and the bytes copied to the host. Adds advice on speed
        from these figures. Print it, or read its `epochs` and `advice`. Waits for losses that a GPU is still computing.
        """
        losses = [loss for epoch in self._kept.records.losses() for loss, _ in epoch]
        write_losses()
        has_model = isinstance(self._chosen("model", self._name), nn.Module)
        memory = Memory.on(self.forward_device, self.memory, self.micro_batch) if has_model else None
        return training_report(self._kept.records.all, losses, memory)

    # Other names of the original interface.

    def changemodeldevice(self, device: torch.device | str) -> None:
        """Moves the model to a device."""
        self._model().to(device)

    def updateforwarddevice(self) -> torch.device:
        """The device on which the model computes. (It is looked up on each call.)"""
        return self.forward_device

    def checkdevices_(self) -> bool:
        """True if outputs stay on the model's device."""
        return self.backward_device is None or torch.device(self.backward_device) == self.forward_device

    def _telling(self, computation: Computation, outputs: PieceOutputs | None = None) -> AbstractContextManager[None]:
        """Calls the callbacks for the pieces of batches that begin in a block. `outputs`: collects the outputs of pieces."""
        # (Threads of micro-batches hold this function, and wait until their outputs are freed, which this object holds.)
        weak = ref(self)

        def tell(rows: range, samples: int) -> None:
            if (alive := weak()) is not None:
                alive._callbacks.tell("on_micro_batch", alive, rows, samples)

        return observing(tell, computation, None if outputs is None else outputs.add)

    def _note_outputs(self) -> None:
        """Records the batch of the last outputs as done."""
        phase = self._phase
        inputs, targets = (None, None) if self._batches is None else (self._batches.inputs, self._batches.targets)
        self._note(phase.loss, len(Samples(phase.outputs)), phase.computation)
        self._kept.add(inputs=inputs, targets=targets, outputs=phase.outputs)
        phase.loss, phase.computation, phase.has_noted = None, None, True

    def _note(self, loss: Tensor | None, samples: int, computation: Computation | None) -> None:
        """Records a batch as done. `loss`: None: it was computed outside memlab."""
        peak = peak_allocated(self.forward_device)
        self._traced.note(self._kept.records.add(loss, samples, self._name, computation, peak), loss)

    def _outputs_of(self, inputs: Any) -> Any:
        """The model's outputs for a batch, on the requested device."""
        batch = Batch.of(self._model(), inputs, micro_batch=self.micro_batch, memory=self.memory, exact=self.exact)
        strategy = self._strategy(has_own_loop=True, samples=len(batch.samples))
        if strategy.inexact is not None:
            warnings.warn(f"memlab, exact=False: {strategy.inexact}", stacklevel=3)
        note_strategy(strategy.name)
        batch, device = strategy.prepared(batch), self.backward_device
        outputs = _OUTPUTS[strategy.name](batch)
        return outputs if device is None else tree_map_only(Tensor, lambda tensor: tensor.to(device), outputs)
