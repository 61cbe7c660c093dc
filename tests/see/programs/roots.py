"""Several models of one class, held by variables and attributes, by closures, or by a list.

The program calls each before it creates the next, because memlab searches for uncalled modules at intervals.
"""

import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        return self.inner(x)


class Trainer:
    def __init__(self):
        self.encoder = Net(40).cuda()

    def step(self):
        return self.encoder(torch.ones(4, 40, device="cuda"))


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder = Net(50)

    def training_step(self):
        return self.decoder(torch.ones(4, 50, device="cuda"))


def main():
    D = Net(60).cuda()
    kept.append(D(torch.ones(4, 60, device="cuda")))
    listed = []
    for width in (70, 80):
        listed.append(Net(width).cuda())
        kept.append(call(listed[-1]))


def shared():
    C = Net(90).cuda()

    def step():
        kept.append(C(torch.ones(4, 90, device="cuda")))

    step()
    given(Net(100).cuda())()


def given(A):
    def step():
        kept.append(A(torch.ones(4, 100, device="cuda")))

    return step


def call(net):
    return net(torch.ones(4, net.inner.in_features, device="cuda"))


kept = []
G = Net(30).cuda()
kept.append(call(G))
trainer = Trainer()
kept.append(trainer.step())
whole = Whole().cuda()
kept.append(whole.training_step())
main()
shared()
alone = nn.Sequential(nn.Linear(8, 8)).cuda()
kept.append(alone(torch.ones(4, 8, device="cuda")))
