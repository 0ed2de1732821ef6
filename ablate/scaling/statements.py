"""What a ladder shows, in sentences: trends, sizes that were not trained, failures, and what these rest on."""

from __future__ import annotations

from ablate.config.formatting import count_noun, join_words
from ablate.scaling.comparison import Prediction, SizedArm, SizedPair
from ablate.scaling.fits import FORM, LEAST_SIZES
from ablate.scaling.ladder import Ladder
from ablate.scaling.tables import format_interval
from ablate.scaling.trends import Trend
from ablate.verdict.outcomes import state_rule
from ablate.verdict.sequential import LEAST


def state_findings(ladder: Ladder) -> list[str]:
    """Return what is shown: how each difference changes with size, what the curves say, and what fails."""
    pairs = ladder.compared.pairs
    sentences = [_state_trend(ladder, arm, pair.trend) for arm, pair in pairs.items()]
    sentences += _state_curves(ladder)
    sentences += [_state_failures(ladder, name, arm) for name, arm in ladder.compared.arms.items()]
    sentences += [text for arm, pair in pairs.items() if (text := _state_failures_apart(ladder, arm, pair))]
    return [*sentences, _state_family(ladder)]


def _state_trend(ladder: Ladder, arm: str, trend: Trend | None) -> str:
    """Return whether the difference of an arm to the baseline changes with size."""
    pair = f"{arm} and {ladder.baseline}"
    if trend is None:
        return f"{pair}: fewer than two sizes have a seed on which both trained, so there is no trend to tell."
    small, large = (ladder.rungs[k].size for k in trend.sizes)
    ends = f"from {trend.ends[0]:+.4f} nats at {small} to {trend.ends[1]:+.4f} at {large}"
    n = f"n = {trend.pairs[0]}" if trend.pairs[0] == trend.pairs[1] else f"n = {trend.pairs[0]} and {trend.pairs[1]}"
    change = f"a change of {format_interval(trend.change, sign=True)}, {n}"
    if trend.word == "figures":
        need = (
            f"a trend takes {LEAST} seeds at two sizes on which both trained"
            if min(trend.pairs) < LEAST
            else "differences that are alike on all seeds say nothing of how they vary"
        )
        return f"{pair}: {ends} ({change}). These are figures; {need}."
    if trend.word == "grows":
        return f"{pair}: the difference grows with size, {ends} ({change})."
    if trend.word == "shrinks":
        return f"{pair}: the difference shrinks with size, {ends} ({change})."
    if trend.word == "changes":
        return f"{pair}: the difference changes with size, {ends} ({change}); whether it grows is not shown."
    if trend.word == "stays":
        return f"{pair}: the difference stays, {ends}: it changes by less than {trend.effect:.2g} nats ({change})."
    return f"{pair}: no trend is shown, {ends} ({change})."


def _state_curves(ladder: Ladder) -> list[str]:
    """Return what the curves say of a size that was not trained, how well they foretell the largest, and what they
    can't say."""
    pairs, sizes = ladder.compared.pairs, len(ladder.rungs)
    if sizes < LEAST_SIZES:
        what = f"{ladder.target[0]} can't be extrapolated to" if ladder.target else "nothing is extrapolated"
        return [
            f"{what[0].upper()}{what[1:]}: {count_noun(sizes, 'size')} can't tell a floor, which takes {LEAST_SIZES}."
        ]
    sentences = []
    for arm, pair in pairs.items():
        if pair.gap is None:
            sentences.append(
                f"{arm} and {ladder.baseline} trained on the same seeds at fewer than {LEAST_SIZES} sizes, which tell "
                "no floor: nothing is extrapolated."
            )
            continue
        if ladder.target:
            sentences.append(_state_target(ladder, arm, pair))
        elif not pair.gap.has_floor:
            sentences.append(f"{_name_floorless(ladder, arm, pair)}: larger sizes can't be extrapolated to.")
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
        return f"{_name_floorless(ladder, arm, pair)}: {name} can't be extrapolated to."
    value = f"{format_interval(gap.at(parameters), sign=True)} nats"
    if not gap.level:
        value += f", without an interval, as not all sizes have {LEAST} seeds that tell one"
    told = f"At {name} the curves put the difference of {arm} to {ladder.baseline} at {value}"
    largest, smallest = gap.arm.sizes[-1], gap.arm.sizes[0]
    if smallest <= parameters <= largest:
        return f"{told}, between sizes that were trained."
    far = f"{parameters / largest:.3g} times the parameters of the largest size trained"
    if parameters < smallest:
        far = f"1/{smallest / parameters:.3g} of the parameters of the smallest size trained"
    return f"{told}. That is extrapolated, to {far}."


def _state_prediction(ladder: Ladder, arm: str, prediction: Prediction | None) -> str:
    """Return how far curves through the other sizes miss the difference at the largest."""
    pair = f"the difference of {arm} to {ladder.baseline}"
    if prediction is None:
        return (
            f"Whether curves foretell {pair} at a size that they have not seen can't be tested: that takes "
            f"{LEAST_SIZES + 1} sizes."
        )
    size = ladder.rungs[prediction.size].size
    if prediction.predicted is None or prediction.error is None:
        return f"Curves through the sizes below {size} have no floor, so they don't foretell {pair} there."
    text = (
        f"Curves through the sizes below {size} foretell {pair} there as "
        f"{format_interval(prediction.predicted, sign=True)}; measured: {prediction.measured:+.4f}. The error is "
        f"{format_interval(prediction.error, sign=True)}"
    )
    if prediction.error.side:
        return (
            f"{text}: the curves miss it by more than the seeds explain, so they are not to be trusted beyond {size}."
        )
    return f"{text}."


def _state_failures(ladder: Ladder, name: str, arm: SizedArm) -> str:
    """Return how often an arm fails at each size, and whether that changes with size."""
    lost = [ladder.rungs[k].size for k, fresh in enumerate(arm.outcomes) if not fresh.found and not fresh.outcomes]
    untrained = (
        f" At {join_words(lost)} it could not be trained within the budget: no trial of its search completed."
        if lost
        else ""
    )
    shares = [(rung.size, share) for rung, share in zip(ladder.rungs, arm.failures, strict=True) if share]
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
        else "nothing that so few seeds and failures can do would show it"
    )
    return f"{name} failed on {counts}; whether the share changes with size can't be told ({why}).{untrained}"


def _state_failures_apart(ladder: Ladder, arm: str, pair: SizedPair) -> str:
    """Return at which sizes an arm is shown to fail more or less often than the baseline; empty where at none."""
    shown = [
        f"{'more' if versus.failure_side > 0 else 'less'} often at {rung.size} ({versus.failed} against "
        f"{versus.other_failed} of {versus.seeds}; exact test, p = {versus.failure_p:.2g})"
        for rung, versus in zip(ladder.rungs, pair.measured, strict=True)
        if versus.failure_side
    ]
    return f"{arm} fails {join_words(shown)} than {ladder.baseline} on the same seeds." if shown else ""


def _state_family(ladder: Ladder) -> str:
    """Return the number of comparisons that share an error of 5 %."""
    compared = ladder.compared
    pairs, tests = len(compared.pairs), compared.failure_tests
    parts = [
        f"{count_noun(pairs * len(ladder.rungs), 'difference')} at a size",
        count_noun(pairs, "trend"),
        *([f"{count_noun(tests, 'exact test')} of failures"] if tests else []),
    ]
    return (
        f"{count_noun(compared.family, 'comparison')} share an error of 5 %, every look counted: {join_words(parts)}. "
        "What curves say is no claim; their intervals are 95 % each."
    )


def list_caveats(ladder: Ladder) -> list[str]:
    """Return how the curves were fitted, what counts as a failure, and what is missing."""
    texts = []
    if any(arm.curve for arm in ladder.compared.arms.values()):
        texts.append(
            f"Curves: loss = {FORM}, where N are the weights in the matrices of the layers. Their intervals are those "
            "of the seeds alone, and say nothing of whether the curve is the right one."
        )
    ratios = [rung.items / rung.parameters for rung in ladder.rungs]
    if max(ratios) > 1.1 * min(ratios):
        texts.append(
            f"The sizes differ in tokens per parameter, {min(ratios):.3g} to {max(ratios):.3g}, so this mixes both."
        )
    return [*texts, *_state_rules(ladder), *_list_left_out(ladder), *_list_unfinished(ladder)]


def _state_rules(ladder: Ladder) -> list[str]:
    """Return what counts as a failure, for each trivial loss."""
    losses = list(dict.fromkeys(ladder.trivial_losses))
    if len(losses) == 1:
        return [state_rule(losses[0])]
    return [
        f"At {join_words(r.size for r, t in zip(ladder.rungs, ladder.trivial_losses, strict=True) if t == loss)}: "
        + state_rule(loss)
        for loss in losses
    ]


def _list_left_out(ladder: Ladder) -> list[str]:
    """Return how many seeds means, differences and curves leave out as they failed."""
    failed = {
        name: (sum(s.failed for s in arm.failures if s), sum(s.n for s in arm.failures if s))
        for name, arm in ladder.compared.arms.items()
    }
    if not any(count for count, _ in failed.values()):
        return []
    counts = join_words(f"{count} of {n} of {name}" for name, (count, n) in failed.items() if count)
    return [
        f"Losses, differences and curves are over seeds that trained. Seeds that failed are left out of them: {counts}."
    ]


def _list_unfinished(ladder: Ladder) -> list[str]:
    """Return where fewer seeds ended than were planned."""
    short = [
        f"{name} at {rung.size} ({len(fresh.outcomes)} of {rung.spec.confirm.first_seeds})"
        for name, arm in ladder.compared.arms.items()
        for rung, fresh in zip(ladder.rungs, arm.outcomes, strict=True)
        if fresh.found and len(fresh.outcomes) < rung.spec.confirm.first_seeds
    ]
    return [f"Not all fresh seeds have ended: {join_words(short)}."] if short else []
