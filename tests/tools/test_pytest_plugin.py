"""The pytest plugin: limits on the GPU memory of tests, and its reports of those that exceed them."""

import json
import re
import textwrap
import xml.etree.ElementTree as xml

import pytest
from conftest import ON_GPU, ROOT

MIB = 1 << 20
USAGE_ERROR = 4

# Beginning of the test files below.
HEAD = """
    import gc, pytest, torch, unittest

    MIB = 1 << 20
    KEPT = []

    def mebibytes(number):
        return torch.empty(number * MIB, dtype=torch.uint8, device="cuda")
"""


class Outcome:
    """Printed output of a pytest run, and the result of each test."""

    def __init__(self, run, report):
        self.code, self.text = run.code, run.output + run.errors
        self.tests, self.properties = {}, {}
        if report.exists():
            for case in xml.parse(report).iter("testcase"):
                states = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
                self.tests[case.get("name")] = states[0] if states else "passed"
                found = {entry.get("name"): entry.get("value") for entry in case.iter("property")}
                self.properties[case.get("name")] = found

    def message(self, test):
        """Text under the heading of a failed test."""
        (text,) = re.findall(
            rf"^_+ (?:ERROR at teardown of )?(?:\w+\.)?{re.escape(test)} _+\n(.*?)(?=^[_=]{{3}})", self.text, re.M | re.S
        )
        return text


@pytest.fixture
def run_pytest(memlab):
    def run_pytest(source, *options, head=HEAD, preload=False, **more):
        (memlab.folder / "test_it.py").write_text(textwrap.dedent(head) + textwrap.dedent(source))
        report = memlab.folder / "report.xml"
        report.unlink(missing_ok=True)
        env = {"PYTHONPATH": str(ROOT / "python"), "COLUMNS": "120"} | more.pop("env", {})
        command = (
            "-m",
            "pytest",
            "-p",
            "memlab.pytest_plugin",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
            "--rootdir=.",
        )
        return Outcome(memlab.python(*command, *options, preload=preload, env=env, memory="1GiB", **more), report)

    return run_pytest


PEAKS = """
    @pytest.fixture
    def eight():
        return mebibytes(8)

    @pytest.mark.gpu_memory("12MiB")
    def test_within(eight):
        mebibytes(4)

    @pytest.mark.gpu_memory(12 * MIB - 1)
    def test_beyond(eight):
        held = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
        del held

    @pytest.mark.gpu_memory("1MiB")
    class TestOfAClass:
        def test_beyond_that_of_its_class(self):
            mebibytes(2)

        @pytest.mark.gpu_memory(limit="2MiB")
        def test_with_its_own(self):
            mebibytes(2)

    @pytest.mark.gpu_memory("1MiB")
    @pytest.mark.parametrize("size", [1, 2])
    def test_parametrised(size):
        mebibytes(size)

    @pytest.mark.gpu_memory("1KiB")
    def test_layers():
        model = torch.nn.Sequential(torch.nn.Linear(64, 4096), torch.nn.ReLU()).cuda()
        model(torch.ones(256, 64, device="cuda"))

    @pytest.mark.gpu_memory("1GiB")
    def test_measured(record_property):
        mebibytes(16)
        torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_allocated()
        result = torch.nn.functional.relu(torch.ones(1000, 1001, device="cuda")).sum()
        record_property("pytorch", torch.cuda.max_memory_allocated() - start)
        record_property("before", 16 * MIB)

    @pytest.mark.gpu_memory(0)
    def test_that_fails_itself():
        assert mebibytes(1) is None
"""


@pytest.mark.parametrize("preload", [False, True], ids=["loaded late", "preloaded"])
def test_tests_that_need_too_much_fail(run_pytest, preload):
    # GIVEN tests with limits on their peak; WHEN they run
    outcome = run_pytest(PEAKS, preload=preload)
    # THEN those beyond the limit fail, to the byte, with their own fixtures counted
    assert outcome.code == 1
    assert outcome.tests == {
        "test_within": "passed",
        "test_beyond": "failure",
        "test_beyond_that_of_its_class": "failure",
        "test_with_its_own": "passed",
        "test_parametrised[1]": "passed",
        "test_parametrised[2]": "failure",
        "test_layers": "failure",
        "test_measured": "passed",
        "test_that_fails_itself": "failure",
    }
    # AND the message names the sizes, in bytes if they would look the same, and the lines
    message = outcome.message("test_beyond")
    assert f"needed {12 * MIB} bytes of GPU memory at its peak on cuda:0, and its limit is {12 * MIB - 1} bytes" in message
    first, second = message[message.index("by line:") :].splitlines()[1:3]
    assert first.split()[:2] == ["8.00", "MiB"] and "test_it.py:8 mebibytes" in first and "torch.empty" in first
    assert second.split()[:2] == ["4.00", "MiB"] and " test_beyond  held = torch.empty" in second
    # AND the layers
    message = outcome.message("test_layers")
    assert re.search(r"by layer:\n +[\d.]+ MiB  0  Linear", message)
    # AND a test that fails for another reason reports that one
    assert "assert tensor" in outcome.message("test_that_fails_itself")
    # AND a report for CI has PyTorch's peak
    found = outcome.properties["test_measured"]
    assert int(found["memlab_peak_bytes"]) == max(int(found["pytorch"]), int(found["before"]))


LEAKS = """
    def test_before():
        KEPT.append(mebibytes(2))

    @pytest.mark.gpu_leak(0)
    def test_leaking():
        KEPT.append(mebibytes(4))

    @pytest.mark.gpu_leak("4MiB")
    def test_within():
        KEPT.append(mebibytes(4))

    @pytest.mark.gpu_leak
    def test_replacing():
        KEPT[-1] = None
        KEPT[-1] = mebibytes(4)

    @pytest.mark.gpu_leak
    def test_cycle():
        cycle = [mebibytes(4)]
        cycle.append(cycle)

    @pytest.fixture
    def returned():
        return [mebibytes(4)]

    @pytest.fixture
    def yielded():
        held = mebibytes(4)
        yield held

    @pytest.mark.gpu_leak
    def test_fixtures(returned, yielded):
        returned.append(mebibytes(1))

    @pytest.mark.gpu_leak
    def test_workspace():
        one = torch.ones(500, 500, device="cuda")
        one @ one

    class TestUnittest(unittest.TestCase):
        def setUp(self):
            self.held = mebibytes(4)

        @pytest.mark.gpu_leak
        def test_unittest(self):
            self.more = mebibytes(4)

    @pytest.mark.gpu_leak
    def test_that_fails_itself():
        held = mebibytes(4)
        assert held is None

    @pytest.mark.gpu_leak
    def test_that_is_skipped():
        pytest.skip("no reason")

    @pytest.mark.gpu_leak
    @pytest.mark.xfail(strict=True)
    def test_that_is_expected_to_fail():
        held = mebibytes(4)
        assert held is None
"""


@pytest.mark.parametrize("preload", [False, True], ids=["loaded late", "preloaded"])
def test_tests_that_leave_memory_fail(run_pytest, preload):
    # GIVEN tests that must leave no memory allocated; WHEN they run
    outcome = run_pytest(LEAKS, preload=preload)
    # THEN only the leaking one has an error, and not those whose memory is freed by fixtures, the garbage collector, or
    # pytest, nor those for which PyTorch keeps a workspace
    assert {name: state for name, state in outcome.tests.items() if state != "passed"} == {
        "test_leaking": "error",
        "test_that_fails_itself": "failure",
        "test_that_is_skipped": "skipped",
        "test_that_is_expected_to_fail": "skipped",
    }
    # AND the error names the bytes and the line
    message = outcome.message("test_leaking")
    assert "left 4.00 MiB of GPU memory allocated on cuda:0, and its limit is 0 B" in message
    assert re.search(r"by line:\n +4.00 MiB  test_it.py:8 mebibytes  return torch.empty", message)


SCOPES = """
    @pytest.fixture(scope="module")
    def shared():
        yield mebibytes(32)

    @pytest.fixture(scope="session")
    def late():
        yield mebibytes(8)

    @pytest.mark.gpu_memory("1MiB")
    @pytest.mark.gpu_leak
    def test_first(shared):
        mebibytes(1)

    @pytest.mark.gpu_leak
    def test_asks_late(request):
        request.getfixturevalue("late")

    @pytest.mark.gpu_leak
    def test_grows(shared):
        shared.held = mebibytes(2)

    @pytest.mark.gpu_leak
    def test_last(shared, late):
        KEPT.append(mebibytes(2))
"""


def test_fixtures_for_several_tests_are_not_the_tests(run_pytest):
    # GIVEN fixtures of a module and of the session; WHEN tests with limits use them first, late and last
    outcome = run_pytest(SCOPES)
    # THEN the fixtures' memory counts for no test, and each test's additions do
    assert outcome.tests == {
        "test_first": "passed",
        "test_asks_late": "passed",
        "test_grows": "error",
        "test_last": "error",
    }
    assert "left 2.00 MiB" in outcome.message("test_grows") and "left 2.00 MiB" in outcome.message("test_last")


TABLE = """
    @pytest.mark.parametrize("size", [1, 8, 3, 2])
    def test_sizes(size):
        mebibytes(size)

    def test_keeps():
        KEPT.append(mebibytes(4))
        mebibytes(1)

    def test_without_memory():
        pass
"""


def table(outcome):
    """(peak, left, test) of the rows of the table."""
    (text,) = re.findall(r"=+ GPU memory of the most expensive tests =+\n(.*?)^=", outcome.text, re.M | re.S)
    heading, *rows = text.splitlines()
    assert heading.split() == ["PEAK", "LEFT", "TEST"]
    return [tuple(re.split(r"  +", row.strip())) for row in rows if "::" in row]


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_the_table_of_the_most_expensive_tests(run_pytest, options):
    # GIVEN tests without markers; WHEN they run with --memlab, in one process or several
    outcome = run_pytest(TABLE, "--memlab", "--memlab-most", "3", *options)
    # THEN a table at the end has the tests with the largest peaks
    assert outcome.code == 0
    assert table(outcome) == [
        ("8.00 MiB", "0 B", "test_it.py::test_sizes[8]"),
        ("5.00 MiB", "4.00 MiB", "test_it.py::test_keeps"),
        ("3.00 MiB", "0 B", "test_it.py::test_sizes[3]"),
    ]
    assert re.search(r"test_sizes\[8\]\n +8.00 MiB  test_it.py:8 mebibytes\n", outcome.text)
    # AND without the option no table is printed
    if not options:
        assert "most expensive" not in run_pytest(PEAKS).text


@pytest.mark.long
def test_limits_under_xdist(run_pytest):
    # GIVEN limits; WHEN the tests are spread over processes, THEN the same tests fail, with the same messages
    alone, spread = run_pytest(PEAKS), run_pytest(PEAKS, "-n", "2")
    assert spread.tests == alone.tests and spread.code == 1
    assert "needed 2.00 MiB of GPU memory at its peak on cuda:0, and its limit is 1.00 MiB" in spread.text


@pytest.mark.skipif(ON_GPU, reason="needs two cards")
def test_several_gpus(run_pytest):
    # GIVEN two GPUs, tests that use the second, and limits for each or one of them
    source = """
        def second(number):
            return torch.empty(number * MIB, dtype=torch.uint8, device="cuda:1")

        @pytest.mark.gpu_memory("4MiB")
        def test_each():
            one, other = mebibytes(4), second(4)

        @pytest.mark.gpu_memory("4MiB")
        def test_second_is_beyond():
            second(5)

        @pytest.mark.gpu_memory("4MiB", device=0)
        @pytest.mark.gpu_leak(device="cuda:0")
        def test_only_the_first():
            KEPT.append(second(5))

        @pytest.mark.gpu_leak(device="cuda:1")
        def test_leak_on_the_second():
            KEPT.append(second(5))
    """
    outcome = run_pytest(source, "--memlab", devices=2)
    # THEN a limit applies to each GPU, or to the one that the marker names
    assert [*outcome.tests.values()] == ["passed", "failure", "passed", "error"]
    assert "needed 5.00 MiB of GPU memory at its peak on cuda:1" in outcome.message("test_second_is_beyond")
    assert "left 5.00 MiB of GPU memory allocated on cuda:1" in outcome.message("test_leak_on_the_second")


MISTAKES = [
    ("gpu_memory", "it takes one size"),
    ("gpu_memory()", "it takes one size"),
    ('gpu_memory("2GiB", "3GiB")', "it takes one size"),
    ('gpu_memory("2GiB", gpu=1)', "it takes one size"),
    ('gpu_memory("2")', "2 has no unit; did you mean 2GiB?"),
    ('gpu_memory("8G")', "8G"),
    ("gpu_memory(-1)", "-1 is not a size"),
    ("gpu_memory(1.5)", "1.5 is not a size"),
    ("gpu_leak(True)", "True is not a size"),
    ('gpu_leak(0, device="cpu")', "'cpu' is not a GPU"),
    ("gpu_leak(0, device=-1)", "-1 is not a GPU"),
]


@pytest.mark.parametrize("marker, message", MISTAKES, ids=[marker for marker, _ in MISTAKES])
def test_mistakes_in_markers(run_pytest, marker, message):
    # GIVEN a marker with a wrong argument; THEN no test runs, and the message names the marker and a valid argument
    outcome = run_pytest(f"import pytest\n@pytest.mark.{marker}\ndef test_it(): print('run' + 'ning')", "-s", head="")
    assert outcome.code == USAGE_ERROR and "running" not in outcome.text
    (line,) = (line for line in outcome.text.splitlines() if line.startswith("ERROR:"))
    assert line.startswith(f"ERROR: test_it.py::test_it: @pytest.mark.{marker.partition('(')[0]}: ") and message in line


def test_mistakes_in_markers_under_xdist(run_pytest):
    # GIVEN a marker with a wrong argument, and a worker, whose usage errors pytest-xdist does not print
    source = "import pytest\n@pytest.mark.gpu_leak('8G')\ndef test_it(): pass\ndef test_other(): pass"
    outcome = run_pytest(source, "-n", "1", head="")
    # THEN the test has an error with the same message
    assert outcome.tests == {"test_it": "error", "test_other": "passed"}
    assert re.search(r"^test_it.py::test_it: @pytest.mark.gpu_leak: .*8G", outcome.text, re.MULTILINE)


def test_a_mistake_in_an_option(run_pytest):
    outcome = run_pytest("def test_it(): pass", "--memlab-most", "none", head="")
    assert outcome.code == USAGE_ERROR and "'none' is not a number of tests: use 1 or more" in outcome.text


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_without_cuda(run_pytest, options):
    # GIVEN no GPU; WHEN tests with limits run, THEN they pass, and one line reports that their limits were not checked
    source = """
        @pytest.mark.gpu_memory("1KiB")
        @pytest.mark.gpu_leak
        def test_one():
            torch.ones(1 << 20)

        @pytest.mark.gpu_leak
        def test_two():
            KEPT.append(torch.ones(1 << 20))
    """
    outcome = run_pytest(source, *options, env={"CUDA_VISIBLE_DEVICES": ""})
    assert outcome.code == 0
    said = [line for line in outcome.text.splitlines() if "memlab:" in line]
    assert said == ["memlab: there is no CUDA device; 2 tests with limits passed unchecked"]
    # AND with --memlab no table is printed
    outcome = run_pytest(
        "def test_one(): import torch", "--memlab", *options, env={"CUDA_VISIBLE_DEVICES": ""}, head="import torch\n"
    )
    said = [line for line in outcome.text.splitlines() if "memlab:" in line or "most expensive" in line]
    assert said == ["memlab: there is no CUDA device"]


def test_nothing_is_imported_without_need(run_pytest):
    # GIVEN tests without markers; THEN neither torch nor memlab's tools are imported, and nothing is loaded
    source = """
        import sys

        def test_modules():
            assert "torch" not in sys.modules and "memlab.pytest_plugin" in sys.modules
            loaded = {name for name in sys.modules if name.startswith("memlab")}
            assert loaded == {"memlab", "memlab.pytest_plugin"}
            assert "libmemlab" not in open("/proc/self/maps").read()
    """
    assert run_pytest(source, head="", fresh=True).code == 0


def test_a_test_that_imports_torch_itself(run_pytest):
    # GIVEN a test that imports torch only when it runs; THEN it is measured all the same
    source = """
        import pytest

        @pytest.mark.gpu_memory("1MiB")
        def test_beyond():
            import torch

            torch.ones(1 << 20, device="cuda")
    """
    outcome = run_pytest(source, head="")
    assert outcome.tests == {"test_beyond": "failure"}
    assert "needed 4.00 MiB" in outcome.message("test_beyond")


def test_the_markers_are_registered(run_pytest):
    # GIVEN --strict-markers, under which unknown markers are errors; THEN memlab's are known, and `--markers` explains them
    assert (
        run_pytest(
            TABLE.replace("def test_keeps", "@pytest.mark.gpu_leak('4MiB')\n    def test_keeps"), "--strict-markers"
        ).code
        == 0
    )
    text = run_pytest("", "--markers").text
    assert "@pytest.mark.gpu_memory(limit, device=None): fails the test" in text
    assert "@pytest.mark.gpu_leak(limit=0, device=None): fails the test" in text


def test_the_package_registers_the_plugin():
    # GIVEN the package's entry points; THEN pytest finds the plugin where the package is installed
    project = (ROOT / "python" / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nmemlab = "memlab.pytest_plugin"\n' in project


def test_rows_can_be_sent_between_processes():
    # GIVEN the data that a worker of pytest-xdist sends; THEN it is plain data
    from memlab._pytest.summary import Row

    row: Row = {"peak": 1, "kept": -1, "line": "", "line_bytes": 0, "why_not": None, "limited": False}
    assert json.loads(json.dumps(row)) == row and set(Row.__annotations__) == set(row)
