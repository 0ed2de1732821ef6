"""GPUs for which a plan can be made: their memory, their peak FLOPs, and the share of the peak that training
reaches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ablate.config.errors import ConfigError, Problem, did_you_mean

GIB = 2**30


@dataclass(frozen=True)
class GPU:
    """One kind of GPU."""

    name: str
    memory: float
    """Bytes that torch reports (`total_capacity` in its out-of-memory message), which is less than the data sheet's
    number."""
    bf16: float
    """Peak FLOPs per second of dense bfloat16 matrix products with float32 sums, from the vendor's data sheet."""
    float32: float
    """The same in float32 without TensorFloat-32, which torch leaves off."""
    link: float = 32e9
    """Bytes per second and direction to the other GPUs of its machine: of NVLink between all, else of PCIe x16;
    where it is not known, of PCIe 4.0."""
    network: float = 12.5e9
    """Its share of the bits per second and direction of its machine's network."""

    def flops(self, precision: str) -> float:
        """Return the peak FLOPs per second at `precision`."""
        return self.float32 if precision == "32-true" else self.bf16


# Links: NVLink of HGX boards, or PCIe 5.0 and 4.0; bridges between two or four cards are not counted. Networks: of DGX
# A100 (8 x 200 Gbit/s), DGX H100, H200 and B200 (8 x 400); the others are assumed, 100 Gbit/s for eight GPUs.
_TABLE = {  # name: GiB, bfloat16 and float32 in TFLOPs, link in GB/s, network in Gbit/s
    "h100-80gb": (79.1, 989.4, 66.9, 450, 400),
    "h100-pcie": (79.1, 756.0, 51.2, 64, 12.5),
    "h100-nvl": (93.1, 835.5, 60.0, 64, 12.5),
    "h200": (139.7, 989.4, 66.9, 450, 400),
    "h200-nvl": (139.7, 835.5, 60.0, 64, 12.5),
    "b200": (178.0, 2250.0, 75.0, 900, 400),
    "a100-40gb": (39.4, 312.0, 19.5, 300, 200),
    "a100-80gb": (79.1, 312.0, 19.5, 300, 200),
    "l40s": (44.4, 362.1, 91.6, 32, 12.5),
    "l4": (22.0, 121.0, 30.3, 32, 12.5),
    "rtx-3090": (23.6, 71.2, 35.6, 32, 12.5),
    "rtx-4090": (23.5, 165.2, 82.6, 32, 12.5),
}
MOST_GIB, MOST_TFLOPS = 100_000, 1_000_000
"""Beyond any device: a larger value is a typing error, such as a wrong unit."""
GPUS = {
    name: GPU(name, gib * GIB, bf16 * 1e12, fp32 * 1e12, link * 1e9, network * 1e9)
    for name, (gib, bf16, fp32, link, network) in _TABLE.items()
}


def find_gpu(name: str, memory: float | None = None, tflops: float | None = None, link: float | None = None) -> GPU:
    """Return the GPU called `name`, with other `memory` (GiB), peak (TFLOPs of any precision) or `link` (GB/s) where
    set; with the first two any name is accepted. Raises ConfigError."""
    known = GPUS.get(name.lower().replace(" ", "-").replace("_", "-"))
    problems = []
    limits = (("--gpu-memory", memory, MOST_GIB), ("--gpu-flops", tflops, MOST_TFLOPS), ("--gpu-link", link, MOST_GIB))
    for flag, value, most in limits:
        if value is not None and value > most:
            problems.append(Problem(flag, f"must be at most {most:,}, far above any device", value))
    missing = {"--gpu-memory GIB": memory, "--gpu-flops TFLOPS": tflops}
    if known is None and (flags := " and ".join(flag for flag, value in missing.items() if value is None)):
        text = f"unknown GPU. Accepted: {', '.join(GPUS)}; any other needs {flags}."
        problems.append(Problem("--gpu", text + did_you_mean(name.lower(), GPUS), name))
    if problems:
        raise ConfigError(problems, "the command line")
    flops = tflops and tflops * 1e12
    given = {"memory": memory and memory * GIB, "bf16": flops, "float32": flops, "link": link and link * 1e9}
    changes: dict[str, Any] = {part: value for part, value in given.items() if value is not None}
    return replace(known or GPU(name, 0, 0, 0), **changes)


UTILISATION = ((20e6, 0.10), (100e6, 0.30), (500e6, 0.40), (float("inf"), 0.45))
"""(parameters of the layers, model FLOPs utilisation that is assumed below them). From published trainings on H100 and
A100 of 124M to 8B parameters, 33 to 48 %; below 100M small products leave a GPU waiting."""


def assume_utilisation(parameters: int) -> float:
    """Return the model FLOPs utilisation that is assumed for layers of so many parameters."""
    return next(share for below, share in UTILISATION if parameters < below)
