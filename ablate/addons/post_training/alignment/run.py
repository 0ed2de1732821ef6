"""The procedure with which `train` runs an alignment: its start, its pairs, and its result."""

from __future__ import annotations

import logging
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate import tracking
from ablate.addons.export import transformers_files
from ablate.addons.export.run import FORMS, write_weights
from ablate.addons.post_training import warm_start
from ablate.addons.post_training.alignment import measures
from ablate.addons.post_training.alignment.measures import check_sha256, check_trust, hash_reward, load_reward
from ablate.addons.post_training.alignment.trl_trainers import EXTRA, METHODS, Follower, Setting, fit
from ablate.config.errors import ConfigError, DataError, Problem
from ablate.config.lazy import import_library
from ablate.data import PairCorpus
from ablate.distributed import ranks
from ablate.experiment.extensions import Extension
from ablate.experiment.tree import Experiment
from ablate.tracking import provenance
from ablate.training.callbacks import Stop
from ablate.training.precision import Speed, has_gpu_bfloat16
from ablate.training.procedures import Earlier, Ended, Hooks, Procedure
from ablate.training.runs import run_folder
from ablate.training.trained import ALIGNED

if TYPE_CHECKING:
    from ablate.data import Corpus


class AlignExtension(Extension):
    """Aligns a language model with TRL, instead of training with Lightning."""

    def build_procedure(self) -> Procedure:
        return build_procedure()

    def describe_source(self, run: str) -> dict[str, Any]:
        return {"reward_sha256": hash_reward(run)}


EXTENSION = AlignExtension()


def build_procedure(reward: measures.Reward | None = None) -> Procedure:
    """Return the procedure of an experiment with `align`; `reward`: a reward model in Python, instead of align.reward.

    The run has the curves of TRL and the metrics of held-out pairs: accuracy and margin (reward, dpo), kl to the start
    in nats of a whole answer (dpo, rloo), and where there is a reward model reward, start_reward and win_rate against
    the start. A resumed run starts from the beginning: TRL's trainers keep no state of a stopped run.
    """
    pin, run = partial(_pin, has_reward=reward is not None), partial(_align, reward=reward)
    return Procedure(pin, _choose_speed, lambda: run, _count_held, resumes=False)


def _pin(experiment: Experiment, corpus: Corpus, has_reward: bool) -> Experiment:
    align = experiment.align
    assert align is not None
    import_library("trl", EXTRA)
    if ranks.world_size() > 1:
        text = f"runs in one process, and this is a group of {ranks.world_size()}. Start it without torchrun"
        raise ConfigError([Problem("align", text)])
    experiment = warm_start.EXTENSION.pin(experiment, corpus.classes, corpus.shape)
    align = experiment.align
    assert align is not None
    if align.reward is None:
        if align.method == "rloo" and not has_reward:
            text = "rloo needs a reward model: ablate align RUN --method reward makes one"
            raise ConfigError([Problem("align.reward", text)])
        return experiment
    check_trust(align.reward, align.trust_remote_code)  # before anything is trained
    digest = check_sha256(align.reward, align.reward_sha256)
    return Experiment.from_mapping(experiment.to_tree(), {"align.reward_sha256": digest})


def _choose_speed(experiment: Experiment) -> Speed:
    """Return autocast for a GPU with bfloat16; elsewhere it does not speed up generation."""
    precision, why = experiment.trainer.precision, "as set"
    if precision == "auto":
        precision, why = ("bf16-mixed", "the GPU has it") if has_gpu_bfloat16() else ("32-true", "no GPU with bfloat16")
    return Speed(precision, False, f"{precision} ({why}), by TRL")


def _align(
    experiment: Experiment,
    corpus: Corpus,
    speed: Speed,
    tracker: tracking.Tracker,
    hooks: Hooks,
    reward: measures.Reward | None,
) -> Ended:
    align = experiment.align
    assert align is not None
    assert isinstance(corpus, PairCorpus)
    source = warm_start.open_donor(experiment, corpus.classes, corpus.shape)
    assert source is not None
    import_library("datasets", EXTRA).disable_progress_bars()  # for each pass over the pairs: the results are in MLflow
    import_library("transformers.utils.logging", EXTRA).disable_progress_bar()
    for name in (import_library("trl", EXTRA).__name__, "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of transformers, on names that TRL still uses
        folder = Path(temporary) / "start"
        folder.mkdir()
        FORMS["hf"](source, folder)
        reward = load_reward(align.reward, align.trust_remote_code) if align.reward is not None else reward
        setting = _build_setting(experiment, corpus, folder, reward, speed)
        prepared = METHODS[align.method](setting)
        follower = Follower(experiment, prepared, tracker, hooks)
        parameters = sum(p.numel() for p in prepared.model.parameters())
        description = _describe_pairs(corpus, setting)
        if hooks.started:
            hooks.started(
                tracker.run_id,
                f"  model       {parameters:,} parameters\n  data        {description}\n  arithmetic  {speed.why}",
                Earlier(),
            )
        facts = {
            "ablate.parameters": parameters,
            "ablate.corpus_description": description,
            **provenance.read_versions(provenance.ALIGNING),
        }
        try:
            fit(setting, prepared, follower)
        except Stop as stop:
            return Ended(stop.status, stop.reason, follower.step, follower.metrics, facts)
        kept = run_folder(tracker.run_id) / ALIGNED
        prepared.model.save_pretrained(kept)
        setting.tokenizer.save_pretrained(kept)
        if align.method != "reward":  # which has no head of a language model
            own = transformers_files.restore_weights(
                source, {name: value.cpu() for name, value in prepared.model.state_dict().items()}
            )
            write_weights(own, kept.parent)
            (kept.parent / "config.yaml").write_text(experiment.to_yaml(), encoding="utf-8")
    return Ended("completed", "", follower.step, follower.metrics, {**facts, "ablate.folder": str(kept)})


def _count_held(experiment: Experiment, corpus: Corpus) -> int:
    """Return the number of held-out pairs for the evaluation."""
    align = experiment.align
    assert align is not None
    assert isinstance(corpus, PairCorpus)
    return min(len(corpus.val_pairs.select_fitting(corpus.shape[0], align.answer)), align.measured)


def _build_setting(
    experiment: Experiment, corpus: PairCorpus, folder: Path, reward: measures.Reward | None, speed: Speed
) -> Setting:
    """Return the setting, with the pairs that fit the context. Raises DataError if no training pair or no held-out pair
    remains."""
    align, context = experiment.align, corpus.shape[0]
    assert align is not None
    transformers: Any = import_library("transformers", "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if tokenizer.eos_token is None:
        raise DataError("The tokenizer of the model has no end-of-text token, which is needed to end an answer.")
    learnt, held = (part.select_fitting(context, align.answer) for part in (corpus.train_pairs, corpus.val_pairs))
    if not learnt or not held:
        raise DataError(
            f"{len(learnt):,} of {len(corpus.train_pairs):,} training pairs and {len(held):,} of "
            f"{len(corpus.val_pairs):,} held-out pairs fit the context of {context} tokens with prompt and answers; at "
            "least one of each is needed. Set data.seq_len higher, or add pairs."
        )
    return Setting(experiment, align, folder, tokenizer, learnt, held, reward, context, speed.precision == "bf16-mixed")


def _describe_pairs(corpus: PairCorpus, setting: Setting) -> str:
    """Return a sentence on the training pairs and the held-out pairs."""
    text = f"{len(setting.train):,} training pairs, {len(setting.held):,} held out{corpus.left_out}"
    out = len(corpus.train_pairs) + len(corpus.val_pairs) - len(setting.train) - len(setting.held)
    answer = f"an answer of {setting.align.answer}" if setting.align.answer else "the longer answer"
    return text + (
        f", {out:,} left out because their prompt and {answer} exceed {setting.context} tokens" if out else ""
    )
