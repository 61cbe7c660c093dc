"""`memlab serve`: PyTorch's figures, a real Prometheus, a real browser, and access rights."""

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from browser import Browser, find_chromium
from conftest import PYTHON, ROOT

PATIENCE = 600  # seconds; only a hang reaches this limit
TOKEN = "a-token-of-this-test"

# Runs lines from its input, and answers each with PyTorch's own figures of every device.
PROGRAM = """
import json, sys
import torch

kept, code = {}, {}
for line in sys.stdin:
    exec(line)
    devices = range(torch.cuda.device_count())
    print(json.dumps([[torch.cuda.memory_allocated(i), torch.cuda.memory_reserved(i), torch.cuda.max_memory_allocated(i)]
                      for i in devices]), flush=True)
"""


def until(condition, what):
    """Waits until a condition becomes true; returns its value."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"still not: {what}"
        time.sleep(0.05)
    return found


class Served:
    """`memlab serve` and the programs that it shows."""

    def __init__(self, memlab):
        self.memlab = memlab
        # A short path, because socket names are limited.
        self.runtime = Path(tempfile.mkdtemp(prefix="memlab-test-", dir="/tmp"))
        self.processes = []

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self.runtime)

    def serve(self, *options, listen="127.0.0.1:0", env=None):
        """Starts the server on a free port; returns its address."""
        command = [self.memlab.command, "serve", "--listen", listen, *options]
        environment = self.memlab.environment(XDG_RUNTIME_DIR=self.runtime, **({"MEMLAB_SERVE_TOKEN": TOKEN} | (env or {})))
        self.server = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.memlab.folder
        )
        self.processes.append(self.server)
        self.page = self.server.stdout.readline().strip()
        self.address = self.page.split("#")[0].rstrip("/")
        assert self.address.startswith("http://"), self.server.stderr.read()
        return self.address

    def program(self, rank=None, **options):
        ranks = {} if rank is None else {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2}
        environment = {"XDG_RUNTIME_DIR": self.runtime, "MEMLAB_OFFLOAD": 1} | ranks
        path = self.memlab.folder / "program.py"
        path.write_text(PROGRAM)
        process = self.memlab.start(PYTHON, path, env=environment, stdin=subprocess.PIPE, **options)
        self.processes.append(process)
        return process

    def ask(self, path, method="GET", token=None, **headers):
        """Status, headers and text of a reply."""
        if token:
            headers["Authorization"] = f"Bearer {token}"
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.address + path, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
                return reply.status, dict(reply.headers), reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), error.read().decode()

    def samples(self, name, text=None):
        """Labels and value of each sample of a metric, from the text of a scrape or a new scrape."""
        text = text or self.ask("/metrics")[2]
        found = []
        for line in text.splitlines():
            if line.startswith(name + "{"):
                labels, value = line.removeprefix(name + "{").rsplit("} ", 1)
                found.append((dict(label.split("=", 1) for label in labels.replace('"', "").split(",")), int(value)))
        return found

    def figure(self, name, process, device=0, text=None):
        """A metric of a process and a device, or None."""
        for labels, value in self.samples(name, text):
            if labels["pid"] == str(process.pid) and labels.get("device", str(device)) == str(device):
                return value
        return None

    def id_of(self, process):
        """Identifier of a process in addresses."""
        request = urllib.request.Request(self.address + "/events", headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as news:
            for line in news:
                if line.startswith(b"data:"):
                    versions = json.loads(line[5:])["versions"]
                    found = [one["id"] for one in versions if one["id"].startswith(f"{process.pid}-")]
                    if found:
                        return found[0]
        raise AssertionError("the news ended")


def do(process, line):
    """Sends a line to a program; returns PyTorch's figures of each device: allocated, reserved, peak allocated."""
    process.stdin.write(line + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    assert answer, process.stderr.read()
    return json.loads(answer)


@pytest.fixture
def served(memlab):
    served = Served(memlab)
    yield served
    served.close()


# Copies are real on the simulated card, kernels are not.
CONTENT = "kept[0] = torch.arange(4 << 20).cuda()"
UNCHANGED = "assert torch.equal(kept[0].cpu(), torch.arange(4 << 20))"

METRICS = ("memlab_allocated_bytes", "memlab_reserved_bytes", "memlab_peak_allocated_bytes")


def test_figures_are_pytorchs_to_the_byte(served):
    # GIVEN two ranks, with two devices each
    served.serve()
    ranks = [served.program(rank, devices=2) for rank in range(2)]
    for rank, process in enumerate(ranks):
        do(process, f"kept[0] = torch.zeros({1000 + rank}, 1000, device='cuda:{rank}')")
    until(lambda: None not in [served.figure(METRICS[0], ranks[rank], rank) for rank in range(2)], "both are found")
    for line in (
        "kept[1] = torch.zeros(12345, 678, device='cuda:0')",
        "del kept[0]; torch.cuda.empty_cache()",
        "kept[2] = [torch.zeros(7, device='cuda:1') for _ in range(100)]",
    ):
        for rank, process in enumerate(ranks):
            # WHEN the program has run each line
            expected = do(process, line)
            # THEN the next scrape has its own figures, under its rank
            for device, figures in enumerate(expected):
                if served.figure(METRICS[0], process, device) is None:
                    assert figures == [0, 0, 0]
                    continue
                assert [served.figure(name, process, device) for name in METRICS] == figures
            assert {labels.get("rank") for labels, _ in served.samples(METRICS[0]) if labels["pid"] == str(process.pid)} == {
                str(rank)
            }

    # AND the categories sum to the device's used bytes
    def is_of_it(labels):
        return (labels["pid"], labels["device"]) == (str(ranks[0].pid), "0")

    def is_in_use():
        """Compares figures of one scrape; the next sample of the device may change them."""
        text = served.ask("/metrics")[2]
        held = [value for labels, value in served.samples("memlab_category_bytes", text) if is_of_it(labels)]
        used = served.figure("memlab_used_bytes", ranks[0], 0, text)
        if used is None:
            return False
        assert sum(held) == used
        return used > expected[0][1]

    until(is_in_use, "the device is sampled")
    # AND after its end a process holds nothing, but its peak is still reported
    peak = do(ranks[0], "pass")[0][2]
    ranks[0].communicate(timeout=PATIENCE)
    until(lambda: served.figure("memlab_process_running", ranks[0]) == 0, "it has ended")
    assert served.figure("memlab_allocated_bytes", ranks[0]) is None
    assert served.figure("memlab_peak_allocated_bytes", ranks[0]) == peak


def test_out_of_memory_and_steps_are_counted(served):
    # GIVEN a program with a model
    served.serve()
    process = served.program(memory="1GiB")
    do(
        process,
        "kept['m'] = torch.nn.Linear(10, 10, device='cuda'); kept['o'] = torch.optim.SGD(kept['m'].parameters(), 0.1)",
    )
    until(lambda: served.figure("memlab_steps_total", process) == 0, "it is found")
    # WHEN it ends three steps, and two allocations fail
    do(process, "for _ in range(3): kept['m'](torch.zeros(1, 10, device='cuda')).sum().backward(); kept['o'].step()")
    failing = "exec('try:\\n torch.zeros(1 << 30, device=\"cuda\")\\nexcept torch.cuda.OutOfMemoryError: pass')"
    do(process, failing)
    do(process, failing)
    # THEN both are counted
    assert served.figure("memlab_steps_total", process) == 3
    assert served.figure("memlab_out_of_memory_total", process) == 2
    assert served.figure("memlab_out_of_memory_total", process, device=1) is None
    assert served.figure("memlab_events_lost_total", process) == 0


def test_reading_is_open_here_and_moving_needs_the_token(served):
    # GIVEN a program that can be offloaded
    served.serve()
    process = served.program()
    do(process, CONTENT)
    id = served.id_of(process)
    allocated = do(process, "pass")[0][0]
    # THEN requests from other sites' names and pages are refused, and so are those without the token
    assert served.ask("/metrics", Host="evil.example")[0] == 421
    path = f"/processes/{id}/offload"
    assert served.ask(path, "POST")[0] == 401
    assert served.ask(path, "POST", token=TOKEN[:-1] + "X")[0] == 401
    assert served.ask(path, "POST", token=TOKEN, Origin="http://evil.example")[0] == 403
    assert served.figure("memlab_offloaded_bytes", process) == 0
    # WHEN a request has the token
    assert served.ask(path, "POST", token=TOKEN)[0] == 202
    # THEN the memory goes to the host, and comes back unchanged
    until(lambda: (served.figure("memlab_offloaded_bytes", process) or 0) >= allocated, "it is offloaded")
    assert served.ask(f"/processes/{id}/restore", "POST", token=TOKEN)[0] == 202
    until(lambda: served.figure("memlab_offloaded_bytes", process) == 0, "it is restored")
    assert do(process, UNCHANGED)[0][0] == allocated
    # AND requests for missing processes get an explanatory error
    status, _, text = served.ask("/processes/1-none/offload", "POST", token=TOKEN)
    assert (status, text) == (404, "this process has ended: nothing was moved\n")
    assert served.ask(f"/fragment/{id}?at=step:7")[0] == 404
    assert "12 has no unit" in served.ask(f"/fragment/{id}?at=12")[2]


def test_connections_of_others_leave_room_for_the_owner(served):
    # GIVEN a thousand connections whose request never ends, more than a server's limit of open files
    served.serve()
    port = int(served.address.rsplit(":", 1)[1])
    resource.prlimit(served.server.pid, resource.RLIMIT_NOFILE, (512, 512))

    def connection(request):
        stream = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        stream.sendall(request)
        return stream

    held = [connection(b"GET / HTTP/1.1\r\nHost: localhost\r\n") for _ in range(1000)]
    # THEN a request is still answered
    assert served.ask("/metrics")[0] == 200
    # AND WHEN a client without the token holds all available event streams
    events = b"GET /events HTTP/1.1\r\nHost: localhost\r\n"
    statuses = []
    for _ in range(100):
        held.append(connection(events + b"\r\n"))
        statuses.append(held[-1].recv(12).split()[1])
        if statuses[-1] == b"503":
            break
    assert statuses[-1] == b"503" and len(statuses) < 100
    # THEN the owner's page still gets one
    held.append(connection(events + f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()))
    assert held[-1].recv(12).split()[1] == b"200"
    for stream in held:
        stream.close()


def test_a_request_that_does_not_end_is_given_up(served):
    # GIVEN a connection whose request does not end
    served.serve()
    with socket.create_connection(("127.0.0.1", int(served.address.rsplit(":", 1)[1])), timeout=PATIENCE) as stream:
        stream.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        # THEN the server ends it
        while stream.recv(1024):
            pass


@pytest.mark.long
def test_an_answer_that_nobody_reads_is_given_up(served):
    # GIVEN a connection that requests the page a thousand times, more than the kernel buffers, and reads no answer
    served.serve()
    port = int(served.address.rsplit(":", 1)[1])
    length = len(served.ask("/")[2])
    with socket.socket() as stream:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stream.settimeout(PATIENCE)
        stream.connect(("127.0.0.1", port))
        ends = [f"0100007F:{number:04X}" for number in (port, stream.getsockname()[1])]

        def is_open():
            """Returns true while the kernel lists the server's end of the connection."""
            return any(line.split()[1:3] == ends for line in Path("/proc/net/tcp").read_text().splitlines())

        until(is_open, "the server has its end")
        stream.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        # THEN the server ends it
        until(lambda: not is_open(), "it is ended")
        # AND not because everything was written
        read = 0
        with contextlib.suppress(ConnectionResetError):
            while piece := stream.recv(1 << 16):
                read += len(piece)
        assert 0 < read < 1000 * length / 2


def test_other_machines_need_the_token_for_all(served):
    # GIVEN a server for other machines
    token = served.memlab.folder / "token"
    token.write_text("0123456789abcdef0123\n")
    token.chmod(0o600)
    served.serve("--token-file", token, listen="0.0.0.0:0")
    served.address = served.address.replace("0.0.0.0", "127.0.0.1")
    # THEN without the token only the empty page is served, with no data
    for path in ("/metrics", "/events", "/fragment/1-a"):
        status, headers, _ = served.ask(path)
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
    status, headers, page = served.ask("/")
    assert status == 200 and str(served.runtime) not in page and "0123456789abcdef0123" not in page
    assert "default-src 'none'" in headers["content-security-policy"]
    assert served.ask("/metrics", token="0123456789abcdef0123")[0] == 200
    # AND a token file that others can read is refused
    token.chmod(0o644)
    command = [served.memlab.command, "serve", "--token-file", token]
    done = subprocess.run(command, capture_output=True, text=True, env=served.memlab.environment())
    assert done.returncode == 2 and "chmod 600" in done.stderr


def test_a_server_names_the_obstacle_and_ends_at_once(served):
    # GIVEN a server, without any program
    served.serve(env={"MEMLAB_SERVE_TOKEN": ""})
    assert "#token=" in served.page
    # WHEN another server requests the same port THEN its error names the port and a fix
    port = served.address.rsplit(":", 1)[1]
    command = [served.memlab.command, "serve", "--listen", f"127.0.0.1:{port}"]
    done = subprocess.run(command, capture_output=True, text=True, env=served.memlab.environment())
    assert done.returncode == 2 and "--listen" in done.stderr and "in use" in done.stderr
    # WHEN a page is open that does not read, and Ctrl-C is pressed
    reader = socket.create_connection(("127.0.0.1", int(port)))
    reader.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    served.server.send_signal(signal.SIGINT)
    # THEN it ends
    assert served.server.wait(PATIENCE) == 0
    assert f"{served.address}/metrics" in served.server.stderr.read()


# Prometheus.

PROMETHEUS = next(
    (
        folder
        for folder in (ROOT / ".venv" / "prometheus", Path(os.environ.get("MEMLAB_PROMETHEUS", "/usr/bin")))
        if (folder / "promtool").exists()
    ),
    None,
)
needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus: 'tests/prometheus.sh .venv' gets Debian's")


def query(address, expression):
    reply = urllib.request.urlopen(
        f"{address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}", timeout=PATIENCE
    )
    answer = json.load(reply)
    assert answer["status"] == "success", answer
    return answer["data"]["result"]


@pytest.fixture
def prometheus(served):
    """A Prometheus that scrapes the served processes every second, with the configuration of the docs."""
    served.serve()
    folder = served.memlab.folder
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\nscrape_configs:\n  - job_name: memlab\n    static_configs:\n"
        f"      - targets: ['{served.address.removeprefix('http://')}']\n"
    )
    command = [PROMETHEUS / "prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data", "--log.level=debug"]
    command.append("--web.listen-address=127.0.0.1:0")
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    served.processes.append(process)
    listens = r'"Listening on" address=([\d.:]+)'
    address = until(lambda: re.search(listens, (folder / "prometheus.log").read_text()), "Prometheus listens")[1]

    def is_ready():
        try:
            return urllib.request.urlopen(f"http://{address}/-/ready", timeout=PATIENCE).status == 200
        except OSError:
            return False

    until(is_ready, "Prometheus is ready")
    return f"http://{address}"


@pytest.mark.long
@needs_prometheus
def test_prometheus_has_pytorchs_figures_and_the_dashboard_its_panels(served, prometheus):
    # GIVEN a Prometheus, and a program that trains
    process = served.program(rank=1)
    do(
        process,
        "kept['m'] = torch.nn.Linear(1000, 1000, device='cuda'); kept['o'] = torch.optim.Adam(kept['m'].parameters())",
    )
    expected = do(
        process, "for _ in range(3): kept['m'](torch.zeros(9, 1000, device='cuda')).sum().backward(); kept['o'].step()"
    )
    # THEN it has the figures of the program to the byte
    for name, figure in zip(METRICS, expected[0], strict=True):
        selected = f'{name}{{pid="{process.pid}",rank="1",device="0"}}'
        values = until(lambda selected=selected: query(prometheus, selected), f"{name} is scraped")
        until(
            lambda selected=selected, figure=figure: (
                [row["value"][1] for row in query(prometheus, selected)] == [str(figure)]
            ),
            f"{name} is {figure}",
        )
        assert values[0]["metric"]["command"] == "program.py"
    # AND no scrape failed, except by a timeout on a loaded machine
    log = (served.memlab.folder / "prometheus.log").read_text().splitlines()
    failed = [line for line in log if 'component="scrape manager"' in line and re.search("failed|Error", line)]
    assert all("deadline exceeded" in line for line in failed), failed
    # AND every panel of the Grafana dashboard has data, once two scrapes can be compared
    dashboard = json.loads((ROOT / "docs" / "serve" / "grafana.json").read_text())
    variables = {"$__rate_interval": "1m", "$command": ".*", "$rank": ".*", "$instance": ".*"}
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(expressions) > 8
    # AND Prometheus accepts the alerts of the docs
    alerts = (ROOT / "docs" / "serve.md").read_text().split("Some alerts:")[1].split("## ")[0].splitlines()
    alerts = [line.strip() for line in alerts if line.startswith("    ") and "#" not in line]
    assert len(alerts) == 3
    for alert in alerts:
        query(prometheus, alert)
    assert not any(expression.count("(") != expression.count(")") for expression in expressions)
    for expression in expressions:
        for name, value in variables.items():
            expression = expression.replace(name, value)
        if "memlab_limit" in expression:
            query(prometheus, expression)  # No limit is set: no data, and no error.
            continue
        assert until(lambda expression=expression: query(prometheus, expression), expression)
    # AND every metric that they name exists
    known = set(served.ask("/metrics")[2].split())
    for expression in expressions:
        assert set(re.findall(r"memlab_\w+", expression)) <= known, expression


def test_grafanas_own_types_take_the_dashboard():
    # WHEN the dashboard is read with Grafana's published types
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    source = json.loads((ROOT / "docs" / "serve" / "grafana.json").read_text())
    dashboard = models.Dashboard.from_json(source)
    # THEN nothing is lost, and panels neither overlap nor share a number
    assert dashboard.title == source["title"] and len(dashboard.panels) == len(source["panels"])
    assert [variable.name for variable in dashboard.templating.list_val] == ["datasource", "command", "rank"]
    taken = [
        (column, row)
        for panel in dashboard.panels
        for column in range(panel.grid_pos.x, panel.grid_pos.x + panel.grid_pos.w)
        for row in range(panel.grid_pos.y, panel.grid_pos.y + panel.grid_pos.h)
    ]
    assert len(taken) == len(set(taken)) and max(column for column, _ in taken) < 24
    assert len({panel.id_val for panel in dashboard.panels}) == len(dashboard.panels)
    assert all(panel.description and panel.datasource.type_val == "prometheus" for panel in dashboard.panels)


@pytest.mark.long
@needs_prometheus
@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text"])
def test_promtool_accepts_the_figures(served, accept):
    # GIVEN figures of a program in either format
    served.serve()
    process = served.program()
    do(process, "kept[0] = torch.zeros(1000, device='cuda')")
    until(lambda: served.figure(METRICS[0], process) is not None, "it is found")
    _, headers, text = served.ask("/metrics", Accept=accept)
    assert headers["content-type"].startswith(accept)
    assert text.endswith("# EOF\n") == (accept != "text/plain")
    # THEN promtool finds no errors, and neither does the Python client's parser of OpenMetrics
    if accept == "text/plain":
        checked = subprocess.run([PROMETHEUS / "promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    else:
        parser = pytest.importorskip("prometheus_client.openmetrics.parser")
        families = {family.name: family for family in parser.text_string_to_metric_families(text)}
        assert families["memlab_allocated_bytes"].unit == "bytes" and families["memlab_out_of_memory"].type == "counter"


# The page.

needs_browser = pytest.mark.skipif(
    find_chromium() is None,
    reason="no Chromium: 'tests/chromium.sh .venv' gets one from npm, or name yours in MEMLAB_CHROMIUM",
)


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


def show(page, process, part="memory", more=""):
    """Makes the page show a process."""
    ids = "Array.from(document.querySelectorAll('tr[data-id]'), row => row.dataset.id)"
    found = until(lambda: page.evaluate(f"{ids}.find(id => id.startsWith('{process.pid}-'))"), "the process is listed")
    page.evaluate(f"location.hash = '#id={found}&part={part}{more}'")
    until(
        lambda: page.evaluate(f"document.querySelector('#head')?.textContent.includes('pid {process.pid}')"), "it is shown"
    )


def tile(page, what):
    """The figure of a tile."""
    tile = f"Array.from(document.querySelectorAll('.tile')).find(tile => tile.firstChild.textContent === '{what}')"
    return page.evaluate(f"{tile}?.querySelector('dd').firstChild.textContent")


LINES = "document.querySelector('#part table[aria-label=lines]')"
PART = "document.querySelector('#part')"


@needs_browser
def test_the_page_follows_the_run_and_keeps_what_the_reader_did(served, browser):
    # GIVEN a program in a folder with a long name, and the page that shows its lines
    folder = served.memlab.folder / ("longer" * 40) / "a folder"
    folder.mkdir(parents=True)
    served.serve()
    process = served.program(cwd=folder)
    for number in range(14):
        code = f'kept[{number}] = torch.zeros({number + 1} << 18, device="cuda")'
        do(process, f"code[{number}] = compile({code!r}, '{folder}/line{number}.py', 'exec'); exec(code[{number}])")
    page = browser.open(served.address + "/")
    show(page, process, "lines")
    until(lambda: page.evaluate(f"({LINES}?.tBodies[0].rows.length ?? 0) >= 14"), "its lines are shown")
    # WHEN the reader sorts them by name, and the program allocates
    page.evaluate(f"Array.from({LINES}.querySelectorAll('th button'))[0].click()")
    mib = do(process, "kept[99] = torch.zeros(64 << 20, device='cuda')")[0][0] / 2**20
    # THEN the figures follow
    until(lambda: tile(page, "allocated") == f"{mib:.0f} MiB", "the tile follows")
    # AND the table too, still sorted by name
    until(lambda: page.evaluate(f"{PART}.textContent.includes('256 MiB')"), "the table follows")
    names = page.evaluate(f"Array.from({LINES}.tBodies[0].rows, row => row.cells[0].textContent)")
    assert len(names) >= 15
    assert names == page.evaluate(f"{json.dumps(names)}.toSorted(new Intl.Collator('en', {{numeric: true}}).compare)")
    assert page.evaluate(f"{LINES}.tHead.rows[0].cells[0].ariaSort") == "ascending"
    # AND nothing was fetched from elsewhere, and no error occurred
    assert page.complaints == []
    hosts = {url.split("/")[2] for url in page.requests if not url.startswith("data:")}
    assert hosts == {served.address.removeprefix("http://")}
    # AND every part of it fits, in a wide and in a narrow window
    for number, part in enumerate(("memory", "lines", "layers", "calls", "map", "steps", "time", "others"), 1):
        page.press(str(number))
        until(lambda part=part: page.evaluate("document.querySelector('[aria-selected=true]').dataset.part") == part, part)
        until(lambda: page.evaluate(f"!{PART}.classList.contains('waiting') && {PART}.textContent.length > 20"), part)
        for width in (1280, 400):
            page.resize(width)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, part
    page.resize(1280)


@pytest.mark.long
@needs_browser
def test_an_earlier_moment_stays_while_the_run_goes_on(served, browser):
    # GIVEN a program that has allocated, and the page
    served.serve()
    process = served.program()
    first = do(process, "kept[0] = torch.zeros(16 << 20, device='cuda')")[0][0]
    do(process, "kept['m'] = torch.nn.Linear(8, 8, device='cuda'); kept['o'] = torch.optim.SGD(kept['m'].parameters(), 0.1)")
    after_step = do(process, "kept['m'](torch.zeros(1, 8, device='cuda')).sum().backward(); kept['o'].step()")[0][0]
    do(process, "kept[1] = torch.zeros(48 << 20, device='cuda')")
    page = browser.open(served.address + "/")
    # WHEN the page shows the end of the first step, and the program continues
    show(page, process, "memory", "&at=step:0")
    until(lambda: page.evaluate("document.querySelector('.shown')?.textContent.includes('step 0')"), "the moment is shown")
    then = f"{after_step / 2**20:.1f} MiB"
    until(lambda: tile(page, "allocated") == then, "the figures of the moment are shown")
    do(process, "kept[2] = torch.zeros(64 << 20, device='cuda')")
    until(lambda: page.evaluate("document.querySelector('#strip').textContent.includes('512 MiB')"), "the list follows")
    # THEN the figures are those of the moment
    assert first < after_step < 65 << 20
    assert tile(page, "allocated") == then
    # AND Escape returns to now
    page.press("Escape")
    until(lambda: tile(page, "allocated") == "512 MiB", "now is shown")
    assert page.complaints == []


@needs_browser
def test_memory_moves_by_a_button_of_the_page(served, browser):
    # GIVEN a program that can be offloaded, and the page with its token
    served.serve(env={"MEMLAB_SERVE_TOKEN": ""})
    process = served.program()
    do(process, CONTENT)
    page = browser.open(served.page)
    show(page, process)
    # THEN the address no longer contains the token
    assert "token" not in page.evaluate("location.href")
    # WHEN offload is clicked, and confirmed
    until(lambda: page.evaluate("document.querySelector('[data-move=offload]')?.disabled === false"), "it can be offloaded")
    page.evaluate("document.querySelector('[data-move=offload]').click()")
    assert "The program waits" in page.evaluate("document.querySelector('#question').textContent")
    assert page.evaluate("document.querySelector('#wants-token').hidden")
    page.evaluate("document.querySelector('#yes').click()")
    # THEN the program is offloaded, and the page reports it
    until(lambda: page.evaluate("document.querySelector('#notices').textContent.includes('offloaded')"), "it is said")
    until(lambda: page.evaluate("document.querySelector('[data-move=restore]').disabled === false"), "it can be restored")
    # AND it comes back
    page.evaluate("document.querySelector('[data-move=restore]').click()")
    page.evaluate("document.querySelector('#yes').click()")
    until(lambda: page.evaluate("document.querySelector('#notices').textContent.includes('restored')"), "it is said")
    do(process, UNCHANGED)
    assert page.complaints == []
