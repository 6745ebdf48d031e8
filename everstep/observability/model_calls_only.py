"""Callback handlers that look at model calls alone: LangChain asks before it calls them, so nodes do not pay for it."""

from __future__ import annotations

from langchain_core.callbacks import BaseCallbackHandler


class ModelCallsOnly(BaseCallbackHandler):
    """A handler that is called for models, on the thread they are called on, and for nothing else."""

    run_inline = True

    @property
    def ignore_chain(self) -> bool:
        """Nodes and chains are none of its business."""
        return True

    @property
    def ignore_agent(self) -> bool:
        """Nor are tools."""
        return True

    @property
    def ignore_retriever(self) -> bool:
        """Nor are retrievers."""
        return True
