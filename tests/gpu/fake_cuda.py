"""One CUDA device that is not there: tensors on it have a shape, a type and a device, and no numbers.

To be imported before torch: the compiled `device.cpp` (its path in FAKE_DEVICE) is loaded first. Autograd wants a
device guard, without which it aborts the process. What is left is torch's FakeTensorMode.
"""

import contextlib
import ctypes
import functools
import os
from unittest import mock

DEVICE = ctypes.CDLL(os.environ["FAKE_DEVICE"], mode=ctypes.RTLD_GLOBAL)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

DEVICE.register_guard()
CUDA = torch.device("cuda", 0)
aten = torch.ops.aten
COPIES = (aten._to_copy.default, aten.copy_.default)
PRODUCTS = (aten.mm.default, aten.addmm.default)
"""Those with weights. Attention's own are left out: it has other kernels on a real device."""


class Fake(FakeTensorMode):
    """FakeTensorMode that never computes on the device."""

    avoid_device_init = True


class Recorder(TorchDispatchMode):
    """Notes, under the name of what is going on (`phase`), what makes the host wait for the device, the types of matrix
    products, and collectives with their types. A number that is read from the device is 1."""

    def __init__(self):
        super().__init__()
        self.phase = "setup"
        self.waits, self.products, self.collectives = {}, {}, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is aten._local_scalar_dense.default:
            if args[0].device.type == "cuda":
                self.note(self.waits, "_local_scalar_dense")
            return 1.0 if args[0].dtype.is_floating_point else 1
        if torch.Tag.dynamic_output_shape in func.tags:  # as many as the values say: nonzero, masked_select, unique
            self.note(self.waits, func.overloadpacket.__name__)
        if func.namespace == "c10d":
            dtypes = {str(leaf.dtype) for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)}
            self.note(self.collectives, f"{func.overloadpacket.__name__} {' '.join(sorted(dtypes))}")
        out = func(*args, **kwargs)
        if func in COPIES:
            tensors = [leaf for leaf in tree_leaves((args, out)) if isinstance(leaf, torch.Tensor)]
            if len({tensor.device.type for tensor in tensors}) > 1:
                self.note(self.waits, "copy across devices")
        if func in PRODUCTS:
            self.note(self.products, f"{out.device.type} {out.dtype}")
        return out

    def note(self, where, what):
        counts = where.setdefault(self.phase, {})
        counts[what] = counts.get(what, 0) + 1


class Stream:
    """A stream or an event on which nothing happens."""

    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        return functools.partial(answer, None)


def answer(value, *args, **kwargs):
    return value


ANSWERS = {
    "is_available": True,
    "is_bf16_supported": True,
    "device_count": 1,
    "current_device": 0,
    "set_device": None,
    "empty_cache": None,
    "synchronize": None,
    "_lazy_init": None,
    "current_stream": Stream(),
    "default_stream": Stream(),
    "stream": contextlib.nullcontext(),
}
"""What functions of torch.cuda return that would ask a driver."""


@contextlib.contextmanager
def one_device():
    """Within, there is the device, and tensors are fake; yields the recorder."""
    with contextlib.ExitStack() as stack:
        for name, value in ANSWERS.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, functools.partial(answer, value)))
        for name in ("Stream", "Event"):
            stack.enter_context(mock.patch.object(torch.cuda, name, Stream))
        stack.enter_context(mock.patch.object(nn.Module, "_apply", convert))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # to choose another, torch asks what the device can do
        stack.enter_context(Fake(allow_non_fake_inputs=True))
        yield stack.enter_context(Recorder())


_converted = {}


def convert(module, fn, recurse=True):
    """In the place of nn.Module._apply, which would exchange the content of a fake parameter, and cannot: replaces
    it."""
    for child in module.children():
        child._apply(fn)
    for name, old in module._parameters.items():
        if old is not None:
            with torch.no_grad():
                new = fn(old)
            if new is not old:
                key = (id(old), new.device, new.dtype)  # tied weights stay tied
                _, module._parameters[name] = _converted.setdefault(key, (old, nn.Parameter(new, old.requires_grad)))
    for name, old in module._buffers.items():
        module._buffers[name] = old if old is None else fn(old)
    return module
