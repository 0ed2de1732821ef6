"""The bundle: one study as plain values, in versioned JSON. `bundle.json.gz` is one `Bundle`, as JSON in gzip.

A number that is not finite is null. Times are seconds, items are tokens or images.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ablate.config.base import Config
from ablate.sweeps.runs import StageName

SCHEMA = 1
"""Version of the format. A change that an older reader would misread raises it."""
FILE, SWEEP, PAGE, NOTES = "bundle.json.gz", "sweep.yaml", "index.md", "notes.md"
"""Files of a bundle: its values, the sweep file, the page, and words of the author, which stand at its top."""


class Rung(Config):
    """The result of a run at a rung."""

    updates: int
    value: float
    metrics: dict[str, float | None]
    branched: int


class TaskScore(Config):
    """The answers of a run to the questions of a downstream task, as they were measured after training."""

    shots: int
    """Solved examples before each question."""
    metrics: dict[str, float | None]
    stderr: dict[str, float | None]
    """Standard errors of those metrics that are means over questions."""
    questions: int
    """Index in `Bundle.questions`."""
    values: dict[str, list[int | float | None]]
    """Metric -> its value for each question; null: the question has none."""
    cut: int = 0
    """Questions whose beginning did not fit into the context."""
    long: int = 0
    """Questions with an answer that was scored in parts."""


class Run(Config):
    """One training and how it ended."""

    arm: str
    stage: StageName = "search"
    number: int
    """The number of its settings among those that the arm has searched: in the search each run has its own."""
    seed: int
    params: dict[str, Any]
    """Dotted path -> value, over the settings of its arm."""
    status: str
    """completed, pruned, diverged or failed."""
    ending: Literal["trained", "stuck", "diverged"] | None
    """None: it was stopped early, or crashed, and is no result."""
    value: float | None
    """The objective."""
    metrics: dict[str, float | None]
    """Metrics of the last validation."""
    curve: list[list[int | float | None]]
    """[updates, objective] at each validation."""
    step: int
    """Updates made."""
    seconds: float | None
    items_per_update: int
    reason: str = ""
    costs: dict[str, float] = {}
    """Operations and bytes by formula."""
    layers: dict[str, list[float | None]] = {}
    """Measurements of the layers at the end: number -> its value for each layer."""
    rungs: list[Rung] = []
    scores: dict[str, TaskScore] = {}
    """Downstream task -> its score. The log-likelihoods of single answers are not kept."""
    surroundings: int
    """Index in `Bundle.surroundings`."""

    @property
    def items(self) -> int:
        """Tokens or images that it was trained on, including those of the copies that ended its rungs."""
        return (self.step + sum(rung.branched for rung in self.rungs)) * self.items_per_update


class SeedLooks(Config):
    """Looks at a verdict."""

    sizes: list[int]
    """Fresh seeds at each."""
    planned: int
    """Fresh seeds at the last planned one."""


class PublishedArm(Config):
    """An arm."""

    settings: dict[str, Any]
    """Resolved settings that differ from `PublishedSweep.settings`, at the point that was tested."""
    chosen: int | None
    """Number of the settings that were tested; None: none are chosen yet."""
    looks: SeedLooks | None
    first_effect: float | None
    """`confirm.effect` at the first look."""
    against: list[str]
    """Arms that it was compared with on fresh seeds."""


class Verdict(Config):
    """The statements that the rules of the verdict allow."""

    text: str
    error: float = 0.05
    """Error of all comparisons together."""
    arms: dict[str, dict[str, Any]]
    """Arm -> its comparison with the baseline: kind, outcomes of its seeds, mean and difference with intervals."""
    effects: dict[str, dict[str, Any]] = {}
    """For a factorial: contrast -> its effect."""
    sensitivities: dict[str, Any] | None = None
    """For a sweep that tests each point of a grid of learning rates: the learning-rate sensitivity of each arm over its
    seeds, and the differences. They share an error of 5 % among themselves."""
    layers: dict[str, Any] | None = None
    """For runs with `trainer.diagnose`: the layers of fresh seeds, and the differences. They share an error of
    5 % among themselves."""
    downstream: list[dict[str, Any]] = []
    """Metric of a downstream task, or its mean over tasks: the means of arms, and their differences from the baseline
    over questions and seeds. They share the error of `arms`."""


_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=80)]
"""The type of a part of the names of files, such as the name of a sweep."""


class PublishedSweep(Config):
    """One sweep."""

    name: _Name
    generation: int
    size: _Name | None
    """The size, of a file with several."""
    spec: dict[str, Any]
    """The sweep as it was run."""
    settings: dict[str, Any]
    """Dotted path -> value: all settings of the first arm, at the point that was tested."""
    arms: dict[str, PublishedArm]
    runs: list[Run]
    """All runs that ended: those of one stage after the other, arm by arm."""
    validation_items: int | None
    score_items: dict[str, int] = {}
    scored: int
    """Comparisons of downstream scores, which share the error."""
    initial_loss: float | None
    trivial_loss: float | None
    verdict: Verdict
    cautions: list[str]
    """The warnings of the report."""


class CorpusSource(Config):
    """A corpus, and how to get it."""

    fingerprint: str
    """SHA-256."""
    settings: dict[str, Any]
    """The settings below `data`."""
    source: str
    """A description, with its origin."""


class Totals(Config):
    """The cost of the study."""

    runs: int
    items: int
    seconds: float
    """The sum over all runs, as if one had followed another."""


class Bundle(Config):
    """A published study."""

    format: Literal["ablate bundle"] = "ablate bundle"
    version: int = Field(SCHEMA, ge=1)
    name: str
    question: str
    """The first sentence of the sweep file's comment; "" without one."""
    surroundings: list[dict[str, str]]
    """Hardware, versions, commit, corpus: each combination in which runs were trained."""
    questions: list[list[str]] = []
    """Each list of questions of a downstream task that runs were asked: a hash of each question."""
    corpora: list[CorpusSource]
    plugins: dict[str, str]
    """File in the bundle -> its SHA-256."""
    totals: Totals
    sweeps: list[PublishedSweep] = Field(min_length=1)
    """The smallest size first."""
    over_sizes: dict[str, Any] | None
    """The joint result of the sizes: the ladder or the transfer."""
    files: dict[str, str]
    """Other files of the bundle -> their SHA-256."""
    digest: str = ""
    """SHA-256 of all values above, as JSON with sorted keys and no spaces."""

    @model_validator(mode="after")
    def _check_indexes(self) -> Bundle:
        """Refuse a run that points to what the bundle does not have."""
        for run in (run for sweep in self.sweeps for run in sweep.runs):
            if not 0 <= run.surroundings < len(self.surroundings):
                raise ValueError(f"a run has the surroundings {run.surroundings} of {len(self.surroundings)}")
            for task, score in run.scores.items():
                if not 0 <= score.questions < len(self.questions):
                    raise ValueError(f"{task} has the questions {score.questions} of {len(self.questions)} lists")
                asked = len(self.questions[score.questions])
                if any(len(values) != asked for values in score.values.values()):
                    raise ValueError(f"{task} has another number of answers than its {asked} questions")
        return self
