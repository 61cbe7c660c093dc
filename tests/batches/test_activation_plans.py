"""offload_activations: repeatable operations, schedules, and the simulation of a backward."""

import random

import pytest
import torch
from memlab._activations.backward_simulation import BackwardSimulation, SimulatedOperation
from memlab._activations.forward_profile import ForwardProfile, _cuts, _Operation, _Value
from memlab._activations.offload_schedule import OffloadSchedule
from memlab._activations.operations import is_repeatable, traits_of

aten = torch.ops.aten


@pytest.mark.parametrize(
    "name", ["mm", "add.Tensor", "gelu", "_softmax", "convolution", "native_layer_norm", "clone", "_to_copy"]
)
def test_repeatable_operations(name):
    assert is_repeatable(operation(name)) and traits_of(operation(name)).makes_memory


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
                assert [at for at, _ in traits_of(one).written] in ([], [0])
                assert torch.Tag.nondeterministic_seeded not in one.tags
                assert "Generator" not in str(one._schema), name
    assert found > 100


def operation(name):
    packet, _, overload = name.partition(".")
    found = getattr(aten, packet)
    return getattr(found, overload or ("default" if "default" in found.overloads() else found.overloads()[0]))


ATTENTIONS = [
    ("_scaled_dot_product_flash_attention", 3),
    ("_scaled_dot_product_flash_attention_for_cpu", 3),
    ("_scaled_dot_product_efficient_attention", 5),
    ("_scaled_dot_product_cudnn_attention", 5),
]


@pytest.mark.parametrize(("name", "position"), ATTENTIONS)
def test_attention_is_repeatable_without_dropout(name, position):
    # GIVEN an attention; WHEN its probability of dropout is 0, also by default; THEN it draws nothing, and can run again
    arguments = (None,) * position
    assert is_repeatable(operation(name), arguments) and is_repeatable(operation(name), (*arguments, 0.0, True))
    assert not is_repeatable(operation(name), (*arguments, 0.1))


def test_operations_are_not_timed_during_a_capture(monkeypatch):
    # GIVEN a profile on a GPU; WHEN a graph is captured; THEN operations are not timed, since the graph would wait as well
    profile = ForwardProfile(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert profile.is_timing()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not profile.is_timing()


MIB = 1 << 20
# A block of a transformer: milliseconds and MiB of each value, each computed from the one before; and if autograd saves it.
BLOCK = [
    (0.1, 64, True),
    (0.1, 32, True),
    (0.15, 96, True),
    (0.15, 32, True),
    (0.2, 128, True),
    (0.1, 128, True),
    (0.2, 32, False),
]
BYTES_PER_SECOND = 50e9


def profile_of(blocks, loss=()):
    """The profile of a forward of some blocks, then of values of a loss: their MiB."""
    profile = ForwardProfile(torch.device("cpu"))
    rows = BLOCK * blocks + [(2, nbytes, True) for nbytes in loss]
    for number, (milliseconds, nbytes, is_saved) in enumerate(rows):
        profile._values.append(_Value((number, 0), nbytes * MIB, is_saved))
        inputs = [number - 1] if number else []
        profile._operations.append(_Operation(inputs, [number], number > 0, 0, int(milliseconds * 1e6)))
        if is_saved:
            profile._reads.insert(0, number)
    return profile


def planned(profile, budget):
    """The schedule of a budget in MiB, and the nanoseconds of the operations that it recomputes."""
    schedule = profile.schedule(budget * MIB, BYTES_PER_SECOND, frozenset(), recompute=True)
    return schedule, sum(profile._operations[index].ended for index in schedule.recomputed)


@pytest.mark.parametrize("loss", [(), (1600, 3200)], ids=["no loss", "a loss larger than the budget"])
def test_a_larger_budget_never_costs_more(loss):
    """GIVEN a forward of 24 blocks, perhaps with a loss
    WHEN it is planned for larger and larger budgets
    THEN no plan copies more than the bus carries while the blocks run, contents that stay and recomputed ones share the
    budget, and recomputation takes less and less time, up to none."""
    profile = profile_of(24, loss)
    carried = BYTES_PER_SECOND * 24 * sum(milliseconds for milliseconds, *_ in BLOCK) / 1e3
    costs = []
    for budget in (1000, 2000, 4000, 6000, 8000, 10000, 11000, 12000):
        schedule, cost = planned(profile, budget)
        assert schedule.offload_nbytes <= carried, budget
        assert schedule.keep_nbytes + schedule.working_nbytes <= schedule.budget_nbytes
        costs.append(cost)
    assert costs == sorted(costs, reverse=True)
    assert costs[0] < 24 * 1e6 * sum(milliseconds for milliseconds, *_ in BLOCK)
    assert costs[-1] == 0 and schedule.keeps_all


def test_the_loss_stays():
    # GIVEN forwards that end with the two large contents of a loss, or with contents that grow slowly
    # WHEN they are planned; THEN both contents of the loss stay beside the budget. Of the growing ones, the last stays.
    schedule, _ = planned(profile_of(4, (1600, 3200)), 1000)
    assert schedule.held == {(28, 0), (29, 0)}
    schedule, _ = planned(profile_of(4, (200, 300, 400)), 1000)
    assert schedule.held == {(30, 0)}
    # WHEN backward reads another content first, THEN no content counts as the loss
    profile = profile_of(4, (1600, 3200))
    profile._reads.insert(0, 0)
    assert planned(profile, 1000)[0].held == set()


def test_contents_that_are_neither_saved_nor_read_again_are_not_tracked():
    # GIVEN a plan; THEN it names the operations whose results are saved, or are inputs of recomputed ones
    profile = profile_of(24)
    schedule, _ = planned(profile, 2000)
    unsaved = {index for index, value in enumerate(profile._values) if not value.is_saved}
    read = {number for index in schedule.recomputed for number in profile._operations[index].inputs}
    assert schedule.tracked & unsaved == unsaved & (read | schedule.recomputed) and schedule.recomputed <= schedule.tracked


def test_copies_use_the_room_of_contents_that_do_not_stay():
    # GIVEN a budget of 100 bytes, 20 of them for recomputed contents
    schedule = OffloadSchedule(
        pending_nbytes=100, ahead_nbytes=100, budget_nbytes=100, working_nbytes=20, keep_nbytes=70, offload_nbytes=50
    )
    # WHEN few or many contents stay, THEN copies to the host and back have the rest; one copy back is always possible
    assert [schedule.pending_limit(kept) for kept in (0, 70, 120)] == [100, 30, 0]
    assert [schedule.ahead_limit(kept) for kept in (70, 10, 90)] == [10, 70, 1]


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
    # WHEN two bytes less are allowed, THEN the excess is listed once
    allowed = BackwardSimulation(steps, nbytes, [3, 2, 1], [True, False, False, False], [False, True, True, True], 28)
    assert allowed.excesses == [[1, 2, 3]]
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
