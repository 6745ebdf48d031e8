"""Rolling back: the steps of runs that were cancelled so go before anything else is built on them.

The mark is set with the cancellation (`rolled_back` is 1 then). Whoever goes on with the thread takes the steps away,
and may do so twice: the next run, a client that changes the state, or one that waits for the cancellation.
"""

from __future__ import annotations

from functools import partial

from sqlalchemy import Connection, and_, bindparam, select, update

from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.schema import agent_jobs
from everstep.checkpoints.schema import runs as table
from everstep.checkpoints.statements import Statement
from everstep.checkpoints.store import Store

_of_thread = and_(table.c.thread_id == bindparam("thread_id"), table.c.rolled_back == 1, table.c.ended_at.is_not(None))
_MARKED = Statement(
    select(table.c.run_id, agent_jobs.c.returns).join(agent_jobs, agent_jobs.c.id == table.c.job_id).where(_of_thread)
)


def name_of_steps(run_id: str, returns: int) -> str:
    """What a run's steps are stored under: another name each time that its job was given back to its graph."""
    return f"{run_id}.{returns}" if returns else run_id


def marked(connection: Connection, thread_id: str) -> dict[str, list[str]]:
    """Runs of a thread that are over and whose steps are to go, each with what its steps are stored under."""
    found = _MARKED.run(connection, {"thread_id": thread_id}).fetchall()
    return {
        str(run_id): [name_of_steps(run_id, number) for number in range(int(returns) + 1)] for run_id, returns in found
    }


async def take_away(store: Store, thread_id: str) -> None:
    """Take away the steps of a thread that are to go."""
    found = await store.aread(partial(marked, thread_id=thread_id))
    if found:
        await StepSaver(store).adelete_for_runs([name for names in found.values() for name in names])
        gone = update(table).where(table.c.run_id.in_(list(found))).values(rolled_back=2)
        await store.awrite(lambda connection: connection.execute(gone))
