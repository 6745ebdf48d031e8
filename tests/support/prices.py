"""A price list, as a file."""

from __future__ import annotations

from pathlib import Path

PRICES = """\
version = "2026-11"
currency = "EUR"

[models."clip-1"]
per_second = 0.10
duration = { least = 2, most = 10, step = 2 }
outputs = 4
resolutions = { 720p = 1, 1080p = 1.5 }
options.audio = { false = 1, true = 1.25 }
free = ["seed"]
"""


def price_list(folder: Path) -> Path:
    """The list in a folder."""
    file = folder / "prices.toml"
    file.write_text(PRICES)
    return file
