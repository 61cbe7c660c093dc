"""Trains on batches from two workers until stdin is closed, then checks that unmodified tensors have not changed."""

import select
import sys

import torch


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        return torch.full((64,), float(index % 7))


def main():
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2)
    model = torch.nn.Sequential(torch.nn.Linear(64, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 64)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    kept = [torch.randint(256, (size,), dtype=torch.uint8) for size in (100, 3 << 20, 50 << 20, 20 << 20)]
    on_device = [tensor.cuda() for tensor in kept]
    for step, batch in enumerate(loader):
        loss = model(batch.cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        on_device[step % 4] = on_device[step % 4].clone() if step % 8 < 4 else kept[step % 4].cuda()
        if step == 2:
            print("ready", flush=True)
        if select.select([sys.stdin], [], [], 0)[0]:
            break
    wrong = [tensor.numel() for tensor, there in zip(kept, on_device, strict=True) if not torch.equal(tensor, there.cpu())]
    print(wrong or "right")


if __name__ == "__main__":
    main()
