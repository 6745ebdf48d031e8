"""`everstep quote`: what a generation would cost."""

from __future__ import annotations

from tests.cli.folder import Folder, is_refused
from tests.support.prices import price_list


def test_a_price_is_told_with_what_it_is_made_of(folder: Folder) -> None:
    """For people line by line, for scripts as JSON with whole numbers; an option's value is JSON, or else text."""
    price_list(folder.path)
    asked = (
        "quote",
        "clip-1",
        "--duration",
        "4",
        "--resolution",
        "1080p",
        "--option",
        "audio=true",
        "--option",
        "seed=x",
    )
    view = folder.json(*asked, "--prices", "prices.toml")
    assert (view["amount"], view["currency"], view["decimals"], view["version"]) == (75, "EUR", 2, "2026-11")
    assert view["options"] == {"audio": True, "seed": "x"}
    shown = folder.run(*asked, "--prices", "prices.toml").out.splitlines()
    assert shown[0] == "0.75 EUR  clip-1, price list 2026-11"
    assert shown[-1].split() == ["audio", "true", "×", "1.25", "0.75"]


def test_what_the_list_does_not_have_is_refused(folder: Folder) -> None:
    """With what is allowed; a list that is wrong is a fault of the configuration, by place."""
    file = price_list(folder.path)
    asked = ("quote", "clip-1", "--prices", "prices.toml")
    is_refused(folder.run(*asked, "--duration", "3"), 64, "options_invalid")
    is_refused(folder.run(*asked, "--duration", "long"), 64, "usage")
    is_refused(folder.run(*asked, "--option", "audio"), 64, "usage")
    is_refused(folder.run("quote", "clip-1"), 64, "usage")
    assert "2 to 10 seconds in steps of 2" in folder.run(*asked, "--duration", "3").err
    file.write_text(file.read_text().replace("per_second", "per_sec"))
    ran = folder.run(*asked, "--duration", "4")
    is_refused(ran, 78, "price_list_invalid")
    assert "models.clip-1.per_sec: there is no such field" in ran.err
    is_refused(folder.run("quote", "clip-1", "--prices", "nowhere.toml"), 78, "price_list_invalid")
