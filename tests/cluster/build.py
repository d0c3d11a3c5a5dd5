"""`go build` from pinned modules, into the cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from cluster.cache import MODULES, bin_folder, say
from cluster.errors import NotHereError

__all__ = ["build", "go", "module_folder"]

_LIMIT_S = 3600.0
_SHOWN_EVERY_S = 60.0


def go() -> str:
    """Go's command."""
    found = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if found is None:
        raise NotHereError("Go is needed to build the cluster's programs: install it from https://go.dev/dl/")
    return found


def build(module: str, packages: Mapping[str, str]) -> None:
    """Makes each program of `packages` (its name → the package) from `go/MODULE`. Raises `NotHereError` if Go fails."""
    bins = bin_folder()
    bins.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=".build-", dir=bins) as scratch:
        for name, package in packages.items():
            say(f"building {name} ({time.monotonic() - start:.0f} s so far; minutes where Go's own cache is cold)")
            made = Path(scratch, name)
            _run(module, ["build", "-trimpath", "-ldflags", _ldflags(module), "-o", str(made), package], shown=name)
            os.replace(made, bins / name)  # a killed build leaves no half file
    say(f"built {', '.join(packages)} in {time.monotonic() - start:.0f} s")


def module_folder(module: str, required: str) -> Path:
    """The folder where Go keeps the sources of a module that `go/MODULE` requires."""
    _run(module, ["mod", "download", required])
    return Path(_run(module, ["list", "-m", "-f", "{{.Dir}}", required]).strip())


def _run(module: str, args: list[str], *, shown: str = "") -> str:
    """The output of a Go command. shown: the name of a program that takes minutes; a line a minute says that it is
    still being built."""
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    command, folder = [go(), *args], MODULES / module
    try:
        ran = _finished(command, folder, environment, shown)
    except subprocess.TimeoutExpired:
        failed = f"{' '.join(command[:2])} in {folder} took longer than {_LIMIT_S / 60:.0f} minutes"
        raise NotHereError(f"{failed}: what it has compiled is kept, so call it again") from None
    if ran.returncode:
        tail = "\n".join(ran.stderr.strip().splitlines()[-20:])
        raise NotHereError(
            f"{' '.join(command[:2])} in {MODULES / module} failed; is Go's module proxy reachable?\n{tail}"
        )
    return ran.stdout


def _finished(
    command: list[str], folder: Path, environment: Mapping[str, str], shown: str
) -> subprocess.CompletedProcess[str]:
    """Runs the command. It is killed after `_LIMIT_S` (TimeoutExpired) or when the caller is interrupted."""
    start = time.monotonic()
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            while (left := _LIMIT_S - (time.monotonic() - start)) > 0:
                try:
                    out, err = process.communicate(timeout=min(_SHOWN_EVERY_S, left))
                    return subprocess.CompletedProcess(command, process.returncode, out, err)
                except subprocess.TimeoutExpired:
                    if shown:
                        say(f"still building {shown} ({time.monotonic() - start:.0f} s so far)")
            raise subprocess.TimeoutExpired(command, _LIMIT_S)
        except BaseException:
            process.kill()
            raise


def _ldflags(module: str) -> str:
    """Flags without debug symbols. They set the version of Kubernetes' programs, as Kubernetes' own build does."""
    if module != "kubernetes":
        return "-s -w"
    found = re.search(r"\bk8s\.io/kubernetes (v(\d+)\.(\d+)\S*)", (MODULES / module / "go.mod").read_text())
    assert found is not None
    version, major, minor = found.groups()
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    stamps = [f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items()]
    return " ".join(["-s -w", *stamps])
