"""MAE: what the layers see, what the loss is over, a run through an interruption, fine-tuning of its encoder."""

import pytest
import torch

from ablate.config.errors import ConfigError
from ablate.experiment.tree import Experiment
from ablate.tasks import tasks
from ablate.training.procedures import Hooks, Place
from ablate.training.train import train
from ablate.training.trained import open_trained

SIZE = {"kind": "vit", "hidden": 16, "layers": 2, "heads": 2, "patch_size": 2}
TASK = {"kind": "masked_image_modeling", "decoder_hidden": 8, "decoder_heads": 2}
SETTINGS = {
    "model": SIZE, "task": TASK, "data": "digits",
    "trainer": {"max_steps": 6, "val_check_interval": 3, "batch_size": 8, "val_samples": 40},
}  # fmt: skip
SHAPE = (1, 8, 8)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Experiment.from_mapping(SETTINGS).build_model(10, SHAPE)


def test_the_layers_see_the_kept_patches_alone(model):
    images, kept = torch.randn(2, *SHAPE), torch.tensor([[0, 5, 6, 15], [1, 2, 3, 4]])
    other = images.clone()
    other[0, :, 2:4, 4:6] += 5  # patch 6 of the first is kept, and so is 5; of the second 7 is masked
    other[1, :, 2:4, 6:8] += 5
    before, after = model(images, kept), model(other, kept)
    assert torch.equal(before[1], after[1])
    assert not torch.allclose(before[0], after[0])
    everything = torch.arange(16).expand(2, -1)
    torch.testing.assert_close(model(images, everything), model(images))


def test_the_loss_is_the_mean_over_masked_patches_by_hand():
    task = tasks.parse(TASK)
    images, noise = torch.randn(3, *SHAPE), torch.rand(3, 16)
    predicted = torch.randn(3, 16, 4, requires_grad=True)

    class Fixed:
        config = Experiment.from_mapping(SETTINGS).model

        def __call__(self, images, kept):
            return predicted

    loss = task.compute_masked_loss(Fixed(), images, noise)
    loss.backward()
    errors = []
    for number, image in enumerate(images[:, 0]):
        seen = set(noise[number].argsort()[:4].tolist())
        for place in range(16):
            row, column = divmod(place, 4)
            patch = image[2 * row : 2 * row + 2, 2 * column : 2 * column + 2].flatten()
            wanted = (patch - patch.mean()) / (patch.var() + 1e-6).sqrt()
            if place in seen:
                assert not predicted.grad[number, place].any()
            else:
                errors.append((predicted[number, place] - wanted).square().mean())
    torch.testing.assert_close(loss, torch.stack(errors).mean())
    assert len(errors) == 36


def test_an_interrupted_run_draws_the_same_masks_and_validation_has_its_own(store):
    run = Experiment.from_mapping(SETTINGS)
    asked = iter(range(1, 100))
    part = train(run, hooks=Hooks(asked_to_stop=lambda: next(asked) == 4))
    assert part.status == "interrupted"
    whole = train(run)
    assert train(run, Place(run_id=part.run_id)).metrics == whole.metrics
    other = train(Experiment.from_mapping(SETTINGS, {"trainer.batch_size": 4, "optimizer.lr": 1e-12}))
    first = train(Experiment.from_mapping(SETTINGS, {"optimizer.lr": 1e-12}))  # the same weights in other batches
    assert first.metrics["val/loss"] == pytest.approx(other.metrics["val/loss"], rel=1e-5)


@pytest.mark.addons
def test_its_encoder_is_fine_tuned(store):
    first = train(Experiment.from_mapping(SETTINGS))
    start = {"from": first.run_id, "copy": ["embedding", "layers", "final_norm"]}
    tuned = Experiment.from_mapping(SETTINGS, {"task": "image_classification"}, {"optimizer.lr": 1e-12})
    tuned = Experiment.from_mapping(tuned.to_tree(), {"warm_start": start})
    result = train(tuned)
    assert "val/accuracy" in result.metrics
    before, after = (open_trained(run).state for run in (first.run_id, result.run_id))
    shared = [name for name in after if not name.startswith("vit.head")]
    assert len(shared) > 20
    for name in shared:
        torch.testing.assert_close(after[name], before[name], rtol=1e-5, atol=1e-6)


def test_predicting_nothing_is_stuck_and_wrong_fields_are_told(store):
    run = Experiment.from_mapping(SETTINGS)
    corpus = run.data.load(store)
    images = torch.cat([corpus.val.__getitems__([i * len(corpus.val) // 256])[0] for i in range(256)])
    patches = images.unfold(2, 2, 2).unfold(3, 2, 2).reshape(256, 16, 4)
    variance = patches.var(-1)
    expected = (0.75 * variance / (variance + 1e-6)).mean().item()  # of four pixels, the variance divides by three
    assert run.task.measure_trivial_loss(corpus, run.model) == pytest.approx(expected, rel=1e-4)
    with pytest.raises(ConfigError, match=r"task.decoder_heads: must divide task.decoder_hidden \(8\)"):
        Experiment.from_mapping(SETTINGS, {"task.decoder_heads": 3})
    with pytest.raises(ConfigError, match=r"model\.patch_size: makes one patch of an image of 8 x 8"):
        train(Experiment.from_mapping(SETTINGS, {"model.patch_size": 8}))  # of which nothing could be masked
