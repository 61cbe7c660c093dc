"""``memlab.Feeder``: batches for a training, within a budget of host memory."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from memlab._feeding.batch_transforms import BatchTransforms
from memlab._feeding.device import feeding_device
from memlab._feeding.engine import Engine
from memlab._feeding.errors import SampleError, WorkerDied
from memlab._feeding.filling import EpochReads
from memlab._feeding.identities import Identities
from memlab._feeding.order import epoch_order
from memlab._feeding.position import Position
from memlab._feeding.reading import SampleReaders
from memlab._feeding.samples import Samples
from memlab._feeding.sources import Pair
from memlab._paging.sizes import readable
from memlab.config import Config

__all__ = ["Epoch", "Feeder", "SampleError", "WorkerDied"]


class Feeder:
    """Reads samples, collects them in batches, and delivers those, epoch after epoch.

    It holds at most ``configs.cpu_memory_limit`` bytes of samples and batches, with any number of workers. Each epoch
    contains every sample once, and reads it anew. The last batch may be short.

    A batch is a pair of arrays, or of tensors if the readers yield tensors or a `device` is given. ``for inputs, outputs in
    feeder`` is an epoch, as with PyTorch's DataLoader; `generate_epochs` yields several.

    Args:
        configs: a `memlab.Config`: shapes and types, batch size, memory, workers.
        input_list, output_list: identities of the samples, in a form that the readers understand: names, numbers, or others.
        read_input: takes an identity; yields, or returns a list of, ``configs.one_read_count`` arrays or tensors of
            ``configs.input_shape``; if that count is one, it may return the sample itself. A parameter `rng` receives a
            NumPy generator, the same for input and output of a sample. It depends only on seed, epoch and sample, so a
            resumed training repeats its augmentation.
        get_output: the same for outputs.
        apply_on_input_batch, apply_on_output_batch: called with each batch, on the device if one is given; their results
            replace the batch. They run in the loop's thread.
        shuffle, seed: a new order for each epoch, which depends only on the seed and the epoch.
        processes: whether workers are processes (started by "spawn"; the readers must be functions of a module) instead of
            threads.
        device: the device to copy batches to, such as ``"cuda"``: from pinned memory, on a separate stream, while the
            previous batch is computed on.
        convert_input, convert_output: PyTorch types to convert to on the device: uint8 images take a quarter of the bus.
        make_batch: called last, with inputs and outputs; its result is the batch, such as a dict for Hugging Face.
        rank, world_size: the share of one of several processes; all have equally many batches.
        most_slots: maximum number of batches held at a time, memory permitting; None for two per worker and two more.

    Raises:
        TypeError, ValueError: an argument is wrong, or the lists do not have ``configs.total_sample_count`` identities.

    Iterating raises:
        SampleError: a reader failed; the message names the sample. The next ``next()`` reads its batch again.
        WorkerDied: a worker process was killed or crashed. The next ``next()`` reads its batch again.

    >>> import memlab, numpy
    >>> def read(number):
    ...     yield numpy.full(3, number)
    ...     yield numpy.full(3, -number)  # A variation.
    >>> def label(number):
    ...     return [number % 2] * 2
    >>> config = memlab.Config("1MiB", None, 3, (3,), (), None, "float32", "int64", one_read_count=2, batch_size=4)
    >>> feeder = memlab.Feeder(config, range(1, 4), range(1, 4), read, label)
    >>> for epoch in feeder.generate_epochs(2):
    ...     for inputs, outputs in epoch:
    ...         print(inputs[:, 0], outputs)
    [ 1. -1.  2. -2.] [1 1 0 0]
    [ 3. -3.] [1 1]
    [ 1. -1.  2. -2.] [1 1 0 0]
    [ 3. -3.] [1 1]
    """

    def __init__(
        self,
        configs: Config,
        input_list: Sequence[Any],
        output_list: Sequence[Any],
        read_input: Callable[..., Any],
        get_output: Callable[..., Any],
        apply_on_input_batch: Callable[[Any], Any] | None = None,
        apply_on_output_batch: Callable[[Any], Any] | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
        processes: bool = False,
        device: Any = None,
        convert_input: Any = None,
        convert_output: Any = None,
        make_batch: Callable[[Any, Any], Any] | None = None,
        rank: int = 0,
        world_size: int = 1,
        most_slots: int | None = None,
    ) -> None:
        for name, identities in (("input_list", input_list), ("output_list", output_list)):
            if len(identities) != configs.total_sample_count:
                said = configs.total_sample_count
                raise ValueError(f"{name} has {len(identities)} identities, but the Config has total_sample_count={said}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank}: must be from 0 to world_size - 1, which is {world_size - 1}")
        if (convert_input is not None or convert_output is not None) and device is None:
            raise ValueError("convert_input and convert_output convert on the device: pass one")
        self.configs = configs
        self._inputs = Identities(input_list)
        self._outputs = self._inputs if output_list is input_list else Identities(output_list)
        self._shuffle, self._seed = shuffle, seed
        self._rank, self._world_size = rank, world_size
        self._transforms = BatchTransforms(
            (apply_on_input_batch, apply_on_output_batch), (convert_input, convert_output), make_batch
        )
        readers = SampleReaders(read_input, get_output, configs.inputs, configs.outputs, configs.one_read_count)
        where = None if device is None else feeding_device(device)
        self._engine = Engine(configs.budget, configs.batch_size, readers, configs.workers, processes, where, most_slots)
        self._closer = weakref.finalize(self, self._engine.close)
        self._position = Position(0, 0)

    @property
    def batch_size(self) -> int:
        """Rows in a batch."""
        return self.configs.batch_size

    @property
    def num_workers(self) -> int:
        """Number of samples that are read at a time, memory permitting."""
        return self.configs.workers

    @property
    def dataset(self) -> Samples:
        """An object whose length is the number of rows in an epoch, for loops that read it from their loader."""
        return Samples(self._samples * self.configs.one_read_count)

    @property
    def host_bytes(self) -> int:
        """Maximum host memory of the feeder: slots for batches, and samples that are being read."""
        return self._engine.host_bytes

    @property
    def epoch(self) -> int:
        """The number of the current or next epoch."""
        return self._position.epoch

    def generate_epochs(self, epoch_count: int = 1) -> Iterator[Epoch]:
        """The next `epoch_count` epochs, each an iterable of batches.

        After `load_state_dict` the first one is the rest of the interrupted epoch. A training of 100 epochs in all runs
        ``generate_epochs(100 - feeder.epoch)``.

        >>> import memlab
        >>> config = memlab.Config("1MiB", None, 5, (), (), None, batch_size=2)
        >>> feeder = memlab.Feeder(config, range(5), range(5), lambda number: [number], lambda number: [number])
        >>> [[inputs.tolist() for inputs, outputs in epoch] for epoch in feeder.generate_epochs(epoch_count=1)]
        [[[0.0, 1.0], [2.0, 3.0], [4.0]]]
        """
        for _ in range(epoch_count):
            yield iter(self)

    def __iter__(self) -> Epoch:
        """One epoch: the next, or after `load_state_dict` the rest of the interrupted one.

        Reading begins here. An iterator that is discarded before its first batch does not count: some loops only test that
        it exists.
        """
        if self._position.begun:
            self._position = Position(self._position.epoch + 1, 0)
        position = self._position
        order = epoch_order(len(self._inputs), self._seed, position.epoch, self._shuffle, self._rank, self._world_size)
        reads = self.batch_size // self.configs.one_read_count
        epoch_reads = EpochReads(
            self._inputs,
            self._outputs,
            order[position.delivered :],
            self._seed,
            position.epoch,
            reads,
            self._engine.chunk_reads(reads),
            self.configs.one_read_count,
        )
        return Epoch(self, self._engine, epoch_reads, position, self._transforms)

    def __len__(self) -> int:
        """Batches in an epoch of this rank."""
        reads = self.batch_size // self.configs.one_read_count
        return math.ceil(self._samples / reads)

    @property
    def _samples(self) -> int:
        return -(-len(self._inputs) // self._world_size)

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch, as `DistributedSampler` does.

        After `load_state_dict`, the same number continues the interrupted epoch.
        """
        if self._position.begun or epoch != self._position.epoch:
            self._position = Position(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """The position of the training: epoch, seed, and the number of samples of the epoch delivered to the loop.

        Samples that were read ahead do not count. A feeder with another batch size or other workers may continue from it.

        >>> import memlab
        >>> config = memlab.Config("1MiB", None, 5, (), (), None, batch_size=2)
        >>> def feeder():
        ...     return memlab.Feeder(config, range(5), range(5), lambda one: [one], lambda one: [one], shuffle=True)
        >>> interrupted = feeder()
        >>> for inputs, outputs in interrupted:
        ...     break
        >>> interrupted.state_dict()
        {'epoch': 0, 'seed': 0, 'delivered': 2, 'samples': 5, 'shuffle': True}
        >>> resumed = feeder()
        >>> resumed.load_state_dict(interrupted.state_dict())
        >>> sum(len(inputs) for inputs, outputs in resumed)
        3
        """
        epoch, delivered = self._position.epoch, self._position.delivered
        if delivered == self._samples:
            epoch, delivered = epoch + 1, 0
        return {
            "epoch": epoch,
            "seed": self._seed,
            "delivered": delivered,
            "samples": self._samples,
            "shuffle": self._shuffle,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state_dict`: the next epoch is the rest of that one. Takes over the seed.

        Raises:
            ValueError: the state has another number of samples, or another value of `shuffle`.
        """
        for name, own in (("samples", self._samples), ("shuffle", self._shuffle)):
            if state[name] != own:
                raise ValueError(f"the state has {name}={state[name]}, but this feeder {own}: it would yield other samples")
        self._seed = int(state["seed"])
        self._position = Position(int(state["epoch"]), int(state["delivered"]))

    def close(self) -> None:
        """Ends threads and worker processes, and frees the memory. Iterating starts them again."""
        self._engine.close()

    def __enter__(self) -> Feeder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        engine = self._engine
        return (
            f"<memlab.Feeder: {len(self._inputs)} samples in batches of {self.batch_size}; {engine.slots} slots of "
            f"{readable(engine.layout.nbytes)}, {engine.reading} readers: {readable(self.host_bytes)} of "
            f"{readable(self.configs.cpu_memory_limit)}>"
        )


class Epoch:
    """The batches of one epoch: an iterator that can be asked for the next batch again after an exception."""

    def __init__(
        self, feeder: Feeder, engine: Engine, epoch_reads: EpochReads, position: Position, transforms: BatchTransforms
    ) -> None:
        self._feeder = feeder  # Keeps a feeder without other references alive for its epoch.
        self._engine = engine
        self._epoch_reads = epoch_reads
        self._position = position
        self._transforms = transforms
        self._taken = 0
        self._pending: Pair | None = None
        self._source = engine.begin(epoch_reads)

    def __iter__(self) -> Epoch:
        return self

    def __len__(self) -> int:
        """The remaining batches."""
        return self._epoch_reads.batches - self._taken

    def __next__(self) -> Any:
        self._position.begun = True
        if len(self) == 0:
            raise StopIteration
        if not self._engine.runs(self._source):
            raise RuntimeError("this epoch has ended: the feeder began another one, or was closed")
        if self._pending is None:
            self._pending = self._source.take(self._taken)
        batch = self._transforms.apply(self._pending)
        self._pending = None
        self._position.delivered += self._epoch_reads.reads(self._taken)
        self._taken += 1
        return batch
