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
from gpu.cases import FULL

HERE = Path(__file__).parent
TORCH = Path(torch.__file__).parent
SECONDS = 3600 if FULL else 540


def find_compiler():
    return next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


def compile_device(folder):
    """The device as a library that is loaded before torch."""
    compiler, library = find_compiler(), folder / "device.so"
    if sys.platform != "linux" or torch.version.hip is not None:
        pytest.skip("the device is for Linux, and for a torch without ROCm")
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
            run_proof(folder, out)
    return json.loads(out.read_text())


def run_proof(folder, out):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent.parent), str(HERE.parent)])}
    environment |= {"OMP_NUM_THREADS": "1", "FAKE_DEVICE": str(compile_device(folder))}
    words = [sys.executable, str(HERE / "proof.py"), str(out)]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert ended.returncode == 0, ended.stderr[-4000:]
