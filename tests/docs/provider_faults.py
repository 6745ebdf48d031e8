"""The table of docs/provider-faults.md, made by a run: every fault of the simulated provider, and what came of it.

`python -m tests.docs.provider_faults` carries all of them out and writes the page.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everstep.checkpoints import ledger, provider_events, provider_tasks
from everstep.checkpoints.job import Job
from everstep.checkpoints.store import Store
from everstep.graphs.event_sections import StandardWebhooks
from everstep.graphs.loader import GraphCatalogue
from examples.provider_simulator.book import as_plan
from examples.provider_simulator.plans import Plan
from examples.provider_simulator.server import Simulator, simulating
from tests.support.events import HOOK_SECRET
from tests.support.generating import CREDIT, PRICE, Customer
from tests.support.jobs import chain
from tests.support.live import live
from tests.support.record import fresh
from tests.support.simulated import Kind, simulated
from tests.support.waiting import until

PAGE = Path(__file__).parents[2] / "docs" / "provider-faults.md"
BLOCK = re.compile(r"(?P<begin><!-- table: (?P<name>[\w ]+) -->\n)(?P<body>.*?)(?P<end><!-- end -->)", re.DOTALL)
SECRET = "EVERSTEP_TEST_WEBHOOK_SECRET"
WEEK_S = 7 * 86_400


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        what: In words.
        plan: What the simulated provider is told to do.
        kind: How a lost answer can be found out about.
        crash_at: Where the worker is killed.
        input: What the generation is asked with, besides.
        answers: What a person answers, each as `(decision, value)`; `ID` is the provider's own.
        messages: How many messages must have arrived before it is looked at; 0: none is sent.
        overtaken: Whether a generation that was submitted after it ends before it.
    """

    what: str
    plan: dict[str, Any] = field(default_factory=dict[str, Any])
    kind: Kind = "findable"
    crash_at: str | None = None
    input: dict[str, Any] = field(default_factory=dict[str, Any])
    answers: tuple[tuple[str, str | None], ...] = ()
    messages: int = 0
    overtaken: bool = False


def _message(**more: Any) -> dict[str, Any]:
    return {"messages": [more]}


SLOW = {"work": 0.4}
SUBMISSIONS = (
    Fault("none"),
    Fault("the connection is closed before the task is made", {"drop": "before"}),
    Fault("the connection is closed after the task is made", {"drop": "after"}),
    Fault("the same, and the same key again is the same task", {"drop": "after"}, "idempotent"),
    Fault("the same, and nobody can be asked", {"drop": "after"}, "neither"),
    Fault("… a person finds it there", {"drop": "after"}, "neither", answers=(("approve", "ID"),)),
    Fault("closed before it is made, and nobody can be asked", {"drop": "before"}, "neither"),
    Fault("… a person says that it is not there", {"drop": "before"}, "neither", answers=(("reject", None),)),
    Fault("the answer comes after our time limit", {"answer_after": 2.0}),
    Fault("HTTP 429", {"status": 429, "retry_after": "0"}),
    Fault("HTTP 503, twice", {"status": 503, "status_times": 2}),
    Fault("HTTP 500, and the task was not made", {"status": 500}),
    Fault("HTTP 500, and the task was made", {"status": 500, "status_made": True}),
    Fault("HTTP 400: refused for good", {"status": 400, "status_times": 9}),
)
ENDS = (
    Fault("the task fails", {"end": "failed"}),
    Fault("it takes many questions", {"polls": 4}),
    Fault("it has ended, and then says the opposite", {**_message(state="failed", delay=0.8)}, messages=1),
    Fault(
        "it has failed, and then says the opposite",
        {"end": "failed", **_message(state="succeeded", delay=0.8)},
        messages=1,
    ),
    Fault("one that was submitted later ends first", {"end": "never"}, overtaken=True),
    Fault("it never ends", {"end": "never"}, input={"window_s": 0.05, "give_up_after_s": 0.1}),
    Fault(
        "… a person stops it",
        {"end": "never"},
        input={"window_s": 0.05, "give_up_after_s": 0.1},
        answers=(("reject", None),),
    ),
)
MESSAGES = (
    Fault("a message tells the end", {**SLOW, **_message()}, messages=1),
    Fault("it comes twice", {**SLOW, **_message(times=2)}, messages=2),
    Fault(
        "it comes before the submission is answered",
        {"answer_after": 0.3, **_message(when="before_answer", state="succeeded")},
        messages=1,
    ),
    Fault("it comes when all is over", _message(delay=1.0), messages=1),
    Fault("an older one comes after it", {**SLOW, "messages": [{}, {"delay": 0.5, "state": "running"}]}, messages=2),
    Fault(
        "its signature is wrong", {**SLOW, **_message(state="failed", signature="wrong", when="accepted")}, messages=1
    ),
    Fault(
        "it has no signature", {**SLOW, **_message(state="failed", signature="missing", when="accepted")}, messages=1
    ),
    Fault("it was signed a week ago", {**SLOW, **_message(state="failed", age=WEEK_S, when="accepted")}, messages=1),
)
KILLS = (
    Fault("before the provider is asked", crash_at="effect.intended:provider.submit"),
    Fault("when the provider has taken it", crash_at="provider.submitted"),
    Fault("the same, and nobody can be asked", {}, "neither", "provider.submitted"),
    Fault("… a person finds it there", {}, "neither", "provider.submitted", answers=(("approve", "ID"),)),
    Fault("when the answer is noted", crash_at="effect.called:provider.submit"),
    Fault("between a poll and what it says", crash_at="provider.polled"),
    Fault("before the artefact is kept", crash_at="effect.intended:artefact.keep"),
    Fault("when it is kept", crash_at="effect.called:artefact.keep"),
)
TABLES = {"submissions": SUBMISSIONS, "ends": ENDS, "messages": MESSAGES, "kills": KILLS}
_CAN = {"findable": "asked by our key", "idempotent": "given the key again", "neither": "neither"}


@dataclass(frozen=True)
class Seen:
    """What came of a fault.

    Attributes:
        job: The job's status, and the outcome it presents.
        task: The task's state.
        made: Tasks that the provider made.
        sum: What the ledger's entries for the task come to.
    """

    job: str
    task: str
    made: int
    sum: int

    def row(self, fault: Fault) -> str:
        """A row of the page."""
        euros = "0" if self.sum == 0 else f"−{-self.sum / 100:.2f}"
        return f"| {fault.what} | {_CAN[fault.kind]} | {self.job} | `{self.task}` | {self.made} | {euros} |"


def carry_out(fault: Fault, folder: Path) -> Seen:
    """Have it happen, to a real worker process, over real HTTP."""
    settings = {"idempotent": fault.kind == "idempotent", "findable": fault.kind == "findable"}
    with fresh(folder) as store, simulating(**settings) as simulator, _listening(store, simulator, fault):
        simulator.book.default = as_plan(Plan(), fault.plan)
        customer = Customer(store, simulator, fault.kind, folder)
        job = customer.submit(**fault.input)
        if fault.overtaken:
            _overtake(customer, simulator, job)
        job = customer.run(job, fault.crash_at)
        for decision, value in fault.answers:
            told = next(iter(simulator.book.tasks)) if value == "ID" else value
            customer.answer(job, decision, told)
            job = customer.run(job)
        until(lambda: len(simulator.book.messages) >= fault.messages, "the provider's messages")
        assert customer.killed == (fault.crash_at is not None)
        return _seen(store, simulator, store.job(job.public_id))


def _overtake(customer: Customer, simulator: Simulator, job: Job) -> None:
    """Have a later one end first; then this one."""
    made = simulator.book.tasks
    with customer.working():
        until(lambda: made, "the first task")
        later = customer.submit(prompt="another film")
        first, second = until(lambda: list(made.values()) if len(made) == 2 else None, "the second task")
        simulator.end(second, "succeeded")
        until(lambda: customer.store.job(later.public_id).status == "done", "the end of the later one")
        assert customer.store.job(job.public_id).status != "done"
        simulator.end(first, "succeeded")
        until(lambda: customer.store.job(job.public_id).status == "done", "the end of the first one")


@contextmanager
def _listening(store: Store, simulator: Simulator, fault: Fault) -> Generator[None]:
    """A server that the provider's messages come to, where there are any."""
    if not fault.messages:
        yield
        return
    os.environ[SECRET] = HOOK_SECRET
    signed = StandardWebhooks(kind="standard-webhooks", secret_env=SECRET)
    providers = simulated(simulator.url, webhook=signed)
    graphs = GraphCatalogue.from_graphs({"none": chain(lambda _state: {"log": []})})
    with live(store, graphs, work=False, providers=providers) as url:
        simulator.sender.url, simulator.sender.secret = f"{url}/webhooks/sim", HOOK_SECRET
        yield


def _seen(store: Store, simulator: Simulator, job: Job) -> Seen:
    tasks = store.read(provider_tasks.listed)
    (task,) = [one for one in tasks if one.job == job.public_id]
    entries = store.read(lambda connection: ledger.entries(connection, task=task.public_id))
    total = sum(entry.amount for entry in entries)
    left = store.read(lambda connection: ledger.balance(connection, "default", "EUR"))
    assert store.read(ledger.mismatches) == []
    assert left == CREDIT + total - PRICE * (len(tasks) - 1)
    assert total in (0, -PRICE)
    assert len(entries) <= 2
    assert all(event.state != "parked" for event in store.read(provider_events.listed))
    outcome = "" if job.result_json is None else f", {_result(job)['outcome']}"
    return Seen(f"{job.status}{outcome}", task.state, simulator.book.made[task.provider_key], total)


def _result(job: Job) -> Any:
    import json

    return json.loads(job.result_json or "{}")


def table(name: str, rows: dict[str, str]) -> str:
    """A table of the page, of these rows by fault."""
    head = "| what goes wrong | the provider can be | job | task | tasks made there | ledger, EUR |"
    return "\n".join([head, "|---" * 6 + "|", *(rows[key] for key, _ in faults(name))]) + "\n"


def faults(name: str | None = None) -> list[tuple[str, Fault]]:
    """Each fault by a name of its own, of one table or of all."""
    tables = TABLES if name is None else {name: TABLES[name]}
    return [(f"{one}-{number}", fault) for one, each in tables.items() for number, fault in enumerate(each)]


def shown(name: str) -> list[str]:
    """The rows of a table as the page has them."""
    (body,) = [block["body"] for block in BLOCK.finditer(PAGE.read_text()) if block["name"] == name]
    return body.splitlines()[2:]


def write() -> None:
    """Carry all faults out, and write the page."""
    rows: dict[str, str] = {}
    for key, fault in faults():
        with tempfile.TemporaryDirectory() as folder:
            rows[key] = carry_out(fault, Path(folder)).row(fault)
        print(rows[key], flush=True)
    made = {name: table(name, rows) for name in TABLES}
    PAGE.write_text(BLOCK.sub(lambda block: block["begin"] + made[block["name"]] + block["end"], PAGE.read_text()))


if __name__ == "__main__":
    write()
