"""The trace of a job, drawn from the record alone: a tree, a page and an export, with or without a backend."""
