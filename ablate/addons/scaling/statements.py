"""The results of a ladder: tables of losses, differences and failures against size, and sentences on trends, untrained
sizes, failures, and their basis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ablate.addons.scaling.comparison import Prediction, SizedArm, SizedPair
from ablate.addons.scaling.fits import FORM, LEAST_SIZES, Interval
from ablate.addons.scaling.ladder import Ladder
from ablate.addons.scaling.trends import Trend
from ablate.config.formatting import count_noun, format_count, format_number, join_words
from ablate.reports.labels import name_items
from ablate.reports.section import Section, Table
from ablate.verdict.outcomes import LOSS, state_rule
from ablate.verdict.sequential import LEAST
from ablate.verdict.statements import format_estimate


def tabulate(ladder: Ladder) -> list[Section]:
    """Return the tables."""
    tables = [_tabulate_losses(ladder), _tabulate_differences(ladder)]
    return [*tables, *([_tabulate_speedups(ladder)] if ladder.speedups else []), _tabulate_failures(ladder)]


def _tabulate_losses(ladder: Ladder) -> Section:
    arms = ladder.compared.arms
    rows = []
    for k, size in enumerate(ladder.sizes):
        cells = [_format_loss(arm, k) for arm in arms.values()]
        rows.append([size.name, format_count(size.parameters), format_count(size.items), *cells])
    if ladder.target:
        name, parameters = ladder.target
        curves = [arm.curve for arm in arms.values()]
        cells = [format_interval(c.at(parameters)) if c and c.reaches(parameters) else "-" for c in curves]
        rows.append([f"{name}, by the curves", format_count(parameters), "", *cells])
    title = f"{LOSS} on the fresh seeds that trained, mean ± 95 % interval"
    return Section(title, Table.of_rows(["size", "parameters", "trained on", *arms], rows, numbers=True))


def _tabulate_differences(ladder: Ladder) -> Section:
    pairs, baseline = ladder.compared.pairs, ladder.baseline
    header = ["size"]
    for arm in pairs:
        header += [f"{arm}, difference to {baseline}", f"{arm}, difference to {baseline}, by the curves"]
    rows = []
    for k, size in enumerate(ladder.sizes):
        cells = []
        for pair in pairs.values():
            measured = pair.measured[k].difference
            cells.append(format_estimate(measured, sign=True) if measured else "-")
            cells.append(format_interval(pair.gap.at(size.parameters), sign=True) if pair.gap else "-")
        rows.append([size.name, *cells])
    if ladder.target:
        name, parameters = ladder.target
        cells = []
        for pair in pairs.values():
            gap = pair.gap if pair.gap and pair.gap.reaches(parameters) else None
            cells += ["", format_interval(gap.at(parameters), sign=True) if gap else "-"]
        rows.append([f"{name}, not trained", *cells])
    if not any(pair.gap for pair in pairs.values()):
        header, rows = header[:1] + header[1::2], [row[:1] + row[1::2] for row in rows[: len(ladder.sizes)]]
    title = f"Difference in {LOSS} to {baseline}, over the seeds on which both trained"
    return Section(title, Table.of_rows(header, rows, numbers=True))


def _tabulate_speedups(ladder: Ladder) -> Section:
    """Return the effective speed-up of each arm at each size."""
    rows = [
        [size.name, f"{ladder.computes[ladder.baseline][k]:.3g}", *(_format_speedup(own[k]) for own in
                                                                    ladder.speedups.values())]
        for k, size in enumerate(ladder.sizes)
    ]  # fmt: skip
    title = f"Effective speed-up: FLOPs with which {ladder.baseline} would reach the arm's loss, over the arm's FLOPs"
    sentence = (
        f"By the curve through the losses of {ladder.baseline} against FLOPs, with 95 % intervals over seeds; it "
        "describes these seeds and this curve, and is not one of the comparisons that share the error of 5 %. Beyond "
        f"the largest compute of {ladder.baseline} it is extrapolated."
    )
    header = ["size", f"FLOPs of {ladder.baseline}", *ladder.speedups]
    return Section(title, Table.of_rows(header, rows, numbers=True), [sentence])


def _format_speedup(speedup: Interval | None) -> str:
    """Return '1.30 (1.12 to 1.55)', '1.30 (1.12 or more)', or 'not reached (1.12 or more)'."""
    if speedup is None:
        return "-"
    value = f"{speedup.value:.2f}" if math.isfinite(speedup.value) else "not reached"
    if speedup.low is None or speedup.high is None:
        return value
    low = f"{speedup.low:.2f}" if math.isfinite(speedup.low) else "not reached"
    return f"{value} ({low} to {speedup.high:.2f})" if math.isfinite(speedup.high) else f"{value} ({low} or more)"


def _tabulate_failures(ladder: Ladder) -> Section:
    arms = ladder.compared.arms
    rows = [
        [size.name, *(share.describe() if (share := arm.failures[k]) else "-" for arm in arms.values())]
        for k, size in enumerate(ladder.sizes)
    ]
    title = "Fresh seeds that failed, with the exact 95 % interval of the share"
    return Section(title, Table.of_rows(["size", *arms], rows, numbers=True))


def _format_loss(arm: SizedArm, k: int) -> str:
    """Return '2.153 ± 0.012', with the number of seeds where some failed."""
    estimate, share = arm.estimates[k], arm.failures[k]
    if estimate is None:
        return "none trained" if share else "-"
    return format_estimate(estimate) + (f" ({estimate.n} of {share.n})" if share and share.failed else "")


def format_interval(value: Interval, sign: bool = False) -> str:
    """Return '2.1533 (2.1 ... 2.2)'; '+0.0120 (-0.0100 ... +0.0340)' of a difference."""
    text = f"{value.value:+.4f}" if sign else format_number(value.value)
    if value.low is None or value.high is None:
        return text
    return (
        f"{text} ({value.low:+.4f} ... {value.high:+.4f})" if sign else f"{text} ({value.low:.4f} ... {value.high:.4f})"
    )


def state_findings(ladder: Ladder) -> list[str]:
    """Return the results: the sizes at which each difference is shown and which arms stand at an end of a searched
    range there, how it changes with size, the curves' predictions, and the failures."""
    pairs = ladder.compared.pairs
    sentences = [text for arm, pair in pairs.items() if (text := _state_differences(ladder, arm, pair))]
    sentences += ladder.edges
    sentences += [_state_trend(ladder, arm, pair.trend) for arm, pair in pairs.items()]
    sentences += [text for arm, own in ladder.speedups.items() if (text := _state_speedup(ladder, arm, own))]
    sentences += _state_curves(ladder)
    sentences += [_state_failures(ladder, name, arm) for name, arm in ladder.compared.arms.items()]
    sentences += [text for arm, pair in pairs.items() if (text := _state_failures_apart(ladder, arm, pair))]
    return [*sentences, _state_family(ladder)]


def _state_differences(ladder: Ladder, arm: str, pair: SizedPair) -> str:
    """Return the sizes at which an arm is shown to have another loss than the baseline, those that the sweep of the
    size claims before the others; empty if there are none."""
    signs = [versus.difference.sign if versus.difference else 0 for versus in pair.measured]
    known = list(zip(ladder.sizes, signs, ladder.claimed[arm], strict=True))
    told = []
    for is_claimed, ending in (
        (True, "each at its own settings"),
        (False, "which the sweep of the size does not claim"),
    ):
        shown = {
            word: join_words(size.name for size, one, claimed in known if (one, claimed) == (sign, is_claimed))
            for word, sign in (("lower", -1), ("higher", 1))
        }
        parts = [f"{word} than that of {ladder.baseline} at {sizes}" for word, sizes in shown.items() if sizes]
        told += [f"The loss of {arm} is {join_words(parts)}, {ending}."] if parts else []
    return " ".join(told)


def _state_trend(ladder: Ladder, arm: str, trend: Trend | None) -> str:
    """Return whether the difference of an arm to the baseline changes with size."""
    pair = f"{arm} and {ladder.baseline}"
    if trend is None:
        return f"{pair}: fewer than two sizes have a seed on which both trained, so no trend can be estimated."
    small, large = (ladder.sizes[k].name for k in trend.sizes)
    ends = f"from {trend.ends[0]:+.4f} nats at {small} to {trend.ends[1]:+.4f} at {large}"
    n = f"n = {trend.pairs[0]}" if trend.pairs[0] == trend.pairs[1] else f"n = {trend.pairs[0]} and {trend.pairs[1]}"
    change = f"a change of {format_interval(trend.change, sign=True)}, {n}"
    if trend.word == "figures":
        need = (
            f"a trend requires {LEAST} seeds at two sizes on which both trained"
            if min(trend.pairs) < LEAST
            else "differences that are equal on all seeds do not show their variation"
        )
        return f"{pair}: {ends} ({change}). This is not a claim: {need}."
    if trend.word == "grows":
        return f"{pair}: the difference grows with size, {ends} ({change})."
    if trend.word == "shrinks":
        return f"{pair}: the difference shrinks with size, {ends} ({change})."
    if trend.word == "changes":
        return (
            f"{pair}: the difference changes with size, {ends} ({change}); a growth or shrinkage of its magnitude is "
            "not shown."
        )
    if trend.word == "stays":
        return f"{pair}: the difference stays, {ends}: it changes by less than {trend.effect:.2g} nats ({change})."
    return f"{pair}: no trend is shown, {ends} ({change})."


def _state_speedup(ladder: Ladder, arm: str, speedups: Sequence[Interval | None]) -> str:
    """Return the effective speed-up of an arm at the largest size at which it trained; '' if there is none."""
    known = [(size, own) for size, own in zip(ladder.sizes, speedups, strict=True) if own]
    if not known or known[-1][1].low is None:
        return ""
    size, speedup = known[-1]
    return (
        f"{arm}, effective speed-up at {size.name}: {_format_speedup(speedup)} times its FLOPs would take "
        f"{ladder.baseline} to its loss, by the curve through the losses of {ladder.baseline} (described, not claimed)."
    )


def _state_curves(ladder: Ladder) -> list[str]:
    """Return the curves' prediction of an untrained size, their accuracy at the largest, and their limits."""
    pairs, sizes = ladder.compared.pairs, len(ladder.sizes)
    if sizes < LEAST_SIZES:
        what = f"{ladder.target[0]} cannot be predicted" if ladder.target else "nothing is extrapolated"
        return [
            f"{what[0].upper()}{what[1:]}: {count_noun(sizes, 'size')} cannot determine a floor, which requires "
            f"{LEAST_SIZES}."
        ]
    sentences = []
    for arm, pair in pairs.items():
        if pair.gap is None:
            sentences.append(
                f"{arm} and {ladder.baseline} trained on the same seeds at fewer than {LEAST_SIZES} sizes, which "
                "cannot determine a floor: nothing is extrapolated."
            )
            continue
        if ladder.target:
            sentences.append(_state_target(ladder, arm, pair))
        elif not pair.gap.has_floor:
            sentences.append(f"{_name_floorless(ladder, arm, pair)}: larger sizes cannot be predicted.")
        sentences.append(_state_prediction(ladder, arm, pair.prediction))
    return sentences


def _name_floorless(ladder: Ladder, arm: str, pair: SizedPair) -> str:
    assert pair.gap is not None
    curves = ((arm, pair.gap.arm), (ladder.baseline, pair.gap.baseline))
    names = [name for name, curve in curves if not curve.has_floor]
    return f"The losses of {join_words(names)} show no floor yet"


def _state_target(ladder: Ladder, arm: str, pair: SizedPair) -> str:
    assert ladder.target is not None
    assert pair.gap is not None
    (name, parameters), gap = ladder.target, pair.gap
    if not gap.reaches(parameters):
        return f"{_name_floorless(ladder, arm, pair)}: {name} cannot be predicted."
    value = f"{format_interval(gap.at(parameters), sign=True)} nats"
    if not gap.level:
        value += f", without an interval, since not all sizes have {LEAST} seeds that differ"
    told = f"At {name} the curves predict a difference of {arm} to {ladder.baseline} of {value}"
    largest, smallest = gap.arm.sizes[-1], gap.arm.sizes[0]
    if smallest <= parameters <= largest:
        return f"{told}, which is between trained sizes."
    far = f"{parameters / largest:.3g} times the parameters of the largest size trained"
    if parameters < smallest:
        far = f"1/{smallest / parameters:.3g} of the parameters of the smallest size trained"
    return f"{told}. This is an extrapolation to {far}."


def _state_prediction(ladder: Ladder, arm: str, prediction: Prediction | None) -> str:
    """Return the error of curves through the other sizes at the largest size."""
    pair = f"the difference of {arm} to {ladder.baseline}"
    if prediction is None:
        return (
            f"Whether curves predict {pair} at a size that was not fitted cannot be tested: that requires "
            f"{LEAST_SIZES + 1} sizes."
        )
    size = ladder.sizes[prediction.size].name
    if prediction.predicted is None or prediction.error is None:
        return f"Curves through the sizes below {size} have no floor, so they do not predict {pair} there."
    text = (
        f"Curves through the sizes below {size} predict {pair} there as "
        f"{format_interval(prediction.predicted, sign=True)}; measured: {prediction.measured:+.4f}. The error is "
        f"{format_interval(prediction.error, sign=True)}"
    )
    if prediction.error.side:
        return f"{text}: the curves' error is larger than the seeds explain, so do not rely on them beyond {size}."
    return f"{text}."


def _state_failures(ladder: Ladder, name: str, arm: SizedArm) -> str:
    """Return an arm's failures at each size, and whether their share changes with size."""
    lost = [ladder.sizes[k].name for k, fresh in enumerate(arm.outcomes) if not fresh.found and not fresh.outcomes]
    untrained = (
        f" At {join_words(lost)} it could not be trained within the budget: no trial of its search completed."
        if lost
        else ""
    )
    shares = [(size.name, share) for size, share in zip(ladder.sizes, arm.failures, strict=True) if share]
    if not shares:
        return f"{name} has no fresh seed that ended.{untrained}"
    if not any(share.failed for _, share in shares):
        most = max(share.high for _, share in shares)
        return (
            f"{name} failed on none of its seeds; at the size with the fewest, up to {100 * most:.0f} % may fail "
            f"(one-sided 95 %).{untrained}"
        )
    counts = join_words(f"{share.failed} of {share.n} at {size}" for size, share in shares)
    trend = arm.failure_trend
    if trend.p is None:
        return f"{name} failed on {counts}.{untrained}"
    if trend.p <= arm.failure_level:
        word = "rises" if trend.rises else "falls"
        return (
            f"The share of seeds on which {name} fails {word} with size: {counts} (exact trend test, "
            f"p = {trend.p:.2g}).{untrained}"
        )
    why = (
        f"exact trend test, p = {trend.p:.2g}"
        if trend.smallest_p <= arm.failure_level
        else "no outcome of so few seeds and failures would show it"
    )
    return f"{name} failed on {counts}; whether the share changes with size is unknown ({why}).{untrained}"


def _state_failures_apart(ladder: Ladder, arm: str, pair: SizedPair) -> str:
    """Return the sizes at which an arm is shown to fail more or less often than the baseline; empty if there are
    none."""
    shown = [
        f"{'more' if versus.failure_side > 0 else 'less'} often at {size.name} ({versus.failed} against "
        f"{versus.other_failed} of {versus.seeds}; exact test, p = {versus.failure_p:.2g})"
        for size, versus in zip(ladder.sizes, pair.measured, strict=True)
        if versus.failure_side
    ]
    return f"{arm} fails {join_words(shown)} than {ladder.baseline} on the same seeds." if shown else ""


def _state_family(ladder: Ladder) -> str:
    """Return the number of comparisons that share an error of 5 %."""
    compared = ladder.compared
    pairs, tests = len(compared.pairs), compared.failure_tests
    parts = [
        f"{count_noun(pairs * len(ladder.sizes), 'difference')} at a size",
        count_noun(pairs, "trend"),
        *([f"{count_noun(tests, 'exact test')} of failures"] if tests else []),
    ]
    untried = "Trends are those of the chosen settings: no arm tries again before one is told. " if pairs else ""
    return untried + (
        f"{count_noun(compared.family, 'comparison')} share an error of 5 %, every look counted: {join_words(parts)}. "
        "Predictions of the curves are not claims; each has a 95 % interval."
    )


def list_caveats(ladder: Ladder) -> list[str]:
    """Return the fit of the curves, what sizes take over from others, the definition of a failure, and the missing
    seeds."""
    texts = [*ladder.taken_over, *ladder.surroundings]
    if any(arm.curve for arm in ladder.compared.arms.values()):
        texts.append(
            f"Curves: loss = {FORM}, where N are the weights in the matrices of the layers. Their intervals cover the "
            "variation of the seeds only, not the choice of the curve."
        )
    ratios = [size.items / size.parameters for size in ladder.sizes]
    if max(ratios) > 1.1 * min(ratios):
        items = name_items(ladder.sizes[0].spec)
        texts.append(
            f"The sizes differ in {items} per parameter, {min(ratios):.3g} to {max(ratios):.3g}, so effects of size "
            f"and of {items} per parameter are mixed."
        )
    return [*texts, *_state_rules(ladder), *_list_left_out(ladder), *_list_unfinished(ladder)]


def _state_rules(ladder: Ladder) -> list[str]:
    """Return the definition of a failure, for each trivial loss."""
    losses = list(dict.fromkeys(ladder.trivial_losses))
    if len(losses) == 1:
        return [state_rule(losses[0])]
    return [
        f"At {join_words(s.name for s, t in zip(ladder.sizes, ladder.trivial_losses, strict=True) if t == loss)}: "
        + state_rule(loss)
        for loss in losses
    ]


def _list_left_out(ladder: Ladder) -> list[str]:
    """Return how many failed seeds are not in means, differences and curves."""
    failed = {
        name: (sum(s.failed for s in arm.failures if s), sum(s.n for s in arm.failures if s))
        for name, arm in ladder.compared.arms.items()
    }
    if not any(count for count, _ in failed.values()):
        return []
    counts = join_words(f"{count} of {n} of {name}" for name, (count, n) in failed.items() if count)
    return [f"Losses, differences and curves only include seeds that trained, without the failed seeds: {counts}."]


def _list_unfinished(ladder: Ladder) -> list[str]:
    """Return the sizes at which fewer seeds ended than planned."""
    short = [
        f"{name} at {size.name} ({len(fresh.outcomes)} of {size.spec.confirm.first_seeds})"
        for name, arm in ladder.compared.arms.items()
        for size, fresh in zip(ladder.sizes, arm.outcomes, strict=True)
        if fresh.found and len(fresh.outcomes) < size.spec.confirm.first_seeds
    ]
    return [f"Not all fresh seeds have ended: {join_words(short)}."] if short else []
