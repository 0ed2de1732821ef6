"""`align`: a trained language model and preference pairs through TRL, tracked in MLflow like a training."""

from __future__ import annotations

import logging
import random
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from ablate import tracking
from ablate.data.preferences import Pair, load_pairs
from ablate.errors import AblateError, DataError
from ablate.exporting.export import export
from ablate.extras import library
from ablate.recipes import align_measures as measures
from ablate.sweeping.references import resolved
from ablate.training.runs import run_folder
from ablate.training.source import find
from ablate.training.train import reason_of

EXTRA = "rlhf"


@dataclass(frozen=True)
class How:
    """What is done to the model."""

    method: str
    """dpo, reward or rloo."""
    pairs: str
    """Preference pairs: a file, a glob or a dataset."""
    split: str = "train"
    """The dataset's split."""
    template: str = "alpaca"
    """The words around a question, as in `data.template`."""
    steps: int = 500
    """Updates."""
    batch_size: int = 16
    """Pairs, of rloo answers, in an update."""
    lr: float = 1e-6
    """Peak learning rate."""
    beta: float | None = None
    """How strongly the model is held to where it starts. None: TRL's, 0.1 for dpo and 0.05 for rloo."""
    reward: str | None = None
    """A reward model that `align --method reward` made: its run or folder. rloo needs one."""
    answers: int = 4
    """Answers to each prompt of rloo, which are compared with each other."""
    length: int = 64
    """The most tokens of an answer that is generated."""
    measured: int = 64
    """The most held-out pairs that are measured on."""
    seed: int = 0
    """What the order of the pairs, new weights and sampled answers depend on."""


@dataclass(frozen=True)
class Aligned:
    """How it ended."""

    run_id: str
    """The MLflow run."""
    folder: str
    """The model as `transformers` loads it: `hf:FOLDER` for `ablate evaluate`."""
    metrics: dict[str, float]
    """Measured on held-out prompts, by name."""
    told: str
    """What was learnt from."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def align(given: str, how: How, storage: str | None = None, reward: measures.Reward | None = None) -> Aligned:
    """Aligns a run, a checkpoint or `sweep:NAME/ARM`.

    The run in MLflow has the curves of TRL and, at the end, on held-out prompts: `accuracy` and `margin` (dpo, reward),
    `kl` to the start in nats of a whole answer (dpo, rloo), and where there is a reward model `reward`, `start_reward`
    and `win_rate` against the start. `reward` is one in Python.

    Raises AblateError for what is no language model, for pairs that are missing or not as expected, and without the
    extra `rlhf`.
    """
    if how.method not in METHODS:
        raise AblateError(f"unknown method {how.method!r}. Accepted: {', '.join(METHODS)}.")
    start = resolved(given, storage)
    source = find(start)
    if (task := source.experiment.model.task) != "language_modeling":
        raise AblateError(f"{given} is for {task.replace('_', ' ')}; align is for language models.")
    _quiet(library("trl", EXTRA))
    if how.method == "rloo" and how.reward is None and reward is None:
        raise AblateError("rloo needs a reward model: ablate align RUN --method reward, then --reward and its run.")
    if how.method == "rloo" and how.batch_size % how.answers:
        raise AblateError(f"--batch-size {how.batch_size} must be a multiple of --answers {how.answers}.")
    if how.reward is not None:
        reward_folder(how.reward)
    pairs, origin = load_pairs(how.pairs, how.split, how.template, tracking.cache_folder())
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "start"
        export(start, "hf", folder)
        setting = _setting(folder, how, reward, pairs, source.inputs[1][0], origin.name)
        tags = {"ablate.aligned": given, "ablate.corpus": origin.fingerprint, "ablate.corpus_description": setting.told}
        tracker = tracking.Tracker.start("align", f"{how.method} {given}", tags)
        try:
            tracker.params({**asdict(how), "from": start})
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of transformers, on names that TRL still uses
                model, metrics = METHODS[how.method](setting, tracker)
            tracker.metrics({f"final/{name}": value for name, value in metrics.items()}, how.steps)
            kept = run_folder(tracker.run_id) / "hf"
            model.save_pretrained(kept)
            setting.tokenizer.save_pretrained(kept)
            tracker.tags({"ablate.folder": str(kept)})
        except BaseException as error:
            tracker.end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", reason_of(error))
            raise
        tracker.end("completed")
    return Aligned(tracker.run_id, str(kept), metrics, setting.told)


@dataclass(frozen=True)
class Setting:
    """What the methods share."""

    folder: Path
    """Where the model lies as it starts."""
    how: How
    tokenizer: Any
    train: list[Pair]
    held: list[Pair]
    reward: measures.Reward | None
    context: int
    """Tokens that the model was trained on at a time."""
    told: str
    output: str

    def model(self, auto: str = "AutoModelForCausalLM", **more: Any) -> Any:
        """The model as it starts."""
        transformers: Any = library("transformers", "hf")
        found = getattr(transformers, auto).from_pretrained(self.folder, trust_remote_code=True, **more)
        found.config.pad_token_id = self.tokenizer.pad_token_id
        return found.to("cuda" if torch.cuda.is_available() else "cpu")

    def arguments(self, **more: Any) -> dict[str, Any]:
        """Of every trainer of TRL."""
        how = self.how
        shared = {
            "output_dir": self.output, "max_steps": how.steps, "per_device_train_batch_size": how.batch_size,
            "learning_rate": how.lr, "seed": how.seed, "data_seed": how.seed, "logging_steps": 1, "report_to": [],
            "save_strategy": "no", "disable_tqdm": True, "use_cpu": not torch.cuda.is_available(), "bf16": False,
            "gradient_checkpointing": False, "trust_remote_code": True,
        }  # fmt: skip
        held = {"beta": how.beta} if how.beta is not None and how.method != "reward" else {}
        return {**shared, **held, **more}


def _setting(
    folder: Path, how: How, reward: measures.Reward | None, pairs: Sequence[Pair], context: int, name: str
) -> Setting:
    """The pairs that fit, a tenth of them held out, and what of them is told. Raises DataError where too few are
    left."""
    transformers: Any = library("transformers", "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    if tokenizer.eos_token is None:
        raise DataError("The tokenizer of the model has no end of text, without which no answer ends.")

    def tokens(pair: Pair) -> int:
        prompt, *answers = (len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in pair)
        return prompt + (how.length if how.method == "rloo" else max(answers) + 1)

    fitting = [pair for pair in pairs if tokens(pair) <= context]
    if len(fitting) < 2:
        raise DataError(
            f"Of {len(pairs):,} pairs of {name} {len(fitting)} fit the model's context of {context} tokens with prompt "
            "and answers; at least 2 are needed."
        )
    random.Random(0).shuffle(fitting)  # the same pairs are held out whatever the seed
    held = max(1, round(0.1 * len(fitting)))
    told = f"{name}: {len(fitting) - held:,} pairs to learn from, {held:,} held out"
    if out := len(pairs) - len(fitting):
        told += f", {out:,} left out that are longer than {context} tokens"
    if how.reward is not None:
        reward = _reward_model(reward_folder(how.reward))
    held_out = fitting[:held][: how.measured]
    return Setting(folder, how, tokenizer, fitting[held:], held_out, reward, context, told, str(folder.parent / "trl"))


def _quiet(trl: Any) -> None:
    """No bars and no advice for each model and each pass over the pairs: what matters is in MLflow."""
    library("datasets", EXTRA).disable_progress_bars()
    for name in (trl.__name__, "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    library("transformers.utils.logging", EXTRA).disable_progress_bar()


def reward_folder(given: str) -> Path:
    """Where a reward model lies, of its run or its folder. Raises AblateError."""
    places = (Path(given).expanduser(), tracking.store_path() / "runs" / given / "hf")
    found = next((place for place in places if (place / "config.json").is_file()), None)
    if found is None:
        raise AblateError(f"There is no reward model {given}: it is the run or the folder of align --method reward.")
    return found


def _reward_model(folder: Path) -> measures.Reward:
    transformers: Any = library("transformers", "hf")
    auto = transformers.AutoModelForSequenceClassification
    model = auto.from_pretrained(folder, trust_remote_code=True)
    if model.config.num_labels != 1:
        raise AblateError(f"{folder} is no reward model: it gives {model.config.num_labels} numbers and not one.")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    return lambda prompts, answers: measures.scores(model, tokenizer, prompts, answers)


def _dpo(setting: Setting, tracker: tracking.Tracker) -> tuple[Any, dict[str, float]]:
    trl: Any = library("trl", EXTRA)
    policy, start = setting.model(), setting.model().eval()
    config = trl.DPOConfig(**setting.arguments(max_length=setting.context))
    rows = [pair._asdict() for pair in setting.train]
    _train(trl.DPOTrainer, setting, tracker, rows, model=policy, ref_model=setting.model(), args=config)
    found = measures.margins(policy.eval(), start, setting.tokenizer, setting.held, config.beta)
    metrics = {"accuracy": fmean(float(value > 0) for value in found), "margin": fmean(found)}
    return policy, {**metrics, **_sampled(setting, policy, start)}


def _reward(setting: Setting, tracker: tracking.Tracker) -> tuple[Any, dict[str, float]]:
    trl: Any = library("trl", EXTRA)
    library("transformers", "hf").set_seed(setting.how.seed)  # the head is new
    model = setting.model("AutoModelForSequenceClassification", num_labels=1)
    rows = [{name: pair.prompt + getattr(pair, name) for name in ("chosen", "rejected")} for pair in setting.train]
    config = trl.RewardConfig(**setting.arguments(max_length=setting.context))
    _train(trl.RewardTrainer, setting, tracker, rows, model=model, args=config)
    prompts = [pair.prompt for pair in setting.held]
    better, worse = (
        measures.scores(model.eval(), setting.tokenizer, prompts, [getattr(pair, name) for pair in setting.held])
        for name in ("chosen", "rejected")
    )
    return model, {
        "accuracy": measures.win_rate(better, worse),
        "margin": fmean(a - b for a, b in zip(better, worse, strict=True)),
    }


def _rloo(setting: Setting, tracker: tracking.Tracker) -> tuple[Any, dict[str, float]]:
    trl: Any = library("trl", EXTRA)
    policy, start = setting.model(), setting.model().eval()
    more = {"num_generations": setting.how.answers, "max_completion_length": setting.how.length}
    wanted = setting.reward
    assert wanted is not None

    def reward(prompts: list[str], completions: list[str], **ignored: Any) -> list[float]:
        return wanted(prompts, completions)

    rows = [{"prompt": pair.prompt} for pair in setting.train]
    config = trl.RLOOConfig(**setting.arguments(**more))
    _train(trl.RLOOTrainer, setting, tracker, rows, model=policy, reward_funcs=reward, args=config)
    return policy, _sampled(setting, policy.eval(), start)


METHODS: Mapping[str, Callable[[Setting, tracking.Tracker], tuple[Any, dict[str, float]]]] = {
    "dpo": _dpo,
    "reward": _reward,
    "rloo": _rloo,
}


def _train(trainer: Any, setting: Setting, tracker: tracking.Tracker, rows: list[dict[str, str]], **more: Any) -> None:
    """Trains by a trainer of TRL; its curves go to `tracker`, by updates."""
    datasets: Any = library("datasets", EXTRA)
    transformers: Any = library("transformers", "hf")

    class Curves(transformers.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **ignored: Any) -> None:
            found = {f"train/{name}": value for name, value in (logs or {}).items() if isinstance(value, (int, float))}
            tracker.metrics(found, state.global_step)

    data = datasets.Dataset.from_list(rows)
    made = trainer(train_dataset=data, processing_class=setting.tokenizer, callbacks=[Curves()], **more)
    made.remove_callback(transformers.PrinterCallback)
    made.train()


def _sampled(setting: Setting, policy: Any, start: Any) -> dict[str, float]:
    """What is measured on answers to the held-out prompts."""
    how, tokenizer = setting.how, setting.tokenizer
    prompts = [pair.prompt for pair in setting.held]
    metrics = {"kl": measures.divergence(policy, start, tokenizer, prompts, how.length, how.seed)}
    if setting.reward is not None:
        ours, theirs = (
            measures.rewards_of(model, tokenizer, prompts, setting.reward, how.length, how.seed)
            for model in (policy, start)
        )
        metrics |= {"reward": fmean(ours), "start_reward": fmean(theirs), "win_rate": measures.win_rate(ours, theirs)}
    return metrics
