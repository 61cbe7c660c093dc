"""offload_activations: training inside its block is bit-identical to training without it."""

import contextlib
import copy
import threading

import pytest
import torch
from offloaded import STEPS, WAYS, around_forwards, check, mlp, numbers, own_loss, same, squares, state, tokens, train
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

block = pytest.fixture(params=WAYS)(around_forwards)


# The zoo. -----------------------------------------------------------------------------------------------------------------


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Attention(nn.Module):
    """Attention with q, k and v in one storage, with or without rotary positions."""

    def __init__(self, width, *, is_rotary=False):
        super().__init__()
        self.qkv, self.out, self.is_rotary = nn.Linear(width, 3 * width), nn.Linear(width, width), is_rotary

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (one.view(batch, length, 4, -1).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        if self.is_rotary:
            angles = torch.arange(length, dtype=x.dtype)[:, None] / torch.arange(1, width // 8 + 1, dtype=x.dtype)

            def turned(one):
                left, right = one.chunk(2, -1)
                cos, sin = angles.cos(), angles.sin()
                return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)

            q, k = turned(q), turned(k)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(attended.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    def __init__(self, width, *, is_llama=False, dropout=0.1):
        super().__init__()
        norm = Norm if is_llama else nn.LayerNorm
        self.first, self.second, self.attention = norm(width), norm(width), Attention(width, is_rotary=is_llama)
        self.up, self.gate, self.down = nn.Linear(width, 64), nn.Linear(width, 64), nn.Linear(64, width)
        self.act = functional.silu if is_llama else functional.gelu
        self.dropout, self.is_llama = nn.Dropout(dropout), is_llama

    def forward(self, x):
        x = x + self.dropout(self.attention(self.first(x)))
        hidden = self.act(self.up(self.second(x)))
        return x + self.dropout(self.down(hidden * self.gate(x) if self.is_llama else hidden))


class Text(nn.Module):
    """A transformer whose last layer shares the embedding's weights."""

    def __init__(self, *, layers=3, is_llama=False, is_checkpointed=None):
        super().__init__()
        self.table = nn.Embedding(50, 32)
        self.layers = nn.ModuleList([Layer(32, is_llama=is_llama) for _ in range(layers)])
        self.reentrant = is_checkpointed

    def forward(self, ids):
        x = self.table(ids)
        for layer in self.layers:
            x = layer(x) if self.reentrant is None else checkpoint(layer, x, use_reentrant=self.reentrant)
        return functional.linear(x, self.table.weight)

    def loss(self, step):
        ids = tokens(4, 12 + step % 2)
        return functional.cross_entropy(self(ids).flatten(0, 1), ids.roll(1, 1).flatten())


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8),
        )  # fmt: skip

    def forward(self, x):
        return functional.relu_(self.body(x) + x)


def images(memory_format=torch.contiguous_format):
    return numbers(4, 3, 12, 12).to(memory_format=memory_format)


class Vision(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.layers = nn.Conv2d(3, 32, 4, 4), nn.ModuleList([Layer(32, dropout=0.0) for _ in range(2)])

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return x.mean(1)


class Contrastive(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text, self.scale = Vision(), Text(layers=2), nn.Parameter(torch.tensor(2.0))

    def loss(self, step):
        image = functional.normalize(self.image(images()), dim=-1)
        text = functional.normalize(self.text(tokens(4, 6)).mean(1)[:, :32], dim=-1)
        return functional.cross_entropy(self.scale.exp() * image @ text.T, torch.arange(4))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.LSTM(16, 24, 2, batch_first=True, dropout=0.2), nn.Linear(24, 4)

    def loss(self, step):
        return self.head(self.inner(numbers(4, 9 + step, 16))[0]).logsumexp(-1).mean()


def residual():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), Residual(), Residual(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def hugging_face(name):
    transformers = pytest.importorskip("transformers")
    common = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0}
    if name == "gpt2":
        config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=32, **common)
        return transformers.GPT2LMHeadModel(config).train()
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, **common
    )
    return transformers.LlamaForCausalLM(config).train()


def of_images(model, step):
    return model(images()).square().mean()


def labelled(model, step):
    return model(input_ids=tokens(4, 16), labels=tokens(4, 16)).loss


def in_bfloat16(model, step):
    with torch.autocast("cpu", torch.bfloat16):
        return own_loss(model, step)


ZOO = {
    "mlp float32": (mlp, squares(torch.float32)),
    "mlp float64": (lambda: mlp(torch.float64), squares(torch.float64)),
    "mlp bfloat16": (lambda: mlp(torch.bfloat16), squares(torch.bfloat16)),
    "resnet": (residual, of_images),
    "resnet channels_last": (
        lambda: residual().to(memory_format=torch.channels_last),
        lambda model, step: model(images(torch.channels_last)).square().mean(),
    ),
    "lstm": (Recurrent, own_loss),
    "gpt with dropout": (Text, own_loss),
    "llama": (lambda: Text(is_llama=True), own_loss),
    "vit": (Vision, of_images),
    "clip": (Contrastive, own_loss),
    "autocast": (Text, in_bfloat16),
    "checkpoint": (lambda: Text(is_checkpointed=False), own_loss),
    "checkpoint reentrant": (lambda: Text(is_checkpointed=True), own_loss),
    "hugging face gpt2": (lambda: hugging_face("gpt2"), labelled),
    "hugging face llama": (lambda: hugging_face("llama"), labelled),
}


@pytest.mark.parametrize("name", ZOO)
def test_trainings(block, name):
    """GIVEN a model and a twin
    WHEN the model trains in the block, and the twin without it
    THEN losses, gradients and buffers are equal at each step, bit for bit."""
    make, loss_of = ZOO[name]
    torch.manual_seed(0)
    check(block, make(), loss_of, steps=8)
    # AND the block did work.
    few = name in ("lstm", "checkpoint reentrant")
    assert block.copies and (block.repeats or not block.recompute or few), (block.copies, block.repeats)


def test_adversarial_training(block):
    # GIVEN two models, each with an optimizer, trained against each other
    def run(around):
        torch.manual_seed(0)
        maker, judge = mlp(), nn.Sequential(nn.Linear(8, 64), nn.LeakyReLU(0.2, inplace=True), nn.Linear(64, 1))
        optimizers = [torch.optim.Adam(model.parameters(), 0.01) for model in (maker, judge)]
        seen = []
        for step in range(STEPS):
            with around():
                made = maker(numbers(48, 32, seed=step))
                loss = (
                    functional.softplus(judge(made.detach())).mean()
                    + functional.softplus(-judge(numbers(48, 8, seed=step))).mean()
                )
            optimizers[1].zero_grad()
            loss.backward()
            optimizers[1].step()
            with around():
                fooled = functional.softplus(-judge(made)).mean()
            optimizers[0].zero_grad()
            fooled.backward()
            optimizers[0].step()
            seen += [loss.detach(), fooled.detach(), *(one if one is None else one.clone() for one in state([maker, judge]))]
        return seen

    # THEN both match training without the block
    same(run(block), run(contextlib.nullcontext))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(block, backend):
    # GIVEN a compiled model within the block
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 8))

    def loss_of(model, step):
        return torch.compile(model, backend=backend)(numbers(48, 32, seed=step)).square().mean()

    check(block, model, loss_of)


# Programs. ----------------------------------------------------------------------------------------------------------------


def test_forwards_before_their_backwards(block):
    # GIVEN three forwards in a row, the middle one with another shape, WHEN their backwards run in another order
    def run(model, around):
        seen = []
        for _ in range(STEPS):
            losses = []
            for index, rows in enumerate((48, 32, 48)):
                with around():
                    losses.append(model(numbers(rows, 32, seed=index)).square().mean())
            for index in (1, 2, 0):
                model.zero_grad()
                losses[index].backward()
                seen += [losses[index].detach(), *state(model)]
        return seen

    model = mlp()
    # THEN each matches its result without the block
    same(run(model, block), run(model, contextlib.nullcontext))


def test_one_block_around_many_steps(block):
    # GIVEN nested blocks that mix forwards, backwards, optimizer steps and evaluations
    def run(around):
        torch.manual_seed(0)
        model, seen = Text(), []
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        for _ in range(2):
            with around():
                for step in range(STEPS):
                    optimizer.zero_grad()
                    with around():
                        loss = model.loss(step)
                        loss.backward()
                    with torch.no_grad():
                        seen.append(model.eval().loss(step))
                    model.train()
                    optimizer.step()
                    seen += [loss.detach(), *(one if one is None else one.clone() for one in state(model))]
        return seen

    same(run(block), run(contextlib.nullcontext))


def test_control_flow_that_changes(block):
    # GIVEN a model that skips random layers, with changing shapes
    class Skipping(Text):
        def loss(self, step):
            layers, order = self.layers, torch.randperm(3)[: 1 + step % 3].tolist()
            self.layers = nn.ModuleList([layers[index] for index in order])
            loss = super().loss(step)
            self.layers = layers
            return loss

    torch.manual_seed(0)
    check(block, Skipping(), own_loss, steps=15)


@pytest.mark.parametrize("at", ["forward", "backward"])
def test_failures(block, at):
    # GIVEN a model that sometimes fails midway
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, is_failing):
            ctx.is_failing = is_failing
            if is_failing and at == "forward":
                raise ValueError("in the middle")
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            if ctx.is_failing:
                raise ValueError("in the middle")
            return gradient.clone(), None

    model = mlp()
    twin = copy.deepcopy(model)

    def step(model, index, is_failing, around):
        model.zero_grad()
        with around():
            hidden = Failing.apply(model[:3](numbers(48, 32, seed=index)), is_failing)
            loss = model[3:](hidden).square().mean()
        loss.backward()
        return [loss.detach(), *state(model)]

    # WHEN training continues; THEN the other steps match those without the block
    for index in range(12):
        if index % 3 == 2:
            with pytest.raises(ValueError, match="in the middle"):
                step(model, index, True, block)
        else:
            same(step(model, index, False, block), step(twin, index, False, contextlib.nullcontext))


def test_threads(block):
    # GIVEN eight threads that train equal models at once, each in its own blocks
    expected = train(mlp_seeded(), squares(torch.float32), contextlib.nullcontext, 12)
    results, start = {}, threading.Barrier(8)

    def work(index):
        model = mlp_seeded()
        start.wait()
        try:
            results[index] = train(model, squares(torch.float32), block, 12)
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in range(8):
        assert isinstance(results[index], list), results[index]
        same(results[index], expected)


def mlp_seeded():
    model = mlp()
    for index, parameter in enumerate(model.parameters()):
        parameter.data = numbers(*parameter.shape, seed=index) / 8
    return model
