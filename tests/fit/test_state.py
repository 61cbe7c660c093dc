"""Optimizer state that `memlab run --fit` keeps on the host between steps: the same training bit for bit.

The GPU is a stand-in here. Its copies are as late as CUDA allows: at the first wait for an event after them. Memory that a
copy has not filled yet holds NaN.
"""

import contextlib
import copy
import functools
import io
import types

import pytest
import torch
import torch._dynamo.testing
from test_early_gradients import inside_a_closure, zero_before_forward
from test_recompute import Native, assert_same, embedded
from torch import nn
from torch.optim import optimizer as optimizers


class Stream:
    """Queues copies until somebody waits for an event after them."""

    def __init__(self):
        self.queued = []
        self.done = 0

    def record_event(self):
        return len(self.queued)

    def wait_event(self, event):
        while self.done < event:
            (to, source), self.queued[self.done] = self.queued[self.done], None
            to.copy_(source)
            self.done += 1


@pytest.fixture
def attached(monkeypatch):
    """Keeps state on the host. Returns the object that does."""
    for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        monkeypatch.setattr(optimizers, name, type(getattr(optimizers, name))())
    module = torch.nn.modules.module
    monkeypatch.setattr(module, "_global_forward_pre_hooks", type(module._global_forward_pre_hooks)())
    names = embedded("guards.py", "fit_state.py")

    class HostState(names["_HostState"]):
        def find_device(self, optimizer):
            self.device = torch.device("cpu")
            self.stream = self.stream or Stream()

        def current_stream(self):
            return self.stream

        def is_capturing(self):
            return False

        def memory(self, size):
            return types.SimpleNamespace(bytes=torch.full((size,), 255, dtype=torch.uint8))

        def on_device(self, hosts, stream):
            return [torch.full_like(host, torch.nan) for host in hosts]

        @contextlib.contextmanager
        def copying(self, streams):
            with torch.no_grad():
                yield self.stream.record_event

        def copy(self, to, source):
            self.stream.queued.append((to, source))

        def wait_for_copies(self):
            self.stream.wait_event(len(self.stream.queued))

    def attach(wanted_bytes=1 << 30):
        native = Native()
        host_state = HostState(native.warn, torch, lambda *_: None, wanted_bytes, least_bytes=512, batch_bytes=1024)
        host_state.warnings = native.warnings
        host_state.attach(optimizers)
        return host_state

    return attach


def model():
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(8)), nn.Linear(16, 1))


def away(host_state):
    return sum(state.away_size for state in host_state.states.values())


def accumulated(model, optimizer, loss, step):
    optimizer.zero_grad()
    for _ in range(3):
        loss().backward()
    optimizer.step()


def sometimes_skipped(model, optimizer, loss, step):
    optimizer.zero_grad()
    loss().backward()
    if step % 3 != 1:
        optimizer.step()


def evaluated(model, optimizer, loss, step):
    zero_before_forward(model, optimizer, loss, step)
    with torch.no_grad():
        model(torch.ones(4, 16))


def saved(model, optimizer, loss, step):
    optimizer.zero_grad()
    value = loss()
    copy.deepcopy(optimizer.state_dict())
    value.backward()
    torch.save(optimizer.state_dict(), io.BytesIO())
    optimizer.step()


def loaded(model, optimizer, loss, step):
    zero_before_forward(model, optimizer, loss, step)
    model(torch.ones(4, 16))
    kept = copy.deepcopy(optimizer.state_dict())
    zero_before_forward(model, optimizer, loss, step)
    model(torch.ones(4, 16))
    optimizer.load_state_dict(kept)


def changed_by_hand(model, optimizer, loss, step):
    optimizer.zero_grad()
    value = loss()
    for values in optimizer.state.values():
        for key in values:
            values[key] = values[key] * 0.5 if step % 2 else values[key].mul_(0.5)
    value.backward()
    optimizer.step()


def grown(model, optimizer, loss, step):
    zero_before_forward(model, optimizer, loss, step)
    if step == 2:
        added = nn.Parameter(torch.ones(16, 16))
        model.add = added
        optimizer.add_param_group({"params": [added]})
    if step > 2:
        model.add.grad = torch.full((16, 16), float(step))


def frozen(model, optimizer, loss, step):
    model[3].requires_grad_(step % 2 == 0)
    zero_before_forward(model, optimizer, loss, step)


def interrupted(model, optimizer, loss, step):
    if step == 2:
        with pytest.raises(ZeroDivisionError):
            optimizer.step(lambda: 1 / 0)
    zero_before_forward(model, optimizer, loss, step)


LOOPS = [
    zero_before_forward,
    accumulated,
    sometimes_skipped,
    inside_a_closure,
    evaluated,
    saved,
    loaded,
    changed_by_hand,
    grown,
    frozen,
    interrupted,
]

OPTIMIZERS = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    "AdamW foreach": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=True, amsgrad=True),
    "AdamW fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
    "Adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=1e-2),
    "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, lr=1e-2, max_iter=3),
}


def trained(optimizer_name, loop, look=lambda: None):
    made = model()
    optimizer = OPTIMIZERS[optimizer_name](list(made.parameters()))
    torch.manual_seed(4)
    seen = []

    def loss():
        seen.append(made(torch.randn(4, 16)).square().mean())
        look()
        return seen[-1]

    for step in range(7):
        loop(made, optimizer, loss, step)
    states = optimizer.state_dict()["state"].values()
    state = [value for values in states for value in values.values() if isinstance(value, torch.Tensor)]
    return [*seen, *made.parameters(), *state]


# LBFGS needs a closure.
PAIRS = [(name, loop) for name in OPTIMIZERS for loop in LOOPS if name != "LBFGS" or loop is inside_a_closure]


@pytest.mark.parametrize(("name", "loop"), PAIRS)
def test_training_is_the_same_bit_for_bit(attached, name, loop):
    # GIVEN what a program computes
    expected = trained(name, loop)
    # WHEN the optimizer's state is kept on the host
    host_state = attached()
    sizes: list = []
    found = trained(name, loop, lambda: sizes.append(away(host_state)))
    # THEN it computes the same
    assert_same(found, expected)
    # AND the state leaves, but for that of Adafactor, which is small, and that of LBFGS, whose step holds it meanwhile
    assert all("something else holds it" in warning and name == "LBFGS" for warning in host_state.warnings)
    assert max(sizes) > 0 or name in ("Adafactor", "LBFGS")


def test_state_is_away_at_the_end_of_forward_and_back_at_the_step(attached):
    # GIVEN a training whose state is kept on the host
    host_state = attached()
    made = model()
    optimizer = OPTIMIZERS["AdamW"](made.parameters())
    size = 8 * 2 * 16 * 16 * 4
    sizes = []
    for _ in range(4):
        made[4].register_forward_hook(lambda *_: sizes.append(away(host_state)))
        loss = made(torch.ones(4, 16)).sum()
        sizes.append(away(host_state))
        loss.backward()
        sizes.append(away(host_state))
        optimizer.step()
        sizes.append(away(host_state))
    # THEN all of it is away at the end of the last forward, a part in its middle, AND nothing at the end of backward
    middle, end, backward, step = sizes[-4:]
    assert 0 < middle < end == size
    assert (backward, step) == (0, 0)
    # AND while it is away, its data are on the host
    made(torch.ones(4, 16))
    state = next(iter(host_state.states.values()))
    held = [values[key] for values in state.original.values() for key in ("exp_avg", "exp_avg_sq")]
    host = state.memory.bytes.untyped_storage().data_ptr()
    large = [tensor for tensor in held if tensor.numel() == 256]
    assert len(large) == 16 and all(tensor.untyped_storage().data_ptr() == host for tensor in large)
    # AND a look brings it back
    assert len(optimizer.state) == 18 and away(host_state) == 0
    assert type(optimizer.state).__module__ == "collections"


def test_only_as_much_leaves_as_is_wanted(attached):
    # GIVEN a limit; WHEN the state leaves; THEN it is the fewest tensors that reach the limit
    host_state = attached(wanted_bytes=5000)
    made = model()
    optimizer = OPTIMIZERS["AdamW"](made.parameters())
    for _ in range(3):
        made(torch.ones(4, 16)).sum().backward()
        optimizer.step()
    made(torch.ones(4, 16))
    assert away(host_state) == 5 * 1024


def test_gradients_of_several_backwards_bring_it_back_once(attached):
    # GIVEN a training that accumulates gradients
    host_state = attached()
    made = model()
    optimizer = OPTIMIZERS["AdamW"](made.parameters())
    sizes = []
    for _ in range(4):
        for _ in range(3):
            made(torch.ones(4, 16)).sum().backward()
            sizes.append(away(host_state))
        optimizer.step()
    # THEN the state returns in the last backward of a step
    first, second, third = sizes[-3:]
    assert first == second == 8 * 2 * 16 * 16 * 4 and third == 0


def test_a_tensor_that_the_program_holds_stays(attached):
    # GIVEN a program that keeps a state tensor and a view of another one
    host_state = attached()
    made = model()
    optimizer = OPTIMIZERS["AdamW"](made.parameters())
    held = []
    expected = []
    for _ in range(4):
        made(torch.ones(4, 16)).sum().backward()
        assert all(torch.equal(one, other) for one, other in zip(held, expected, strict=True))
        optimizer.step()
        if not held:
            values = optimizer.state[made[2].weight]
            held = [values["exp_avg"], values["exp_avg_sq"][0]]
        expected = [tensor.clone() for tensor in held]
    # THEN they are not moved, AND one line each reports it
    assert all("stays on the GPU" in warning for warning in host_state.warnings)
    assert len(host_state.warnings) == 2
    assert len(next(iter(host_state.states.values())).slots) == 14


def test_state_whose_dictionary_the_program_holds_stays(attached):
    # GIVEN a program that keeps the result of `state_dict`, which holds the dictionaries themselves
    host_state = attached()
    made = model()
    optimizer = OPTIMIZERS["AdamW"](made.parameters())
    for _ in range(3):
        made(torch.ones(4, 16)).sum().backward()
        optimizer.step()
        kept = optimizer.state_dict()
    # THEN nothing leaves while it does
    made(torch.ones(4, 16))
    assert away(host_state) == 0
    del kept
    made(torch.ones(4, 16)).sum().backward()
    made(torch.ones(4, 16))
    assert away(host_state) > 0


def test_a_saved_optimizer_is_an_ordinary_one(attached):
    # GIVEN state that is away
    host_state = attached()
    made = model()
    optimizer = OPTIMIZERS["AdamW"](made.parameters())
    for _ in range(3):
        loss = made(torch.ones(4, 16)).sum()
        loss.backward()
        optimizer.step()
    made(torch.ones(4, 16))
    assert away(host_state) > 0
    # WHEN it is copied; THEN the copy has the same class and values as an ordinary one
    copied = copy.deepcopy(optimizer)
    assert type(copied.state).__module__ == "collections"
    pairs = zip(copied.state.values(), optimizer.state.values(), strict=True)
    assert all(torch.equal(one[key], other[key]) for one, other in pairs for key in one)
    # AND the state can be handed to another optimizer
    made(torch.ones(4, 16)).sum().backward()
    made(torch.ones(4, 16))
    assert away(host_state) > 0
    state = optimizer.state
    del optimizer
    assert (len(state), len(state)) == (18, 18)
    # AND its memory is freed with it
    del state, copied, loss
    assert len(host_state.states) == 0


@pytest.mark.parametrize("is_whole", [True, False])
def test_compiled_programs_keep_their_graphs(attached, is_whole):
    # GIVEN a model compiled as one graph, or layer by layer
    def trained(host_state):
        torch._dynamo.reset()
        graphs = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        compiling = functools.partial(torch.compile, backend=graphs, fullgraph=True)
        made = model()
        optimizer = OPTIMIZERS["AdamW"](made.parameters())
        compiled = compiling(made) if is_whole else nn.Sequential(*map(compiling, made))
        seen = []
        for step in range(4):
            optimizer.zero_grad()
            loss = compiled(torch.ones(4, 16)).sum()
            if host_state and step > 1:
                assert away(host_state) == sum(state.size for state in host_state.states.values()) > 0
            loss.backward()
            optimizer.step()
            seen.append(loss.detach())
        return seen, graphs.frame_count

    plain, graphs = trained(None)
    # WHEN it is trained with its state on the host
    seen, graphs_with_state = trained(attached())
    # THEN all state leaves, the results are the same, and the graphs are whole
    assert_same(seen, plain)
    assert graphs_with_state == graphs
