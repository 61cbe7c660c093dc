"""Training with PyTorch Lightning for `memlab plan`: `planned_lightning.py KIND --batch N`.

Prints PyTorch's own peaks at the end, as JSON: of training, evaluation and saving, and of the whole run.
"""

import argparse
import json
import os
import tempfile

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from planned import GPT, Residual
from planned_phases import EPOCHS, EVALUATIONS, Peaks, words
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

STEPS = 12


class Language(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.gpt = GPT()

    def loss(self, tokens):
        return self.gpt(tokens)

    def training_step(self, batch, _index):
        loss = self.loss(batch)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _index):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)]


class Pictures(Language):
    def __init__(self):
        lightning.LightningModule.__init__(self)
        self.layers = nn.Sequential(
            Residual(3, 32, 1), Residual(32, 64, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
        )

    def loss(self, batch):
        pictures, kinds = batch
        return functional.cross_entropy(self.layers(pictures), kinds)


class Data(lightning.LightningDataModule):
    def __init__(self, kind, batch, evaluated):
        super().__init__()
        self.kind, self.batch, self.evaluated = kind, batch, evaluated

    def samples(self, count):
        if self.kind == "gpt":
            return words(count)
        return TensorDataset(torch.rand(count, 3, 32, 32), torch.randint(0, 10, (count,)))

    def train_dataloader(self):
        return DataLoader(self.samples(self.batch * STEPS), self.batch, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.samples(self.evaluated * EVALUATIONS), self.evaluated)


class Measured(lightning.Callback):
    """Resets PyTorch's counters at the end of each phase."""

    def __init__(self, peaks):
        self.peaks = peaks

    def on_validation_start(self, *_arguments):
        self.peaks.end("training")

    def on_validation_epoch_end(self, *_arguments):
        self.peaks.end("evaluation")

    def on_train_epoch_start(self, *_arguments):
        self.peaks.end("saving")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["gpt", "cnn"])
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--clip", type=float)
    parser.add_argument("--evaluated-every", type=int, help="steps; default: each epoch")
    parser.add_argument("--saved-every", type=int, help="steps; default: with each evaluation")
    parser.add_argument("--folder")
    options = parser.parse_args()
    peaks = Peaks()
    with tempfile.TemporaryDirectory() as folder:
        folder = options.folder or folder
        saving = ModelCheckpoint(
            os.path.join(folder, "checkpoints"), save_last=True, every_n_train_steps=options.saved_every
        )
        trainer = lightning.Trainer(
            accelerator="gpu", devices=1, max_epochs=EPOCHS, precision=options.precision, gradient_clip_val=options.clip,
            accumulate_grad_batches=options.accumulate, val_check_interval=options.evaluated_every,
            logger=CSVLogger(folder), default_root_dir=folder, callbacks=[saving, Measured(peaks)],
        )  # fmt: skip
        module = Language() if options.kind == "gpt" else Pictures()
        trainer.fit(module, datamodule=Data(options.kind, options.batch, 4 * options.batch))
    peaks.end("end")
    print(json.dumps(peaks.most | {"whole": peaks.whole}))


if __name__ == "__main__":
    main()
