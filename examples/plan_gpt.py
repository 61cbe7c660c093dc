"""Finds the largest batch of a GPT on several cards, and the largest holders of memory. Needs no GPU and no weights:

    python examples/plan_gpt.py
    python examples/plan_gpt.py --layers 32 --width 4096 --heads 32 --context 2048 --cards h100 h200

Needs `pip install cloudpickle`, because the loss is defined in the main program.
"""

import argparse

import memlab
import torch
import torch.nn.functional as F
from train_gpt import GPT

VOCABULARY = 50257
ALLOCATORS = ["", "expandable_segments:True"]


def next_token(logits, ids):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--cards", nargs="+", default=["24GiB", "a100-40gb", "h100"], help="names or sizes")
    arguments = parser.parse_args()

    with torch.device("meta"):
        model = GPT(VOCABULARY, arguments.width, arguments.layers, arguments.heads, arguments.context)
        ids = torch.zeros(1, arguments.context, dtype=torch.long)
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{count / 1e6:.0f} million parameters, AdamW, autocast to bfloat16")
    report = memlab.inspect(model, ids, loss=next_token, amp=torch.bfloat16, source="simulated")

    print(f"\n{'largest batch':24}", *(f"{card:>12}" for card in arguments.cards))
    for allocator in ALLOCATORS:
        batches = [report.largest_batch(card, allocator=allocator) for card in arguments.cards]
        print(f"{allocator or 'default allocator':24}", *(f"{batch:12}" for batch in batches))

    card = arguments.cards[0]
    batch = max(1, report.largest_batch(card))
    peak = report.peak(batch, card)
    print(f"\nAt batch {batch} most is allocated in {peak.phase}, {peak.allocated / 2**30:.1f} GiB:")
    for title, holding in [("categories", peak.categories), ("lines", peak.lines), ("layers", peak.layers)]:
        largest = sorted(holding.items(), key=lambda item: -item[1])[:3]
        print(f"{title:12}", ", ".join(f"{name} {nbytes / 2**30:.1f} GiB" for name, nbytes in largest))


if __name__ == "__main__":
    main()
