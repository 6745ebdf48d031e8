"""Which exceptions of a chain are told, in which order, and within which bounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from everstep.observability import exception_chain
from everstep.observability.exception_chain import LINKS, MEMBERS, Link, heading, links, raised_at

SECRET = "sk-canary-chain-0123456789abcdef"


def raised(work: Callable[[], object]) -> BaseException:
    """The exception that work ends with."""
    try:
        work()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def outline(error: BaseException) -> list[str]:
    """The lines that name the links."""
    return [heading(link.as_dict()) for link in links(error)]


def test_a_cause_goes_before_what_was_being_handled() -> None:
    """As Python tells it: `from` an exception, else the one that was being handled, unless it was suppressed."""

    def chained() -> None:
        try:
            try:
                raise KeyError("price")
            except KeyError:
                raise ValueError("bad page")  # noqa: B904
        except ValueError as error:
            raise RuntimeError("cannot publish") from error

    assert outline(raised(chained)) == [
        "RuntimeError: cannot publish",
        "caused by ValueError: bad page",
        "while handling KeyError: 'price'",
    ]

    def suppressed() -> None:
        try:
            chained()
        except RuntimeError:
            raise OSError("gone") from None

    assert outline(raised(suppressed)) == ["OSError: gone"]


def test_groups_name_their_sub_exceptions() -> None:
    """Sub-exceptions stand behind their group, set in, each with its own causes; then what led to the group."""
    inner = ExceptionGroup("inner", [KeyError("a"), KeyError("b")])
    inner.exceptions[0].__cause__ = TypeError("why a")
    group = ExceptionGroup("all", [inner, ValueError("third")])
    group.__cause__ = OSError("why all")
    assert outline(group) == [
        "ExceptionGroup: all (2 sub-exceptions)",
        "  sub-exception ExceptionGroup: inner (2 sub-exceptions)",
        "    sub-exception KeyError: 'a'",
        "    caused by TypeError: why a",
        "    sub-exception KeyError: 'b'",
        "  sub-exception ValueError: third",
        "caused by OSError: why all",
    ]


def test_what_is_told_is_bounded() -> None:
    """Endless chains, circles, large and deep groups and long messages are cut; members crowd no cause out."""
    first = last = ValueError("0")
    for number in range(100):
        last.__cause__ = ValueError(str(number))
        last = last.__cause__
    assert len(links(first)) == LINKS
    last.__cause__ = first
    assert len(links(first)) == LINKS
    circle = ValueError("round")
    circle.__cause__ = KeyError("and")
    circle.__cause__.__context__ = circle
    assert len(links(circle)) == 2
    large = ExceptionGroup("large", [ValueError(str(number)) for number in range(100)])
    large.__cause__ = OSError("why")
    assert [link.relation for link in links(large)] == [None, *["member"] * MEMBERS, "cause"]
    deep = ExceptionGroup("deep", [ValueError("0")])
    for number in range(50):
        deep = ExceptionGroup(str(number), [deep])
    assert [link.depth for link in links(deep)] == list(range(LINKS))
    long = ValueError("ä" * 100_000)
    long.__cause__ = ValueError("ä" * 100_000)
    assert [len(link.message.encode()) for link in links(long)] <= [4096, 1024]


@pytest.mark.parametrize("before", [0, 1000, 4090, 4096])
def test_no_message_of_a_chain_holds_a_credential(before: int) -> None:
    """Wherever it stands, also where the text is cut."""
    error = ValueError(f"{'x' * before} {SECRET}")
    error.__cause__ = ExceptionGroup(f"{'x' * before} {SECRET}", [KeyError(SECRET)])
    assert SECRET[:12] not in str([link.as_dict() for link in links(error)])
    assert SECRET[:12] not in exception_chain.told(error)


def test_an_exception_without_text_is_told_by_its_type() -> None:
    """A `__str__` that raises costs the message only."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    (link,) = links(Mute())
    assert link.message == "(no text: its __str__ raised RuntimeError)"
    assert heading({"type": "Bare", "message": ""}) == "Bare"


def test_lines_of_a_message_are_one_line() -> None:
    """A message cannot pass for a place or for another exception."""
    told = exception_chain.told(ValueError("first\n  at forged.py:1 f\ncaused by Nothing: x"))
    assert told == "ValueError: first at forged.py:1 f caused by Nothing: x"


def test_where_an_error_was_raised() -> None:
    """The first place that any exception of the chain has; none is known of an error without one."""

    def work() -> None:
        raise ValueError("x")

    kept = [link.as_dict() for link in links(raised(work))]
    assert raised_at({"chain": [{"where": ""}, *kept]}).endswith(" work")
    assert raised_at({"chain": kept}).partition(":")[0] == __file__
    assert raised_at({"code": "worker_died"}) == ""
    assert isinstance(links(ValueError())[0], Link)
