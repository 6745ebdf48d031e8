"""The tables of docs/retries.md, made from the rules. `python -m tests.docs.retry_tables` writes them into the page."""

from __future__ import annotations

import re
from pathlib import Path

from everstep.runtime.rules.codes import CODES, CODES_WITHOUT_STATUS
from everstep.runtime.rules.grpc_status import GRPC
from everstep.runtime.rules.loaded import LIBRARIES
from everstep.runtime.rules.python import BUILTINS
from everstep.runtime.rules.rule import Rule
from everstep.runtime.rules.sqlstate import SQLSTATES
from everstep.runtime.rules.status import status_rule

PAGE = Path(__file__).parents[2] / "docs" / "retries.md"
BLOCK = re.compile(r"(?P<begin><!-- table: (?P<name>[\w ,.-]+) -->\n)(?P<body>.*?)(?P<end><!-- end -->)", re.DOTALL)
MODULES = {
    "httpx, httpx2": ["httpx"],
    "requests": ["requests.exceptions"],
    "urllib3": ["urllib3.exceptions"],
    "aiohttp": ["aiohttp"],
    "http.client": ["http.client"],
    "openai": ["openai"],
    "anthropic": ["anthropic"],
    "google-api-core": ["google.api_core.exceptions"],
    "google-auth": ["google.auth.exceptions"],
    "google-genai": ["google.genai.errors"],
    "botocore": ["botocore.exceptions"],
    "sqlalchemy": ["sqlalchemy.exc"],
    "psycopg": ["psycopg"],
    "langchain": [module for module in LIBRARIES if module.startswith("langchain")],
    "langgraph": ["langgraph.errors", "langgraph_sdk.errors"],
}


def tables() -> dict[str, str]:
    """Each table of the page by name."""
    made = {
        name: _table("type", [(f"`{kind}`", rule) for module in modules for kind, rule in LIBRARIES[module].items()])
        for name, modules in MODULES.items()
    }
    made["python"] = _table("type", [(f"`{kind.__name__}`", rule) for kind, rule in BUILTINS.items()])
    made["status"] = _table("status", [(str(status), status_rule(status)) for status in _STATUSES])
    made["sqlstate"] = _table(
        "SQLSTATE", [(f"`{code if len(code) == 5 else f'{code}…'}`", rule) for code, rule in SQLSTATES.items()]
    )
    made["grpc"] = _table("status", [(f"`{name}`", rule) for name, rule in GRPC.items()])
    for library, codes in CODES.items():
        made[f"codes of {library}"] = _table("code", [(f"`{code}`", rule) for code, rule in codes.items()])
    for library, codes in CODES_WITHOUT_STATUS.items():
        made[f"stream codes of {library}"] = _table("code", [(f"`{code}`", rule) for code, rule in codes.items()])
    return made


_STATUSES = (400, 401, 402, 403, 404, 407, 408, 409, 422, 425, 429, 499, 500, 501, 502, 503, 504, 505, 529)


def _table(what: str, rows: list[tuple[str, Rule]]) -> str:
    grouped: dict[tuple[str, ...], list[str]] = {}
    for name, rule in rows:
        reason = re.sub(r" \(\d{3}\)", "", rule.reason)
        reason = f"its cause decides; else: {reason}" if rule.wraps else reason
        key = (rule.kind, "yes" if rule.surely_not_sent else "no", f"`{rule.outage}`" if rule.outage else "", reason)
        grouped.setdefault(key, []).append(name)
    lines = [f"| {what} | job | surely not sent | outage | why |", "|---|---|---|---|---|"]
    lines += [f"| {', '.join(dict.fromkeys(names))} | {' | '.join(key)} |" for key, names in grouped.items()]
    return "\n".join(lines) + "\n"


def with_tables(text: str) -> str:
    """The page with each table as the rules have it."""
    made = tables()
    return BLOCK.sub(lambda block: block["begin"] + made[block["name"]] + block["end"], text)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
