"""Hugging Face's GPT-2 with its Trainer, from random weights: nothing is downloaded."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        row = torch.arange(index, index + 64)
        return {"input_ids": row, "labels": row}


config = GPT2Config(n_layer=3, n_head=4, n_embd=128, vocab_size=1000, n_positions=64, bos_token_id=0, eos_token_id=0)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=4,
        per_device_train_batch_size=4,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Numbers())
    result = trainer.train()
assert result.global_step == 4
assert torch.cuda.max_memory_allocated() > 8 << 20
print("ok")
