"""Benchmarks: Everstep beside its peers, in one run on one machine. `make bench` runs them; no part of the package."""
