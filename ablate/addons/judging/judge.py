"""`judge`: better, worse, equivalent, fails more often or inconclusive, for each arm of a table of results against the
baseline, with the error control of a sweep."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING, Any

from ablate.addons.judging import files
from ablate.addons.judging.columns import Asked, Columns, choose_columns, describe_settings
from ablate.addons.judging.looks_file import Counted, Look, add_looks, split_looks, sum_values
from ablate.addons.judging.rows import Rows, read_frame
from ablate.addons.judging.runs import Results, collect_results
from ablate.config.errors import ConfigError, Problem
from ablate.config.formatting import count_noun, join_words, to_json
from ablate.reports.markdown import render as render_markdown
from ablate.reports.page import render as render_page
from ablate.reports.page import show_section
from ablate.reports.section import Column, Document, Section, Table, words
from ablate.verdict.comparison import Compared, FreshOutcomes, compare, pair_outcomes
from ablate.verdict.failures import count_failures
from ablate.verdict.intervals import EQUAL
from ablate.verdict.looks import Looks
from ablate.verdict.outcomes import Outcome, state_rule
from ablate.verdict.sequential import LEAST
from ablate.verdict.statements import (
    TYPICAL,
    format_difference,
    format_estimate,
    format_share,
    format_typical,
    state_verdict,
)
from ablate.verdict.summary import summarise
from ablate.verdict.unpaired import RANKS, Samples

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn
    from pandas import DataFrame

    from ablate.plots.figure import Figure


_MANY = 100  # runs of an arm, beyond which rows without seeds may not be runs


@dataclass(frozen=True)
class Rules:
    """What the verdict is judged by, besides the columns: arguments of `judge`. Without `planned` as many seeds were
    planned as at the last of `looks`."""

    effect: float | None = None
    trivial: float | None = None
    looks: tuple[int, ...] = ()
    planned: int | None = None


@dataclass(frozen=True, repr=False)
class Judgement:
    """The verdict on the arms of a table."""

    rows: Rows
    columns: Columns
    results: Results
    rules: Rules
    compared: dict[str, Compared]
    """Arm, or 'arm at size=9m', -> its comparison."""
    baselines: dict[str, str]
    """Arm -> its baseline, under the same names."""
    told: list[str]
    """What was read, guessed and left out, in sentences."""
    limits: list[str]
    """What the table does not show, in sentences."""
    notes: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        """Return one line."""
        return f"<Judgement of {self.rows.name}: {self.summary}>"

    def _repr_html_(self) -> str:
        """Return verdict and table, for a notebook."""
        return "".join(show_section(section) for section in (Section("", sentences=[self.verdict]), self._tabulate()))

    @property
    def verdicts(self) -> dict[str, str]:
        """Arm -> its verdict in a word or two; without baselines."""
        return {arm: c.name_kind() for arm, c in self.compared.items() if self.baselines[arm] != arm}

    @property
    def _noun(self) -> str:
        return "seed" if self.results.paired else "run"

    @cached_property
    def verdict(self) -> str:
        """The verdict in sentences."""
        return state_verdict(
            self.compared,
            self.baselines,
            unit=self.columns.unit,
            maximize=self.columns.maximize,
            where="each arm at its settings there",
            seeds=f"the {self._noun}s of the table",
            planned=self.rules.planned is not None,
        )

    @cached_property
    def summary(self) -> str:
        """The verdict in one sentence."""
        if not self.verdicts:
            return "No verdict: there is one arm, so there is nothing to compare it with."
        levels = self.results.levels
        names = {_join(arm, level): arm for level, own in levels.items() for arm in own}
        places = {f"at {level}" if level else "": [_join(arm, level) for arm in own] for level, own in levels.items()}
        seed, both = ("seed", "seeds that both have") if self.results.paired else ("unpaired run", "runs of each")
        text = summarise(
            self.compared, places, names=names, baseline=self.columns.baseline, unit=self.columns.unit, seed=seed
        )
        return text or f"No verdict: it takes {LEAST} {both}."

    def _tabulate(self) -> Section:
        """Return the table of the arms."""
        c, sign = list(self.compared.values()), -1 if self.columns.maximize else 1
        unit, better = self.columns.unit, "higher" if self.columns.maximize else "lower"
        ranks, explained = ("typical seed", TYPICAL) if self.results.paired else ("ranks", RANKS)
        columns = [
            words("arm", self.compared),
            words("verdict", [one.name_kind() for one in c]),
            Column(f"{self._noun}s", [len(one.outcomes) for one in c]),
            words("failed", [one.failures for one in c], format_share),
            Column(unit, [one.estimate for one in c], lambda mean: f"{format_estimate(mean)} (n={mean.n})"),
            Column(f"difference to {self.columns.baseline}", [format_difference(one.versus) for one in c]),
            words(ranks, [format_typical(one.versus, sign) for one in c]),
        ]
        rules = [
            state_rule(self.rules.trivial).replace("validation loss", unit)
            if self.rules.trivial
            else "A run fails when it diverged: its value is NaN or infinite, or its status says so. Whether a run "
            "that ended has learned is unknown without the trivial loss (--trivial).",
            f"The mean of an arm is over its {self._noun}s that trained, with its 95 % interval, widened for every "
            "look; failed: with the exact 95 % interval of the share that fails. A difference has an interval with a "
            "joint error of 5 % over all comparisons and looks.",
            explained,
        ]
        if self.rules.effect is None:
            rules.append("No arms are called equivalent, as no difference that matters was given (--effect).")
        return Section(f"{unit}, {better} is better", Table(columns), rules)

    @cached_property
    def document(self) -> Document:
        """The verdict for the writers of reports."""
        table = self._tabulate()
        details = {"What was read": self.told, "What this table does not show": self.limits}
        return Document(
            f"Verdict on {self.rows.name}",
            table.title,
            summary=self.summary,
            statements=[self.verdict],
            answers=[table],
            details={title: [Section(title, sentences=sentences)] for title, sentences in details.items()},
            notes=self.notes,
        )

    @property
    def drawn(self) -> Document:
        """The same with the figure."""
        return replace(self.document, figures=[self.drawing] if self.drawing else [])

    @cached_property
    def drawing(self) -> Figure | None:
        """The figure of the arms, for the writers of reports; None if no run has ended."""
        from ablate.plots.style import choose_looks
        from ablate.reports.verdict_figures import Shown, draw_arms

        shown = Shown(
            f"{self.rows.name}: the verdict",
            self.columns.unit,
            self.columns.unit,
            -1 if self.columns.maximize else 1,
            f"{self.columns.baseline}{' at the same level' if len(self.results.levels) > 1 else ''}",
            self.baselines,
            choose_looks(self.compared),
            {arm: c.name_kind() for arm, c in self.compared.items()},
            self.rules.effect,
            seeds=f"the {self._noun}s of the table",
            noun=self._noun,
        )
        return draw_arms(shown, self.compared)

    def figure(self) -> Drawn | None:
        """Return the figure of the arms, of matplotlib; None if no run has ended."""
        from ablate.plots.drawing import draw

        return draw(self.drawing)[0] if self.drawing else None

    def frame(self) -> DataFrame:
        """Return a pandas DataFrame with a row for each arm: verdict, seeds, failures, mean, difference, interval."""
        import pandas as pd

        c = self.compared.values()
        ends = [(d and d.interval) or (None, None) for d in (one.difference for one in c)]
        columns = {
            "arm": [*self.compared],
            "baseline": [self.baselines[arm] for arm in self.compared],
            "verdict": [one.kind for one in c],
            "seeds": [len(one.outcomes) for one in c],
            "failed": [one.failures.failed if one.failures else 0 for one in c],
            "mean": [one.estimate and one.estimate.mean for one in c],
            "difference": [one.difference and one.difference.mean for one in c],
            "low": [low for low, _ in ends],
            "high": [high for _, high in ends],
            "level": [one.versus and one.versus.level for one in c],
            "n": [one.difference.n if one.difference else 0 for one in c],
        }
        return pd.DataFrame(columns)

    def save(self, folder: Path) -> list[Path]:
        """Write verdict.html, verdict.md, verdict.json and the figure into `folder`, and return their paths."""
        from ablate.plots.drawing import save

        folder.mkdir(parents=True, exist_ok=True)
        texts = {
            "verdict.html": render_page(self.drawn),
            "verdict.md": self.to_markdown(),
            "verdict.json": json.dumps(to_json(self.to_dict()), indent=2, allow_nan=False) + "\n",
        }
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        return [*(folder / name for name in texts), *(save(self.drawing, folder) if self.drawing else [])]

    def to_markdown(self) -> str:
        """Return the verdict in Markdown, for a pull request."""
        return render_markdown(self.document)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "verdict": self.verdict,
            "summary": self.summary,
            "source": self.rows.name,
            "columns": {key: value for key, value in asdict(self.columns).items() if key != "told"},
            "paired": self.results.paired,
            "seeds": {str(number): name for number, name in self.results.seeds.items()},
            "arms": {
                arm: {"baseline": self.baselines[arm], "told": one.name_kind(), **to_json(one.to_dict())}
                for arm, one in self.compared.items()
            },
            "effect": self.rules.effect,
            "trivial": self.rules.trivial,
            "told": self.told,
            "limits": self.limits,
            "notes": self.notes,
        }


def _join(arm: str, level: str) -> str:
    return f"{arm} at {level}" if level else arm


# ---------------------------------------------------------------------------------------------------- reading


def read_source(source: Any) -> Rows:
    """Return the rows of a source: names of files, a folder, mlflow:NAME, optuna:URL/STUDY, wandb:ENTITY/PROJECT, or a
    frame. Raises AblateError."""
    names = [source] if isinstance(source, (str, Path)) else source
    if not (isinstance(names, (list, tuple)) and names and all(isinstance(one, (str, Path)) for one in names)):
        return read_frame(source)
    texts = [str(name) for name in names]
    kind, colon, rest = texts[0].partition(":")
    if len(texts) == 1 and colon and kind in ("mlflow", "optuna", "wandb"):
        from ablate.addons.judging import stores

        rows: Rows = getattr(stores, f"read_{kind}")(rest)
        return rows
    if len(texts) == 1 and Path(texts[0]).expanduser().is_dir():
        from ablate.addons.judging.logs import read_folder

        return read_folder(Path(texts[0]).expanduser())
    return files.read_files(texts)


# ---------------------------------------------------------------------------------------------------- judging


def judge(
    source: Any,
    *,
    arm: str | None = None,
    seed: str | None = None,
    value: str | None = None,
    baseline: str | None = None,
    higher_is_better: bool | None = None,
    run: str | None = None,
    step: str | None = None,
    status: str | None = None,
    pair_by: Sequence[str] = (),
    by: Sequence[str] = (),
    where: Sequence[str] = (),
    names: str | None = None,
    unpaired: bool = False,
    effect: float | None = None,
    trivial: float | None = None,
    looks: Sequence[int] = (),
    planned: int | None = None,
    looks_file: Path | str | None = None,
) -> Judgement:
    """Return the verdict on each arm of a table of results against the baseline.

    Args:
        source: a frame of pandas or polars, a mapping of columns, a list of mappings, names of files (CSV, TSV, JSON,
            JSON lines, parquet), a folder of event files of TensorBoard or offline runs of W&B, mlflow:NAME,
            optuna:URL/STUDY or wandb:ENTITY/PROJECT.
        arm: the column of the arms. seed: of the seeds. value: of the values. All are guessed if not given, and what
            was guessed is in `told`.
        baseline: the arm that the others are compared with.
        higher_is_better: None: by the name of the value.
        run: the column that says which run a row is of, where rows are steps. step: of the steps; "none": no rows are.
        status: the column of the status, or COLUMN=WORD,WORD with the words that count as failed.
        pair_by: columns of which runs with the same values are compared, in the place of the seed.
        by: columns of levels, such as sizes or tasks, at which the arms are compared: one family.
        where: COLUMN=VALUE of the rows that are judged.
        names: a regular expression with groups `arm` and `seed`, for names of runs.
        unpaired: whether runs are not paired, even if there are seeds.
        effect: the smallest difference that matters. trivial: the loss of a predictor that ignores its inputs.
        looks: numbers of seeds at which the results were looked at. planned: seeds that were planned before.
        looks_file: a file that counts the looks; None: they are not counted.

    Raises:
        AblateError: the source cannot be read, or is no table of results.
    """
    pair_by, by, where = ([one] if isinstance(one, str) else one for one in (pair_by, by, where))
    asked = Asked(arm, seed, value, baseline, higher_is_better, run, step, status, pair_by, by, where, names, unpaired)
    rules = Rules(effect, trivial, tuple(looks), planned)
    try:
        return assemble(*read_results(source, asked, trivial), rules, Path(looks_file) if looks_file else None)
    except ConfigError as error:
        if "--" in str(error):
            error.args = (f"{error}\nFrom Python, --pair-by COLUMN is the argument pair_by='COLUMN', and so on.",)
        raise


def read_results(source: Any, asked: Asked, trivial: float | None = None) -> tuple[Rows, Columns, Results]:
    """Return the rows of a source, its columns, and the outcomes of its runs. Raises AblateError."""
    rows, columns = choose_columns(read_source(source) if not isinstance(source, Rows) else source, asked)
    return rows, columns, collect_results(rows, columns, trivial)


def check_rules(rules: Rules, columns: Columns, name: str) -> None:
    """Raise ConfigError with all problems of the rules for the table `name`."""
    problems = []
    if rules.effect is not None and not 0 < rules.effect < math.inf:
        problems.append(Problem("effect", "must be a number above 0", rules.effect))
    if rules.trivial is not None and (columns.maximize or not 0 < rules.trivial < math.inf):
        problems.append(Problem("trivial", "must be a loss above 0, of which less is better", rules.trivial))
    if any(size < 1 for size in rules.looks) or list(rules.looks) != sorted({*rules.looks}):
        problems.append(Problem("looks", "must be numbers of seeds that ascend, such as 3,5,8", list(rules.looks)))
    if rules.planned is not None and rules.planned < 1:
        problems.append(Problem("planned", "must be a number of seeds of at least 1", rules.planned))
    if problems:
        raise ConfigError(problems, name)


def assemble(rows: Rows, columns: Columns, results: Results, rules: Rules, looks_file: Path | None = None) -> Judgement:
    """Return the verdict on `results`, and count the looks in `looks_file`. Raises DataError if that is damaged, and
    ConfigError for rules that are wrong."""
    check_rules(rules, columns, rows.name)
    counted = Counted.read(looks_file) if looks_file else None
    arms: dict[str, FreshOutcomes] = {}
    baselines: dict[str, str] = {}
    now: dict[str, tuple[Looks, list[Look]]] = {}
    unmatched: list[str] = []
    for level, own in results.levels.items():
        base = own.get(columns.baseline, {})
        for arm, outcomes in own.items():
            name = _join(arm, level)
            baselines[name] = _join(columns.baseline, level)
            common = [seed for seed in outcomes if seed in base] if results.paired else list(outcomes)
            rest = [seed for seed in outcomes if seed not in common]
            if rest and arm != columns.baseline:
                unmatched.append(f"{len(rest)} of {name}")
            counts = (len(common),) if results.paired else (len(outcomes), len(base))
            comparison = _name_comparison(arm, columns, level)
            looks = None
            if max(counts):
                known = counted.find(comparison) if counted else (0, [])
                looks, taken, common = _find_looks((outcomes, base), common, results, rules, known)
                if arm != columns.baseline and min(counts) >= LEAST:
                    now[comparison] = looks, taken
            arms[name] = FreshOutcomes({seed: outcomes[seed] for seed in [*common, *rest]}, looks=looks)
    most = max((len(one.outcomes) for one in arms.values()), default=0)
    compared = compare(
        arms,
        baselines,
        planned=rules.planned or most,
        maximize=columns.maximize,
        effect=rules.effect,
        others=counted.count_others(now) if counted else 0,
        pair=pair_outcomes if results.paired else Samples,
    )
    compared = {  # a failure counts, whether or not its seed has a partner
        arm: replace(one, failures=count_failures(one.outcomes.values())) for arm, one in compared.items()
    }
    told = [*_tell_read(rows, columns, results), *columns.told, *rows.told, *results.told]
    if unmatched:
        told.append(
            f"Seeds that the baseline does not have are in no difference, and in no mean: {join_words(unmatched)}."
        )
    if apart := [arm for arm, one in compared.items() if one.versus and not one.versus.seeds and one.outcomes]:
        told.append(f"No seed is common to the baseline and {join_words(apart)}: --unpaired compares them as they are.")
    if missing := [level for level, own in results.levels.items() if columns.baseline not in own]:
        told.append(f"The baseline {columns.baseline} has no run at {join_words(missing)}: nothing is compared there.")
    told += _tell_plan(rules, counted, now, most)
    told += counted.tell(now, rules.effect) if counted else []
    limits = [*describe_settings(rows, columns), *_tell_limits(compared, rules, counted)]
    notes = _note_values(results, columns.baseline, columns.maximize)
    if counted and (problem := counted.write(now, rules.effect)):
        notes.append(problem)
    return Judgement(rows, columns, results, rules, compared, baselines, told, limits, notes)


def _note_values(results: Results, baseline: str, maximize: bool) -> list[str]:
    """Return notes on arms whose values do not depend on the seed, or are those of the baseline, and on values of 0."""
    alike, same = [], []
    for level, own in results.levels.items():
        values = {arm: {seed: o.value for seed, o in ended.items() if o.trained} for arm, ended in own.items()}
        for arm, found in values.items():
            pairs = [
                (value, base)
                for seed, value in found.items()
                if (base := values.get(baseline, {}).get(seed)) is not None
            ]
            if len(found) > 1 == len({*found.values()}):
                alike.append(f"{_join(arm, level)} ({count_noun(len(found), 'run')})")
            elif arm != baseline and results.paired and len(pairs) > 1 and all(one == base for one, base in pairs):
                same.append(f"{_join(arm, level)} ({count_noun(len(pairs), 'seed')})")
    notes = []
    if alike:
        notes.append(
            f"The value is the same to the last digit on all runs of {join_words(alike)}: if they ignore their seed, "
            "they are one run, repeated, and no interval or p-value here means anything."
        )
    if zeros := _count_zeros(results) if not maximize else 0:
        notes.append(
            f"The value of {count_noun(zeros, 'run')} is 0 to the last digit, far below all others: if it stands for a "
            "run that gave no value, leave it empty, or write nan if the run diverged."
        )
    most = max((len(ended) for own in results.levels.values() for ended in own.values()), default=0)
    if not results.paired and most > _MANY:
        notes.append(
            f"Each row is taken as a run of its own, {most:,} of an arm. If they are steps or items of fewer runs, no "
            "interval or p-value here means anything: --run COLUMN and --step COLUMN."
        )
    if same:
        notes.append(
            f"On every seed the value is that of {baseline}, to the last digit, for {join_words(same)}: what sets them "
            "apart may not have reached the runs."
        )
    return notes


def _count_zeros(results: Results) -> int:
    """Return how many values are 0 while all others are alike, as some programs write for a run that crashed."""
    values = [o.value for own in results.levels.values() for arm in own.values() for o in arm.values() if o.trained]
    others = [value for value in values if value]
    return len(values) - len(others) if others and 0 < max(others) < 2 * min(others) else 0


def _name_comparison(arm: str, columns: Columns, level: str) -> str:
    where = f" at {level}" if level else ""
    rows = f", of rows with {join_words(columns.where)}" if columns.where else ""
    return f"{arm} against {columns.baseline} by {columns.value}{where}{rows}"


def _find_looks(
    both: Sequence[Mapping[int, Outcome]],
    common: list[int],
    results: Results,
    rules: Rules,
    known: tuple[int, Sequence[Look]],
) -> tuple[Looks, list[Look], list[int]]:
    """Return the looks at an arm and its baseline up to this one, all that are known, and the `common` seeds in the
    order in which they were looked at. `known`: the seeds that were planned at the first look, and the earlier looks.
    """
    if results.paired:
        sums = sum_values((results.seeds[seed], *(own[seed] for own in both)) for seed in common)
        now = Look(len(common), " ".join(sorted(sums)))
    else:
        sums = sum_values((side, one) for side, own in enumerate(both) for one in own.values())
        now = Look(max(map(len, both)), " ".join(sorted(sums)))
    taken = add_looks(known[1], now, (size for size in rules.looks if size < now.seeds))
    before, since = split_looks(taken, now)
    planned = known[0] or rules.planned or max(rules.looks, default=0) or taken[0].seeds
    looks = Looks(tuple(look.seeds for look in since), planned, tuple(look.seeds for look in before))
    if not results.paired:
        return looks, taken, common
    first = {one: i for i, look in reversed([*enumerate(since)]) for one in look.values.split()}
    return looks, taken, [seed for _, seed in sorted(zip((first[one] for one in sums), common, strict=True))]


def _tell_plan(rules: Rules, counted: Counted | None, now: Mapping[str, Any], most: int) -> list[str]:
    """Return what is known of the number of seeds that was planned, in sentences. `most`: seeds of any arm."""
    if ahead := [size for size in rules.looks if size > most]:
        return [
            f"--looks names {join_words(map(str, ahead))} seeds, and no arm has more than {most}: that is taken as "
            "planned, and not as a look. If seeds were taken away after a look, the error may be above 5 %."
        ]
    known = {planned for name in now if counted and (planned := counted.find(name)[0])}
    if rules.planned and known - {rules.planned}:
        seeds = join_words(map(str, sorted(known)))
        return [f"{rules.planned} seeds are planned now, and {seeds} were at the first look, which is what counts."]
    if rules.looks and not rules.planned and not known:
        return [f"The looks up to {rules.looks[-1]} seeds are taken as planned before the first of them."]
    if counted and now and not known and not rules.planned:
        return [
            "This look is counted as the only one that was planned: a later one with more seeds has little of the "
            "error left, unless the first look says how many there will be (--planned N)."
        ]
    return []


def _tell_read(rows: Rows, columns: Columns, results: Results) -> list[str]:
    c = columns
    parts = [f"{count_noun(len(rows), 'row')} of {rows.name}: arm {c.arm!r}, value {c.value!r}"]
    unpaired = "not paired, as no column has seeds or none was to be used"
    parts.append(f"paired by {join_words(map(repr, c.pair_by))}" if c.pair_by else unpaired)
    parts += [f"at each {join_words(map(repr, c.by))}"] if c.by else []
    parts += [f"status {c.status!r}"] if c.status else []
    told = [f"{', '.join(parts)}. The baseline is {c.baseline}."]
    lost = sum(o.ending == "diverged" for own in results.levels.values() for arm in own.values() for o in arm.values())
    if lost:
        told.append(f"{count_noun(lost, 'run')} diverged, by a value of NaN or infinity or by its status: a failure.")
    return told


def _tell_limits(compared: Mapping[str, Compared], rules: Rules, counted: Counted | None) -> list[str]:
    """Return what no table shows, in sentences."""
    family = max((c.family for c in compared.values() if c.kind != "baseline"), default=0)
    if not family:
        return []
    comparisons = count_noun(family, "comparison")
    made = {size for c in compared.values() if c.looks for size in c.looks.taken}
    if told := [str(size) for size in rules.looks if size in made]:
        looks = f"Looks at these results besides those at {join_words(told)} seeds are not counted."
    elif counted:
        looks = f"Looks that others made, without {counted.file.name}, are not counted."
    else:
        looks = "Earlier looks at these results are not counted (--looks 3,5,8, or --looks-file FILE)."
    return [
        "Whether the settings of an arm were tuned on these seeds, or chosen by these values: it then looks better "
        "than on fresh seeds, and the error may be far above 5 %.",
        f"How many arms, metrics or seeds were tried and left out: the error covers {comparisons}.",
        looks,
        "Whether another setting of an arm that lost would win: none was challenged, and the verdict is about the "
        "settings of the table.",
    ]


# ---------------------------------------------------------------------------------------------------- planning


def plan(rows: Rows, columns: Columns, results: Results, effect: float) -> Document:
    """Return how many seeds each comparison takes to find a difference of `effect`, by the spread in the table."""
    from scipy.special import chdtri

    from ablate.verdict.power import POWER, count_seeds, find_smallest_difference

    family = max(1, sum(len(own) - (columns.baseline in own) for own in results.levels.values()))
    measured = {
        _join(arm, level): _measure_spread(
            outcomes, own.get(columns.baseline, {}), paired=results.paired and len(own) > 1
        )
        for level, own in results.levels.items()
        for arm, outcomes in own.items()
        if len(own) == 1 or arm != columns.baseline
    }
    spreads = {name: spread for name, spread in measured.items() if spread and spread[0]}
    equal = [name for name, spread in measured.items() if spread and not spread[0]]
    counts, unlucky = (
        [count_seeds(sd * share(n - 1), effect, family) for sd, n in spreads.values()]
        for share in (lambda _: 1.0, lambda freedom: math.sqrt(freedom / chdtri(freedom, 0.8)))
    )
    unit, head = columns.unit, "seeds" if results.paired else "runs"
    table = Table(
        [
            words("arm", spreads),
            Column(f"{head} now", [n for _, n in spreads.values()]),
            Column("sd of the difference", [sd for sd, _ in spreads.values()]),
            Column(
                f"finds now ({unit})",
                [find_smallest_difference(sd, Looks((n,), n), family) for sd, n in spreads.values()],
            ),
            Column(f"{head} for {effect:g}", [count or "over 10,000" for count in counts], str),
            Column("if unlucky", [count or "over 10,000" for count in unlucky], str),
        ]
    )
    sharing = "one comparison" if family == 1 else f"{family} comparisons that share 5 %"
    sentences = [
        f"{head.capitalize()} of each arm that train, as many as find a true mean difference of {effect:g} {unit} with "
        f"a power of {100 * POWER:.0f} %, at one look, for {sharing}.",
        "If unlucky: if the true spread is at the upper end of its one-sided 80 % interval; a spread over few seeds is "
        "itself uncertain.",
        "Failures are not in this: a seed on which either fails is in no difference.",
    ]
    if len(next(iter(results.levels.values()), {})) == 1:
        sentences.append("There is one arm: the difference of two runs is taken to vary by sqrt(2) times its spread.")
    title = f"Seeds for a difference of {effect:g} {unit}"
    if equal:
        sentences.append(f"Of {join_words(equal)} all differences are equal: their spread is unknown.")
    if not spreads:
        unknown = "No arm has two values, so the spread is unknown."
        return Document(title, statements=sentences[-1:] if equal else [unknown])
    summary = f"Some comparisons take more than 10,000 {head}, by the spread in {rows.name}."
    if None not in counts:
        found = f"{max(filter(None, counts))} {head} of each arm that train find a difference of {effect:g} {unit}"
        summary = f"{found} in {100 * POWER:.0f} % of cases, by the spread in {rows.name}."
    return Document(title, summary=summary, answers=[Section("", table, sentences)])


def _measure_spread(
    outcomes: Mapping[int, Outcome], base: Mapping[int, Outcome], paired: bool
) -> tuple[float, int] | None:
    """Return the standard deviation of the difference of two runs, 0 where all are equal, and the number of values that
    it is over; None for fewer than two."""
    values, others = (
        {seed: o.value for seed, o in own.items() if o.trained and o.value is not None} for own in (outcomes, base)
    )
    samples = (
        [[values[seed] - others[seed] for seed in values if seed in others]]
        if paired
        else [[*values.values()], [*others.values()]]
    )
    if min(map(len, samples)) < 2:
        return None
    sd = math.hypot(*map(stdev, samples))
    scale = max(map(abs, (*values.values(), *others.values())))
    return (sd if sd > EQUAL * scale else 0.0), min(map(len, samples))


def locate_looks(source: Sequence[str], rows: Rows, given: str | None) -> Path | None:
    """Return the file that counts the looks: the one given, or beside a table that is one file; None: none."""
    if given:
        return None if given == "none" else Path(given)
    return rows.file.with_name(f"{rows.file.name}.looks.json") if rows.file and len(source) == 1 else None
