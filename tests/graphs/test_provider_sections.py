"""`[providers.NAME]` of `everstep.toml`: what it makes, and what is said of mistakes."""

from __future__ import annotations

import shutil
from fractions import Fraction
from pathlib import Path

import pytest

from everstep.errors import ConfigInvalid, EventRefused, ProviderNotFound, ProviderUnusable
from everstep.graphs.loader import GraphCatalogue
from everstep.graphs.policies import Policies, read_policies
from everstep.graphs.provider_faults import usable_providers
from everstep.graphs.provider_sections import providers_of
from everstep.nodes.providers.http import HttpProvider
from everstep.nodes.providers.openai import OpenAIProvider
from everstep.nodes.providers.registry import Providers
from tests.support.simulated import FOLDER

BARE = """
import os
from everstep.nodes.provider import Provider

class Bare(Provider):
    async def submit(self, request, *, key): ...
    async def query(self, provider_task_id): ...

class Wants(Bare):
    def __init__(self, name): ...

class Good(Bare):
    def __init__(self, name):
        os.environ["A_KEY_THAT_IS_SET_ELSEWHERE"]

class Deaf:
    def __init__(self, name): ...
    async def submit(self, request, *, key): ...

number = 3
"""
HTTP = 'use = "http"\nfile = "provider.toml"\nbase_url = "https://api.example.com"\n'


def read(folder: Path, text: str) -> Providers:
    """The providers of an `everstep.toml`."""
    shutil.copy(FOLDER / "provider.toml", folder)
    (folder / "everstep.toml").write_text(text)
    return providers_of(read_policies(folder / "langgraph.json").providers, folder)


def test_what_sections_make(tmp_path: Path) -> None:
    """Providers of each kind, and how they are used; made when they are needed, once."""
    text = f"""
[providers.film]
{HTTP}rate = "300/m"
burst = 10
poll_first = 1
poll_most = 60
prices = "prices.toml"
webhook = {{kind = "hmac-sha512", secret_env = "S", header = "X-Signature"}}

[providers.ai]
use = "openai"
work = "responses"
"""
    providers = read(tmp_path, text)
    entry = providers.entry("film")
    assert (entry.rate, entry.burst, entry.poll_first_ms, entry.poll_most_ms) == (Fraction(5), 10, 1000, 60_000)
    assert entry.prices == tmp_path / "prices.toml"
    film = providers.get("film")
    assert isinstance(film, HttpProvider)
    assert isinstance(providers.get("ai"), OpenAIProvider)
    assert providers.get("film") is film
    assert (film.findable, film.idempotent, film.settle_s) == (True, False, 40.0)


def test_a_class_of_ones_own(tmp_path: Path) -> None:
    """It is called with its name and the options."""
    own = "from everstep.nodes.provider import Provider\n"
    own += "class Own(Provider):\n    def __init__(self, name, speed):\n        self.name, self.speed = name, speed\n"
    (tmp_path / "own_provider.py").write_text(own)
    providers = read(tmp_path, '[providers.own]\nuse = "./own_provider.py:Own"\noptions = {speed = 3}\n')
    provider = providers.get("own")
    assert (provider.name, provider.speed, provider.findable) == ("own", 3, False)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("use", "said"),
    [
        ("./missing.py:Own", "FileNotFoundError: there is no file"),
        ("./broken.py:Own", "ZeroDivisionError"),
        ("./broken_options.py:Own", "TypeError"),
        ("./broken_options.py:Other", "has no 'Other'"),
        ("./broken_options.py:nothing", "it has no submit"),
        ("./bare.py:Bare", "called with name"),
    ],
)
def test_a_class_that_cannot_be_made(tmp_path: Path, use: str, said: str) -> None:
    """What is wrong is named when it is needed; other providers work."""
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "broken_options.py").write_text("class Own:\n    pass\n\ndef nothing(name):\n    return name\n")
    (tmp_path / "bare.py").write_text(BARE)
    providers = read(tmp_path, f'[providers.own]\nuse = "{use}"\n')
    with pytest.raises(ProviderUnusable) as caught:
        providers.get("own")
    assert said in caught.value.message
    assert "Graph" not in caught.value.message


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ('use = "./missing.py:Own"\n', "providers.x.use: the provider x (./missing.py:Own) cannot be made: FileNot"),
        ('use = "./bare.py:Missing"\n', "has no 'Missing'"),
        ('use = "./bare.py:Bare"\n', "called with name"),
        ('use = "./bare.py:Wants"\noptions = {speed = 3}\n', "called with name, speed: got an unexpected"),
        ('use = "./bare.py:number"\n', "it is no class"),
        ('use = "./bare.py:Deaf"\n', "it has no query"),
        (HTTP + 'prices = "nowhere.toml"\n', "providers.x.prices: "),
        (HTTP + 'prices = "."\n', "it is a folder"),
        (HTTP + 'prices = "provider.toml"\n', "version: it is missing"),
    ],
)
def test_what_a_section_names_is_looked_at_when_a_worker_or_server_starts(
    tmp_path: Path, section: str, said: str
) -> None:
    """A file or class that cannot be used is named with its place; nothing is made, so a key may be missing there."""
    (tmp_path / "bare.py").write_text(BARE)
    (tmp_path / "langgraph.json").write_text('{"graphs": {"a": "./bare.py:number"}}')
    read(tmp_path, f"[providers.x]\n{section}")
    sections = read_policies(tmp_path / "langgraph.json").providers
    with pytest.raises(ConfigInvalid) as caught:
        usable_providers(sections, GraphCatalogue.from_config(tmp_path / "langgraph.json"))
    assert said in caught.value.message
    assert "Graph" not in caught.value.message
    good = {
        "x": sections["x"].model_copy(update={"use": "./bare.py:Good", "prices": None, "file": None, "options": {}})
    }
    assert usable_providers(good, GraphCatalogue.from_config(tmp_path / "langgraph.json")).names == ["x"]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ('use = "http"\n', "needs `file`"),
        ('use = "http"\nfile = "provider.toml"\n', "needs `base_url`"),
        ('use = "openai"\n', "needs `work`"),
        ('use = "openai"\nwork = "poems"\n', "providers.x.work: it may be 'responses' or 'videos'"),
        ('use = "magic"\n', "use is"),
        (HTTP + 'work = "videos"\n', "work says nothing"),
        ('use = "./a.py:A"\nbase_url = "https://a.example"\n', "goes into options"),
        (HTTP + 'rate = "fast"\n', "5/s"),
        (HTTP + 'rate = "0/s"\n', "5/s"),
        (HTTP + "burst = 0\n", "providers.x.burst"),
        (HTTP + "poll_first = 60\npoll_most = 1\n", "poll_most is shorter"),
        (
            HTTP + 'webhook = {kind = "token", secret_env = "S"}\n',
            "providers.x.webhook: 'kind' may be 'standard-webhooks'",
        ),
        (HTTP + 'webhook = {kind = "hmac-sha256", secret_env = "S"}\n', "header"),
        (HTTP + 'api_key = "sk-1234567890"\n', "providers.x.api_key"),
        (HTTP.replace("https://", "https://user:pw@"), "credentials"),
        (HTTP.replace("https://", "ftp://"), "https://"),
        (HTTP.replace("api.", "api ."), "no spaces"),
        (HTTP.replace("api.example.com", ""), "names a host"),
        (HTTP.replace("api.example.com", ":8090"), "names a host"),
        (HTTP.replace("api.example.com", "a..b"), "names a host"),
        (HTTP.replace("example.com", "example.com:x"), "a port that is none"),
        (HTTP.replace('"provider.toml"', '""'), "providers.x.file: it is empty"),
        (HTTP + 'prices = ""\n', "providers.x.prices: it is empty"),
        (HTTP + 'api_key_env = "A B"\n', "providers.x.api_key_env: a variable's name is letters"),
        (HTTP + "burst = true\n", "providers.x.burst: it is no whole number"),
        (HTTP + "timeout = 0\n", "providers.x.timeout: it has to be more than 0"),
        (HTTP + 'webhook = {secret_env = "S"}\n', "providers.x.webhook: it has to say 'kind'"),
        (
            HTTP + 'webhook = {kind = "hmac-sha256", secret_env = "S", header = "X-S", tolerance = 9}\n',
            "tolerance says",
        ),
        (HTTP.replace("https://", "http://") + 'api_key_env = "K"\n', "read on the way"),
        (HTTP.replace("provider.toml", "nowhere.toml"), "no such file"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, section: str, said: str) -> None:
    """Each with its place and what could be there; no secret that stands where none may is repeated."""
    with pytest.raises(ConfigInvalid) as caught:
        read(tmp_path, f"[providers.x]\n{section}")
    assert said in caught.value.message + caught.value.next_step
    assert "sk-1234567890" not in str(caught.value)
    raw = ("Value error", "Input ", "String should", "Field required", "Extra inputs")
    assert not any(words in caught.value.message for words in raw)


def test_a_name_is_part_of_an_address(tmp_path: Path) -> None:
    """A name that could not stand in `/webhooks/NAME` is refused."""
    with pytest.raises(ConfigInvalid, match="providers"):
        read(tmp_path, f'[providers."a/b"]\n{HTTP}')


def test_an_address_on_this_machine_may_be_http(tmp_path: Path) -> None:
    """A key may go to this machine unencrypted, and nowhere else."""
    for host in ("127.0.0.1:8090", "localhost", "[::1]:1"):
        text = HTTP.replace("https://api.example.com", f"http://{host}") + 'api_key_env = "K"\n'
        assert read(tmp_path, f"[providers.x]\n{text}").names == ["x"]


def test_sections_reach_an_isolated_job(tmp_path: Path) -> None:
    """What a worker read is what its jobs' own processes get."""
    shutil.copy(FOLDER / "provider.toml", tmp_path)
    hook = 'webhook = {kind = "standard-webhooks", secret_env = "S"}\n'
    (tmp_path / "everstep.toml").write_text(f'[providers.x]\n{HTTP}rate = "1/s"\n{hook}')
    policies = read_policies(tmp_path / "langgraph.json")
    assert Policies.model_validate_json(policies.model_dump_json()) == policies


def test_a_provider_that_is_not_there_is_guessed(tmp_path: Path) -> None:
    """The nearest name is told; and a provider without a webhook takes no message."""
    providers = read(tmp_path, f"[providers.films]\n{HTTP}")
    with pytest.raises(ProviderNotFound) as caught:
        providers.get("film")
    assert "Did you mean films?" in caught.value.next_step
    with pytest.raises(EventRefused, match="no webhook"):
        providers.webhook("films", {}, b"{}", now_ms=0)
