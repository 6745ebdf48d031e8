"""`python examples/provider_simulator --port 0`: a provider on this machine that can be made to fail."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.provider_simulator.server import Simulator


def main() -> None:
    """Serve until interrupted; the first line of output tells where."""
    parser = argparse.ArgumentParser(prog="provider_simulator", description="A provider that can be made to fail.")
    parser.add_argument("--port", type=int, default=0, help="the port; 0: any that is free")
    parser.add_argument("--no-idempotency", action="store_true", help="do not honour Idempotency-Key")
    parser.add_argument("--no-find", action="store_true", help="cannot be asked for a generation by its reference")
    parser.add_argument("--api-key-env", help="the variable that holds the key it wants")
    parser.add_argument("--webhook", help="where it sends messages")
    parser.add_argument("--scheme", choices=("standard", "hmac"), default="standard", help="how it signs them")
    parser.add_argument("--secret-env", default="SIMULATOR_SECRET", help="the variable that holds their secret")
    parser.add_argument("--state", type=Path, help="a file to keep its tasks in")
    chosen = parser.parse_args()
    simulator = Simulator(
        chosen.port,
        idempotent=not chosen.no_idempotency,
        findable=not chosen.no_find,
        api_key=os.environ.get(chosen.api_key_env) if chosen.api_key_env else None,
        webhook=chosen.webhook,
        scheme=chosen.scheme,
        secret=os.environ.get(chosen.secret_env, ""),
        file=chosen.state,
    )
    simulator.start()
    print(json.dumps({"url": simulator.url, "pid": os.getpid()}), flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        simulator.stop()


if __name__ == "__main__":
    main()
