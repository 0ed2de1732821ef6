"""The results on the best learning rates over sizes: a table, sentences, and numbers for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ablate.addons.scaling.optimum import Edge, Optimum
from ablate.addons.scaling.transfer import ArmTransfer, Cost, Transfer
from ablate.config.formatting import count_noun, format_count, format_number, join_words
from ablate.reports.section import Section, Table
from ablate.verdict.intervals import Estimate
from ablate.verdict.outcomes import LOSS
from ablate.verdict.statements import format_estimate

_BEYOND: dict[Edge, str] = {"lowest": "lower", "highest": "higher"}
_SECOND = (
    "Whether a rate holds at a larger size, a second size shows: the same command with both in --sizes. What has been "
    "trained is not trained again."
)


def tabulate_optima(transfer: Transfer) -> Section:
    """Return a row for each arm: its best rate at each size and, for several sizes, its movement and the cost of the
    smallest size's rate."""
    chain, name = transfer.chain, transfer.chain.path
    sizes = [f"{size.name}: {chain.axis} {place:,}" for size, place in zip(chain.sizes, chain.places, strict=True)]
    title = f"best {name}, with 95 % interval"
    if len(sizes) < 2:
        best = [[arm, format_optimum(one.optima[0])] for arm, one in transfer.arms.items()]
        return Section(title, Table.of_rows(["arm", *sizes], best, numbers=True))
    rows = [
        [
            arm,
            *(format_optimum(optimum) for optimum in one.optima),
            format_estimate(one.slope, sign=True) if one.slope else "-",
            format_cost(one.cost),
            one.word,
        ]
        for arm, one in transfer.arms.items()
    ]
    factor = f"log2 of its factor for each doubling of {chain.axis}"
    cost = f"cost of {chain.sizes[0].name}'s rate at {chain.sizes[-1].name} (nats)"
    return Section(
        f"{title}; slope and cost: {transfer.family} comparisons share an error of 5 %",
        Table.of_rows(["arm", *sizes, factor, cost, "transfer"], rows, numbers=True),
    )


def tabulate_losses(transfer: Transfer) -> list[Section]:
    """Return for each size a table of the mean loss of each arm at each rate, with the seeds that failed."""
    tables = []
    for k, size in enumerate(transfer.chain.sizes):
        rates = transfer.chain.list_rates(k)
        rows = [[arm, *(_format_losses(one, k, rate) for rate in rates)] for arm, one in transfer.arms.items()]
        header = ["arm", *(f"{rate:g}" for rate in rates)]
        title = f"{size.name}: val/loss at each {transfer.chain.path}, mean over seeds"
        tables.append(Section(title, Table.of_rows(header, rows, numbers=True)))
    return tables


def format_optimum(optimum: Optimum) -> str:
    """Return '0.0041 (0.0035 ... 0.0048)'; at an edge the rate alone, with how many seeds' best rate lies there."""
    if optimum.rate is None:
        return "none trained"
    text = f"{optimum.rate:.2g}"
    if optimum.interval is not None:
        return f"{text} ({optimum.interval[0]:.2g} ... {optimum.interval[1]:.2g})"
    if not optimum.at_edge:
        return f"{text} (n = {len(optimum.seeds)})"
    return f"{text}, {optimum.at_edge} of {len(optimum.seeds)} at the edge"


def format_cost(cost: Cost | None) -> str:
    """Return '+0.012 ± 0.008', '0, the same rate', and how many seeds failed."""
    if cost is None:
        return "-"
    rates = cost.rates
    text = "0, the same rate" if rates.same else format_estimate(cost.estimate, sign=True) if cost.estimate else "-"
    return f"{text}; {rates.failed} of {rates.seeds} failed" if rates.failed else text


def _format_losses(one: ArmTransfer, k: int, rate: float) -> str:
    """Return the mean of one cell over the seeds that trained; '(2 of 3)' of them where some failed."""
    losses = [curve[rate] for curve in one.curves[k].values() if rate in curve]
    trained = [loss for loss in losses if loss is not None]
    if not losses:
        return "-"
    if not trained:
        return "failed"
    mean = format_number(sum(trained) / len(trained))
    return mean if len(trained) == len(losses) else f"{mean} ({len(trained)} of {len(losses)})"


def state_findings(transfer: Transfer) -> list[str]:
    """Return the results of each arm, and the savings of a search at the smallest size alone; for one size the best
    rates."""
    if len(transfer.chain.sizes) < 2:
        return [*(_state_best(transfer, arm, one.optima[0]) for arm, one in transfer.arms.items()), _SECOND]
    arms = [
        f"{arm}: {_state_slope(transfer, one)}. {_state_cost(transfer, one)}." for arm, one in transfer.arms.items()
    ]
    return [*arms, _state_savings(transfer)]


def _state_best(transfer: Transfer, arm: str, optimum: Optimum) -> str:
    """Return the best rate of an arm at the only size."""
    size = transfer.chain.sizes[0].name
    if optimum.rate is None:
        return f"{arm}: no seed trained at {size}, at any rate."
    text = f"{arm}: the best {transfer.chain.path} at {size} is {format_optimum(optimum)}"
    return f"{text}: search {_list_beyond(optimum)} rates." if optimum.at_edge else f"{text}."


def _list_beyond(optimum: Optimum) -> str:
    return join_words(_BEYOND[edge] for edge in optimum.edges)


def _state_slope(transfer: Transfer, one: ArmTransfer) -> str:
    axis = transfer.chain.axis
    if one.slope is None:
        beyond = [
            f"{size.name} (search {_list_beyond(optimum)} rates)"
            for size, optimum in zip(transfer.chain.sizes, one.optima, strict=True)
            if optimum.at_edge
        ]
        if beyond:
            return f"the best rate of a seed lies at an edge of the searched ones at {join_words(beyond)}"
        return "at some size too few seeds trained to tell how the best rate moves"
    estimate = f"times {2**one.slope.mean:.2f} for each doubling of {axis}"
    if one.slope.interval is None:
        return f"the best rate moves by {estimate}; its variation is not known"
    ends = " ... ".join(f"{2**end:.2f}" for end in one.slope.interval)
    if one.moves:
        return f"the best rate {'rises' if one.moves > 0 else 'falls'}: {estimate} ({ends}), n = {one.slope.n}"
    return (
        f"no movement of the best rate by more than half a step of the grid is shown: {estimate} ({ends}), "
        f"n = {one.slope.n}"
    )


def _state_cost(transfer: Transfer, one: ArmTransfer) -> str:
    small, large = transfer.chain.sizes[0].name, transfer.chain.sizes[-1].name
    cost = one.cost
    if cost is None:
        return f"What the rate of {small} costs at {large} cannot be told: too few seeds ended or trained at both"
    rates = cost.rates
    if rates.same:
        text = f"{small} and {large} choose the same rate of the grid, whichever seed is left out"
    else:
        nats = f"{format_estimate(cost.estimate, sign=True)} nats" if cost.estimate else "no seed trained at both rates"
        text = f"The rate of {small} at {large} against the best there: {nats}"
    if rates.failed or rates.other_failed:
        text += f"; {rates.failed} of {rates.seeds} seeds fail with it, {rates.other_failed} with the rate of {large}"
    meaning = {
        "holds": f"it holds{', as far as the grid tells' if rates.same else f', within {transfer.effect} nats'}",
        "costs": "it costs",
        "fails more often": "it fails more often",
        "undecided": "undecided",
    }
    return f"{text}: {meaning[one.word]}"


def _state_savings(transfer: Transfer) -> str:
    chain, spec = transfer.chain, transfer.chain.sizes[0].spec
    unit = spec.own_base(next(iter(spec.all_arms))).task.unit
    rest = join_words(size.name for size in chain.sizes[1:])
    return (
        f"A search at {chain.sizes[0].name} alone saves {format_count(transfer.saved_items)} {unit} "
        f"for each arm and seed, the searches at {rest}: {100 * transfer.saved_operations:.1f} % of the operations of "
        "all searches."
    )


def list_caveats(transfer: Transfer) -> list[str]:
    """Return the limits of the runs."""
    chain, caveats = transfer.chain, []
    if transfer.effect is None and len(chain.sizes) > 1:
        caveats.append("confirm.effect is not set, so that no rate is said to hold.")
    if len(chain.sizes) == 2:
        caveats.append("Two sizes show a movement, and not whether it goes on.")
    caveats += [text] if (text := chain.describe_heads()) else []
    caveats += transfer.surroundings
    for k, size in enumerate(chain.sizes):
        ended = min(len(one.curves[k]) for one in transfer.arms.values())
        if (absent := size.spec.confirm.first_seeds - ended) > 0:
            caveats.append(f"{size.name}: of some arm, {count_noun(absent, 'seed')} did not end at every rate.")
    caveats.append(
        "Between the searched rates the best one is interpolated by a parabola. Nothing is shown beyond the sizes, the "
        "length of training and the schedule that were run."
    )
    return caveats


def describe_transfer(transfer: Transfer) -> dict[str, Any]:
    """Return plain values, for JSON."""
    chain = transfer.chain
    return {
        "transfer": chain.name,
        "metric": LOSS,
        "axis": chain.axis,
        "searched": chain.path,
        "sizes": [
            {
                "size": size.name,
                "sweep": size.spec.name,
                chain.axis: place,
                "items": size.items,
                "rates": chain.list_rates(k),
            }
            for k, (size, place) in enumerate(zip(chain.sizes, chain.places, strict=True))
        ],
        "arms": {arm: _describe_arm(one) for arm, one in transfer.arms.items()},
        "comparisons": transfer.family,
        "effect": transfer.effect,
        "saved_items": transfer.saved_items,
        "saved_operations": transfer.saved_operations,
        "verdict": state_findings(transfer),
    }


def _describe_arm(one: ArmTransfer) -> dict[str, Any]:
    """Return the best rates, the slope, the cost and all losses of an arm."""
    return {
        "verdict": one.word,
        "moves": one.moves,
        "best": [_describe_optimum(optimum) for optimum in one.optima],
        "slope": _describe_estimate(one.slope),
        "cost": _describe_cost(one.cost) if one.cost else None,
        "losses": [
            {str(seed): {f"{rate:g}": loss for rate, loss in curve.items()} for seed, curve in curves.items()}
            for curves in one.curves
        ],
    }


def _describe_cost(cost: Cost) -> dict[str, Any]:
    return {**asdict(cost.rates), "nats": _describe_estimate(cost.estimate), "fails_more": cost.fails_more}


def _describe_estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    return {**asdict(estimate), "interval": estimate.interval} if estimate else None


def _describe_optimum(optimum: Optimum) -> dict[str, Any]:
    return {
        "rate": optimum.rate,
        "interval": optimum.interval,
        "at_edge": optimum.at_edge,
        "seeds": {str(seed): 2**one.log_rate for seed, one in optimum.seeds.items()},
    }
