"""The shipped graph for paid generations: priced, paid and submitted once, observed for days, kept, presented.

    validate -> price -> submit -> observe <-> ask -> store -> present

In `langgraph.json`: `"generation": "everstep.graphs.generation:graph"`. The price is charged with the task's row,
before anything is asked of the provider, and comes back if it fails. No worker is held while the provider works. The
input is told in docs/paid-jobs.md.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

from langgraph.config import get_config
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command

from everstep.checkpoints import job_evidence, jobs
from everstep.checkpoints.quote import Quote, money
from everstep.counts import counted
from everstep.errors import PayloadInvalid
from everstep.graphs import generation_job
from everstep.graphs.generation_job import Generation, GenerationResult, GenerationState
from everstep.nodes import artefacts, attempt, pricing
from everstep.nodes.attempt import Attempt
from everstep.nodes.pricing import Asked, PriceList
from everstep.nodes.provider import cancel_task, observe_task, submit_task
from everstep.nodes.review import review

MISMATCH = "price"
"""The kind of evidence that tells of a client's price that is not the real one."""
Graph = StateGraph[GenerationState, None, Generation, GenerationResult]


def _running() -> Attempt:
    running = attempt.current.get()
    if running is None:
        raise PayloadInvalid(
            "a generation is paid from the record of the job it runs as, and runs as none",
            next_step="submit it: everstep submit generation --input '{…}'",
        )
    return running


def _given() -> Any:
    """What the job was given, with what is no field of the input; None inside another graph, which it was given to."""
    place = str(get_config().get("configurable", {}).get("checkpoint_ns", ""))
    if "|" in place:
        return None
    running = _running()
    return running.store.read(lambda connection: jobs.get(connection, running.job_id).payload)


def _prices(state: GenerationState) -> PriceList:
    return pricing.of_provider(_running().providers, state["provider"])


def validate(state: GenerationState) -> dict[str, Any]:
    """Check what is asked for against the price list, and say what is left out.

    Raises:
        PayloadInvalid: The input cannot be carried out, or it does not run as a job.
        ProviderNotFound: There is no such provider.
        PriceListInvalid: It has no price list, or one that cannot be read.
        OptionsInvalid: The price list does not have what is asked for.
    """
    if (given := _given()) is not None:
        generation_job.check_names(given)
    generation_job.check(state)
    whole = pricing.complete(_prices(state), Asked.of(state))
    request = {
        "model": whole.model,
        "prompt": state["prompt"],
        "duration": whole.duration,
        "resolution": whole.resolution,
        "outputs": whole.outputs,
        "options": dict(whole.options),
    }
    request = {name: value for name, value in request.items() if value is not None}
    return {"request": request, "key": generation_job.submission_key(state, request)}


async def price(state: GenerationState) -> dict[str, Any]:
    """Work out the price; the client's counts nothing, and is noted if it differs."""
    found = pricing.quote(_prices(state), Asked.of(state["request"]))
    shown, mismatch = state.get("client_price"), None
    if shown is not None and shown != found.amount:
        mismatch = {"client_price": shown, "amount": found.amount, "currency": found.currency, "version": found.version}
        running = _running()
        note = partial(
            job_evidence.note,
            job_id=running.job_id,
            claim_no=running.claim_no,
            kind=MISMATCH,
            detail=mismatch,
            now=running.store.clock.now_ms(),
        )
        await asyncio.wrap_future(running.write(note))
    return {"quote": found.as_dict(), "price_mismatch": mismatch}


async def submit(state: GenerationState) -> dict[str, Any]:
    """Charge the price and submit, once.

    Raises:
        InsufficientCredit: The owner cannot pay it; nothing was submitted.
    """
    task = await submit_task(
        state["provider"],
        state["request"],
        key=state["key"],
        generation=state.get("generation", 1),
        quote=Quote.of(state["quote"]),
        allow_secret_keys=True,  # the job's input was looked at, or somebody took the responsibility
    )
    return {
        "task": task["id"],
        "task_state": task["state"],
        "progress": task["progress"],
        "amount": task["amount"],
        "give_up_at": _later(state),
    }


def _later(state: GenerationState) -> int:
    seconds = state.get("give_up_after_s", generation_job.GIVE_UP_S)
    return _running().store.clock.now_ms() + round(seconds * 1000)


async def observe(state: GenerationState) -> Command[Literal["observe", "ask", "store", "present"]]:
    """Wait for the end, a window long; the end of a window is the end of nothing else."""
    task = await observe_task(state["task"], window=state.get("window_s", generation_job.WINDOW_S))
    known = {"task_state": task["state"], "progress": task["progress"], "error": task["error"]}
    if task["state"] == "succeeded":
        return Command(update=known, goto="store")
    if task["state"] == "failed" or state.get("given_up"):
        return Command(update=known, goto="present")
    is_late = _running().store.clock.now_ms() >= state["give_up_at"]
    return Command(update=known, goto="ask" if is_late else "observe")


async def ask(state: GenerationState) -> Command[Literal["observe", "present"]]:
    """Ask a person whether to wait any longer; if not, the provider is asked to end the task."""
    since = datetime.fromtimestamp(state["give_up_at"] / 1000, UTC)
    decision = review(
        f"The task at {state['provider']} has not ended by {since:%Y-%m-%d %H:%M} UTC. Wait any longer?",
        action="wait_for_provider",
        args={"task": state["task"], "give_up_at": state["give_up_at"]},
        allow=("approve", "reject"),
    )
    if decision.approved:
        return Command(update={"give_up_at": _later(state)}, goto="observe")
    asked = await cancel_task(state["task"])
    return Command(update={"given_up": True}, goto="observe" if asked else "present")


async def store(state: GenerationState) -> dict[str, Any]:
    """Keep what was made.

    Raises:
        ArtefactInvalid: It cannot be kept; a person looks.
    """
    task = await observe_task(state["task"], window=0)
    kept = [
        await artefacts.keep(offer, f"{task['id']}/{number}")
        for number, offer in enumerate(artefacts.offers(task["result"]))
    ]
    return {"artefacts": kept}


def present(state: GenerationState) -> dict[str, Any]:
    """Say what came of it, for people."""
    quote, charged, known = Quote.of(state["quote"]), state["amount"], state["task_state"]
    paid = f"{money(charged, quote.decimals)} {quote.currency}"
    kept = state.get("artefacts", [])
    told: dict[str, Any] = {"price": paid, "charged": charged, "refunded": 0, "artefacts": kept}
    if known == "succeeded":
        message = f"{counted(len(kept), 'artefact')} for {paid}"
        return {**told, "outcome": "succeeded", "message": message, "next_step": "nothing"}
    if known == "failed":
        again = f"submit it again with generation {state.get('generation', 1) + 1}; it is charged anew"
        message = "the provider could not do it" + (f"; {paid} came back" if charged else "")
        return {**told, "outcome": "failed", "refunded": charged, "message": message, "next_step": again}
    message = "the provider has not ended it, and nobody waits for it any longer"
    later = f"nothing: what becomes of it is settled all the same (everstep provider show {state['task']})"
    return {**told, "outcome": "given_up", "message": message, "next_step": later}


def build_graph() -> Graph:
    """The generation as a graph to compile."""
    builder = Graph(GenerationState, input_schema=Generation, output_schema=GenerationResult)
    builder.add_node("validate", validate)
    builder.add_node("price", price)
    builder.add_node("submit", submit)
    builder.add_node("observe", observe)
    builder.add_node("ask", ask)
    builder.add_node("store", store)
    builder.add_node("present", present)
    builder.add_edge(START, "validate")
    builder.add_edge("validate", "price")
    builder.add_edge("price", "submit")
    builder.add_edge("submit", "observe")
    builder.add_edge("store", "present")
    builder.add_edge("present", END)
    return builder


graph: CompiledStateGraph[GenerationState, None, Generation, GenerationResult] = build_graph().compile(
    name="generation"
)
"""The generation, ready to be run as a job; the runtime brings the checkpointer."""
