#!/usr/bin/env bash
# Runs the tests part by part and prints the time of each. Arguments go to pytest and replace the parts.
set -uo pipefail
bin="${BIN:-.venv/bin}"
if [ $# -gt 0 ]; then exec "$bin/python" -m pytest "$@"; fi

failed=0 summary=""
for part in unit contract integration e2e; do
  [ -d "tests/$part" ] || continue
  echo "== test: $part"
  start=$SECONDS
  "$bin/python" -m pytest -q "tests/$part" || failed=1
  summary+="   $part: $((SECONDS - start)) s"$'\n'
done
printf '== time of each part\n%s' "$summary"
[ "$failed" = 0 ] && echo "== all parts passed" || echo "== a part failed: see above" >&2
exit "$failed"
