"""A vLLM server with the processes that it starts, as one process of a pool.

`python -m plumage_cli.local.processes.vllm_child --config FILE.json`

vLLM's API server starts an engine core, and that starts workers. None of them ends when its parent is killed, and each
would keep its memory and the pipe to the supervisor. This process forwards SIGTERM to the API server and copies its
output. It ends when the API server ends, and kills all of them when the supervisor is gone. The supervisor kills what
remains of the process group.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

from plumage_cli.local.plan.vllm_command import VllmCommand

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
_COPY_SECONDS = 2.0  # for the last output, after the server has ended


def main() -> None:
    settings: VllmCommand = json.loads(Path(sys.argv[sys.argv.index("--config") + 1]).read_bytes())
    parent = os.getppid()
    process: subprocess.Popen[bytes] | None = None

    def end(number: int, _: object) -> None:
        if os.getppid() != parent:
            os.killpg(0, signal.SIGKILL)  # this process too
        if process is not None:
            process.send_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    _signal_at_parents_end(signal.SIGTERM)
    if os.getppid() != parent:
        return
    process = subprocess.Popen(
        settings["command"],
        env={**os.environ, **settings["environment"], **_api_key(settings)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 - it only makes one system call
    )
    assert process.stdout is not None, "the pipe was asked for"
    copy = threading.Thread(target=_copy, args=(process.stdout,), daemon=True)
    copy.start()
    code = process.wait()
    copy.join(_COPY_SECONDS)
    sys.stdout.flush()
    os._exit(code if code >= 0 else 128 - code)


def _api_key(settings: VllmCommand) -> dict[str, str]:
    """The key as an environment variable, since every user of the machine can read command lines."""
    file = settings.get("apiKeyFile")  # absent in the lab, whose servers have no key
    return {} if file is None else {"VLLM_API_KEY": Path(file).read_text().strip()}


def _copy(source: IO[bytes]) -> None:
    for line in source:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


def _signal_at_parents_end(number: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def _die_with_parent() -> None:
    _signal_at_parents_end(signal.SIGKILL)


if __name__ == "__main__":
    main()
