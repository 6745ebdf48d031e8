"""Metrics over real HTTP: workers and a metrics process on one record, isolated jobs, what alerts ask for."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import insert

from everstep.checkpoints import schedules, trigger_events
from everstep.checkpoints.schedule import Definition
from everstep.checkpoints.schema import services, span_destinations
from everstep.checkpoints.store import Store
from everstep.observability.metric_names import OF_SERVERS, SLOW_CLIENT_WAIT
from tests.cli.folder import Folder
from tests.support import isolated_graphs, measured_graphs
from tests.support.paid import task_of
from tests.support.promql import selectors
from tests.support.scrape import Page, serving
from tests.support.waiting import PATIENCE, until

ANY_PORT = "127.0.0.1:0"
DASHBOARDS = files("everstep.observability") / "dashboards"


def all_in(store: Store, *states: str) -> bool:
    """Whether every job has come to one of the states."""
    return all(job.status in states for job in store.jobs())


@pytest.mark.both_databases
def test_two_workers_and_a_metrics_process_tell_of_one_record(shared: Store, tmp_path: Path) -> None:
    """What the record knows all three tell alike; what workers measure adds up to what was done."""
    variables = measured_graphs.write(tmp_path)
    for number in range(6):
        shared.enqueue("agent", {"log": [number]})
    worker = ("worker", "--concurrency", "1", "--metrics", ANY_PORT)
    with (
        serving(tmp_path, shared.url, *worker, **variables) as first,
        serving(tmp_path, shared.url, *worker, **variables) as second,
        serving(tmp_path, shared.url, "metrics", "--serve", ANY_PORT) as telling,
    ):
        until(lambda: all_in(shared, "done"), "the end of all jobs")
        until(lambda: shared.jobs() and _attempts(first.page, second.page) == 6, "the end of all attempts")
        workers, record = (first.page, second.page), telling.page
        for page in (*workers, record):
            assert page("everstep_jobs", state="done") == 6
            assert page("everstep_attempts_last_hour") == page("everstep_done_last_hour") == 6
            assert page("everstep_record_up") == 1
            assert page("everstep_record_bytes") > 10_000
        assert sum(page("everstep_step_duration_seconds_count", graph="agent") for page in workers) == 12
        assert sum(page("everstep_effect_outcomes_total", state="confirmed") for page in workers) == 6
        assert sum(page("everstep_slots") for page in workers) == 2
        model = {"gen_ai_request_model": "metered-1", "gen_ai_provider_name": "tests"}
        for kind, tokens in (("input", 480), ("output", 120)):
            told = [page("gen_ai_client_token_usage_sum", gen_ai_token_type=kind, **model) for page in workers]
            assert sum(told) == tokens
        assert sum(page("everstep_model_cost_usd_total", gen_ai_request_model="metered-1") for page in workers) == 1.5
        assert sum(page("gen_ai_client_operation_time_to_first_chunk_seconds_count") for page in workers) == 6
        assert {name for name in record.names if not name.startswith("everstep_")} == set()
        assert not any("step_duration" in name for name in record.names)


def _attempts(*pages: Page) -> float:
    return sum(page("everstep_leg_duration_seconds_count", outcome="done") for page in pages)


def test_isolated_jobs_count_and_killed_ones_lose_nothing_they_told(shared: Store, tmp_path: Path) -> None:
    """Steps and effects of jobs in processes of their own are on their worker's page, also of one that was killed."""
    isolated_graphs.write(tmp_path)
    for name in ("well", "kill"):
        shared.enqueue("steps", {"name": name, "log": []})
    with serving(tmp_path, shared.url, "worker", "--isolate", "--metrics", ANY_PORT) as worker:
        until(lambda: all_in(shared, "done", "failed"), "the end of both jobs")
        page = until(
            lambda: (page := worker.page)("everstep_leg_duration_seconds_count", outcome="failed") and page, "the end"
        )
        assert page("everstep_leg_duration_seconds_count", graph="steps", outcome="done") == 1
        assert page("everstep_step_duration_seconds_count", graph="steps") == 4, "three of one, the first of the other"
        assert page("everstep_effect_outcomes_total", state="confirmed") == 2
        assert page("everstep_checkpoint_written_bytes_total", graph="steps") > 100
        assert page("everstep_running_jobs") == 0
        assert isolated_graphs.acted(tmp_path).count("kill") == 1


def test_the_alerts_and_the_dashboard_ask_for_what_a_worker_tells(shared: Store, tmp_path: Path) -> None:
    """Each of their queries names series that are on a real worker's page, with the labels it asks for."""
    variables = measured_graphs.write(tmp_path)
    now = shared.clock.now_ms()
    shared.write(
        lambda c: c.execute(insert(services), {"name": "api", "gate": "closed", "closed_at": now, "updated_at": now})
    ).result()
    shared.write(lambda c: c.execute(insert(span_destinations), {"name": "traces", "updated_at": now})).result()
    job, _ = shared.enqueue("agent", {"log": []})
    each_minute = Definition("agent", "* * * * *", "skip", input={"log": []})
    came = {"trigger": "t", "source": "http", "key": "k", "headers": {}, "body": {}, "occurred_at": None}
    event, _ = shared.write(lambda c: trigger_events.store(c, **came, now=now)).result()
    shared.write(lambda c: trigger_events.started(c, event, job.id, claim_no=1, now=now)).result()
    shared.write(lambda c: schedules.create(c, each_minute, now=now - 120_000, origin="test")).result()
    (tmp_path / "films.py").write_text("from tests.support.paid import Scripted as Films\n")
    (tmp_path / "everstep.toml").write_text('[providers.films]\nuse = "./films.py:Films"\n')
    task_of(shared, "lost", to="submission_unknown")
    task_of(shared, to="pending")
    with serving(tmp_path, shared.url, "worker", "--metrics", ANY_PORT, **variables) as worker:
        until(lambda: len(shared.jobs(status="done")) >= 2, "the end of the job and of the slot's")
        until(lambda: "everstep_provider_polls_total" in worker.page.names, "a poll")
        until(lambda: "everstep_schedule_slots_total" in worker.page.names, "a slot that was fired")
        until(lambda: "everstep_record_unwritable" in worker.page.names, "a look at the event loop")
        page = until(lambda: _attempts(page := worker.page) and page, "the end of the attempt")
    rules: dict[str, Any] = yaml.safe_load((DASHBOARDS / "rules.yml").read_text())
    dashboard: dict[str, Any] = json.loads((DASHBOARDS / "dashboard.json").read_text())
    queries = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    queries += [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(queries) > 50
    told = [(name, {"instance": "worker", **dict(labels)}) for name, labels in page.values]
    of_servers = tuple(metric.name.replace(".", "_") for metric in (*OF_SERVERS, SLOW_CLIENT_WAIT))  # others' pages
    for query in queries:
        for selector in selectors(query.replace("$graph", ".*")):
            if selector.name.startswith(of_servers):
                continue
            found = [labels for name, labels in told if name == selector.name]
            assert found, f"{selector.name} is not told"
            if {"outcome", "error_type"}.isdisjoint(selector.labels):
                assert any(selector.matches(selector.name, labels) for labels in found), selector
            assert any(set(selector.labels) <= set(labels) for labels in found), selector


def test_a_port_that_is_taken_ends_the_command(shared: Store, tmp_path: Path) -> None:
    """Worker and metrics process alike say so at once, before any job is claimed, with exit code 69."""
    measured_graphs.write(tmp_path)
    with serving(tmp_path, shared.url, "metrics", "--serve", ANY_PORT) as telling:
        port = telling.url.rpartition(":")[2].split("/")[0]
        for command in (["worker", "--metrics", port], ["metrics", "--serve", f"127.0.0.1:{port}"]):
            ran = Folder(tmp_path).run(*command, "--json", EVERSTEP_STORE=shared.url)
            assert (ran.code, ran.error["code"]) == (69, "metrics_address_unavailable")
            assert f"127.0.0.1:{port}" in ran.error["message"]


def test_a_metrics_process_ends_when_it_is_asked_to(shared: Store, tmp_path: Path) -> None:
    """SIGTERM ends it with exit code 0, and its port is free."""
    with serving(tmp_path, shared.url, "metrics", "--serve", ANY_PORT) as telling:
        assert telling.page("everstep_record_up") == 1
        telling.process.terminate()
        assert telling.process.wait(PATIENCE) == 0
    port = telling.url.rpartition(":")[2].split("/")[0]
    with serving(tmp_path, shared.url, "metrics", "--serve", port) as again:
        assert again.url == telling.url
