"""The text and the HTML of one device in a report of `memlab.MemReporter`, from given figures."""

import re

import pytest
from memlab.compat._reporter.html import report_html
from memlab.compat.reporter import DeviceReport, UnseenMemory

MIB = 1 << 20


def report_of(unseen=(), foreign=0, outside=()):
    """The report of a card with one tensor of 4 MiB, and the given memory."""
    allocated = 4 * MIB - foreign + sum(row.nbytes for row in unseen)
    return DeviceReport(
        "cuda:0",
        names=["weight"],
        shapes=["(1024, 1024)"],
        elements=[MIB],
        sizes=[4 * MIB],
        shares=[None],
        foreign=foreign,
        allocated=allocated,
        unseen=list(unseen),
        outside=list(outside),
        used=allocated + sum(row.nbytes for row in outside),
    )


def lines(report, verbose=False):
    """Lines of its text, with single spaces."""
    return [" ".join(line.split()) for line in report.text(verbose).splitlines()]


def activations(count):
    """Memory of `count` lines, each of a different size."""
    return [
        UnseenMemory("activation", (count - at) * MIB, f"layer{at}", "/home/ada/train.py", at + 1) for at in range(count)
    ]


@pytest.mark.parametrize(
    ("count", "more"), [(20, None), (22, "2 more lines (verbose=True) 3.00M"), (24, "4 more lines (verbose=True) 10.00M")]
)
def test_lines_that_are_left_out_are_summed(count, more):
    # GIVEN `count` lines whose memory no Python object holds
    report = report_of(activations(count))
    # WHEN they are printed, THEN 20 appear with their sizes, AND the rest is one line with the sum of their sizes
    head = "Memory without a tensor in Python:"
    named = [f"held for backward: layer{at} train.py:{at + 1} {count - at}.00M" for at in range(count)]
    text = lines(report)
    begin = text.index(head) + 1
    assert text[begin : begin + 20] == named[:20]
    assert [line for line in text if "more lines" in line] == ([] if more is None else [more])
    # AND `verbose` prints all
    text = lines(report, verbose=True)
    begin = text.index(head) + 1
    assert text[begin : begin + count] == named and not any("more lines" in line for line in text)


def test_html_sums_what_it_leaves_out():
    # GIVEN 203 tensors and 203 lines; WHEN they are shown as HTML, THEN 200 of each appear, AND the rest with its sum
    report = report_of([UnseenMemory("activation", MIB)] * 200 + [UnseenMemory("activation", at * MIB) for at in (1, 2, 3)])
    report.names, report.shapes, report.elements = (
        column * 203 for column in (report.names, report.shapes, report.elements)
    )
    report.sizes, report.shares = [MIB] * 201 + [4 * MIB, 5 * MIB], report.shares * 203
    page = report_html({"cuda:0": report})
    assert page.count('<tr class="unseen"><td>held for backward') == 200
    text = re.sub(r"<[^>]+>", " ", page)
    assert re.search(r"\b3 more tensors +10\.00M\b", text) and re.search(r"\b3 more lines +6\.00M\b", text)


def test_tensors_outside_pytorchs_allocator_are_reported():
    # GIVEN 1.5 MiB of tensors in memory that another library has allocated
    text = lines(report_of(foreign=3 * MIB // 2))
    # THEN a line below the allocator's sum, which is smaller than the tensors', gives their size
    at = text.index("The allocated memory on cuda:0: 2.50M")
    assert text[at - 1] == "Total Tensors: 1048576 Used Memory: 4.00M"
    assert text[at + 1] == "Tensors outside PyTorch's allocator, not in its sum: 1.50M"
    # AND without such tensors the line is absent
    assert not any("Tensors outside" in line for line in lines(report_of()))


def test_memory_outside_of_pytorch_is_a_line_each():
    # GIVEN a context, and other processes on the card
    outside = [UnseenMemory("other_processes", 512 * MIB), UnseenMemory("context", 256 * MIB)]
    text = lines(report_of(outside=outside))
    # THEN each is a line below the sum of all used memory
    at = text.index("The memory in use on cuda:0: 772.00M")
    assert text[at + 1 : at + 3] == ["other processes 512.00M", "context 256.00M"]
