"""What a plan says, and whether what it proposes fits."""

from __future__ import annotations

import copy
import io
import json
import re
import resource
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ablate.cli import main
from ablate.config.errors import AblateError, ConfigError
from ablate.data.images.batches import EncodedImages
from ablate.estimate import plan as plans
from ablate.estimate.gpus import GIB, GPUS, assume_utilisation, find_gpu
from ablate.estimate.memory import PARTS, Meter, Setup, subtract_reserve
from ablate.estimate.plan import Assumed, describe_loading, measure_rate, plan
from ablate.experiment.tree import Experiment
from ablate.models import head
from ablate.optim.optimizers import build_optimizer
from ablate.sweeps.plans import plan_file
from ablate.training.loaders import count_workers

BIG = {"model": "llama-1b", "model.vocab_size": 32000, "data.seq_len": 256, "trainer.batch_size": 256}
H100 = Assumed(GPUS["h100-80gb"], devices=8)


def made(settings, assumed=H100):
    found = plan_file(None, settings, assumed)
    assert set(found.memory.parts) == set(PARTS)
    return found


def meter(name="llama-71m", vocabulary=32000, seq=256, **settings):
    experiment = Experiment.from_mapping({"model": name}, settings)
    return Meter(experiment, vocabulary, (seq,))


def setup(**more):
    values = {"strategy": "one", "devices": 1, "precision": "bf16-mixed", "batch_size": 64, "accumulate": 1}
    return Setup(**{**values, "checkpointing": False, "offload": False, **more})


def test_states_are_sixteen_bytes_a_parameter_and_shared_by_fsdp():
    found = meter()
    total = found.counts.total
    one = found.memory(setup(precision="32-true", batch_size=1)).parts
    assert one["parameters"] == 4 * total
    assert one["optimizer"] == 8 * total
    assert found.memory(setup(accumulate=2)).parts["gradients"] >= 4 * total
    averaged = found.memory(setup(precision="32-true", batch_size=1, averaged=True)).parts
    assert averaged == {**one, "parameters": 8 * total}
    shared = found.memory(setup(strategy="fsdp", devices=8, precision="32-true")).parts
    assert shared["parameters"] == 4 * total / 8
    assert shared["optimizer"] == 8 * total / 8
    away = found.memory(setup(strategy="fsdp", devices=8, offload=True))
    assert away.parts["gradients"] == away.parts["optimizer"] == 0
    assert away.parts["parameters"] == pytest.approx(2 * found.counts.head, rel=1e-2)  # autocast's copy of the head
    assert away.host == 16 * total / 8


def test_gradients_that_are_summed_once_per_update_are_whole_on_each_device():
    found = meter()
    total, shared = found.counts.total, {"strategy": "fsdp", "devices": 8, "batch_size": 64}
    each, once = (found.memory(setup(**shared, accumulate=2, once=once)) for once in (False, True))
    assert each.parts["gradients"] < 4 * total
    assert once.parts["gradients"] == 4 * total
    assert found.memory(setup(**shared, accumulate=2, once=True, offload=True)).parts["gradients"] == 4 * total
    assert found.memory(setup(**shared, once=True)) == found.memory(setup(**shared))  # nothing is accumulated
    words = {"trainer.strategy": "fsdp", "trainer.accumulate": 2, "trainer.gradient_sync": "update"}
    big = made({**BIG, **words}, Assumed(find_gpu("small", 12, 100), devices=8))
    assert not big.fits
    assert any("trainer.gradient_sync=batch" in way.words for way in big.fitting)


def test_the_gradients_of_ddp_are_its_buckets():
    found = meter()
    total, pair = 4 * found.counts.total, {"strategy": "ddp", "devices": 2, "batch_size": 64}
    largest = 4 * 32000 * found.model.config.hidden
    assert total <= found.memory(setup(**pair)).parts["gradients"] <= total + largest
    assert 2 * total <= found.memory(setup(**pair, accumulate=2)).parts["gradients"] <= 2 * total + largest


def test_activations_grow_with_the_micro_batch_and_shrink_with_what_saves_them():
    found = meter()
    one, two, three = (found.memory(setup(batch_size=size)).parts["activations"] for size in (32, 64, 96))
    assert three - two == pytest.approx(two - one, rel=1e-3)  # the gradient of the head is the same
    assert found.memory(setup(batch_size=64, accumulate=2)).parts["activations"] == one
    assert found.memory(setup(batch_size=64, devices=2, strategy="ddp")).parts["activations"] == one
    assert found.memory(setup(checkpointing=True)).parts["activations"] < two / 5


def test_logits_are_those_of_the_loss():
    found = meter()
    few, many = (found.memory(setup(batch_size=size)).parts["logits"] for size in (4, 64))
    assert 8 <= few / (4 * 256 * 32000) <= 14  # bytes: float32 logits, one or two gradients, bfloat16 logits at most
    assert 8 <= many / head.LOGITS <= 16  # never all of the batch


def test_a_batch_that_was_not_traced_is_as_if_it_were(monkeypatch):
    for name in ("llama-9m", "vit-digits"):
        experiment = Experiment.from_mapping({"model": name, "norm": "peri"})
        shape = (32,) if name == "llama-9m" else (1, 8, 8)
        found = Meter(experiment, 50, shape)
        line = found.memory(setup(batch_size=12)).parts
        other = Meter(experiment, 50, shape)
        other._prime = 12  # then every size that 12 divides is taken for the batch's: the peak is right at 12 alone
        assert sum(other.memory(setup(batch_size=12)).parts.values()) == sum(line.values())


def test_what_is_proposed_fits_and_can_be_pasted():
    assumed = Assumed(find_gpu("small", 12, 100), devices=8)
    found = made(BIG, assumed)
    assert not found.fits
    assert found.fitting
    for fitting in found.fitting:
        assert fitting.memory.fits(12 * GIB)
        words = dict(word.split("=") for word in fitting.words)
        pasted = {key: {"true": True}.get(value, value) for key, value in words.items()}
        pasted = {key: int(value) if str(value).isdigit() else value for key, value in pasted.items()}
        again = made({**BIG, **pasted}, assumed)
        assert again.fits
        assert again.memory.peak == fitting.memory.peak
    assert len({f.words for f in found.fitting}) == len(found.fitting)
    assert found.fitting[0].slower == min(f.slower for f in found.fitting)


def test_the_nearest_setting_is_the_largest_micro_batch_that_fits():
    assumed = Assumed(find_gpu("small", 6, 100))
    settings = {"model": "llama-71m", "model.vocab_size": 32000, "data.seq_len": 256, "trainer.batch_size": 64}
    found = made(settings, assumed)
    assert not found.fits
    (word,) = found.fitting[0].words
    parts = int(word.removeprefix("trainer.accumulate="))
    assert parts > 1
    assert not made({**settings, "trainer.accumulate": parts // 2}, assumed).fits


def test_one_device_shares_nothing_whatever_the_strategy():
    alone = Assumed(GPUS["h100-80gb"])
    small = {"model": "llama-9m", "model.vocab_size": 300, "data.seq_len": 32, "trainer.batch_size": 8}
    one, ddp, fsdp = (made({**small, "trainer.strategy": strategy}, alone) for strategy in ("auto", "ddp", "fsdp"))
    assert one.memory == ddp.memory == fsdp.memory
    large = {"model": "llama-7b", "model.vocab_size": 32000}
    assert made(large, alone).fitting == ()
    assert any("trainer.cpu_offload=true" in f.words for f in made(large, Assumed(GPUS["l4"], devices=2)).fitting)
    with pytest.raises(
        ConfigError, match=r"trainer.cpu_offload: needs several devices \(--devices or trainer.devices\)"
    ):
        made({**small, "trainer.strategy": "fsdp", "trainer.cpu_offload": True}, alone)


def test_with_autocast_checkpoints_are_in_float32_sharded_or_not():
    """The input of each layer, 4 bytes a number: norms and additions leave the hidden state in float32. Under FSDP this
    is so because `policies` casts no inputs."""
    found = meter()
    config = found.model.config
    numbers = 8 * 256 * config.hidden
    for strategy, devices in (("one", 1), ("fsdp", 8)):
        held = found.memory(setup(strategy=strategy, devices=devices, batch_size=8 * devices, checkpointing=True))
        assert 4 * numbers * config.layers <= held.parts["activations"] < 4 * numbers * (config.layers + 3)


def test_a_vocabulary_that_nobody_chose_is_told_with_what_changes_it():
    (note,) = made({"model": "llama-9m"}).notes
    assert note.endswith("that of data=topics, 256 tokens. To change it: model.vocab_size=32000.")
    (note,) = made({"model": "llama-9m", "data": "text", "data.files": "a.txt"}).notes
    assert note.endswith("that of data=text, 256 tokens. To change it: data.tokenizer=NAME or model.vocab_size=32000.")
    assert made({"model": "llama-9m", "model.vocab_size": 32000}).notes == ()
    assert made({"model": "llama-9m", "data": "text", "data.files": "a.txt", "data.tokenizer": "gpt2"}).notes == ()
    assert made({"model": "vit-digits"}).notes == ()


def test_a_model_that_fits_nowhere_says_so(capsys):
    words = [
        "plan",
        "model=llama-7b",
        "model.vocab_size=32000",
        "--gpu",
        "tiny",
        "--gpu-memory",
        "2",
        "--gpu-flops",
        "9",
    ]
    assert main(words) == 0
    assert "no setting makes it fit on these devices" in capsys.readouterr().out


def test_time_is_flops_over_the_share_of_the_peak():
    found = made({**BIG, "trainer.max_steps": 1000}, Assumed(GPUS["h100-80gb"], devices=8, mfu=0.5))
    rate, waits = 8 * 989.4e12 * 0.5 / found.counts.training_flops, found.ways[0].transfers.waits
    assert found.items_per_second == pytest.approx(256 * 256 / (256 * 256 / rate + waits))
    assert found.work.items == 1000 * 256 * 256
    assert found.days == pytest.approx((found.work.items / rate + 1000 * waits) / 86400)
    assert found.validated_gpu_hours == pytest.approx(1.1 * found.gpu_hours)  # at most a tenth of training
    assert made({**BIG, "trainer.val_samples": "all"}).validated_gpu_hours is None  # of a set that is not looked for
    assert found.gpu_hours == pytest.approx(8 * 24 * found.days)
    again = made({**BIG, "trainer.max_steps": 1000, "trainer.activation_checkpointing": True}, replace(H100, devices=1))
    assert again.work.utilisation == assume_utilisation(again.counts.rest) == 0.45
    d, i = 2048, 5461  # computed again: all but the MLP's last product
    recomputed = 24 * (2 * (4 * d * d + 2 * d * i) + 2 * d * 256)
    slower = 1 + recomputed / again.counts.training_flops
    assert again.items_per_second == pytest.approx(rate / 8 / 0.5 * 0.45 / slower)
    assert slower == pytest.approx(1.246, abs=1e-3)
    plain = made({**BIG, "trainer.precision": "32-true"}, replace(H100, devices=1))
    assert plain.items_per_second < again.items_per_second / 5


@pytest.mark.parametrize(("optimizer", "averaged"), [("adamw", False), ("muon", True)])
def test_a_checkpoint_has_weights_their_average_and_the_state_of_the_optimizer(optimizer, averaged):
    experiment = Experiment.from_mapping({"model": "llama-9m", "optimizer": optimizer})
    model = experiment.build_model(256, (32,))
    state = build_optimizer(experiment.optimizer, model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    state.step()
    file = io.BytesIO()
    torch.save([model.state_dict(), state.state_dict(), copy.deepcopy(model).state_dict() if averaged else None], file)
    planned = Meter(experiment, 256, (32,)).checkpoint("bf16-mixed", averaged)
    assert planned == pytest.approx(file.tell(), rel=0.01)


def test_what_each_machine_holds_while_weights_are_drawn():
    fsdp, ddp = (made({**BIG, "trainer.strategy": strategy}) for strategy in ("fsdp", "ddp"))
    assert ddp.host == 8 * 4 * ddp.counts.total  # each process builds the whole model
    assert fsdp.host == 8 * 4 * max(fsdp.counts.block, fsdp.counts.embedding + fsdp.counts.head)
    assert fsdp.drawing > ddp.drawing


def test_mistakes_are_told():
    with pytest.raises(ConfigError, match=r"devices \(8\) x trainer.accumulate \(3\); 240 or 264 is"):
        made({**BIG, "trainer.batch_size": 256, "trainer.accumulate": 3} | {"trainer.batch_size": 255})
    with pytest.raises(ConfigError, match=r"--gpu: unknown GPU.*Did you mean h100-80gb\?"):
        find_gpu("h100-80g")
    with pytest.raises(ConfigError, match=r"any other needs --gpu-memory GIB and --gpu-flops TFLOPS\."):
        find_gpu("mine")
    with pytest.raises(ConfigError, match=r"any other needs --gpu-memory GIB\."):
        find_gpu("mine", tflops=200)
    with pytest.raises(ConfigError, match=r"(?s)--gpu-memory: must be at most 100,000,.*--gpu-flops: must be at most"):
        find_gpu("mine", 1e300, 1e12)
    with pytest.raises(ConfigError, match=r"trainer.strategy: .*'ddp'"):
        made({**BIG, "trainer.strategy": "zero"})
    with pytest.raises(ConfigError, match=r"trainer.cpu_offload: needs trainer.strategy=fsdp"):
        made({**BIG, "trainer.cpu_offload": True})
    with pytest.raises(ConfigError, match=r"trainer.tensor_parallel: the plan does not support .*remove it") as told:
        made({**BIG, "trainer.strategy": "fsdp", "trainer.tensor_parallel": 8, "trainer.batch_size": 4})
    assert "batch_size" not in str(told.value)  # which the devices may well share then
    with pytest.raises(ConfigError, match=r"trainer.acumulate: unknown key. Did you mean trainer.accumulate\?"):
        made({**BIG, "trainer.acumulate": 2})
    with pytest.raises(AblateError, match=r"model.vocab_size=32000"):
        made({"data": "text", "data.files": "a.txt", "data.tokenizer": "./nowhere.json"})


def test_a_sweep_costs_its_trials_its_candidates_and_its_fresh_seeds(tmp_path):
    file = tmp_path / "cost.yaml"
    file.write_text(
        "name: cost\n"
        "experiment: {model: llama-9m, data: {kind: topics, seq_len: 64}, trainer: {max_steps: 50, batch_size: 8}}\n"
        "arms: {pre: {norm: pre}, post: {norm: post}}\n"
        "search: {optimizer.lr: [0.001, 0.002, 0.003]}\nsampler: grid\nconfirm: {seeds: 4}\n"
    )
    found = plan_file(str(file), {}, Assumed(GPUS["l4"]))
    one = 50 * 8 * 64
    assert [arm.items for arm in found.arms] == [(3 + 12 + 4) * one] * 2  # at most
    assert found.items == 38 * one
    single = plan(Experiment.load(None, {"model": "llama-9m", "data.seq_len": 64}), Assumed(GPUS["l4"]))
    assert found.gpu_hours[1] == pytest.approx(38 * one / single.items_per_second / 3600)
    trial = found.arms[0].plan  # on the least that is useful, at the end of a run of 400 sequences
    assert trial.validated_gpu_hours == pytest.approx(trial.gpu_hours * (1 + 16_384 / 64 / 3 / 400))
    limited = plan_file(str(file), {"budget.trials": 2}, Assumed(GPUS["l4"]))  # and so two candidates
    assert [arm.items for arm in limited.arms] == [(2 + 8 + 4) * one] * 2


def test_a_file_may_have_what_only_a_plan_knows(tmp_path):
    file = tmp_path / "experiment.yaml"
    file.write_text("model: llama-71m\ntrainer: {strategy: fsdp, devices: 4, nodes: 2, batch_size: 64}\n")
    found = plan_file(str(file), {"trainer.accumulate": 2}, Assumed(GPUS["l4"]))
    assert (found.setup.strategy, found.setup.devices, found.setup.micro_batch) == ("fsdp", 8, 4)


def test_the_command_prints_a_table_and_json(capsys):
    words = ["plan", "model=vit-tiny", "data=image_folder", "data.root=/nowhere", "trainer.batch_size=64"]
    assert main([*words, "--json", "--gpu", "rtx-4090"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"]["total"] == 5717416
    assert found["memory"]["peak"] == pytest.approx(sum(found["memory"][part] for part in PARTS))
    assert found["fits"] is True
    assert found["gpu"]["usable"] == subtract_reserve(23.5 * GIB)
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "It fits." in text
    assert "1,000 classes are assumed" in text


def test_the_documentation_shows_what_is_printed(capsys, monkeypatch):
    """Apart from the lines in whose place it has three dots."""
    monkeypatch.setenv("COLUMNS", "200")
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "plan.md").read_text().replace("\\\n", "")
    blocks = [block.partition("```")[0] for block in page.split("```text\n$ ablate ")[1:]]
    assert len(blocks) == 1
    for block in blocks:
        command, _, shown = block.rstrip().partition("\n")
        assert main(shlex.split(command)) == 0
        printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.strip().splitlines())
        assert re.fullmatch(re.escape(shown).replace(re.escape("\n..."), "\n.*"), printed, re.DOTALL)


def test_seven_billion_parameters_take_seconds_and_neither_lightning_nor_a_gpu():
    code = (
        "import sys; from ablate.cli import main;"
        "main(['plan', 'model=llama-7b', 'model.vocab_size=32000', 'trainer.batch_size=512', '--devices', '8']);"
        "print([m for m in ('lightning', 'mlflow', 'optuna', 'timm', 'transformers') if m in sys.modules])"
    )
    begin = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - begin
    assert took < 10  # 4 where nothing else runs


class Reader:
    """Training data of which a batch takes so many seconds, on a clock of its own."""

    def __init__(self, monkeypatch, seconds):
        self.now, self.read = 0.0, 0
        self.seconds = seconds
        monkeypatch.setattr(plans.time, "perf_counter", lambda: self.now)

    def batches(self, batch_size, seed):
        while True:
            self.now += self.seconds
            self.read += 1
            yield batch_size

    def count_workers(self, cores):
        return cores


@pytest.mark.parametrize(("seconds", "read"), [(0.1, 9), (1.5, 3)])
def test_a_few_batches_are_read_and_the_first_is_not_timed(monkeypatch, seconds, read):
    reader = Reader(monkeypatch, seconds)
    assert measure_rate(reader, 0) == pytest.approx(32 / seconds)
    assert reader.read == read


@pytest.mark.parametrize(
    ("workers", "taken", "said"),
    [
        (4, 1000, "so each GPU needs 10 such processes. trainer.num_workers=4 starts at most 4: loading"),
        (
            0,
            1000,
            ("trainer.num_workers=0 starts at most 1: loading will be the bottleneck"),
        ),  # the training process itself
        (16, 1000, "trainer.num_workers=16 is enough"),
        ("auto", 1000, "trainer.num_workers=auto starts one for each core but one"),
        ("auto", 9000, "so each GPU needs 90 such processes. trainer.num_workers=auto starts at most 16"),
    ],
)
def test_the_plan_says_where_loading_is_the_limit(monkeypatch, tmp_path, workers, taken, said):
    run = Experiment.from_mapping({"model": "vit-digits"}, {"trainer.num_workers": workers})
    corpus = run.data.load(tmp_path)
    monkeypatch.setattr(plans, "_rates", {run.data.model_dump_json(): 100.0})
    assert describe_loading(run, corpus, taken) == ""  # at hand
    monkeypatch.setattr(type(corpus.train), "count_workers", lambda self, cores: cores)
    text = describe_loading(run, corpus, taken)
    assert "One process reads 100 images a second here (measured on a few batches)" in text
    assert said in text


@pytest.mark.parametrize(("cores", "gpu", "workers"), [(8, True, 7), (64, True, 16), (1, True, 1), (8, False, 0)])
def test_auto_takes_cores_for_images_that_are_decoded_for_a_gpu(monkeypatch, tmp_path, cores, gpu, workers):
    run = Experiment.from_mapping({"model": "vit-digits"})
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    monkeypatch.setattr("torch.get_num_threads", lambda: cores)
    assert count_workers(run.trainer, run.data.load(tmp_path).train) == 0
    encoded = object.__new__(EncodedImages)
    assert count_workers(run.trainer, encoded) == workers
    fixed = Experiment.from_mapping({"model": "vit-digits"}, {"trainer.num_workers": 3})
    assert count_workers(fixed.trainer, encoded) == 3
