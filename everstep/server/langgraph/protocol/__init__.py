"""The thread protocol (version 3 of LangGraph's streaming): commands to a thread, and its events by channel."""
