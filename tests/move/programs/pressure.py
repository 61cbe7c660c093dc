"""Multiplies matrices in threads on separate streams, while other threads fill the card until no memory is left.

    pressure.py SECONDS SEED [--real] [--sparse]

Blocks hold a number that is read again before they are freed, and products have a known sum. With `--real` both are
compared, which a simulated card cannot compute. Prints its work as JSON; the exit code is 1 after any difference.
"""

import json
import random
import sys
import threading
import time

import torch

until, seed, real = time.monotonic() + float(sys.argv[1]), int(sys.argv[2]), "--real" in sys.argv
SIZE = 512
done = {"products": 0, "blocks": 0, "out_of_memory": 0, "emptied": 0}
wrong: list[str] = []
lock = threading.Lock()


def count(what, times=1):
    with lock:
        done[what] += times


def ones():
    if "--sparse" not in sys.argv:
        return torch.ones(SIZE, SIZE, device="cuda")
    line = torch.arange(SIZE, device="cuda")
    return torch.sparse_coo_tensor(torch.cartesian_prod(line, line).t(), torch.ones(SIZE * SIZE, device="cuda"))


def multiply(weight):
    with torch.cuda.stream(torch.cuda.Stream()):
        while time.monotonic() < until:
            try:
                result = torch.ones(SIZE, SIZE, device="cuda")
                for _ in range(50):
                    result = weight.mm(result).div_(SIZE)
                total = result.sum().item()
            except torch.OutOfMemoryError:
                count("out_of_memory")
                continue
            count("products", 50)
            if real and total != SIZE * SIZE:
                wrong.append(f"the sum of a product is {total}")


def fill(number):
    draw = random.Random(seed * 100 + number)
    held: list[tuple[torch.Tensor, int]] = []
    with torch.cuda.stream(torch.cuda.Stream()):
        while time.monotonic() < until:
            try:
                block = torch.empty(draw.randint(1 << 9, 1 << draw.randint(10, 29)), dtype=torch.int32, device="cuda")
                value = draw.randint(0, 1 << 30)
                held.append((block.fill_(value), value))
                count("blocks")
            except torch.OutOfMemoryError:
                count("out_of_memory")
                draw.shuffle(held)
                for block, value in held[len(held) // 2 :]:
                    if real and (block[0].item() != value or block[-1].item() != value):
                        wrong.append(f"a block of {block.nbytes} bytes has another number")
                del held[len(held) // 2 :]
                if draw.random() < 0.3:
                    torch.cuda.empty_cache()
                    count("emptied")


weight = ones()
torch.cuda.synchronize()
threads = [threading.Thread(target=multiply, args=(weight,)) for _ in range(2)]
threads += [threading.Thread(target=fill, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
torch.cuda.synchronize()
print(json.dumps(done | {"wrong": wrong[:5]}))
sys.exit(bool(wrong))
