"""`memlab.accumulate`: full-batch gradients from micro-batches."""

import copy
import itertools
import json
import subprocess
from pathlib import Path

import memlab as package
import pytest
import torch
from conftest import PYTHON, ROOT
from criteria import (
    BATCH,
    CLASSES,
    IMAGES,
    PIECES,
    VALUES,
    Given,
    contrastive,
    difference,
    model_for,
    numbers,
    whole,
)
from torch import nn
from torch.nn import functional
from waiting import HANG_SECONDS

PROGRAMS = Path(__file__).parent / "programs"

pytestmark = pytest.mark.usefixtures("in_double_precision")


@pytest.mark.parametrize("size", PIECES)
def test_a_loss_that_compares_samples(size):
    # GIVEN a contrastive loss; WHEN the batch runs in micro-batches; THEN the loss compares each sample with all samples
    model = model_for(CLASSES)
    expected = whole(model, IMAGES, contrastive)
    value = package.accumulate(model, IMAGES, contrastive, micro_batch=size)
    assert difference(model, value, expected) <= 1e-13


def test_a_loss_with_its_own_parameters():
    # GIVEN a learnt temperature
    model, temperature = model_for(CLASSES), nn.Parameter(torch.tensor(0.5))

    def loss_fn(outputs):
        return contrastive(outputs) * temperature.square()

    loss = loss_fn(model(IMAGES))
    (expected,) = torch.autograd.grad(loss, temperature)
    # WHEN the batch runs in micro-batches; THEN the temperature gets its gradient once
    package.accumulate(model, IMAGES, loss_fn, micro_batch=4)
    assert torch.allclose(temperature.grad, expected, rtol=1e-13)


class Dropping(nn.Module):
    """A model with random numbers that records its masks."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.masks = nn.Linear(7, 16), nn.Linear(16, CLASSES), []

    def forward(self, x):
        mask = (torch.rand(len(x), 16) > 0.4) / 0.6
        self.masks.append(mask)
        return self.last(self.first(x).tanh() * mask)


@pytest.mark.parametrize("loss_fn", [contrastive, nn.MSELoss()], ids=["replay", "micro-batches"])
def test_random_numbers_are_the_same_in_both_forwards(loss_fn):
    # GIVEN a model with dropout, WHEN a batch runs in micro-batches
    torch.manual_seed(0)
    model = Dropping()
    torch.manual_seed(3)
    targets = None if loss_fn is contrastive else VALUES
    value = package.accumulate(model, IMAGES, loss_fn, targets=targets, micro_batch=4)
    after = torch.rand(())
    # THEN the second forward of a micro-batch draws the numbers of its first, and the program continues with unused numbers
    drawn = model.masks[:4]
    if loss_fn is contrastive:
        assert all(torch.equal(one, other) for one, other in zip(drawn, model.masks[4:], strict=True))
    torch.manual_seed(3)
    assert all(torch.equal((torch.rand(len(mask), 16) > 0.4) / 0.6, mask) for mask in drawn)
    assert torch.rand(()) == after
    # AND the gradients equal those of the full batch with these masks
    mask = torch.cat(drawn)
    outputs = model.last(model.first(IMAGES).tanh() * mask)
    loss = loss_fn(outputs) if targets is None else loss_fn(outputs, targets)
    assert difference(model, value, (loss.detach(), torch.autograd.grad(loss, list(model.parameters())))) <= 1e-13


class Spectral(nn.Module):
    """A model whose forward writes buffers that do not depend on the samples."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(7, CLASSES))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        return self.layer(x)


@pytest.mark.parametrize("loss_fn", [contrastive, nn.MSELoss()], ids=["replay", "micro-batches"])
def test_buffers_are_written_as_by_one_forward(loss_fn):
    # GIVEN spectral normalisation, whose vectors change in each forward, a counter, and a twin
    model = Spectral()
    twin = copy.deepcopy(model)
    targets = None if loss_fn is contrastive else VALUES
    outputs = twin(IMAGES)
    loss = loss_fn(outputs) if targets is None else loss_fn(outputs, targets)
    loss.backward()
    # WHEN the batch runs in micro-batches, THEN gradients and buffers equal those of one forward
    package.accumulate(model, IMAGES, loss_fn, targets=targets, micro_batch=3)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-12, atol=1e-15)
    for (name, ours), theirs in zip(model.named_buffers(), twin.buffers(), strict=True):
        assert torch.equal(ours, theirs), name
    assert model.calls == 1


@pytest.mark.parametrize("loss_fn", [contrastive, nn.MSELoss()], ids=["replay", "micro-batches"])
def test_models_that_depend_on_all_samples_are_refused(loss_fn):
    # GIVEN BatchNorm, and a running mean of another kind
    class Running(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(7, CLASSES)
            self.register_buffer("mean", torch.zeros(7))

        def forward(self, x):
            self.mean.lerp_(x.mean(0), 0.1)
            return self.layer(x)

    torch.manual_seed(0)
    targets = None if loss_fn is contrastive else VALUES
    normalised = nn.Sequential(nn.Linear(7, CLASSES), nn.BatchNorm1d(CLASSES))
    for model, why in (
        (normalised, "1 is a BatchNorm1d in training"),
        (Running(), "the buffer mean depends on the samples"),
    ):
        # THEN micro-batches are refused, and a full batch is not
        with pytest.raises(RuntimeError, match=why):
            package.accumulate(model, IMAGES, loss_fn, targets=targets, micro_batch=4, batchnorm="refuse")
        package.accumulate(model, IMAGES, loss_fn, targets=targets, micro_batch=BATCH)
    # AND exact=False computes them with a warning
    with pytest.warns(UserWarning, match="exact=False: 1 is a BatchNorm1d"):
        package.accumulate(normalised, IMAGES, loss_fn, targets=targets, micro_batch=5, exact=False)
    # AND in eval mode micro-batches are allowed
    package.accumulate(normalised.eval(), IMAGES, loss_fn, targets=targets, micro_batch=4)


def test_a_model_that_remembers_is_refused():
    # GIVEN a model that returns different outputs at each call
    class Remembering(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x) * self.calls

    torch.manual_seed(0)
    model = Remembering(7, CLASSES)
    # THEN replay reports it before any wrong gradient exists
    with pytest.raises(RuntimeError, match="gives other outputs when the same samples"):
        package.accumulate(model, IMAGES, contrastive, micro_batch=5)
    assert model.weight.grad is None


def test_half_precision_is_summed_in_float32():
    # GIVEN a model in bfloat16 and many micro-batches
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 64), nn.GELU(), nn.Linear(64, CLASSES))
    images, values = torch.randn(256, 7), torch.randn(256, CLASSES)
    exact = copy.deepcopy(model).bfloat16().double()
    rounded_images, rounded_values = images.bfloat16(), values.bfloat16()
    nn.MSELoss()(exact(rounded_images.double()), rounded_values.double()).backward()

    def error(model):
        pairs = zip(model.parameters(), exact.parameters(), strict=True)
        return float(sum((one.grad.double() - other.grad).norm() for one, other in pairs))

    one, other = copy.deepcopy(model).bfloat16(), copy.deepcopy(model).bfloat16()
    # WHEN memlab and a plain loop accumulate them
    package.accumulate(one, rounded_images, nn.MSELoss(), targets=rounded_values, micro_batch=1)
    for image, value in zip(rounded_images.split(1), rounded_values.split(1), strict=True):
        (nn.MSELoss()(other(image), value) / 256).backward()
    # THEN memlab's sum is no worse than the full batch's gradient in bfloat16, and the plain loop's is several times worse
    at_once = copy.deepcopy(model).bfloat16()
    nn.MSELoss()(at_once(rounded_images), rounded_values).backward()
    assert error(one) <= 1.1 * error(at_once)
    assert error(other) > 3 * error(one)


def test_targets_are_counted_beyond_what_half_precision_can():
    # GIVEN outputs in bfloat16 for more targets than bfloat16 can count, and micro-batches with different counts
    torch.manual_seed(0)
    model = nn.Linear(4, 3).bfloat16()
    images, labels = torch.randn(3, 4).bfloat16(), torch.randint(0, 3, (3, 1001))
    labels[0, :900] = -100

    class Spread(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return self.inner(x)[..., None].expand(-1, -1, 1001)

    # WHEN samples run one by one; THEN the loss is that of the full batch, up to bfloat16's rounding of one loss
    value = package.accumulate(Spread(), images, nn.CrossEntropyLoss(), targets=labels, micro_batch=1)
    whole = functional.cross_entropy(model(images).detach().double()[..., None].expand(-1, -1, 1001), labels)
    assert value.dtype == torch.float32
    assert abs(float(value) - float(whole)) < 0.004 * float(whole)


def test_gradients_add_to_those_that_are_there():
    # GIVEN gradients of a previous batch
    for loss_fn, targets in ((contrastive, None), (nn.MSELoss(), VALUES)):
        model = model_for(CLASSES)
        package.accumulate(model, IMAGES, loss_fn, targets=targets, micro_batch=4)
        once = [parameter.grad.clone() for parameter in model.parameters()]
        # WHEN another batch follows; THEN the gradients are the sum
        package.accumulate(model, IMAGES, loss_fn, targets=targets, micro_batch=6)
        for parameter, gradient in zip(model.parameters(), once, strict=True):
            assert torch.allclose(parameter.grad, 2 * gradient, rtol=1e-12)


def test_nested_inputs_and_tied_weights():
    # GIVEN a model with tied weights and named input tensors, one of which has no sample dimension
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.words, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
            self.head.weight = self.words.weight

        def forward(self, tokens, parts, scale=1.0):
            hidden = self.words(tokens) * parts["factors"][0][..., None] + parts["shift"]
            return {"logits": self.head(hidden) * scale, "name": "tied"}

    torch.manual_seed(0)
    tokens = torch.randint(0, 11, (BATCH, 4), generator=numbers(1))
    inputs = {"tokens": tokens, "parts": {"factors": [torch.rand(BATCH, 4)], "shift": torch.rand(6)}, "scale": 2.0}
    model = Tied()

    def loss_fn(outputs, targets):
        return functional.cross_entropy(outputs["logits"].flatten(0, 1), targets["next"].flatten())

    targets = {"next": tokens.roll(1, 1)}
    loss = loss_fn(model(**inputs), targets)
    expected = loss.detach(), torch.autograd.grad(loss, list(model.parameters()))
    # WHEN it runs in micro-batches; THEN loss and gradients equal those of the full batch
    value = package.accumulate(model, inputs, loss_fn, targets=targets, micro_batch=5)
    assert difference(model, value, expected) <= 1e-13


@pytest.mark.parametrize("loss_fn", [contrastive, nn.MSELoss()], ids=["replay", "micro-batches"])
def test_gradients_reach_what_has_computed_the_inputs(loss_fn):
    # GIVEN inputs from another model
    torch.manual_seed(0)
    model, encoder = model_for(CLASSES), nn.Linear(7, 7)
    targets = None if loss_fn is contrastive else VALUES
    outputs = model(encoder(IMAGES))
    loss = loss_fn(outputs) if targets is None else loss_fn(outputs, targets)
    (expected,) = torch.autograd.grad(loss, encoder.weight)
    # WHEN the model runs in micro-batches; THEN gradients reach the other model
    package.accumulate(model, encoder(IMAGES), loss_fn, targets=targets, micro_batch=4)
    assert torch.allclose(encoder.weight.grad, expected, rtol=1e-12, atol=1e-15)


def test_many_steps_are_those_of_whole_batches():
    # GIVEN a model and a twin, trained for fifty steps with clipping and a learning rate schedule
    model = model_for(CLASSES)
    twin = copy.deepcopy(model)

    def train(model, backward):
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
        for _ in range(50):
            optimizer.zero_grad()
            backward(model)
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            schedule.step()

    sizes = itertools.cycle(PIECES)
    train(twin, lambda model: nn.MSELoss()(model(IMAGES), VALUES).backward())
    train(model, lambda m: package.accumulate(m, IMAGES, nn.MSELoss(), targets=VALUES, micro_batch=next(sizes)))
    # THEN their weights are equal
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-9)


def test_wrong_arguments_are_refused():
    model = model_for(CLASSES)
    cases = [
        (ValueError, "13 samples, but 26 targets", {"targets": torch.zeros(26), "loss_fn": nn.MSELoss()}),
        (ValueError, "micro_batch=0", {"micro_batch": 0}),
        (ValueError, "loss_fn returns a tensor of shape", {"loss_fn": lambda outputs: outputs}),
        (ValueError, "no samples", {"inputs": torch.zeros(0, 7)}),
        (ValueError, "first dimension must be", {"model": Given(lambda x: x.mean())}),
        (TypeError, "takes a model", {"model": lambda x: x}),
    ]
    for kind, message, arguments in cases:
        given = {"model": model, "inputs": IMAGES, "loss_fn": contrastive, "micro_batch": 4} | arguments
        with pytest.raises(kind, match=message):
            package.accumulate(**given)
    # AND an optimizer that steps within backward is refused
    model[0].weight.register_post_accumulate_grad_hook(lambda parameter: None)
    with pytest.raises(RuntimeError, match=r"0\.weight has a hook"):
        package.accumulate(model, IMAGES, contrastive, micro_batch=4)


@pytest.mark.parametrize("loss_fn", [contrastive, nn.MSELoss()], ids=["replay", "micro-batches"])
def test_autocast(loss_fn):
    # GIVEN a program under autocast, where weights that were cast without a graph would get no gradients
    model = model_for(CLASSES).float()
    images, targets = IMAGES.float(), None if loss_fn is contrastive else VALUES.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = model(images)
        loss = loss_fn(outputs) if targets is None else loss_fn(outputs, targets)
    expected = loss.detach(), torch.autograd.grad(loss, list(model.parameters()))
    # WHEN a batch runs in micro-batches within it; THEN the result equals the full batch, up to bfloat16's rounding
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = package.accumulate(model, images, loss_fn, targets=targets, micro_batch=4)
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())
    assert difference(model, value, expected) <= 0.02


def test_the_scale_of_a_scaler_is_that_of_one_batch():
    # GIVEN a scaler, and an overflow in one of the micro-batches
    for loss_fn, targets in ((contrastive, None), (nn.MSELoss(), VALUES)):
        for overflow in (False, True):
            model = model_for(CLASSES)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
            images = IMAGES.clone()
            if overflow:
                images[7] = torch.inf
            before = copy.deepcopy(model)
            # WHEN the step runs
            package.accumulate(model, images, loss_fn, targets=targets, micro_batch=4, scaler=scaler)
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            # THEN it equals the full-batch step: an overflow in one micro-batch skips it, and the scale is halved once
            if overflow:
                expected = before
            else:
                expected = copy.deepcopy(before)
                outputs = expected(images)
                loss = loss_fn(outputs) if targets is None else loss_fn(outputs, targets)
                loss.backward()
                torch.optim.SGD(expected.parameters(), 0.1).step()
            assert scaler.get_scale() == (512.0 if overflow else 1024.0)
            for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
                assert torch.allclose(ours, theirs, rtol=1e-12)


def of_library(name):
    """A Hugging Face model with its own loss, and inputs with different numbers of labels."""
    import transformers

    torch.manual_seed(0)
    tokens = torch.randint(0, 50, (9, 12), generator=numbers(1))
    padded = tokens.where(torch.arange(12) < torch.randint(1, 13, (9, 1), generator=numbers(2)), -100)
    padded[2:5] = -100
    small = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    if name == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=50, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
        )
        return transformers.GPT2LMHeadModel(config), {"input_ids": tokens, "labels": padded}
    if name == "llama":
        config = transformers.LlamaConfig(**small, intermediate_size=32, bos_token_id=0, eos_token_id=0)
        return transformers.LlamaForCausalLM(config), {"input_ids": tokens, "labels": padded, "use_cache": False}
    if name == "t5":
        config = transformers.T5Config(
            vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0
        )
        return transformers.T5ForConditionalGeneration(config), {"input_ids": tokens, "labels": padded}
    config = transformers.BertConfig(**small, intermediate_size=32, num_labels=3)
    if name == "bert":
        return transformers.BertForMaskedLM(config), {"input_ids": tokens, "labels": padded}
    if name == "bert, numbers":
        config.problem_type, config.num_labels = "regression", 1
        return transformers.BertForSequenceClassification(config), {"input_ids": tokens, "labels": torch.rand(9)}
    labels = torch.randint(0, 3, (9,), generator=numbers(3))
    return transformers.BertForSequenceClassification(config), {"input_ids": tokens, "labels": labels}


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "bert", "bert, classes", "bert, numbers"])
@pytest.mark.parametrize("size", [4, 3, 2, 1])
def test_a_models_own_loss(name, size):
    # GIVEN a model that returns the mean of its labels' losses, and samples with different numbers of labels, some with none
    model, inputs = of_library(name)
    model = model.double().eval()
    loss = model(**inputs).loss
    expected = loss.detach(), torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
    # WHEN it trains in micro-batches without a loss_fn; THEN loss and gradients equal those of the full batch
    value = package.accumulate(model, inputs, micro_batch=size)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    # Language models compute their loss in float32.
    assert difference(model, value, expected) <= (1e-12 if name in ("t5", "bert") or "," in name else 1e-6)


def test_a_models_own_loss_that_is_no_mean_is_refused():
    # GIVEN a model with its own contrastive loss, and one without a loss
    class Contrasting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model_for(CLASSES)

        def forward(self, x):
            return {"loss": contrastive(self.inner(x)).exp()}

    model = Contrasting()
    with pytest.raises(ValueError, match="own loss is no mean over samples"):
        package.accumulate(model, {"x": IMAGES}, micro_batch=4)
    with pytest.raises(ValueError, match="returns a Tensor without a loss"):
        package.accumulate(model.inner, IMAGES, micro_batch=4)
    # THEN no gradient was added, and the model stays in training mode
    assert model.training and all(parameter.grad is None for parameter in model.parameters())


class NoRoom(torch.autograd.Function):
    """Runs out of memory in backward for more rows than `room`."""

    @staticmethod
    def forward(ctx, x, room):
        ctx.room = room
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if len(gradient) > ctx.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return gradient, None


class Tight(nn.Module):
    """A model that runs out of memory in forward, or midway through backward, after the last layer has its gradients."""

    def __init__(self, backward, forward=BATCH):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.room, self.room_forward = nn.Linear(7, 16), nn.Linear(16, CLASSES), backward, forward
        self.seen = []

    def forward(self, x):
        self.seen.append(len(x))
        if len(x) > self.room_forward:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.last(NoRoom.apply(self.first(x).tanh(), self.room))


class NoHandle(Tight):
    """A model whose forward fails to create a cuBLAS handle for more rows than `room`."""

    def forward(self, x):
        self.seen.append(len(x))
        if len(x) > self.room:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
        return self.last(self.first(x).tanh())


def test_a_library_that_finds_no_memory_is_out_of_memory_too():
    # GIVEN a CUDA library that cannot allocate memory for itself
    model = NoHandle(3)
    loss = nn.MSELoss()(model.last(model.first(IMAGES).tanh()), VALUES)
    expected = loss.detach(), torch.autograd.grad(loss, list(model.parameters()))
    # WHEN micro-batches are too large; THEN smaller ones work
    value = package.accumulate(model, IMAGES, nn.MSELoss(), targets=VALUES, micro_batch=6)
    assert difference(model, value, expected) <= 1e-13
    assert max(model.seen) == 6 and model.seen[-1] <= 3
    # AND if not even one sample fits, the library's error is raised
    model.room = 0
    with pytest.raises(RuntimeError, match="CUBLAS_STATUS_ALLOC_FAILED"):
        package.accumulate(model, IMAGES, nn.MSELoss(), targets=VALUES, micro_batch=1)


@pytest.mark.parametrize("loss_fn", [contrastive, nn.MSELoss()], ids=["replay", "micro-batches"])
@pytest.mark.parametrize("room", [1, 2, 3, 5])
def test_a_piece_that_runs_out_of_memory_is_done_again_in_halves(loss_fn, room):
    # GIVEN a backward that runs out of memory after it has added to some gradients
    model = Tight(room)
    targets = None if loss_fn is contrastive else VALUES
    outputs = model.last(model.first(IMAGES).tanh())
    loss = loss_fn(outputs) if targets is None else loss_fn(outputs, targets)
    expected = loss.detach(), torch.autograd.grad(loss, list(model.parameters()))
    # WHEN micro-batches are too large; THEN no gradient is lost or counted twice
    value = package.accumulate(model, IMAGES, loss_fn, targets=targets, micro_batch=6)
    assert difference(model, value, expected) <= 1e-13
    assert max(model.seen) == 6 and min(model.seen) <= room


def test_not_even_one_sample_fits():
    # GIVEN a forward or a backward without room; THEN PyTorch's error is raised
    for model in (Tight(0), Tight(BATCH, forward=0)):
        with pytest.raises(torch.OutOfMemoryError):
            package.accumulate(model, IMAGES, nn.MSELoss(), targets=VALUES, micro_batch=4)


def test_replay_cannot_halve_what_has_drawn_random_numbers():
    # GIVEN dropout before the layer that runs out of memory
    class Drawing(Tight):
        def forward(self, x):
            return super().forward(functional.dropout(x, 0.5))

    model = Drawing(3)
    # THEN smaller micro-batches would draw other masks, so an error is raised
    with pytest.raises(torch.OutOfMemoryError, match="next batch is computed in pieces of 3"):
        package.accumulate(model, IMAGES, contrastive, micro_batch=6)


def peaks(memlab, *arguments):
    run = memlab.run(
        PYTHON, PROGRAMS / "accumulated.py", *arguments, simgpu=("--card", "h100"), memory="4GiB", preload=False
    )
    assert run.code == 0, run.errors
    return json.loads(run.output.splitlines()[-1])


@pytest.mark.parametrize("way", ["micro-batches", "replay"])
def test_memory_is_that_of_a_piece_for_any_batch(memlab, way):
    """GIVEN training on a GPU in micro-batches of 4, with batches in host memory
    WHEN its batch is 64 times larger
    THEN its peak grows by at most 1 % and, for replay, by the outputs."""
    runs = peaks(memlab, way, "--micro-batch", 4, "--batch", 8, 512)
    (small, outputs), (large, more_outputs) = runs
    extra = 0 if way == "micro-batches" else 4 * (more_outputs - outputs)
    assert large <= 1.01 * small + extra
    assert large >= small


@pytest.mark.parametrize("way", ["micro-batches", "replay"])
def test_pieces_are_as_large_as_fit(memlab, way):
    """GIVEN a batch that does not fit a GPU of 4 GiB, and a limit below 4 GiB
    WHEN memlab chooses the micro-batch size
    THEN no allocation fails, and the peak is most of the allowed memory but not above it."""
    for limit, bytes_of in (("auto", 4 << 30), ("2GiB", 2 << 30)):
        ((peak, _),) = peaks(memlab, way, "--memory", limit, "--batch", 600)
        # On the whole card, the context and a reserve are not available to micro-batches.
        assert 0.6 * bytes_of < peak < bytes_of


def test_the_example(memlab):
    # GIVEN the example, whose full batch takes 1.3 GiB; WHEN its limit is 512 MiB
    example = [ROOT / "examples" / "big_batch.py", "--batch", 2000, "--steps", 2, "--memory", "512MiB"]
    run = memlab.run(PYTHON, *example, simgpu=("--card", "h100"), memory="4GiB", preload=False)
    # THEN it trains within the limit
    assert run.code == 0, run.errors
    steps, (allocated,) = run.output.splitlines()[:2], run.output.splitlines()[2:]
    assert [line.split(":")[0] for line in steps] == ["step 0", "step 1"]
    assert 0.25 < float(allocated.split()[-2]) <= 0.5


def test_ranks_average_once_and_by_what_they_count(memlab):
    """GIVEN two ranks of DistributedDataParallel with different numbers of samples, targets and micro-batches
    WHEN each runs its samples in micro-batches, or in lockstep
    THEN mean losses cover the targets of all ranks, other losses are the ranks' own, and both ranks have the gradients."""
    for output in on_ranks(memlab, "accumulated_ranks.py"):
        assert max(output.values()) <= 1e-13, output


def on_ranks(memlab, program):
    """Output of each of two ranks."""
    command = [PYTHON, PROGRAMS / program, memlab.folder / "meeting"]
    options = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options["env"] = memlab.environment(PYTHONPATH=str(ROOT / "python"))
    ranks = [subprocess.Popen([*map(str, command), str(rank)], **options) for rank in range(2)]
    said = [rank.communicate(timeout=HANG_SECONDS) for rank in ranks]
    # (If one fails, the other loses its connection; its error is not informative.)
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(errors for _, errors in said)
    return [json.loads(output) for output, _ in said]


def test_ranks_that_have_shards(memlab):
    """GIVEN two ranks with shards of a model (fully_shard), with different numbers of samples and targets
    WHEN each runs its samples in micro-batches, the same number on both
    THEN mean losses cover the targets of all ranks, and other losses are the ranks' own, as with full batches. AND each of
    the model's three groups of parameters is averaged once. AND calls that would block a rank for ever are refused."""
    for output in on_ranks(memlab, "sharded_ranks.py"):
        assert max(output["errors"].values()) <= 1e-13, output["errors"]
        assert set(output["averaged"].values()) == {3}
        few, batchnorm, iterable = output["refused"]
        assert "a rank has 8 samples, and another has 13 pieces" in few
        assert "1 is a BatchNorm1d in training" in batchnorm and "batchnorm='frozen'" in batchnorm
        assert "an iterable does not say how many" in iterable


def test_the_older_fsdp_is_refused():
    # GIVEN the FSDP before fully_shard; THEN micro-batches are refused before ranks wait for each other
    class FullyShardedDataParallel(nn.Linear):
        pass

    with pytest.raises(RuntimeError, match=r"shard the model with torch\.distributed\.fsdp\.fully_shard"):
        package.accumulate(FullyShardedDataParallel(7, CLASSES), IMAGES, contrastive, micro_batch=4)


def test_pieces_on_the_host_are_copied_ahead(memlab):
    """GIVEN batches in host memory: pinned or not, nested, with other strides, with values that have no sample dimension
    WHEN a GPU computes them in one pass of micro-batches, in the two passes of replay, after halving a micro-batch that does
    not fit, and from an iterable
    THEN each micro-batch is correct, all but the first of a pass were copied during the previous one, and none of their
    memory remains. AND batches on the GPU are unaffected."""
    run = memlab.run(PYTHON, PROGRAMS / "copied_ahead.py", simgpu=("--card", "h100"), memory="4GiB", preload=False)
    assert run.code == 0, run.errors
    rows = [json.loads(line) for line in run.output.splitlines()]
    assert len({row["kind"] for row in rows}) == 7
    for row in rows:
        assert row["wrong"] == row["left"] == 0, row
        begins = 2 if row["way"] == "replay" else 1
        assert row["ahead"] == (0 if row["kind"] == "on the GPU" else row["pieces"] - begins), row
    # 19 samples in micro-batches of 4; the full ones are halved when they build a graph
    assert {row["pieces"] for row in rows if row["way"] == "replay"} == {5 + 5, 5 + 9}
