"""Tokens and images per second of one training step, as ratios to a peer in a plain loop, alternating in one run.

    python benchmarks/step.py                       # every case, eager and fast
    python benchmarks/step.py --only llama-512 --pairs 20
    python benchmarks/step.py --only wiring-256 wiring-64 --modes eager --pairs 60 --segment 1
    python benchmarks/step.py --device cuda                                # the named sizes on a GPU
    python benchmarks/step.py --device cuda --sizes llama-71m --seq 256 --placements
    python benchmarks/step.py --sizes llama-9m --seq 64 --tokens 256 --pairs 2 --eager --precision 32-true
    python benchmarks/step.py --schemes --modes eager --pairs 5 --threads 1                   # all against Pre-LN
    python benchmarks/step.py --schemes hc mhc --modes eager compiled --pairs 5 --threads 1

LLaMA against `transformers`' LlamaForCausalLM and ViT against timm's, both in a plain loop with fused AdamW. After
every few of our updates the peer makes as many; a ratio is the peer's time over ours, so above 1 is faster than the
peer.

Without `--sizes` or a GPU: small models in float32, against peers in float32. Ours runs as a trial does: through
`ablate.train`, in Lightning, with metrics logged to MLflow. The wiring cases measure what it costs that a placement
builds the residual connections: our LLaMA of width 256, or 64 as in the demo, against the same model with blocks in
which Pre-LN is hard-coded. Both run in the same plain loop, from the same weights, in turns; the placement is always
`pre`, and mode auto is eager.

`--schemes` (those given, or all placements, norm layers and options of the attention that `peers.SCHEMES` names): a
step of each, and beside each a step of Pre-LN; LLaMA 256 wide, 8 layers, vocabulary 512, batches of 4 x 256, in a plain
loop, in float32. What is timed is the time of the processor that the process takes, so that other programs count less;
compiled as a run compiles, layer by layer, and the first step, which compiles, is timed alone.

With `--sizes` or a GPU, the named sizes: ours compiled, in Lightning, with the callbacks of a trial but without MLflow;
the peer's model plain and compiled; all in `--precision`, bf16-mixed unless said otherwise. Reported are tokens or
images a second, the share of the GPU's peak (FLOPs as `ablate plan` counts them) and the most memory that each has had,
what the others hold left out. `--placements` adds each placement (those given, or all) against `pre`, both in a plain
loop. A batch that does not fit is halved, for all sides.

Of what Ablate depends on, the named sizes need torch, lightning, timm, transformers, pydantic and pyarrow: no MLflow
and no Optuna. To a machine without a network that has the first four, carry the others (`--python-version`: its own):

    pip download -d wheels --no-deps --only-binary :all: --python-version 3.11 \
        pydantic pydantic-core annotated-types typing-inspection pyarrow
    pip install --no-index --no-deps wheels/*.whl && PYTHONPATH=. python benchmarks/step.py --device cuda
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import peers
import sized
import torch
import torch.nn.functional as F
from peers import Images, Tokens, plain_step
from timing import Pairs, Run, Turns, alternating, between, positive, seconds
from torch import Tensor, nn

from ablate import Experiment
from ablate.models.llama import Block, LlamaModel
from ablate.norms import placements
from ablate.norms.layer_modules import RMSNormModule
from ablate.parallel.compiling import CompiledParts, forget_programs, keep_programs

SEQ, BATCH = 256, 8
IMAGES = 16  # in a batch of 224 x 224
SIZE = {"hidden": 256, "mlp": 688, "layers": 6, "heads": 4}
DEMO = {"hidden": 64, "mlp": 172, "layers": 6, "heads": 2}
SCHEME = {"hidden": 256, "mlp": 688, "layers": 8, "heads": 4}
SKIP = 3  # updates of each side that are not timed: warm-up, compilation


class PreBlock(nn.Module):
    """A layer in which Pre-LN is hard-coded, of the attention and MLP of one of ours."""

    def __init__(self, block: Block, hidden: int) -> None:
        super().__init__()
        self.attn, self.mlp = block.attn, block.mlp
        self.attn_norm, self.mlp_norm = RMSNormModule(hidden, 1e-6), RMSNormModule(hidden, 1e-6)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x), table)
        x = x + self.mlp(self.mlp_norm(x))
        return x


def wiring(case: str, mode: str, pairs: int, segment: int) -> Pairs:
    """Our LLaMA with the placement `pre`, and the same with hard-coded blocks."""
    size = SIZE if case == "wiring-256" else DEMO
    data = Tokens(512, SEQ)
    experiment = Experiment.from_mapping({"model": {"kind": "llama", **size}, "norm.kind": "pre"})

    def model(hard_coded: bool) -> nn.Module:
        torch.manual_seed(0)
        built = experiment.model.build(experiment.norm, experiment.init, 512, (SEQ,))
        assert isinstance(built, LlamaModel)
        if hard_coded:
            built.layers = nn.ModuleList(
                PreBlock(block, built.config.hidden) for block in built.layers if isinstance(block, Block)
            )
        return built

    models = [model(hard_coded) for hard_coded in (False, True)]
    inputs = data.__getitems__(range(2))[0]
    if not torch.equal(models[0](inputs), models[1](inputs)):
        raise SystemExit("the two models compute different things; bring PreBlock up to date")
    batch = data.__getitems__(range(BATCH))
    ours, theirs = (plain_step(m, token_loss(m, mode), batch) for m in models)
    return alternating(ours, theirs, pairs, segment, skip=SKIP)


def token_loss(model: nn.Module, mode: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The cross-entropy of a language model in a plain loop, in the arithmetic of `mode`."""
    settings = MODES[mode]
    forward = torch.compile(model) if settings.get("compile") else model
    bf16 = settings.get("precision") == "bf16-mixed"

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = forward(tokens)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    return loss


def measure(case: str, mode: str, pairs: int, segment: int, norm: str) -> Pairs:
    """Runs one case and mode; see `CASES` and `MODES`."""
    from ablate.training.procedures import Hooks
    from ablate.training.train import train

    if case.startswith("wiring"):
        return wiring(case, mode, pairs, segment)
    torch.manual_seed(0)
    family, _, vocabulary = case.partition("-")
    steps = SKIP + pairs * segment + 1  # nothing is asked after the last update
    trainer = {"max_steps": steps, "batch_size": BATCH if family == "llama" else IMAGES, **MODES[mode]}
    settings = {"norm.kind": norm, "trainer": {**trainer, "val_check_interval": steps}}
    if family == "llama":
        settings |= {
            "model": {"kind": "llama", **SIZE},
            "data": {"kind": "random_tokens", "vocabulary": int(vocabulary), "seq_len": SEQ},
        }
    else:
        settings |= {"model": "vit-tiny", "data": {"kind": "random_images"}}
    experiment = Experiment.from_mapping(settings)
    if family == "llama":
        peer = peers.llama(experiment.model, int(vocabulary), SEQ)
        step = plain_step(*peer, Tokens(int(vocabulary), SEQ).__getitems__(range(BATCH)))
    else:
        step = plain_step(*peers.vit(experiment.model), Images().__getitems__(range(IMAGES)))
    turns = Turns({"peer": step}, segment, SKIP)
    train(experiment, hooks=Hooks(asked_to_stop=turns))
    return turns.pairs("peer")


def scheme_step(name: str, mode: str) -> Run:
    """One update of a scheme in a plain loop."""
    experiment = Experiment.from_mapping({"model": {"kind": "llama", **SCHEME}, **peers.SCHEMES[name]})
    torch.manual_seed(0)
    model = experiment.model.build(experiment.norm, experiment.init, 512, (SEQ,))
    parts = CompiledParts(model).run if MODES[mode].get("compile") else contextlib.nullcontext

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        found: Tensor = model(tokens, targets)
        return found

    step = plain_step(model, loss, Tokens(512, SEQ).__getitems__(range(4)))

    def run() -> None:
        with parts():
            step()
        experiment.norm.after_update(model, 1)

    return run


def compare_schemes(names: list[str], modes: list[str], pairs: int) -> None:
    """The table of the schemes, in turns with Pre-LN."""
    print("| scheme | mode | its time / that of Pre-LN | quartiles | first step, s |\n|---|---|---|---|---|")
    for mode in modes:
        forget_programs()
        keep_programs("schemes")
        pre = scheme_step("pre", mode)
        pre()
        for name in names:
            ours = scheme_step(name, mode)
            first = seconds(ours, 1, clock=time.process_time)
            found = alternating(pre, ours, pairs, 1, skip=1, clock=time.process_time).spread()
            print(f"| {name} | {mode} | {found.median:.2f} | {between(found.quartiles)} | {first:.1f} |", flush=True)


CASES = ("llama-512", "llama-32000", "vit-tiny", "wiring-256", "wiring-64")
MODES: dict[str, dict[str, object]] = {
    "eager": {"precision": "32-true", "compile": False},
    "bf16": {"precision": "bf16-mixed", "compile": False},
    "compiled": {"precision": "32-true", "compile": True},
    "fast": {"precision": "bf16-mixed", "compile": True},
    "auto": {},
}


def named_sizes(given: argparse.Namespace) -> int:
    """The tables of the named sizes."""
    if given.device == "cuda" and not torch.cuda.is_available():
        print("benchmarks/step.py --device cuda needs a GPU; torch finds none", file=sys.stderr)
        return 2
    if given.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Lightning would take a GPU
    given.sizes = given.sizes or list(sized.SIZES)
    if given.placements == []:
        given.placements = [name for name in placements if name not in ("pre", "by_depth")]
    sized.tabulate(given)
    return 0


def main() -> int:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    top.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    top.add_argument("--modes", nargs="+", choices=list(MODES), default=["eager", "fast"])
    top.add_argument("--pairs", type=positive, default=12, help="timed segments of each side")
    top.add_argument("--segment", type=positive, default=4, help="updates in a segment")
    top.add_argument("--norm", default="pre", help="placement of our model, except in the wiring cases")
    top.add_argument("--threads", type=positive, default=os.cpu_count() or 1)
    named = top.add_argument_group("the named sizes: with --device cuda, or --sizes")
    named.add_argument("--sizes", nargs="+", metavar="MODEL", help=f"default: {' '.join(sized.SIZES)}")
    named.add_argument("--seq", nargs="+", type=positive, default=[256, 1024], help="lengths of a language model")
    named.add_argument("--tokens", type=positive, default=16384, help="in a batch")
    named.add_argument("--images", type=positive, default=128, help="in a batch")
    named.add_argument("--precision", choices=("bf16-mixed", "bf16-true", "32-true"), default="bf16-mixed")
    named.add_argument("--eager", action="store_true", help="compile nothing, and leave the compiled peer out")
    named.add_argument("--placements", nargs="*", help="these, or all, against pre")
    top.add_argument("--schemes", nargs="*", choices=list(peers.SCHEMES), metavar="SCHEME", help="against Pre-LN")
    given = top.parse_args()
    torch.set_num_threads(given.threads)
    if given.schemes is not None:
        compare_schemes(given.schemes or list(peers.SCHEMES), given.modes, given.pairs)
        return 0
    if given.device == "cuda" or given.sizes:
        return named_sizes(given)
    print(f"threads {given.threads}; {given.pairs} pairs of {given.segment} updates; ratio = peer's time / ours")
    columns = ("mode", 10), ("ratio", 8), ("quartiles", 18), ("95 % of median", 18), ("range", 18)
    print(f"{'case':14}" + "".join(f"{name:{width}}" for name, width in columns) + f"{'ours/s':>9}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ABLATE_STORE"] = folder
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        for case in given.only:
            for mode in given.modes:
                found = measure(case, mode, given.pairs, given.segment, given.norm)
                spread = found.spread()
                items = given.segment * (IMAGES if case == "vit-tiny" else BATCH * SEQ)
                rate = items / statistics.median(found.ours)
                pairs = (spread.quartiles, spread.interval, spread.range)
                ranges = "".join(f"{between(pair, 3):18}" for pair in pairs)
                print(f"{case:14}{mode:10}{spread.median:<8.3f}{ranges}{rate:9,.0f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
