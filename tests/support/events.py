"""Events as their senders send them: a pull request of GitHub's, CloudEvents, and signatures of several schemes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime
from typing import Any

from standardwebhooks import Webhook

from everstep.graphs.event_sections import Trigger
from everstep.graphs.policies import Policies

HOOK_SECRET = "whsec_" + base64.b64encode(b"0123456789abcdefghijklmnopqrstuv").decode()
GITHUB_SECRET = "It's a Secret to Everybody"


def pull_request(action: str = "opened", number: int = 7, **more: Any) -> dict[str, Any]:
    """The body of a `pull_request` webhook, in the shape GitHub gives it, shortened."""
    owner = {"login": "ada", "id": 1815, "type": "User", "site_admin": False}
    repository = {
        "id": 186853002,
        "name": "engine",
        "full_name": "ada/engine",
        "private": False,
        "owner": owner,
        "html_url": "https://github.com/ada/engine",
        "default_branch": "main",
        "clone_url": "https://github.com/ada/engine.git",
    }
    head = {"label": "bob:fix", "ref": "fix", "sha": "ec26c3e57ca3a959ca5aad62de7213c562f8c821", "repo": repository}
    base = {"label": "ada:main", "ref": "main", "sha": "f95f852bd8fca8fcc58a9a2d6c842781e32a215e", "repo": repository}
    request = {
        "url": f"https://api.github.com/repos/ada/engine/pulls/{number}",
        "id": 279147437,
        "number": number,
        "state": "open",
        "locked": False,
        "title": "Fix the carry",
        "user": {**owner, "login": "bob"},
        "body": "The carry was lost.",
        "labels": [{"id": 1, "name": "bug", "color": "d73a4a"}],
        "draft": False,
        "head": head,
        "base": base,
        "author_association": "CONTRIBUTOR",
        "created_at": "2026-11-30T10:00:00Z",
        **more,
    }
    sent = {"action": action, "number": number, "pull_request": request, "repository": repository}
    return {**sent, "sender": {**owner, "login": "bob"}, "installation": {"id": 42, "node_id": "MDIz"}}


def from_github(
    body: dict[str, Any], *, delivery: str = "72d3162e-cc78-11e3-81ab-4c9367dc0958", secret: str = GITHUB_SECRET
) -> tuple[bytes, dict[str, str]]:
    """A body and the headers GitHub sends with it."""
    sent = json.dumps(body).encode()
    return sent, {
        "content-type": "application/json",
        "user-agent": "GitHub-Hookshot/044aadd",
        "x-github-delivery": delivery,
        "x-github-event": "pull_request",
        "x-github-hook-id": "292430182",
        "x-hub-signature-256": "sha256=" + hmac.new(secret.encode(), sent, hashlib.sha256).hexdigest(),
    }


def by_standard_webhooks(
    body: bytes, *, at_ms: int, message: str = "msg_1", secret: str = HOOK_SECRET
) -> dict[str, str]:
    """The headers of Standard Webhooks for a body."""
    at = at_ms // 1000
    signature = Webhook(secret).sign(message, datetime.fromtimestamp(at, UTC), body.decode())
    return {
        "content-type": "application/json",
        "webhook-id": message,
        "webhook-timestamp": str(at),
        "webhook-signature": signature,
    }


def policies(**triggers: dict[str, Any]) -> Policies:
    """What an `everstep.toml` with these triggers says; `_` in a name stands for `-`."""
    named = {name.replace("_", "-"): {"graph": "graph", **section} for name, section in triggers.items()}
    return Policies.model_validate({"triggers": named, "webhooks": {"allow": ["127.0.0.1"]}})


def trigger(**section: Any) -> Trigger:
    """One trigger."""
    return policies(one=section).triggers["one"]
