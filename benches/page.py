"""Measures the speed of a model that is larger than its share of the GPU: memlab, the resident model and other tools.

    benches/page.py [--shapes A,B,D:4096:50,E,F,H] [--methods …] [--layers 8] [--rounds 2] [--json FILE] [--markdown FILE]
    benches/page.py --short [--seconds 420]  what fits in a few minutes of a GPU, the most important first
    benches/page.py --schedule               without a GPU: the pipeline against its recurrence; the host's cost of a unit
    benches/page.py --instructions           without a GPU: instructions of the host for each unit; takes valgrind, 2 minutes
    benches/page.py --in-turn --shapes E     the resident model and paged ones by turns in one process
    benches/page.py --scale small            tries the bench, on a simulated GPU (whose kernels do nothing) or without one
    benches/page.py --report FILE…           the tables of lines measured before

Shapes are those of the reference: A bus-bound, B balanced, C compute-bound, D budgets, E many small layers, F an embedding,
G a loop, H a zoo of models whose outputs are only compared. A letter stands for its default, `A:512` is A with 512 tokens,
`D:4096:50` is D with 4096 tokens and a budget of 50 % of the weights.

Each method runs in a separate process, forked from one that has only imported PyTorch. Rounds alternate their order (ABBA).
Each process creates the same weights in host memory, measures the ceiling of pinned copies, sets up the method and runs
forwards: the first, three more, and then at least twenty that are timed, or as many as --per-shape seconds allow. A forward
lasts from the end of the previous one until its result is available. Without --no-resident, each process first measures
the resident model.

The floor is max(compute, bytes/ceiling). Compute is the resident model's forward; bytes are those that a forward needs, less
the budget for methods that have one. `memlab` (budget=None) chooses its resident weights, so its floor is the resident time.
GB/s are these bytes over the measured time. The row of a method that is not installed or fails has the reason.

With --cap, all methods have equal memory: PyTorch may reserve this much for weights and activations together. Add
--no-resident then, because a cap below the model's size excludes the resident model.
"""

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "paging"
sys.path.insert(0, str(FOLDER))
sys.path.append(str(FOLDER.parent.parent / "python"))  # The memlab built here, unless one is installed.

# (shapes, methods, one process a method, layers), the requirements first. With eight layers the floor is in proportion,
# and another tool's loss at the start of a forward counts twice. Two layers are for methods that copy serially and
# slowly.
SHORT = [
    ("A:512,B", "resident,memlab-min,diffusers-block,diffusers-leaf,mmgp", True, 8),
    ("B", "memlab,memlab-budget", False, 8),
    ("H", "memlab-min", False, None),
    ("C", "resident,memlab-min,diffusers-block,mmgp", False, 8),
    ("D:4096:50", "resident,memlab-budget,memlab-chunk,prefix,mmgp-budget,accelerate-dispatch", False, 8),
    ("E:1", "resident,memlab-min,seed,diffusers-leaf", False, None),
    ("F", "resident,memlab-min,diffusers-leaf,mmgp", False, None),
    ("A:512", "resident,seed,accelerate-cpu", False, 2),
    ("E:1024", "resident,memlab-min,diffusers-block,mmgp", False, None),
    ("H", "seed,accelerate-cpu,diffusers-leaf,mmgp", False, None),
    ("A:1,A:4096", "resident,memlab-min", True, 8),
]
# Seconds of timed forwards for each of these, unless --per-shape is given.
SHORT_PER_SHAPE = 8
PER_SHAPE = 15


class Bench:
    def __init__(self, args, folder, device):
        self.args, self.folder, self.device = args, folder, device
        self.start = time.monotonic()
        self.lines: list = []
        self.zoo: list = []
        self.left_out: list = []
        self.context = multiprocessing.get_context("fork")
        if args.json:
            Path(args.json).parent.mkdir(parents=True, exist_ok=True)

    def left(self):
        return self.args.seconds - (time.monotonic() - self.start)

    def write(self, line):
        if self.args.json:
            with open(self.args.json, "a") as file:
                file.write(json.dumps(line) + "\n")

    def take(self, line, task):
        line |= {"layers": task["layers"], "scale": task["scale"], "simulated": "SIMGPU_CARDS" in os.environ}
        line["at"] = round(time.monotonic() - self.start, 1)
        self.write(line)
        self.lines.append(line)
        said = line.get("error") or f"{sorted(line['times'])[len(line['times']) // 2] * 1e3:.1f} ms"
        print(f"[{line['at']:5.0f} s] {line['shape']}: {line['method']}: {said}", flush=True)

    def apart(self, task, each):
        """Runs `task` in a process; `each` gets its messages. Returns the reason of its end if it failed."""
        import worker

        ours, theirs = self.context.Pipe(duplex=False)
        log = os.path.join(self.folder, "log")
        process = self.context.Process(target=worker.run_apart, args=(task, theirs, log))
        process.start()
        theirs.close()
        deadline = time.monotonic() + min(self.args.timeout, max(self.left(), 1))
        try:
            while ours.poll(max(0, deadline - time.monotonic())):
                each(ours.recv())
            how = "took too long"
        except EOFError:
            how = None
        if how:
            process.kill()
        process.join()
        if process.exitcode and not how:
            code = process.exitcode
            how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        self.args.log and Path(self.args.log).write_bytes(Path(log).read_bytes())
        return how

    def run(self, method, wanted, layers, number):
        """Runs one process: a method and shapes of one model."""
        names = [shape.name for shape in wanted]
        if self.left() < self.args.least:
            self.left_out.append(f"{method.name} on {', '.join(names)}")
            return
        task = {
            "method": method.name,
            "shapes": wanted,
            "round": number,
            "layers": layers,
            "device": self.device,
            "folder": self.folder,
            "scale": self.args.scale,
            "forwards": self.args.forwards,
            "seconds": self.args.per_shape,
            "resident": not self.args.no_resident,
            "cap": self.args.cap and int(self.args.cap * (1 << 30)),
        }

        def each(line):
            names.remove(line["shape"])
            self.take(line, task)

        how = self.apart(task, each)
        for name in list(names):
            each({"shape": name, "method": method.name, "round": number, "error": how or "ended without a word"})

    def shapes(self, text, asked, together, layers, rounds):
        """Runs every method on every shape of a list, in alternating order."""
        import methods
        import shapes

        for number in range(rounds):
            groups: dict = {}
            for shape in shapes.parse(text):
                for method in methods.fitting(shape, asked):
                    one = together and not method.adapts
                    key = (shape.model, shape.percent) if one else shape.name
                    groups.setdefault((str(key), method.name), []).append(shape)
            order = list(groups.items())
            for (_, name), wanted in order if number % 2 == 0 else reversed(order):
                self.run(methods.METHODS[name], wanted, layers, number)

    def animals(self, asked):
        """Runs the zoo: each method on all models in one process."""
        import methods
        import zoo

        for name in asked or methods.METHODS:
            if self.left() < self.args.least:
                self.left_out.append(f"{name} on H")
                continue
            task = {"method": name, "device": self.device, "work": zoo.work}
            missing = list(zoo.ANIMALS)

            def each(line, missing=missing):
                missing.remove(line["model"])
                self.zoo.append(line)
                self.write({"shape": "H", **line})

            how = self.apart(task, each)
            for model in list(missing):
                each({"model": model, "method": name, "said": how or "ended without a word"})
            print(f"[{time.monotonic() - self.start:5.0f} s] H: {name}", flush=True)

    def one(self, text, asked, together, layers, rounds):
        words = [word for word in text.split(",") if word != "H"]
        if words:
            self.shapes(",".join(words), asked, together, layers, rounds)
        if "H" in text.split(","):
            self.animals(asked)


def machine(device):
    """The machine and the versions."""
    import worker
    from methods import versions

    facts = {"versions": versions(), "cpus": os.cpu_count(), "host_gib": worker.fields("/proc/meminfo")["MemTotal"] >> 30}
    return facts | {"python": sys.version.split()[0], "gpu": device}


def gpu():
    """Name and memory of the first GPU, or None. Another process queries them, because a driver in use cannot be forked."""
    import torch

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            card = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
            os.write(writer, json.dumps(card and f"{card.name}, {card.total_memory >> 20} MiB").encode())
        finally:
            os._exit(0)
    os.close(writer)
    said = os.read(reader, 4096)
    os.waitpid(child, 0)
    return json.loads(said or b"null")


def report(args, lines, animals, left_out):
    import table
    import zoo

    print("\n" + table.plain(lines))
    if animals:
        print(zoo.table(animals))
    if left_out:
        print("no time was left for: " + "; ".join(left_out))
    if args.markdown:
        text = table.markdown(lines) + ("\n" + zoo.table(animals) if animals else "")
        Path(args.markdown).write_text(text)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="A,B,C,D:4096:50,E,F,H", help="default: %(default)s")
    parser.add_argument("--methods", help="names, by commas; default: all that fit a shape")
    parser.add_argument("--layers", type=int, help="instead of as many as the reference has")
    parser.add_argument("--scale", choices=("full", "small"), default="full")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--forwards", type=int, default=20, help="timed, at most; default: %(default)s")
    parser.add_argument(
        "--per-shape", type=float, default=15, metavar="S", help="seconds of timed forwards; default: %(default)s"
    )
    parser.add_argument("--timeout", type=float, default=300, metavar="S", help="for a process; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=86400, metavar="S", help="for everything")
    parser.add_argument("--least", type=float, default=12, metavar="S", help="start no process with less of --seconds left")
    parser.add_argument("--cap", type=float, metavar="GIB", help="what PyTorch may reserve on the card, whatever the method")
    parser.add_argument("--no-resident", action="store_true", help="measure the resident model in its own processes only")
    parser.add_argument("--together", action="store_true", help="one process a method and model, for all its shapes")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--schedule", action="store_true")
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--in-turn", action="store_true")
    parser.add_argument("--json", metavar="FILE", help="lines are added to it")
    parser.add_argument("--markdown", metavar="FILE")
    parser.add_argument("--log", metavar="FILE", help="what the processes print")
    parser.add_argument("--report", metavar="FILE", nargs="+")
    args = parser.parse_args()
    args.per_shape = args.per_shape or (SHORT_PER_SHAPE if args.short else PER_SHAPE)
    return args


def main():
    args = arguments()
    if args.report:
        found = [json.loads(line) for path in args.report for line in Path(path).read_text().splitlines()]
        measured = [line for line in found if line.get("shape") not in (None, "H")]
        return report(args, measured, [line for line in found if line.get("shape") == "H"], [])
    card = gpu() if args.device != "cpu" else None
    if args.device == "cuda" and card is None:
        sys.exit("page: PyTorch finds no GPU here")
    device = "cuda" if card else "cpu"
    if args.schedule:
        import schedule

        return schedule.main(device)
    if args.instructions:
        import instructions

        return instructions.main(device)
    if device == "cpu" and args.scale == "full":
        sys.exit("page: there is no GPU here. To try the bench: --scale small")
    if args.in_turn:
        import in_turn
        import shapes

        for shape in shapes.parse(args.shapes):
            in_turn.main(shape, args.scale, device)
        return None
    with tempfile.TemporaryDirectory(prefix="memlab-page-") as folder:
        bench = Bench(args, folder, device)
        facts = machine(card)
        print(json.dumps(facts), flush=True)
        bench.write({"shape": None, "machine": facts})
        asked = args.methods.split(",") if args.methods else None
        if args.short:
            args.no_resident = True
            for text, methods, together, layers in SHORT:
                bench.one(text, methods.split(","), together, layers, 1)
        else:
            bench.one(args.shapes, asked, args.together, args.layers, args.rounds)
        report(args, bench.lines, bench.zoo, bench.left_out)


if __name__ == "__main__":
    main()
