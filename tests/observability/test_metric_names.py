"""The registry of metrics, and what must agree with it: the documentation, the dashboard and the alerts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.observability.metric_names import BY_NAME, METRICS, OPEN_LABELS, Metric
from tests.support.promql import Selector, selectors

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARDS = files("everstep.observability") / "dashboards"
RULES: dict[str, Any] = yaml.safe_load((DASHBOARDS / "rules.yml").read_text())
DASHBOARD: dict[str, Any] = json.loads((DASHBOARDS / "dashboard.json").read_text())
ALERTS: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
DURATION = re.compile(r"[1-9][0-9]*[smhd]")
GROUPS = "Queue Execution Failures Effects Models Record Telemetry Schedules Events Streams Providers".split()
BY_SERIES = {series: metric for metric in METRICS for series in metric.series}


def known(selector: Selector) -> Metric:
    """The metric that a selector names, with labels that it has."""
    assert selector.name in BY_SERIES, f"there is no metric {selector.name}"
    metric = BY_SERIES[selector.name]
    extra = {"le"} if selector.name.endswith("_bucket") else set()
    assert set(selector.labels) <= {*metric.prometheus_labels, "instance"} | extra, selector
    return metric


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_the_conventions(metric: Metric) -> None:
    """Dotted lower-case names in OpenTelemetry; in Prometheus base units, and `_total` for counters alone."""
    assert re.fullmatch(r"(everstep|gen_ai)(\.[a-z][a-z_]*)+", metric.name)
    assert re.fullmatch(r"(everstep|gen_ai)_[a-z_]+", metric.prometheus)
    assert metric.prometheus.endswith("_total") == (metric.kind == "counter")
    assert metric.prometheus.removesuffix("_total").endswith("_seconds") == (metric.unit == "s")
    assert metric.prometheus.removesuffix("_total").endswith("_bytes") == (metric.unit == "By")
    assert metric.unit in ("s", "By") or re.fullmatch(r"\{[A-Za-z]+\}", metric.unit)
    assert metric.help.endswith(".")
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert list(metric.buckets) == sorted(set(metric.buckets))


def test_names_are_used_once() -> None:
    """No two metrics share a name, and no two a series; labels that are open are labels of some metric."""
    assert len(BY_NAME) == len(METRICS)
    assert len(BY_SERIES) == sum(len(metric.series) for metric in METRICS)
    assert {label for metric in METRICS for label in metric.labels} >= OPEN_LABELS


def test_every_metric_is_documented_as_it_is() -> None:
    """The tables of docs/metrics.md hold each metric with its kind, labels and help, and nothing else."""
    text = (DOCS / "metrics.md").read_text()
    rows = [line for line in text.splitlines() if re.match(r"\| `\w+` \| (gauge|counter|histogram) \|", line)]
    assert sorted(rows) == sorted(
        f"| `{metric.prometheus}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.prometheus_labels)}"
        f" | {metric.help} |"
        for metric in METRICS
    )
    record, worker = text.split("## What a worker measures")
    assert all(f"| `{metric.prometheus}` | " in (record if metric.from_record else worker) for metric in METRICS)
    for metric in METRICS:
        if metric.name.startswith("gen_ai."):
            assert f"| `{metric.name}` | `{metric.prometheus}` |" in text


# ---- the alerts


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_is_whole(rule: dict[str, Any]) -> None:
    """Each says how grave it is, what is wrong and where to read what to do; and asks for metrics that exist."""
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Everstep[A-Z][A-Za-z]+", rule["alert"])
    assert DURATION.fullmatch(rule.get("for", "1m"))
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "runbook"}
    page, anchor = rule["annotations"]["runbook"].split("#")
    assert page == "docs/metrics.md"
    assert anchor == rule["alert"].lower()
    assert f"\n### {rule['alert']}\n" in (DOCS / "metrics.md").read_text()
    asked = list(selectors(rule["expr"]))
    assert asked
    for selector in asked:
        assert not known(selector).from_record or re.search(r"\b(max|min|absent)\b", rule["expr"]), "never their sum"
    used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    grouped = {name.strip() for group in re.findall(r"by \(([^)]*)\)", rule["expr"]) for name in group.split(",")}
    assert used <= grouped


def test_every_runbook_has_its_alert() -> None:
    """The page explains no alert that is not there, and no alert is there twice."""
    explained = re.findall(r"^### (Everstep\w+)$", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    assert explained == [rule["alert"] for rule in ALERTS]
    assert len(set(explained)) == len(explained)
    assert [set(group) for group in RULES["groups"]] == [{"name", "rules"}]


# ---- the dashboard


def queries() -> Iterator[str]:
    """Every query of the dashboard."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
            assert found is not None
            yield f'{found[1]}{{{found[2]}!=""}}'


def test_every_query_names_metrics_that_exist() -> None:
    """And with labels they have; what the record knows is never summed."""
    for query in queries():
        asked = list(selectors(query))
        assert asked, query
        for selector in asked:
            if known(selector).from_record:
                assert "sum" not in query, query


def test_the_dashboard_shows_every_metric() -> None:
    """No metric is exported that nobody would look at."""
    shown = {known(selector).name for query in queries() for selector in selectors(query)}
    assert shown == set(BY_NAME)


def test_the_dashboard_can_be_imported() -> None:
    """A version that Grafana knows, an id of its own, a data source to choose, panels with ids that do not overlap."""
    assert DASHBOARD["schemaVersion"] >= 36
    assert DASHBOARD["uid"] == "everstep"
    assert "id" not in DASHBOARD
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    panels = DASHBOARD["panels"]
    assert [panel["title"] for panel in panels if panel["type"] == "row"] == GROUPS
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (column, line)
        for panel in panels
        for column in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for line in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(column for column, _ in cells) < 24
    for panel in panels:
        if panel["type"] != "row":
            sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
            assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
            names = [target["refId"] for target in panel["targets"]]
            assert len(set(names)) == len(names)


def test_selectors_are_read_out_of_promql() -> None:
    """Names and matchers, not functions, keywords, labels or text."""
    query = 'sum by (le, a) (rate(x_bucket{a=~"b{c}", d!="up"}[5m])) / max(y) > 0.5 and absent(z) or vector(1) unless w'
    assert [(one.name, one.labels) for one in selectors(query)] == [
        ("x_bucket", {"a": ("=~", "b{c}"), "d": ("!=", "up"), "le": ("", "")}),
        ("y", {}),
        ("z", {}),
        ("w", {}),
    ]
