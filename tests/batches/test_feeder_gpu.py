"""A feeder that copies batches to a GPU, from pinned slots and on a separate stream."""

from tool_runs import run_tool

PROGRAM = """
    import json, numpy as np, torch, memlab
    from memlab._feeding import sources

    SAMPLES, SHAPE = 23, (64, 1024)

    def read(number):
        yield np.full(SHAPE, number, np.uint8)

    def label(number):
        yield number

    def feeder_of(workers, **options):
        config = memlab.Config("4MiB", None, SAMPLES, SHAPE, (), None, "uint8", "int64", batch_size=5, workers=workers)
        return memlab.Feeder(config, range(SAMPLES), range(SAMPLES), read, label, device="cuda", **options)
"""


def run(memlab, program):
    value, _ = run_tool(memlab, PROGRAM + program)
    return value


def test_batches_on_the_gpu(memlab):
    # GIVEN feeders with workers and without; WHEN their batches are copied to the GPU and back, slowly and at once
    result = run(
        memlab,
        """
    found = []
    for workers in (0, 3):
        with feeder_of(workers) as feeder:
            for epoch in feeder.generate_epochs(3):
                kept = [(inputs, outputs) for inputs, outputs in epoch]
                assert all(inputs.device.type == outputs.device.type == "cuda" for inputs, outputs in kept)
                found += [(set(one.cpu().unique().tolist()), number.item())
                          for inputs, outputs in kept for one, number in zip(inputs, outputs.cpu())]
    assert all(values == {number} for values, number in found)
    json.dump([number for _, number in found], open("result", "w"))
    """,
    )
    # THEN each epoch contains each sample intact
    assert result == 6 * list(range(23))


def test_pinned_slots_and_a_stream(memlab):
    # GIVEN a feeder for the GPU; WHEN it copies a batch
    result = run(
        memlab,
        """
    seen = []
    start = sources.DeviceCopies.start
    def watched(copies, batch):
        pair, event = start(copies, batch)
        pinned = [torch.from_numpy(array).is_pinned() for array in (batch.slot.inputs, batch.slot.outputs)]
        computing = (torch.cuda.current_stream(), torch.cuda.default_stream())
        seen.append((batch.slot.number, *pinned, *(copies._stream == stream for stream in computing)))
        return pair, event
    sources.DeviceCopies.start = watched
    waited, wait_event = [], torch.cuda.Stream.wait_event
    def watched_wait(stream, event):
        waited.append(stream == torch.cuda.current_stream())
        return wait_event(stream, event)
    torch.cuda.Stream.wait_event = watched_wait
    feeder = feeder_of(2, most_slots=2)
    assert sum(len(inputs) for inputs, outputs in feeder) == SAMPLES
    slot = feeder._engine._ring.slots[0]
    feeder.close()
    json.dump([seen, waited, torch.from_numpy(slot.inputs).is_pinned()], open("result", "w"))
    """,
    )
    copies, waited, pinned_after = result
    # THEN it copies from two pinned slots, not on the compute stream
    assert {slot for slot, *_ in copies} == {0, 1} and len(copies) == 5
    assert all(what == [True, True, False, False] for _, *what in copies)
    # AND the compute stream waits for each copy
    assert waited == [True] * 5
    # AND closing the feeder unpins the slots
    assert not pinned_after


def test_conversion_on_the_gpu(memlab):
    # GIVEN uint8 samples with bfloat16 as their type on the GPU
    result = run(
        memlab,
        """
    with feeder_of(2, convert_input=torch.bfloat16, apply_on_input_batch=lambda batch: batch[:, 0]) as feeder:
        inputs, outputs = next(iter(feeder))
        slots = feeder._engine.layout.nbytes
    json.dump([str(inputs.dtype), list(inputs.shape), str(outputs.dtype), slots], open("result", "w"))
    """,
    )
    # THEN bytes are copied, and converted on the GPU before the function is applied
    assert result[:3] == ["torch.bfloat16", [5, 1024], "torch.int64"]
    assert result[3] == 5 * 64 * 1024 + 4096


def test_a_sample_that_cannot_be_read(memlab):
    # GIVEN a sample whose first read fails; WHEN batches are copied in the background
    result = run(
        memlab,
        """
    failures = []
    def read(number):
        if number in failures:
            failures.remove(number)
            raise OSError("away")
        yield np.full(SHAPE, number, np.uint8)
    numbers, errors = [], []
    for workers in (0, 2):
        failures.append(11)
        with feeder_of(workers) as feeder:
            epoch = iter(feeder)
            while len(epoch):
                try:
                    numbers += next(epoch)[1].tolist()
                except memlab.SampleError as error:
                    errors.append((error.sample, len(numbers), feeder.state_dict()["delivered"]))
    json.dump([numbers, errors], open("result", "w"))
    """,
    )
    # THEN the error is raised in its place, and no later sample is missing
    numbers, errors = result
    assert numbers == 2 * list(range(23))
    assert errors == [[11, 10, 10], [11, 33, 10]]


def test_no_room_on_the_gpu(memlab):
    # GIVEN a GPU that is full when the second batch is copied
    result = run(
        memlab,
        """
    feeder = feeder_of(2)
    start, is_full, numbers, errors = sources.DeviceCopies.start, [False, True], [], 0
    def full(copies, batch):
        if is_full and is_full.pop(0):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return start(copies, batch)
    sources.DeviceCopies.start = full
    epoch = iter(feeder)
    while len(epoch):
        try:
            numbers += next(epoch)[1].tolist()
        except torch.OutOfMemoryError:
            errors += 1
    feeder.close()
    json.dump([numbers, errors], open("result", "w"))
    """,
    )
    # THEN the loop gets PyTorch's error, and the batch at the next request
    assert result == [list(range(23)), 1]
