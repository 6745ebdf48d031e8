"""Providers of paid work: what each can do, the two that come along, and which of them a program has."""
