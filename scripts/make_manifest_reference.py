#!/usr/bin/env python3
"""Write docs/reference/manifest.md from plumage.api.v1alpha1: each field with its form, default and meaning.

python scripts/make_manifest_reference.py            # write the page
python scripts/make_manifest_reference.py --check    # status 1 when the page is not what the models say
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plumage.api.v1alpha1 import InferenceGateway, InferencePool
from plumage.api.v1alpha1.scheduling import Placement
from plumage.api.v1alpha1.struct import Struct

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "manifest.md"
HEAD = """# Manifests: every field

`inference.plumage.dev/v1alpha1`. Written by `scripts/make_manifest_reference.py` from the models; change those, not
this page. `plumage validate FILE` checks a manifest and names every mistake in it at once; an API server does so by the
same rules ([kinds.md](kinds.md)).

A field without a default must be set, unless its form says *optional*. A quantity is an integer or a string such as
`16Gi`, `500m` or `"0.5"`; there are no floats. What the API server or the operator writes (`status`, most of
`metadata`) is left out here, and so is what is inside `affinity` and `topologySpreadConstraints`: these are Kubernetes'
own, and `kubectl explain ppool.spec.engine.affinity --recursive` lists them.
"""
LEFT_OUT = {"status", "apiVersion", "kind", "metadata"}
PLACEMENT = {field.alias or name for name, field in Placement.model_fields.items()}
KUBERNETES_OWN = {"affinity", "topologySpreadConstraints"}


def page() -> str:
    """The whole page."""
    return HEAD + "".join(_kind(kind) for kind in (InferencePool, InferenceGateway))


def _kind(kind: type[Struct]) -> str:
    schema = kind.model_json_schema()
    rows = list(_sections("", schema, schema["$defs"], LEFT_OUT))
    return f"\n# {kind.__name__}\n\n{kind.__doc__}\n{_rules(kind.__name__)}{''.join(rows)}"


def _sections(path: str, schema: dict[str, Any], defs: dict[str, Any], skip: set[str]) -> Iterator[str]:
    """The section of one struct, then those of the structs in it."""
    fields = {name: field for name, field in schema["properties"].items() if name not in skip}
    fields = {name: fields[name] for name in sorted(fields, key=PLACEMENT.__contains__)}  # the same in every part
    if path:
        lines = "".join(_row(name, field, defs, name in schema.get("required", ())) for name, field in fields.items())
        head = "| field | form | default | meaning |\n|---|---|---|---|\n"
        yield f"\n## {path}\n\n{_summary(schema)}\n\n{head}{lines}{_rules(schema['title'])}"
    for name, field in fields.items():
        inner, many = _struct(field, defs)
        if inner is not None and name not in KUBERNETES_OWN:
            yield from _sections(f"{path}.{name}".lstrip(".") + ("[]" if many else ""), inner, defs, set())


def _row(name: str, field: dict[str, Any], defs: dict[str, Any], required: bool) -> str:
    default = "must be set" if required else _default(field, defs)
    return f"| `{name}` | {_form(field, defs)} | {default} | {_meaning(field, defs)} |\n"


def _rules(struct: str) -> str:
    """What holds between the fields, in the words of the error."""
    model = next(model for model in _all_structs(Struct) if model.__name__ == struct)
    rules = [(rule.at, rule.must) for rule in model.rules]
    rules += [(change.at, f"{change.must} (in a cluster)") for change in model.changes]
    lines = "".join(f"- {f'`{at}`' if at else 'it'} {must}\n" for at, must in rules)
    return f"\n{lines}" if lines else ""


def _all_structs(base: type[Struct]) -> Iterator[type[Struct]]:
    for model in base.__subclasses__():
        yield model
        yield from _all_structs(model)


def _meaning(field: dict[str, Any], defs: dict[str, Any]) -> str:
    """pydantic leaves out a description that only repeats the struct's own."""
    text: str = field.get("description") or defs[field["$ref"].rpartition("/")[2]]["description"]
    return text.replace("|", "/")


def _summary(schema: dict[str, Any]) -> str:
    return " ".join(schema.get("description", "").split())


def _struct(field: dict[str, Any], defs: dict[str, Any]) -> tuple[dict[str, Any] | None, bool]:
    """The struct a field holds, and whether it holds several."""
    if field.get("type") == "array":
        return _struct(field["items"], defs)[0], True
    for option in field.get("anyOf", [field]):
        if "$ref" in option:
            found = defs[option["$ref"].rpartition("/")[2]]
            return (found, False) if "properties" in found else (None, False)
    return None, False


def _form(field: dict[str, Any], defs: dict[str, Any]) -> str:
    if "x-kubernetes-int-or-string" in field:
        return "quantity" if "pattern" in field else "integer or percentage"
    if "anyOf" in field:
        options = [option for option in field["anyOf"] if option.get("type") != "null"]
        return "optional " + " or ".join(_form(option, defs) for option in options)
    if "$ref" in field:
        return _form(defs[field["$ref"].rpartition("/")[2]], defs)
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    kind = field.get("type")
    if kind == "integer":
        return f"integer, {field['minimum']:,} to {field['maximum']:,}"
    if kind == "string":
        return f"string, at most {field['maxLength']:,}"
    if kind == "array":
        return f"list of {_form(field['items'], defs)}; at most {field['maxItems']}"
    if kind == "boolean":
        return "true or false"
    return "mapping" if "properties" in field else f"map, at most {field.get('maxProperties', 64)} entries"


def _default(field: dict[str, Any], defs: dict[str, Any]) -> str:
    value = field.get("default")
    if value is None:
        return "–"
    if value in ({}, [], ""):
        return "none"
    if field.get("type") == "array":
        return f"`{json.dumps([{key: held for key, held in entry.items() if held is not None} for entry in value])}`"
    if _struct(field, defs)[0] is not None:
        return "as below"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def main() -> int:
    if "--check" not in sys.argv[1:]:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page())
        return 0
    if PAGE.exists() and PAGE.read_text() == page():
        return 0
    print("docs/reference/manifest.md differs from the models: make docs-pages", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
