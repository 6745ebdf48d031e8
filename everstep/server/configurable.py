"""What a request tells the run that it starts, beside its body: headers, and the user of the `auth` hook.

Both become a part of the run's `config["configurable"]`, under LangGraph's names, and so of the record; credentials
never do.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request

from everstep.checkpoints.canonical import canonical_json
from everstep.checkpoints.payload import find_secrets
from everstep.credentials import holds_secret, names_secret
from everstep.errors import PayloadInvalid
from everstep.server.auth_hook import User
from everstep.server.context import served


def of_request(request: Request) -> dict[str, Any]:
    """What the request tells its run, to be merged over the body's `config.configurable`.

    Args:
        request: The request.

    Returns:
        Headers by their names in lower case, as `http.configurable_headers` has it, and with a hook
        `langgraph_auth_user`, `langgraph_auth_user_id` and `langgraph_auth_permissions`.
    """
    patterns = served(request).http.header_patterns
    told: dict[str, Any] = {}
    if patterns is not None:
        told |= {name: one for name, one in request.headers.items() if patterns.fit(name) and not names_secret(name)}
    user: User | None = getattr(request.state, "user", None)
    if user is not None:
        told["langgraph_auth_user"] = {
            name: value for name, value in user.as_dict().items() if not _is_secret(name, value)
        }
        told["langgraph_auth_user_id"] = user.identity
        told["langgraph_auth_permissions"] = list(user.permissions)
    return {name: value for name, value in told.items() if not (isinstance(value, str) and holds_secret(value))}


def _is_secret(name: str, value: Any) -> bool:
    if isinstance(value, bool) or value is None:
        return False
    return names_secret(name) or bool(find_secrets(value)) or not _is_json(value)


def _is_json(value: Any) -> bool:
    try:
        canonical_json(value)
    except PayloadInvalid:
        return False
    return True
