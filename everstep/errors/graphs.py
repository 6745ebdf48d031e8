"""What can go wrong with graphs, and while one runs."""

from __future__ import annotations

from everstep.errors.base import EX_CONFIG, EX_DATAERR, EX_NOINPUT, EX_SOFTWARE, EX_UNAVAILABLE, EverstepError


class ConfigInvalid(EverstepError):
    """`langgraph.json` is missing, not valid JSON, or holds something Everstep cannot honour."""

    code = "config_invalid"
    exit_code = EX_CONFIG


class GraphNotFound(EverstepError):
    """No graph of this name is configured."""

    code = "graph_not_found"
    exit_code = EX_NOINPUT


class GraphLoadFailed(EverstepError):
    """The graph's module could not be imported, or it does not hold a graph."""

    code = "graph_load_failed"
    exit_code = EX_CONFIG


class GraphChanged(EverstepError):
    """The graph no longer fits the thread of a job that began with an earlier version of it."""

    code = "graph_changed"
    exit_code = EX_DATAERR


class StateNotSerializable(EverstepError):
    """A value in the state cannot be stored, or would come back as something else."""

    code = "state_not_serializable"
    exit_code = EX_DATAERR


class EffectRejected(EverstepError):
    """Raised by an effect's function to say that the outside world surely did not act; the effect may run again."""

    code = "effect_rejected"


class ApprovalRejected(EverstepError):
    """A person did not approve an effect, which was not called; a node may catch it and go another way.

    Attributes:
        decision: `reject`, or `respond`: the person answered in the place of the effect.
        words: What the person said: a text for the graph, and what a tool that was not approved tells its agent. It is
            in no message, which spans and logs hold.
    """

    code = "approval_rejected"

    def __repr__(self) -> str:
        said = f"{self.message}: {self.words}" if self.words else self.message
        return f"{type(self).__name__}({said!r})"  # by which LangGraph's ToolNode tells of a tool's error

    @property
    def decision(self) -> str:
        """`reject` or `respond`."""
        return str(self.ids.get("decision"))

    @property
    def words(self) -> str | None:
        """What the person said."""
        return self.ids.get("words")


class EffectInterrupted(EverstepError):
    """A call was given up before its outcome was known (a time limit in the node, say); the next attempt finds out."""

    code = "effect_interrupted"


class EffectNotRepeated(EverstepError):
    """A replay asks for a new effect where an earlier run asked for another; nothing tells whether it is the same."""

    code = "effect_not_repeated"


class EffectInvalid(EverstepError):
    """An effect was declared or called in a way that cannot be kept safe."""

    code = "effect_invalid"
    exit_code = EX_SOFTWARE


class VerificationFailed(EverstepError):
    """A verification command did not pass."""

    code = "verification_failed"


class Cancelled(EverstepError):
    """The job was cancelled on request."""

    code = "cancelled"


class NodeExited(EverstepError):
    """A node tried to end the process, as `sys.exit()` does."""

    code = "node_exited"


class WorkerEnded(EverstepError):
    """A node ended the worker's process."""

    code = "worker_ended"


class IsolationImpossible(EverstepError):
    """A worker could start no process for isolated jobs any more."""

    code = "isolation_impossible"
    exit_code = EX_UNAVAILABLE


class WorkerDied(EverstepError):
    """The worker that ran the job vanished (its lease expired) on the last allowed attempt."""

    code = "worker_died"
