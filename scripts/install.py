"""Installs packages into this interpreter's environment: `python scripts/install.py -c constraints.txt -e '.[dev]'`.

uv does it with a tenth of pip's CPU time (decision 0301). It doesn't read pip's settings, so those about indexes,
proxies, certificates and time limits are passed on. Where uv can't be installed, or fails, pip installs the packages.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

PINS = Path(__file__).parents[1] / "constraints.txt"
PIP = (sys.executable, "-m", "pip")
QUIET = ("install", "--quiet", "--disable-pip-version-check")
# Python writes a module's bytecode at its first import, and most modules are never imported. uv writes none either.
NO_BYTECODE = "--no-compile"


def settings(lines: Iterable[str]) -> dict[str, str]:
    """pip's settings by name, from lines of `pip config list`. The environment wins, then those of `pip install`."""
    found: dict[str, str] = {}
    for scope in ("global", "install", ":env:"):
        for line in lines:
            if entry := re.fullmatch(rf"{scope}\.([a-z-]+)=(['\"].*['\"])", line.strip()):
                found[entry[1]] = ast.literal_eval(entry[2])
    return found


def environment(pip: Mapping[str, str], arguments: Sequence[str] = ()) -> dict[str, str]:
    """uv's variables for pip's settings. An index among the arguments wins."""
    several = {name: pip.get(name, "").split() for name in ("extra-index-url", "find-links", "trusted-host")}
    folders = [one for one in several["find-links"] if "://" in one or Path(one).is_dir()]  # pip passes over others
    given = {
        "UV_DEFAULT_INDEX": "" if "--index-url" in arguments else pip.get("index-url", ""),
        "UV_INDEX": " ".join(several["extra-index-url"]),
        # Of several indexes pip takes the best version, uv by itself that of the first index.
        "UV_INDEX_STRATEGY": "unsafe-best-match" if several["extra-index-url"] else "",
        "UV_FIND_LINKS": ",".join(folders),
        "UV_INSECURE_HOST": " ".join(several["trusted-host"]),
        "UV_NO_INDEX": pip.get("no-index", ""),
        "UV_HTTP_TIMEOUT": pip.get("timeout", pip.get("default-timeout", "")),
        "UV_HTTP_RETRIES": pip.get("retries", ""),
        "HTTP_PROXY": pip.get("proxy", ""),
        "HTTPS_PROXY": pip.get("proxy", ""),
        "SSL_CERT_FILE": pip.get("cert", ""),
        "SSL_CLIENT_CERT": pip.get("client-cert", ""),
        "UV_SYSTEM_CERTS": "" if "cert" in pip else "true",  # pip trusts the system's authorities too
    }
    return {name: value for name, value in given.items() if value}


def find_uv() -> Path | None:
    """The pinned uv beside this interpreter, which is installed where it is missing; None where that fails."""
    uv = Path(sys.executable).with_name("uv")
    (pin,) = re.findall(r"^uv==(\S+)$", PINS.read_text(), re.MULTILINE)
    if uv.exists():
        version = subprocess.run([str(uv), "--version"], capture_output=True, text=True, check=False).stdout
        if version.split()[1:2] == [pin]:
            return uv
    command = [*PIP, *QUIET, NO_BYTECODE, f"uv=={pin}"]
    failed = subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode
    return None if failed or not uv.exists() else uv


def main(arguments: list[str]) -> int:
    """Returns the exit status of uv, or of pip where there is no uv or it fails."""
    uv = find_uv()
    if uv is None:
        print("install: uv can not be installed here, so pip does the work, which takes longer", file=sys.stderr)
    elif not run_uv(uv, arguments):
        return 0
    else:
        print("install: uv failed, so pip tries", file=sys.stderr)
    return subprocess.run([*PIP, *QUIET, NO_BYTECODE, *arguments], check=False).returncode


def run_uv(uv: Path, arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True).stdout
    given = dict(os.environ)
    if "--index-url" in arguments:
        given.pop("UV_DEFAULT_INDEX", None)
    variables = {**environment(settings(listed.splitlines()), arguments), **given}  # what is set for uv itself wins
    command = [str(uv), "pip", "install", "--quiet", "--python", sys.executable, *arguments]
    return subprocess.run(command, env=variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
