"""`python -m plumage_operator`: runs the operator until SIGTERM or SIGINT.

Exit codes: 0 after a signal. 1 when the operator can't continue: it lost the Lease, a watch ended, or the cluster has a
new certificate authority. 2 for a configuration that can't work.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from plumage.errors import ConfigurationError
from plumage_operator.kube.credentials import AuthorityChangedError
from plumage_operator.leader_election import LeaseLostError
from plumage_operator.manager import Manager
from plumage_operator.observability.logs import OneLinePerCause, configure_logging
from plumage_operator.options import Options, read_options

__all__ = ["main"]

log = logging.getLogger("plumage_operator")

_FLUSH_S = 5.0


def main(arguments: list[str] | None = None) -> int:
    """Runs the process and returns its exit code."""
    try:
        options = read_options(arguments)
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    limit = configure_logging(options.log_level, options.log_format)
    try:
        return _exit_code(options, limit)
    finally:
        limit.flush_all()


def _exit_code(options: Options, limit: OneLinePerCause) -> int:
    """Runs the operator and maps its end to an exit code."""
    try:
        asyncio.run(_run(options, limit))
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except LeaseLostError as error:
        log.error("%s; another operator may be active, so this one exits", error)
        return 1
    except AuthorityChangedError as error:
        log.warning("%s; exiting, so that a restart trusts the new one", error)
        return 1
    except Exception:
        log.exception("the operator can't continue")
        return 1
    return 0


async def _run(options: Options, limit: OneLinePerCause) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    flushing = asyncio.create_task(_keep_flushing(limit))
    try:
        await Manager(options).run(stopped)
    finally:
        flushing.cancel()


async def _keep_flushing(limit: OneLinePerCause) -> None:
    """Reports suppressed log lines although no further line follows them."""
    while True:
        await asyncio.sleep(_FLUSH_S)
        limit.flush()


if __name__ == "__main__":
    sys.exit(main())
