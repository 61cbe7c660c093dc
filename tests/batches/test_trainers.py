"""Hugging Face's and Lightning's trainers with memlab's batches give the same results as without."""

import memlab as package
import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
WORDS, LENGTH = 50, 12


class Texts(torch.utils.data.Dataset):
    """Texts, a few with few labels, so that a mean of means would be wrong."""

    def __init__(self, count=26):
        numbers = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(0, WORDS, (count, LENGTH), generator=numbers)
        self.labels = self.tokens.clone()
        for index in range(count):
            self.labels[index, : index % LENGTH] = -100

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


def gpt():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    return transformers.GPT2LMHeadModel(config).double()


class InPieces(package.BigBatches, transformers.Trainer):
    micro_batch = 4


class OwnLoss:
    """A custom loss that ignores the Trainer's counts: a mean over labels."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        logits = model(input_ids=inputs["input_ids"]).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), inputs["labels"].flatten())
        return (loss, logits) if return_outputs else loss


class OwnLossPlain(OwnLoss, transformers.Trainer):
    pass


class OwnLossInPieces(package.BigBatches, OwnLoss, transformers.Trainer):
    micro_batch = 4


def train(kind, folder, **options):
    model = gpt()
    arguments = transformers.TrainingArguments(
        folder,
        per_device_train_batch_size=13,
        max_steps=4,
        learning_rate=0.01,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    trainer = kind(model=model, args=arguments, train_dataset=Texts())
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return losses, [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}], ids=["steps of one", "accumulated"])
@pytest.mark.parametrize(
    "kinds", [(transformers.Trainer, InPieces), (OwnLossPlain, OwnLossInPieces)], ids=["model's", "own"]
)
def test_the_trainer_in_pieces_trains_as_without(tmp_path, kinds, options):
    # GIVEN Hugging Face's Trainer with varying label counts, WHEN its batches run in micro-batches
    plain, pieces = kinds
    losses, weights = train(plain, tmp_path / "plain", **options)
    got, trained = train(pieces, tmp_path / "pieces", **options)
    # THEN it logs the same losses and ends with the same weights
    assert got == pytest.approx(losses, rel=1e-6)
    for one, other in zip(trained, weights, strict=True):
        assert (one - other).abs().max() <= 1e-9


def test_unsupported_trainers_are_refused(tmp_path):
    # GIVEN several processes without a micro-batch size, or DeepSpeed, WHEN a step begins, THEN an error explains it
    class Accelerator:
        distributed_type, num_processes = "MULTI_GPU", 2

    trainer = InPieces.__new__(InPieces)
    trainer.accelerator, trainer.micro_batch = Accelerator(), None
    with pytest.raises(RuntimeError, match="set micro_batch, to the same value in all"):
        trainer.training_step(nn.Linear(1, 1), {})
    trainer.accelerator.distributed_type = "DEEPSPEED"
    with pytest.raises(RuntimeError, match="does not support DEEPSPEED"):
        trainer.training_step(nn.Linear(1, 1), {})


def test_lightning_offloads_activations(monkeypatch):
    # GIVEN training with Lightning, with and without the callback
    lightning = pytest.importorskip("lightning.pytorch")
    from memlab._activations import offloaded_forward

    monkeypatch.setattr(offloaded_forward, "SMALLEST", 1 << 10)
    begun = []
    plain = offloaded_forward.OffloadedForward.__init__
    monkeypatch.setattr(
        offloaded_forward.OffloadedForward, "__init__", lambda self, *rest: (begun.append(self), plain(self, *rest))[1]
    )

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 1))

        def training_step(self, batch, _index):
            return self.layers(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    def trained(callbacks):
        model = Model()
        data = torch.randn(96, 32, generator=torch.Generator().manual_seed(1))
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=16)
        lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=callbacks,
        ).fit(model, loader)  # fmt: skip
        return list(model.parameters())

    expected = trained([])
    # WHEN it trains, THEN each step's activations are offloaded, and weights are bit-identical
    got = trained([package.offload_callback("4KiB", device="cpu")])
    assert len(begun) >= 6
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))
