"""Which paths need a person."""

import pytest

from everstep.nodes.high_risk import HIGH_RISK_PATHS, high_risk


@pytest.mark.parametrize(
    "path",
    [
        "auth/__init__.py",
        "src/shop/auth/tokens.py",
        "httpx/_auth.py",
        "app/OAuth2.py",
        "accounts/login.html",
        "core/permissions.py",
        "billing.py",
        "src/payments/stripe_client.py",
        "lib/refunds.rb",
        ".github/workflows/release.yml",
        "Dockerfile",
        "services/api/Dockerfile.prod",
        "infra/main.tf",
        "deploy/helm/values.yaml",
        "Jenkinsfile",
    ],
)
def test_authentication_billing_and_deployment_are_high_risk(path: str) -> None:
    """Paths of authentication, billing and deployment need a person, in any folder and any case."""
    assert high_risk([path]) == [path]


@pytest.mark.parametrize(
    "path",
    [
        "author.py",
        "docs/authors.rst",
        "src/checkout_counter/readme.rst",
        "sqlalchemy/orm/session.py",
        "tests/test_tokens.py",
        "rich/console.py",
        "unauthenticity.py",
        "deployer_notes.txt",
    ],
)
def test_words_that_only_look_alike_are_not_high_risk(path: str) -> None:
    """An author is no authentication, and a session of a database no login."""
    assert high_risk([path]) == []


def test_no_installed_look_alikes_in_a_plain_package() -> None:
    """The order of the paths is kept, and only what matches is named."""
    paths = ["b/auth/x.py", "a.py", "a/billing.py"]
    assert high_risk(paths) == ["b/auth/x.py", "a/billing.py"]


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("vault", "a/b/vault/c.py", True),
        ("vault", "vault", True),
        ("vault", "vaults/c.py", False),
        ("*.pem", "keys/server.pem", True),
        ("*.pem", "server.pem.txt", False),
        ("src/core", "src/core/deep/x.py", True),
        ("src/core", "lib/src/core/x.py", False),
        ("/setup.py", "setup.py", True),
        ("/setup.py", "a/setup.py", False),
        ("src/*/api.py", "src/a/api.py", True),
        ("src/*/api.py", "src/a/b/api.py", False),
        ("src/**/api.py", "src/api.py", True),
        ("src/**/api.py", "src/a/b/api.py", True),
        ("**/api.py", "a/b/api.py", True),
        ("docs/**", "docs/a/b.md", True),
        ("docs/**", "docs", False),
        ("v?.py", "v1.py", True),
        ("v?.py", "v10.py", False),
        ("v[0-4].py", "v3.py", True),
        ("v[!0-4].py", "v3.py", False),
        ("a.b", "axb", False),
        ("docs/", "x/docs/a.md", True),
    ],
)
def test_patterns_follow_the_rules_of_gitignore(pattern: str, path: str, matches: bool) -> None:
    """A name matches anywhere, a path from the top, stars as in `.gitignore`, and a folder covers what is in it."""
    assert bool(high_risk([path], [pattern])) is matches


def test_an_empty_list_says_that_nothing_is_high_risk() -> None:
    """A job can say that none of its paths needs a person."""
    assert high_risk(["auth/a.py", "billing.py"], []) == []
    assert high_risk(["auth/a.py"], HIGH_RISK_PATHS)
