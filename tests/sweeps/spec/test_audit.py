"""The confound audit: what is compared, what else differs, and what is refused."""

import pytest

from ablate.config.errors import ConfigError
from ablate.experiment.parts import Lora
from ablate.sweeps.spec import audit
from ablate.sweeps.spec.sweep import Sweep

LR = {"low": 1e-4, "high": 1e-2, "log": True}


def sweep(**parts):
    return Sweep.from_tree({"name": "demo", "search": {"optimizer.lr": LR}, **parts})


def refused(**parts):
    with pytest.raises(ConfigError) as caught:
        sweep(**parts)
    return [problem.message for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("arms", "factor"),
    [
        ({}, ()),
        ({"pre": {"norm": "pre"}}, ()),
        ({"pre": {"norm": "pre"}, "mix": {"norm": "mix", "search": {"norm.alpha": [0.2, 0.4]}}}, ("norm",)),
        ({"a": {"norm.alpha": 0.2}, "b": {"norm.alpha": 0.4}}, ("norm",)),
        ({"a": {"norm.layer": "rmsnorm"}, "b": {"norm.layer": {"kind": "layernorm", "bias": False}}}, ("norm.layer",)),
        ({"a": {"init": "normal"}, "b": {"init": "scaled"}}, ("init",)),
    ],
)
def test_what_is_compared_is_the_placement_the_norm_layer_or_the_initialisation(arms, factor):
    spec = sweep(arms=arms, experiment={"norm": "mix"})
    assert audit.find_factor(spec) == factor
    assert audit.find_confounds(spec) == []


def test_a_difference_besides_what_is_compared_is_refused_unless_it_is_declared():
    arms = {"pre": {"norm": "pre"}, "post": {"norm": "post", "trainer.gradient_clip_val": 1.0}}
    (message,) = refused(arms=arms)
    assert message == (
        "in addition to the compared factor (norm), the arms differ in trainer.gradient_clip_val: none (pre), 1.0 "
        "(post). Set it to the same value, declare it with confounds: [trainer.gradient_clip_val]"
    )
    (confound,) = audit.find_confounds(sweep(arms=arms, confounds="trainer.gradient_clip_val"))
    assert (confound.path, confound.values, confound.declared) == (
        "trainer.gradient_clip_val",
        {"pre": "none", "post": "1.0"},
        True,
    )
    assert audit.find_confounds(sweep(arms=arms, confounds=["trainer"])) == [confound]


@pytest.mark.parametrize(
    "arms",
    [
        {"one": {"norm": "mix"}, "again": {"norm": {"kind": "mix"}}},
        {"one": {"norm": "mix"}, "again": {}},  # as the experiment
        {"one": {"norm": "mix", "norm.layer": "rmsnorm"}, "again": {"norm": "mix", "optimizer.kind": "adamw"}},
        {"one": {"norm.alpha": 0.4}, "again": {"search": {"norm.alpha": [0.4]}}},
        {"one": {}, "again": {"trainer.profiler": "simple"}},
    ],
)
def test_arms_that_are_the_same_are_refused_with_their_names(arms):
    (message,) = refused(arms={"other": {"norm": "post"}, **arms}, experiment={"norm": "mix"})
    assert message.startswith("the arms one and again are the same experiment, and search the same")
    (message,) = refused(arms=arms, experiment={"norm": "mix"}, baseline="again", factor="norm")
    assert "the arms one and again" in message


def test_arms_that_differ_in_the_search_or_a_named_seed_are_two():
    searched = {"one": {"norm": "pre"}, "again": {"norm": "pre", "search": {"optimizer.eps": [1e-8, 1e-6]}}}
    sweep(arms=searched, factor="optimizer")
    sweep(arms={"one": {"seed": 1}, "again": {"seed": 2}}, factor="seed")


def test_a_profile_is_no_difference():
    arms = {"pre": {"norm": "pre"}, "post": {"norm": "post", "trainer.profiler": "simple"}}
    assert audit.find_confounds(sweep(arms=arms)) == []


def test_the_number_of_updates_of_equal_tokens_is_no_difference_besides_their_batch():
    base = {"data.seq_len": 50, "trainer.max_tokens": 8_000}
    arms = {"small": {"trainer.batch_size": 4}, "large": {"trainer.batch_size": 8}}
    spec = sweep(arms=arms, experiment=base, factor="trainer.batch_size")
    assert [spec.base(arm).trainer.max_steps for arm in arms] == [40, 20]
    assert audit.find_confounds(spec) == []
    assert spec.at("small", {"trainer.batch_size": 16}).trainer.max_steps == 10


@pytest.mark.parametrize("part", ["callbacks", "loggers"])
def test_another_callback_or_logger_is_a_difference(part):
    named = {f"trainer.{part}": ["First", {"kind": "mine.Second", "size": 7}]}
    arms = {"pre": {"norm": "pre"}, "post": {"norm": "post", **named}}
    (message,) = refused(arms=arms)
    assert f"the arms differ in trainer.{part}: none (pre), First, mine.Second (size=7) (post)" in message
    assert [c.declared for c in audit.find_confounds(sweep(arms=arms, confounds=f"trainer.{part}"))] == [True]
    both = {"pre": {}, "other": named}
    assert audit.find_factor(sweep(arms=both, factor=f"trainer.{part}")) == (f"trainer.{part}",)


def test_every_difference_is_told_at_once():
    arms = {"pre": {"norm": "pre"}, "post": {"norm": "post", "seed": 1, "data.seq_len": 64}}
    assert [m.partition("differ in ")[2].partition(":")[0] for m in refused(arms=arms)] == ["data.seq_len", "seed"]


def test_a_norm_layer_of_its_own_is_a_confound_of_a_placement_and_no_factor():
    arms = {"pre": {"norm": "pre"}, "post": {"norm": "post", "norm.layer": "layernorm"}}
    messages = refused(arms=arms)
    assert "norm.layer.kind: rmsnorm (pre), layernorm (post)" in messages[0]
    assert "or compare it with factor: norm" in messages[0]
    assert audit.find_confounds(sweep(arms=arms, factor="norm")) == []


def test_what_one_arm_alone_searches_or_over_another_range_is_a_confound():
    arms = {
        "pre": {"norm": "pre"},
        "post": {"norm": "post", "search": {"optimizer.lr": [1e-3], "model.tie_embeddings": [True, False]}},
    }
    found = audit.find_confounds(sweep(arms=arms, confounds=["optimizer", "model"]))
    assert {c.path: c.values for c in found} == {
        "optimizer.lr": {"pre": "searched, 0.0001 ... 0.01 (log)", "post": "searched, [0.001]"},
        "model.tie_embeddings": {"pre": "False", "post": "searched, [True, False]"},
    }
    assert len(refused(arms=arms)) == 2


def test_without_a_norm_that_differs_the_file_has_to_say_what_is_compared():
    arms = {"small": {"model.hidden": 64}, "large": {"model.hidden": 128}}
    (message, *_) = refused(arms=arms)
    assert "no placement, norm layer, initialisation, attention, warm start or parametrisation" in message
    assert message.endswith("compare it with factor: model")
    assert audit.find_confounds(sweep(arms=arms, factor="model")) == []


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"confounds": ["inti"]}, "no arm has such a setting. Did you mean init?"),
        ({"factor": "norm.layr"}, "no arm has such a setting. Did you mean norm.layer"),
    ],
)
def test_a_misspelt_name_is_refused(parts, message):
    arms = {"pre": {"norm": "pre"}, "post": {"norm": "post"}}
    assert any(text.startswith(message) for text in refused(arms=arms, **parts))


def coinciding(arms, points, **parts):
    return list(audit.describe_coinciding(sweep(arms=arms, experiment={"model.layers": 3}, **parts), points))


def test_arms_that_are_the_same_model_are_told():
    arms = {
        "pre": {"norm": "pre"},
        "mix": {"norm": "mix", "search": {"norm.alpha": [0.3, 0.4, 1.0]}},
        "post": {"norm": "post"},
    }
    rates = [{"optimizer.lr": 1e-3}, {"optimizer.lr": 1e-2}]
    points = {"pre": rates, "mix": [{"norm.alpha": alpha} for alpha in (0.3, 0.4, 1.0)], "post": rates}
    what = "all its layers have the same placement."
    assert coinciding(arms, points) == [
        f"mix at norm.alpha=0.3 is the same model as pre: {what}",
        f"post is the same model as mix at norm.alpha=1: {what}",
        f"post is the same model as mix at norm.alpha=1: {what}",
    ]
    assert coinciding(arms, {**points, "mix": points["mix"][1:2]}) == []
    other = {"norm": {"kind": "mix", "alpha": 0.0}, "norm.layer": "layernorm"}
    assert coinciding({**arms, "mix": other}, {"pre": rates, "mix": [{}]}, confounds="norm.layer") == []
    rates_alone = {"slow": {"optimizer.lr": 1e-4}, "fast": {"optimizer.lr": 1e-2}}
    spec = sweep(arms=rates_alone, search={"model.layers": [1, 2]}, factor="optimizer")
    assert list(audit.describe_coinciding(spec, {"slow": [{}], "fast": [{}]})) == []


def test_where_arms_start_from_is_what_is_compared_if_nothing_else_is():
    reuse = {"warm_start": {"freeze": ["head"]}}
    assert audit.find_factor(sweep(arms={"a": {}, "b": reuse})) == ("warm_start",)
    assert audit.find_factor(sweep(arms={"a": {}, "b": {"norm": "post", **reuse}}, confounds=["warm_start"])) == (
        "norm",
    )
    message = " ".join(refused(arms={"a": {}, "b": {"norm": "post", **reuse}}))
    assert "confounds: [warm_start" in message


MUP = {"kind": "mup", "base": {"hidden": 64, "layers": 2}}


def test_parametrisations_are_what_is_compared_if_nothing_else_is():
    spec = sweep(arms={"standard": {}, "mup": {"parametrization": MUP}})
    assert audit.find_factor(spec) == ("parametrization",)
    assert audit.find_confounds(spec) == []


def test_a_parametrisation_beside_the_placement_is_told_once_and_makes_another_model():
    arms = {"pre": {"norm": "pre"}, "mup": {"norm": "pre", "parametrization": MUP}, "post": {"norm": "post"}}
    (message,) = refused(arms=arms)
    assert "parametrization: standard (pre and post), mup (base.hidden=64 base.layers=2" in message
    assert message.endswith("declare it with confounds: [parametrization]")
    points = {key: [{}] for key in arms}
    assert list(audit.describe_coinciding(sweep(arms=arms, confounds="parametrization"), points)) == []


def test_adapters_are_compared_with_the_training_of_all_weights_where_the_file_says_so():
    start = {"warm_start": {"from": "somewhere", "copy": "all"}}
    arms = {"full": {}, "adapters": {"lora.targets": "attn", "search": {"lora.rank": [4, 16]}}}
    spec = sweep(experiment=start, arms=arms, factor="lora")
    assert audit.find_confounds(spec) == []
    point = {"optimizer.lr": 1e-3, "lora.rank": 16}
    assert spec.at("adapters", point).lora == Lora(rank=16, targets=("attn",))
    assert spec.base("full").lora is None
    assert any("lora" in message for message in refused(experiment=start, arms=arms))
    alike = sweep(experiment={**start, "lora": {}}, search={"lora.rank": {"low": 2, "high": 64, "log": True}})
    assert alike.base("all").lora == Lora(rank=2)
