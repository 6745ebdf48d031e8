"""`python -m bench`: run the scenarios, print the tables, keep the figures. `make bench` makes what it needs first."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import mkdtemp

from rich.console import Console

from bench import machine, page
from bench.processes import PEERS, ROOT, ChildFailed
from bench.run import FULL, QUICK, TINY, Run
from bench.scenarios import NAMES, run_scenario
from bench.tables import Section, show

RESULTS = ROOT / "bench" / "results.json"
SCALES = {"full": FULL, "quick": QUICK, "tiny": TINY}


def main(given: Sequence[str] | None = None) -> int:
    """Run; the exit code is 1 if a scenario broke off."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--scale", choices=SCALES, default="full", help="how much is measured")
    parser.add_argument("--runs", type=int, help="how often each thing is measured, instead of the scale's number")
    parser.add_argument("--only", default="", help=f"scenarios, with commas between: {', '.join(NAMES)}")
    parser.add_argument("--no-peers", action="store_true", help="Everstep and the hand-written sqlite3 loop alone")
    parser.add_argument("--system", action="append", default=[], help="only this queue, by its name; may be repeated")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--folder", type=Path, default=ROOT / "bench", help="the disk to measure on")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where every measurement goes, as JSON")
    options = parser.parse_args(given)
    names = [name for name in options.only.replace(",", " ").split() if name] or list(NAMES)
    if unknown := set(names) - set(NAMES):
        parser.error(f"no scenario is called {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if not options.no_peers and not Path(PEERS).exists():
        parser.error("the peers' environment .venv-bench is not there: run make bench, or give --no-peers")
    if options.write and (set(names) != set(NAMES) or options.no_peers or options.system or options.scale != "full"):
        parser.error("the page shows full runs of all scenarios with all peers")
    scale = SCALES[options.scale] if options.runs is None else replace(SCALES[options.scale], runs=options.runs)
    if scale.runs < 1:
        parser.error("--runs must be at least 1")

    console = Console(width=None if sys.stdout.isatty() else 160)
    quiet = Console(stderr=True)
    folder = Path(mkdtemp(prefix=".work-", dir=options.folder))
    run = Run(
        scale,
        folder,
        lambda text: quiet.print(text, style="dim", highlight=False),
        with_peers=not options.no_peers,
        systems=options.system,
    )
    sections: list[Section] = []
    broken = False
    try:
        try:
            settings = run.postgres().settings() if any(name.startswith("postgres") for name in names) else {}
        except ChildFailed as error:
            settings = {"server": str(error)}
        about = [*machine.describe(folder, settings), ("runs of each measurement", str(scale.runs))]
        for name, value in about:
            console.print(f"{name}: {value}", markup=False, highlight=False)
        if os.getloadavg()[0] > 0.5:
            console.print("[yellow]This machine is busy; the figures will wander.[/]")
        for name in names:
            try:
                section = run_scenario(name, run)
            except Exception as error:  # the others are still worth having
                traceback.print_exc()
                section = Section(name, name, failures=[f"it broke off: {type(error).__name__}: {error}"])
                broken = True
            sections.append(section)
            show(console, section)
    finally:
        run.close()
        shutil.rmtree(folder, ignore_errors=True)
    results = {"scale": options.scale, "machine": dict(about), "sections": [asdict(section) for section in sections]}
    options.results.write_text(json.dumps(results, indent=1))
    if options.write:
        page.write(about, sections)
        console.print(f"written: {page.PAGE}")
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
