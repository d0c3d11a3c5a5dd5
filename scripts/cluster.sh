#!/usr/bin/env bash
# The test cluster's command: cluster.sh up|down|exec|programs (tests/cluster/README.md). RUN names its folder.
here="$(cd "$(dirname "$0")/.." && pwd)"
PYTHONPATH="$here/tests${PYTHONPATH:+:$PYTHONPATH}" exec "${BIN:-$here/.venv/bin}/python" -m cluster "$@"
