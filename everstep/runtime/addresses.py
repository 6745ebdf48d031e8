"""Where webhooks may be sent: a caller names the address, so it must not lead into the network the sender stands in.

An address is looked up when the connection is made, and the connection is made to the very address that was checked: a
name that answers differently the next time gains nothing. What `[webhooks] allow` in `everstep.toml` names passes;
everything else has to be public, and asked by https.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from everstep.checkpoints import deliveries
from everstep.errors import WebhookInvalid

if TYPE_CHECKING:
    import requests

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NAT64 = IPv6Network("64:ff9b::/96")
_ALLOW = 'name it in everstep.toml if it may be reached: [webhooks] allow = ["{}"]'


class AddressRefused(Exception):
    """The receiver's address is one that nothing may be sent to."""


@dataclass(frozen=True)
class Guard:
    """Which receivers may be sent to.

    Attributes:
        names: Hosts that may have any address, and be asked without encryption.
        networks: Addresses for which the same holds.
    """

    names: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def of(cls, allow: Sequence[str]) -> Guard:
        """What `[webhooks] allow` says: names of hosts, addresses, and networks such as `10.1.0.0/16`."""
        names: set[str] = set()
        networks: list[Network] = []
        for one in allow:
            try:
                networks.append(ipaddress.ip_network(one, strict=False))
            except ValueError:
                names.add(_plain(one))
        return cls(frozenset(names), tuple(networks))

    def require(self, url: str) -> None:
        """Refuse, when a webhook is given, one that its address alone rules out; names are looked up when it is sent.

        Raises:
            WebhookInvalid: It is no address of a webhook, holds credentials, or leads where nothing may be sent.
        """
        deliveries.check_url(url)
        parts = urlsplit(url)
        host = _plain(parts.hostname or "")
        if host in self.names:
            return
        address = _literal(host)
        if address is not None:
            passes = self.passes(address, encrypted=parts.scheme == "https")
        else:
            local = host == "localhost" or host.endswith(".localhost")
            passes = bool(self.networks) or (parts.scheme == "https" and not local)
        if not passes:
            what = "is not public" if parts.scheme == "https" else "is asked without encryption (http)"
            raise WebhookInvalid(f"nothing is sent to a webhook that {what}: {host}", next_step=_ALLOW.format(host))

    def passes(self, address: Address, *, encrypted: bool) -> bool:
        """Whether an address may be sent to: it is allowed, or it is public and the connection encrypted."""
        if any(address.version == network.version and address in network for network in self.networks):
            return True
        return encrypted and all(one.is_global and not one.is_multicast for one in _meant(address))

    def connect(self, host: str, port: int, *, encrypted: bool, until: float) -> socket.socket:
        """A connection to a host, at an address of it that passes.

        Args:
            host: Its name or address.
            port: The port.
            encrypted: Whether TLS will be spoken.
            until: When to give up, on the monotonic clock, seconds.

        Raises:
            AddressRefused: None of its addresses passes.
            OSError: It cannot be looked up or reached.
        """
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        named = _plain(host) in self.names
        passing = [one for one in found if named or self.passes(_address(one), encrypted=encrypted)]
        if not passing:
            raise AddressRefused(f"no address of {host} may be sent to")
        failure: OSError | None = None
        for family, kind, protocol, _, address in passing:
            reached = socket.socket(family, kind, protocol)
            try:
                reached.settimeout(max(until - time.monotonic(), 0.01))
                reached.connect(address)
            except OSError as error:
                reached.close()
                failure = error
                continue
            return reached
        raise failure or OSError("not reached")


@contextmanager
def session(guard: Guard, seconds: float) -> Generator[requests.Session]:
    """A session for one request, whose connection the guard makes; after so many seconds in all it is cut off.

    It heeds no proxy and no `.netrc`: those would take the request elsewhere, or add credentials.
    """
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
    from urllib3.connection import HTTPConnection, HTTPSConnection

    until = time.monotonic() + seconds
    with ExitStack() as ends:

        class Plain(HTTPConnection):
            def _new_conn(self) -> socket.socket:
                made = guard.connect(self.host, self.port, encrypted=False, until=until)
                ends.enter_context(_cut_off(made, until))
                return made

        class Encrypted(HTTPSConnection):
            def _new_conn(self) -> socket.socket:
                made = guard.connect(self.host, self.port or 443, encrypted=True, until=until)
                ends.enter_context(_cut_off(made, until))
                return made

        class PlainPool(HTTPConnectionPool):
            ConnectionCls: Any = Plain

        class EncryptedPool(HTTPSConnectionPool):
            ConnectionCls: Any = Encrypted

        class Guarded(HTTPAdapter):
            def init_poolmanager(self, *arguments: Any, **named: Any) -> None:
                super().init_poolmanager(*arguments, **named)
                pools: Any = {"http": PlainPool, "https": EncryptedPool}
                self.poolmanager.pool_classes_by_scheme = pools

        guarded = ends.enter_context(requests.Session())
        guarded.trust_env = False
        guarded.verify = os.environ.get("REQUESTS_CA_BUNDLE") or True
        for scheme in ("http://", "https://"):
            guarded.mount(scheme, Guarded())
        yield guarded


@contextmanager
def _cut_off(connection: socket.socket, until: float) -> Generator[None]:
    """At a moment end what the connection does: a receiver that answers one byte at a time is not waited for."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:  # TLS takes the other away

        def cut() -> None:
            with suppress(OSError):
                same.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(max(until - time.monotonic(), 0.01), cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _plain(host: str) -> str:
    return host.lower().rstrip(".").removeprefix("[").removesuffix("]")


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _address(found: tuple[Any, ...]) -> Address:
    return ipaddress.ip_address(str(found[4][0]).partition("%")[0])


def _meant(address: Address) -> list[Address]:
    """The address, and those that are written in it: of a tunnel, a translation, a mapping."""
    if isinstance(address, IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    inner: list[Address] = [address]
    if address.sixtofour is not None:
        inner.append(address.sixtofour)
    if address.teredo is not None:
        inner.extend(address.teredo)
    if address in _NAT64:
        inner.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return inner
