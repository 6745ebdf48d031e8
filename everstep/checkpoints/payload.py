"""What must not enter the record: inputs no job can start from, and credentials, found by name or unmistakable form.

Passwords, cookies, sessions, payment data and keys are injected at run time, from the key store of the operating system
or of the CI; the record holds at most the name under which to find them. This is a net against mistakes, not a scanner:
a secret under an innocent name and of no known form passes.

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

import re
from collections.abc import Iterator
from typing import Any, cast

from everstep.checkpoints.canonical import MAX_DEPTH, child_path
from everstep.errors import PayloadInvalid, SecretInPayload

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


def check_input(value: object, allow_secret_keys: bool = False) -> None:
    """Refuse an input that no job can start from, or that seems to hold credentials.

    Args:
        value: The input, as JSON values.
        allow_secret_keys: As for `check_payload`.

    Raises:
        PayloadInvalid: It is null; to LangGraph `None` means to resume a thread.
        SecretInPayload: As of `check_payload`.
    """
    if value is None:
        raise PayloadInvalid(
            "the input is null, which tells LangGraph to resume a thread; no job can start from it",
            next_step="give what the graph starts with; for a graph that needs nothing: {}",
        )
    check_payload(value, allow_secret_keys)


def check_payload(value: object, allow_secret_keys: bool = False) -> None:
    """Refuse an input or an answer that seems to hold credentials.

    Args:
        value: The input or answer, as JSON values.
        allow_secret_keys: The caller has looked and takes the responsibility: nothing is refused.

    Raises:
        SecretInPayload: Names every suspect path, never a value; `ids["paths"]` lists them.
    """
    if allow_secret_keys:
        return
    paths = find_secrets(value)
    if paths:
        raise SecretInPayload(
            f"The input seems to hold credentials at {', '.join(paths)}; the record is no place for them.",
            next_step="Take them out and let the graph read them at run time from the environment or a key store, "
            "or pass --allow-secret-keys (allow_secret_keys=True) if they are none.",
            paths=paths,
        )


def find_secrets(value: object) -> list[str]:
    """The paths of what looks like a credential, by name or by form, in the order of the value.

    Below a suspect name nothing more is reported. A key that is itself a credential is shown as `<secret>`. Levels
    beyond `MAX_DEPTH` are not looked at; canonical JSON refuses them.

    Args:
        value: JSON values; other objects are passed over.
    """
    return list(_find(value, "$", MAX_DEPTH))


def names_secret(name: str) -> bool:
    """Whether a key of this name is meant to hold a credential; the rules are the module's."""
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
    """The text with every credential of an unmistakable form replaced by `***`; for messages of errors."""
    return _SECRET_REST.sub(REDACTED, text)


def _find(value: object, path: str, levels: int) -> Iterator[str]:
    if isinstance(value, str):
        if holds_secret(value):
            yield path
    elif isinstance(value, dict) and levels:
        named = _named_value(cast(dict[Any, Any], value))
        for key, member in cast(dict[Any, Any], value).items():
            name = str(key)
            if holds_secret(name):
                yield child_path(path, "<secret>")
            elif _can_be_secret(member, name) and (names_secret(name) or key == named):
                yield child_path(path, name)
            else:
                yield from _find(member, child_path(path, name), levels - 1)
    elif isinstance(value, list | tuple) and levels:
        for index, member in enumerate(cast(list[Any], value)):
            yield from _find(member, child_path(path, index), levels - 1)


def _named_value(value: dict[Any, Any]) -> str | None:
    """`value` in `{"name": "Authorization", "value": …}`: headers, cookies and variables are often written so."""
    name = value.get("name", value.get("key"))
    return "value" if isinstance(name, str) and names_secret(name) else None


def _can_be_secret(value: object, name: str) -> bool:
    if value is None or isinstance(value, bool):
        return False
    return not (isinstance(value, int | float) and name.lower().rstrip("0123456789").endswith(("token", "tokens")))


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
