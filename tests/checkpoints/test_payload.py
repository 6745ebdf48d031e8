"""The guard that keeps credentials out of the record."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.checkpoints.payload import check_payload, find_secrets
from everstep.credentials import SECRET_NAMES, names_secret
from everstep.errors import SecretInPayload

_LISTED = [
    *(name for name in SECRET_NAMES if name != "pwd"),
    "token",
    "access token",
    "auth token",
    "refresh token",
    "github token",
    "client secret",
    "secret access key",
    "user password",
]
_STYLES: list[Callable[[list[str]], str]] = [
    "_".join,
    "-".join,
    ".".join,
    " ".join,
    "".join,
    lambda words: words[0] + "".join(word.title() for word in words[1:]),
    lambda words: "".join(word.title() for word in words),
    lambda words: "-".join(word.title() for word in words),
    lambda words: "_".join(words).upper(),
    lambda words: "-".join(words).upper(),
    lambda words: "".join(words).upper(),
]


@given(st.sampled_from(_LISTED), st.sampled_from(_STYLES), st.sampled_from(["", "1", "_2"]))
def test_every_listed_name_is_found_in_every_style(name: str, style: Callable[[list[str]], str], number: str) -> None:
    """No casing and no separator hides a listed name, nor does a number after it."""
    assert names_secret(style(name.split()) + number)


@given(
    st.sampled_from(_LISTED),
    st.sampled_from(_STYLES[:4] + _STYLES[5:10]),
    st.sampled_from(["prod", "github", "x", "my old"]),
)
def test_a_word_before_a_listed_name_does_not_hide_it(
    name: str, style: Callable[[list[str]], str], before: str
) -> None:
    """`prod_api_key` is as much a key as `api_key`."""
    assert names_secret(style([*before.split(), *name.split()]))


@pytest.mark.parametrize(
    "name",
    [
        "max_tokens", "maxTokens", "token_count", "total_tokens", "tokenizer", "tokens", "inputTokens", "token_limit",
        "next_page_token", "nextPageToken", "nextpagetoken", "eos_token", "next_token", "idempotency_token",
        "secret_name", "api_key_env", "password_policy", "private_key_path", "authorization_url", "token_type",
        "cookie_consent", "passwordless", "pwd", "secretary", "author", "authors", "authority", "key", "keys",
        "public_key", "primary_key", "idempotency_key", "keyboard", "session", "passed", "passengers", "discard_number",
        "obsession_id", "cookiecutter", "access", "user", "tokenization", "monkey", "card", "number", "code", "",
        "_", "2", "ключ",
    ],
)  # fmt: skip
def test_innocent_names_pass(name: str) -> None:
    """Counts of model tokens, places in lists, and names that only speak about a secret are no credentials."""
    assert not names_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "db_pwd", "apikey", "APIKEY", "APIKey", "x-api-key", "OPENAI_API_KEY", "clientsecret", "AWS_SECRET_ACCESS_KEY",
        "secretaccesskey", "JSESSIONID", "phpSessionId", "Set-Cookie", "Proxy-Authorization", "passWord",
        "password_hash", "authorization_header", "githubToken", "accesstoken", "access_tokens", "backend_token",
        "token_value", "cvv2", "credit_card", "iban", "ssh_private_key", "webhookSecret", "id_token", "session-token",
    ],
)  # fmt: skip
def test_credentials_are_known_by_name(name: str) -> None:
    """Names met in the field, each in its usual spelling."""
    assert names_secret(name)


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN PRIVATE KEY-----\nMIIE",
        "-----BEGIN RSA PRIVATE KEY-----",
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "sk-" + "proj-abcDEF0123456789abcdef",
        "key: sk-" + "ant-api03-abcdefghij0123456789",
        "sk-" + "lf-01234567-89ab-cdef-0123-456789abcdef",
        "sk" + "_live_0123456789abcdefghij",
        "ghp" + "_0123456789abcdefghijABCDEFGHIJ012345",
        "github" + "_pat_0123456789abcdefghijAB_cd",
        "glpat" + "-0123456789abcdefghij",
        "AKIA" + "IOSFODNN7EXAMPLE",
        "AIza" + "0123456789abcdefghijABCDEFGHIJ01234",
        "xoxb" + "-0123456789-abcdef",
        "hf" + "_0123456789abcdefghijABCDEFGHIJ",
        "eyJ" + "hbGciOiJIUzI1NiJ9.eyJ" + "zdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
        "Authorization: Bearer " + "abcdef0123456789abcdef",
        "bearer " + "abcdef0123456789abcdef",
        "https://bot:" + "hunter2@example.org/acme/shop.git",
        "postgresql://user:" + "hunter2@127.0.0.1/db",
    ],
)
def test_unmistakable_forms_are_found_under_any_name(text: str) -> None:
    """A private key, a provider's token, a bearer header or a password in an address is found wherever it stands."""
    assert find_secrets({"note": ["fine", {"text": text}]}) == ["$.note[1].text"]


@pytest.mark.parametrize(
    "text",
    [
        "risk-assessment-of-the-whole-organisation-2026",
        "sk-learn-pipeline-for-classification",
        "The bearer of this message",
        "Bearer authentication is used here",
        "basic understanding of the matter",
        "-----BEGIN PUBLIC KEY-----",
        "-----BEGIN CERTIFICATE-----",
        "https://example.org:8080/path@2",
        "https://git@example.org/acme/shop.git",
        "git@github.com:acme/shop.git",
        "0123456789abcdef0123456789abcdef01234567",
        "ghp_short",
    ],
)
def test_ordinary_text_passes(text: str) -> None:
    """Prose, digests, addresses and certificates are no credentials."""
    assert find_secrets([text]) == []


def test_every_path_is_named_and_no_value() -> None:
    """One error names all suspect places, and the secrets themselves appear nowhere in it."""
    value = {
        "repo": "acme/shop",
        "auth": {"user": "ci", "password": "hunter2"},
        "steps": [{"env": {"API_KEY": "hunter3"}}, {"note": "ghp" + "_0123456789abcdefghijABCDEFGHIJ012345"}],
    }
    with pytest.raises(SecretInPayload) as caught:
        check_payload(value)
    paths = ["$.auth.password", "$.steps[0].env.API_KEY", "$.steps[1].note"]
    assert caught.value.ids == {"paths": paths}
    assert all(path in caught.value.message for path in paths)
    assert "hunter" not in str(caught.value)
    assert "ghp_" not in str(caught.value)


def test_a_key_that_is_a_secret_is_not_repeated() -> None:
    """A credential used as a key is reported without showing it."""
    assert find_secrets({"owners": {"ghp" + "_0123456789abcdefghijABCDEFGHIJ012345": "me"}}) == ["$.owners['<secret>']"]


def test_name_and_value_pairs_are_read_together() -> None:
    """Headers and variables written as `{"name": …, "value": …}` are judged by the name they give."""
    assert find_secrets([{"name": "Authorization", "value": "x"}, {"name": "Accept", "value": "x"}]) == ["$[0].value"]


def test_none_and_booleans_are_no_secrets() -> None:
    """An empty place and a yes-or-no question hold no credential."""
    assert find_secrets({"password": None, "api_key": None, "secret": False, "requires_authorization": True}) == []


def test_a_number_is_no_token_but_may_be_a_code() -> None:
    """`token: 512` counts something; `cvv: 123` is payment data."""
    assert find_secrets({"token": 512, "price_per_token": 0.1, "cvv": 123, "password": 1234}) == ["$.cvv", "$.password"]


def test_a_suspect_subtree_is_named_once() -> None:
    """Below a suspect name nothing more is reported."""
    assert find_secrets({"cookies": {"session_id": "a", "b": ["c"]}}) == ["$.cookies"]


def test_the_caller_can_take_the_responsibility() -> None:
    """With `allow_secret_keys` nothing is refused."""
    check_payload({"password": "hunter2"}, allow_secret_keys=True)


def test_a_value_that_contains_itself_ends() -> None:
    """A cycle does not hang the search."""
    value: dict[str, Any] = {"password": "x"}
    value["self"] = value
    assert "$.password" in find_secrets(value)


@pytest.mark.parametrize("unit", ["a.", "sk-", "-eyJ", "Bearer ", "-----BEGIN ", "http://", ":@", "AKIA"])
def test_long_hostile_text_is_searched_in_linear_time(unit: str) -> None:
    """Text that almost matches everywhere costs time in proportion to its length."""

    def cost(length: int) -> float:
        text = unit * (length // len(unit))
        start = time.process_time()
        find_secrets(text)
        return time.process_time() - start

    assert cost(400_000) < max(40 * cost(40_000), 0.5)
