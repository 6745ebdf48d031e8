"""How what goes wrong is answered: `{"detail": …}`, as LangGraph's clients read it, with the catalogue's code and ids.

No answer shows a stack trace or the text of an error that is not in the catalogue.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from everstep import errors
from everstep.checkpoints.store import Store
from everstep.errors import EverstepError
from everstep.server.next_steps import over_http

logger = logging.getLogger("everstep.server")

STATUSES: dict[type[EverstepError], int] = {
    errors.JobNotFound: 404,
    errors.JobPruned: 410,
    errors.GraphNotFound: 404,
    errors.ReviewNotFound: 404,
    errors.ServiceNotFound: 404,
    errors.ThreadNotFound: 404,
    errors.RunNotFound: 404,
    errors.ThreadBusy: 409,
    errors.ScheduleNotFound: 404,
    errors.ScheduleExists: 409,
    errors.ScheduleInvalid: 422,
    errors.KeyConflict: 409,
    errors.JobStateConflict: 409,
    errors.LegNotFound: 404,
    errors.ReviewAnswered: 409,
    errors.ReviewChanged: 409,
    errors.ConfirmationNeeded: 409,
    errors.PayloadInvalid: 422,
    errors.SecretInPayload: 422,
    errors.ReviewAnswerInvalid: 422,
    errors.SignalInvalid: 422,
    errors.ThreadExists: 409,
    errors.ThreadHasNoGraph: 422,
    errors.StateNotSerializable: 422,
    errors.CheckpointNotFound: 404,
    errors.AssistantNotFound: 404,
    errors.AssistantExists: 409,
    errors.AssistantProtected: 403,
    errors.RequestInvalid: 422,
    errors.StoreUnavailable: 503,
    errors.Unauthenticated: 401,
    errors.NotPermitted: 403,
    errors.IdempotencyConflict: 409,
    errors.IdempotencyKeyInvalid: 422,
    errors.TriggerNotFound: 404,
    errors.EventNotFound: 404,
    errors.EventRefused: 401,
    errors.EventInvalid: 422,
    errors.EventTooLarge: 413,
    errors.TriggerUnusable: 503,
    errors.ProviderNotFound: 404,
    errors.ProviderUnusable: 503,
    errors.ProviderTaskMissing: 502,
    errors.ProviderAnswerInvalid: 502,
    errors.ProviderConflict: 502,
    errors.ProviderRefused: 502,
    errors.CancelUnsupported: 409,
    errors.DeliveryNotFound: 404,
    errors.WebhookInvalid: 422,
    errors.OptionsInvalid: 422,
    errors.ProviderTaskNotFound: 404,
    errors.ProviderEventNotFound: 404,
    errors.ProviderTaskConflict: 409,
    errors.SubmissionConflict: 409,
    errors.GenerationRefused: 409,
    errors.GrantConflict: 409,
    errors.InsufficientCredit: 402,
    errors.CreditInvalid: 422,
}
"""What each error of the catalogue is answered with; those not named: 500."""
_CODES = {
    400: "request_invalid",
    401: "unauthenticated",
    403: "not_permitted",
    404: "path_not_found",
    405: "method_not_allowed",
    413: "body_too_large",
    500: "internal_error",
}
"""Of errors that name no code: those of the framework, and of an auth hook."""


def install(app: FastAPI) -> None:
    """Have the application, which knows what it serves, answer errors so."""
    store: Store = app.state.served.store
    kinds: tuple[Any, ...] = (EverstepError, UnicodeEncodeError, *store.database.own_errors())
    for kind in kinds:
        app.add_exception_handler(kind, _explained)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Exception, _unexplained)


def status_of(error: EverstepError) -> int:
    """The status an error of the catalogue is answered with."""
    return next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), 500)


class Told(JSONResponse):
    """JSON with escapes, as what is told may quote half a character that the request had."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode()


def answer(status: int, detail: str, **more: Any) -> JSONResponse:
    """An error's answer."""
    return Told({"detail": detail, **more}, status_code=status)


def refusal(error: EverstepError | HTTPException) -> JSONResponse:
    """The answer to an error."""
    if isinstance(error, HTTPException):
        code = _CODES.get(error.status_code)
        response = answer(error.status_code, str(error.detail), **({"code": code} if code else {}))
        response.headers.update(error.headers or {})
        return response
    status = status_of(error)
    if status >= 500:
        # what runs without its settings is no bug, and is told without a stack trace
        is_setting = isinstance(error, errors.ProviderUnusable | errors.TriggerUnusable)
        logger.error("%s", error, exc_info=None if is_setting else error)
    if isinstance(error, errors.GraphLoadFailed):  # what the graph's code said may hold anything, and is in the log
        name = error.ids["graph"]
        detail = f"graph {name!r} could not be loaded; the server's log tells why"
        return answer(status, detail, code=error.code, next_step="correct it, or ask who runs the server", graph=name)
    told = told_of(error)
    response = Told({"detail": told.pop("message"), **told}, status_code=status)  # an id may be named status
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def told_of(error: EverstepError) -> dict[str, Any]:
    """An error of the catalogue as data, with what to do next over HTTP."""
    return {**error.as_dict(), "next_step": over_http(error.next_step)}


def known(error: Exception, store: Store) -> Exception:
    """The catalogue's error for one of the record, or of text that is none; others come back as they are.

    LangGraph's stock savers read with the driver itself, so its errors come as they are.
    """
    if isinstance(error, UnicodeEncodeError):
        return errors.RequestInvalid("a text holds half a character (a lone surrogate)", next_step="leave it out")
    return store.database.translate(error) if isinstance(error, store.database.own_errors()) else error


async def _explained(request: Request, error: Exception) -> Response:
    told = known(error, request.app.state.served.store)
    return refusal(told) if isinstance(told, EverstepError) else await _unexplained(request, error)


async def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = list(error.errors())
    return answer(422, "; ".join(_described(one) for one in found[:5]), code="request_invalid")


def _described(one: dict[str, Any]) -> str:
    where: Sequence[Any] = one["loc"]
    if one["type"] == "json_invalid":
        return f"the body is no JSON: {one['ctx']['error']}, at character {where[-1]}"
    field = ".".join(str(part) for part in where[1:]) or str(where[0])
    if one["type"] == "extra_forbidden":
        return f"{field} is not supported"
    return f"{field}: {one['msg']}"


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(error)


async def _unexplained(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return answer(500, "the server failed; its log tells why", code="internal_error")
