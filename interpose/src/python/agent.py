"""What memlab knows only with Python's help: the names of modules, parameters, gradients and optimizer state.

Embedded in libmemlab.so and run inside the traced program, on its main thread, when it has called modules memlab has
not met before. It must not keep anything of the program alive, change it, or raise: the program must not notice.

`native` has: layer(id, name), tag(device, address, category, bytes, root, name), step(), forget(address),
software(name, version, root), warn(text), finish().
"""

import atexit
import os
import sys
import time
import weakref

_CATEGORIES = ("parameter", "gradient", "optimizer_state", "buffer")
_PARAMETER, _GRADIENT, _OPTIMIZER_STATE, _BUFFER = range(4)

# Tags are refreshed at each of the first optimizer steps, and later so seldom that they cost below 1 % of the time.
_STEPS_TAGGED_ALWAYS = 8
_TAGGING_SHARE = 0.01
_TAGGING_GROWTH = 0.1


class Agent:
    def __init__(self, native, torch):
        self.native = native
        self.torch = torch
        self.pid = os.getpid()  # A forked child has an agent of its own.
        self.layers = {}  # layer id -> (weak module, root layer id, qualified name)
        self.watched = {}  # id(module) -> weakref whose death forgets the address
        self.roots = {}  # layer id -> weak root module
        self.optimizers = {}  # id -> weak optimizer
        self.steps = 0
        self.started = time.monotonic()
        self.next_tagging = 0.0
        self.finished = False
        native.software("python", sys.version.split()[0], os.path.dirname(os.__file__))
        native.software("torch", str(torch.__version__), os.path.dirname(os.path.abspath(torch.__file__)))
        # Not an attribute of `torch.optim`, which deletes the name; absent before PyTorch 2.1.
        optimizer = sys.modules.get("torch.optim.optimizer")
        register = getattr(optimizer, "register_optimizer_step_post_hook", None)
        if register is not None:
            register(self.after_step)
        atexit.register(self.at_exit)

    # Modules ---------------------------------------------------------------------------------------------------------

    def resolve(self, unnamed):
        """Names layers. `unnamed`: (layer id, parent layer id, module or None, its address), callers before callees."""
        try:
            self.name_layers(unnamed)
        except Exception as error:
            self.native.warn(f"some layers keep their class names ({type(error).__name__}: {error})")

    def name_layers(self, unnamed):
        new_roots = False
        for layer, parent, module, address in unnamed:
            if module is None:
                module = self.alive_at(address)
            if not isinstance(module, self.torch.nn.Module):
                continue  # Died before it could be asked; its class name stands.
            self.watch(module)
            if parent == 0:
                self.layers[layer] = (weakref.ref(module), layer, "")
                self.roots[layer] = weakref.ref(module)
                for submodule in module.modules():
                    self.watch(submodule)
                self.native.layer(layer, "")
                new_roots = True
                continue
            name = self.name_below(parent, module)
            if name is None:
                continue
            root = self.layers[parent][1]
            self.layers[layer] = (weakref.ref(module), root, name)
            self.native.layer(layer, name)
        if new_roots:
            self.tag_all()

    def alive_at(self, address):
        watched = self.watched.get(address)
        return watched() if watched is not None else None

    def name_below(self, parent, module):
        known = self.layers.get(parent)
        caller = known[0]() if known is not None else None
        if caller is None:
            return None
        relative = next((name for name, child in caller._modules.items() if child is module), None)
        if relative is None:
            relative = next((name for name, child in caller.named_modules() if child is module), None)
        if relative is None:  # Not registered in its caller: held in a list, or passed as an argument.
            root = self.roots[known[1]]()
            if root is not None:
                found = next((name for name, child in root.named_modules() if child is module), None)
                if found is not None:
                    return found
            relative = f"({type(module).__name__})"
        return f"{known[2]}.{relative}" if known[2] else relative

    def watch(self, module):
        address = id(module)
        known = self.watched.get(address)
        if known is not None and known() is module:
            return
        watched, forget = self.watched, self.native.forget

        def died(reference):
            if watched.get(address) is reference:
                del watched[address]
            forget(address)

        watched[address] = weakref.ref(module, died)

    # Tensors ---------------------------------------------------------------------------------------------------------

    def tag(self, tensor, category, root, name):
        tensor = getattr(tensor, "_local_tensor", tensor)  # A DTensor's share of this rank.
        try:
            if not tensor.is_cuda:
                return
            self.native.tag(
                tensor.device.index or 0, tensor.data_ptr(), category, tensor.numel() * tensor.element_size(), root, name
            )
        except Exception:
            pass  # Fake, meta, quantised or otherwise without memory of its own.

    def tag_all(self):
        with self.torch._C.DisableTorchFunction():
            names = {}
            for root, reference in list(self.roots.items()):
                module = reference()
                if module is None:
                    del self.roots[root]
                    continue
                for name, parameter in module.named_parameters():
                    names.setdefault(id(parameter), (root, name))
                    self.tag(parameter, _PARAMETER, root, name)
                    if parameter.grad is not None:
                        self.tag(parameter.grad, _GRADIENT, root, name)
                for name, buffer in module.named_buffers():
                    self.tag(buffer, _BUFFER, root, name)
            for key, reference in list(self.optimizers.items()):
                optimizer = reference()
                if optimizer is None:
                    del self.optimizers[key]
                else:
                    self.tag_optimizer(optimizer, names)

    def tag_optimizer(self, optimizer, names):
        for group_index, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                known = names.get(id(parameter))
                if known is None:  # Optimized, but of no module that was called.
                    known = (0, f"param_groups.{group_index}.{index}")
                    self.tag(parameter, _PARAMETER, *known)
                    if parameter.grad is not None:
                        self.tag(parameter.grad, _GRADIENT, *known)
                # `state` makes an entry when asked for a missing one.
                state = optimizer.state[parameter] if parameter in optimizer.state else {}
                for key, value in state.items() if hasattr(state, "items") else ():
                    for suffix, tensor in self.tensors_in(value):
                        self.tag(tensor, _OPTIMIZER_STATE, known[0], f"{known[1]}:{key}{suffix}")

    def tensors_in(self, value):
        if isinstance(value, self.torch.Tensor):
            return (("", value),)
        if isinstance(value, (list, tuple)):
            return tuple((f".{i}", item) for i, item in enumerate(value) if isinstance(item, self.torch.Tensor))
        return ()

    def after_step(self, optimizer, args, kwargs):
        if os.getpid() != self.pid:
            return
        try:
            self.native.step()
            if id(optimizer) not in self.optimizers:
                self.optimizers[id(optimizer)] = weakref.ref(optimizer)
            self.steps += 1
            before = time.monotonic()
            if self.steps > _STEPS_TAGGED_ALWAYS and before < self.next_tagging:
                return
            self.tag_all()
            after = time.monotonic()
            pause = max((after - before) / _TAGGING_SHARE, _TAGGING_GROWTH * (after - self.started))
            self.next_tagging = after + pause
        except Exception:
            pass

    def at_exit(self):
        """The last moment before Python tears the program down: what is alive now is what it ended with."""
        if not self.finished and os.getpid() == self.pid:
            self.finished = True
            try:
                self.tag_all()
            except Exception:
                pass
            self.native.finish()


def start(native):
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "optim") or not hasattr(torch, "nn"):
        return None
    try:
        return Agent(native, torch)
    except Exception as error:
        native.warn(f"layers keep their class names ({type(error).__name__}: {error})")
        return None
