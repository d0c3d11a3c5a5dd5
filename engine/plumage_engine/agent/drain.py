"""`python -m plumage_engine.agent.drain --timeout N`: the pod's preStop hook, which drains the engine before it ends.

It asks the agent of the same pod to report Draining and to wait until no request is in flight. Exit codes:

- 0: no request is in flight, or no agent answers; then a wait saves no request.
- 1: after the timeout or a refusal.
- 2: wrong arguments.

The kubelet ends the pod in each case and reports the 1 in an event. It imports the standard library only,
so that it starts in a twentieth of a second, inside the grace period.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
from pathlib import Path

__all__ = ["drain", "main"]

SLACK = 5.0  # seconds beyond the agent's own timeout, so that its response arrives


def drain(port: int, token: str | None, seconds: float) -> str | None:
    """None once nothing is in flight, else an error for people."""
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds + SLACK)
    try:
        connection.request("POST", "/v1/plumage/drain", json.dumps({"timeoutSeconds": seconds}), headers)
        answer = connection.getresponse()
        said = answer.read(65_536).decode(errors="replace")
    except (ConnectionError, http.client.RemoteDisconnected) as error:
        sys.stderr.write(f"no agent to ask ({type(error).__name__}): nothing to wait for\n")
        return None
    except (OSError, http.client.HTTPException) as error:
        return f"the agent did not answer: {type(error).__name__}"
    finally:
        connection.close()
    if answer.status == 200:
        return None
    return f"the time was up: {said}" if answer.status == 504 else f"the agent answered {answer.status}: {said}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m plumage_engine.agent.drain", description="Drain this pod's engine."
    )
    parser.add_argument("--timeout", type=float, required=True, help="seconds to wait for requests in flight")
    parser.add_argument("--port", type=int, default=8081, help="the agent's")
    parser.add_argument("--token-file", type=Path, default=Path("/run/plumage/token"), help="the pod's own token")
    options = parser.parse_args(arguments)
    if not 0 <= options.timeout <= 86_400:
        parser.error(f"--timeout must be from 0 to 86400 seconds, got {options.timeout:g}")
    try:
        token = options.token_file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        token = None  # without a file the agent may need no token; else it refuses the request with a reason
    error = drain(options.port, token, options.timeout)
    if error is not None:
        sys.stderr.write(f"{error}\n")
    return 0 if error is None else 1


if __name__ == "__main__":
    sys.exit(main())
