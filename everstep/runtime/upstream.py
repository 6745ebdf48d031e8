"""Which service an exception is about: the host the request went to, or else the library that speaks to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import urlsplit

from everstep.runtime.attributes import chain_of, frames_of, read

_USUAL_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_LIBRARIES = frozenset("openai anthropic botocore httpx httpx2 requests urllib3 aiohttp sqlalchemy".split())
_PARTS_OF_GOOGLE = {"google.genai": "google-genai", "google.api_core": "google-api-core", "google.auth": "google-auth"}


def service_of(error: BaseException) -> str | None:
    """The host of the failed request in lower case, with its port if that is not the usual one; else the library.

    Credentials, path and query of an address are never part of it.

    Args:
        error: The exception; what caused it is asked too.

    Returns:
        Such as `api.openai.com`, `127.0.0.1:8080` or `botocore`; None if neither is known.
    """
    for link in chain_of(error):
        for address in _addresses(link):
            host = _host(address)
            if host:
                return host
    return next((library for link in chain_of(error) if (library := _library(link))), None)


def _addresses(error: BaseException) -> Iterator[Any]:
    response = read(error, "response")
    yield read(read(error, "request"), "url")
    yield read(response, "url")
    yield read(read(response, "request"), "url")
    yield read(read(error, "request_info"), "real_url")
    arguments: Any = read(error, "kwargs")
    if isinstance(arguments, dict):
        yield cast(dict[str, Any], arguments).get("endpoint_url")
    host, port = read(error, "host"), read(error, "port")  # aiohttp, when no connection could be made
    if isinstance(host, str) and isinstance(port, int):
        yield f"{'https' if port == 443 else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
    pool = read(error, "pool")  # urllib3
    if pool is not None and isinstance(read(pool, "host"), str):
        yield f"{read(pool, 'scheme')}://{read(pool, 'host')}:{read(pool, 'port')}"
    for frame in frames_of(error):  # botocore's error answers and aiohttp's lost connections name no address
        module, function = frame.f_globals.get("__name__"), frame.f_code.co_name
        if module == "botocore.client" and function == "_make_api_call":
            yield read(read(frame.f_locals.get("self"), "meta"), "endpoint_url")
        elif module == "aiohttp.client" and function == "_request":
            yield frame.f_locals.get("url")
    yield read(error, "url")


def _host(address: Any) -> str | None:
    if address is None:
        return None
    try:
        parts = urlsplit(str(address))
        host, port = parts.hostname, parts.port
    except Exception:
        return None
    if not host:
        return None
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None or port == _USUAL_PORTS.get(parts.scheme) else f"{shown}:{port}"


def _library(error: BaseException) -> str | None:
    for kind in type(error).__mro__:
        for module, name in _PARTS_OF_GOOGLE.items():
            if kind.__module__.startswith(module):
                return name
        top = kind.__module__.partition(".")[0]
        if top in _LIBRARIES:
            return top
    return None
