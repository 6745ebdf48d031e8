"""LangGraph's HTTP interface, as its SDKs and user interfaces call it; a module for each group of its paths."""
