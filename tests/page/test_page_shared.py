"""Processes of one host that page the same model hold its weights once (shared="host"), and none changes another's."""

import contextlib
import os
import signal
import time

import pytest
from ranks import Nursery, Rank, all_asked, is_joining, names_of, names_taken
from waiting import wait_until

MIB = 1 << 20
WEIGHTS = 24 * MIB


@pytest.fixture
def group():
    """A name unique to this test: others share models of the same form at the same time."""
    return f"host:{os.getpid()}-{time.monotonic_ns()}"


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    with Nursery(tmp_path_factory.mktemp("nursery")) as started:
        yield started


@pytest.fixture
def ranks(tmp_path, nursery):
    """Starts ranks, and ends them with the test."""
    with contextlib.ExitStack() as started:

        def start(count):
            made = [Rank(tmp_path, nursery) for _ in range(count)]
            for rank in made:
                started.callback(rank.end)
            return made

        yield start


def paged(ranks, group, **options):
    """Pages the same model in each rank at the same time."""
    more = "".join(f", {name}={value!r}" for name, value in options.items())
    all_asked(ranks, "model, expected = make()")
    all_asked(ranks, f"model = page(model, shared={group!r}{more})")


def test_ranks_hold_weights_once(ranks, group):
    # GIVEN three ranks of a host, each with the weights of the same model in memory
    three = ranks(3)
    # Loads first everything that PyTorch and memlab load at their first use, so that it does not count.
    all_asked(three, "computes(page(make(layers=2)[0], shared=None), make(layers=2)[1])")
    before = all_asked(three, "own_bytes()")
    # WHEN they page it at the same time
    paged(three, group)
    # THEN each computes as before, traced, timed and settled
    assert all(all_asked(three, "computes(model, expected)"))
    assert set(all_asked(three, "model.memlab.stage")) == {"settled"}
    # AND the pages of the weights exist once, for all three together
    nbytes = set(all_asked(three, "model.memlab.shared_bytes"))
    assert nbytes == set(all_asked(three, "model.memlab.host_bytes")) and WEIGHTS < min(nbytes) < WEIGHTS + MIB
    assert abs(sum(all_asked(three, "pss_of_weights()")) - min(nbytes)) < 3 * 64 * 1024
    # AND no rank has kept private weights beside them
    after = all_asked(three, "own_bytes()")
    assert max(now - then for now, then in zip(after, before, strict=True)) < WEIGHTS / 2
    # AND each reports three ranks
    assert all_asked(three, "model.memlab.sharing") == [3, 3, 3]
    assert "held once by 3 processes of this host" in three[0].ask("str(model.memlab)")


def test_killed_ranks_leave_nothing_behind(ranks, group):
    # GIVEN three ranks that share memory outside any file system
    first, second, third = ranks(3)
    for rank in (first, second, third):
        paged([rank], group)
    names = names_of(first, second, third)
    assert len(names) == 3
    assert third.ask("all('/memfd:memlab-weights' in line for line in open('/proc/self/maps') if 'memlab-weights' in line)")
    memory = third.ask("weights_file()")
    # WHEN the one that filled the memory is killed, and another
    first.kill()
    second.kill()
    # THEN the third has its weights, and passes them to a rank that comes later
    assert third.ask("computes(model, expected)")
    (late,) = ranks(1)
    paged([late], group)
    assert late.ask("weights_file()") == memory
    assert late.ask("computes(model, expected)") and third.ask("model.memlab.sharing") == 2
    # WHEN the last are killed too, THEN no names are left
    names |= names_of(late)
    third.kill()
    late.kill()
    assert not names & names_taken()
    # AND the next rank starts from scratch
    (next_one,) = ranks(1)
    paged([next_one], group)
    assert next_one.ask("computes(model, expected)") and next_one.ask("model.memlab.sharing") == 1


def test_a_rank_that_dies_while_it_fills(ranks, group, tmp_path):
    # GIVEN a rank that has written some weights, and two that wait for it
    first, second, third = ranks(3)
    all_asked([first, second, third], "model, expected = make()")
    written = tmp_path / "written"
    first.ask(f"stop = lambda: (open({str(written)!r}, 'w').close(), time.sleep(3600))")
    first.ask("host_sharing.copy_in = lambda weights, memory: (arena.copy_in(weights[:3], memory), stop())")
    first.tell(f"model = page(model, shared={group!r})")
    wait_until(written.exists)
    for waiting in (second, third):
        waiting.tell(f"model = page(model, shared={group!r})")
    wait_until(lambda: is_joining(second) and is_joining(third))
    # WHEN it is killed
    first.kill()
    # THEN one of the others fills the memory from its start, and both have it
    for waiting in (second, third):
        waiting.answer()
    assert all(all_asked([second, third], "computes(model, expected)"))
    assert all_asked([second, third], "model.memlab.sharing") == [2, 2]
    # AND one whose filling fails leaves it to the next, though its exception is kept
    other = group + "-other"
    all_asked([second, third], "model, expected = make()")
    second.ask("host_sharing.copy_in = lambda weights, memory: 1 / 0")
    line = f"kept = failure(lambda: page(model, shared={other!r}))"
    second.ask(line)
    assert second.ask("kept").startswith("ZeroDivisionError")
    third.ask(f"model = page(model, shared={other!r})")
    assert third.ask("computes(model, expected)")


def test_a_rank_that_waits_names_whom(ranks, group):
    # GIVEN a rank that is stopped while it fills the memory, and another that has waited longer than users wait without a
    # message
    first, second = ranks(2)
    all_asked([first, second], "model, expected = make()")
    first.ask("stop = lambda: os.kill(os.getpid(), signal.SIGSTOP)")
    first.ask("host_sharing.copy_in = lambda weights, memory: (weights and stop(), arena.copy_in(weights, memory))")
    second.ask("host_sharing.SILENT_SECONDS = 0")
    first.tell(f"model = page(model, shared={group!r})")
    wait_until(lambda: len(names_of(first)) == 1)
    second.tell(f"model = page(model, shared={group!r})")
    # THEN it prints one line, with the rank that it waits for and a fix
    wait_until(lambda: f"kill -CONT {first.pid}" in second.errors.read_text())
    line = second.errors.read_text().splitlines()[-1]
    assert line.startswith(f'memlab: shared="host" waits for process {first.pid} (python') and " told_rank.py;" in line
    # AND both have the weights afterwards
    os.kill(first.pid, signal.SIGCONT)
    first.answer()
    second.answer()
    assert all(all_asked([first, second], "computes(model, expected)"))
    # WHEN one that has them is stopped while a third asks for them
    (third,) = ranks(1)
    third.ask("model, expected = make()")
    third.ask("host_sharing.SILENT_SECONDS = 0")
    os.kill(first.pid, signal.SIGSTOP)
    os.kill(second.pid, signal.SIGSTOP)
    third.tell(f"model = page(model, shared={group!r})")
    # THEN the third names the stopped one
    wait_until(lambda: "kill -CONT" in third.errors.read_text())
    os.kill(first.pid, signal.SIGCONT)
    os.kill(second.pid, signal.SIGCONT)
    third.answer()
    assert third.ask("computes(model, expected)")


def test_waiting_can_be_interrupted(ranks, group):
    # GIVEN a rank that waits for another to fill the memory
    first, second = ranks(2)
    all_asked([first, second], "model, expected = make()")
    first.ask("host_sharing.copy_in = lambda weights, memory: time.sleep(3600)")
    first.tell(f"page(model, shared={group!r})")
    wait_until(lambda: len(names_of(first)) == 1)
    second.ask("import signal; signal.signal(signal.SIGUSR1, lambda *_: 1 / 0)")
    second.tell(f"failure(lambda: page(model, shared={group!r}))")
    wait_until(lambda: is_joining(second))
    # WHEN a signal arrives whose handler raises, like Ctrl-C, THEN the exception is raised
    os.kill(second.pid, signal.SIGUSR1)
    assert second.answer().startswith("ZeroDivisionError")
    # AND the model is unchanged
    assert second.ask("torch.equal(model(x), expected)") and not second.ask("'forward' in vars(model)")


def test_other_values_are_refused(ranks, group):
    # GIVEN a rank that shares, and one whose model has one other value in one weight
    first, second = ranks(2)
    paged([first], group)
    second.ask("model, expected = make()")
    second.ask("model[7].weight.data[3, 5] += 1e-3")
    second.ask("expected = model(x)")
    # WHEN it pages its model, THEN the error names the weight and a fix
    refused = second.ask(f"failure(lambda: page(model, shared={group!r}))")
    assert refused.startswith("ValueError: 7.weight has other values here") and 'shared="host:NAME"' in refused
    # AND its model computes as before, and the rank is not counted
    assert second.ask("torch.equal(model(x), expected)") and not second.ask("'forward' in vars(model)")
    second.ask("import gc; gc.collect()")
    wait_until(lambda: first.ask("model.memlab.sharing") == 1)
    # WHEN it uses another name, THEN it has separate memory
    second.ask(f"model = page(model, shared={group + '-edited'!r})")
    assert second.ask("computes(model, expected)") and first.ask("computes(model, expected)")
    assert first.ask("weights_file()") != second.ask("weights_file()")
    # AND models of other forms do not share under one name
    (third,) = ranks(1)
    third.ask("model, expected = make(layers=23)")
    third.ask(f"model = page(model, shared={group!r})")
    assert third.ask("computes(model, expected)") and third.ask("model.memlab.sharing") == 1


@pytest.mark.parametrize("on_change", ["error", "upload"])
@pytest.mark.parametrize(
    "edit",
    [
        "model[4].weight.mul_(2)",
        "model[4].weight.data.mul_(2)",
        "setattr(model[4].weight, 'data', model[4].weight.data * 2)",
        "model.load_state_dict({k: v * 2 if k == '4.weight' else v for k, v in model.state_dict().items()}) and None",
        "setattr(model[4], 'weight', nn.Parameter(model[4].weight * 2))",
    ],
)
def test_an_edit_stays_in_its_process(ranks, group, edit, on_change):
    # GIVEN two ranks that share
    both = first, second = ranks(2)
    paged(both, group, on_change=on_change)
    assert all(all_asked(both, "computes(model, expected)"))
    # WHEN one edits a weight
    first.ask(edit)
    # THEN its next forward raises an error instead of computing with either value, also after refresh()
    for before in ("None", "failure(model.memlab.refresh)"):
        first.ask(before)
        refused = first.ask("failure(lambda: model(x))")
        assert refused.startswith("RuntimeError: 4.weight ") and "other processes of this host" in refused, refused
    # AND the other computes as before, as does a rank that comes later
    (late,) = ranks(1)
    paged([late], group)
    assert all(all_asked([second, late], "computes(model, expected)"))
    # AND the edited model can be unpaged, with the edit
    first.ask("twin = make()[0]")
    first.ask("twin[4].weight.mul_(2)")
    assert first.ask("torch.equal(memlab.unpage(model)(x), twin(x))")
    assert all(all_asked([second, late], "computes(model, expected)"))


def test_holding_weights_costs_no_copies(ranks, group):
    # GIVEN a rank that keeps references to the shared weights between forwards, and reads them
    (rank,) = ranks(1)
    paged([rank], group)
    rank.ask("kept = [p.data for p in model.parameters()]")
    # WHEN it continues, THEN its values are right, and no unit is copied again
    assert rank.ask("computes(model, expected, 6)")
    assert rank.ask("model.memlab.counters['reloads']") == 0
    # AND a write through such a reference is found
    rank.ask("kept[8].add_(1)")
    assert "4.weight changed after memlab.page" in rank.ask("failure(lambda: model(x))")
    # AND an edit that is undone does not count
    rank.ask("kept[8].copy_(make()[0][4].weight)")
    assert rank.ask("computes(model, expected)")


@pytest.mark.parametrize("when", [0, 1, 5])
def test_a_forward_that_writes_is_refused(ranks, group, when):
    # GIVEN a rank whose forward writes to a parameter, in the traced forward or in a later one, and another that shares it
    both = first, second = ranks(2)
    paged(both, group)
    first.ask(f"seen = iter([0] * {when} + [1] + [0] * 99)")
    first.ask("writes = lambda module, args: module.weight.add_(1) if next(seen) else None")
    first.ask("handle = model[4].register_forward_pre_hook(writes)")
    for _ in range(when):
        assert first.ask("computes(model, expected, 1)")
    # WHEN it writes, THEN the error names the parameter
    refused = first.ask("failure(lambda: model(x))")
    assert refused.startswith("RuntimeError: a forward wrote to 4.weight, which other processes of this host read too")
    # AND the other's results are unchanged
    assert second.ask("computes(model, expected)")
    # AND from then on the rank computes with the shared value
    assert first.ask("computes(model, expected)")


def test_buffers_and_trained_parameters_are_a_ranks_own(ranks, group):
    # GIVEN two ranks of a frozen base, each with its own adapter and large buffer, which forwards write
    both = ranks(2)
    all_asked(both, "model, _ = make()")
    for seed, rank in enumerate(both):
        rank.ask(f"torch.manual_seed({seed})")
    all_asked(both, "model.append(nn.Linear(WIDTH, WIDTH))")
    all_asked(both, "model[-1].register_buffer('large', torch.randn(1024, WIDTH))")
    all_asked(both, "model[-1].register_forward_hook(lambda m, a, out: out + m.large[:2] + m.large.mul_(0.5)[2:4])")
    all_asked(both, "import copy; twin = copy.deepcopy(model)")
    # WHEN they page it, THEN the base is shared
    all_asked(both, f"model = page(model, shared={group!r}, budget='12MiB')")
    assert all_asked(both, "model.memlab.sharing") == [2, 2]
    for shared, host in all_asked(both, "[model.memlab.shared_bytes, model.memlab.host_bytes]"):
        assert WEIGHTS < shared < WEIGHTS + MIB < host - 2 * MIB
    # AND each computes with its own values
    for _ in range(4):
        assert all(all_asked(both, "[torch.equal(model(x), twin(x)) for _ in [torch.no_grad().__enter__()]][0]"))
    # AND each trains its adapter
    all_asked(both, "torch.set_grad_enabled(True)")
    all_asked(both, "model(x).sum().backward()")
    all_asked(both, "twin(x).sum().backward()")
    assert all(all_asked(both, "torch.equal(model[-1].weight.grad, twin[-1].weight.grad)"))


def test_files_are_read_once(ranks, group, tmp_path):
    # GIVEN a checkpoint, and ranks that count their reads of it
    (saver, *both) = ranks(3)
    saver.ask("from safetensors.torch import save_file")
    saver.ask("model, expected = make()")
    saver.ask(f"save_file(model.state_dict(), '{tmp_path}/model.safetensors')")
    setup = [
        "twin, expected = make()",
        "read = []",
        "from memlab import loading",
        "original = loading.read_weights",
        "loading.read_weights = lambda some, *more: (read.append(len(some)), original(some, *more))",
    ]
    load = [
        "skeleton = memlab.skeleton()",
        "skeleton.__enter__()",
        "model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(24))).eval()",
        "skeleton.__exit__(None, None, None)",
        f"model = memlab.load('{tmp_path}', model, 'cpu', budget='4MiB', shared={group!r})",
    ]
    # WHEN they load it
    for line in setup + load:
        all_asked(both, line)
    # THEN one has read it, and both have it
    assert sorted(sum(read) for read in all_asked(both, "read")) == [0, 48]
    assert all(all_asked(both, "computes(model, expected)"))
    assert all_asked(both, "model.memlab.sharing") == [2, 2]
    # WHEN the file is rewritten with other values, THEN ranks that load it now do not share with the former
    saver.ask("model, _ = make(seed=1)")
    saver.ask(f"save_file(model.state_dict(), '{tmp_path}/model.safetensors')")
    (late,) = ranks(1)
    for line in setup + load:
        late.ask(line)
    late.ask("twin, expected = make(seed=1)")
    assert late.ask("computes(model, expected)") and late.ask("model.memlab.sharing") == 1
    assert all(all_asked(both, "computes(model, expected)"))


def test_forked_processes(ranks, group):
    # GIVEN a process that forks two ranks, which page the model that they inherit
    parent, late = ranks(2)
    parent.ask("model, expected = make()")
    ranks_of = (
        "import multiprocessing; context = multiprocessing.get_context('fork'); results = context.Queue(); "
        "ends, over = context.Event(), context.Event(); "
        f"work = lambda: (page(model, shared={group!r}), results.put(computes(model, expected)), "
        "ends.wait(), results.put(model.memlab.sharing), over.wait()); "
        "children = [context.Process(target=work) for _ in range(2)]; [child.start() for child in children]"
    )
    parent.ask(ranks_of)
    # THEN both results are right
    assert parent.ask("[results.get() for _ in children]") == [True, True]
    # AND each counts both
    parent.ask("ends.set()")
    assert parent.ask("[results.get() for _ in children]") == [2, 2]
    parent.ask("over.set()")
    parent.ask("[child.join() for child in children] and None")
    # GIVEN a rank with an idle child, such as a worker of a DataLoader
    parent.ask(f"model = page(model, shared={group!r})")
    names = names_of(parent)
    parent.ask("child = os.fork() or time.sleep(3600)")
    child = parent.ask("child")
    try:
        # WHEN the rank is killed, and the child lives on
        parent.kill()
        # THEN its place is free, and the next rank does not wait for it
        wait_until(lambda: not names & names_taken())
        paged([late], group)
        assert late.ask("computes(model, expected)") and late.ask("model.memlab.sharing") == 1
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_forked_child_of_a_rank(ranks, group):
    # GIVEN a rank, WHEN a child of it unpages the model, edits it and ends, THEN the rank shares as before
    (rank,) = ranks(1)
    paged([rank], group)
    assert rank.ask("computes(model, expected)")
    rank.ask(
        "def in_child(): twin = memlab.unpage(model); twin[0].weight.add_(1); globals().pop('model'); del twin; "
        "import gc; gc.collect(); os._exit(0)"
    )
    rank.ask("child = os.fork() or in_child()")
    assert rank.ask("os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])") == 0
    (late,) = ranks(1)
    paged([late], group)
    assert rank.ask("computes(model, expected)") and late.ask("computes(model, expected)")
    assert rank.ask("model.memlab.sharing") == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_other_users_get_nothing(ranks, group):
    # GIVEN a rank that shares
    first, stranger, second = ranks(3)
    paged([first], group)
    (seat,) = names_of(first)
    # WHEN a process of another user connects to it, THEN it receives nothing
    stranger.ask("os.setuid(65534)")
    stranger.ask("import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0' + " + repr(seat[1:]) + ")")
    assert stranger.ask("len(s.recv(1))") == 0
    # AND where it occupies a rank's place, ranks skip it
    first.kill()
    stranger.ask("s = socket.socket(socket.AF_UNIX); s.bind('\\0' + " + repr(seat[1:]) + "); s.listen()")
    paged([second], group)
    assert second.ask("computes(model, expected)") and second.ask("model.memlab.sharing") == 1
    # AND where it holds the gate, the error reports it instead of waiting
    second.kill()
    gate = seat[1:].rpartition("/")[0] + "/gate"
    stranger.ask(f"s = socket.socket(socket.AF_UNIX); s.bind('\\0' + {gate!r}); s.listen()")
    (third,) = ranks(1)
    third.ask("model, expected = make()")
    refused = third.ask(f"failure(lambda: page(model, shared={group!r}))")
    assert refused.startswith(f"RuntimeError: process {stranger.pid} of another user holds the name memlab/0/")
    assert third.ask("torch.equal(model(x), expected)")


def test_wrong_arguments(ranks):
    (rank,) = ranks(1)
    for wrong in ("node", "host:", True, 1):
        refused = rank.ask(f"failure(lambda: page(make()[0], shared={wrong!r}))")
        assert refused.startswith(f'ValueError: shared={wrong!r}: must be "host", "host:NAME"')
