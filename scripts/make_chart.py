#!/usr/bin/env python3
"""Writes what charts/plumage has from elsewhere, so that it can not drift.

- templates/crds/: the CRDs of crds/, which `helm` would never upgrade if they lay in a chart's own crds/ folder;
- templates/_rules.tpl: the operator's rights, from plumage_operator.permissions;
- README.md: README.head.md, then the values with their comments, from values.yaml.

python scripts/make_chart.py            # write them
python scripts/make_chart.py --check    # status 1, and the names, where a file is not what its source says
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from plumage.cluster import GROUP
from plumage_operator import permissions
from plumage_operator.kinds import INTEGRATIONS
from plumage_operator.permissions import Rule

ROOT = Path(__file__).parents[1]
CHART = ROOT / "charts" / "plumage"
CRDS = ROOT / "crds"
KEEP = "helm.sh/resource-policy"

ROUTER = (Rule("discovery.k8s.io", ("endpointslices",), ("list", "watch")),)
OPTIONAL = {one.switch: (one.group, one.plural) for one in INTEGRATIONS}
"""Group and resource by the switch under `integrations` that grants it; all else is granted always."""


def main() -> int:
    """0, or with --check 1 where something drifted."""
    wanted = {**crds(), CHART / "templates" / "_rules.tpl": rules(), CHART / "README.md": readme()}
    left = set((CHART / "templates" / "crds").glob("*.yaml")) - set(wanted)
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        for path in sorted({*stale, *left}):
            print(f"{path.relative_to(ROOT)} is not what its source says: run `make chart`", file=sys.stderr)
        return 1 if stale or left else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path])
    for path in left:
        path.unlink()
    return 0


def crds() -> dict[Path, str]:
    """The template of each CRD by its path."""
    return {CHART / "templates" / "crds" / path.name: crd(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))}


def crd(text: str) -> str:
    """A CRD as a template: behind `crds.enabled`, kept by `crds.keep`, its braces taken literally. As text, which is
    a hundred times faster than through a YAML library and leaves every line as `make crds` wrote it."""
    body = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    head, metadata, rest = body.partition("metadata:\n")
    own, spec, _ = rest.partition("\nspec:\n")
    assert all((metadata, spec, rest.startswith("  name: "))), "a CRD begins as `make crds` writes it"
    annotations = "" if "\n  annotations:\n" in own else "\n  annotations:"
    kept = f"\n    {{{{- if .Values.crds.keep }}}}\n    {KEEP}: keep\n    {{{{- end }}}}"
    labels = '\n  labels:\n    {{- include "plumage.labels" . | nindent 4 }}'
    return (
        "{{- if .Values.crds.enabled }}\n{{- /* Written by scripts/make_chart.py from crds/. */}}\n"
        + f"{head}{metadata}{_literal(own)}{annotations}{kept}{labels}{_literal(rest[len(own) :])}"
        + "{{- end }}\n"
    )


def _literal(text: str) -> str:
    """What a template prints as `text`."""
    return re.sub(r"\{\{|\}\}", lambda braces: '{{ "' + braces[0] + '" }}', text)


def rules() -> str:
    """Named templates with the rules of each role."""
    always = [_only(rule, lambda kind: kind not in OPTIONAL.values()) for rule in permissions.IN_POOLS]
    blocks: dict[str, Iterable[Rule]] = {"pools": always, "system": permissions.IN_SYSTEM, "router": ROUTER}
    for switch, wanted in OPTIONAL.items():
        blocks[switch] = [_only(rule, wanted.__eq__) for rule in permissions.IN_POOLS]
        assert any(rule.resources for rule in blocks[switch]), f"the operator has no right to {wanted}"
    head = "{{/* Written by scripts/make_chart.py from plumage_operator.permissions. */}}\n"
    texts = {name: _rules(block) for name, block in blocks.items()} | {"writes": writes()}
    return head + "".join(
        f'\n{{{{- define "plumage.rules.{name}" -}}}}\n{text}{{{{- end }}}}\n' for name, text in texts.items()
    )


def writes() -> str:
    """Rules of an admission policy: what the operator creates, changes or deletes and can carry a label of ours."""
    written = [
        rule
        for rule in permissions.IN_POOLS
        if {"create", "delete", "patch", "update"} & {*rule.verbs}
        and rule.group != GROUP
        and rule.resources != ("events",)
    ]
    return "".join(
        f"- apiGroups: {json.dumps([rule.group])}\n"
        '  apiVersions: ["*"]\n'
        f"  resources: {json.dumps(list(rule.resources))}\n"
        "  operations: [CREATE, UPDATE, DELETE]\n"
        for rule in written
    )


def _rules(block: Iterable[Rule]) -> str:
    return "".join(_rule(rule) for rule in block if rule.resources)


def _only(rule: Rule, wanted: Callable[[tuple[str, str]], bool]) -> Rule:
    """The rule, for those of its resources that are wanted."""
    return replace(rule, resources=tuple(one for one in rule.resources if wanted((rule.group, one))))


def _rule(rule: Rule) -> str:
    lines = [
        f"- apiGroups: {json.dumps([rule.group])}",
        f"  resources: {json.dumps(list(rule.resources))}",
        f"  verbs: {json.dumps(list(rule.verbs))}",
    ]
    if rule.names == (permissions.ROUTER_ROLE,):
        lines.append("  resourceNames: [{{ .Values.rbac.routerRole | quote }}]")
    elif rule.names:
        lines.append(f"  resourceNames: {json.dumps(list(rule.names))}")
    return "\n".join(lines) + "\n"


def readme() -> str:
    """The head, written by hand, and a table of the values."""
    head = (CHART / "README.head.md").read_text()
    table = "".join(
        f"| `{path}` | {_code(default)} | {text} |\n"
        for path, default, text in values((CHART / "values.yaml").read_text())
    )
    return f"{head}\n## Values\n\n| value | default | meaning |\n|---|---|---|\n{table}"


def _code(default: Any) -> str:
    """A map that only groups others has no default of its own."""
    return "" if default is None else f"`{json.dumps(default, ensure_ascii=False)}`"


def values(text: str) -> Iterator[tuple[str, Any, str]]:
    """(path, default, meaning) of each value, in the file's order. A key without a comment is its parent's matter.

    >>> list(values("# All of it.\\na:\\n  # One.\\n  b: 1\\n"))
    [('a', None, 'All of it.'), ('a.b', 1, 'One.')]
    """
    defaults = yaml.safe_load(text)
    path: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            comment.append(stripped.lstrip("# "))
            continue
        key = re.match(r"( *)([A-Za-z0-9_]+):", line)
        if key is not None and comment:
            path = [*path[: len(key[1]) // 2], key[2]]
            yield ".".join(path), _default(_at(defaults, path), text, path), " ".join(comment)
        comment = []


def _at(defaults: Any, path: list[str]) -> Any:
    for key in path:
        defaults = defaults[key]
    return defaults


def _default(value: Any, text: str, path: list[str]) -> Any:
    """None for a map whose keys have their own comments."""
    if not isinstance(value, dict) or not value:
        return value
    indent = "  " * len(path)
    has_comments = re.search(rf"^{indent[2:]}{path[-1]}:\n{indent}#", text, re.MULTILINE)
    return None if has_comments else value


if __name__ == "__main__":
    sys.exit(main())
