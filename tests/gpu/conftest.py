"""One process for all tests of a device that is not there, whose results they read."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import filelock
import pytest
import torch

HERE = Path(__file__).parent
TORCH = Path(torch.__file__).parent
SECONDS = 540  # of the full product more, which has its own limit
WITH_CUDA = torch.version.cuda is not None or torch.version.hip is not None
"""Whether torch is built with a device guard of its own, for a driver."""


def find_compiler():
    return next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


def compile_device(folder):
    """The device as a library that is loaded before torch."""
    compiler, library = find_compiler(), folder / "device.so"
    if sys.platform != "linux":
        pytest.skip("the device is compiled for Linux alone")
    if compiler is None:
        pytest.skip("there is no C++ compiler (c++, g++, clang++) to compile the device with")
    words = ["-shared", "-fPIC", "-O0", "-w", f"-I{TORCH / 'include'}", str(HERE / "device.cpp"), "-o", str(library)]
    words += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    words += [f"-L{TORCH / 'lib'}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{TORCH / 'lib'}"]
    for standard in ("c++17", "c++20"):  # torch's headers want the second at some time
        compiled = subprocess.run([compiler, f"-std={standard}", *words], capture_output=True, text=True)
        if compiled.returncode == 0:
            return library
    raise AssertionError(compiled.stderr)


@pytest.fixture(scope="session")
def proof(tmp_path_factory):
    """What `proof.py` has seen, run once for all test processes."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder /= "gpu-proof"
    folder.mkdir(exist_ok=True)
    out = folder / "out.json"
    with filelock.FileLock(folder / "lock"):
        if not out.exists():
            out.write_text(json.dumps(run_proof(folder)))
    results = json.loads(out.read_text())
    if reason := results.get("skipped"):
        pytest.skip(reason)
    return results


def run_proof(folder):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent.parent), str(HERE.parent)])}
    environment |= {"OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    if not WITH_CUDA:
        environment["FAKE_DEVICE"] = str(compile_device(folder))
    words = [sys.executable, str(HERE / "proof.py"), str(folder / "seen.json")]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=SECONDS * 20)
    if WITH_CUDA and ended.returncode < 0:
        return {"skipped": "this torch is built with CUDA, whose device guard ends a process that has no driver"}
    assert ended.returncode == 0, ended.stderr[-4000:]
    return json.loads((folder / "seen.json").read_text())
