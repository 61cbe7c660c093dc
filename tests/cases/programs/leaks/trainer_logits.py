"""A Hugging Face Trainer whose evaluation collects the logits of all batches on the GPU."""

import tempfile

import torch
import truth
from torch import nn
from transformers import Trainer, TrainingArguments

WORDS = 8000


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 64), nn.Linear(64, WORDS)

    def forward(self, input_ids, labels):
        logits = self.head(self.words(input_ids))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def samples(count):
    rows = torch.randint(WORDS, (count, 64))
    return [{"input_ids": row, "labels": row} for row in rows]


def accuracy(prediction):
    return {"accuracy": (prediction.predictions.argmax(-1) == prediction.label_ids).mean()}


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(folder, max_steps=8, eval_steps=4, eval_strategy="steps", report_to=[], save_strategy="no")
    Trainer(Language(), arguments, train_dataset=samples(64), eval_dataset=samples(160), compute_metrics=accuracy).train()
truth.show()
