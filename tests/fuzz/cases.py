"""The fuzzers: what each tries, and what must hold of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from fuzz import strategies as ours
from fuzz.bench import FILES, SWEEP, TINY, Bench
from fuzz.calls import call, write_down
from hypothesis import strategies as st
from run_table import by_arm

from ablate import tracking
from ablate.config.errors import ConfigError
from ablate.scheduler.storage import open_storage, read_sweep
from ablate.sweeps.spec.sweep import Sweep
from benchmarks.simulation.losses import Valley
from benchmarks.simulation.sweeps import simulate


@dataclass(frozen=True)
class Case:
    """A fuzzer."""

    what: str
    """"configurations" or "files": what its examples are counted as."""
    examples: st.SearchStrategy[Any]
    check: Callable[[Bench, Any], None]
    """Raises BrokenError, or whatever is wrong."""
    share: int
    """How often it has its turn in a long run."""
    quick: int
    """Examples in the default test run."""


CASES: dict[str, Case] = {}


def case(what: str, examples: st.SearchStrategy[Any], share: int, quick: int) -> Callable[[Any], Any]:
    """Register a check under the name of its function."""

    def register(check: Callable[[Bench, Any], None]) -> Callable[[Bench, Any], None]:
        CASES[check.__name__] = Case(what, examples, check, share, quick)
        return check

    return register


# ---------------------------------------------------------------------------------------------------- configurations


@case("configurations", ours.settings(), share=50, quick=30)
def configurations(bench: Bench, settings: dict[str, Any]) -> None:
    """An experiment of any settings is printed or refused."""
    call(["config", *(ours.write_word(path, value) for path, value in settings.items())])


@case("configurations", ours.settings(4), share=8, quick=0)
def plans(bench: Bench, settings: dict[str, Any]) -> None:
    """Its plan is made or refused."""
    words = [ours.write_word(path, value) for path, value in settings.items()]
    if call(["config", *words])[0] == 0:
        call(["plan", *words, "--json"])


@case("configurations", ours.sweeps(), share=12, quick=5)
def sweeps(bench: Bench, tree: dict[str, Any]) -> None:
    """A sweep is planned or refused."""
    file = bench.fresh("sweep.yaml")
    file.write_text(yaml.safe_dump(tree, allow_unicode=True))
    call(["sweep", str(file), "--dry-run"])


_SLOW = ("devices", "nodes", "num_workers", "compile", "copy_to", "max_steps", "batch_size", "accumulate", "diagnose")
_KEPT = [
    path
    for path in ours.PATHS
    if path.partition(".")[0] in ("norm", "init", "optimizer", "schedule", "trainer", "seed", "lora")
    and path.rpartition(".")[2] not in (*_SLOW, "trainer", "warmup_steps")
]


@st.composite
def _trainings(draw: Any) -> dict[str, Any]:
    kept = draw(st.lists(st.sampled_from(sorted(_KEPT)), max_size=5, unique=True))
    family = draw(st.sampled_from(["llama", "vit"]))
    return {"model": family, **{path: draw(ours.values(ours.PATHS[path])) for path in kept}}


@case("configurations", _trainings(), share=4, quick=0)
def trainings(bench: Bench, settings: dict[str, Any]) -> None:
    """Two updates of a small model are made, or refused."""
    words = [ours.write_word(path, value) for path, value in settings.items()]
    call(["train", *words, *TINY])


@case("configurations", st.lists(ours.names(), min_size=1, max_size=3, unique=True), share=3, quick=3)
def arm_names(bench: Bench, names: list[str]) -> None:
    """A name of an arm is refused, or survives a simulated sweep, the search for its run, status and report."""
    write_down(f"a sweep with arms {names!a}")
    tree = {**SWEEP, "name": "named", "arms": {name: {"norm": "pre"} for name in names}, "factor": "norm"}
    try:
        spec = Sweep.from_tree({**tree, "baseline": names[0], "budget": {"trials": 1}})
    except ConfigError:
        return
    url = f"sqlite:///{bench.fresh('optuna.db')}"
    simulate(spec, Valley(dict.fromkeys(names, 2.0)), open_storage(url))
    record = read_sweep("named", url)
    assert list(by_arm(record)) == names
    for name in names:
        tags = {"ablate.arm": name, "ablate.trial": "0"}
        run_id = tracking.Tracker.start("named", name, tags).run_id
        assert tracking.client().get_run(tracking.find_run("named", tags)).data.tags["ablate.arm"] == name
        tracking.client().delete_run(run_id)
    call(["status", "named", "--storage", url, "--json"])
    call(["report", "named", "--storage", url, "--json"])


# ---------------------------------------------------------------------------------------------------- files


def _read_by(name: str, file: Path, bench: Bench) -> list[str]:
    """The command that reads a file."""
    if name == "sweep.yaml":
        return ["sweep", str(file), "--dry-run"]
    if name.endswith(".yaml"):
        return ["config", str(file)]
    text = ["train", *TINY, "data=text", "data.seq_len=8", "model.vocab_size=400"]
    if name.startswith("tokenizer"):
        return [*text, f"data.files={bench.file('text.txt')}", f"data.tokenizer={file}"]
    if name.startswith("image"):
        images = ["data=image_folder", f"data.root={file.parent.parent}", "data.image_size=16", "data.val_fraction=0.4"]
        return ["train", *TINY, "model=vit", "model.patch_size=8", *images]
    if name.startswith("talks"):
        return ["train", *TINY, "data=instructions", f"data.files={file}", "data.seq_len=32", "data.val_fraction=0.3"]
    if name.startswith("pairs"):
        start = [f"warm_start.from={bench.checkpoint('llama')}", "warm_start.copy=all", "align.method=reward"]
        return ["train", *TINY, "data=preferences", f"data.files={file}", "data.seq_len=32", *start]
    if name.startswith("words"):
        return ["diagnose", str(bench.checkpoint("llama")), "--what", "word_similarity", "--pairs", str(file)]
    return [*text, f"data.files={file}", "data.val_fraction=0.3"]


YAMLS = tuple(name for name in FILES if name.endswith(".yaml"))


def _damage_file(bench: Bench, name: str, damage: list[ours.Damage]) -> None:
    whole = bench.file(name)
    if name.startswith("image"):
        file = bench.fresh(f"a/{name}")
        for place in ("b/whole.png", "b/other.png", "a/whole.png", "a/other.png"):
            (file.parent.parent / place).parent.mkdir(exist_ok=True)
            shutil.copy(bench.file("image.png"), file.parent.parent / place)
    else:
        file = bench.fresh(name)
    file.write_bytes(ours.apply_all(damage, whole.read_bytes()))
    call(_read_by(name, file, bench))


@case("files", st.tuples(st.sampled_from(YAMLS), ours.damages()), share=20, quick=30)
def yaml_files(bench: Bench, example: tuple[str, list[ours.Damage]]) -> None:
    """A damaged YAML file is read or refused."""
    _damage_file(bench, *example)


@case("files", st.tuples(st.sampled_from(sorted({*FILES} - {*YAMLS})), ours.damages()), share=8, quick=0)
def data_files(bench: Bench, example: tuple[str, list[ours.Damage]]) -> None:
    """Damaged text, tables, images, tokenizers, conversations and word pairs are read or refused."""
    _damage_file(bench, *example)


_FAMILIES = st.sampled_from(["llama", "lns", "vit"])


def _list_readers(file: Path, family: str, bench: Bench) -> list[list[str]]:
    """The commands that open a model."""
    own = {"llama": ["norm=pre"], "lns": ["norm=lns"], "vit": ["model=vit"]}[family]
    sizes = ["model.hidden=16", "model.layers=2", "model.heads=2", "trainer.max_steps=1", "trainer.batch_size=2"]
    sizes += ["schedule.warmup_fraction=0", "data.val_fraction=0.0005"]
    out = str(bench.folder / "out")
    return [
        ["export", str(file), "--to", "safetensors", "--output", out],
        ["export", str(file), "--to", "timm" if family == "vit" else "hf", "--output", out],
        ["export", str(file), "--to", "consolidated", "--output", out, "--not-finite"],
        ["diagnose", str(file), "--tokens", "64", "--what", "angular,variance", "--output", out],
        ["diagnose", str(file), "--what", "word_similarity", "--pairs", str(bench.file("words.csv"))],
        ["train", *own, *sizes, f"warm_start.from={file}", "warm_start.copy=all"],
    ]


def _open_model(bench: Bench, file: Path, family: str, reader: int) -> None:
    shutil.rmtree(bench.folder / "out", ignore_errors=True)
    commands = _list_readers(file, family, bench)
    call(commands[reader % len(commands)])


_READERS = st.sampled_from([0, 0, 0, 1, 2, 3, 4, 5])


@case("files", st.tuples(_FAMILIES, ours.damages(), st.sampled_from([0, 1])), share=6, quick=8)
def checkpoint_bytes(bench: Bench, example: tuple[str, list[ours.Damage], int]) -> None:
    """A damaged checkpoint is refused, or it is whole."""
    family, damage, reader = example
    file = bench.fresh("last.ckpt")
    file.write_bytes(ours.apply_all(damage, bench.checkpoint(family).read_bytes()))
    _open_model(bench, file, family, reader)


@case(
    "files", st.tuples(_FAMILIES, st.lists(ours.replacements(), min_size=1, max_size=2), _READERS), share=12, quick=20
)
def checkpoint_contents(bench: Bench, example: tuple[str, list[ours.Replacement], int]) -> None:
    """A checkpoint whose content somebody has changed is opened or refused."""
    family, changes, reader = example
    content = torch.load(bench.checkpoint(family), weights_only=True)
    for change in changes:
        content = change.apply(content)
    file = bench.fresh("last.ckpt")
    torch.save(None if content is ours.DROPPED else content, file)
    _open_model(bench, file, family, reader)


_FOLDERS = st.sampled_from(
    [("llama", "safetensors"), ("vit", "safetensors"), ("llama", "hf"), ("lns", "hf"), ("vit", "timm")]
)


@case("files", st.tuples(_FOLDERS, st.integers(0, 9), ours.damages(), _READERS), share=6, quick=0)
def exported_folders(bench: Bench, example: tuple[tuple[str, str], int, list[ours.Damage], int]) -> None:
    """An exported folder of which a file is damaged is opened or refused."""
    (family, form), number, damage, reader = example
    folder = bench.fresh("exported")
    shutil.copytree(bench.export(family, form), folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".py")
    file = files[number % len(files)]
    file.write_bytes(ours.apply_all(damage, file.read_bytes()))
    if form == "safetensors":
        _open_model(bench, folder, family, reader)
    elif form == "hf":
        data = ["--data", str(bench.file("text.txt")), "tokenizer=bytes", "seq_len=8"]
        call(
            ["diagnose", f"hf:{folder}", *data, "--tokens", "64", "--what", "angular", "--output", str(folder / "out")]
        )
    else:
        images = ["--data", "digits", "--tokens", "4", "--what", "angular", "--output", str(folder / "out")]
        call(["diagnose", f"timm:{folder}", *images])


_VERBS = st.sampled_from(["status", "report", "sweep", "status of one", "export", "train"])


@case("files", st.tuples(st.sampled_from(["optuna.db", "mlflow.db"]), ours.damages(), _VERBS), share=4, quick=0)
def databases(bench: Bench, example: tuple[str, list[ours.Damage], str]) -> None:
    """A damaged database of the studies or of MLflow is told, or what is read of it is whole."""
    name, damage, verb = example
    file = bench.fresh(name)
    for whole in ("optuna.db", "mlflow.db"):
        shutil.copy(bench.database(whole), file.with_name(whole))
    file.write_bytes(ours.apply_all(damage, file.read_bytes()))
    small = bench.file("sweep.yaml")
    words = {
        "status": ["status"], "report": ["report", "kept", "--json"], "sweep": ["sweep", str(small), "--dry-run"],
        "status of one": ["status", "kept", "--json"], "train": ["train", *TINY],
        "export": ["export", "sweep:kept/a", "--to", "safetensors", "--output", str(bench.folder / "out")],
    }  # fmt: skip
    before = os.environ["ABLATE_STORE"]
    try:
        os.environ["ABLATE_STORE"] = str(file.parent)
        tracking.client.cache_clear()
        call(words[verb])
    finally:
        os.environ["ABLATE_STORE"] = before
        tracking.client.cache_clear()
