"""offload_activations: repeatable operations, and the simulation of a backward."""

import random

import pytest
import torch
from memlab._activations.backward_simulation import BackwardSimulation, SimulatedOperation
from memlab._activations.forward_profile import _cuts
from memlab._activations.operations import is_repeatable, makes_memory, written_arguments

aten = torch.ops.aten


@pytest.mark.parametrize(
    "name", ["mm", "add.Tensor", "gelu", "_softmax", "convolution", "native_layer_norm", "clone", "_to_copy"]
)
def test_repeatable_operations(name):
    assert is_repeatable(operation(name)) and makes_memory(operation(name))


NOT_AGAIN = [
    "native_dropout", "bernoulli", "rand_like", "randn", "normal_functional", "multinomial", "randperm", "rrelu_with_noise",
    "copy_", "mm.out", "exponential_", "dropout_", "random_", "fill_diagonal_", "_native_batch_norm_legit",
    "miopen_batch_norm",    "_batch_norm_with_update", "batch_norm_update_stats", "cumsum", "histc",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention", "_fused_dropout", "empty_like",
    "view", "t", "slice.Tensor", "set_", "resize_", "embedding_renorm_", "index_put_", "scatter_add",
]  # fmt: skip


@pytest.mark.parametrize("name", NOT_AGAIN)
def test_unrepeatable_operations(name):
    # GIVEN an operation that draws random numbers, writes, returns a view, or has no fixed order; THEN it runs once
    assert not is_repeatable(operation(name))


def test_no_operation_that_runs_again_draws_or_writes():
    # GIVEN all operations of PyTorch; WHEN one is repeatable; THEN it writes at most its first argument and draws nothing
    found = 0
    for name in dir(aten):
        packet = getattr(aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            one = getattr(packet, overload)
            if is_repeatable(one):
                found += 1
                assert [at for at, _ in written_arguments(one)] in ([], [0])
                assert torch.Tag.nondeterministic_seeded not in one.tags
                assert "Generator" not in str(one._schema), name
    assert found > 100


def operation(name):
    packet, _, overload = name.partition(".")
    found = getattr(aten, packet)
    return getattr(found, overload or ("default" if "default" in found.overloads() else found.overloads()[0]))


def chain(length, nbytes=10):
    """Values 0 … length, each computed from the previous one."""
    return [SimulatedOperation([], [0])] + [SimulatedOperation([one - 1], [one]) for one in range(1, length + 1)], [
        nbytes
    ] * (length + 1)


def test_a_chain_that_is_made_again():
    # GIVEN a chain of three with its first value stored and its values read backwards
    steps, nbytes = chain(3)
    simulation = BackwardSimulation(steps, nbytes, [3, 2, 1], [True, False, False, False], [False, True, True, True])
    # THEN all three are in memory at once, and 0 is loaded once
    assert simulation.order == [0] and simulation.peak == 30 and simulation.at_peak == [1, 2, 3]
    # WHEN nothing is recomputed, THEN each value is loaded when backward reads it
    simulation = BackwardSimulation(steps, nbytes, [3, 2, 1], [True] * 4, [False] * 4)
    assert simulation.order == [3, 2, 1] and simulation.peak == 0


def test_a_chain_that_is_only_read_at_its_end():
    # GIVEN a chain longer than Python's stack whose end backward reads; THEN at most two values are alive at a time
    steps, nbytes = chain(5000)
    simulation = BackwardSimulation(steps, nbytes, [5000], [True] + [False] * 5000, [False] + [True] * 5000)
    assert simulation.peak == 20 and simulation.order == [0]


@pytest.mark.parametrize("seed", range(200))
def test_random_simulations(seed):
    """GIVEN a random forward, some of whose operations are recomputed
    WHEN its backward is simulated
    THEN loaded values were stored, all read values are reached, and the peak is at least the largest recomputed value."""
    draw = random.Random(seed)
    steps, values = [], 0
    for _ in range(draw.randint(1, 15)):
        outputs = list(range(values, values + draw.randint(1, 2)))
        steps.append(
            SimulatedOperation([draw.randrange(values) for _ in range(draw.randint(0, 3))] if values else [], outputs)
        )
        values = outputs[-1] + 1
    nbytes = [draw.randint(1, 50) for _ in range(values)]
    recomputed = [bool(step.inputs) and draw.random() < 0.6 for step in steps]
    maker = {value: index for index, step in enumerate(steps) if recomputed[index] for value in step.outputs}
    reads = [draw.randrange(values) for _ in range(draw.randint(0, 12))]
    simulation = BackwardSimulation(steps, nbytes, reads, [value not in maker for value in range(values)], recomputed)

    def needed(value):
        return {value} if value not in maker else set().union(*(needed(one) for one in steps[maker[value]].inputs))

    assert set(simulation.order) == set().union(*(needed(value) for value in reads))
    made = [value for value in reads if value in maker]
    assert simulation.peak >= max((nbytes[value] for value in made), default=0)
    assert simulation.peak == sum(nbytes[value] for value in simulation.at_peak) <= sum(nbytes[value] for value in maker)


@pytest.mark.parametrize("seed", range(200))
def test_cuts_leave_pieces_that_fit(seed):
    # GIVEN a chain of values of random sizes; WHEN it is cut
    draw = random.Random(seed)
    nbytes = [draw.randint(1, 20) for _ in range(60)]
    values = sorted(draw.sample(range(60), draw.randint(1, 60)))
    working = draw.randint(20, 200)
    cuts = _cuts(values, nbytes, working)
    # THEN the cuts belong to the chain, exist only if it is too large, and each segment between two cuts fits
    assert cuts <= set(values) and bool(cuts) == (sum(nbytes[value] for value in values) > working)
    piece = 0
    for value in values:
        piece = 0 if value in cuts else piece + nbytes[value]
        assert piece <= working
