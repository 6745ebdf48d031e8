"""Which paths are high-risk: changes under them need a person, whatever an agent reports.

Patterns follow the rules people know from `.gitignore`, without negation: a pattern without a slash matches a file or
folder of that name anywhere; a pattern with one starts at the top of the repository; `*` and `?` stay within a name,
`**` crosses folders; a folder that matches covers everything in it. Case does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

AUTHENTICATION = (
    "auth", "auth.*", "auth_*", "*_auth", "*_auth.*", "authn*", "authz*", "authenticat*", "authoriz*", "oauth*",
    "login*", "sso", "sso.*", "saml*", "jwt*", "password*", "credential*", "secret", "secrets", "secret.*", "secrets.*",
    "permission*", "rbac*", "security", "security.*",
)  # fmt: skip
BILLING = (
    "billing*", "payment*", "payout*", "invoic*", "checkout.*", "refund*", "subscription*", "stripe*", "paypal*",
    "pricing*",
)  # fmt: skip
DEPLOYMENT = (
    ".github/workflows", ".github/actions", ".gitlab-ci.yml", ".circleci", "azure-pipelines*.yml", "jenkinsfile*",
    "procfile", "dockerfile*", "*.dockerfile", "docker-compose*", "compose.yaml", "compose.yml", "deploy", "deploy.*",
    "deployment*", "helm", "k8s", "kubernetes", "terraform", "*.tf", "*.tfvars", "ansible",
)  # fmt: skip

HIGH_RISK_PATHS: tuple[str, ...] = AUTHENTICATION + BILLING + DEPLOYMENT
"""What counts as high-risk unless a job says otherwise."""


def high_risk(paths: Iterable[str], patterns: Sequence[str] = HIGH_RISK_PATHS) -> list[str]:
    """The paths that match a pattern, in their order.

    Args:
        paths: Paths inside a repository, with forward slashes.
        patterns: What is high-risk; an empty list says that nothing is.
    """
    tests = [_compiled(pattern) for pattern in patterns]
    return [path for path in paths if any(test.fullmatch(path) for test in tests)]


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    body = pattern.strip("/")
    anchored = "/" in pattern.rstrip("/")
    expression = "".join(_part(part) for part in re.split(r"(\*\*/|/\*\*$|\*|\?|\[!?[^/\]]+\])", body) if part)
    return re.compile(("" if anchored else "(?:.*/)?") + expression + "(?:/.*)?", re.IGNORECASE | re.DOTALL)


def _part(part: str) -> str:
    match part:
        case "**/":
            return "(?:.*/)?"
        case "/**":
            return "/.*"
        case "*":
            return "[^/]*"
        case "?":
            return "[^/]"
        case _ if part.startswith("[") and len(part) > 2:
            inner = part[1:-1].replace("\\", "\\\\")
            return f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
        case _:
            return re.escape(part)
