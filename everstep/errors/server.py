"""What can go wrong with the server, and with who may ask it."""

from __future__ import annotations

from everstep.errors.base import EX_CONFIG, EX_DATAERR, EX_NOINPUT, EX_NOPERM, EX_UNAVAILABLE, EX_USAGE, EverstepError


class AddressUnavailable(EverstepError):
    """The server cannot listen there: the port is taken, or the address is not this machine's."""

    code = "address_unavailable"
    exit_code = EX_UNAVAILABLE


class ServerUnguarded(EverstepError):
    """The server would be open to other machines, and nobody would have to say who they are."""

    code = "server_unguarded"
    exit_code = EX_CONFIG


class Unauthenticated(EverstepError):
    """Who asks has not said who they are, or with a key that does not count (unknown, expired, revoked)."""

    code = "unauthenticated"
    exit_code = EX_NOPERM


class NotPermitted(EverstepError):
    """Who asks may not do this."""

    code = "not_permitted"
    exit_code = EX_NOPERM


class IdempotencyConflict(EverstepError):
    """The `Idempotency-Key` came before with another request."""

    code = "idempotency_conflict"
    exit_code = EX_DATAERR


class IdempotencyKeyInvalid(EverstepError):
    """The `Idempotency-Key` is empty, too long, or holds characters that no header should."""

    code = "idempotency_key_invalid"
    exit_code = EX_USAGE


class ApiKeyNotFound(EverstepError):
    """No API key has this id."""

    code = "api_key_not_found"
    exit_code = EX_NOINPUT
