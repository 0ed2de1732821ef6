"""What is said of devices, and one command for all of them: started, stopped and queued again."""

import os
import signal
import socket
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from forked import Forked, run_ranks

from ablate import tracking
from ablate.config.errors import AblateError, ConfigError, OutOfMemory
from ablate.config.yaml import parse_overrides
from ablate.distributed import ranks, slurm
from ablate.estimate.memory import RESERVE, Meter, resolve_setup, subtract_reserve
from ablate.estimate.plan import advise
from ablate.experiment.tree import Experiment
from ablate.parallel.sharing import validate_sharing
from ablate.training.callbacks import Leave, Stop
from ablate.training.fit import fit
from ablate.training.module import TrainingModule
from ablate.training.precision import Speed
from ablate.training.procedures import Earlier, Hooks, Place
from ablate.training.runs import load_experiment, translate_errors
from ablate.training.train import train
from ablate.training.trainer import advise_less_memory, check_ranks, count_launches

WORDS = [
    "model.hidden=16", "model.layers=2", "model.heads=2", "model.mlp=32", "data.seq_len=32", "data.val_fraction=0.0005",
    "trainer.batch_size=4", "trainer.val_check_interval=20",
]  # fmt: skip


def trainer(**fields):
    return Experiment.from_mapping({"trainer": fields}).trainer


def test_a_group_of_another_size_is_refused_with_the_command_to_type(monkeypatch):
    with pytest.raises(ConfigError, match=r"trainer\.devices: .* torchrun --standalone --nproc-per-node 4 -m ablate"):
        check_ranks(trainer(devices=4))
    with pytest.raises(ConfigError, match=r"trainer\.nodes: .* torchrun --nnodes 2 --rdzv-backend c10d"):
        check_ranks(trainer(nodes=2))
    check_ranks(trainer(devices=1, nodes=1))
    with pytest.raises(
        ConfigError, match=r"cpu_offload: needs several processes: .* Set it to false, or trainer\.devices=2"
    ):
        check_ranks(trainer(strategy="fsdp", cpu_offload=True))
    monkeypatch.setattr(ranks, "world_size", lambda: 8)
    monkeypatch.setattr(ranks, "local_size", lambda: 4)
    check_ranks(trainer(strategy="fsdp", cpu_offload=True))
    check_ranks(trainer(devices=4, nodes=2, batch_size=16, accumulate=2))
    check_ranks(trainer(strategy="fsdp", tensor_parallel=2, batch_size=4))
    with pytest.raises(
        ConfigError, match=r"multiple of 8: 8 ranks, trainer\.accumulate 1\. Set it to 16 or 24 \(given: 20"
    ):
        check_ranks(trainer(batch_size=20))
    with pytest.raises(ConfigError, match="must divide the 8 ranks"):
        check_ranks(trainer(strategy="fsdp", tensor_parallel=3))


def test_more_devices_than_there_are_are_refused(monkeypatch):
    assert count_launches(trainer(devices=2)) == 2
    assert count_launches(trainer()) == count_launches(trainer(devices=1)) == 0
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert count_launches(trainer(devices=2)) == 2
    with pytest.raises(ConfigError, match=r"this machine has 2 GPUs: set it to 2 at most \(given: 8\)"):
        count_launches(trainer(devices=8))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tensor_parallel": 2}, r"tensor_parallel: needs trainer\.strategy=fsdp"),
        ({"cpu_offload": True, "strategy": "ddp"}, r"cpu_offload: needs trainer\.strategy=fsdp"),
        ({"gradient_sync": "update"}, r"gradient_sync: needs trainer\.strategy=fsdp"),
        ({"strategy": "fsdp", "ema_decay": 0.9}, r"ema_decay: needs whole weights"),
        ({"strategy": "deepspeed"}, r"strategy: .*ddp"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        trainer(**fields)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "vit-digits"}, "model vit does not support tensor parallelism. Accepted: llama"),
        ({"model.heads": 2}, "model.heads: must be a multiple of trainer.tensor_parallel"),
        ({"norm": "subln"}, "normalises tensors that are split over the ranks"),
    ],
)
def test_matrices_are_shared_only_where_that_gives_the_same_model(settings, message):
    size = 4 if "model.heads" in settings else 2
    run = Experiment.from_mapping({"trainer": {"strategy": "fsdp", "tensor_parallel": size}}, settings)
    assert any(message in str(problem) for problem in validate_sharing(run))
    plain = Experiment.from_mapping({"trainer": {"strategy": "fsdp", "tensor_parallel": 2}}, {"model.kv_heads": 2})
    assert validate_sharing(plain) == []


@pytest.fixture
def full(monkeypatch):
    """Every training step is out of memory."""

    def step(*given):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(TrainingModule, "training_step", step)


def test_out_of_memory_is_told_with_the_plan_and_what_fits(store, tiny_settings, full, monkeypatch):
    run = Experiment.from_mapping(tiny_settings, {"trainer.batch_size": 512})
    room = RESERVE + 10e6  # of which the plan says that it needs more
    monkeypatch.setattr("ablate.estimate.plan.detect_capacity", lambda: (False, room))
    with pytest.raises(OutOfMemory) as caught:
        train(run)
    text = str(caught.value)
    assert "\n" not in text
    for words in (
        "Tried to allocate 2.00 GiB",
        "By the plan a device needs",
        "optimizer 0.00",
        "Settings that fit: trainer.",
    ):
        assert words in text
    (failed,) = tracking.client().search_runs(["1"])
    assert failed.data.tags["ablate.reason"] == f"OutOfMemory: {text}"

    words = text.partition("Settings that fit: ")[2].partition(" (")[0].split()  # and it does fit
    fits = Experiment.from_mapping(run.to_tree(), parse_overrides(words))
    assert peak(fits) <= subtract_reserve(room) < peak(run)


def test_a_model_too_large_to_be_built_is_told_with_the_plan(store, tiny_settings, monkeypatch):
    def build(*given):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 12000000000000 bytes.")

    monkeypatch.setattr("ablate.training.fit.strategies.build_model", build)
    with pytest.raises(OutOfMemory, match=r"tried to allocate 12000000000000 bytes.* By the plan a device needs"):
        train(Experiment.from_mapping(tiny_settings))


def peak(run):
    """What the plan of `run` says, in the arithmetic of a CPU."""
    meter = Meter(run, 256, (32,), gpu=False)
    return meter.memory(replace(resolve_setup(run), precision="32-true")).peak


@pytest.mark.parametrize(
    ("text", "is_memory"),
    [
        ("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", True),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", True),
        ("NCCL error: unhandled cuda error. Last error: Cuda failure 2 'out of memory'", True),
        ("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory", True),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`", False),
        ("CUDA error: device-side assert triggered", False),
    ],
)
def test_every_library_that_is_out_of_memory_is_understood(text, is_memory):
    with pytest.raises(OutOfMemory if is_memory else RuntimeError) as caught, translate_errors():
        raise RuntimeError(text)
    assert isinstance(caught.value, OutOfMemory) == is_memory


def test_a_gpu_without_room_for_a_context_is_out_of_memory(store, tiny_settings, monkeypatch):
    """The first use of the GPU in a run."""

    def fails():
        raise RuntimeError("CUDA error: out of memory")

    run = Experiment.from_mapping(tiny_settings, {"trainer.precision": "32-true"})
    monkeypatch.setattr("ablate.training.fit.torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("ablate.training.fit.torch.cuda.reset_peak_memory_stats", fails)
    with pytest.raises(OutOfMemory):
        fit(run, run.data.load(store), Speed("32-true", False, ""), SimpleNamespace(run_id="any"), Hooks())


class Clock:
    """A clock on which an update takes so many seconds."""

    def __init__(self, monkeypatch, seconds):
        self.now, self.seconds = 0.0, seconds
        monkeypatch.setattr("ablate.training.callbacks.time.perf_counter", lambda: self.now)


@pytest.mark.parametrize(("ranks_", "seconds", "broadcasts"), [(2, 0.001, 10), (2, 1.0, 90), (1, 0.001, 90)])
def test_ranks_tell_each_other_whether_to_stop_no_more_often_than_is_felt(monkeypatch, ranks_, seconds, broadcasts):
    """Of a hundred updates, a look every ten at least, every one where updates take seconds; validations apart. What is
    asked in between is not forgotten."""
    clock, told, saved = Clock(monkeypatch, seconds), [], []
    monkeypatch.setattr(ranks, "world_size", lambda: ranks_)
    monkeypatch.setattr(ranks, "run_on_first", lambda function: told.append(function()) or told[-1])
    fields = {"max_steps": 200, "val_check_interval": 10, "log_every_n_steps": 10}
    task = TrainingModule.__new__(TrainingModule)
    object.__setattr__(task, "experiment", Experiment.from_mapping({"trainer": fields}))
    asked = [False]
    interrupt = Leave(lambda: asked[0], saved.append)

    def update(step):
        clock.now += clock.seconds
        interrupt.on_train_batch_end(SimpleNamespace(global_step=step), task, None, None, step - 1)

    for step in range(1, 101):
        update(step)
    assert len(told) == pytest.approx(broadcasts, abs=2)
    assert not saved
    for step in range(101, 200):
        asked[0] = step == 101
        try:
            update(step)
        except Stop:
            break
    assert step <= 112
    assert len(saved) == 1


def test_rank_0_may_take_longer_than_a_collective_waits(monkeypatch):
    """Rank 1 looks at the store as long as it takes, and only then meets the others."""
    order = []
    group = ranks.Group(1, 2, store=None)
    monkeypatch.setattr(group, "wait_for", lambda key: order.append(key))
    monkeypatch.setattr(ranks, "group", group)
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", lambda message, src: order.append("broadcast"))
    ranks.run_on_first(int, slow=True)
    ranks.run_on_first(int)
    ranks.run_on_first(int, slow=True)
    assert order == ["wait/0", "broadcast", "broadcast", "wait/1", "broadcast"]


def test_what_fits_otherwise_is_told_where_another_process_has_the_memory(store, tiny_settings, full):
    with pytest.raises(OutOfMemory, match="it fits, so another program uses memory of the device"):
        train(Experiment.from_mapping(tiny_settings))


def test_without_a_plan_out_of_memory_is_told_with_what_needs_less(store, tiny_settings, full, monkeypatch):
    def fails(*given, **more):
        raise MemoryError

    monkeypatch.setattr("ablate.estimate.plan.Meter", fails)
    with pytest.raises(OutOfMemory) as caught:
        train(Experiment.from_mapping(tiny_settings))
    for words in ("Tried to allocate 2.00 GiB", "4 samples of", "trainer.accumulate=2 (2 at once)", "checkpointing"):
        assert words in str(caught.value).splitlines()[0]


def test_one_process_is_not_told_to_offload(monkeypatch):
    alone = advise_less_memory(trainer(strategy="fsdp"))
    assert "trainer.strategy=fsdp on several devices" in alone
    assert "cpu_offload" not in alone
    monkeypatch.setattr(ranks, "world_size", lambda: 2)
    assert "trainer.cpu_offload=true" in advise_less_memory(trainer(strategy="fsdp"))


def test_a_setting_that_the_plan_does_not_know_is_no_advice(tiny_settings):
    shared = Experiment.from_mapping(tiny_settings, {"trainer.strategy": "fsdp", "trainer.tensor_parallel": 2})
    assert advise(shared, "32-true", 256, (32,), 2) == ""


def test_advice_takes_no_longer_than_it_may(tiny_settings, monkeypatch):
    run, gate = Experiment.from_mapping(tiny_settings), threading.Event()
    monkeypatch.setattr("ablate.estimate.plan.Meter", lambda *given, **more: gate.wait(60))
    assert advise(run, "32-true", 256, (32,), 1, seconds=0.05) == ""
    gate.set()


def test_a_checkpoint_of_another_run_is_refused_with_the_difference(store, tiny_settings):
    run = Experiment.from_mapping(tiny_settings)
    asked = iter(range(1, 100))
    part = train(run, hooks=Hooks(asked_to_stop=lambda: next(asked) == 2))
    other = Experiment.from_mapping(tiny_settings, {"norm": "post", "trainer.num_workers": 1})
    with pytest.raises(
        ConfigError, match=r"norm\.kind: the checkpoint belongs to a run with 'pre' \(given: 'post'\)"
    ) as told:
        train(other, Place(run_id=part.run_id))
    assert "num_workers" not in str(told.value)  # which changes no number
    Earlier().check(other)
    with pytest.raises(AblateError, match=r"remove optimizer\.lr"):
        load_experiment(part.run_id, {"trainer.strategy": "fsdp", "optimizer.lr": 1})
    assert load_experiment(part.run_id, {"trainer.strategy": "fsdp"}).trainer.strategy == "fsdp"


@pytest.fixture
def ablate(store, tmp_path):
    """ablate(word, ..., variable="value"): a started command."""
    running = []

    def start(*words, **environment):
        process = Forked("-m", "ablate", *words, cwd=tmp_path, env={**os.environ, **environment})
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()


@pytest.fixture
def taken():
    """A port that another program listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield str(other.getsockname()[1])


def read_until(process, word):
    return next(line for line in process.stdout if word in line)


@pytest.mark.parametrize(
    ("devices", "goes_on"), [(2, False), (1, True), pytest.param(2, True, marks=pytest.mark.chaos)]
)
def test_one_command_starts_a_group_and_is_stopped_and_queued_again_as_one(
    store, ablate, taken, tmp_path, devices, goes_on
):
    """SIGUSR1 writes a checkpoint and asks Slurm to queue the job again, in which the same command goes on. The group
    takes a free port, whatever the environment of an earlier one says of ports."""
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    scontrol.chmod(0o755)
    job = {
        "SLURM_JOB_ID": "12345", "PATH": f"{scontrol.parent}:{os.environ['PATH']}", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": taken, "PET_MASTER_PORT": taken,
    }  # fmt: skip
    words = ["train", *WORDS, f"trainer.devices={devices}", "trainer.max_steps=40"]
    first = ablate(*words, **job)
    read_until(first, "update 20/40")
    first.send_signal(signal.SIGUSR1)
    told, errors = first.communicate(timeout=60)
    assert first.returncode == 130, errors
    assert "stopped at update" in told, errors
    assert "Slurm's job 12345 has been requeued." in told
    assert (tmp_path / "asked").read_text() == "requeue 12345\n"
    if not goes_on:
        return
    again = ablate(*words, SLURM_RESTART_COUNT="1", **job)
    told, errors = again.communicate(timeout=100)
    assert again.returncode == 0, errors
    assert "resumed at update" in told
    assert "update 40/40" in told


def test_a_mistake_in_a_group_is_told_once_and_exits_with_2(ablate):
    process = ablate("train", *WORDS, "trainer.devices=2", "trainer.strategy=fsdp", "model.vocab_size=10")
    told, errors = process.communicate(timeout=100)
    assert process.returncode == 2
    assert told.startswith("training llama")
    assert told.count("\n") == 1
    assert errors.strip().splitlines()[-1].startswith("ablate train: The tokenizer has 256 tokens")
    assert "Traceback" not in errors
    assert errors.count("The tokenizer has") == 1


def test_slurm_is_asked_after_sigusr1_alone(monkeypatch, tmp_path):
    assert slurm.requeue([signal.SIGUSR1]) == ""  # no job
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm.requeue([signal.SIGTERM]) == ""
    assert "cannot be requeued: scontrol: No such file" in slurm.requeue([signal.SIGUSR1])
    slurm.remember(tmp_path, "abc")
    assert slurm.recall(tmp_path) is None  # it begins for the first time
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert slurm.recall(tmp_path) == "abc"


def test_two_nodes_share_a_run(store, tmp_path):
    words = [*WORDS, "trainer.nodes=2", "trainer.strategy=fsdp", "trainer.max_steps=3"]
    told = run_ranks("-m", "ablate", "train", *words, cwd=tmp_path, seconds=300, nodes=2)
    assert [status for status, *_ in told] == [0, 0], told
    assert ["completed" in out for _, out, _ in told] == [True, False]
    (run,) = (store / "runs").iterdir()
    assert len(list((run / "last.ckpt").glob("sums-*-of-2.json"))) == 2


@pytest.mark.chaos
def test_two_nodes_are_two_torchruns_that_find_each_other(store, tmp_path):
    """As on two machines, but that both are this one."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    group = [
        "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-id", "two",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1",
        "-m", "ablate", "train",
    ]  # fmt: skip
    words = [*WORDS, "trainer.nodes=2", "trainer.strategy=fsdp", "trainer.max_steps=3"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    nodes = [Forked(*group, *words, cwd=tmp_path, env=environment) for _ in range(2)]
    told = [node.communicate(timeout=300) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], told
    assert sorted(["completed" in out for out, _ in told]) == [False, True]
    (run,) = (path for path in (store / "runs").iterdir())
    assert len(list((run / "last.ckpt").glob("sums-*-of-2.json"))) == 2


def test_a_port_that_is_taken_is_told_without_a_traceback(ablate, taken):
    """As where the ranks are started by something else than torchrun, which keeps the port itself."""
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}
    process = ablate("train", *WORDS, MASTER_ADDR="127.0.0.1", MASTER_PORT=taken, **rank)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert f"port {taken} is in use by another program. Let torchrun choose a port" in errors
    assert "Traceback" not in errors
