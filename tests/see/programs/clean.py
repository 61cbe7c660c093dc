"""Loops whose memory rises for good reasons, each in a process. A report must not call any of them growth."""

import os
import sys
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.checkpoint

DEVICE = "cuda"


def mlp(width=256, depth=4):
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)]).to(DEVICE)


def train(net, optimizer, x):
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def batch(rows=64, width=256):
    return torch.randn(rows, width, device=DEVICE)


def warm_up():
    """Gradients, optimizer state and workspaces appear in the first steps."""
    net = mlp()
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(20):
        train(net, optimizer, batch())


def full_cache():
    """A cache of teacher outputs fills in the first of twenty epochs."""
    teacher, net, cache = mlp(), mlp(), {}
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(20):
        for index in range(12):
            x = batch(512)
            if index not in cache:
                with torch.no_grad():
                    cache[index] = teacher(x)
            loss = (net(x) - cache[index]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def unfreezing():
    """Layers are unfrozen one by one, with one optimizer."""
    net = mlp(512, 8)
    optimizer = torch.optim.AdamW(net.parameters())
    net.requires_grad_(False)
    for step in range(40):
        if step % 5 == 0:
            net[7 - step // 5].requires_grad_(True)
        train(net, optimizer, batch(64, 512))


def ring_buffer():
    """The last eight outputs are kept, as replay buffers do."""
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    kept = deque(maxlen=8)
    for _ in range(80):
        x = batch(1024)
        train(net, optimizer, x)
        kept.append(net(x).detach())


def growing_lengths():
    """A curriculum: each batch is larger than the one before."""
    net = mlp()
    optimizer = torch.optim.AdamW(net.parameters())
    for step in range(40):
        train(net, optimizer, batch(64 + 32 * step))


def evaluation_after_epochs():
    """An evaluation with larger batches follows each epoch."""
    net = mlp()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(5):
        for _ in range(10):
            train(net, optimizer, batch())
        with torch.no_grad():
            sum(net(batch(2048)).mean().item() for _ in range(10))


def lbfgs():
    """LBFGS keeps a history of directions up to its size."""
    net = mlp(128, 2)
    optimizer = torch.optim.LBFGS(net.parameters(), history_size=5, max_iter=2)
    x = batch(64, 128)

    def closure():
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss

    for _ in range(40):
        optimizer.step(closure)


def metrics():
    """A metric collects detached outputs, and is reset after each epoch."""
    net = mlp()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(4):
        collected = []
        for _ in range(20):
            x = batch(1024)
            train(net, optimizer, x)
            collected.append(net(x).detach())
        torch.cat(collected).mean().item()


def moving_average():
    """An exponential moving average of the weights."""
    net = mlp()
    optimizer = torch.optim.AdamW(net.parameters())
    average = torch.optim.swa_utils.AveragedModel(net)
    for _ in range(30):
        train(net, optimizer, batch())
        average.update_parameters(net)


def accumulation():
    """Gradients of four micro-batches are summed before each step."""
    net = mlp()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(20):
        for _ in range(4):
            (net(batch()).square().mean() / 4).backward()
        optimizer.step()
        optimizer.zero_grad()


def adversarial():
    """Two networks with an optimizer each, two forwards before a backward."""
    generator, critic = mlp(), mlp()
    of_generator, of_critic = (torch.optim.Adam(net.parameters()) for net in (generator, critic))
    for _ in range(30):
        fake = generator(batch())
        loss = critic(fake.detach()).mean() - critic(batch()).mean()
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        loss = -critic(fake).mean()
        of_generator.zero_grad()
        loss.backward()
        of_generator.step()


def generation():
    """One key-value cache grows with the text."""
    attention = nn.MultiheadAttention(256, 4, batch_first=True).to(DEVICE).eval()
    with torch.no_grad():
        for _ in range(3):
            text = batch(8).unsqueeze(1)
            for _ in range(40):
                text = torch.cat([text, attention(text[:, -1:], text, text)[0]], 1)


def attribution():
    """Gradients with respect to inputs, without an optimizer, of which maps are kept on the CPU."""
    net = mlp(512, 4)
    maps = []
    for _ in range(20):
        x = batch(256, 512).requires_grad_()
        net(x).sum().backward()
        maps.append(x.grad.abs().sum(1).cpu())


def inference():
    """Requests of different sizes."""
    net = mlp()
    with torch.no_grad():
        for request in range(60):
            net(batch(64 + request * 37 % 512)).sum().item()


def hand_written_update():
    """A training without an optimizer."""
    net = mlp()
    for _ in range(30):
        loss = net(batch()).square().mean()
        for parameter, gradient in zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters())), strict=True):
            parameter.data.sub_(gradient, alpha=0.1)


def checkpointing():
    """Blocks are computed again in backward."""
    net = mlp(512, 6)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(20):
        x = batch(256, 512)
        for block in net:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        loss = F.mse_loss(x, torch.zeros_like(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def views_of_a_sample():
    """A loss that needs the results of three forwards at once."""
    net = mlp(512, 4)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(20):
        views = [net(batch(512, 512)) for _ in range(3)]
        loss = sum(F.mse_loss(one, other) for one in views for other in views if one is not other)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def through_time():
    """A cell that is called for each moment of a sequence before one backward."""
    cell, head = nn.GRUCell(256, 256).to(DEVICE), nn.Linear(256, 1).to(DEVICE)
    optimizer = torch.optim.AdamW([*cell.parameters(), *head.parameters()])
    for _ in range(20):
        state, loss = torch.zeros(512, 256, device=DEVICE), 0
        for _ in range(8):
            state = cell(batch(512), state)
            loss = loss + head(state).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def prefetching():
    """The next batch is on the GPU before the current one is used."""
    net = mlp()
    optimizer = torch.optim.AdamW(net.parameters())
    coming = batch(4096)
    for _ in range(20):
        x, coming = coming, batch(4096)
        train(net, optimizer, x)


PROGRAMS = [
    warm_up,
    full_cache,
    unfreezing,
    ring_buffer,
    growing_lengths,
    evaluation_after_epochs,
    lbfgs,
    metrics,
    moving_average,
    accumulation,
    adversarial,
    generation,
    attribution,
    inference,
    hand_written_update,
    checkpointing,
    views_of_a_sample,
    through_time,
    prefetching,
]

for program in PROGRAMS:
    pid = os.fork()
    if pid == 0:
        program()
        print(program.__name__, os.getpid(), flush=True)
        sys.exit()
    os.waitpid(pid, 0)
