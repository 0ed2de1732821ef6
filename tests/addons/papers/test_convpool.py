"""ConvPool-CNN-C, against a plain `nn.Sequential` and against norms written out by hand."""

import pytest
import torch
import torch.nn.functional as F
from norms import reference
from norms.cases import shaken
from torch import nn

from ablate.config.errors import ConfigError
from ablate.estimate.flops import count
from ablate.experiment.tree import Experiment
from ablate.norms import norm_layers
from ablate.norms.feature_maps import build_on_maps
from ablate.optim.groups import assign_roles

WIDTH, CLASSES, SHAPE = 4, 5, (3, 16, 15)
OVER_POSITIONS = [kind for kind in norm_layers if norm_layers[kind]().has_statistic]


def build(layer="none", shape=SHAPE, **fields):
    model = {"kind": "convpool", "width": WIDTH, "noise": 0.0, "dropout": 0.0, **fields}
    experiment = Experiment.from_mapping({"model": model, "norm.layer": layer, "init.std": 0.4})
    torch.manual_seed(0)
    return experiment, shaken(experiment.build_model(CLASSES, shape).double(), 0.1)


def images(shape=SHAPE, batch=6):
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def plain(**options):
    """The network as Salimans and Kingma's code lists its layers, without norms, noise and dropout."""
    slope, pool, padding = options.get("slope", 0.1), options.get("pool", 2), options.get("last_padding", 0)
    layers, channels = [], SHAPE[0]
    for step in [*[(4, 3, 1)] * 3, "pool", *[(8, 3, 1)] * 3, "pool", (8, 3, padding), (8, 1, 0), (8, 1, 0)]:
        if step == "pool":
            layers.append(nn.MaxPool2d(pool, stride=2))
            continue
        outputs, side, pad = step
        layers += [nn.Conv2d(channels, outputs, side, padding=pad), nn.LeakyReLU(slope)]
        channels = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)).double()


@pytest.mark.parametrize("options", [{}, {"slope": 0.0, "pool": 3}, {"last_padding": 1}], ids=str)
def test_without_norms_it_is_the_plain_network(options):
    _, model = build(**options)
    theirs = plain(**options)
    ours = [model.stem, *model.layers]
    convolutions = [module for module in theirs if isinstance(module, nn.Conv2d)]
    with torch.no_grad():
        for convolution, layer in zip(convolutions, ours, strict=True):
            convolution.weight.copy_(layer.conv.weight)
            convolution.bias.copy_(layer.bias.bias)
        theirs[-1].weight.copy_(model.head.weight)
        theirs[-1].bias.copy_(model.head_bias.bias)
    torch.testing.assert_close(model(images()), theirs(images()), atol=1e-12, rtol=1e-12)
    assert model.parameter_count() == sum(p.numel() for p in theirs.parameters())


def normed_maps(x, w, at, layer, settings, over):
    """N(x) of [batch, channels, height, width], channel by channel or position by position."""
    own = {name.rpartition(".")[2]: p for name, p in w.items() if name.startswith(f"{at}.")}
    if over == "channels" or norm_layers[layer].per_feature:
        last = x.permute(0, 2, 3, 1)
        return reference.NORMS[layer](last, own, settings).permute(0, 3, 1, 2)
    gain = {**own, "weight": own["weight"].view(1, -1, 1)}
    return reference.NORMS[layer](x.flatten(2), gain, settings).view_as(x)


def by_hand(model, x, layer, settings, over):
    w = dict(model.named_parameters())

    def normed_logits(logits):
        own = {name[10:]: p for name, p in w.items() if name.startswith("head_norm.")}
        return reference.NORMS[layer](logits, own, settings) + w.get("head_bias.bias", 0.0)

    for at in ["stem", *(f"layers.{i}" for i in range(8))]:
        padding = 0 if at in ("layers.5", "layers.6", "layers.7") else 1
        x = normed_maps(F.conv2d(x, w[f"{at}.conv.weight"], padding=padding), w, f"{at}.norm", layer, settings, over)
        if (bias := w.get(f"{at}.bias.bias")) is not None:
            x = x + bias.view(1, -1, 1, 1)
        x = torch.maximum(x, 0.1 * x)
        if at in ("layers.1", "layers.4"):
            x = F.max_pool2d(x, 2)
    return normed_logits(x.mean((2, 3)) @ w["head.weight"].T)


@pytest.mark.parametrize(
    ("over", "layer"),
    [
        *(("positions", layer) for layer in [*OVER_POSITIONS, "batchnorm", "dyt", "none"]),
        *(("channels", layer) for layer in norm_layers),
    ],
)
def test_outputs_and_gradients_equal_the_equations(over, layer):
    fields = {"kind": layer, **({"p": 0.5} if layer == "prmsnorm" else {"groups": 1} if layer == "groupnorm" else {})}
    experiment, model = build(fields, norm_over=over)
    x = images()
    outputs = model(x), by_hand(model, x, layer, experiment.norm.layer.model_dump(), over)
    torch.testing.assert_close(*outputs, atol=1e-9, rtol=1e-9)
    weight = torch.randn(outputs[0].shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((y * weight).sum(), list(model.parameters())) for y in outputs)
    for (name, _), a, b in zip(model.named_parameters(), ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-7, msg=name)
        assert a.abs().max() > 0, name


@pytest.mark.parametrize("over", ["positions", "channels"])
def test_batchnorm_is_torchs_whatever_the_others_are_over(over):
    norm, theirs = build_on_maps(norm_layers["batchnorm"](), over, 3, 16 * 15), nn.BatchNorm2d(3)
    x = images().float()
    for _ in range(2):
        torch.testing.assert_close(norm(x), theirs(x))
    for module in (norm, theirs):
        module.eval()
    torch.testing.assert_close(norm(x), theirs(x))


def test_noise_and_dropout_are_those_of_training_alone():
    _, quiet = build("rmsnorm")
    _, model = build("rmsnorm", noise=0.3, dropout=0.5)
    assert torch.equal(model.eval()(images()), quiet.eval()(images()))
    torch.manual_seed(0)
    first = model.train()(images())
    assert not torch.equal(first, model(images()))
    torch.manual_seed(0)
    assert torch.equal(model(images()), first)
    seen = []
    model.stem.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(images(SHAPE, batch=400))
    assert (seen[0] - images(SHAPE, batch=400)).std().item() == pytest.approx(0.3, rel=0.01)
    assert [type(m).__name__ for m in model.modules() if isinstance(m, (nn.Dropout, nn.MaxPool2d))] == [
        "MaxPool2d",
        "Dropout",
    ] * 2


def test_without_norms_on_logits_they_are_the_linear_layers():
    _, model = build("rmsnorm", norm_logits=False)
    inputs = []
    model.head.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    logits = model(images())
    torch.testing.assert_close(logits, inputs[0] @ model.head.weight.T + model.head_bias.bias)


def test_the_size_of_the_papers():
    """Widths, kernels and positions of Salimans and Kingma's code on CIFAR-10."""
    model = Experiment.from_mapping({"model": "convpool-cnn-c"}).build_model(10, (3, 32, 32))
    shapes = [(96, 3, 3), (96, 96, 3), (96, 96, 3), (192, 96, 3), *[(192, 192, 3)] * 3, *[(192, 192, 1)] * 2]
    weights = sum(out * into * side**2 for out, into, side in shapes) + 192 * 10
    assert sum(p.weight.numel() for p in model.projections()) == weights
    positions = [layer.positions for layer in (model.stem, *model.layers)]
    assert positions == [32**2] * 3 + [16**2] * 3 + [6**2] * 3
    flops = 2 * sum(n * out * into * side**2 for n, (out, into, side) in zip(positions, shapes, strict=True))
    assert count(model, (3, 32, 32)).forward_flops == flops + 2 * 192 * 10


def test_what_trained_weights_say_of_their_inputs():
    experiment, model = build("rmsnorm")
    state = model.state_dict()
    assert experiment.model.input_shape(state, 0) == SHAPE
    assert experiment.model.count_classes(state) == CLASSES


def test_roles_of_its_parameters():
    _, model = build("rmsnorm")
    roles = assign_roles(model)
    assert {name for name, role in roles.items() if role == "head"} == {
        "head.weight",
        "head_norm.weight",
        "head_bias.bias",
    }
    assert {name for name, role in roles.items() if role == "embedding"} == {
        f"stem.{n}" for n in ("conv.weight", "norm.weight", "bias.bias")
    }
    assert roles["layers.2.conv.weight"] == "matrices"
    assert roles["layers.2.bias.bias"] == "biases"
    assert roles["layers.2.norm.weight"] == "norms"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm": "pre"}, r"norm\.kind: placement pre is for layers with residual connections, which model convpool"),
        ({"norm.layer": "groupnorm"}, r"norm\.layer: has its gains along .* Set model\.norm_over=channels"),
        ({"norm.layer": "groupnorm", "norm": "mix"}, "(?s)placement mix.*has its gains along"),
        (
            {"norm.layer": {"kind": "groupnorm", "groups": 3}, "model.norm_over": "channels"},
            "must divide the 4 features",
        ),
        ({"init": "small_scaled"}, r"init\.kind: differs from normal"),
        ({"init.embedding_std": 1.0}, r"init\.embedding_std: the model has no token embedding"),
        (
            {"trainer.diagnose.what": "pruning"},
            r"diagnose\.what: pruning cannot be measured of this model: its layers change .* Accepted: all, gradients",
        ),
        ({"data": "topics"}, r"data\.kind: "),
        ({"data": {"kind": "glyphs", "targets": "mask"}}, "takes no head of another task"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Experiment.from_mapping({"model": {"kind": "convpool", "width": 4}}, settings)


@pytest.mark.parametrize(("fields", "smallest"), [({}, 12), ({"pool": 3}, 15), ({"last_padding": 1}, 4)], ids=str)
def test_images_that_are_too_small_are_refused_with_what_to_do(fields, smallest):
    message = rf"leave nothing to the later convolutions\. Accepted: images from {smallest} x {smallest}"
    message += "" if fields.get("last_padding") else r", with model\.last_padding=1 from "
    with pytest.raises(ConfigError, match=message):
        build(shape=(1, smallest - 1, smallest + 5), **fields)
    shape = (1, smallest, smallest)
    assert build(shape=shape, **fields)[1](images(shape)).shape == (6, CLASSES)


def test_a_layer_that_cannot_norm_so_many_logits_is_refused():
    with pytest.raises(
        ConfigError, match=r"norm\.layer\.groups: must divide the 5 features .* model\.norm_logits=false"
    ):
        build({"kind": "groupnorm", "groups": 2}, norm_over="channels")


@pytest.mark.parametrize("layer", ["layernorm", "centernorm"])
def test_a_layer_that_centres_one_position_is_refused_as_its_output_would_be_constant(layer):
    message = r"norm\.layer\.kind: re-centres, .* of a channel, 1 in the last layers\. .*last_padding=1"
    with pytest.raises(ConfigError, match=message):
        build(layer, shape=(1, 12, 12))
    for accepted, fields in [(layer, {"last_padding": 1}), (layer, {"norm_over": "channels"}), ("rmsnorm", {})]:
        build(accepted, shape=(1, 12, 12), **fields)
