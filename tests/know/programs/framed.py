"""Trains with a framework: `framed.py KIND [SETTINGS]`, where KIND is `trainer`, `evaluation`, `lightning`, `accelerate` or
`imports`, and SETTINGS a dict of arguments for the framework, of `rows`, of `samples`, and of `argmax`: the Trainer's
evaluation keeps the best word instead of all logits. `ADVICE` is the code of an advice to offload activations.
Prints PyTorch's peak."""

import ast
import contextlib
import os
import sys
import tempfile

import accelerate
import lightning
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader

KIND = sys.argv[1]
SETTINGS = ast.literal_eval(sys.argv[2]) if len(sys.argv) > 2 else {}
ROWS = SETTINGS.pop("rows", 8)
SAMPLES = SETTINGS.pop("samples", 4 * ROWS)
REDUCE = (lambda logits, _labels: logits.argmax(-1)) if SETTINGS.pop("argmax", False) else None
STEPS = 4
ADVICE = {}
exec(os.environ.get("ADVICE", ""), ADVICE)
WORDS, CONTEXT = 512, 128


def llama():
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            num_hidden_layers=6, hidden_size=128, intermediate_size=352, num_attention_heads=4, vocab_size=WORDS
        )
    )


def samples(count):
    return [{"input_ids": row, "labels": row} for row in torch.randint(WORDS, (count, CONTEXT))]


def with_trainer(folder, evaluates):
    arguments = transformers.TrainingArguments(
        folder, max_steps=STEPS, per_device_train_batch_size=ROWS, per_device_eval_batch_size=ROWS, report_to=[],
        save_strategy="no", dataloader_num_workers=0, **SETTINGS,
    )  # fmt: skip
    rows = samples(SAMPLES)
    metrics = (lambda results: {"rows": len(results.predictions)}) if evaluates else None
    trainer = ADVICE.get("OffloadingTrainer", transformers.Trainer)(
        llama(),
        arguments,
        train_dataset=rows,
        eval_dataset=rows * 8,
        compute_metrics=metrics,
        preprocess_logits_for_metrics=REDUCE,
    )
    trainer.evaluate() if evaluates else trainer.train()


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(6)))

    @ADVICE.get("offloaded", lambda step: step)
    def training_step(self, _batch, _index):
        return self.layers(torch.randn(ROWS, 256, device="cuda")).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def with_lightning(folder):
    trainer = lightning.Trainer(
        accelerator="gpu", devices=1, max_steps=STEPS, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, default_root_dir=folder, **SETTINGS,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(range(STEPS)))


def with_loop(accelerator):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(6)))
    model = model if accelerator else model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    if accelerator:
        model, optimizer = accelerator.prepare(model, optimizer)
    for _ in range(STEPS):
        with accelerator.accumulate(model) if accelerator else contextlib.nullcontext():
            loss = model(torch.randn(ROWS, 256, device="cuda")).square().mean()
            accelerator.backward(loss) if accelerator else loss.backward()
            optimizer.step()
            optimizer.zero_grad()


with tempfile.TemporaryDirectory() as folder:
    if KIND in ("trainer", "evaluation"):
        with_trainer(folder, KIND == "evaluation")
    elif KIND == "lightning":
        with_lightning(folder)
    else:
        with_loop(accelerate.Accelerator(**SETTINGS) if KIND == "accelerate" else None)
print(torch.cuda.max_memory_allocated())
