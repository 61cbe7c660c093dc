"""`memlab.big_batches_callback`: Lightning trains the same in micro-batches as without."""

import memlab as package
import pytest
import torch
from torch import nn
from torch.nn import functional

lightning = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.plugins.precision import MixedPrecision  # noqa: E402

pytestmark = pytest.mark.usefixtures("in_double_precision")
CLASSES = 3


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, CLASSES))
        self.seen, self.hooks = [], []

    def forward(self, x):
        self.seen.append(len(x))
        return self.layers(x)

    def training_step(self, batch, batch_idx):
        images, labels = batch["images"], batch["labels"]
        outputs = self(images)
        loss = self.loss(outputs, labels)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log_dict({"right": (outputs.argmax(1) == labels).double().mean()}, on_step=False, on_epoch=True)
        self.log("count", float(len(images)), reduce_fx="sum", on_step=False, on_epoch=True)
        self.log("largest", outputs.max(), reduce_fx="max", on_step=False, on_epoch=True)
        return loss

    def loss(self, outputs, labels):
        return functional.cross_entropy(outputs, labels)

    def on_before_zero_grad(self, optimizer):
        self.hooks.append(("zero", self.norm()))

    def on_after_backward(self):
        self.hooks.append(("backward", self.norm()))

    def norm(self):
        return sum(float(one.grad.norm()) for one in self.parameters() if one.grad is not None)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.01)


class Ignoring(Model):
    """A mean over the labels that are not ignored, whose number differs between micro-batches."""

    def loss(self, outputs, labels):
        return functional.cross_entropy(outputs, labels, ignore_index=0)


class Coupled(Model):
    """Contrasts each sample with all others, through a layer with dropout."""

    def loss(self, outputs, labels):
        return functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


class Scaled(MixedPrecision):
    """Lightning's loss scaling, without half precision."""

    def __init__(self):
        super().__init__("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2))

    def autocast_context_manager(self):
        return torch.autocast("cpu", enabled=False)


def data():
    numbers = torch.Generator().manual_seed(1)
    images, labels = torch.randn(47, 6, generator=numbers), torch.randint(0, CLASSES, (47,), generator=numbers)
    return [{"images": image, "labels": label} for image, label in zip(images, labels, strict=True)]


def trained(kind, callbacks=(), **options):
    model = kind()
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=list(callbacks), log_every_n_steps=1, **options,
    )  # fmt: skip
    trainer.fit(model, torch.utils.data.DataLoader(data(), batch_size=13))
    return model, {name: float(value) for name, value in trainer.callback_metrics.items()}


KINDS = {
    "mean": (Model, {}),
    "mean over labels": (Ignoring, {"weight": lambda batch: (batch["labels"] != 0).sum()}),
    "coupled": (Coupled, {"loss": "coupled"}),
}
OPTIONS = {
    "plain": dict,
    "accumulated": lambda: {"accumulate_grad_batches": 3},
    "clipped": lambda: {"gradient_clip_val": 0.1},
    "scaled": lambda: {"plugins": [Scaled()]},
    "scaled, accumulated, clipped": lambda: {
        "plugins": [Scaled()], "accumulate_grad_batches": 2, "gradient_clip_val": 0.1, "gradient_clip_algorithm": "value"
    },
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", KINDS)
def test_a_training_in_pieces_is_as_without(name, options):
    # GIVEN training with Lightning, in batches of 13 and a remainder of 8
    kind, arguments = KINDS[name]
    model, metrics = trained(kind, **OPTIONS[options]())
    # WHEN its batches run in micro-batches
    ours, got = trained(kind, [package.big_batches_callback(4, **arguments)], **OPTIONS[options]())
    # THEN weights equal those of full batches
    for one, other in zip(ours.parameters(), model.parameters(), strict=True):
        assert (one - other).abs().max() <= 1e-12  # 8 steps of AdamW, which divides by small numbers.
    # AND so do logged values and hook arguments
    assert got.keys() == metrics.keys()
    if name == "mean over labels":
        del got["right"], metrics["right"]  # Weighted like the loss.
    assert got == pytest.approx(metrics, rel=1e-12)
    assert [hook for hook, _ in ours.hooks] == [hook for hook, _ in model.hooks]
    assert [norm for _, norm in ours.hooks] == pytest.approx([norm for _, norm in model.hooks], rel=1e-10)
    # AND no forward has more samples than a micro-batch
    assert max(ours.seen) == 4 and max(model.seen) == 13
    # AND the module is as before
    assert not {"training_step", "log", "forward"} & vars(ours).keys()


def test_gradients_of_one_step():
    # GIVEN one step of plain SGD, WHEN it runs in micro-batches; THEN it is the same up to rounding
    class Descending(Ignoring):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1.0)

    model, _ = trained(Descending, max_steps=1)
    weight = KINDS["mean over labels"][1]["weight"]
    ours, _ = trained(Descending, [package.big_batches_callback(4, weight=weight)], max_steps=1)
    for one, other in zip(ours.parameters(), model.parameters(), strict=True):
        assert (one - other).abs().max() <= 1e-14


def test_bfloat16():
    # GIVEN Lightning's bf16-mixed, WHEN a step runs in micro-batches; THEN weights are equal up to bfloat16's rounding
    model, _ = trained(Model, max_steps=1, precision="bf16-mixed")
    ours, _ = trained(Model, [package.big_batches_callback(4)], max_steps=1, precision="bf16-mixed")
    for one, other in zip(ours.parameters(), model.parameters(), strict=True):
        assert one.dtype == torch.float64 and (one - other).abs().max() <= 0.021  # Of AdamW's first step of 0.01.


def test_inexact_uses_are_refused():
    class Extra(Model):
        def training_step(self, batch, batch_idx):
            return {"loss": super().training_step(batch, batch_idx), "outputs": 1}

    class Manual(Model):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

    class Normalised(Model):
        def __init__(self):
            super().__init__()
            self.layers.append(nn.BatchNorm1d(CLASSES))

    class Past(Coupled):
        def training_step(self, batch, batch_idx):
            return self.loss(self.layers(batch["images"]), batch["labels"])

    cases = [
        (Coupled, {}, ValueError, r"own loss is no mean over samples.*big_batches_callback\(loss='coupled'\)"),
        (Extra, {}, ValueError, "returns 'outputs', which pieces have not"),
        (Manual, {}, RuntimeError, "automatic_optimization.*: call memlab.accumulate"),
        (
            Normalised,
            {},
            RuntimeError,
            "4 is a BatchNorm1d in training.* batchnorm='frozen' keeps its statistics, 'ghost' takes",
        ),
        (Past, {"loss": "coupled"}, RuntimeError, r"does not call self\(…\)"),
    ]
    for kind, arguments, error, message in cases:
        with pytest.raises(error, match=message):
            trained(kind, [package.big_batches_callback(4, **arguments)])
    with pytest.raises(ValueError, match="loss='sum'"):
        package.big_batches_callback(loss="sum")
    with pytest.raises(ValueError, match="weight is for"):
        package.big_batches_callback(loss="coupled", weight=len)
    # AND several devices
    with pytest.raises(RuntimeError, match="for one device, and this is a DDPStrategy"):
        trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False)
        package.big_batches_callback(4).on_train_start(trainer, Model())


def test_hooks_on_parameters_see_the_gradient_of_the_batch():
    # GIVEN a hook that clamps a parameter's gradient; WHEN batches run in micro-batches; THEN it ran once for each batch
    class Clamped(Model):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.layers[0].weight.register_hook(self.clamp)

        def clamp(self, gradient):
            self.calls += 1
            return gradient.clamp(-0.01, 0.01)

    plain, ours = trained(Clamped, []), trained(Clamped, [package.big_batches_callback(4)])
    for one, other in zip(ours[0].parameters(), plain[0].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    assert ours[0].calls == plain[0].calls
