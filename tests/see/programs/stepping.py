"""Trains with its own post-step hooks on optimizers, which PyTorch calls one after the other.

    stepping.py own|thread|inside|forked

own: the hooks are added after memlab has started. thread, inside: memlab starts while PyTorch calls them, in another thread
or in this one. forked: a child trains too. Prints which hooks were called.
"""

import os
import sys
import threading

import recording
import torch
import torch.nn as nn
from torch.optim.optimizer import register_optimizer_step_post_hook

calls = []


def trained(device):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(model, optimizer, steps=2):
    for _ in range(steps):
        model(torch.ones(2, 4, device=model[0].weight.device)).sum().backward()
        optimizer.step()


def call_new_modules():
    """Calls new modules and waits until memlab has inspected them."""
    for _ in range(3):
        known = recording.layers()
        layer = nn.Linear(4, 4).cuda()
        layer(torch.ones(2, 4, device="cuda"))
        recording.until(lambda known=known: is_named(known), "the layer is named")


def is_named(known):
    return any(name is not None for number, name in recording.layers().items() if number not in known)


def own():
    model, optimizer = trained("cuda")
    model(torch.ones(2, 4, device="cuda"))
    handles = [register_optimizer_step_post_hook(lambda *_, name=name: calls.append(name)) for name in "ab"]
    train(model, optimizer)
    call_new_modules()
    train(model, optimizer)
    print(calls, [handle.id for handle in handles])
    for handle in handles:
        handle.remove()


def thread():
    inside, go_on = threading.Event(), threading.Event()

    def wait(*_):
        inside.set()
        go_on.wait()

    register_optimizer_step_post_hook(wait)
    register_optimizer_step_post_hook(lambda *_: calls.append("last"))
    # A single step: memlab could add its hook between two.
    worker = threading.Thread(target=train, args=(*trained("cpu"), 1))
    worker.start()
    inside.wait()
    call_new_modules()
    go_on.set()
    worker.join()
    call_new_modules()
    train(*trained("cuda"), 3)
    print(calls)


def inside():
    register_optimizer_step_post_hook(lambda *_: call_new_modules())
    register_optimizer_step_post_hook(lambda *_: calls.append("last"))
    model, optimizer = trained("cpu")
    train(model, optimizer)
    call_new_modules()
    train(*trained("cuda"))
    print(calls)


def forked():
    train(*trained("cuda"))
    register_optimizer_step_post_hook(lambda *_: calls.append("last"))
    child = os.fork()
    parameter = nn.Parameter(torch.zeros(4))  # Autograd's threads are not forked.
    parameter.grad = torch.zeros(4)
    torch.optim.SGD([parameter], lr=0.1).step()
    os.write(1, f"{'parent' if child else 'child'} {calls}\n".encode())  # One write, unbuffered, so that lines do not mix.
    if not child:
        os._exit(0)
    print(os.waitpid(child, 0)[1])


globals()[sys.argv[1]]()
