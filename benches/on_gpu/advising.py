"""Compares the forecasts of `memlab advise` with measurements of the changed programs."""

import json
import sys

from harness import ROOT, Failed

# Maximum relative errors of the peak and of the step time.
PEAK, TIME = 0.03, 0.10


def check(harness, folder):
    result = folder / "advice.json"
    simulated = ["--simulated"] if harness.simulated else []
    command = [sys.executable, ROOT / "benches" / "advice.py", "--json", result, *simulated]
    run = harness.run(folder, *command, memlab=False, simulated=False, timeout=280)  # It starts the simulated GPU itself.
    if run.code != 0:
        raise Failed(run.errors[-3000:])
    harness.log("     " + run.output.strip().replace("\n", "\n     "))
    rows = json.loads(result.read_text())
    harness.note("advice", rows)
    wrong = []
    for row in rows:
        for what, most in (("error", PEAK), ("time_error", TIME)):
            if row[what] is not None and abs(row[what]) > most:
                figure = "peak" if what == "error" else "time of a step"
                wrong.append(f"{row['kind']}, {row['advice']}: {figure} is off by {100 * row[what]:+.1f} %")
    return wrong
