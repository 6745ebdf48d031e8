"""What to do next, as who asks over HTTP can do it: the path instead of the command.

Errors of the catalogue name commands, since most people meet them there. What only whoever runs the server can do
(`everstep keys`, `everstep up`) stays as it is.
"""

from __future__ import annotations

import re

_ONE = r"([^\s,;:()]+)"
_PATHS: tuple[tuple[str, str], ...] = (
    (rf"show {_ONE}", r"GET /everstep/jobs/\1"),
    (rf"trace {_ONE}", r"GET /everstep/jobs/\1/trace"),
    (rf"retry {_ONE}", r"POST /everstep/jobs/\1/retry"),
    (r"retry", r"POST /everstep/jobs/{id}/retry"),
    (r"jobs", r"GET /everstep/jobs"),
    (r"review (?:approve|reject) ID(?: --value RESULT)?", r"POST /everstep/reviews/{id}/answer"),
    (r"review", r"GET /everstep/reviews"),
    (rf"services open {_ONE}", r"POST /everstep/services/\1/open"),
    (r"services", r"GET /everstep/services"),
    (rf"schedules remove {_ONE}", r"DELETE /everstep/schedules/\1"),
    (rf"schedules pause {_ONE}", r"POST /everstep/schedules/\1/pause"),
    (r"schedules", r"GET /everstep/schedules"),
    (r"triggers replay EVENT", r"POST /everstep/triggers/{name}/events/{id}/replay"),
    (r"triggers events", r"GET /everstep/triggers/{name}/events"),
    (rf"provider show {_ONE}", r"GET /everstep/provider-tasks/\1"),
    (r"provider tasks", r"GET /everstep/provider-tasks"),
    (r"deliveries", r"GET /everstep/deliveries"),
    (r"doctor", r"GET /everstep/doctor"),
)
"""Commands without `everstep`, and what answers the same; of those that begin alike the longer first."""
_KNOWN = tuple((re.compile(rf"(?<![\w/-])everstep {command}(?![\w-])"), path) for command, path in _PATHS)
_OPTION = re.compile(r"(?<!\S)--(key)\b")


def over_http(next_step: str) -> str:
    """A next step with paths in place of commands."""
    told = next_step
    for command, path in _KNOWN:
        told = command.sub(path, told)
    return _OPTION.sub(r"\1", told) if told != next_step else next_step
