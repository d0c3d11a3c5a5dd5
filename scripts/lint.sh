#!/usr/bin/env bash
# What CI calls lint: style, types, and who may import whom.
set -euo pipefail
bin="${BIN:-.venv/bin}"
# One command a line: `set -e` ignores a failure on the left of `&&`.
echo "lint: ruff"
"$bin/ruff" format --check .
"$bin/ruff" check .
echo "lint: mypy --strict"
"$bin/mypy" core router engine operator cli bench
MYPYPATH=tests "$bin/mypy" tests/cluster
echo "lint: import-linter"
"$bin/lint-imports"
"$bin/python" scripts/check_imports.py
echo "lint: crds"
"$bin/python" scripts/make_crds.py --check
echo "lint: evidence"
"$bin/python" scripts/make_evidence.py --check
echo "lint: docs pages"
"$bin/python" scripts/make_docs.py --check
"$bin/python" scripts/make_manifest_reference.py --check
echo "lint: metrics reference"
"$bin/python" scripts/make_metrics_reference.py --check
echo "lint: links and code paths of all pages"
"$bin/python" scripts/check_references.py
echo "lint: docs, strict"
NO_MKDOCS_2_WARNING=1 "$bin/mkdocs" build --strict
echo "lint: words"
"$bin/python" scripts/check_words.py
echo "lint: commit messages"
"$bin/python" scripts/check_commits.py
echo "lint: chart"
"$bin/python" scripts/make_chart.py --check
test ! -e operator/__init__.py || { echo "lint: operator/__init__.py shadows the standard library" >&2; exit 1; }
