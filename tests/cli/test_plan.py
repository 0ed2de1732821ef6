"""The commands that a plan prints are commands of ours, for the file that was planned."""

import json
import shlex
from pathlib import Path

import pytest

from ablate.cli import build_parser, main

SWEEP = """\
name: own
experiment: {model: llama-9m, data: {kind: topics, seq_len: 64}, trainer: {max_steps: 50, batch_size: 16}}
arms: {pre: {norm: pre}, post: {norm: post}}
search: {optimizer.lr: [0.001, 0.002]}
sampler: grid
confirm: {seeds: 4}
"""
RUN = "model: llama-9m\ndata: {kind: topics, seq_len: 64}\ntrainer: {batch_size: 16}\n"


@pytest.fixture
def plan(tmp_path, monkeypatch, capsys):
    """plan(words) -> the JSON of a plan."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own sweep.yaml").write_text(SWEEP)
    (tmp_path / "run.yaml").write_text(RUN)

    def plan(*words):
        assert main(["plan", *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return plan


def parse(command):
    """Return the words of torchrun before `-m`, and what our parser makes of the rest."""
    line = next(line for line in command.splitlines() if "ablate " in line)
    if "exec " in line:  # a string for bash
        line = shlex.split(line)[-1].split("exec ")[1]
    words = shlex.split(line)
    begin = words.index("ablate")
    given, rest = build_parser().parse_known_args(words[begin + 1 :])
    given.words += rest
    return words[:begin], given


def test_a_sweep_of_runs_on_one_gpu(plan):
    commands = plan("own sweep.yaml", "model.hidden=128")["commands"]
    assert [*commands] == ["one machine", "Slurm", "Ray", "torchrun"]
    for name in ("one machine", "Slurm", "Ray"):
        before, given = parse(commands[name])
        assert (before, given.verb, given.file, given.words) == ([], "sweep", "own sweep.yaml", ["model.hidden=128"])
    assert parse(commands["one machine"])[1].workers_per_gpu == "auto"
    _, slurm = parse(commands["Slurm"])
    assert slurm.submit == ["slurm.partition=PARTITION", "timeout_min=30", "gpus_per_node=1", "cpus_per_task=8"]
    _, ray = parse(commands["Ray"])
    assert (ray.executor, ray.address, ray.gpus_per_worker, ray.workers) == ("ray", "auto", 1, slurm.workers)
    assert slurm.workers == 2 * (2 + 2 * 4 + 4)  # trials, candidates on further seeds, fresh seeds


@pytest.mark.parametrize(("file", "verb"), [("own sweep.yaml", "sweep"), ("run.yaml", "train")])
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_run_on_several_gpus(plan, file, verb, nodes):
    commands = plan(file, "--devices", "4", "--nodes", str(nodes))["commands"]
    own = ["trainer.devices=4", *(["trainer.nodes=2"] if nodes == 2 else [])]
    (torchrun,) = (command for name, command in commands.items() if name.startswith("torchrun"))
    for command in (torchrun, commands["Slurm"]):
        before, given = parse(command)
        assert (given.verb, [getattr(given, "file", None), *given.words][-len(own) - 1 :]) == (verb, [file, *own])
        assert before[before.index("--nproc-per-node") + 1] == "4"
        assert before[-1] == "-m"
        assert ("--nnodes" in before) == (nodes == 2 or command is not torchrun)
    assert f"--nodes={nodes} --ntasks-per-node=1 --gpus-per-node=4 --cpus-per-task=32" in commands["Slurm"]
    assert commands["Ray"].startswith("no command")
    assert ("one machine" in commands) == (nodes == 1 and verb == "train")


def test_what_does_not_fit_is_started_with_what_fits_or_not_at_all(plan):
    small = ["--gpu", "mine", "--gpu-flops", "9", "--gpu-memory"]
    found = plan("run.yaml", "trainer.batch_size=4096", *small, "4")
    assert found["would_fit"][0]["settings"][0] in parse(found["commands"]["one machine"])[1].words
    assert [*plan("run.yaml", *small, "1.02")["commands"]] == ["none"]
    assert [*plan("own sweep.yaml", *small, "1.02")["commands"]] == ["none"]


def test_the_hours_are_those_of_what_the_commands_start(plan):
    words = ["data.seq_len=4096", "trainer.batch_size=2", "--gpu", "mine", "--gpu-flops", "9", "--devices", "2"]
    words += ["--gpu-memory", "1.08"]
    found = plan("run.yaml", *words)
    more = found["would_fit"][0]["settings"]
    assert more == ["trainer.strategy=fsdp", "trainer.activation_checkpointing=true", "trainer.cpu_offload=true"]
    pasted = plan("run.yaml", *more, *words)
    assert (found["fits"], pasted["fits"]) == (False, True)
    for part in ("gpu_hours", "gpu_hours_computing", "gpu_hours_with_validation", "tokens_per_second", "preparation"):
        assert found[part] == pytest.approx(pasted[part])


def test_a_sweep_of_which_an_arm_does_not_fit_is_planned_with_what_its_commands_set(plan):
    Path("own sweep.yaml").write_text(SWEEP.replace("{norm: post}", "{model.layers: 12}") + "factor: model\n")
    words = ["trainer.batch_size=4096", "--gpu", "mine", "--gpu-flops", "9", "--gpu-memory", "12"]
    found = plan("own sweep.yaml", *words)
    (more,) = found["fits_with"]
    pasted = plan("own sweep.yaml", more, *words)
    assert (pasted["fits_with"], pasted["arms"], pasted["gpu_hours"]) == ([], found["arms"], found["gpu_hours"])
    assert parse(found["commands"]["Slurm"])[1].words == ["trainer.batch_size=4096", more]


def test_data_that_must_be_prepared_is_prepared_before_gpus_are_booked(plan):
    words = ["own sweep.yaml", "data=text", "data.files=a.txt", "data.train_tokens=1000", "--devices", "2"]
    found = plan(*words)
    assert found["arms"]["pre"]["trial"]["disk"]["data"] is None  # the validation tokens are not limited
    (first,) = (command for name, command in found["commands"].items() if name.startswith("first"))
    _, given = parse(first)
    assert given.dry_run
    assert given.words == [*words[1:4], "trainer.devices=auto", "trainer.nodes=null"]
    away = plan(*words, "trainer.strategy=fsdp", "trainer.cpu_offload=true")["commands"]
    assert "trainer.cpu_offload=false" in parse(next(iter(away.values())))[1].words  # one process refuses it
