"""Training with steps of different lengths: `sequences.py KIND --batch N --length L`, or `--lengths FILE` with one length in
each line. Prints PyTorch's own peaks at the end, as JSON."""

import argparse
import json
from pathlib import Path

import planned
import torch
from torch import nn

KINDS = ["gpt", "gpt-eager", "gpt-amp", "hf-gpt2"]


def language_model(kind, longest):
    planned.CONTEXT = longest
    if kind != "hf-gpt2":
        return planned.GPT(eager="eager" in kind)
    import transformers

    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=3, n_embd=planned.WIDTH, n_head=planned.HEADS, vocab_size=2000, n_positions=longest)
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--length", type=int)
    parser.add_argument("--lengths", type=Path)
    parser.add_argument("--context", type=int, default=1024)
    options = parser.parse_args()
    lengths = list(map(int, options.lengths.read_text().split())) if options.lengths else [options.length] * 12
    model = language_model(options.kind, options.context).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for length in lengths:
        tokens = torch.randint(0, 2000, (options.batch, length)).cuda()
        with torch.autocast("cuda", torch.bfloat16, enabled="amp" in options.kind):
            loss = model(tokens, labels=tokens).loss if options.kind.startswith("hf") else model(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    print(json.dumps([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]))


if __name__ == "__main__":
    main()
