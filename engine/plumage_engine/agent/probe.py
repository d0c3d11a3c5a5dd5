"""`python -m plumage_engine.agent.probe --certificate FILE --key FILE`: the probe of an engine that asks its clients
for a certificate.

The kubelet has none to show, so it runs this program in the engine's container. Exit codes: 0 when GET /health answers
200, otherwise 1, with the reason on standard error, which the kubelet reports in an event. It verifies nothing, because
what listens there is in its own pod. It imports the standard library only, so that it starts quickly.
"""

from __future__ import annotations

import argparse
import http.client
import ssl
import sys
from pathlib import Path

__all__ = ["main", "probe"]


def probe(port: int, certificate: Path, key: Path, seconds: float) -> str | None:
    """None if the engine is healthy, else an error for people."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:  # SSLError is an OSError
        return f"{certificate} and {key} cannot be used: {error.strerror or error}"
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=seconds, context=context)
    try:
        connection.request("GET", "/health")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"the engine did not answer: {error or type(error).__name__}"
    finally:
        connection.close()
    return None if status == 200 else f"the engine answered {status}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m plumage_engine.agent.probe", description="Check this pod's engine."
    )
    parser.add_argument("--port", type=int, default=8000, help="the engine's")
    parser.add_argument("--certificate", type=Path, required=True, help="PEM file to show to the engine")
    parser.add_argument("--key", type=Path, required=True, help="PEM file with its key")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds to wait for the answer")
    options = parser.parse_args(arguments)
    error = probe(options.port, options.certificate, options.key, options.timeout)
    if error is not None:
        sys.stderr.write(f"{error}\n")
    return 0 if error is None else 1


if __name__ == "__main__":
    sys.exit(main())
