"""The view of an experiment's runs that the links of `ablate ui` open: order, columns, groups and charts, in the format
of MLflow's UI. The UI stores such a view, like the one of its Share button, in a tag of the experiment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ablate.config.errors import AblateError
from ablate.config.lazy import postpone_imports

with postpone_imports():
    from ablate.experiment import metrics
    from ablate.reports import labels
    from ablate.scheduler import storage
    from ablate.sweeps import runs

_SINGLE = ("norm.kind", "model.kind", "optimizer.lr", "seed")  # parameters that single runs show
_ROLE = "ablate.role"
_WIDTH = 92  # pixels of a column
_FIRST, _LOSSES, _TRAINING, _STEPS = "Settings and result", "val", "train", "trainer"  # sections of charts


def build_view(title: str) -> dict[str, Any]:
    """Return the view of the experiment `title`. For a sweep: the runs of the confirmation in one group, and below them
    the runs of the search, with arm, seed and searched settings; for a search alone, the best run first. For single
    runs: the newest first. The first charts show the settings against the result.
    """
    try:
        spec = storage.read_sweep(title).spec
    except (AblateError, ValueError, KeyError):  # single runs, or a sweep that this storage has not, or not whole
        order = {"orderByKey": "attributes.start_time", "orderByAsc": False}
        metric, params, tags = "val/loss", list(_SINGLE), ["ablate.loss", "ablate.status"]
        return {**order, **_choose_columns(metric, params, tags), **_choose_charts(metric, params[2:3])}
    metric, params = metrics.name_in_mlflow(spec.objective.metric), labels.list_searched(spec)
    common = [path for path in params if all(path in spec.space(arm) for arm in spec.all_arms)]
    shown = ["ablate.arm", "ablate.loss"] if metric == "val/loss" else ["ablate.arm"]
    order = {"orderByKey": f"metrics.`{metric}`", "orderByAsc": spec.objective.direction == "minimize"}
    if spec.confirm.first_seeds:  # by a metric, the group of the search, which is optimistic, could come first
        order = {"orderByKey": f"tags.`{_ROLE}`", "orderByAsc": True}
    folded = ("arm", "report", *(stage for stage in runs.STAGES if stage not in (runs.SEARCH, runs.FRESH)))
    return {
        **order,
        **_choose_columns(metric, ["seed", *params], [*shown, "ablate.outcome", "ablate.status"]),
        "groupBy": {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": _ROLE}]},
        "useGroupedValuesInCharts": False,
        "groupsExpanded": {f"tag.{_ROLE}.{role}": False for role in folded},
        **_choose_charts(metric, common, params),
    }


def _choose_columns(metric: str, params: Sequence[str], tags: Sequence[str]) -> dict[str, Any]:
    """Return the visible columns from left to right: the first tag, the parameters, the other tags, and the metric,
    which the UI shows with all digits and sorts by."""
    first, *others = (f"tags.`{name}`" for name in tags)
    columns = [first, *(f"params.`{name}`" for name in params), *others, f"metrics.`{metric}`"]
    return {"selectedColumns": columns, "columnOrder": columns, "columnWidths": dict.fromkeys(columns, _WIDTH)}


def _choose_charts(metric: str, *settings: Sequence[str]) -> dict[str, Any]:
    """Return the charts and their sections; the UI adds one chart for each further metric after them. Sections about
    the course of training are collapsed. `settings`: for each chart, the parameters that it shows against the metric,
    for the runs that have all of them."""
    names = [_FIRST, _LOSSES, _TRAINING, _STEPS]
    sections = [
        {"uuid": f"ablate-{name}", "name": name, "display": name in names[:2], "isReordered": True} for name in names
    ]
    common = {"metricSectionId": f"ablate-{_FIRST}", "deleted": False, "isGenerated": False, "runsCountToCompare": 100}
    parallel = {"type": "PARALLEL", "selectedMetrics": [metric], "showAllRuns": True}
    line = {"type": "LINE", "metricKey": metric, "selectedMetricKeys": [metric], "xAxisKey": "step"}
    charts = [
        {**common, **parallel, "uuid": f"ablate-settings-{number}", "selectedParams": list(params)}
        for number, params in enumerate(dict.fromkeys(tuple(params) for params in settings if params))
    ]
    charts.append({**common, **line, "uuid": "ablate-course", "lineSmoothness": 0, "scaleType": "linear"})
    return {"compareRunCharts": charts, "compareRunSections": sections, "isAccordionReordered": True}
