"""C++ owns tensors that Python has seen, and drops them in a thread while memlab searches the heap for modules."""

import sys
import threading
import time

import torch
import torch.nn as nn

sys.setswitchinterval(1e-6)
done, rounds = False, 0
holders = [nn.Parameter(torch.ones(1)) for _ in range(100)]


def work():
    global rounds
    while not done:
        for holder in holders:
            holder.grad = torch.ones(1)  # C++ owns it from here on and drops the previous one.
        rounds += 1


thread = threading.Thread(target=work)
thread.start()
for _ in range(100):
    nn.Sequential(nn.Linear(8, 8)).cuda()(torch.ones(8, 8, device="cuda"))
    before = rounds
    while rounds < before + 2 and thread.is_alive():
        time.sleep(0.001)
done = True
thread.join()
