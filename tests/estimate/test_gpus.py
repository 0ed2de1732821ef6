"""The GPU that a driver's name stands for: its own peak, or none."""

import pytest

from ablate.estimate.gpus import GIB, GPUS
from benchmarks.detected import match_gpu

NAMES = {  # by the driver's name: memory in GiB, the entry
    "NVIDIA H100 80GB HBM3": (79.1, "h100-80gb"),
    "NVIDIA H100 PCIe": (79.1, "h100-pcie"),
    "NVIDIA H100 NVL": (93.1, "h100-nvl"),
    "NVIDIA H200": (139.7, "h200"),
    "NVIDIA H200 NVL": (139.7, "h200-nvl"),
    "NVIDIA B200": (178.0, "b200"),
    "NVIDIA A100-SXM4-40GB": (39.4, "a100-40gb"),
    "NVIDIA A100-PCIE-40GB": (39.4, "a100-40gb"),
    "NVIDIA A100 80GB PCIe": (79.1, "a100-80gb"),
    "NVIDIA L40S": (44.4, "l40s"),
    "NVIDIA L4": (22.0, "l4"),
    "NVIDIA GeForce RTX 3090": (23.6, "rtx-3090"),
    "NVIDIA GeForce RTX 4090": (23.5, "rtx-4090"),
    "NVIDIA GeForce RTX 3090 Ti": (23.6, None),
    "NVIDIA GeForce RTX 4090 D": (23.5, None),
    "NVIDIA GeForce RTX 4090 Laptop GPU": (16.0, None),
    "NVIDIA A100-SXM4-40GB MIG 3g.20gb": (19.6, None),
    "NVIDIA L40": (44.4, None),
    "NVIDIA GH200 480GB": (94.5, None),
    "Tesla V100-SXM2-32GB": (31.7, None),
    "AMD Instinct MI300X": (191.5, None),
}


@pytest.mark.parametrize("called", NAMES)
def test_a_name_gives_its_own_peak_or_none(called):
    memory, name = NAMES[called]
    found = match_gpu(called, memory * GIB)
    assert (found and found.name) == name


def test_every_gpu_of_the_table_is_found_by_a_name():
    assert {name for _, name in NAMES.values() if name} == set(GPUS)
