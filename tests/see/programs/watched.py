"""Programs that observe the calls into PyTorch while their models first run, and print everything they observe.

watched.py traced|transformed|moded|odd
"""

import copy
import signal
import sys
import warnings

import torch
import torch.nn as nn
from torch.utils._python_dispatch import TorchDispatchMode

warnings.simplefilter("ignore")
torch.manual_seed(1)
x = torch.ones(2, 4, device="cuda")


def model():
    """A new model: memlab resolves its names and those of its tensors during the first call."""
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.Linear(4, 3)).cuda()


def values(result):
    print([tuple(tensor.shape) for tensor in result] if isinstance(result, (tuple, list)) else tuple(result.shape))


def traced():
    one = model()
    first = torch.jit.trace(one, x, check_trace=False)
    print(first.inlined_graph)
    values(first(x))
    second = torch.jit.trace(model(), (x,))
    print(second.inlined_graph)
    values(second(x))
    # Like TensorBoard's add_graph.
    graph, _ = torch.jit._get_trace_graph(model(), (x,))
    torch._C._jit_pass_inline(graph)
    print(graph)
    scripted = torch.jit.script(model())
    values(scripted(x))
    print([name for name, _ in scripted.named_parameters()])


def transformed():
    from torch.func import functional_call, grad, jacrev, stack_module_state, vmap
    from torch.fx.experimental.proxy_tensor import make_fx

    print(torch.export.export(model().eval(), (x,)).graph)
    print(make_fx(model().eval())(x).code)
    print(make_fx(model().eval(), tracing_mode="fake", _allow_non_fake_inputs=True)(x).code)
    print(torch.fx.symbolic_trace(model()).code)
    values(vmap(model()[:1])(x))
    part = model().eval()
    values(grad(lambda value: part(value).sum())(x))
    values(jacrev(model()[:1])(x[0]))
    models = [model().eval() for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0])
    values(vmap(lambda p, b: functional_call(base, (p, b), (x,)))(parameters, buffers))
    compiled = torch.compile(model(), backend="eager")
    values(compiled(x))
    stream = torch.cuda.Stream()
    captured, graph = model().eval(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"), torch.no_grad():
        result = captured[0](x)
    graph.replay()
    values(result)


class Written(TorchDispatchMode):
    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        print("dispatch", operation, [kind.__name__ for kind in types])
        return operation(*args, **(kwargs or {}))


class Functions(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        print("function", getattr(function, "__name__", function))
        return function(*args, **(kwargs or {}))


def moded():
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.profiler import ProfilerActivity, profile

    for mode in (FakeTensorMode(allow_non_fake_inputs=True), Written(), Functions()):
        part = model()
        with mode:
            values(part(x))
    for stacks in (False, True):
        part = model()
        optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
        with profile(activities=[ProfilerActivity.CPU], with_stack=stacks) as seen:
            part(x).sum().backward()
            optimizer.step()
        print([event.name for event in seen.events() if "0x" not in event.name])
    with torch.autograd.detect_anomaly():
        model()(x).sum().backward()
    called = []
    sys.setprofile(lambda frame, event, argument: called.append((event, frame.f_code.co_name)))
    part = model()
    part(x).sum().backward()
    torch.optim.SGD(part.parameters(), lr=0.1).step()
    sys.setprofile(None)
    print(called)
    print(torch.rand(3), torch.rand(3, device="cuda").shape)


class Talking(torch.Tensor):
    """Prints every access."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        print("asked", getattr(function, "__name__", function))
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    def numel(self):
        print("numel")
        return super().numel()

    @property
    def is_cuda(self):
        print("is_cuda")
        return super().is_cuda

    def __hash__(self):
        print("hash")
        return id(self)


class Wrapped(torch.Tensor):
    """Holds its values in another tensor and reports its own size."""

    @staticmethod
    def __new__(cls, values):
        return torch.Tensor._make_wrapper_subclass(
            cls, values.shape, dtype=values.dtype, device=values.device, dispatch_sizes_strides_policy="sizes"
        )

    def __init__(self, values):
        self.values = values

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        print("dispatch", operation)
        unwrap = lambda value: value.values if isinstance(value, cls) else value  # noqa: E731
        return operation(*map(unwrap, args), **{name: unwrap(value) for name, value in (kwargs or {}).items()})


class Odd(nn.Module):
    """Prints every access and refuses most of them."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4, device="cuda")
        self.lazy = nn.LazyLinear(3, device="cuda")
        self.parts = nn.ModuleList([nn.Linear(4, 4, device="cuda")])
        self.__dict__["_parameters"]["talking"] = torch.ones(4, device="cuda").as_subclass(Talking).requires_grad_()
        self.__dict__["_buffers"]["wrapped"] = Wrapped(torch.ones(4, device="cuda"))

    def __getattr__(self, name):
        print("getattr", name)
        return super().__getattr__(name)

    def modules(self):
        raise RuntimeError

    named_modules = named_children = children = parameters = named_parameters = buffers = named_buffers = modules

    def forward(self, value):
        print("forward")
        return self._modules["parts"]._modules["0"](self._modules["inner"](value))


class Incomparable(type):
    """Metaclass of classes that refuse comparisons and access to their bases, and print access to other attributes."""

    def __eq__(self, other):
        raise RuntimeError

    __instancecheck__ = __subclasscheck__ = __eq__
    __hash__ = type.__hash__

    def __getattribute__(self, name):
        print("class", name)
        return type.__getattribute__(self, name)


class Counted(dict):
    """Buffers that print when they are counted."""

    def __len__(self):
        print("len")
        return dict.__len__(self)


class Handler:
    """A signal handler that prints every access."""

    def __call__(self, number, frame):
        raise KeyboardInterrupt

    def __getattr__(self, name):
        print("handler", name)
        raise AttributeError(name)


class Closed(nn.Module, metaclass=Incomparable):
    """Supports nothing but calls."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4, device="cuda")
        self.__dict__["_buffers"] = Counted()

    def __getattr__(self, name):
        raise RuntimeError

    def forward(self, value):
        return self._modules["inner"](value)


def odd():
    signal.signal(signal.SIGUSR1, Handler())
    part = Odd()
    values(part(x))
    values(part(x))
    optimizer = torch.optim.Adam([part._parameters["talking"], *part._modules["inner"]._parameters.values()])
    part(x).sum().backward()
    print("step")
    optimizer.step()
    print("stepped")
    values(Closed()(x))
    # A write, or a request for its writable address, copies it.
    part = model()
    later = nn.Linear(4, 4, device="cuda")
    later._parameters["weight"] = nn.Parameter(torch._lazy_clone(part[0].weight.detach()))
    values(later(x))
    for _ in range(1000):
        pass
    print(torch._C._is_cow_tensor(later._parameters["weight"]))


globals()[sys.argv[1]]()
