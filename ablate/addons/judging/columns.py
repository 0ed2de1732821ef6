"""What the columns of a table are: told by the user, or guessed from their names and values, and then said."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ablate.addons.judging.rows import NAME, RUN, STEP, Rows
from ablate.config.errors import ConfigError, Problem, did_you_mean
from ablate.config.formatting import count_noun, is_number, join_first, join_words

_PREFIX = re.compile(r"^(config|params?|tags?|attributes|user_attrs|metrics|summary|hparams)[._/]", re.IGNORECASE)
_SEEDS = ("seed", "random_seed", "rng_seed", "manual_seed", "global_seed", "seed_everything", "replicate")
_ARMS = (
    *("arm", "method", "variant", "treatment", "condition", "model", "algorithm", "algo", "optimizer", "norm"),
    *("config", "setting", "experiment", "group", "name", "run_name"),
)
_RUNS = (RUN, "run id", "runid", "run", "trial", "number", "id", "run_name", "name", "file")
_STEPS = (
    STEP, "_step", "global_step", "trainer/global_step", "iteration", "iter", "update", "updates", "epoch", "tokens",
)  # fmt: skip
_STATUSES = ("ending", "status", "state")
_VALUES = ("value", "objective", "metric")
_BASELINES = ("baseline", "base", "control", "default", "vanilla", "reference", "ref", "main")
_HELD_OUT = re.compile(r"(^|[^a-z])(val|valid|validation|eval|test|dev|heldout)([^a-z]|$)")
_LESS = {
    "loss", "bpb", "bpc", "ppl", "perplexity", "error", "err", "mse", "mae", "rmse", "nll", "fid", "wer", "cer",
    "regret", "seconds", "latency", "crossentropy", "ce",
}  # fmt: skip
_MORE = {
    "acc", "accuracy", "top1", "top5", "f1", "reward", "return", "score", "bleu", "rouge", "auc", "auroc",
    "map", "iou", "miou", "dice", "psnr", "ssim", "mcc", "elo", "r2", "winrate", "win", "precision", "recall",
    "throughput", "exact",
}  # fmt: skip
_SPREAD = {"std", "stdev", "sd", "stderr", "sem", "var", "variance"}
_NAMES = re.compile(
    r"^(?P<before>.*?)[-_/. ,(]*(?:seed|(?<![a-z])s|rep|fold)[-_=: ]?(?P<seed>\d+)\)?(?P<after>.*)$", re.IGNORECASE
)
_SETTINGS = re.compile(
    r"^((config|params?|hparams)[._/].*|lr|learning_rate|batch_size|weight_decay|wd|dropout|warmup\w*|beta\d?|momentum|"
    r"(max_)?steps|epochs|width|depth|hidden\w*|layers|\w*optimizer\.\w+)$",
    re.IGNORECASE,
)
"""Columns that are settings of a run and not measured."""


@dataclass(frozen=True)
class Asked:
    """What the user says about a table, arguments of `judge`; None and empty: it is guessed, or there is none."""

    arm: str | None = None
    seed: str | None = None
    value: str | None = None
    baseline: str | None = None
    maximize: bool | None = None
    run: str | None = None
    step: str | None = None
    status: str | None = None
    pair_by: Sequence[str] = ()
    by: Sequence[str] = ()
    where: Sequence[str] = ()
    names: str | None = None
    unpaired: bool = False


@dataclass(frozen=True)
class Columns:
    """The columns of a table."""

    arm: str
    value: str
    baseline: str
    maximize: bool
    pair_by: tuple[str, ...]
    """Runs that have the same values here are compared; empty: runs are not paired."""
    by: tuple[str, ...]
    """Levels at which arms are compared, such as sizes."""
    run: str | None
    step: str | None
    status: str | None
    failing: tuple[str, ...]
    """Further words in `status` that count as failed."""
    where: tuple[str, ...] = ()
    """COLUMN=VALUE of the rows that are judged."""
    told: list[str] = field(default_factory=list, compare=False)
    """What was guessed, in sentences."""

    @property
    def unit(self) -> str:
        """The unit of the values in a sentence."""
        return shorten(self.value)


def shorten(name: str) -> str:
    """Return a column without the prefix that a store gives it: `seed` of `params.seed`."""
    return _PREFIX.sub("", name)


def choose_columns(rows: Rows, asked: Asked) -> tuple[Rows, Columns]:
    """Return the rows that are judged, and what their columns are. Raises ConfigError with all problems."""
    if not len(rows):
        raise ConfigError([Problem("", "it has no rows, so there is nothing to judge")], rows.name)
    return _Chooser(rows, asked).choose()


class _Chooser:
    """The choice of the columns, its problems and what it guessed."""

    def __init__(self, rows: Rows, asked: Asked) -> None:
        self.rows, self.asked = rows, asked
        self.problems: list[Problem] = []
        self.guessed: list[str] = []
        self.told: list[str] = []
        self.derived: list[str] = []
        """Columns that were made from names."""

    def choose(self) -> tuple[Rows, Columns]:
        asked = self.asked
        self._select()
        self._split_names()
        pair_by = [found for name in asked.pair_by if (found := self._find("pair-by", name))]
        by = [found for name in asked.by if (found := self._find("by", name))]
        arm = self._choose("arm", asked.arm, _ARMS, self._is_arm)
        if asked.unpaired and (asked.seed or asked.pair_by):
            self.problems.append(Problem("unpaired", "cannot be combined with --seed or --pair-by"))
        elif not asked.unpaired and not asked.pair_by:
            seed = self._choose("seed", asked.seed, _SEEDS, self._values)
            pair_by = [seed] if seed else []
        step = None if asked.step == "none" else self._choose("step", asked.step, _STEPS, self._is_numeric, tells=False)
        named, _, failing = (asked.status or "").partition("=")
        status = self._choose("status", named, _STATUSES, self._is_text, tells=False)
        used = [arm, *pair_by, *by, step, status]
        by_name = {name.lower(): name for name in self.rows.columns if name not in used}
        guessed = next((by_name[name] for name in _RUNS if name in by_name), None)
        run = self._find("run", asked.run) if asked.run else guessed
        value = self._find("value", asked.value) if asked.value else self._guess_value([*used, run])
        if not arm and not asked.arm:
            names = f", or is one of the parts of the names in {NAME!r}, --names PATTERN" * (NAME in self.rows.columns)
            self._ask("arm", f"no column says which arm a run is of{names}")
        maximize = self._find_direction(value) if value else None
        baseline = self._find_baseline(arm) if arm else None
        for name in {arm, value} & {*pair_by, *by}:
            self.problems.append(Problem("", f"the column {name!r} cannot be two things at once"))
        if self.problems or arm is None or value is None or baseline is None or maximize is None:
            raise ConfigError(self.problems, self.rows.name)
        if self.guessed:
            self.told.insert(0, f"Guessed: {'; '.join(self.guessed)}.")
        if asked.step == "none" and not asked.run:
            run = None
        words = tuple(word.strip().lower() for word in failing.split(",") if word.strip())
        return self.rows, Columns(
            arm, value, baseline, maximize, tuple(pair_by), tuple(by), run, step, status, words,
            tuple(asked.where), self.told,
        )  # fmt: skip

    # ------------------------------------------------------------ by name

    def _find(self, option: str, name: str) -> str | None:
        """Return the column that is called `name`, also without the prefix that a store gives it."""
        known, given = list(self.rows.columns), shorten(name).lower()
        if name in known:
            return name
        close = [column for column in known if _list_names(column)[0] == given]
        close = close or [column for column in known if given in _list_names(column)]
        if len(close) == 1:
            return close[0]
        what = f"several columns are called so: {join_first(close, 5)}" if close else "there is no such column"
        hint = did_you_mean(name, known) or did_you_mean(name, map(shorten, known))
        self.problems.append(Problem(option, f"{what}. Columns: {join_first(known, 20)}.{hint}", name))
        return None

    def _ask(self, option: str, why: str) -> None:
        self.problems.append(
            Problem(option, f"{why}. Name it: --{option} COLUMN. Columns: {join_first(list(self.rows.columns), 20)}")
        )

    def _choose(
        self, option: str, given: str | None, names: Sequence[str], fits: Callable[[str], Any], tells: bool = True
    ) -> str | None:
        """Return the column `given` or, without it, the first with one of the `names` that fits."""
        if given:
            return self._find(option, given)
        by_name: dict[str, str] = {}
        for column in self.rows.columns:
            for name in _list_names(column):
                by_name.setdefault(name, column)
        found = next((by_name[name] for name in names if name in by_name and fits(by_name[name])), None)
        if found and tells and found not in self.derived:
            self.guessed.append(f"{option} is the column {found!r}")
        return found

    # ------------------------------------------------------------ by values

    def _values(self, column: str) -> list[Any]:
        return [value for value in self.rows.columns[column] if value is not None]

    def _is_numeric(self, column: str) -> bool:
        values = self._values(column)
        return bool(values) and all(is_number(value) for value in values)

    def _is_text(self, column: str) -> bool:
        return any(isinstance(value, str) for value in self._values(column))

    def _is_arm(self, column: str) -> bool:
        values = list(map(str, self._values(column)))
        return shorten(column).rpartition(".")[2].lower() in _ARMS[:5] or 1 <= len({*values}) < len(values)

    # ------------------------------------------------------------ each

    def _select(self) -> None:
        """Keep the rows that are asked for."""
        for condition in self.asked.where:
            name, _, text = condition.partition("=")
            if column := self._find("where", name.strip()):
                known = list(dict.fromkeys(str(value) for value in self._values(column)))
                kept = [i for i, value in enumerate(self.rows.columns[column]) if str(value) == text.strip()]
                if not kept:
                    told = (
                        f"no row has {column} = {text}. There is: {join_first(known, 10)}.{did_you_mean(text, known)}"
                    )
                    self.problems.append(Problem("where", told))
                    continue
                self.told.append(f"Only rows with {column} = {text} are judged, {len(kept)} of {len(self.rows)}.")
                self.rows = self.rows.keep(kept)

    def _split_names(self) -> None:
        """Add the columns `arm` and `seed` from the names of runs: by the pattern that was given or, where no column
        has seeds, by their ends, such as -seed3."""
        asked, columns = self.asked, self.rows.columns
        column = next(
            (name for name in (asked.run or "", NAME, "name", "Name", "run_name", "file") if name in columns), None
        )
        if asked.names:
            try:
                pattern = re.compile(asked.names)
            except re.error as error:
                self.problems.append(Problem("names", f"is no regular expression: {error}", asked.names))
                return
            if not {*pattern.groupindex} & {"arm", "seed"}:
                self.problems.append(Problem("names", "needs a group (?P<arm>...) or (?P<seed>...)", asked.names))
                return
            if column is None:
                self._ask("run", "no column has the names of runs")
                return
            found = [pattern.search(str(name)) for name in columns[column]]
            if unmatched := [name for name, match in zip(columns[column], found, strict=True) if match is None]:
                names = list(dict.fromkeys(unmatched))
                self.told.append(
                    f"The names of {count_noun(len(names), 'run')} do not match the pattern, and were left out: "
                    f"{join_first(names, 5)}."
                )
                self.rows = self.rows.keep(i for i, match in enumerate(found) if match)
                if not len(self.rows):
                    self.problems.append(Problem("names", f"matches no name, such as {names[0]!r}", asked.names))
                    return
            for group in pattern.groupindex:
                parts = [match[group] for match in found if match]
                self.rows.columns[group] = [int(part) if part and part.isdigit() else part for part in parts]
            return
        has_seeds = any({*_list_names(name)} & {*_SEEDS} for name in columns)
        if asked.seed or asked.unpaired or asked.pair_by or column is None or has_seeds:
            return
        split = {name: match for name in {*columns[column]} if (match := _NAMES.match(str(name)))}
        if len(split) < len({*columns[column]}):
            return
        ends = [split[name] for name in columns[column]]
        self.rows.columns["seed"] = [int(match["seed"]) for match in ends]
        self.derived += ["arm", "seed"]
        said = "seed is a part"
        if not asked.arm and not any(shorten(name).lower() in _ARMS[:6] and self._is_arm(name) for name in columns):
            arms = [f"{match['before']}{match['after']}".strip("-_/. ") or "all" for match in ends]
            self.rows.columns["arm"], said = arms, "arm and seed are parts"
        self.guessed.append(f"{said} of the names in {column!r}, such as {columns[column][0]!r}")

    def _guess_value(self, used: Sequence[str | None]) -> str | None:
        rest = [name for name in self.rows.columns if name not in used]
        exact = [name for name in rest if shorten(name).lower() in _VALUES and self._values(name)]
        measured = [name for name in rest if not _SETTINGS.match(name)]
        numeric = [name for name in measured if self._is_numeric(name)]
        known = [name for name in measured if _find_side(name) and self._values(name)]
        held_out = [name for name in known if _HELD_OUT.search(name.lower())]
        for found in (exact, held_out, known, numeric):
            if len(found) == 1:
                self.guessed.append(f"value is the column {found[0]!r}")
                return found[0]
            if found:
                self._ask("value", f"several columns may have the values to be compared: {join_first(found, 10)}")
                return None
        self._ask("value", "no column has numbers to be compared")
        return None

    def _find_direction(self, value: str) -> bool | None:
        if self.asked.maximize is not None:
            return self.asked.maximize
        side = _find_side(value)
        if side is None and self.rows.maximize is None:
            told = f"whether more of {value!r} is better is unknown: --higher-is-better or --lower-is-better"
            self.problems.append(Problem("value", told))
            return None
        maximize = self.rows.maximize if self.rows.maximize is not None else side == 1
        self.guessed.append(f"{'higher' if maximize else 'lower'} is better")
        return maximize

    def _find_baseline(self, arm: str) -> str | None:
        arms = list(dict.fromkeys(str(value) for value in self._values(arm)))
        there = f"Arms: {join_first(arms, 20)}"
        if (asked := self.asked.baseline) is not None:
            if asked in arms:
                if twins := [name for name in arms if name != asked and _plain(name) == _plain(asked)]:
                    told = f"the arms {join_words(map(repr, [asked, *twins]))} differ in letters' case or blanks alone"
                    self.problems.append(Problem("baseline", f"{told}: write one name for one arm"))
                return asked
            self.problems.append(Problem("baseline", f"no such arm. {there}.{did_you_mean(asked, arms)}", asked))
            return None
        if len(arms) == 1:
            return arms[0]
        named = [name for name in arms if _plain(name) in _BASELINES]
        if len(named) == 1:
            self.guessed.append(f"baseline is {named[0]!r}")
            return named[0]
        why = f"several arms may be it: {join_words(named)}" if named else "which arm it is was not said"
        self.problems.append(Problem("baseline", f"{why}. Name it: --baseline ARM. {there}"))
        return None


def _list_names(column: str) -> tuple[str, str]:
    """Return the names by which a column is found: without the prefix of its store, and its last part."""
    return shorten(column).lower(), column.rpartition(".")[2].lower()


def _plain(name: str) -> str:
    return " ".join(name.lower().split())


def _find_side(name: str) -> int | None:
    """Return -1 where less of a column is better, by its name, 1 where more is; None: it does not say."""
    words = {*re.split(r"[^a-z0-9]+", name.lower())}
    less, more = bool(words & _LESS), bool(words & _MORE)
    return None if less == more or words & _SPREAD else 1 if more else -1


def describe_settings(rows: Rows, columns: Columns) -> list[str]:
    """Return sentences on settings that differ between arms besides the arm, or within one."""
    others = (columns.arm, columns.value, columns.run, columns.step, columns.status, *columns.pair_by, *columns.by)
    names = [name for name in rows.columns if name not in others]
    arms = list(map(str, rows.columns[columns.arm]))
    repeats, told, between, within = len({*arms}) < len(arms), [], [], []
    for name in names:
        values = [*map(str, rows.columns[name])]
        if values == arms:  # such as run_name beside Name
            continue
        if len({*zip(arms, values, strict=True)}) == len({*arms}):  # one in each arm
            if repeats and len({*values}) > 1:
                between.append(name)
        elif _SETTINGS.match(name):
            within.append(name)
    if between:
        told.append(
            f"Besides {columns.arm}, the arms differ in {join_first(between, 8)}: a difference may be due to that."
        )
    if within:
        told.append(
            f"Within an arm there are several values of {join_first(within, 8)}: an arm is then a mixture of settings. "
            "Judge one of them, --where COLUMN=VALUE, or each, --by COLUMN."
        )
    return told
