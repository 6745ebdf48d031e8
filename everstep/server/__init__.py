"""Everstep over HTTP: LangGraph's own interface, and what only Everstep has under `/everstep`."""
