"""Finds the operations for which a line of Inductor's code may allocate memory: a second, simple reader of its wrappers.

It reads the wrapper as a person does, and looks up each comment in Inductor's own data (`programs/compiled_truth.py`). The
`inductor` crate lacks these data.
"""

import re
from collections import defaultdict

ALLOCATION = re.compile(r"(\w+) = empty_strided\w*\(")
OTHER_NAME = re.compile(r"(\w+) = (?:reinterpret_tensor\()?(\w+)[,;]")
TRACE_LINE = re.compile(r'File "([^"]+)", line (\d+), in')


def comment_of(source, number):
    """The comment above the launch that first fills the allocation of a wrapper's line (from 1)."""
    return launch_of(source.splitlines(), number)[1]


def launch_of(lines, number):
    """(line index, comment) of that launch."""
    allocation = ALLOCATION.match(lines[number - 1].strip())
    if not allocation:  # A call that allocates its own result.
        return number - 1, next(text.strip() for text in reversed(lines[: number - 1]) if "Source Nodes: [" in text)
    names, comment = {allocation[1]}, None
    for index, text in enumerate(map(str.strip, lines[number:]), number):
        if text.startswith("#"):
            comment = text if "Source Nodes: [" in text else comment
        elif (other := OTHER_NAME.match(text)) and other[2] in names:
            names.add(other[1])
        elif ALLOCATION.match(text) or text.startswith(("del ", "assert", "return")) or "(" not in text:
            continue
        elif names & set(re.findall(r"\w+", text)):
            return index, comment
    return None, None


def operands_of(source, number):
    """The comments above the launches that last used this launch's buffers."""
    lines = source.splitlines()
    launch, _ = launch_of(lines, number)
    found = []
    for name in set(re.findall(r"\bbuf\d+", lines[launch])):
        uses = (index for index in reversed(range(launch)) if re.search(rf"\b{name}\b.*\)", lines[index]))
        use = next((index for index in uses if ALLOCATION.match(lines[index].strip()) is None), None)
        if use is not None:
            found.append(next(text.strip() for text in reversed(lines[:use]) if "Source Nodes: [" in text))
    return found


class Oracle:
    """Judges the lines and layers of memory. `truth`: for each comment, the nodes as [name, path of the module, stack
    trace]."""

    def __init__(self, truth):
        self.truth = {
            comment: [(layer_of(path), lines_of(trace)) for _, path, trace in nodes] for comment, nodes in truth.items()
        }
        # Autograd's own results have the line of an operation, and no module.
        self.layers_at = defaultdict(set)
        for nodes in self.truth.values():
            for layer, lines in nodes:
                self.layers_at[lines].add(layer)

    def tells(self, comment):
        """Returns true if Inductor has data on any node of the comment. Before PyTorch 2.8 it has none on nodes
        that a pass made from several."""
        return any(layer or lines for layer, lines in self.truth.get(comment, ()))

    def allows_lines(self, comment, lines):
        """Returns true for the lines of a node, or for lines that several nodes share (without the innermost ones), or for
        no lines if a node has none.

        Before PyTorch 2.11, an Inductor pass's replacement of an operation has the module and no line. memlab may find one;
        `allows_layer` judges it.
        """
        nodes = self.truth.get(comment, ())
        known = [found for _, found in nodes]
        without = any(layer and not found for layer, found in nodes)
        return without or lines in known or (lines != () and is_common(lines, known)) or (lines == () and not known)

    def allows_layer(self, comment, layer):
        """Returns true for the layer of a node, or one that encloses those of several. `layer`: a name in the caller, "" for
        itself."""
        known = self.layers_of(comment)
        return layer in known or is_common(layer.split(".") if layer else [], [found.split(".") for found in known])

    def is_around(self, comment, layer):
        """Returns true if the layer encloses a node's layer."""
        return any(f"{found}.".startswith(f"{layer}." if layer else "") for found in self.layers_of(comment))

    def layers_of(self, comment):
        known = set()
        for found, lines in self.truth.get(comment, ()):
            known |= self.layers_at[lines] if found == "" and lines else {found}
        return known


def lines_of(trace):
    return tuple((file, int(line)) for file, line in TRACE_LINE.findall(trace or ""))


def layer_of(path):
    """The qualified name of `L['self'].blocks.0.up`, `L['self']._modules['blocks'][0].up` or similar."""
    path = re.sub(r"\[['\"]?(\w+)['\"]?\]", r".\1", re.sub(r"^[LG]\['\w+'\]", "", path or ""))
    return path.replace("._modules", "").lstrip(".")


def is_common(part, wholes):
    """Returns true if the part begins two or more of several sequences."""
    return sum(list(whole[: len(part)]) == list(part) for whole in wholes) > 1
