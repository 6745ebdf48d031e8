"""A job that pauses in one process and goes on in another: two traces that find each other."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

from everstep.observability import tracing

PROGRAM = textwrap.dedent("""
    import asyncio, operator, sys
    from typing import Annotated, Any, TypedDict
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    from langgraph.graph import START, StateGraph
    from langgraph.types import Command, interrupt
    from everstep.observability import tracing

    class State(TypedDict):
        log: Annotated[list[str], operator.add]

    def before(state): return {"log": ["before"]}
    def ask(state): return {"log": [interrupt("go on?")]}
    def after(state): return {"log": ["after"]}

    graph = StateGraph(State).add_node(before).add_node(ask).add_node(after)
    graph.add_edge(START, "before").add_edge("before", "ask").add_edge("ask", "after")

    async def main(database, number):
        tracer = tracing.from_environment(service_version="1")
        async with AsyncSqliteSaver.from_conn_string(database) as saver:
            app = graph.compile(checkpointer=saver)
            config = {"configurable": {"thread_id": "thread-1"}}
            feed = {"log": []}
            if number > 1:
                state = await app.aget_state(config)
                feed = Command(resume={state.interrupts[0].id: "yes"})
            with tracer.leg(job_id="job-1", leg=number, graph="agent", thread_id="thread-1", worker=f"w{number}",
                            attempts=number, previous_leg=number - 1 or None) as leg:
                async for _ in app.astream(feed, {**config, "callbacks": leg.callbacks}, durability="sync"):
                    pass
                leg.outcome("review" if number == 1 else "done")
        tracer.shutdown()
        assert tracer.dropped_spans() == 0

    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
""")


def test_a_resume_in_another_process_is_linked_to_the_leg_before(start_receiver, tmp_path):
    """Both legs share the session; the second links to the first's root, whose ids it derives unseen."""
    receiver = start_receiver()
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
    for leg in ("1", "2"):
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "threads.db"), leg],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stderr == ""

    legs = {
        leg: [span for span in receiver.spans if span["trace_id"] == tracing.trace_id("job-1", leg)] for leg in (1, 2)
    }
    assert [span["name"] for span in sorted(legs[1], key=lambda span: span["name"])] == [
        "invoke_agent agent",
        "step 1 before",
        "step 2 ask",
    ]
    assert [span["name"] for span in sorted(legs[2], key=lambda span: span["name"])] == [
        "invoke_agent agent",
        "step 2 ask",
        "step 3 after",
    ]
    assert {span["attributes"]["session.id"] for span in receiver.spans} == {"thread-1"}
    assert {span["status"] for span in receiver.spans} == {0}
    roots = {leg: next(span for span in spans if not span["parent_span_id"]) for leg, spans in legs.items()}
    assert roots[1]["links"] == []
    assert roots[2]["links"] == [(roots[1]["trace_id"], roots[1]["span_id"])]
    assert (
        roots[2]["attributes"]["everstep.resume.checkpoint.id"]
        == (roots[1]["attributes"]["everstep.interrupt.checkpoint.id"])
    )
    for span in legs[2]:
        assert span["attributes"]["langfuse.trace.metadata.previous_trace_id"] == roots[1]["trace_id"]
