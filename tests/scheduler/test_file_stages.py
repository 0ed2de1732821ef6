"""A file with stages is as many sweeps, one after another: the models of one are those that the next starts from."""

import json

import pytest
import yaml
from rich.console import Console

from ablate import tracking
from ablate.addons.post_training.alignment.measures import hash_reward
from ablate.cli import main
from ablate.config.building import json_schema
from ablate.config.errors import ConfigError
from ablate.scheduler.dry_run import describe_cost, outline
from ablate.scheduler.run import sweep
from ablate.sweeps.spec.files import add_earlier_sweeps, load_sweeps
from ablate.sweeps.spec.references import find_donor, list_earlier_sweeps
from ablate.sweeps.spec.sweep import Sweep

ARMS = {"pre": {"norm": "pre"}, "mix": {"norm": "mix"}}


def arms(stage):
    return {
        arm: {**settings, "warm_start": {"from": f"sweep:t-{stage}/{arm}", "copy": "all"}}
        for arm, settings in ARMS.items()
    }


FILE = {
    "name": "t",
    "experiment": {
        "model": {"hidden": 16, "layers": 2, "heads": 2, "mlp": 32},
        "trainer": {"max_steps": 2, "batch_size": 4, "val_check_interval": 1},
    },
    "factor": ["norm", "warm_start"],
    "search": {"optimizer.lr": [1e-3]},
    "sampler": "grid",
    "stages": {
        "text": {"data": {"kind": "topics", "seq_len": 48, "val_fraction": 0.001}, "arms": ARMS},
        "reward": {
            "align": {"method": "reward"},
            "arms": arms("text"),
            "objective": {"metric": "align/accuracy", "direction": "maximize"},
        },
        "policy": {
            "align": {"method": "rloo", "reward": "sweep:t-reward/pre", "answers": 2, "length": 4, "measured": 2},
            "arms": arms("text"),
            "objective": {"metric": "align/reward", "direction": "maximize"},
            "confirm": {"seeds": 1},
            "published": [{"source": "table 3", "metric": "align/reward", "values": {"pre": 0.75}}],
        },
    },
}  # fmt: skip


@pytest.fixture
def file(tmp_path):
    """file({key: value}) -> a file with stages, and pairs beside it."""
    pairs = tmp_path / "pairs.json"
    pairs.write_text(json.dumps([{"prompt": f"{n}?", "chosen": "yes", "rejected": "no"} for n in range(20)]))
    data = {"kind": "preferences", "files": str(pairs), "template": "plain", "seq_len": 48}
    stages = {name: {"data": data, **stage} for name, stage in FILE["stages"].items()}

    def write(**more):
        path = tmp_path / "t.yaml"
        path.write_text(yaml.safe_dump({**FILE, "stages": stages, **more}, sort_keys=False))
        return path

    return write


def test_each_stage_is_a_sweep_in_the_order_of_the_file(file):
    text, reward, policy = load_sweeps(file())
    assert [spec.name for spec in (text, reward, policy)] == ["t-text", "t-reward", "t-policy"]
    assert (text.objective.metric, policy.objective.metric) == ("val/loss", "align/reward")
    assert (reward.confirm.seeds, policy.confirm.seeds, text.published) == (0, 1, [])
    assert policy.published[0].values == {"pre": 0.75}
    trainer = policy.base("mix").trainer.model_copy(update={"val_samples": text.base("mix").trainer.val_samples})
    assert trainer == text.base("mix").trainer
    assert (list_earlier_sweeps(text), list_earlier_sweeps(reward), list_earlier_sweeps(policy)) == (
        [],
        ["t-text"],
        ["t-text", "t-reward"],
    )
    assert "stages" not in policy.to_tree()
    assert Sweep.from_tree(yaml.safe_load(policy.to_yaml())) == policy


def test_one_stage_is_asked_for_and_those_before_it_come_with_it(file):
    path = file()
    (policy,) = load_sweeps(path, size="policy")
    assert [spec.name for spec in add_earlier_sweeps(path, [policy], {})] == ["t-text", "t-reward", "t-policy"]
    with pytest.raises(
        ConfigError, match=r"--size: no such stage. Accepted: text, reward, policy. Did you mean policy"
    ):
        load_sweeps(path, size="polcy")
    with pytest.raises(ConfigError, match=r"stages: the file has several: choose one of text, reward, policy"):
        Sweep.load(path)


def test_a_setting_may_be_for_one_stage(file):
    path, said = file(), {"trainer.max_steps": 3, "stages.policy.trainer.max_steps": 4, "stages.text.confirm.seeds": 2}
    text, reward, policy = load_sweeps(path, said)
    assert [spec.base("pre").trainer.max_steps for spec in (text, reward, policy)] == [3, 3, 4]
    assert [spec.confirm.seeds for spec in (text, reward, policy)] == [2, 0, 1]
    before = add_earlier_sweeps(path, load_sweeps(path, said, size="reward"), said)
    assert before[0].confirm.seeds == 2
    with pytest.raises(ConfigError, match=r"stages.polcy.seed: there is no such stage. Accepted: text, reward, policy"):
        load_sweeps(path, {"stages.polcy.seed": 4})
    path.with_name("one.yaml").write_text(yaml.safe_dump({"name": "one", "search": {"optimizer.lr": [1e-3, 2e-3]}}))
    with pytest.raises(ConfigError, match=r"stages.policy.seed: the file has no stages"):
        load_sweeps(path.with_name("one.yaml"), {"stages.policy.seed": 4})


def test_another_name_is_one_for_all_stages_and_a_stage_alone_goes_on_from_the_old_ones(file):
    path = file()
    *_, policy = load_sweeps(path, {"name": "mine"})
    assert (policy.name, find_donor(policy, "mix")) == ("mine-policy", ("mine-text", "mix"))
    assert policy.base("mix").align.reward == "sweep:mine-reward/pre"
    (alone,) = load_sweeps(path, {"name": "mine"}, size="policy")
    assert (alone.name, find_donor(alone, "mix")) == ("mine-policy", ("t-text", "mix"))


def test_scale_holds_for_all_stages(file):
    *_, policy = load_sweeps(file(), factor=0.5)
    assert policy.base("mix").align.reward == "sweep:t-reward-scale0.5/pre"
    assert find_donor(policy, "mix") == ("t-text-scale0.5", "mix")
    assert policy.base("mix").trainer.max_steps == 1


def test_the_plan_of_an_alignment_counts_pairs_and_answers_and_no_hours(file, capsys):
    path = file()
    _, reward, policy = load_sweeps(path)
    assert describe_cost(reward) == "2 trainings of 8 pairs, H100 hours not estimated"
    assert describe_cost(policy) == "4 trainings of 8 answers, H100 hours not estimated"
    assert "arm pre: 1 trial of 2 updates = 8 answers each" in outline(policy)
    assert main(["plan", str(path), "--size", "policy"]) == 2
    assert "align: cannot be planned" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"sizes": {"s": None}}, "stages: go without sizes: write a file for each size"),
        ({"stages": {"text": {"objectve": 3}}}, "stage text:\n  experiment.objectve: unknown key"),
        ({"stages": {"text": 3}}, "stages.text"),
    ],
)
def test_mistakes_are_told_with_their_place(file, change, text):
    with pytest.raises(ConfigError, match=text):
        load_sweeps(file(**change))


def test_arms_with_judges_of_their_own_are_refused(file):
    """Rewards of two reward models are no common scale."""
    path = file()
    tree = yaml.safe_load(path.read_text())
    del tree["stages"]["policy"]["align"]["reward"]
    for arm in ARMS:
        tree["stages"]["policy"]["arms"][arm]["align.reward"] = f"sweep:t-reward/{arm}"
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(
        ConfigError, match=r"objective.metric: the rewards of different reward models have no common scale"
    ):
        load_sweeps(path)
    won = {"stages.policy.objective.metric": "align/win_rate"}
    with pytest.raises(
        ConfigError, match=r"the arms differ in align.reward: sweep:t-reward/.*confounds: \[align.reward\]"
    ):
        load_sweeps(path, won)
    assert load_sweeps(path, won | {"stages.policy.confounds": "align.reward"})


def test_a_judge_of_the_same_sweep_is_refused(file):
    with pytest.raises(ConfigError, match=r"align.reward: a reward model must come from an earlier sweep"):
        load_sweeps(file(), {"stages.policy.align.reward": "sweep:/pre"})


def test_editors_are_told_of_stages():
    schema = json_schema(Sweep)
    parts = {"arms", "search", "fixed", "budget", "confirm", "objective", "compare", "target", "published"}
    assert set(schema["$defs"]["Division"]["properties"]) == parts


def test_all_stages_run_and_every_policy_has_the_same_judge(store, file):
    """Worker processes and MLflow, as of any sweep; run again, nothing is left to do."""
    pytest.importorskip("trl")
    *before, last = load_sweeps(file())
    text, reward = (sweep(spec, console=Console(quiet=True)) for spec in before)
    policy = sweep(last, console=Console(quiet=True))
    judge = reward.best("pre").run_id
    for arm in ARMS:
        for trial in (policy.best(arm), *policy.fresh(arm)):
            stored = tracking.client().get_run(trial.run_id).data
            assert stored.params["align.reward"] == judge
            assert stored.params["align.reward_sha256"] == hash_reward(judge)
            assert stored.params["warm_start.from"] == text.best(arm).run_id
            assert stored.tags["ablate.arm"] == arm
            assert trial.metrics["align/reward"] == trial.value
            assert (trial.step, trial.items) == (2, 8)
            assert list(trial.curve) == [1, 2]
        assert (store / "runs" / text.best(arm).run_id / "last.ckpt").exists()
    assert (reward.validation_items, policy.validation_items) == (2, 2)  # pairs that are measured
    assert sweep(last, console=Console(quiet=True)) == policy
