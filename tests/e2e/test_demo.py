"""The demo, as `make demo` calls it, with a shorter load."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.needs import missing
from support.pool import ROOT, leftovers

pytestmark = [pytest.mark.redis, pytest.mark.timeout(180)]

# What the live table is to show: of each replica its requests, how many run and wait, its KV and its hit ratio; the
# hottest prefixes, why the last requests went where they went, how far the load is.
LIVE = (
    r"requests\W+running\W+waiting\W+KV\W+hit ratio",
    r"demo-chat-0 +│ Ready +(│ +\d+ ){3}(│ +\d+% ){2}│",
    r"demo-chat-1 +│ Ready +(│ +\d+ ){3}(│ +\d+% ){2}│",
    r"demo-chat-[01] +│ Ready +│ +[1-9]\d* │ +[1-9]",  # … and not 0 running all the time
    r"hottest prefixes: \w+… \(.*[1-9]\d*×\)",
    r"last requests:\s+\S+ → demo-chat-[01]: holds [1-9]\d* of ~[1-9]\d* prompt tokens",
    r"[1-9]\d* of \d+ requests",
)

# Ctrl-C goes to those whose terminal it is.
OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


# The end of `demo`, after its two loads.
AFTER_THE_LOADS = """
import sys
from plumage_cli.demo import run
from plumage_cli.demo.summary import summarise
from plumage_cli.main import main

async def no_load(*_):
    return summarise([])

run._run_pool = no_load
sys.argv[0] = "plumage"
main()
"""


def test_demo_kills_an_engine_loses_nothing_and_compares(runtime: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "plumage_cli", "demo", "--quick"],
        cwd=ROOT,
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime), "COLUMNS": "120", "KEEP": "0"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("(kill -9)") >= 2
    rows = {row.split("│")[1].strip(): [cell.strip() for cell in row.split("│")[2:5]] for row in table(done.stdout)}
    assert rows["lost"][:2] == ["0", "0"]
    ours, baseline = (float(cell.rstrip("%")) for cell in rows["hit ratio (cached ÷ prompt tokens)"][:2])
    assert ours > baseline
    assert "The GPUs are simulated" in done.stdout
    assert leftovers(runtime) == []
    assert not list((runtime / "plumage").iterdir())


def test_kept_demo_answers_the_printed_command_and_ends_on_ctrl_c(runtime: Path, tmp_path: Path) -> None:
    """`make demo KEEP=1`, without the loads, which the test before has."""
    if shutil.which("curl") is None:
        missing("the curl command", "apt-get install curl")
    few_fast_engines(tmp_path)
    demo = subprocess.Popen(
        [sys.executable, "-u", "-c", AFTER_THE_LOADS, "demo", "--quick", f"--examples={tmp_path}"],
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime), "COLUMNS": "120", "KEEP": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert demo.stdout is not None
    seen_text = []
    try:
        for line in demo.stdout:
            seen_text.append(line)
            if line.strip().startswith("curl "):
                break
        assert "pool demo-chat keeps running; Ctrl-C ends it. Try:" in "".join(seen_text)
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        tried = subprocess.run(
            ["bash", "-c", seen_text[-1]], env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        assert json.loads(tried.stdout)["choices"][0]["message"]["content"]
        os.killpg(demo.pid, signal.SIGINT)  # as a terminal does
        rest, _ = demo.communicate(timeout=60)
    except BaseException:
        os.killpg(demo.pid, signal.SIGKILL)
        raise
    assert demo.returncode == 0, "".join(seen_text) + rest
    assert "Traceback" not in "".join(seen_text) + rest
    assert leftovers(runtime) == []
    assert not list((runtime / "plumage").iterdir())


def test_live_table_is_redrawn_until_ctrl_c(runtime: Path, tmp_path: Path) -> None:
    few_fast_engines(tmp_path)
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
    demo = subprocess.Popen(
        [sys.executable, "-c", OWN_TERMINAL, sys.executable, "-m", "plumage_cli", "demo", f"--examples={tmp_path}"],
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime), "TERM": "xterm-256color", "KEEP": "0"},
        stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    try:
        shown = read_until(screen, lambda seen_text: seen_text.count("hit ratio") >= 4 and not lacking(seen_text))
        assert not lacking(shown), shown  # a demo that ends by itself ends the reading too
        os.write(screen, b"\x03")
        shown += read_until(screen, lambda _: False)
        assert demo.wait(60) == 0, shown
    except BaseException:
        os.killpg(demo.pid, signal.SIGKILL)
        demo.wait()
        raise
    finally:
        os.close(screen)
    assert "\x1b[1A" in shown, "the table is drawn over the last one"
    assert "Traceback" not in shown
    assert leftovers(runtime, seconds=10.0) == []


def lacking(shown: str) -> list[str]:
    """What of the live table was never there."""
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown)  # without what moves the cursor and gives colour
    return [one for one in LIVE if not re.search(one, plain)]


def few_fast_engines(folder: Path) -> None:
    """The demo's two manifests, with two fast engines instead of four."""
    for name in ("local.yaml", "round-robin-lru.yaml"):
        few = (ROOT / "examples" / name).read_text().replace("replicas: 4", "replicas: 2")
        (folder / name).write_text(few.replace("preset: GPU", "preset: GPU\n        timeScalePercent: 10"))


def read_until(screen: int, enough: Callable[[str], bool], seconds: float = 90.0) -> str:
    """What the terminal shows, until that is enough or nobody writes any more."""
    seen_text, deadline = b"", time.monotonic() + seconds
    while not enough(text := seen_text.decode(errors="replace")):
        assert time.monotonic() < deadline, text
        if not select.select([screen], [], [], 0.1)[0]:
            continue
        try:
            seen_text += os.read(screen, 65_536)
        except OSError:  # how Linux says that the other side is closed
            break
    return seen_text.decode(errors="replace")


def table(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("│")]
