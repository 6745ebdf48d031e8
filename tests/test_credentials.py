"""A text that leaves Everstep loses what is told to be a credential: by form, by name, or as a variable's value."""

from __future__ import annotations

import time

import pytest

from everstep.credentials import environment_secrets, without_secrets


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("key sk-abcdefghij0123456789xyz refused", "key *** refused"),
        ("psycopg://user:p4ss@host/db is away", "*** is away"),
        ("GET /v1?key=1&access_token=randomword&x=1", "GET /v1?key=1&access_token=***&x=1"),
        ("connect(host='a', password='correct horse')", "connect(host='a', password='***')"),
        ('{"x-api-key": "h1ghsecret"}', '{"x-api-key": "***"}'),
        ("Headers({'host': 'x', 'authorization': 'Bearer abcd'})", "Headers({'host': 'x', 'authorization': '***'})"),
        ("[(b'X-Auth-Token', b'abcdefg'), (b'Accept', b'text')]", "[(b'X-Auth-Token', b'***'), (b'Accept', b'text')]"),
        ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "Authorization: ***"),
        ("set-cookie: sid=abcdef123", "set-cookie: ***"),
        ("Authorization: ApiKey abcDEF1234567\nHost: x", "Authorization: ***\nHost: x"),
        ('authorization: Digest username="u", response="abcdef"', "authorization: ***"),
        ("Cookie: theme=dark; session=sessABC1234567", "Cookie: ***"),
        ("Authorization:Bearer abc\n", "Authorization:***\n"),
        ("X-Api-Key:abcDEF1234 was refused", "X-Api-Key:***"),
        ("bad:\n  password: pwABC1234567\n  api_key = abcdefgh\n", "bad:\n  password: ***\n  api_key = ***\n"),
        (
            r"ValueError('bad:\n  password: pwABC\n  api_key: abcd')",
            r"ValueError('bad:\n  password: ***\n  api_key: ***')",
        ),
        ("- client_secret: abcdefgh", "- client_secret: ***"),
        ("run --api-key=abcDEF1234 --verbose", "run --api-key=*** --verbose"),
        ("aws_secret_access_key = abcd/efgh", "aws_secret_access_key = ***"),
        (r'"{\"x-api-key\": \"h1ghsecret\", \"n\": 1}"', r'"{\"x-api-key\": \"***\", \"n\": 1}"'),
        ("ValueError: api_key=abcdefgh", "ValueError: api_key=***"),
        ("""{"error": "wrong password='abcdefgh'"}""", """{"error": "wrong password='***'"}"""),
    ],
)
def test_credentials_go(text: str, left: str) -> None:
    """What has a known form goes, and so does what stands behind a suspect name, whatever it looks like."""
    assert without_secrets(text) == left


@pytest.mark.parametrize(
    "text",
    [
        "Unexpected token: identifier",
        "invalid password: too short",
        "max_tokens=100000 and next_token=abcdefgh",
        "def connect(password=None, has_token=True)",
        "    password = get_password(user)",
        "job 0198 was taken over; this run's late writes change nothing",
        "api_key_env='OPENAI_API_KEY'",
    ],
)
def test_words_stay(text: str) -> None:
    """A sentence about tokens and passwords, a number, and a name that only speaks about a secret are left alone."""
    assert without_secrets(text) == text


def test_values_of_secret_variables_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment holds under a suspect name is found in any text, also a header of OpenTelemetry's."""
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "plain words 1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20cGs6c2s=,x-team=Zebra-Crossing")
    monkeypatch.setenv("EVERSTEP_WEBHOOK_SECRET", "whsec_Q29ycmVjdEhvcnNl whsec_QmF0dGVyeVN0YXBsZQ==")
    text = "said: plain words 1, cGs6c2s=, Zebra-Crossing, Q29ycmVjdEhvcnNl whsec_QmF0dGVyeVN0YXBsZQ=="
    assert without_secrets(text) == "said: ***, ***, ***, Q29ycmVjdEhvcnNl ***"


def test_short_values_and_words_are_no_secrets() -> None:
    """A password that is a word of many texts, or short, is not looked for, or every text would be full of holes."""
    assert environment_secrets({"PGPASSWORD": "postgres", "API_TOKEN": "on", "HOME": "/home/someone"}) == []
    assert environment_secrets({"A_SECRET": "Twelve12", "B_SECRET": "Twelve12345"}) == ["Twelve12345", "Twelve12"]


@pytest.mark.parametrize(
    "piece",
    [
        "x",
        "a=b/",
        "k=",
        'Cookie: a="',
        "api_key: ",
        "api_key = ",
        "\nkey: ",
        "a=b\x01",
        "password=",
        "a-",
        "a='",
        "'a': ",
        "a: ",
        "://",
        "sk-",
        "'a', ",
        "aGk9",
    ],
)
def test_no_text_takes_long(piece: str) -> None:
    """The time grows with the length of a text, also of one made to be slow: thirty seconds are far beyond it."""
    began = time.monotonic()
    without_secrets(piece * (1_000_000 // len(piece)))
    assert time.monotonic() - began < 30
