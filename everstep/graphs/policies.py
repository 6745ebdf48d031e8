"""Reading `everstep.toml`, which stands beside `langgraph.json`: limits, budgets and acceptance by graph, and services.

The file is optional. A field it does not have is refused by name, because a limit that is misspelled limits nothing.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from everstep.checkpoints.admission import Limits
from everstep.checkpoints.jobs import DEFAULT_MAX_ATTEMPTS, DEFAULT_PRIORITY
from everstep.checkpoints.policy import Acceptance, Budget, JobPolicy
from everstep.checkpoints.schedule import Definition, JobOptions, Missed, Overlap
from everstep.errors import ConfigInvalid, EverstepError, PayloadInvalid
from everstep.graphs import event_sections
from everstep.graphs.event_sections import TriggerSection, WebhooksSection
from everstep.graphs.provider_sections import NAME as PROVIDER_NAME
from everstep.graphs.provider_sections import ProviderSection
from everstep.nodes.mistakes import first_of, spelled

FILE_NAME = "everstep.toml"
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"
"""Names of schedules and triggers."""
Name = Annotated[str, AfterValidator(spelled(NAME, "a name is letters, digits, ., - and _, 100 at most"))]
ProviderName = Annotated[
    str, AfterValidator(spelled(PROVIDER_NAME, "a provider's name is small letters, digits, - and _, 63 at most"))
]

AtLeastOne = Annotated[int, Field(ge=1)]


def _address(given: str) -> str:
    parts = urlsplit(given)
    if not parts.hostname or parts.port == 0:  # which raises ValueError for a port that is none
        raise ValueError("it names no host")
    return given


def _command(given: str) -> str:
    if not shlex.split(given):  # which raises ValueError for a quotation that does not end
        raise ValueError("it is empty; leave it out, and one of the jobs that wait tries the service")
    return given


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class BudgetSection(_Strict):
    """`[graphs.NAME.budget]`; see `policy.Budget`."""

    steps: int | None = None
    seconds: float | None = None
    tokens: int | None = None
    cost: float | None = None


class AcceptanceSection(_Strict):
    """`[graphs.NAME.acceptance]`; see `policy.Acceptance`."""

    verify: list[str] = []
    workdir: str = "."
    timeout: float = 600.0
    returns: int = 2
    feedback: str = "messages"
    high_risk: list[str] | None = None
    base: str | None = None


class GraphSection(_Strict):
    """`[graphs.NAME]`.

    Attributes:
        concurrency: Most jobs of this graph at once, over all workers.
        services: Names of the services its jobs need.
        budget: What each job may use unless it says otherwise.
        acceptance: What must hold before each job is done unless it says otherwise.
    """

    concurrency: AtLeastOne | None = None
    services: list[str] = []
    budget: BudgetSection | None = None
    acceptance: AcceptanceSection | None = None


class ServiceSection(_Strict):
    """`[services."NAME"]`.

    Attributes:
        concurrency: Most jobs at once that need this service, over all workers.
        tier: The plan the account should be on; kept with each outage, to tell an expired plan from a fault.
        probe: A command that exits 0 when the service works again; without one, one job at a time tries.
    """

    concurrency: AtLeastOne | None = None
    tier: str | None = None
    probe: Annotated[str, AfterValidator(_command)] | None = None


class KeysSection(_Strict):
    """`[keys]`: `concurrency` is the most jobs of one concurrency key at once, over all workers."""

    concurrency: AtLeastOne = 1


class DeadLettersSection(_Strict):
    """`[dead_letters]`: `webhook` is told of each job that failed."""

    webhook: Annotated[str, Field(pattern=r"^https?://[^\s/?#]+\S*$"), AfterValidator(_address)] | None = None


class RetentionSection(_Strict):
    """`[retention]`: days that finished jobs, dead letters, keys of pruned jobs, outages and spans are kept."""

    done_days: float = Field(default=30, ge=0, le=36_500)
    failed_days: float = Field(default=90, ge=0, le=36_500)
    key_days: float = Field(default=365, ge=0, le=36_500)
    outage_days: float = Field(default=90, ge=0, le=36_500)
    span_days: float = Field(default=30, ge=0, le=36_500)
    event_days: float = Field(default=7, ge=0, le=36_500)


class PriceSection(_Strict):
    """`[prices."MODEL"]`: US dollars for a million tokens.

    Attributes:
        input: Of a prompt.
        output: Of an answer.
        cache_read: Of what is read from the provider's cache; as `input` when omitted.
        cache_write: Of what is written to it; as `input` when omitted.
    """

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cache_read: float | None = Field(default=None, ge=0)
    cache_write: float | None = Field(default=None, ge=0)


class ScheduleSection(_Strict):
    """`[schedules.NAME]`; see `schedules.Definition`.

    Attributes:
        graph: Which graph runs.
        cron: When: minute, hour, day of month, month, day of week.
        timezone: Where its hours are.
        input: What the graph starts with.
        overlap: What a slot does while an earlier run is unfinished; there is no default, since each is wrong for some.
        missed: What becomes of slots at which nobody was there.
        jitter: Most seconds after its slot that a run begins.
        end: Slots after it are none.
        enabled: Whether it is on.
        owner: Whose jobs it makes.
        priority: Of its jobs.
        max_attempts: Of its jobs.
        workflow_version: Of its jobs.
        slot_field: The field of the input that gets the slot's time.
    """

    graph: str
    cron: str
    timezone: str = "UTC"
    input: Any = {}
    overlap: Overlap
    missed: Missed = "latest"
    jitter: int = 0
    end: AwareDatetime | None = None
    enabled: bool = True
    owner: str = "default"
    priority: int = DEFAULT_PRIORITY
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    workflow_version: str = "1"
    slot_field: str | None = None

    def definition(self) -> Definition:
        """What it says, as the record has it.

        Raises:
            ScheduleInvalid: A part of it cannot be used.
            PayloadInvalid: The input has no exact JSON form.
            SecretInPayload: The input has a key that looks like a credential.
        """
        definition = Definition(
            graph=self.graph,
            cron=self.cron,
            timezone=self.timezone,
            input=self.input,
            overlap=self.overlap,
            missed=self.missed,
            jitter_s=self.jitter,
            ends_at=None if self.end is None else round(self.end.timestamp() * 1000),
            job=JobOptions(self.priority, self.max_attempts, self.workflow_version, self.slot_field),
        )
        definition.check()
        return definition


class LogsSection(_Strict):
    """`[logs]`: `fields` are the `extra=` fields whose values are written to the log."""

    fields: list[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$")]] = []


class Policies(_Strict):
    """What `everstep.toml` says."""

    graphs: dict[str, GraphSection] = {}
    services: dict[str, ServiceSection] = {}
    keys: KeysSection = KeysSection()
    dead_letters: DeadLettersSection = DeadLettersSection()
    retention: RetentionSection = RetentionSection()
    prices: dict[str, PriceSection] = {}
    logs: LogsSection = LogsSection()
    schedules: dict[Name, ScheduleSection] = {}
    webhooks: WebhooksSection = WebhooksSection()
    triggers: dict[Name, TriggerSection] = {}
    providers: dict[ProviderName, ProviderSection] = {}

    def limits(self) -> Limits:
        """How many jobs may run at once, over all workers."""
        return Limits(
            graphs={name: graph.concurrency for name, graph in self.graphs.items() if graph.concurrency is not None},
            services={
                name.lower(): service.concurrency
                for name, service in self.services.items()
                if service.concurrency is not None
            },
            per_key=self.keys.concurrency,
            probed=frozenset(self.probes()),
        )

    def probes(self) -> dict[str, str]:
        """By service: the command that tells whether it works again."""
        return {name.lower(): service.probe for name, service in self.services.items() if service.probe is not None}

    def tiers(self) -> dict[str, str]:
        """The plan each service's account should be on, where that is configured."""
        return {name.lower(): service.tier for name, service in self.services.items() if service.tier is not None}

    def mistaken_services(self, known: Collection[str]) -> dict[str, str]:
        """By service of the file that nothing needs: the name it may be meant for, where one is near.

        A name that is like no other is passed over: a job may bring it when it is submitted.

        Args:
            known: Services that are in the record.
        """
        needed = {*known, *(one for section in self.graphs.values() for one in section.services)}
        names = {one.lower() for one in needed}
        nearest = {name: get_close_matches(name.lower(), names, n=1, cutoff=0.8) for name in self.services}
        return {name: close[0] for name, close in nearest.items() if close and name.lower() not in names}

    def of_graph(self, name: str) -> JobPolicy:
        """What is asked of each job of a graph.

        Raises:
            PayloadInvalid: A number is out of range.
        """
        section = self.graphs.get(name, GraphSection())
        acceptance = section.acceptance and Acceptance.of(section.acceptance.model_dump())
        budget = section.budget and Budget(**section.budget.model_dump())
        return JobPolicy(budget, acceptance, tuple(section.services))


def read_policies(config_path: Path, graphs: Collection[str] | None = None) -> Policies:
    """Read the `everstep.toml` beside a `langgraph.json`; without one, nothing is limited.

    Args:
        config_path: The `langgraph.json`.
        graphs: The graphs it has, so that a name that is none of them is refused; any passes when None.

    Raises:
        ConfigInvalid: It cannot be read, or an entry is not what it can be; the message names the entry.
    """
    path = config_path.absolute().with_name(FILE_NAME)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return Policies()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _invalid(path, str(error), "Correct it there.") from error
    try:
        policies = Policies.model_validate(content)
        for name in policies.graphs:
            policies.of_graph(name)
        for name, schedule in policies.schedules.items():
            _check_schedule(path, name, schedule)
    except ValidationError as error:
        first = error.errors()[0]
        where, said = first_of(error)
        known = ", ".join(_fields(first["loc"][:-1])) if first["type"] == "extra_forbidden" else ""
        advice = f"It may be one of: {known}." if known else "Correct it there."
        raise _invalid(path, f"{where}: {said}" if where else said, advice) from error
    except PayloadInvalid as error:
        raise _invalid(path, error.message, error.next_step) from error
    named = {f"graphs.{name}": name for name in policies.graphs}
    named |= {f"schedules.{name}.graph": schedule.graph for name, schedule in policies.schedules.items()}
    named |= {f"triggers.{name}.graph": trigger.graph for name, trigger in policies.triggers.items()}
    for place, name in named.items():
        if graphs is not None and name not in graphs:
            close = get_close_matches(name, graphs, n=1)
            advice = f"Did you mean {close[0]}?" if close else f"It has: {', '.join(sorted(graphs))}."
            raise _invalid(path, f"{place}: {config_path.name} has no such graph", advice)
    return policies


def _check_schedule(path: Path, name: str, schedule: ScheduleSection) -> None:
    try:
        schedule.definition()
    except EverstepError as error:
        raise _invalid(path, f"schedules.{name}: {error.message}", error.next_step) from error


def _fields(place: tuple[int | str, ...]) -> list[str]:
    """The fields an entry may have at a place of the file."""
    sections: dict[str, type[BaseModel]] = {
        "graphs": GraphSection,
        "services": ServiceSection,
        "keys": KeysSection,
        "dead_letters": DeadLettersSection,
        "retention": RetentionSection,
        "prices": PriceSection,
        "logs": LogsSection,
        "schedules": ScheduleSection,
        "budget": BudgetSection,
        "acceptance": AcceptanceSection,
        "providers": ProviderSection,
        **event_sections.SECTIONS,
    }
    named: list[Any] = [sections[part] for part in place if isinstance(part, str) and part in sections]
    return list((named[-1] if named else Policies).model_fields)


def _invalid(path: Path, what: str, next_step: str) -> ConfigInvalid:
    return ConfigInvalid(f"{path}: {what}", next_step=next_step, path=str(path))
