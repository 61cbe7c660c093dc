"""Uses the GPU briefly, then exits in the way that argv[1] names."""

import multiprocessing
import os
import sys

import torch

tensor = torch.ones(1 << 20, device="cuda")


def child():
    print("child", torch.zeros(1 << 18, device="cuda").numel())


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((8,), index)


def main():
    match sys.argv[1]:
        case "return":
            pass
        case "exit":
            sys.exit(3)
        case "exit-300":
            sys.exit(300)
        case "os._exit":
            os._exit(4)
        case "exception":
            raise RuntimeError("as asked")
        case "abort":
            os.abort()
        case "oom":
            torch.empty(1 << 40, device="cuda")
        case "workers":
            loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=4)
            print("sum", sum(int(batch.cuda().numel()) for batch in loader))
        case "spawn":
            process = multiprocessing.get_context("spawn").Process(target=child)
            process.start()
            process.join()
            sys.exit(process.exitcode)
        case "subprocess":
            import subprocess

            print(subprocess.run(["sh", "-c", "echo from a shell; exit 5"], check=False).returncode)
            try:
                subprocess.run(["/nonexistent/program"], check=False)
            except FileNotFoundError:
                print("not found")
    print("done", flush=True)


if __name__ == "__main__":
    main()
