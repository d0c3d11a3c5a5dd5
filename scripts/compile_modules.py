"""Compiles the modules that each request passes to C, by mypyc: `tool.plumage.compiled` in pyproject.toml lists them.

`python scripts/compile_modules.py FOLDER` writes all packages to FOLDER, and beside the sources the compiled modules.
A process with FOLDER in front of its PYTHONPATH runs them. They are compiled again only when a source changed.

It is also a build hook of hatchling: with HATCH_BUILD_HOOK_ENABLE_CUSTOM=true a wheel has the compiled modules. That is
how the images are built; PLUMAGE_COMPILED=engine compiles the modules of that list alone, for the image with vLLM.
Without them Python runs the sources, which are the same program (decision 0304).
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # not in a build
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [Path(one) for one in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
CHECKED = PACKAGES[:2]  # what the compiled modules import from
STAMP = ".compiled"
SHARED = "plumage"  # mypyc's name for the library that all the modules share


class CompiledModules(BuildHookInterface):
    """Adds the compiled modules to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._scratch = tempfile.TemporaryDirectory()
        built = Path(self._scratch.name)
        compile_into(built)
        for file in built.rglob(f"*{SUFFIX}"):
            build_data["force_include"][str(file)] = str(file.relative_to(built))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._scratch.cleanup()


def sources() -> list[Path]:
    """The modules to compile, relative to the root. SystemExit names one that does not exist."""
    found, lists = [], PROJECT["tool"]["plumage"]["compiled"]
    part = os.environ.get("PLUMAGE_COMPILED")
    if part is not None and part not in lists:
        sys.exit(f"compile: PLUMAGE_COMPILED must be one of {', '.join(lists)}, and is {part!r}")
    for name in [*lists["engine"], *lists["router"]] if part is None else lists[part]:
        path = Path(*name.split(".")).with_suffix(".py")
        package = next(one for one in PACKAGES if one.name == path.parts[0])
        if not (ROOT / package.parent / path).is_file():
            sys.exit(f"compile: pyproject.toml names {name} in tool.plumage.compiled, and there is no such module")
        found.append(package.parent / path)
    return found


def missing() -> str | None:
    """What this machine lacks to compile; None if nothing."""
    if shutil.which(os.environ.get("CC", "cc")) is None:
        return "a C compiler (on Debian and Ubuntu: apt-get install gcc libc6-dev)"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python's headers (on Debian and Ubuntu: apt-get install python3-dev)"
    return None


def compile_into(folder: Path) -> None:
    """Compile each module to its place below `folder`. SystemExit says what is missing or wrong."""
    if lacking := missing():
        sys.exit(f"compile: this machine lacks {lacking}")
    from mypyc.build import mypycify
    from setuptools import Distribution

    os.chdir(ROOT)  # mypy reads its settings from pyproject.toml
    with tempfile.TemporaryDirectory() as scratch:
        # A file in C for each module: with one large file gcc takes twice as long.
        extensions = mypycify(
            [str(path) for path in sources()],
            opt_level="3",
            debug_level="0",
            multi_file=True,
            group_name=SHARED,
            target_dir=scratch,
        )
        command = Distribution({"ext_modules": extensions}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = str(folder), f"{scratch}/objects"
        command.ensure_finalized()
        command.run()


def digest(packages: Sequence[Path]) -> str:
    """Of the packages' sources, and of what else the compiled modules follow from."""
    found = hashlib.sha256(f"{SUFFIX} mypy {version('mypy')} {os.environ.get('PLUMAGE_COMPILED')}\n".encode())
    files = sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))
    for path in [*files, ROOT / "pyproject.toml", Path(__file__)]:
        found.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def write_packages(folder: Path) -> None:
    """Write all packages to `folder`, unless it has them as they are. It is replaced at once and complete.

    mypyc looks at the types in other modules too: a change of any module in `CHECKED` compiles all of them again.
    """
    made, stamp = [digest(CHECKED), digest(PACKAGES)], folder / STAMP
    kept = stamp.read_text().split() if stamp.is_file() else ["", ""]
    if kept == made:
        return
    new = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    if kept[0] == made[0]:
        for file in folder.rglob(f"*{SUFFIX}"):
            target = new / file.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)
    else:
        started = time.monotonic()
        print(f"compile: {len(sources())} modules, about a minute on one core", flush=True)
        # In a process of its own: gcc's command lines are of interest only where it fails.
        alone = [sys.executable, __file__, "--only", str(new)]
        done = subprocess.run(alone, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            sys.exit("\n".join(["compile: it failed; the last lines:", *done.stdout.splitlines()[-30:]]))
        print(f"compile: done in {time.monotonic() - started:.0f} s", flush=True)
    for package in PACKAGES:
        skipped = shutil.ignore_patterns("__pycache__", f"*{SUFFIX}")
        shutil.copytree(ROOT / package, new / package.name, ignore=skipped, dirs_exist_ok=True)
    if [digest(CHECKED), digest(PACKAGES)] != made:
        sys.exit("compile: a source was changed meanwhile; run it again")
    (new / STAMP).write_text("\n".join(made))
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="where to write the packages, for example build/compiled")
    parser.add_argument("--only", action="store_true", help="write the compiled modules alone")
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    if arguments.only:
        compile_into(folder)
    else:
        with folder.with_name(f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another process may write it now
            write_packages(folder)


if __name__ == "__main__":
    main()
