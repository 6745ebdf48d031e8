"""The sections `[providers.NAME]` of `everstep.toml`, and the providers they make.

`use` is `http` (a file describes the provider), `openai`, or a class of the user's own, `./file.py:Class`. Secrets are
named by their variables and read from the environment when they are needed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from everstep.credentials import without_secrets
from everstep.errors import EverstepError, GraphLoadFailed, ProviderUnusable
from everstep.graphs.configuration import GraphEntry, parse_target
from everstep.graphs.event_sections import Hmac, StandardWebhooks, Variable
from everstep.nodes.providers import signatures
from everstep.nodes.providers.http_description import Description, read_description
from everstep.nodes.providers.interface import Provider
from everstep.nodes.providers.registry import Check, Entry, Providers

if TYPE_CHECKING:
    from everstep.nodes.providers.calls import Caller

OPENAI = "https://api.openai.com/v1"
NAME = r"^[a-z0-9][a-z0-9_-]{0,62}$"
"""Names of providers: they stand in addresses, `/webhooks/NAME`."""
_CLASS = re.compile(r".+:[^\W\d][\w.]*")
_LABEL = re.compile(r"[\w-]+")
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)/([smh])")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def _rate(given: str) -> str:
    per_second(given)
    return given


def per_second(rate: str) -> Fraction:
    """A rate such as `5/s`, `300/m` or `1000/h`, in queries a second.

    Raises:
        ValueError: It is none.
    """
    found = _RATE.fullmatch(rate)
    if found is None or not Fraction(found[1]):
        raise ValueError("a rate is written as 5/s, 300/m or 1000/h")
    return Fraction(found[1]) / _SECONDS[found[2]]


def _address(given: str) -> str:
    try:
        parts = urlsplit(given)
        port = parts.port
    except ValueError:
        raise ValueError("the address has a port that is none, or a host in brackets that is none") from None
    if " " in given or not given.isprintable():
        raise ValueError("an address has no spaces, line ends or other control characters")
    if parts.scheme not in ("http", "https") or not _is_host(parts.hostname or "") or port == 0:
        raise ValueError("an address begins with https:// and names a host")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError("an address holds no credentials, no ? and no #; name the key's variable by api_key_env")
    return given


def _is_host(name: str) -> bool:
    return ":" in name or all(_LABEL.fullmatch(label) for label in name.removesuffix(".").split("."))


def _is_loopback(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


Webhook = Annotated[StandardWebhooks | Hmac, Field(discriminator="kind")]


class ProviderSection(BaseModel):
    """`[providers.NAME]`.

    Attributes:
        use: `http`, `openai`, or `./file.py:Class`.
        file: The description of a provider that is used by `http`; relative to `everstep.toml`.
        work: What is asked of one that is used by `openai`: `responses` or `videos`.
        base_url: Where it is; `https` unless it is on this machine or takes no key.
        api_key_env: The variable that holds the key; of OpenAI `OPENAI_API_KEY` when omitted.
        idempotent: Whether a second submission with the same key is surely the same task.
        settle: Seconds after which a task that `find` does not show surely is not there, besides `timeout`.
        timeout: The longest a request may take, seconds.
        max_bytes: The largest answer that is read.
        rate: Most queries about tasks, over all processes: `5/s`, `300/m`.
        burst: How many of them may come at once.
        poll_first: Seconds after which a task is first asked about.
        poll_most: The longest time between two queries about one task, seconds.
        prices: Its price list; relative to `everstep.toml`.
        webhook: How its messages are signed; without it none are taken.
        options: What a class of the user's own is made with, besides its name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    use: str = Field(min_length=1)
    file: Annotated[str, Field(min_length=1)] | None = None
    work: Literal["responses", "videos"] | None = None
    base_url: Annotated[str, AfterValidator(_address)] | None = None
    api_key_env: Variable | None = None
    idempotent: bool = False
    settle: float = Field(default=10.0, ge=0, le=3600)
    timeout: float = Field(default=30.0, gt=0, le=600)
    max_bytes: int = Field(default=8 * 1024 * 1024, ge=1)
    rate: Annotated[str, AfterValidator(_rate)] | None = None
    burst: int = Field(default=1, ge=1, le=1000)
    poll_first: float = Field(default=2.0, gt=0, le=86_400)
    poll_most: float = Field(default=300.0, gt=0, le=86_400)
    prices: Annotated[str, Field(min_length=1)] | None = None
    webhook: Webhook | None = None
    options: dict[str, Any] = {}

    @property
    def is_builtin(self) -> bool:
        """Whether it is used by something that comes with Everstep, and no class of the user's own."""
        return self.use in ("http", "openai")

    @property
    def key_env(self) -> str | None:
        """The variable that holds its key; None: it takes none."""
        return self.api_key_env or ("OPENAI_API_KEY" if self.use == "openai" else None)

    @model_validator(mode="after")
    def _fits_its_use(self) -> ProviderSection:
        if self.use == "http" and self.file is None:
            raise ValueError('use = "http" needs `file`, which describes the provider')
        if self.use == "http" and self.base_url is None:
            raise ValueError('use = "http" needs `base_url`')
        if self.use == "openai" and self.work is None:
            raise ValueError('use = "openai" needs `work`: "responses" or "videos"')
        own = not self.is_builtin
        if own and not _CLASS.fullmatch(self.use):
            raise ValueError('use is "http", "openai", or a class such as "./provider.py:Provider"')
        misplaced = {
            "file": self.file is not None and self.use != "http",
            "work": self.work is not None and self.use != "openai",
            "options": bool(self.options) and not own,
            "base_url": self.base_url is not None and own,
            "api_key_env": self.api_key_env is not None and own,
            "idempotent": self.idempotent and own,
        }
        if wrong := [name for name, is_wrong in misplaced.items() if is_wrong]:
            advice = "; what your own class needs goes into options" if own else ""
            raise ValueError(f'{wrong[0]} says nothing to use = "{self.use}"{advice}')
        if self.poll_most < self.poll_first:
            raise ValueError("poll_most is shorter than poll_first")
        takes_key = self.key_env is not None
        in_clear = self.base_url is not None and self.base_url.startswith("http:") and not _is_loopback(self.base_url)
        if takes_key and in_clear:
            raise ValueError("base_url has to begin with https://, or the key would be read on the way")
        return self


def providers_of(sections: Mapping[str, ProviderSection], folder: Path) -> Providers:
    """The providers that sections describe; their descriptions are read now, they are made when they are needed.

    Args:
        sections: By name.
        folder: Where `everstep.toml` is.

    Raises:
        ConfigInvalid: A description cannot be read, or an entry of it is not what it can be.
    """
    return Providers({name: _entry(name, section, folder) for name, section in sections.items()})


def _entry(name: str, section: ProviderSection, folder: Path) -> Entry:
    description = read_description(folder / section.file) if section.file is not None else None
    return Entry(
        make=partial(_make, name, section, folder, description),
        rate=None if section.rate is None else per_second(section.rate),
        burst=section.burst,
        poll_first_ms=round(section.poll_first * 1000),
        poll_most_ms=round(section.poll_most * 1000),
        check=None if section.webhook is None else _check(name, section.webhook),
        prices=None if section.prices is None else folder / section.prices,
        secret_envs=_secrets(section),
    )


def _secrets(section: ProviderSection) -> tuple[str, ...]:
    hook = () if section.webhook is None else (section.webhook.secret_env,)
    return hook if section.key_env is None else (section.key_env, *hook)


def _check(name: str, webhook: StandardWebhooks | Hmac) -> Check:
    scheme = webhook.scheme()

    def check(headers: Mapping[str, str], body: bytes, now_ms: int) -> None:
        signatures.require(name, scheme, webhook.secret_env, headers, body, now_ms=now_ms)

    return check


def _make(name: str, section: ProviderSection, folder: Path, description: Description | None) -> Provider:
    from everstep.nodes.providers.http import HttpProvider  # httpx takes its time to import
    from everstep.nodes.providers.openai import OpenAIProvider

    settle_s = section.timeout + section.settle
    if description is not None:
        auth = description.auth
        caller = _caller(name, section, section.base_url or "", auth.header, auth.prefix)
        return HttpProvider(description, caller, idempotent=section.idempotent, settle_s=settle_s)
    if section.work is not None:
        caller = _caller(name, section, section.base_url or OPENAI)
        return OpenAIProvider(caller, work=section.work, idempotent=section.idempotent, settle_s=settle_s)
    return _own(name, section, folder)


def _caller(
    name: str,
    section: ProviderSection,
    base_url: str,
    header: str = "authorization",
    prefix: str = "Bearer ",
) -> Caller:
    from everstep.nodes.providers.calls import Caller

    limits = section.timeout, section.max_bytes
    return Caller(name, base_url, section.key_env, header, prefix, *limits, _secrets(section))


def _own(name: str, section: ProviderSection, folder: Path) -> Provider:
    """A provider of a class of the user's own, which is called with its name and the options."""
    kind = own_class(name, section, folder)
    try:
        provider: Provider = kind(name=name, **section.options)
    except EverstepError:
        raise
    except Exception as error:
        said = without_secrets(f"{type(error).__name__}: {error}")
        raise _unusable(name, section, said, "correct its class or its options") from error
    _require_methods(name, section, provider)
    return provider


def own_class(name: str, section: ProviderSection, folder: Path) -> Callable[..., Provider]:
    """The class of the user's own that a provider is made of, or what else makes one; it is not called.

    Args:
        name: The provider's name.
        section: Its section.
        folder: Where `everstep.toml` is.

    Raises:
        ProviderUnusable: It cannot be loaded, does not take the name and the options, or lacks a method.
    """
    from everstep.graphs.importing import import_graph  # which imports LangGraph

    try:
        kind: Any = import_graph(GraphEntry(name, parse_target(section.use, folder)), folder)
    except GraphLoadFailed as error:
        raise _unusable(name, section, _why(error), "correct `use` in everstep.toml, or its file") from error
    except EverstepError as error:
        raise _unusable(name, section, error.message, 'write it as "./provider.py:Provider"') from error
    if not callable(kind):
        raise _unusable(name, section, "it is no class", "name a class, or a function that makes a provider")
    try:
        made_with = inspect.signature(_maker(kind))
    except ValueError:  # of some classes of libraries nobody can tell
        return cast("Callable[..., Provider]", kind)
    try:
        made_with.bind(name=name, **section.options)
    except TypeError as error:
        wants = ", ".join(["name", *section.options])
        raise _unusable(
            name, section, f"TypeError: called with {wants}: {error}", "correct its class or its options"
        ) from error
    if inspect.isclass(kind):
        _require_methods(name, section, kind)
    return cast("Callable[..., Provider]", kind)


def _maker(kind: Callable[..., Any]) -> Callable[..., Any]:
    """What is called to make a provider; a protocol without `__init__` has one that takes anything, and no more."""
    if isinstance(kind, type) and kind.__init__ is Provider.__init__:
        return object
    return kind


def _why(error: GraphLoadFailed) -> str:
    cause = error.__cause__
    if cause is None:  # it was imported, and has no such variable
        return error.message.partition(": ")[2].rstrip(".")
    where = f" (line {error.ids['line']} of {error.ids['file']})" if error.ids.get("file") else ""
    return without_secrets(f"{type(cause).__name__}: {cause}{where}")


def _require_methods(name: str, section: ProviderSection, provider: Any) -> None:
    if lacking := [one for one in ("submit", "query") if not callable(getattr(provider, one, None))]:
        raise _unusable(name, section, f"it has no {lacking[0]}", "subclass everstep.nodes.provider.Provider")


def _unusable(name: str, section: ProviderSection, why: str, next_step: str) -> ProviderUnusable:
    return ProviderUnusable(
        f"the provider {name} ({section.use}) cannot be made: {why}", next_step=next_step, provider=name
    )
