#!/usr/bin/env python3
"""Writes crds/*.yaml, the CustomResourceDefinitions, from the models in plumage.api.v1alpha1.

python scripts/make_crds.py            # write the files
python scripts/make_crds.py --check    # status 1 when the files are not what the models say
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from plumage.api.crd import definitions

FOLDER = Path(__file__).parents[1] / "crds"
HEAD = "# Written by `make crds` from the models in core/plumage/api/v1alpha1; change those, not this file.\n"


def files() -> dict[Path, str]:
    """What each file should hold."""
    return {FOLDER / _name(one["metadata"]["name"]): HEAD + _text(one) for one in definitions()}


def _name(definition: str) -> str:
    """controller-gen's form, which tools look for: GROUP_PLURAL.yaml."""
    plural, _, group = definition.partition(".")
    return f"{group}_{plural}.yaml"


def _text(definition: object) -> str:
    return yaml.safe_dump(definition, sort_keys=False, width=110, allow_unicode=True)


def main() -> int:
    if "--check" in sys.argv[1:]:
        stale = [path for path, text in files().items() if not path.exists() or path.read_text() != text]
        for path in stale:
            print(f"{path.relative_to(FOLDER.parent)} is not what the models say: make crds", file=sys.stderr)
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
