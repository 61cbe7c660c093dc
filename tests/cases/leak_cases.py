"""The programs of `programs/leaks`, with the holder and the cure that memlab must name, and the changes that try them."""

from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs" / "leaks"
GARBAGE = "import gc; gc.collect(); gc.collect(); gc.collect()"
END = "truth.show()"


@dataclass
class Case:
    name: str
    finding: str
    """Kind of the finding; empty: there must be none."""
    holder: str = ""
    """The finding's words on the holder, as a regular expression."""
    cure: str = ""
    """Part of the cure."""
    cured: tuple = ()
    """Replacements in the source that follow the cure."""
    release: tuple = ()
    """Replacements that release the holder where it holds most, between `probe.before` and `probe.after`."""
    effect: str = "peak"
    """The counter of PyTorch that the cure lowers, or the exit code."""
    at_most: float = 0.9
    """The share of it that is left at most."""
    limit: str = ""
    """Memory that a real card must have, where it decides: the simulated card has 8 GiB."""
    variant_of: str = ""
    """The program that this one changes, by `changes`."""
    changes: tuple = ()
    needs: tuple = ()
    """Packages beside PyTorch."""
    ends: bool = True
    """True if the cure ends the finding, too."""

    @property
    def path(self):
        return PROGRAMS / f"{self.variant_of or self.name}.py"

    def source(self, replacements):
        text = self.path.read_text()
        for old, new in (*self.changes, *replacements):
            assert text.count(old) >= 1, (self.name, old)
            text = text.replace(old, new)
        return text


def at_end(name, release, at=None):
    return ((END, f"probe.before({name!r}, {at!r})\n{release}\nprobe.after(); {END}"),)


NUMBERS = (
    (
        '{"loss": loss, "scalar": scalar, "vector": vector}',
        '{"loss": loss, "scalar": scalar.item(), "vector": vector.item()}',
    ),
    ('v.detach() if k == "loss" else v', 'v.item() if k == "loss" else v'),
)
CLEARED = (
    (
        'return sum(float(o["loss"]) for o in outputs) / len(outputs)',
        "del out, batch; probe.before('outputs'); outputs.clear(); probe.after(); return 0",
    ),
)
SAVED = (
    ("ctx.result, ctx.scale = y, scale", "ctx.save_for_backward(y); ctx.scale = scale"),
    ("t = ctx.result / ctx.scale", "t = ctx.saved_tensors[0] / ctx.scale"),
)

CASES = [
    Case("epoch_outputs", "leak", "list outputs", "numbers (.item())", NUMBERS, CLEARED),
    Case(
        "one_append",
        "leak",
        "list outputs",
        "numbers (.item())",
        NUMBERS,
        CLEARED,
        variant_of="epoch_outputs",
        changes=(("range(2)", "range(1)"),),
    ),
    Case(
        "autocast_cache",
        "leak",
        "autocast's weight cache",
        "cache_enabled=False",
        (("dtype=torch.bfloat16):\n        for", "dtype=torch.bfloat16, cache_enabled=False):\n        for"),),
        (
            (
                "    return sum(hits) / len(hits)",
                "        del fast, x, y; probe.before('autocast cache')\n"
                "        torch.clear_autocast_cache(); probe.after()\n    return 0",
            ),
        ),
        at_most=0.1,
    ),
    Case(
        "kept_exception",
        "out_of_memory",
        "exception failure",
        "Keep its text",
        (("failure = e", "failure = str(e)"),),
        (("torch.cuda.empty_cache()", "probe.before('failure'); failure = None; probe.after(); torch.cuda.empty_cache()"),),
        effect="code",
        at_most=0,
        limit="8GiB",
        ends=False,
    ),
    Case(
        "adapters",
        "leak",
        "keys 'task1'",
        "delete_adapter",
        (("model.cuda()", "model.cuda()\n    if task: model.delete_adapter(f'task{task - 1}')"),),
        at_end("base.model.layers", "for task in range(1, 12): model.delete_adapter(f'task{task}')", "adapters.py:42"),
        effect="alloc",
        needs=("transformers", "peft"),
    ),
    Case(
        "lru_cache",
        "leak",
        "cache of decayed",
        "maxsize=1",
        (("functools.cache", "functools.lru_cache(maxsize=1)"),),
        at_end("decayed", "decayed.cache_clear()"),
        effect="alloc",
        at_most=0.5,
    ),
    Case(
        "ctx_attribute",
        "leak",
        "ctx.result",
        "ctx.save_for_backward",
        SAVED,
        at_end("garbage", GARBAGE),
        effect="alloc",
        at_most=0.5,
    ),
    Case(
        "hook_cycle",
        "leak",
        "closure self",
        "weakref.ref",
        (
            (
                "def count(module, args, out):\n            self.calls",
                "import weakref\n        me = weakref.ref(self)\n"
                "        def count(module, args, out):\n            me().calls",
            ),
        ),
        at_end("garbage", GARBAGE),
        effect="alloc",
        at_most=0.1,
    ),
    Case(
        "queue_of_tensors",
        "leak",
        r"another process that received the tensors|q\._buffer",
        "what the receiving process keeps",
        (
            ("rollouts = []", "import collections; rollouts = collections.deque(maxlen=4)"),
            ("done.wait()", "done.wait(); torch.cuda.ipc_collect()"),
        ),
        effect="alloc",
        at_most=0.6,
        ends=False,
    ),
    Case(
        "retained_graph",
        "leak",
        "hidden, logits and loss together",
        "carry over (.detach())",
        (("retain_graph=True)", ")\n    hidden = hidden.detach()"),),
        at_end("hidden", "del hidden, logits, loss"),
        effect="alloc",
        at_most=0.1,
    ),
    Case(
        "stale_locals",
        "earlier_forwards",
        r"loss\b.* out\b.* together",
        "loss, out",
        (("total += loss.item()", "total += loss.item(); del loss, out"),),
        (("return total / n", "probe.before('loss'); del loss, out; probe.after(); return total / n"),),
        at_most=0.6,
    ),
    Case(
        "summed_losses",
        "earlier_forwards",
        "local total",
        "Call backward for each loss",
        (
            ("total = 0\n", "opt.zero_grad()\n"),
            ("total = total + net(", "(net("),
            ("square().mean() / micro", "square().mean() / micro).backward()"),
            ("    opt.zero_grad()\n    total.backward()\n", ""),
        ),
        (("opt.zero_grad()\n    total.backward()\n    opt.step()", "probe.before('total'); del total; probe.after()"),),
        at_most=0.4,
    ),
    Case(
        "graph_per_shape",
        "graph_pools",
        "run.graphs",
        "torch.cuda.graph_pool_handle()",
        (
            (
                "self.net, self.graphs = net, {}",
                "self.net, self.graphs, self.pool = net, {}, torch.cuda.graph_pool_handle()",
            ),
            ("torch.cuda.graph(g)", "torch.cuda.graph(g, pool=self.pool)"),
        ),
        at_end("run.graphs", "run.graphs.clear()"),
        effect="peakres",
        at_most=0.5,
    ),
    Case(
        "attribution",
        "leak",
        "dict g.acts",
        "g.acts.clear()",
        (("return x.grad", "self.acts.clear(); return x.grad"),),
        at_end("g.acts", "g.acts.clear()"),
        effect="alloc",
        needs=("torchvision",),
        at_most=0.8,
    ),
    Case(
        "trainer_logits",
        "leak",
        "all_preds.tensors",
        "eval_accumulation_steps=8",
        (("max_steps=8", "eval_accumulation_steps=8, max_steps=8"),),
        at_most=0.8,
        needs=("transformers",),
        ends=False,
    ),
    Case("full_cache", ""),
    Case("unfreezing", ""),
]
