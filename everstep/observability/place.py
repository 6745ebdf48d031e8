"""Where in a graph a span is: what a step's span says, and a failing one below it repeats."""

from __future__ import annotations

from typing import NamedTuple

from everstep.observability import names


class Place(NamedTuple):
    """One attempt at one node.

    Attributes:
        step: LangGraph's step.
        node: The node.
        attempt: Which attempt at it in this step, from 1.
        checkpoint_ns: The checkpoint namespace of its task.
        checkpoint_id: The checkpoint that the step runs from, if it is known.
    """

    step: int | None
    node: str
    attempt: int
    checkpoint_ns: str
    checkpoint_id: str | None

    def attributes(self) -> dict[str, object]:
        """As a span says it: in our own words, and as Langfuse's filterable metadata."""
        return {
            names.STEP: self.step,
            names.NODE: self.node,
            names.NODE_ATTEMPT: self.attempt,
            names.CHECKPOINT_NS: self.checkpoint_ns,
            names.CHECKPOINT_ID: self.checkpoint_id,
            names.observation_metadata("step"): self.step,
            names.observation_metadata("node"): self.node,
            names.observation_metadata("attempt"): self.attempt,
            names.observation_metadata("checkpoint_ns"): self.checkpoint_ns,
            names.observation_metadata("checkpoint_id"): self.checkpoint_id,
        }

    def step_attributes(self) -> dict[str, object]:
        """As the step's own span says it: besides, what Langfuse draws its graph from."""
        return {
            **self.attributes(),
            names.OBSERVATION_TYPE: names.TYPE_CHAIN,
            names.observation_metadata("langgraph_step"): self.step,
            names.observation_metadata("langgraph_node"): self.node,
        }
