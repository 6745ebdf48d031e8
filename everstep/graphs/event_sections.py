"""The sections of `everstep.toml` about events: `[webhooks]`, which are sent, and `[triggers.NAME]`, which start jobs.

A filter and a mapping are data, not code: places in the event are JSON Pointers (RFC 6901) that begin with `/body`,
`/headers` or `/event`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from everstep.checkpoints import deliveries
from everstep.checkpoints.jobs import DEFAULT_MAX_ATTEMPTS, DEFAULT_PRIORITY
from everstep.credentials import names_secret
from everstep.errors import WebhookInvalid
from everstep.nodes.mistakes import spelled
from everstep.nodes.providers.signatures import Algorithm, HmacScheme, StandardScheme
from everstep.nodes.providers.templates import is_constant, is_place

MOST_BODY_BYTES = 1024 * 1024
MOST_MAIL_BYTES = 25 * 1024 * 1024
PARTS = ("body", "headers", "event")
"""What a pointer into an event begins with."""
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
_HEADER = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"
UNFINISHED = ("*.part", "*.partial", "*.tmp", "*.crdownload", "*.swp", "*~")
"""Names of files that somebody is still writing."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)


def _pointer(given: str) -> str:
    first = given.split("/")[1] if given.startswith("/") else None
    if first not in PARTS:
        raise ValueError("a path begins with /body, /headers or /event, such as /body/action")
    if any("~" in part.replace("~0", "").replace("~1", "") for part in given.split("/")):
        raise ValueError("in a path ~ is written ~0, and / within a name ~1")
    if given.lower().startswith("/headers/") and names_secret(given.split("/")[2]):
        raise ValueError("headers that hold credentials are not stored")
    return given


def _webhook(given: str) -> str:
    try:
        deliveries.check_url(given)
    except WebhookInvalid as error:
        raise ValueError(f"{error.message}; {error.next_step}") from error
    return given


Pointer = Annotated[str, AfterValidator(_pointer)]
Variable = Annotated[str, AfterValidator(spelled(_VARIABLE, "a variable's name is letters, digits and _"))]
Header = Annotated[
    str, AfterValidator(spelled(_HEADER, "a header's name is letters, digits and -")), AfterValidator(str.lower)
]


class WebhooksSection(_Strict):
    """`[webhooks]`.

    Attributes:
        allow: Hosts, addresses and networks that may be sent to though they are not public, or by http.
        secret_env: The variable that holds the secret messages are signed with.
    """

    allow: list[Annotated[str, Field(min_length=1)]] = []
    secret_env: Variable = "EVERSTEP_WEBHOOK_SECRET"


# ---- what of an event is wanted


class Condition(_Strict):
    """One of a trigger's `filter`: what must hold at a place of the event.

    Attributes:
        path: The place.
        equals: It is there, and this very JSON value.
        one_of: (`in`) It is there, and one of these.
        exists: Whether it is there.
    """

    path: Pointer
    equals: Any = None
    one_of: list[Any] | None = Field(default=None, alias="in")
    exists: bool | None = None

    @model_validator(mode="after")
    def _one_question(self) -> Condition:
        if sum(asked is not None for asked in (self.equals, self.one_of, self.exists)) != 1:  # TOML has no null
            raise ValueError("give one of equals, in and exists")
        return self


def places(mapping: Any) -> Iterator[dict[str, Any]]:
    """The `{path = …}` tables within a mapping.

    Raises:
        ValueError: One is not as it should be.
    """
    if isinstance(mapping, dict):
        table = cast(dict[str, Any], mapping)
        if is_place(table):
            _pointer(table["path"])
            yield table
        elif not is_constant(table):
            for member in table.values():
                yield from places(member)
    elif isinstance(mapping, list):
        for member in cast(list[Any], mapping):
            yield from places(member)


def _mapping(given: Any) -> Any:
    for _ in places(given):
        pass
    return given


class _Trigger(_Strict):
    """What all triggers have.

    Attributes:
        graph: The graph its jobs run.
        filter: What must hold of an event; all of it. Other events are stored, and start nothing.
        input: What the job's input is made of: tables `{path = "/body/…"}` give what is there, or their `default`;
            `{value = …}` and all else stands for itself.
        key: Places whose values make the job's idempotency key; the event's id when omitted.
        owner: Whose jobs they are.
        priority: Their priority.
        max_attempts: Their failures without progress that end them.
        webhook: Who is told when one ends or waits for a person.
        enabled: Whether it takes events.
    """

    graph: str
    filter: list[Condition] = []
    input: Annotated[Any, AfterValidator(_mapping)] = {"path": "/body"}
    key: Pointer | list[Pointer] | None = None
    owner: str = Field(default="default", min_length=1)
    priority: int = Field(default=DEFAULT_PRIORITY, ge=0, le=10)
    max_attempts: int = Field(default=DEFAULT_MAX_ATTEMPTS, ge=1, le=1000)
    webhook: Annotated[str, AfterValidator(_webhook)] | None = None
    enabled: bool = True

    def keys(self) -> list[str]:
        """The places of the job's key; none: the event's id."""
        return [] if self.key is None else [self.key] if isinstance(self.key, str) else self.key

    def pointers(self) -> list[str]:
        """All places that its filter, input and key look at."""
        asked = [condition.path for condition in self.filter]
        return [*asked, *(place["path"] for place in places(self.input)), *self.keys()]


# ---- how an event is known to be genuine


class StandardWebhooks(_Strict):
    """`signature = {kind = "standard-webhooks", …}`: the scheme of standardwebhooks.com."""

    kind: Literal["standard-webhooks"]
    secret_env: Variable
    tolerance: int = Field(default=300, ge=1, le=86_400)

    def scheme(self) -> StandardScheme:
        """What is to be verified."""
        return StandardScheme(self.tolerance)


class Hmac(_Strict):
    """`signature = {kind = "hmac-sha256", …}`, or `hmac-sha512`, or `hmac-sha1`.

    Attributes:
        secret_env: The variable that holds the secret; several secrets, each on a line, while one replaces another.
        header: The header with the signature.
        prefix: What stands before it there.
        encoding: How it is written.
        timestamp_header: The header that tells when it was signed, seconds since the Unix epoch.
        signs: What is signed, with `{body}` and, if there is such a header, `{timestamp}`.
        tolerance: How old, or how far ahead, it may be, seconds; where there is a time, 300 when omitted.
    """

    kind: Literal["hmac-sha256", "hmac-sha512", "hmac-sha1"]
    secret_env: Variable
    header: Header
    prefix: str = ""
    encoding: Literal["hex", "base64"] = "hex"
    timestamp_header: Header | None = None
    signs: str = "{body}"
    tolerance: int | None = Field(default=None, ge=1, le=86_400)

    @model_validator(mode="after")
    def _signs_the_time(self) -> Hmac:
        if self.signs.count("{body}") != 1:
            raise ValueError("signs has to hold {body}, once")
        if self.signs.count("{timestamp}") != (self.timestamp_header is not None):
            raise ValueError("timestamp_header and {timestamp} in signs belong together: a time not signed is no proof")
        if self.tolerance is not None and self.timestamp_header is None:
            raise ValueError("tolerance says nothing without timestamp_header: no message tells when it was signed")
        return self

    def scheme(self) -> HmacScheme:
        """What is to be verified."""
        algorithm = cast(Algorithm, self.kind.removeprefix("hmac-"))
        signed = self.timestamp_header, self.signs, self.tolerance or 300
        return HmacScheme(self.header, self.prefix, self.encoding, algorithm, *signed)


class Token(_Strict):
    """`signature = {kind = "token", …}`: a shared secret in a header; who listens on the way can repeat it."""

    kind: Literal["token"]
    secret_env: Variable
    header: Header = "authorization"
    prefix: str = ""


Signature = Annotated[StandardWebhooks | Hmac | Token, Field(discriminator="kind")]


# ---- the sources


class HttpTrigger(_Trigger):
    """`source = "http"`: a POST of JSON or text.

    Attributes:
        signature: How it is known to be genuine; without one, it takes an API key.
        event_id: The place of the event's id; without one the header `webhook-id`, or a digest of the body.
        max_bytes: The largest body.
    """

    source: Literal["http"]
    signature: Signature | None = None
    event_id: Pointer | None = None
    max_bytes: int = Field(default=MOST_BODY_BYTES, ge=1)

    def pointers(self) -> list[str]:
        return [*super().pointers(), *([] if self.event_id is None else [self.event_id])]


class CloudEventsTrigger(_Trigger):
    """`source = "cloudevents"`: a CloudEvent over HTTP, in binary or structured mode; see `HttpTrigger`."""

    source: Literal["cloudevents"]
    signature: Signature | None = None
    max_bytes: int = Field(default=MOST_BODY_BYTES, ge=1)


class GithubTrigger(_Trigger):
    """`source = "github"`: a webhook of GitHub.

    Attributes:
        secret_env: The variable that holds its secret.
        events: The events that are wanted, such as `pull_request`.
        actions: Their actions that are wanted, such as `opened`; any when empty.
        max_bytes: The largest body; GitHub sends 25 MB at most.
    """

    source: Literal["github"]
    secret_env: Variable
    events: list[str] = ["pull_request"]
    actions: list[str] = ["opened"]
    max_bytes: int = Field(default=MOST_MAIL_BYTES, ge=1)


class MailTrigger(_Trigger):
    """`source = "mail"`: a folder into which messages are dropped as `.eml` files.

    Attributes:
        folder: The folder; relative to `everstep.toml`. A message goes to its `done`, or its `failed`.
        settle: Seconds that a file must not have changed before it counts as complete.
        max_bytes: The largest message.
    """

    source: Literal["mail"]
    folder: str = Field(min_length=1)
    settle: float = Field(default=1.0, ge=0, le=3600)
    max_bytes: int = Field(default=MOST_MAIL_BYTES, ge=1)


class FolderTrigger(_Trigger):
    """`source = "folder"`: files that appear in a directory, or change.

    Attributes:
        folder: The directory; relative to `everstep.toml`.
        patterns: The names that are wanted, such as `*.csv`.
        ignore: Names that are not; by default what is being written.
        recursive: Whether directories within it count.
        settle: Seconds that a file must not have changed before it counts as complete; 0 where files are renamed into
            place.
    """

    source: Literal["folder"]
    folder: str = Field(min_length=1)
    patterns: list[str] = ["*"]
    ignore: list[str] = list(UNFINISHED)
    recursive: bool = False
    settle: float = Field(default=2.0, ge=0, le=3600)


OverHttp = HttpTrigger | CloudEventsTrigger | GithubTrigger
FromFiles = MailTrigger | FolderTrigger
Trigger = HttpTrigger | CloudEventsTrigger | GithubTrigger | MailTrigger | FolderTrigger
TriggerSection = Annotated[Trigger, Field(discriminator="source")]

SECTIONS: dict[str, type[BaseModel]] = {
    "webhooks": WebhooksSection,
    "http": HttpTrigger,
    "cloudevents": CloudEventsTrigger,
    "github": GithubTrigger,
    "mail": MailTrigger,
    "folder": FolderTrigger,
    "filter": Condition,
    "standard-webhooks": StandardWebhooks,
    "hmac-sha256": Hmac,
    "hmac-sha512": Hmac,
    "hmac-sha1": Hmac,
    "token": Token,
}
"""By what the place of a mistake says: which fields there are."""
