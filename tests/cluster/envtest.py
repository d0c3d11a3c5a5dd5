"""The programs that the envtest project publishes: etcd, kube-apiserver and kubectl, in one archive for each minor
version."""

from __future__ import annotations

import hashlib
import io
import os
import platform
import tarfile
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from cluster.cache import VERSION, bin_folder, say

__all__ = ["INDEX", "PROGRAMS", "choose", "download", "unpack"]

PROGRAMS: Final = frozenset({"etcd", "kube-apiserver", "kubectl"})
# PLUMAGE_ENVTEST_INDEX names another one, for a mirror.
INDEX: Final = "https://raw.githubusercontent.com/kubernetes-sigs/controller-tools/HEAD/envtest-releases.yaml"
_CONNECT_S, _MOST_BYTES = 10.0, 1 << 30
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def download(names: Iterable[str]) -> None:
    """Puts those of `names` that are published into the cache. It prints which it could not get; `go build` makes
    these."""
    wanted = PROGRAMS.intersection(names)
    if not wanted:
        return
    index = os.environ.get("PLUMAGE_ENVTEST_INDEX") or INDEX
    try:
        url, digest = choose(yaml.safe_load(_get(index)), VERSION, _platform())
        say(f"downloading {url}")
        unpack(_get(url), digest, wanted, bin_folder())
    except (OSError, ValueError, LookupError, yaml.YAMLError) as error:
        say(f"envtest's downloads are not available ({error}): building {', '.join(sorted(wanted))}")


def choose(index: Mapping[str, Any], version: str, platform: str) -> tuple[str, str]:
    """Address and SHA-512 of the archive for the last patch of `version`'s minor version. Raises LookupError."""
    minor = version.split(".")[:2]
    patches = {name: name.lstrip("v").split(".") for name in index["releases"]}
    fitting = [(int(parts[2]), name) for name, parts in patches.items() if parts[:2] == minor and parts[2].isdigit()]
    if not fitting:
        raise LookupError(f"nothing is published for {'.'.join(minor)}")
    release = max(fitting)[1]
    archive = index["releases"][release][f"envtest-{release}-{platform}.tar.gz"]
    return archive["selfLink"], archive["hash"]


def unpack(archive: bytes, digest: str, names: Iterable[str], target: Path) -> None:
    """Puts the programs of an archive into `target`. A wrong digest raises ValueError, and nothing is written."""
    if hashlib.sha512(archive).hexdigest() != digest:
        raise ValueError("the archive's SHA-512 is not the published one")
    target.mkdir(parents=True, exist_ok=True)
    wanted = set(names)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            name = Path(member.name).name
            content = files.extractfile(member) if name in wanted and member.isfile() else None
            if content is not None:
                _write(target / name, content.read())


def _write(path: Path, content: bytes) -> None:
    scratch = path.with_name(f".{path.name}.new")
    scratch.write_bytes(content)
    scratch.chmod(0o755)
    os.replace(scratch, path)


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_CONNECT_S) as answer:
        content: bytes = answer.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{url} is larger than {_MOST_BYTES:,} bytes")
    return content


def _platform() -> str:
    machine = platform.machine()
    return f"{platform.system().lower()}-{_ARCHITECTURES.get(machine, machine)}"
