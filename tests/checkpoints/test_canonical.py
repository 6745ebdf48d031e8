"""Canonical JSON, digests and idempotency keys."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from everstep.checkpoints.canonical import (
    MAX_DEPTH,
    MAX_INTEGER,
    canonical_json,
    digest,
    job_key,
    repository_key,
    submitted,
)
from everstep.errors import PayloadInvalid

_text = st.text(st.characters(exclude_categories=["Cs"]))
_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _text
)
_json = st.recursive(_scalars, lambda inner: st.lists(inner) | st.dictionaries(_text, inner), max_leaves=20)


class Colour(StrEnum):
    RED = "red"


def _read(text: str) -> Any:
    """JSON as the standard's readers take it: every number is a double."""
    return json.loads(text, parse_int=float)


def _reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _reordered(value[key]) for key in reversed(value)}
    return [_reordered(member) for member in value] if isinstance(value, list) else value


@given(_json)
def test_canonical_json_reads_back_as_the_same_value(value: Any) -> None:
    """Any JSON reader gets the value back: nothing is lost on the way to the digest."""
    assert _read(canonical_json(value)) == value


@given(_json)
def test_canonical_json_is_that_of_the_reference(value: Any) -> None:
    """Also where it is written by Python's own encoder, to the last escape."""
    assert canonical_json(value) == rfc8785.dumps(value).decode()


@given(_text, _json, _text)
def test_what_is_submitted_is_digested_as_the_object_it_is(graph: str, value: Any, version: str) -> None:
    """Both digests of an input, made from its canonical JSON once, are those of the whole objects."""
    given = submitted(graph, value, version)
    assert given.digest == digest({"graph": graph, "input": value})
    assert given.key == digest({"graph": graph, "input": value, "workflow_version": version})


def test_a_submitted_input_is_refused_by_its_path_and_depth() -> None:
    """Its place is below `input`, which is a level of its own."""
    with pytest.raises(PayloadInvalid) as caught:
        submitted("graph", {"n": [float("nan")]}, "1")
    assert caught.value.ids["path"] == "$.input.n[0]"
    value: Any = 0
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert submitted("graph", value, "1")
    with pytest.raises(PayloadInvalid, match="levels"):
        submitted("graph", [value], "1")


@given(_json)
def test_digest_ignores_key_order(value: Any) -> None:
    """The order in which an object's keys were written makes no difference."""
    assert digest(_reordered(value)) == digest(value)


@given(_json, _json)
def test_digest_tells_different_values_apart(one: Any, other: Any) -> None:
    """Two values share a digest exactly when their canonical JSON is the same text."""
    assert (digest(one) == digest(other)) == (canonical_json(one) == canonical_json(other))


@given(_json)
def test_canonical_json_is_a_fixed_point(value: Any) -> None:
    """Reading canonical JSON and writing it again changes nothing."""
    text = canonical_json(value)
    assert canonical_json(_read(text)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None]}, '{"a":[true,null],"b":1}'),
        (1.0, "1"),
        (-0.0, "0"),
        (1e21, "1e+21"),
        (333333333.33333329, "333333333.3333333"),
        (1e-7, "1e-7"),
        ({"\ufb33": 1, "\U0001f600": 2}, '{"\U0001f600":2,"\ufb33":1}'),
        ("€$\u000f\nA'B\"\\", '"€$\\u000f\\nA\'B\\"\\\\"'),
        ((1, 2), "[1,2]"),
        (MAX_INTEGER, "9007199254740991"),
    ],
)
def test_canonical_json_follows_the_standard(value: Any, text: str) -> None:
    """Numbers, escapes and the order by UTF-16 code units are those of RFC 8785."""
    assert canonical_json(value) == text


def test_digest_is_stable_across_releases() -> None:
    """The digest of a known value never changes, or old keys would be forgotten."""
    assert digest({"a": 1}) == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"
    assert (
        job_key("agent", {"ticket": "T-1"}, "1") == "0225d6aa7c6b805e8cdc3848dff42254062a841afde7a1e24daa99fbc0933604"
    )


def test_one_and_one_point_zero_are_one_number() -> None:
    """JSON has one kind of number, so `1` and `1.0` are the same input; `true` and `"1"` are others."""
    assert digest({"n": 1}) == digest({"n": 1.0})
    assert len({digest({"n": n}) for n in (1, True, "1", None)}) == 4


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "$"),
        ({"a": [0, float("inf")]}, "$.a[1]"),
        ({"a": [0, float("-inf")]}, "$.a[1]"),
        ({"n": MAX_INTEGER + 1}, "$.n"),
        ({"n": -MAX_INTEGER - 1}, "$.n"),
        ({"orders": [0, 1, 2, {"kind": Colour.RED}]}, "$.orders[3].kind"),
        ({"outer": {1: "x"}}, "$.outer"),
        ({"outer": {None: "x"}}, "$.outer"),
        ({"t": "ok \ud800"}, "$.t"),
        ({"bad \udfff key": 1}, r"$['bad \udfff key']"),
        ({"first one": {b"x"}}, "$['first one']"),
        ({"raw": b"bytes"}, "$.raw"),
        ({"when": object()}, "$.when"),
    ],
)
def test_values_without_an_exact_form_are_refused_by_path(value: Any, path: str) -> None:
    """Each kind of value that JSON cannot hold exactly is refused, and the error names where it is."""
    with pytest.raises(PayloadInvalid) as caught:
        digest(value)
    assert caught.value.ids["path"] == path
    assert f"at {path} is" in caught.value.message
    caught.value.message.encode()


def test_a_key_that_only_looks_like_another_is_refused() -> None:
    """`{1: x}` would collide with `{"1": x}`, so it is refused instead of being turned into it."""
    with pytest.raises(PayloadInvalid):
        digest({1: "x"})
    assert digest({"1": "x"})


def test_a_value_that_contains_itself_is_refused() -> None:
    """A cycle ends in a named error and not in a recursion error."""
    value: dict[str, Any] = {}
    value["self"] = [value]
    with pytest.raises(PayloadInvalid, match="contains itself"):
        digest(value)


def test_depth_is_limited_exactly() -> None:
    """`MAX_DEPTH` levels pass, one more is refused."""
    value: Any = 0
    for _ in range(MAX_DEPTH):
        value = [value]
    assert digest(value)
    with pytest.raises(PayloadInvalid, match="levels"):
        digest([value])


def test_text_is_not_normalised() -> None:
    """A composed and a decomposed character are two inputs."""
    assert digest("é") != digest("e\u0301")


@given(_text.filter(lambda name: "".join(name.split())), st.sampled_from(["", " ", "\t", "\u00a0", "\n"]))
def test_repository_name_ignores_case_and_white_space(name: str, space: str) -> None:
    """A repository is the same however its name is spaced or capitalised."""
    key = repository_key(name.lower(), "main", "generate-tests", {}, "1")
    assert repository_key(space.join(["", *name.lower(), ""]), "main", "generate-tests", {}, "1") == key


def test_repository_key_depends_on_every_field() -> None:
    """Another branch (also by case), operation, input or version is another job; another spelling is not."""
    base: tuple[Any, ...] = ("Acme/Shop", "main", "generate-tests", {"ticket": "T-1", "paths": ["a.py", "b.py"]}, "1")
    others = [
        ("acme/other", *base[1:]),
        (base[0], "Main", *base[2:]),
        (*base[:2], "fix-lint", *base[3:]),
        (*base[:3], {"ticket": "T-2", "paths": ["a.py", "b.py"]}, base[4]),
        (*base[:3], {"ticket": "T-1", "paths": ["b.py", "a.py"]}, base[4]),
        (*base[:4], "2"),
    ]
    keys = {repository_key(*arguments) for arguments in [base, *others]}
    assert len(keys) == 7
    assert repository_key(" ACME / Shop\n", *base[1:]) == repository_key(*base)


def test_an_empty_repository_name_is_refused() -> None:
    """A name of nothing but white space names no repository."""
    with pytest.raises(PayloadInvalid, match="empty"):
        repository_key(" \t", "main", "generate-tests", {}, "1")


def test_job_key_depends_on_every_field() -> None:
    """Another graph, input or version is another job."""
    keys = {job_key(*arguments) for arguments in [("a", {}, "1"), ("b", {}, "1"), ("a", {"x": 1}, "1"), ("a", {}, "2")]}
    assert len(keys) == 4
