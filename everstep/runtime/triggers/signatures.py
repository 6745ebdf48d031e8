"""Whether an event over HTTP is genuine and fresh: checked before anything of it is read as data."""

from __future__ import annotations

import os
from collections.abc import Mapping

from everstep.errors import TriggerUnusable
from everstep.graphs.event_sections import GithubTrigger, OverHttp, Token
from everstep.nodes.providers import signatures
from everstep.nodes.providers.signatures import HmacScheme

GITHUB = HmacScheme("x-hub-signature-256", prefix="sha256=")


def is_signed(trigger: OverHttp) -> bool:
    """Whether a trigger tells by itself who sent an event; otherwise it takes an API key."""
    return isinstance(trigger, GithubTrigger) or trigger.signature is not None


def verify(
    name: str,
    trigger: OverHttp,
    headers: Mapping[str, str],
    body: bytes,
    *,
    now_ms: int,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Refuse an event that its trigger's secret did not sign, or not just now.

    Args:
        name: The trigger's name.
        trigger: The trigger.
        headers: The request's headers, their names in small letters.
        body: What was sent, byte by byte.
        now_ms: UTC milliseconds.
        environment: Where the secrets are.

    Raises:
        EventRefused: The signature is missing or wrong, or the event too old or from the future.
        TriggerUnusable: The secret is not in the environment.
    """
    signature = trigger if isinstance(trigger, GithubTrigger) else trigger.signature
    if signature is None:
        return
    secrets = _secrets(name, signature.secret_env, environment)
    if isinstance(signature, Token):
        given = headers.get(signature.header, "")
        told = given.removeprefix(signature.prefix)
        if not given.startswith(signature.prefix) or not signatures.any_same(told, secrets):
            raise signatures.refused("the token is missing or wrong")
        return
    scheme = GITHUB if isinstance(signature, GithubTrigger) else signature.scheme()
    try:
        signatures.verify(scheme, headers, body, secrets=secrets, now_ms=now_ms)
    except signatures.SecretMalformed:
        raise TriggerUnusable(
            f"the secret of the trigger {name} is not whsec_ and base64",
            next_step=f"set {signature.secret_env} to the secret as its sender shows it",
            trigger=name,
        ) from None


def _secrets(name: str, variable: str, environment: Mapping[str, str]) -> list[str]:
    secrets = signatures.secrets_in(variable, environment)
    if not secrets:
        raise TriggerUnusable(
            f"the trigger {name} cannot tell whether events are genuine: {variable} is not set",
            next_step=f"set {variable} to its secret; or to several, each on a line, while one replaces another",
            trigger=name,
        )
    return secrets
