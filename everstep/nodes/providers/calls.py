"""One HTTP request to a provider: bounded in time and size, tried once, no redirect followed, no secret told.

What goes wrong is raised as httpx's own errors, so that retries and outages know it; their requests and answers are
stripped of all headers but those that say how long to wait, and their texts of the provider's key and secrets.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import httpx

from everstep.errors import ProviderAnswerInvalid, ProviderConflict, ProviderRefused, ProviderUnusable
from everstep.nodes.providers.blackout import Blackout
from everstep.nodes.providers.templates import at

CONNECT_S = 10.0
MOST_BYTES = 8 * 1024 * 1024
NOT_FINAL = (408, 409, 425, 429)
"""Statuses below 500 that do not say that the request will never be taken."""
TOLD = 500
_WAITS = ("retry-after", "retry-after-ms")
_SAID = ("/error/message", "/error", "/message", "/detail")


@dataclass(frozen=True)
class Answer:
    """What a provider answered.

    Attributes:
        status: The HTTP status.
        content: The body.
        retry_after_ms: How long it asks to wait, milliseconds.
        error: What to raise where the status is a failure.
        blackout: Takes the provider's key and secrets out of what is kept of it.
    """

    status: int
    content: bytes
    retry_after_ms: int | None
    error: httpx.HTTPStatusError
    blackout: Blackout

    @property
    def is_refusal(self) -> bool:
        """Whether the provider refused the request for good."""
        return 400 <= self.status < 500 and self.status not in NOT_FINAL

    @property
    def is_success(self) -> bool:
        """Whether it did what was asked."""
        return 200 <= self.status < 300

    def json(self, provider: str) -> Any:
        """The body as JSON.

        Raises:
            ProviderAnswerInvalid: It is none.
        """
        try:
            return json.loads(self.content)
        except (ValueError, RecursionError):
            raise ProviderAnswerInvalid(
                f"the provider {provider} answered {self.status} with something that is no JSON",
                next_step="look at the address and the description of the provider",
                provider=provider,
            ) from None

    def refused(self, provider: str) -> ProviderRefused:
        """The error that says that the provider refused the request for good, and why."""
        said = self._said()
        return ProviderRefused(
            f"the provider {provider} refused the request ({self.status})" + (f": {said}" if said else ""),
            next_step="correct the request, and submit it as the next generation",
            provider=provider,
            status=self.status,
            said=said,
        )

    def require_taken(self, provider: str) -> None:
        """Nothing, unless it answers a submission and says that it did not take it, or may have before.

        Raises:
            ProviderRefused: It refused the request for good.
            ProviderConflict: It answered 409.
        """
        if self.is_refusal:
            raise self.refused(provider)
        if self.status == 409:
            said = self._said()
            raise ProviderConflict(
                f"the provider {provider} reports a conflict (409)" + (f": {said}" if said else ""),
                next_step="look there whether it has the task already",
                provider=provider,
            )

    def _said(self) -> str:
        try:
            document = json.loads(self.content)
        except (ValueError, RecursionError):
            return ""
        found = next((text for text in (at(document, place) for place in _SAID) if isinstance(text, str)), "")
        return self.blackout.text(found)[:TOLD]


@dataclass(frozen=True)
class Caller:
    """How a provider is reached.

    Attributes:
        provider: Its name.
        base_url: What its paths are added to.
        api_key_env: The variable that holds the key; None: none is sent.
        header: The header that the key goes into.
        prefix: What stands before it there.
        timeout_s: The longest a request may take, seconds.
        most_bytes: The largest answer that is read.
        secret_envs: Variables that hold other secrets that we share with it, such as its webhook's.
    """

    provider: str
    base_url: str
    api_key_env: str | None = None
    header: str = "authorization"
    prefix: str = "Bearer "
    timeout_s: float = 30.0
    most_bytes: int = MOST_BYTES
    secret_envs: tuple[str, ...] = ()

    @property
    def blackout(self) -> Blackout:
        """Takes the key and the other secrets out of what it answers."""
        own = () if self.api_key_env is None else (self.api_key_env,)
        return Blackout((*own, *self.secret_envs))

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> Answer:
        """Send one request.

        Args:
            method: Such as `POST`.
            path: Below the base URL, its parts percent-encoded.
            query: Parameters.
            headers: Headers, besides the key's.
            body: JSON; None: none.

        Raises:
            ProviderUnusable: The key is not in the environment.
            ProviderAnswerInvalid: The answer is too large, or a redirect.
            httpx.HTTPError: No answer came. No error's text holds the key.
        """
        url = self.base_url.rstrip("/") + path
        sent = {"accept": "application/json", "user-agent": "everstep", **(headers or {}), **self._key()}
        bare = httpx.Request(method, url)
        try:
            answer, content = await self._exchanged(method, url, query, sent, body)
        except TimeoutError:
            raise httpx.ReadTimeout(f"no answer in {self.timeout_s:g} s", request=bare) from None
        except Exception as error:
            if isinstance(error, httpx.RequestError):
                error.request = bare
            if not self.blackout.tells(error):
                raise
            failure = self._without_key(error, bare)
        else:
            return self._answer(answer, content, bare)
        raise failure  # here, or it would carry the error with the key as its context

    async def _exchanged(
        self, method: str, url: str, query: Mapping[str, str] | None, headers: Mapping[str, str], body: Any
    ) -> tuple[httpx.Response, bytes]:
        timeout = httpx.Timeout(self.timeout_s, connect=min(CONNECT_S, self.timeout_s))
        async with asyncio.timeout(self.timeout_s), httpx.AsyncClient(verify=_tls(), timeout=timeout) as client:
            request = client.build_request(method, url, params=query, headers=headers, json=body)
            answer = await client.send(request, stream=True, follow_redirects=False)
            try:
                return answer, await self._content(answer)
            finally:
                await answer.aclose()

    def _without_key(self, error: Exception, bare: httpx.Request) -> Exception:
        """An error in the place of one that tells the key: a library prints a header that it refuses."""
        said = self.blackout.text(str(error))
        if isinstance(error, httpx.RequestError):
            return type(error)(said, request=bare)
        return ProviderUnusable(
            f"the provider {self.provider} cannot be asked: {said}",
            next_step="look at its description and its key",
            provider=self.provider,
        )

    def _answer(self, answer: httpx.Response, content: bytes, bare: httpx.Request) -> Answer:
        if 300 <= answer.status_code < 400:
            raise ProviderAnswerInvalid(
                f"the provider {self.provider} answered {answer.status_code}, and redirects are not followed",
                next_step="set base_url to where it leads, if that is right",
                provider=self.provider,
            )
        waits = {name: answer.headers[name] for name in _WAITS if name in answer.headers}
        told = httpx.Response(answer.status_code, headers=waits, request=bare)
        failure = httpx.HTTPStatusError(
            f"the provider {self.provider} answered {answer.status_code}", request=bare, response=told
        )
        return Answer(answer.status_code, content, _milliseconds(waits), failure, self.blackout)

    def _key(self) -> dict[str, str]:
        if self.api_key_env is None:
            return {}
        key = os.environ.get(self.api_key_env, "").strip()
        if not key or not key.isascii() or not key.isprintable():
            what = "is not set" if not key else "holds what cannot stand in a header"
            raise ProviderUnusable(
                f"the provider {self.provider} cannot be asked: {self.api_key_env} {what}",
                next_step=f"set {self.api_key_env} to the key that the provider gave you",
                provider=self.provider,
            )
        return {self.header: self.prefix + key}

    async def _content(self, answer: httpx.Response) -> bytes:
        parts: list[bytes] = []
        length = 0
        async for part in answer.aiter_bytes():
            length += len(part)
            if length > self.most_bytes:
                raise ProviderAnswerInvalid(
                    f"the provider {self.provider} answered with more than {self.most_bytes} bytes",
                    next_step="raise max_bytes of the provider in everstep.toml, if that is right",
                    provider=self.provider,
                )
            parts.append(part)
        return b"".join(parts)


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    """Made once: it reads the machine's certificates, and belongs to no event loop."""
    return httpx.create_ssl_context()


def _milliseconds(waits: Mapping[str, str]) -> int | None:
    for name, factor in (("retry-after-ms", 1), ("retry-after", 1000)):
        text = waits.get(name, "").strip()
        if text.isascii() and text.isdigit() and len(text) < 9:
            return int(text) * factor
    return None
