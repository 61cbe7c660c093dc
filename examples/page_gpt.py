"""Runs a GPT-2 with room for a third of its weights on the GPU. Copies the others while the GPU computes.

Needs `pip install transformers`. The weights are random, so nothing is downloaded. Without a GPU, the same pipeline runs on
the CPU, and a thread makes the copies:

    python examples/page_gpt.py
    python examples/page_gpt.py --layers 48 --width 1600 --budget 1GiB --batch 8 --context 512
"""

import argparse
import time

import memlab
import torch
from transformers import GPT2Config, GPT2LMHeadModel


def build(layers, width):
    config = GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=width // 64,
        vocab_size=8192,
        bos_token_id=0,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    return GPT2LMHeadModel(config).eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--budget", default="128MiB", help="GPU memory for weights")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=16, help="how many to generate")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"

    model = build(arguments.layers, arguments.width)
    torch.set_grad_enabled(False)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    print(f"{weights / 2**20:.0f} MiB of weights, a budget of {arguments.budget} on {device}")
    ids = torch.randint(0, 8192, (arguments.batch, arguments.context))
    unpaged = model(input_ids=ids).logits

    # Makes each transformer block one unit, copied as a whole.
    block = sum(parameter.numel() for parameter in model.transformer.h[0].parameters())
    memlab.page(model, device, max_layer_size=block, budget=arguments.budget)
    for number in range(1, 7):
        begin = time.perf_counter()
        logits = model(input_ids=ids).logits.cpu()
        print(f"forward {number}: {(time.perf_counter() - begin) * 1e3:.0f} ms, then {model.memlab.stage}")
    print(f"largest difference to the unpaged model: {(logits - unpaged).abs().max():g}")
    print(model.memlab)

    begin = time.perf_counter()
    result = model.generate(ids, max_new_tokens=arguments.tokens, do_sample=False, pad_token_id=0)
    seconds = time.perf_counter() - begin
    count = result.shape[1] - ids.shape[1]
    print(f"{count} tokens generated, {seconds / count * 1e3:.0f} ms each")
    print(f"counters: {model.memlab.counters}")


if __name__ == "__main__":
    main()
