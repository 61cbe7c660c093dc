"""`memlab report` of the ranks of a job, recorded under torchrun."""

import json
import subprocess
from pathlib import Path

import pytest
from browser import Browser, find_chromium
from conftest import PYTHON, Memlab

pytestmark = pytest.mark.xdist_group("jobs")

PROGRAMS = Path(__file__).parent / "programs"

MIB = 1 << 20
PROGRAM = PROGRAMS / "job_ranks.py"


def lines_of(*needles):
    """Numbers of the program's lines that contain these texts."""
    lines = PROGRAM.read_text().splitlines()
    return [next(number for number, line in enumerate(lines, 1) if needle in line) for needle in needles]


def record(memlab, *arguments, ranks=4):
    """Records a job into the folder `job`, which memlab creates."""
    torchrun = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks)
    return memlab.run(
        *(memlab.command, "run", "-o", "job/%h-%r.jsonl", "--", *torchrun, PROGRAM, *arguments),
        preload=False,
        devices=ranks,
    )


def report(memlab, *arguments):
    command = [memlab.command, "report", *arguments]
    environment = memlab.environment(COLUMNS=110)
    done = subprocess.run(command, capture_output=True, text=True, cwd=memlab.folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done


def job(memlab, *arguments):
    return json.loads(report(memlab, "--json", *(arguments or ["job"])).stdout)


def only(rows, **wanted):
    (row,) = [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
    return row


@pytest.fixture(scope="module")
def keeping(tmp_path_factory):
    """Four ranks; rank 3 keeps 8 MiB of each of four steps."""
    memlab = Memlab(tmp_path_factory.mktemp("keeping"))
    run = record(memlab, "keeps")
    assert run.code == 0, run.errors
    return memlab


def test_a_rank_that_keeps_tensors_is_named_with_line_and_bytes(keeping):
    """GIVEN a job whose folder memlab created, in which rank 3 keeps tensors
    WHEN memlab reports the folder
    THEN it names rank, line and bytes, equal to those of the ranks' own reports."""
    traces = sorted((keeping.folder / "job").glob("*.jsonl"))
    told = job(keeping)
    assert [row["rank"] for row in told["ranks"]] == [0, 1, 2, 3]
    assert [row["local_rank"] for row in told["ranks"]] == [row["device"] for row in told["ranks"]] == [0, 1, 2, 3]
    own = [keeping.report(trace) for trace in traces]
    peaks = [report["devices"][0]["peak_allocated_bytes"] for report in own]
    assert [row["devices"][0]["peak_allocated_bytes"] for row in told["ranks"]] == peaks
    assert [row["pid"] for row in told["ranks"]] == [report["process"]["pid"] for report in own]

    # The peak is in the last step, before it keeps more.
    kept = {"rank": 3, "bytes": 3 * 8 * MIB, "difference_bytes": 3 * 8 * MIB}
    line = only(told["differences"], kind="line")
    assert (line["file"], [line["line"]]) == (str(PROGRAM), lines_of("torch.empty(8 << 20"))
    assert (line["median_bytes"], line["ranks"]) == (0, [kept])
    peak = only(told["differences"], kind="peak")
    assert peak["ranks"] == [{"rank": 3, "bytes": peaks[3], "difference_bytes": peaks[3] - peaks[0]}]
    assert peaks[3] - peaks[0] == 3 * 8 * MIB

    growing = only(told["findings"], kind="leak")
    assert growing["ranks"] == [3]
    (row,) = told["ranks"][3]["devices"][0]["growth"]
    assert (row["bytes_per_step"], row["line"]) == (8 * MIB, line["line"])
    figure = only(told["figures"], name="peak_allocated_bytes")
    assert (figure["least"], figure["median"], figure["most"], figure["most_rank"]) == (peaks[0], peaks[0], peaks[3], 3)


def test_the_text_fits_one_screen(keeping):
    """WHEN the job is printed
    THEN it fits one screen, names rank and line, and ends with working commands."""
    printed = report(keeping, "job").stdout
    assert len(printed.splitlines()) < 45
    assert "Imbalance: rank 3 held 24.0 MiB more than the median rank at the peak" in printed
    assert f"job_ranks.py:{lines_of('torch.empty(8 << 20')[0]}  <module>" in printed
    commands = [line.split(": ", 1)[1] for line in printed.splitlines() if ": memlab " in line]
    assert [command.split()[1] for command in commands] == ["report", "diff"]
    for command in commands:
        parts = [keeping.command, *command.split()[1:]]
        done = subprocess.run(parts, capture_output=True, text=True, cwd=keeping.folder, env=keeping.environment())
        assert done.returncode == 0, done.stderr


def test_files_of_one_job_are_a_job_and_others_are_not(keeping):
    """WHEN traces are named
    THEN several traces of one job give a job report; a single trace and a moment give their usual report."""
    traces = [str(trace) for trace in sorted((keeping.folder / "job").glob("*.jsonl"))]
    assert job(keeping, *traces) == job(keeping, str(keeping.folder / "job"))
    two = job(keeping, traces[0], traces[3])
    assert [row["rank"] for row in two["ranks"]] == [0, 3]
    assert (two["job"]["missing_ranks"], two["job"]["first_missing_ranks"]) == (2, [1, 2])
    assert job(keeping, traces[3])["process"]["rank"] == 3
    again = job(keeping, traces[3], traces[3])
    assert [report["process"]["rank"] for report in again] == [3, 3]
    at_peak = job(keeping, "--at", "peak", *traces)
    assert [report["process"]["rank"] for report in at_peak] == [0, 1, 2, 3]


def test_the_newest_job_of_a_folder_is_reported(keeping, tmp_path):
    """GIVEN a folder with the traces of a job and an older trace of another run
    WHEN memlab reports it
    THEN it shows the job, and a line mentions the other trace."""
    older = tmp_path / "older.jsonl"
    older.write_text('{"memlab":1,"pid":1,"command":["a"],"rank":0,"world_size":4,"start_unix_ns":1}\n')
    for trace in (keeping.folder / "job").glob("*.jsonl"):
        (tmp_path / trace.name).write_bytes(trace.read_bytes())
    done = report(keeping, "--json", tmp_path)
    assert len(json.loads(done.stdout)["ranks"]) == 4
    assert "(the newest job; 1 other trace left out)" in done.stderr


def test_the_first_rank_out_of_memory_and_the_others_then(memlab):
    """GIVEN a job in which rank 1 asks for more than its device has, while the others wait
    WHEN memlab reports it
    THEN rank 1 is the first out of memory, and the others held their memory between steps."""
    run = record(memlab, "fails")
    assert run.code != 0
    told = job(memlab)
    oom = told["out_of_memory"]
    assert (oom["rank"], oom["ranks"], oom["requested_bytes"]) == (1, [1], 4 << 30)
    assert [oom["line"]] == lines_of("torch.empty(4 << 30")
    assert oom["allocated_bytes"] > 6 << 30
    # Bytes of the ranks at the end of their last step: no gradient, and no activation.
    then = {row["rank"]: row for row in oom["others"]}
    assert sorted(then) == [0, 2, 3]
    for rank, row in then.items():
        summary = only(told["ranks"], rank=rank)
        assert (row["state"], row["steps_ended"]) == ("running", 4)
        assert row["allocated_bytes"] == summary["devices"][0]["allocated_bytes"]
    assert told["findings"][0]["kind"] == "out_of_memory"
    printed = report(memlab, "job").stdout
    assert "Out of memory: rank 1 first" in printed and "When the first rank ran out of memory" in printed


@pytest.mark.long
def test_a_context_on_the_device_of_another_rank_is_found(memlab):
    """GIVEN a job in which rank 2 creates a tensor before it calls set_device
    WHEN memlab reports it
    THEN the report shows its context on the device of rank 0, with the line."""
    run = record(memlab, "strays")
    assert run.code == 0, run.errors
    (stray,) = job(memlab)["stray_contexts"]
    assert (stray["rank"], stray["owner"], stray["device"]) == (2, 0, 0)
    assert [stray["line"]] == lines_of("flag =")
    assert stray["bytes"] >= 256 * MIB
    assert "rank 2 held" in report(memlab, "job").stdout


@pytest.mark.skipif(find_chromium() is None, reason="no Chromium: see test_html.py")
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_of_a_job_in_a_browser(keeping, dark):
    """WHEN the job is written as a page and opened
    THEN the page has no errors, fetches nothing, fits the window, and shows the figures of the JSON."""
    page_file = keeping.folder / "job.html"
    report(keeping, "--html", page_file, "job")
    told = job(keeping)
    with Browser() as browser:
        page = browser.open(page_file, dark=dark)
        assert page.complaints == []
        assert page.requests == [page_file.as_uri()]
        for width in (1280, 400):
            page.resize(width)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        cells = (
            "Array.from(document.querySelector('table[aria-label=ranks]').tBodies[0].rows, row => row.cells[{}].dataset.v)"
        )
        peaks = [row["devices"][0]["peak_allocated_bytes"] for row in told["ranks"]]
        assert [int(value) for value in page.evaluate(cells.format(1))] == peaks
        # The rank with the highest peak has the strongest colour.
        strongest = (
            "Array.from(document.querySelectorAll('.ranks [stroke-opacity=\"1.00\"]'), it => it.parentNode.textContent)"
        )
        (title,) = page.evaluate(strongest)
        assert title.startswith("rank 3 on ")
        # And its line is as thick as a row is high.
        width = page.evaluate("getComputedStyle(document.querySelector('.ranks g path')).strokeWidth")
        assert float(width.removesuffix("px")) > 10
        page.evaluate("document.querySelectorAll('table[aria-label=ranks] th button')[1].click()")
        assert [int(value) for value in page.evaluate(cells.format(1))] == sorted(peaks, reverse=True)
