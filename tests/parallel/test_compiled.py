"""Two ranks that share a compiled model: how many programs it takes, and that they compute what the model computes."""

import json

import pytest

from ablate.norms import placements

# Rank 0 compiles, rank 1 does not, and both get the same batches: their losses are those of one model.
SCRIPT = """
import functools, json, sys
from pathlib import Path

import torch
from torch._dynamo.utils import counters

from ablate.distributed import groups, ranks
from ablate.experiment.tree import Experiment
from shared_models import CLASSES, SHAPES, share

compile, floats = torch.compile, []


def trace(program, inputs):  # a backend that runs what is traced as it is, and notes the Python floats among its inputs
    floats.extend(node.name for node in program.graph.nodes if node.op == "call_method" and node.target == "item")
    return program.forward


BACKENDS = {"trace": trace, "lower": "aot_eager"}  # the second: all of torch.compile but its slow last step


def batch(task, size):
    generator = torch.Generator().manual_seed(size)
    if task == "language_modeling":
        return torch.randint(CLASSES, (size, *SHAPES[task]), generator=generator)
    return torch.randn(size, *SHAPES[task], generator=generator)


def compute(backend, settings, sizes):
    torch.compile = functools.partial(compile, backend=BACKENDS[backend])
    torch.compiler.reset()
    counters.clear()
    floats.clear()
    torch.manual_seed(0)
    experiment = Experiment.from_mapping(settings)
    model, _ = share(experiment, compiled=ranks.rank() == 0)
    task, losses, programs = experiment.model.task, [], []
    for _ in range(2):
        model.train()
        loss = model(batch(task, 4)).float().logsumexp(-1).mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            losses += [model(batch(task, size)).float().logsumexp(-1).mean().item() for size in sizes]
        programs.append(counters["stats"]["unique_graphs"])
    breaks = sum(counters["graph_break"].values())
    return {"programs": programs, "losses": losses, "floats": len(floats), "breaks": breaks}


def everything(cases, out):
    results = {name: compute(*case) for name, case in json.loads(cases).items()}
    Path(f"{out}-{ranks.rank()}").write_text(json.dumps(results))


if __name__ == "__main__":
    with groups.lead() as ending:
        if ending.leads:
            with groups.run_together(everything, *sys.argv[1:]):
                everything(*sys.argv[1:])
            ending.status = 0
    sys.exit(ending.status)
"""


def settings(kind, family="llama", **norm):
    return {
        "model": {"kind": family, "hidden": 16, "layers": 4, "heads": 2},
        "norm": {"kind": kind, **({"alpha": 0.5} if kind == "mix" else {}), **norm},
        "trainer": {"strategy": "fsdp", "batch_size": 8},
    }


WHOLE, SMALLER = (4,), (4, 3)  # the batches of a validation
CASES = {
    **{kind: ("trace", settings(kind), SMALLER if kind in ("pre", "lns", "mix") else WHOLE) for kind in placements},
    "vit lns": ("trace", settings("lns", "vit"), WHOLE),
    "lowered lns": ("lower", settings("lns"), SMALLER),
}
DAILY = {"pre", "post", "mix", "deepnorm", "vit lns", "lowered lns"}  # the other placements by `make chaos`


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.chaos)])
def test_layers_share_programs_and_no_validation_but_the_first_compiles_any(every, run_by_two, tmp_path):
    """Training, a whole batch of the validation, and its smaller last one are a program each, for each kind of layer:
    the first of lns has no factor. A float that is an input is none any more when torch lowers a program that is not
    trained: it compiles one for each value."""
    cases, out = {name: case for name, case in CASES.items() if every or name in DAILY}, tmp_path / "out"
    ended = run_by_two(SCRIPT, json.dumps(cases), out)
    assert [status for status, *_ in ended] == [0, 0], ended
    compiled, eager = (json.loads((tmp_path / f"out-{rank}").read_text()) for rank in (0, 1))
    for name, (_, tree, sizes) in cases.items():
        kinds = 2 if tree["norm"]["kind"] in ("mix", "by_depth", "lns") else 1
        result = compiled[name]
        assert result["programs"] == [kinds * (1 + len(sizes))] * 2, name
        assert (result["floats"], result["breaks"]) == (0, 0), name
        assert result["losses"] == pytest.approx(eager[name]["losses"], rel=1e-5), name
        assert eager[name]["programs"] == [0, 0]
