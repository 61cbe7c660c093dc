"""The cross entropy that `memlab run --fit` computes some rows at a time: equal to PyTorch's bit for bit."""

import contextlib
import itertools

import pytest
import torch
from test_recompute import embedded
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

ROWS = 64


@pytest.fixture
def in_rows(monkeypatch):
    """Computes losses in rows within a `with` statement. Yields the losses that it computed so."""
    names = embedded("guards.py", "fit_loss.py")

    @contextlib.contextmanager
    def enter():
        with monkeypatch.context() as patched:
            patched.setattr(torch._C._nn, "cross_entropy_loss", torch._C._nn.cross_entropy_loss)
            loss = names["_LossInRows"](torch, least_bytes=4 * 300 * 37, rows_bytes=4 * 37 * ROWS, least_rows=ROWS)
            loss.install()
            computed = []
            apply = loss.function.apply
            monkeypatch.setattr(loss.function, "apply", lambda *given: computed.append(1) or apply(*given))
            yield computed

    return enter


def logits(dtype=torch.float32, rows=300, classes=37):
    torch.manual_seed(5)
    return (4 * torch.randn(rows, classes)).to(dtype).requires_grad_()


def targets(ignored=-100, rows=300, classes=37):
    torch.manual_seed(6)
    target = torch.randint(0, classes, (rows,))
    target[::7] = ignored
    return target


CASES = [
    pytest.param(dtype, autocast, reduction, ignored, id=f"{dtype}-{autocast}-{reduction}-{ignored}".replace("torch.", ""))
    for dtype, autocast, reduction, ignored in itertools.product(
        (torch.float32, torch.bfloat16, torch.float16, torch.float64),
        (None, torch.bfloat16),
        ("mean", "sum", "none"),
        (-100, 0, 5),
    )
]


@pytest.mark.parametrize(("dtype", "autocast", "reduction", "ignored"), CASES)
def test_loss_and_gradient_are_equal(in_rows, dtype, autocast, reduction, ignored):
    def run():
        given = logits(dtype)
        with torch.autocast("cpu", autocast, enabled=autocast is not None):
            loss = functional.cross_entropy(given, targets(ignored), reduction=reduction, ignore_index=ignored)
        weights = torch.linspace(0.5, 2, loss.numel(), dtype=loss.dtype).reshape(loss.shape)
        (loss * weights).sum().backward()
        return loss.detach(), given.grad

    # GIVEN the loss and the gradient of PyTorch
    expected = run()
    # WHEN they are computed in rows
    with in_rows() as computed:
        found = run()
    # THEN they have the same bits and types
    assert computed
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and one.stride() == other.stride()
        assert torch.equal(one, other)


def test_rows_that_are_all_ignored_are_equal(in_rows):
    def run():
        given = logits()
        loss = nn.CrossEntropyLoss()(given, torch.full((300,), -100))
        loss.backward()
        return torch.stack([loss.detach(), given.grad.sum()])

    expected = run()
    with in_rows() as computed:
        assert torch.equal(run(), expected) or (expected.isnan().any() and run().isnan().any())
    assert computed


def differentiated_again():
    given = logits(torch.float64)
    loss = functional.cross_entropy(given, targets())
    (gradient,) = torch.autograd.grad(loss, given, create_graph=True)
    gradient.pow(2).sum().backward()
    return given.grad


def several_at_once():
    given = logits(torch.float64)
    loss = functional.cross_entropy(given, targets(), reduction="none")
    return torch.autograd.grad(loss, given, torch.eye(300, dtype=torch.float64)[:4], is_grads_batched=True)[0]


def in_a_checkpointed_function():
    given = logits()
    checkpoint(lambda x: functional.cross_entropy(x * 2, targets()), given, use_reentrant=False).backward()
    return given.grad


@pytest.mark.parametrize("gradient_of", [differentiated_again, several_at_once, in_a_checkpointed_function])
def test_gradients_are_equal_however_the_program_computes_them(in_rows, gradient_of):
    expected = gradient_of()
    with in_rows() as computed:
        assert torch.equal(gradient_of(), expected)
    assert computed


OTHERS = {
    "few rows": lambda: functional.cross_entropy(logits(rows=64), targets(rows=64)),
    "weights": lambda: functional.cross_entropy(logits(), targets(), weight=torch.rand(37)),
    "smoothing": lambda: functional.cross_entropy(logits(), targets(), label_smoothing=0.1),
    "probabilities": lambda: functional.cross_entropy(logits(), torch.rand(300, 37)),
    "images": lambda: functional.cross_entropy(logits().reshape(3, 37, 100), targets().reshape(3, 100)),
    "transposed": lambda: functional.cross_entropy(logits().reshape(37, 300).t(), targets()),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_losses_are_left_to_pytorch(in_rows, case):
    torch.manual_seed(0)
    expected = OTHERS[case]()
    with in_rows() as computed:
        torch.manual_seed(0)
        assert torch.equal(OTHERS[case](), expected)
    assert not computed


def test_shapes_can_be_computed_without_memory(in_rows):
    with in_rows() as computed:
        loss = functional.cross_entropy(logits().detach().to("meta").requires_grad_(), targets().to("meta"))
        loss.backward()
    assert loss.is_meta and not computed


def test_programs_with_other_ways_to_differentiate_work(in_rows):
    plain, target = logits(), targets()
    expected = torch.func.grad(loss_of_two)(plain, target)
    scripted = torch.jit.script(loss_of_two)(plain, target)
    with in_rows() as computed:
        assert torch.equal(torch.func.grad(loss_of_two)(plain, target), expected)
        assert torch.equal(torch.jit.script(also_loss_of_two)(plain, target), scripted)
        compiled = torch.compile(loss_of_two, backend="aot_eager", fullgraph=True)(plain, target)
        assert torch.equal(compiled, scripted)
    assert not computed


def loss_of_two(given: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(given, target)


def also_loss_of_two(given: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(given, target)


def test_logits_that_change_before_backward_stop_the_program(in_rows):
    with in_rows(), pytest.raises(RuntimeError, match="the loss cannot be computed in rows"):
        given = logits() * 1
        loss = functional.cross_entropy(given, targets())
        given.mul_(2)
        loss.backward()


def alone(given, _held):
    return functional.cross_entropy(given * 1, targets())


def a_view_alone(given, _held):
    return functional.cross_entropy((given.view(3, 100, 37) * 1).view(-1, 37), targets())


def after_another_use(given, _held):
    made = given * 1
    return functional.cross_entropy(made, targets()) + made.logsumexp(1).square().mean()


def held(given, held):
    made = given * 1
    held.append(made)
    return functional.cross_entropy(made, targets())


def of_a_held_tensor(given, held):
    made = given.view(3, 100, 37) * 1
    held.append(made)
    return functional.cross_entropy(made.view(-1, 37), targets())


def with_a_held_view(given, held):
    made = given * 1
    held.append(made[:5])
    return functional.cross_entropy(made, targets())


def with_a_held_copy_without_graph(given, held):
    made = given * 1
    held.append(made.detach())
    return functional.cross_entropy(made.view(300, 37), targets())


def before_another_use(given, _held):
    made = given * 1
    sums = made.logsumexp(1).square().mean()
    return functional.cross_entropy(made, targets()) + sums


def of_a_saved_output(given, _held):
    return functional.cross_entropy(given.tanh(), targets())


def twice(given, _held):
    made = given * 1
    return functional.cross_entropy(made, targets()) + functional.cross_entropy(made, targets(5))


def with_hooks(given, _held):
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        return functional.cross_entropy(given * 1, targets())


OVERWRITTEN = (alone, a_view_alone, after_another_use, twice)
KEPT = (held, of_a_held_tensor, with_a_held_view, with_a_held_copy_without_graph)
KEPT += (before_another_use, of_a_saved_output, with_hooks)


@pytest.mark.parametrize("loss_of", [*OVERWRITTEN, *KEPT], ids=lambda loss_of: loss_of.__name__)
def test_the_gradient_takes_the_memory_of_logits_that_nothing_else_holds(in_rows, monkeypatch, loss_of):
    made = []
    empty_like = torch.empty_like

    def run(backwards=1):
        given, held = logits(), []
        loss = loss_of(given, held)
        before = [tensor.clone() for tensor in held]
        monkeypatch.setattr(torch, "empty_like", lambda tensor, **more: made.append(1) or empty_like(tensor, **more))
        for left in reversed(range(backwards)):
            loss.backward(retain_graph=left > 0)
        monkeypatch.undo()
        assert all(torch.equal(tensor, known) for tensor, known in zip(held, before, strict=True))
        return loss.detach(), given.grad

    # GIVEN the loss and the gradients of PyTorch
    expected, expected_of_two = run(), run(2)
    made.clear()
    # WHEN they are computed in rows
    with in_rows() as computed:
        found = run()
        uses = len(computed) - 2  # Two samples.
        # THEN memory for the gradient is taken only if something else holds the logits
        assert uses and len(made) == (uses if loss_of in KEPT else uses - 1)
        # AND what is held, the loss and its gradient are the same, also if the graph is used again
        assert all(map(torch.equal, found, expected))
        assert all(map(torch.equal, run(2), expected_of_two))
