"""Credentials in names and texts: how they are told, and how a text that leaves Everstep is rid of them.

A text (an error's message, a line of a log, a stack trace) loses what is told to be a credential by one of these:
- **Form**: `sk-…`, `ghp_…`, a private key, `Bearer …`, `user:password@` in an address, and their like.
- **Name**: what stands behind a suspect name, as in `api_key=…`, `"password": "…"` or `X-Auth-Token: …`.
- **Value**: what a variable of this process's environment with a suspect name holds, such as `LANGFUSE_SECRET_KEY`, and
  the values in `OTEL_EXPORTER_OTLP_HEADERS` and its like.

A secret that is none of these (a random word in a sentence) passes: this is a net against mistakes, not a proof.

Names are compared by their words, whatever the casing and the separators: `api_key`, `apiKey`, `API-Key`, `x.api.key`
and `APIKEY` are one name. A name is suspect when it holds one of `SECRET_NAMES`, or ends in a token that is a
credential:

- `token`, `access_token`, `githubToken` are. `max_tokens`, `token_count`, `tokenizer` are not: they speak of a model's
  tokens. Nor are `next_page_token`, `eos_token` and their like (`HARMLESS_TOKENS`): a place in a list, a mark in a
  text. The plural `tokens` is suspect only with a word such as `access` or `refresh` before it, and a number is no
  token.
- A name that ends in a word such as `name`, `env`, `file`, `url` or `policy` speaks about a secret and holds none:
  `secret_name`, `api_key_env` and `password_policy` pass.
- `pwd` alone is the working directory, `db_pwd` a password.
- None and booleans hold no secret, whatever they are called: `has_password` passes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from urllib.parse import unquote

SECRET_NAMES = (
    "password", "passwords", "passwd", "passphrase", "pwd", "secret", "secrets", "credential", "credentials",
    "authorization", "cookie", "cookies", "jwt", "otp", "api key", "api keys", "access key", "account key", "auth key",
    "encryption key", "master key", "private key", "secret key", "session key", "signing key", "ssh key", "session id",
    "credit card", "card number", "security code", "cvc", "cvv", "iban",
)  # fmt: skip
"""Names of credentials and payment data, word by word; `client_secret` and `secret_access_key` hold one of them."""

HARMLESS_TOKENS = frozenset(
    "bos cls continuation cursor end eos first idempotency last mask next nextpage pad padding page per previous resume"
    " sep special start startpage stop sync unk unknown".split()
)
"""The word before `token` that makes it a place in a list or a mark in a text, and no credential."""

_CREDENTIAL_TOKENS = frozenset(
    "access api auth bearer bot device oauth personal refresh secret service session user".split()
)
_SPEAKS_ABOUT = frozenset(
    "arn at banner consent count enabled endpoint env environment expires expiry file filename format in length limit"
    " name path policy ref reference required status strength ttl type uri url variable version".split()
)
_SECRET_WORDS = tuple(tuple(name.split()) for name in SECRET_NAMES)
_FLAT_STEMS = ("password", "passwd", "passphrase", "credential", "authorization")
_FLAT_ENDS = (*("".join(words) for words in _SECRET_WORDS if len(words) > 1), "secret", "secrets", "cookie", "jwt")

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_]+")

_SECRET_FORMS = re.compile(
    r"""
      -----BEGIN\ (?:[A-Z0-9]+\ ){0,3}PRIVATE\ KEY-----
    | (?<![A-Za-z0-9])(?:
          sk-(?=[A-Za-z_-]{0,100}[0-9])[A-Za-z0-9_-]{20,}        # OpenAI, Anthropic, Langfuse and others
        | (?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,}         # Stripe
        | whsec_[A-Za-z0-9+/=]{20,}
        | esk_[0-9a-f]{32,}                                # Everstep's own
        | gh[opsur]_[A-Za-z0-9]{30,}                       # GitHub
        | github_pat_[A-Za-z0-9_]{22,}
        | glpat-[A-Za-z0-9_-]{20,}                         # GitLab
        | (?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])         # AWS
        | AIza[A-Za-z0-9_-]{35}                            # Google
        | xox[abeoprs]-[A-Za-z0-9-]{10,}                   # Slack
        | hf_[A-Za-z0-9]{30,}                              # Hugging Face
        | npm_[A-Za-z0-9]{36}
        | pypi-AgE[A-Za-z0-9_-]{20,}
        | eyJ[A-Za-z0-9_-]{8,600}\.eyJ[A-Za-z0-9_-]{8,}\.  # JSON Web Token
        | (?i:bearer)\s{1,4}(?=[A-Za-z._~+/-]{0,100}[0-9])[A-Za-z0-9._~+/-]{16,}
        | (?i:basic)\s{1,4}(?=[A-Za-z+/]{0,100}[0-9])[A-Za-z0-9+/]{16,}={0,2}
        | [A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s/:@]*:[^\s/@]+@    # user:password@ in an address
      )
    """,
    re.VERBOSE,
)

REDACTED = "***"
_SECRET_REST = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|\Z)"
    rf"|(?x:{_SECRET_FORMS.pattern})[^\s\"'<>]*",
    re.DOTALL,
)
"""A credential with what hangs on to it: the body of a key, the signature of a token, the host of an address."""

_NAMED = re.compile(
    r"""
    (?:(?<![\w.-]) | (?<=(?<![\w.-])--))
    (?P<name>[A-Za-z_](?:[\w.-]{0,62}\w)?)
    (?:
        (?:=|\\?["']\ ?[:=]\ ?|["'],\ ?)[bru]?\\?(?P<quote>["'])  # name="…", "name": "…", ("name", "…")
      | (?P<plain>=)                                             # name=…, --name=…, also in an address
      | (?P<setting>\ =\ )                                       # name = …, as in a file of settings
      | (?P<header>:\ ?)                                         # Name: …, as a header, or a line of YAML
    )
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""A name and what parts it from its value, which is looked at behind suspect names alone: so the effort grows with the
length of a text, whatever stands in it."""
_VALUES = {
    # To the end of the line: a scheme and more, its parameters in quotes, or several cookies.
    "header": re.compile(r"""(?:[^\r\n"']|(?<==)"[^"\r\n]{0,4096}"){4,}"""),
    "line": re.compile(r"""[^\s"',\\]{4,}"""),
    "setting": re.compile(r"""[^\s"',;&(){}\[\]]{4,}+(?!\()"""),  # what is called is code
    "plain": re.compile(r"""[^\s"',;&)}\]]{4,}"""),
    '"': re.compile(r"""(?:(?!\\?").){4,4096}"""),
    "'": re.compile(r"""(?:(?!\\?').){4,4096}"""),
}
_HEADER = re.compile(r"(?i:authorization|cookie|[a-z]+(?:-[a-z]+)+)")
_LINE_START = re.compile(r"(?:^|\n|\\n)[ \t-]{0,40}\Z|\\\Z")  # also of a text within the text
_NO_VALUES = frozenset("none null true false optional required missing unknown invalid expired".split())
LONGEST_TEXT = 65_536
"""Characters of an error's text that are looked at, where a text of any length may come; of those that are kept."""
SHORTEST_SECRET = 8
"""Characters; a shorter value of a variable is not looked for, or half of every text would be gone."""


_SHORT_NAME = 64
"""Characters; what is found of a name that is no longer is remembered, as names of keys come again and again."""


def names_secret(name: str) -> bool:
    """Whether a key of this name is meant to hold a credential; the rules are the module's."""
    return _remembered(name) if len(name) <= _SHORT_NAME else _names_secret(name)


@lru_cache(maxsize=1024)
def _remembered(name: str) -> bool:
    return _names_secret(name)


def _names_secret(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    while words and words[-1].isdigit():
        words.pop()
    if not words or words[-1] in _SPEAKS_ABOUT or words == ["pwd"]:
        return False
    if any(tuple(words[at : at + len(known)]) == known for known in _SECRET_WORDS for at in range(len(words))):
        return True
    return _is_token(words) or any(map(_is_flat_name, words)) or "".join(words) in (*_FLAT_STEMS, *_FLAT_ENDS)


def holds_secret(text: str) -> bool:
    """Whether a text holds a credential of an unmistakable form: a private key, `sk-…`, `ghp_…`, a bearer header."""
    return _SECRET_FORMS.search(text) is not None


def without_secrets(text: str) -> str:
    """The text with everything told to be a credential replaced by `***`; the module says what that is."""
    for value in environment_secrets():
        if value in text:
            text = text.replace(value, REDACTED)
    return _without_named(_SECRET_REST.sub(REDACTED, text))


def environment_secrets(environment: Mapping[str, str] = os.environ) -> list[str]:
    """What the variables hold whose names say that it is secret; the longest first.

    Words of small letters alone are left out: `postgres` is a password on many machines, and a word in many texts.
    """
    values = {value for name in environment if _is_secret_variable(name) for value in _values(name, environment[name])}
    telling = [value for value in values if len(value) >= SHORTEST_SECRET and not (value.isalpha() and value.islower())]
    return sorted(telling, key=len, reverse=True)


@lru_cache(maxsize=4096)
def _is_secret_variable(name: str) -> bool:
    return names_secret(name) or name.upper().endswith("_HEADERS")


def _values(name: str, value: str) -> Iterator[str]:
    if not name.upper().endswith("_HEADERS"):
        yield from {value, *value.split()}
        return
    for header in value.split(","):  # OpenTelemetry: `name=value,name=value`, percent-encoded
        told = header.partition("=")[2].strip()
        if told:
            yield from (told, unquote(told), *unquote(told).split())


def _without_named(text: str) -> str:
    parts: list[str] = []
    done = at = 0
    while found := _NAMED.search(text, at):
        kind = found["quote"] or next(kind for kind in ("plain", "setting", "header") if found[kind])
        at = found.end("name")
        if not _is_suspect(found["name"]):  # what stands behind it may hold other names
            continue
        if kind == "header" and not _HEADER.fullmatch(found["name"]):
            if _LINE_START.search(text, max(found.start() - 41, 0), found.start()) is None:
                continue  # `Unexpected token: …` is a sentence
            kind = "line"
        value = _VALUES[kind].match(text, found.end())
        if value is None:
            continue
        at = value.end()
        if (told := value[0].lower()) not in _NO_VALUES and not told.replace(".", "").isdigit():
            parts += [text[done : value.start()], REDACTED]
            done = at
    return "".join([*parts, text[done:]])


@lru_cache(maxsize=4096)
def _is_suspect(name: str) -> bool:
    return names_secret(name)


def _is_token(words: list[str]) -> bool:
    last, qualifier = words[-1], words[-2] if len(words) > 1 else ""
    if last == "token":
        return qualifier not in HARMLESS_TOKENS
    if last == "tokens":
        return qualifier in _CREDENTIAL_TOKENS
    if last in ("string", "value") and qualifier == "token":
        return True
    if last.endswith("token"):
        return last.removesuffix("token") not in HARMLESS_TOKENS
    return last.endswith("tokens") and last.removesuffix("tokens") in _CREDENTIAL_TOKENS


def _is_flat_name(word: str) -> bool:
    """Names written as one word: `apikey`, `clientsecret`, `secretaccesskey`."""
    return word.endswith(_FLAT_ENDS) or (any(stem in word for stem in _FLAT_STEMS) and not word.endswith("less"))
