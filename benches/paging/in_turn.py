"""Runs forwards of the resident model and of paged ones alternately in one process.

Where the host limits a model, processes of one kind differ by more than the cost of paging.
"""

import copy
import statistics
import time

ROUNDS, FORWARDS = 40, 5  # Of each model; the first forward of a round, after another model's, is not counted.
BUDGETS = {"all stay": "60GiB", "None": None}


def main(shape, scale, device):
    """Prints medians and lower quartiles, the host's part of the medians, and their ratios to the resident model's."""
    import memlab
    import shapes
    import torch

    model, call = shapes.build(shape, scale, None), shapes.inputs(shape, scale, device)
    models = {"resident": copy.deepcopy(model).to(device)}
    models |= {name: memlab.page(copy.deepcopy(model), device, budget=budget) for name, budget in BUDGETS.items()}
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    taken: dict[str, list[float]] = {name: [] for name in models}
    host: dict[str, list[float]] = {name: [] for name in models}
    with torch.no_grad():
        for one in models.values():
            for _ in range(8):  # Traced, measured, and some to warm up.
                one(*call)
        wait()
        for _ in range(ROUNDS):
            for name, one in models.items():
                for number in range(FORWARDS):
                    start = time.perf_counter()
                    one(*call)
                    asked = time.perf_counter()
                    wait()
                    if number:
                        taken[name].append((time.perf_counter() - start) * 1e3)
                        host[name].append((asked - start) * 1e3)
    plan = memlab.plan_of(models["None"])
    print(f"{shape.letter} {shape.model} {shape.tokens}; budget=None copies {plan.streamed_bytes / 1e6:.0f} MB in a forward")
    resident = statistics.median(taken["resident"]), lower_quartile(taken["resident"])
    for name, times in taken.items():
        median, quartile = statistics.median(times), lower_quartile(times)
        ratios = f"{median / resident[0]:.3f}, {quartile / resident[1]:.3f} times the resident model"
        print(f"  {name:9}{median:7.2f} ms ({quartile:.2f}), host {statistics.median(host[name]):.2f}: {ratios}")


def lower_quartile(times):
    return statistics.quantiles(times, n=4)[0]
