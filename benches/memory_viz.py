"""Measures PyTorch's own viewer on the run of memlab's dashboard benchmark.

    benches/memory_viz.py TRACE [EVENTS]

exports TRACE (`memlab export --format memory_viz`, with at most EVENTS events, 1,000,000 by default). It then runs
`python -m torch.cuda._memory_viz trace_plot` on the result, as users do to open it in a browser. Prints the seconds and peak
memory of that command, and the size of the page for the browser.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MEMLAB = ROOT / "target" / "release" / "memlab"


def main():
    trace, events = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        pickle, page = Path(folder) / "snapshot.pickle", Path(folder) / "page.html"
        options = ["--format", "memory_viz", "--at", "end", "--events", str(events), "-o", str(pickle)]
        subprocess.run([str(MEMLAB), "export", trace, *options], check=True, stderr=subprocess.DEVNULL)
        before = time.monotonic()
        tool = [sys.executable, "-m", "torch.cuda._memory_viz", "trace_plot", str(pickle), "-o", str(page)]
        subprocess.run(tool, check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - before
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
        print(
            f"torch.cuda._memory_viz trace_plot of {events} events: {seconds:.1f} s, peak memory {peak} MiB, "
            f"for a page of {page.stat().st_size / 1e6:.0f} MB; the snapshot has {pickle.stat().st_size / 1e6:.0f} MB"
        )


if __name__ == "__main__":
    main()
