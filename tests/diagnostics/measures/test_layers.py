"""The layers of every model: ours in every placement, transformers', timm's; skipped in place, looked into."""

import pytest
import torch
from norms.cases import WIRED
from torch import nn

from ablate.config.errors import AblateError
from ablate.diagnostics.measures import Layers
from ablate.norms.placement import STREAM

FAMILIES = ("llama", "vit")
CONFIGS = {
    "LlamaForCausalLM": ("LlamaConfig", {"num_key_value_heads": 1}),
    "MistralForCausalLM": ("MistralConfig", {"num_key_value_heads": 1}),
    "Qwen2ForCausalLM": ("Qwen2Config", {"num_key_value_heads": 2}),
    "BertForMaskedLM": ("BertConfig", {}),
}


@pytest.fixture(params=WIRED, ids="-".join)
def ours(request, tiny):
    family, kind = request.param
    _, model, inputs = tiny(family, {"norm": kind})
    return model.eval(), inputs


@pytest.fixture(params=CONFIGS)
def others(request):
    import transformers

    config, more = CONFIGS[request.param]
    torch.manual_seed(0)
    small = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3}
    config = getattr(transformers, config)(**small, num_attention_heads=2, max_position_embeddings=32, **more)
    model = getattr(transformers, request.param)(config).eval()
    return model, torch.randint(3, 50, (2, 9))


def logits(model, inputs):
    found = model(inputs)
    return found if isinstance(found, torch.Tensor) else found.logits


def check(model, inputs, blocks):
    """Hidden states follow one another as the layers make them, and a layer that is skipped is the only one that is
    not computed with."""
    layers = Layers(model)
    assert layers.blocks == list(blocks)
    whole = logits(model, inputs)
    with layers.record_states() as states, layers.record_outputs() as outputs:
        assert torch.equal(logits(model, inputs), whole)
    assert len(states) == len(layers) + 1
    assert all(set(parts) == {"attention", "mlp"} for parts in outputs)
    assert len({state.shape for state in states}) == 1
    if layers.placement and not layers.placement.spares_layers:
        check_silenced(model, inputs, layers)
        return
    for index in range(len(layers)):
        with layers.skip(index), layers.record_states() as without:
            logits(model, inputs)
        assert torch.equal(without[index + 1], without[index])
        assert torch.equal(without[index], states[index])
        assert not torch.equal(states[index + 1], states[index])
        for later in (
            range(index + 1, len(layers)) if layers.carrier == STREAM else ()
        ):  # the others are what they were, given another input
            with layers.record_states(), torch.no_grad():
                again = redone(model, layers, inputs, later, without[later])
            assert torch.equal(again, without[later + 1])
    assert torch.equal(logits(model, inputs), whole)


def check_silenced(model, inputs, layers):
    """A layer is left out as if the last matrices of its attention and MLP were 0."""
    for index, block in enumerate(layers.blocks):
        with layers.skip(index):
            without = logits(model, inputs)
        assert not torch.equal(without, logits(model, inputs))
        last = [[m for m in part.modules() if isinstance(m, nn.Linear)][-1] for part in (block.attn, block.mlp)]
        kept = [{name: p.clone() for name, p in part.named_parameters()} for part in last]
        for part in last:
            for p in part.parameters():
                p.zero_()
        assert torch.equal(without, logits(model, inputs))
        for part, before in zip(last, kept, strict=True):
            part.load_state_dict(before)


def redone(model, layers, inputs, index, x):
    """The output of layer `index` in an undisturbed pass, but for its own input."""
    found = []

    def before(module, args, kwargs):
        return (x, *args[1:]), kwargs

    def after(module, args, output):
        found.append(output[0] if isinstance(output, tuple) else output)

    handles = [
        layers.blocks[index].register_forward_pre_hook(before, with_kwargs=True),
        layers.blocks[index].register_forward_hook(after),
    ]
    logits(model, inputs)
    for handle in handles:
        handle.remove()
    return found[0]


@torch.no_grad()
def test_ours_in_every_placement(ours):
    model, inputs = ours
    check(model, inputs, model.blocks())


@torch.no_grad()
def test_those_of_transformers(others):
    model, inputs = others
    found = model.bert.encoder.layer if hasattr(model, "bert") else model.model.layers
    check(model, inputs, found)


@torch.no_grad()
def test_timms():
    import timm

    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, embed_dim=16, depth=3, num_heads=2, num_classes=5
    ).eval()
    check(model, torch.randn(2, 3, 32, 32), model.blocks)


def test_a_layer_that_is_skipped_keeps_the_scales_of_the_others(tiny):
    """LNS without its second layer: the third still divides by the root of three."""
    _, model, inputs = tiny("llama", {"norm": "lns"})
    layers, own = Layers(model.eval()), list(model.layers)
    with torch.no_grad(), layers.skip(1):
        found = model(inputs)
        model.layers = nn.ModuleList([own[0], own[2]])  # what is left is built with its own number
        assert own[2].attn_residual.scale == pytest.approx(3**-0.5)
        assert torch.equal(model(inputs), found)


def test_a_first_input_can_be_changed(tiny):
    _, model, inputs = tiny("llama")
    with torch.no_grad(), Layers(model).record_states(torch.zeros_like) as states:
        model(inputs)
    assert not states[0].any()


def test_without_a_stack_it_says_so():
    with pytest.raises(AblateError, match="No stack of layers was found in Linear"):
        Layers(nn.Linear(2, 2))


def test_tuples_are_passed_on():
    class Old(nn.Module):
        """What layers of transformers before version 5 return."""

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, hidden_states, cache=None):
            return self.linear(hidden_states), "cache"

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.h = nn.ModuleList([Old(), Old()])

        def forward(self, x):
            for layer in self.h:
                x, cache = layer(hidden_states=x)
                assert cache == "cache"
            return x

    model, x = Model(), torch.randn(2, 3, 4)
    layers = Layers(model)
    with layers.skip(0), layers.record_states(lambda x: 2 * x) as states:
        assert torch.equal(model(x), model.h[1].linear(2 * x))
    assert torch.equal(states[1], 2 * x)
