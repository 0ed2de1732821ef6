"""Tables of results: what is guessed, left out and refused, and what is said of them."""

import json
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from ablate import AblateError, judge
from ablate.addons.judging.columns import Asked
from ablate.addons.judging.judge import plan, read_results

PRE, POST = [2.10, 2.14, 2.11, 2.16, 2.12], [2.20, 2.25, 2.22, 2.26, 2.21]
TABLE = {"arm": ["pre"] * 5 + ["post"] * 5, "seed": [*range(5)] * 2, "val_loss": PRE + POST}


def told(found):
    return " ".join(found.told)


def rows(**arms):
    """A mapping of columns, from the values of each arm."""
    of = [(arm, seed, value) for arm, values in arms.items() for seed, value in enumerate(values)]
    return dict(zip(("arm", "seed", "val_loss"), map(list, zip(*of, strict=True)), strict=True))


@pytest.mark.parametrize(
    "kind", ["csv", "tsv", "jsonl", "json", "parquet", "dict", "pandas", "arrow", "list", "csv.gz"]
)
def test_tables_of_all_kinds_have_one_verdict(kind, tmp_path):
    frame, file = pd.DataFrame(TABLE), tmp_path / f"runs.{kind}"
    write = {
        "csv": lambda: frame.to_csv(file, index=False),
        "csv.gz": lambda: frame.to_csv(file, index=False),
        "tsv": lambda: frame.to_csv(file, index=False, sep="\t"),
        "jsonl": lambda: frame.to_json(file, orient="records", lines=True),
        "json": lambda: frame.to_json(file, orient="records"),
        "parquet": lambda: pq.write_table(pa.table(TABLE), file),
    }
    frames = {"dict": TABLE, "pandas": frame, "arrow": pa.table(TABLE), "list": frame.to_dict("records")}
    if kind in write:
        write[kind]()
    found = judge(frames.get(kind, file), baseline="pre", effect=0.02)
    assert found.verdicts == {"post": "worse"}
    assert found.results.seeds == {i: f"seed {i}" for i in range(5)}
    ours = found.compared["post"].versus.interval  # 4 %: a fifth of the error is kept for seeds that come later
    assert ours == pytest.approx(stats.ttest_rel(POST, PRE).confidence_interval(0.96))


def test_the_object_of_a_notebook():
    found = judge(TABLE, baseline="pre")
    assert repr(found).startswith(
        "<Judgement of the table: On 5 seeds, with an error of at most 5 % for one comparison"
    )
    assert "post is worse than pre on a typical seed; mean difference 0.102" in found.verdict
    assert "as planned" not in found.verdict
    assert "fresh" not in found.verdict + found.summary
    frame = found.frame().set_index("arm")
    assert frame.loc["post", "difference"] == pytest.approx(np.mean(POST) - np.mean(PRE))
    assert (frame.loc["post", "low"], frame.loc["post", "high"]) == pytest.approx(
        found.compared["post"].versus.interval
    )
    assert "<table>" in found._repr_html_()
    assert found.figure().axes
    assert "| post | worse | 5 |" in found.to_markdown()
    assert json.loads(json.dumps(found.to_dict()))["arms"]["post"]["kind"] == "worse"


@pytest.mark.parametrize("seeds", [True, False])
def test_numbers_of_numpy(seeds):
    columns = {"arm": TABLE["arm"], "val_loss": np.array(TABLE["val_loss"], np.float32)}
    if seeds:
        columns["seed"] = np.array(TABLE["seed"])
    listed = {name: list(values) for name, values in columns.items()}
    found = [judge(table, baseline="pre") for table in (columns, listed, pd.DataFrame(columns))]
    assert [one.verdicts for one in found] == [{"post": "worse"}] * 3
    assert all(json.dumps(one.to_dict()) == json.dumps(found[0].to_dict()) for one in found)


def test_seeds_and_settings_that_do_nothing_are_noted():
    def note(**arms):
        return judge(rows(**arms), baseline="pre").to_markdown().partition("<details>")[0]

    assert "The value is the same to the last digit on all runs of pre (5 runs): if they ignore their seed" in (
        note(pre=[2.0] * 5, post=POST)
    )
    assert "On every seed the value is that of pre, to the last digit, for post (4 seeds)" in (
        note(pre=PRE, post=[*PRE[:4], math.nan])
    )
    assert "to the last digit" not in note(pre=PRE, post=POST, mix=[*PRE[:4], 2.5])
    assert "The value of 2 runs is 0 to the last digit, far below" in note(pre=PRE, post=[*POST[:3], 0.0, 0])
    assert "to the last digit" not in note(pre=PRE, post=[*POST[:3], 0.01, 0])


def test_the_last_column_is_explained():
    assert "the tail that shows in the paired differences" in judge(TABLE, baseline="pre").to_markdown()
    assert "ranks: the share of all pairs" in judge(TABLE, baseline="pre", unpaired=True).to_markdown()


def test_names_are_no_markup():
    text = judge(rows(pre=PRE, **{"<b>*x*|": POST}), baseline="pre").to_markdown()
    assert "| &lt;b&gt;\\*x\\*\\| | worse |" in text


def test_what_the_table_does_not_show_is_said():
    text = judge({**TABLE, "lr": [1e-3] * 5 + [3e-4] * 5}, baseline="pre").to_markdown()
    for part in (
        "Besides arm, the arms differ in lr: a difference may be due to that.",
        "Whether the settings of an arm were tuned on these seeds",
        "How many arms, metrics or seeds were tried and left out: the error covers 1 comparison.",
        "Earlier looks at these results are not counted",
        "none was challenged, and the verdict is about the settings of the table.",
        "Guessed: arm is the column 'arm'; seed is the column 'seed'; value is the column 'val_loss'; lower is better",
    ):
        assert part in text
    same = judge({**TABLE, "run_name": TABLE["arm"], "norm": ["rms"] * 5 + ["layer"] * 5}, baseline="pre")
    assert same.limits[0] == "Besides arm, the arms differ in norm: a difference may be due to that."
    mixed = judge({**TABLE, "lr": [1e-3, 2e-3] * 5}, baseline="pre")
    assert "Within an arm there are several values of lr" in " ".join(mixed.limits)


def test_runs_without_seeds_are_not_paired():
    found = judge({key: TABLE[key] for key in ("arm", "val_loss")}, baseline="pre")
    assert found.verdicts == {"post": "worse"}
    assert "over unpaired runs" in found.verdict
    assert "typical seed" not in found.verdict + found.summary
    assert found.compared["post"].versus.interval == pytest.approx(
        stats.ttest_ind(POST, PRE, equal_var=False).confidence_interval(0.96)
    )
    assert judge(TABLE, baseline="pre", unpaired=True).compared["post"].versus == found.compared["post"].versus
    unequal = judge(rows(pre=PRE, post=[*POST, 2.3, 2.2]), baseline="pre", unpaired=True)
    assert "(n = 7 and 5)" in unequal.verdict
    assert "1 look at 7 runs" in unequal.verdict
    assert unequal.compared["post"].estimate.n == 7
    failed = judge(rows(pre=PRE, post=[*POST, math.nan], mix=[math.nan] * 3), baseline="pre", unpaired=True).summary
    assert "mix trained on no run (failed runs: post 1 of 6 and mix 3 of 3)" in failed


@pytest.mark.parametrize(
    ("more", "ending", "said"),
    [
        ({}, "diverged", "1 run diverged, by a value of NaN or infinity"),
        ({"value": math.inf}, "diverged", "1 run diverged"),
        ({"value": None}, None, "Left out, as no outcome: 1 of post: there is no value."),
        ({"value": "None"}, None, "if a run diverged, write nan as its value, or count it by a column: --status"),
        ({"value": 2.2, "status": "diverged"}, "diverged", "1 run diverged"),
        (
            {"value": 2.2, "status": "crashed"},
            None,
            "1 of post: the status is crashed; if it failed as training diverged",
        ),
        ({"value": 0.0, "status": "crash"}, None, "1 of post: the status is crash; if it"),
        ({"value": 2.2, "status": "discard"}, "trained", "Runs whose State is 'discard' are taken to have ended; if"),
        ({"value": 2.2, "status": "running"}, None, "1 of post: the status is running, so it has not ended"),
        ({"value": 2.2, "status": "pruned"}, None, "what is left flatters the arm"),
        ({"value": 2.2, "status": "finished"}, "trained", "5 rows"),
        ({"value": 3.25}, "stuck", "5 rows"),
    ],
)
def test_how_a_run_ended(more, ending, said):
    table = rows(pre=PRE, post=[*POST[:4], more.get("value", math.nan)])
    if "status" in more:
        table["State"] = ["finished"] * 9 + [more["status"]]
    found = judge(table, baseline="pre", trivial=3.3)
    outcome = found.compared["post"].outcomes.get(4)
    assert (outcome.ending if outcome else None) == ending
    assert said.replace("5 rows", "10 rows") in told(found)


def test_words_of_a_status_that_count_as_failed():
    table = {**rows(pre=PRE, post=POST), "exit": ["ok"] * 8 + ["oom", "crashed"]}
    found = judge(table, baseline="pre", status="exit=oom,crashed")
    assert found.compared["post"].failures.failed == 2
    assert found.verdicts["post"] == "worse"


ITEMS = {"arm": ["pre"] * 60 + ["post"] * 60, "run": [n // 30 for n in range(120)], "loss": [*map(float, range(120))]}
STEPS = {"arm": ["pre", "post"] * 5000, "step": [i // 20 for i in range(10_000)], "loss": [2.0] * 10_000}


def steps(values, seed=True, nan=None):
    """A row for each of three steps of each run."""
    of = [
        (arm, i, step, value + 2 - step if step < 2 or nan is None else nan)
        for arm, own in values.items()
        for i, value in enumerate(own)
        for step in range(3)
    ]
    table = dict(zip(("arm", "seed", "step", "val_loss"), map(list, zip(*of, strict=True)), strict=True))
    if not seed:
        table["run"] = [f"{arm}{i}" for arm, i in zip(table["arm"], table.pop("seed"), strict=True)]
    return table


@pytest.mark.parametrize("seed", [True, False])
def test_of_rows_of_steps_the_last_is_taken(seed):
    table = steps({"pre": PRE, "post": POST}, seed)
    order = np.random.default_rng(1).permutation(30)
    table = {name: [values[i] for i in order] for name, values in table.items()}
    found = judge(table, baseline="pre")
    values = [one.value for one in found.compared["post"].outcomes.values()]
    assert sorted(values) == pytest.approx(sorted(POST))
    assert "The rows are steps of 10 runs, up to 3 each: of each run its last value is taken." in told(found)


def test_a_run_that_ends_before_the_others_is_left_out_and_nan_to_the_end_is_a_failure():
    table = steps({"pre": PRE, "post": POST})
    short = {name: values[:-2] for name, values in table.items()}
    found = judge(short, baseline="pre")
    assert 4 not in found.compared["post"].outcomes
    assert "1 run ended before the others of the arm, still running or killed, and was left out: post seed 4 at 0" in (
        told(found)
    )
    table["val_loss"][-2:] = [math.nan, math.nan]
    assert judge(table, baseline="pre").compared["post"].outcomes[4].ending == "diverged"
    sparse = {
        name: [value for value in values for _ in range(2)]
        for name, values in steps({"pre": PRE, "post": POST}).items()
    }
    sparse["step"] = [2 * step + i % 2 for i, step in enumerate(sparse["step"])]
    sparse["val_loss"] = [math.nan if i % 2 else value for i, value in enumerate(sparse["val_loss"])]
    assert judge(pd.DataFrame(sparse), baseline="pre").compared["post"].outcomes[4].value == pytest.approx(POST[4])


def test_names_of_runs_have_arm_and_seed():
    table = {"Name": [f"{arm}_seed={seed}" for arm in ("pre", "post") for seed in range(5)], "eval/acc": PRE + POST}
    found = judge(table, baseline="pre")
    assert found.verdicts == {"post": "better"}
    assert "arm and seed are parts of the names in 'Name', such as 'pre_seed=0'; " in told(found)
    assert "higher is better" in told(found)
    table["Name"] = [f"x{seed}{arm}" for arm in ("pre", "post") for seed in range(5)]
    found = judge(table, baseline="pre", names=r"x(?P<seed>\d)(?P<arm>\w+)")
    assert found.verdicts == {"post": "better"}


def test_levels_are_one_family():
    one, two = rows(pre=PRE, post=POST), rows(pre=PRE, post=[value + 0.001 * (-1) ** i for i, value in enumerate(PRE)])
    table = {name: one[name] + two[name] for name in one} | {"size": ["9m"] * 10 + ["60m"] * 10}
    found = judge(table, baseline="pre", by="size", effect=0.02)
    assert found.verdicts == {"post at size=9m": "worse", "post at size=60m": "equivalent within 0.02"}
    assert found.compared["post at size=9m"].family == 2
    assert "at size=9m post (mean 0.102" in found.summary
    assert "at size=60m post is equivalent to pre on a typical seed." in found.summary
    with pytest.raises(AblateError, match=r"pre has several runs of seed 0, in rows 1, 11.* They differ in size"):
        judge(table, baseline="pre")
    paired = judge(table, baseline="pre", pair_by=["size", "seed"])
    assert paired.compared["post"].versus.seeds == 10
    assert paired.results.seeds[1] == "size 60m, seed 0"
    alone = judge(table, baseline="pre", where="size=9m")
    assert alone.verdicts == {"post": "worse"}
    assert "Only rows with size = 9m are judged, 10 of 20." in told(alone)


def test_seeds_that_the_baseline_lacks_are_in_no_difference_but_their_failures_count():
    found = judge(rows(pre=PRE, post=[*POST, math.nan, 2.9]), baseline="pre")
    assert found.compared["post"].versus == judge(TABLE, baseline="pre").compared["post"].versus
    assert (found.compared["post"].failures.failed, found.compared["post"].failures.n) == (1, 7)
    assert "Seeds that the baseline does not have are in no difference, and in no mean: 2 of post." in told(found)


@pytest.mark.parametrize(
    ("table", "given", "problems"),
    [
        (TABLE, {}, ["baseline: which arm it is was not said. Name it: --baseline ARM. Arms: pre, post"]),
        (TABLE, {"baseline": "pred"}, ["baseline: no such arm. Arms: pre, post. Did you mean pre? (given: 'pred')"]),
        (rows(pre=PRE, Pre=PRE, post=POST), {"baseline": "pre"}, ["differ in letters' case or blanks alone"]),
        (TABLE, {"arm": "arms", "seed": "s", "baseline": "pre"}, ["arm: there is no such column", "seed: there is no"]),
        (rows(pre=PRE, post=["n/a", "x"]), {"baseline": "pre"}, ["must be numbers, nan or inf, or empty; row 6"]),
        ({**TABLE, "seed": [1, 1, 2, 3, 4] * 2}, {"baseline": "pre"}, ["pre has several runs of seed 1, in rows 1, 2"]),
        (STEPS, {"baseline": "pre"}, ["10,000 rows of 2 arms are steps (step), and no column says which run"]),
        (ITEMS, {"baseline": "pre"}, ["120 rows of 2 arms are of 4 runs (run), and no column says which step"]),
        ({"arm": [], "seed": [], "loss": []}, {}, ["it has no rows, so there is nothing to judge"]),
        ({"arm": ["a", "b"], "seed": [1, 1], "x": [1.0, 2.0]}, {"baseline": "a"}, ["whether more of 'x' is better"]),
        ({"seed": [1, 2], "loss": [1.0, 2.0]}, {}, ["arm: no column says which arm a run is of"]),
        ({"arm": ["a", "b"], "val_loss": [1, 2], "test_loss": [1, 2]}, {"baseline": "a"}, ["several columns may have"]),
        ({"arm": ["a", "b"], "std_acc": [1.0, 2.0]}, {"baseline": "a"}, ["whether more of 'std_acc' is better"]),
        ({"run": ["a17", "b18"], "loss": [1.0, 2.0]}, {}, ["parts of the names in 'run', --names PATTERN"]),
        (
            {**TABLE, "seed": [None] * 5 + [*range(5)]},
            {"baseline": "pre"},
            ["baseline: no run of pre is left to compare with. 5 rows without seed were left out."],
        ),
        (TABLE, {"baseline": "pre", "where": "arm=mix"}, ["no row has arm = mix. There is: pre, post."]),
        (TABLE, {"baseline": "pre", "names": "("}, ["names: is no regular expression"]),
        (TABLE, {"baseline": "pre", "unpaired": True, "seed": "seed"}, ["cannot be combined with --seed"]),
        (TABLE, {"baseline": "pre", "looks": [5, 3], "effect": -1}, ["effect: must", "looks: must be numbers"]),
        (TABLE, {"baseline": "pre", "trivial": 2.0, "higher_is_better": True}, ["trivial: must be a loss above 0"]),
        ({"arm": [1], "loss": [1, 2]}, {}, ["differ in their number of rows (arm: 1, loss: 2)"]),
        (TABLE, {}, ["From Python, --pair-by COLUMN is the argument pair_by='COLUMN'"]),
        (7, {}, ["A table is expected", "given: int"]),
    ],
)  # fmt: skip
def test_tables_that_are_refused(table, given, problems):
    with pytest.raises(AblateError) as error:
        judge(table, **given)
    for problem in problems:
        assert problem in str(error.value)


def test_many_rows_without_seeds_may_not_be_runs():
    """Rows of few runs would count as many independent ones, and equal arms differ: refused where runs repeat."""
    assert not judge({**ITEMS, "run": range(120)}, baseline="pre").notes
    many = {name: [*values] * 2 for name, values in ITEMS.items()}
    assert "taken as a run of its own, 120 of an arm" in judge(many, baseline="pre", step="none").notes[0]


def test_seeds_that_no_two_arms_share_are_said():
    table = {**TABLE, "seed": [*range(10)]}
    assert "No seed is common to the baseline and post: --unpaired compares them as they are." in (
        told(judge(table, baseline="pre"))
    )


def test_few_seeds_are_no_verdict():
    found = judge(rows(pre=[2.0], post=[2.1]), baseline="pre")
    assert found.summary == "No verdict: it takes 3 seeds that both have."
    assert "No verdict yet: it requires 3 seeds." in found.verdict
    alone = judge(rows(pre=PRE))
    assert "there is one arm" in alone.summary
    assert not alone.limits  # no error covers no comparison
    assert "0 pairs" not in judge(rows(pre=[2.0], post=[2.1]), baseline="pre", unpaired=True).to_markdown()


@pytest.mark.parametrize("n", [3, 4, 5, 6])
@pytest.mark.parametrize("unpaired", [False, True])
def test_the_summary_says_that_few_seeds_rest_on_normal_values(n, unpaired):
    few = judge(rows(pre=[*PRE, 2.13][:n], post=[*POST, 2.23][:n]), baseline="pre", unpaired=unpaired)
    exact = stats.mannwhitneyu(range(n), range(n, 2 * n), method="exact") if unpaired else stats.binomtest(n, n)
    assert few.verdicts == {"post": "worse"}
    for text, words in (few.summary, " distributed normally: "), (few.verdict, "also assumes that"):
        assert (words in text) == (exact.pvalue > 0.04)  # a fifth of the error is kept for seeds that come later


CUT = "The last line of {} is cut, as of a log that is still written, and was left out."


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "arm,seed,loss\npre,1,2.0\npost,1,2.1\npost,2", CUT),
        ("a.jsonl", '{"arm": "pre", "seed": 1, "loss": 2}\n{"arm": "post", "seed": 1, "loss": 2}\n{"arm": "po', CUT),
    ],
)
def test_a_log_that_is_still_written(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    found = judge(tmp_path / name, baseline="pre")
    assert len(found.rows) == 2
    assert said.format(name) in told(found)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "", "is empty: its first line is expected to name the columns"),
        ("a.csv", "arm,arm,loss\n1,2,3\n", "the columns arm stand there twice"),
        ("a.csv", "arm,seed,loss\npre,1\npost,1,2\n", "row 1 has 2 cells, and the first line names 3 columns"),
        ("a.csv", "arm,seed,loss\npre,1,x\n", r"row 1 has 'x' \(rows are counted from the line after that with the"),
        ("a.csv", "arm,seed,loss\npre,1,2\npre,1,3\n", r"in rows 1, 2 \(rows are counted from the line after that"),
        ("a.json", "{", "not JSON: .*suffix .jsonl"),
        ("a.json", "3", "expected a list of objects, or an object of columns; found a number"),
        ("a.jsonl", '{"a": 1\n{"a": 2}\n', "a.jsonl:1: not a line of JSON"),
        ("a.xlsx", "", "unknown suffix"),
        ("a.parquet", "no", "not a readable parquet file"),
    ],
)
def test_files_that_are_refused(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(AblateError, match=said):
        judge(tmp_path / name)


def test_a_chart_of_wandb_has_a_column_for_each_run(tmp_path):
    """Its layout: Step, and for each run the value, its least and its largest."""
    table = {"Step": [0, 1, 2]}
    for arm, values in (("pre", PRE), ("post", POST)):
        for seed, value in enumerate(values):
            for end in ("", "__MIN", "__MAX"):
                table[f"{arm}-s{seed} - val/loss{end}"] = [value + 2, value + 1, value]
    pd.DataFrame(table).to_csv(tmp_path / "chart.csv", index=False)
    assert judge(tmp_path / "chart.csv", baseline="pre").compared["post"].outcomes[4].value == POST[4]
    table["pre-s0 - val/loss__MAX"] = [9, 9, 9]
    pd.DataFrame(table).to_csv(tmp_path / "chart.csv", index=False)
    with pytest.raises(AblateError, match="is a group of runs"):
        judge(tmp_path / "chart.csv", baseline="pre")


def test_several_files_are_runs(tmp_path):
    for arm, values in (("pre", PRE), ("post", POST)):
        for seed, value in enumerate(values):
            lines = (json.dumps({"step": step, "loss": value + 2 - step}) for step in range(3))
            (tmp_path / f"{arm}-seed{seed}.jsonl").write_text("\n".join(lines) + "\n")
    found = judge(str(tmp_path / "*.jsonl"), baseline="pre")
    assert found.verdicts == {"post": "worse"}
    assert "the names in 'file', such as 'post-seed0'" in told(found)


@pytest.mark.parametrize("unpaired", [False, True])
def test_the_interval_of_a_mean_is_said_to_be_widened(unpaired):
    """At one look as planned it is one of 96 %, since a fifth of the error is kept for further looks."""
    found = judge(TABLE, baseline="pre", unpaired=unpaired)
    mean = found.compared["post"].estimate
    sd = np.std(POST, ddof=1) / math.sqrt(len(POST))
    assert mean.half_width == pytest.approx(stats.t.ppf(0.98, len(POST) - 1) * sd, rel=1e-3)
    assert "95 % interval, widened for every look; failed" in found.to_markdown()
    assert "95 % interval, widened for every look" in found.drawing.caption


def test_seeds_for_an_effect():
    """By the formula of the normal approximation, which the t-test of few seeds exceeds by one or two."""
    rows_of, columns, results = read_results(TABLE, Asked(baseline="pre"))
    document = plan(rows_of, columns, results, 0.01)
    table = document.answers[0].table
    row = dict(zip(table.header, table.rows[0], strict=True))
    sd = float(np.std(np.subtract(POST, PRE), ddof=1))
    normal = ((stats.norm.ppf(1 - 0.02) + stats.norm.ppf(0.8)) * sd / 0.01) ** 2
    assert math.ceil(normal) <= int(row["seeds for 0.01"]) <= normal + 4
    assert int(row["if unlucky"]) > int(row["seeds for 0.01"])
    assert document.summary.startswith(f"{row['seeds for 0.01']} seeds of each arm that train find ")
    assert "in 80 % of cases" in document.summary
    alone = plan(*read_results(rows(pre=PRE), Asked()), 0.01).answers[0]
    assert alone.table.columns[2].values == [pytest.approx(math.sqrt(2) * np.std(PRE, ddof=1))]
    assert "There is one arm" in " ".join(alone.sentences)
    assert plan(*read_results(rows(pre=[2.0], post=[2.1]), Asked(baseline="pre")), 0.01).statements
    equal = rows(pre=PRE, post=POST, mix=[value + 0.1 for value in PRE])
    table = plan(*read_results(equal, Asked(baseline="pre")), 0.01).answers[0]
    assert [row[0] for row in table.table.rows] == ["post"]
    assert "Of mix all differences are equal: their spread is unknown." in table.sentences
    only = plan(*read_results(rows(pre=PRE, post=PRE), Asked(baseline="pre")), 0.01)
    assert (only.statements, only.summary) == (["Of post all differences are equal: their spread is unknown."], "")
