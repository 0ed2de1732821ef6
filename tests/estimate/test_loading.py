"""What a plan says of the data that has to be read while a GPU computes."""

import pytest

from ablate.data.images.batches import EncodedImages
from ablate.estimate import loading
from ablate.estimate.loading import describe_loading, measure_rate
from ablate.experiment.tree import Experiment
from ablate.training.loaders import count_workers


class Reader:
    """Training data of which a batch takes so many seconds, on a clock of its own."""

    def __init__(self, monkeypatch, seconds):
        self.now, self.read = 0.0, 0
        self.seconds = seconds
        monkeypatch.setattr(loading.time, "perf_counter", lambda: self.now)

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
    monkeypatch.setattr(loading, "_rates", {run.data.model_dump_json(): 100.0})
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
