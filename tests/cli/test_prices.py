"""`everstep prices`: what models cost, and who says so."""

from __future__ import annotations

import json
from importlib.metadata import version

from tests.cli.folder import Folder, is_refused


def test_a_known_model(folder: Folder) -> None:
    """Its prices, the source and its version; as JSON for scripts."""
    view = folder.json("prices", "gpt-4o")
    told = {name: view[name] for name in ("model", "source", "version", "provider")}
    assert told == {
        "model": "gpt-4o",
        "source": "genai-prices",
        "version": version("genai-prices"),
        "provider": "openai",
    }
    assert set(view["per_million"]) >= {"input", "output", "cache_read"}
    shown = folder.run("prices", "gpt-4o").out
    assert f"of genai-prices {view['version']}" in shown
    assert f"{view['per_million']['output']:g} USD for a million tokens" in shown
    assert folder.json("prices", "gemini-2.5-pro")["long_prompts"]["input"]


def test_the_users_price_goes_first(folder: Folder) -> None:
    """What stands in everstep.toml is what is told, and listed first; the table has the rest."""
    (folder.path / "everstep.toml").write_text(
        '[prices."gpt-4o"]\ninput = 1.5\noutput = 2\ncache_read = 0.5\n[prices."ours"]\ninput = 0\noutput = 0\n'
    )
    view = folder.json("prices", "gpt-4o")
    assert (view["source"], view["version"]) == ("everstep.toml", None)
    assert view["per_million"] == {"input": 1.5, "output": 2, "cache_read": 0.5}
    assert folder.run("prices", "gpt-4o").out.startswith("gpt-4o: everstep.toml\n")
    listed = folder.json("prices")
    assert [one["model"] for one in listed[:2]] == ["gpt-4o", "ours"]
    assert len(listed) > 500
    of_anthropic = folder.run("prices", "--provider", "anthropic").out.splitlines()
    assert all("  anthropic  input " in line for line in of_anthropic)


def test_an_unknown_model_is_told(folder: Folder) -> None:
    """With names that are close, and how to give its price."""
    is_refused(folder.run("prices", "gpt-4p"), 66, "price_not_found")
    ran = folder.run("prices", "gpt-4o", "--provider", "ollama", "--json")
    error = json.loads(ran.err)["error"]
    assert (error["code"], error["model"]) == ("price_not_found", "gpt-4o")
    assert '[prices."gpt-4o"]' in error["next_step"]
    is_refused(folder.run("prices", "--config", "nowhere/langgraph.json", "gpt-4p"), 66, "price_not_found")
