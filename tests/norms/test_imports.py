"""Norms can be used alone: they load neither what launches processes nor what keeps results."""

import json
import subprocess
import sys

CODE = """
import json, sys
from ablate.norms import placements
assert list(placements)
print(json.dumps(sorted(sys.modules)))
"""
OURS = ("ablate.distributed.launching", "ablate.distributed.slurm", "ablate.distributed.groups", "ablate.tracking")
LIBRARIES = ("mlflow", "submitit", "optuna", "lightning", "ray", "datasets")


def test_norms_load_no_launcher_and_no_store():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules = json.loads(done.stdout)
    assert "ablate.norms.placements" in modules
    for name in (*OURS, *LIBRARIES):
        assert not [module for module in modules if module == name or module.startswith(f"{name}.")]
