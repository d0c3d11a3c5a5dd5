#!/usr/bin/env bash
# Runs the tests part by part and prints the time of each. Arguments go to pytest and replace the parts; tests/vllm among
# them runs where vLLM is.
set -uo pipefail
bin="${BIN:-.venv/bin}" vllm="${VLLM_VENV:-.venv-vllm}/bin"
exec 3>&1

# Sets up what tests/vllm needs; what it says of a failure is left in $reason.
vllm_is_there() { reason="$(make --no-print-directory setup-vllm 2>&1 >&3 | grep -v '^make'; exit "${PIPESTATUS[0]}")"; }
with_vllm() { HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 "$vllm/python" -m pytest "$@"; }

case " $* " in
  *" tests/vllm"*) vllm_is_there || { echo "$reason" >&2; exit 1; }; with_vllm "$@"; exit ;;
esac
if [ $# -gt 0 ]; then exec "$bin/python" -m pytest "$@"; fi

# What a real API server and the test cluster are made of is built beside the unit tests. A test that misses it then says
# why, and is skipped, in CI failed; this log says what became of it.
made="$(mktemp)"
trap 'rm -f "$made"' EXIT
cluster() { BIN="$bin" bash scripts/cluster.sh "$@"; }
make_cluster() {
  cluster programs api && [ "$(id -u)" = 0 ] && cluster programs nodes && bash scripts/make_images.sh plumage
}
[ ! -d tests/e2e_cluster ] || { make_cluster >"$made" 2>&1 & making=$!; }

failed=0 summary=""
for part in unit contract integration e2e e2e_cluster vllm; do
  [ -d "tests/$part" ] || continue
  case "$part" in
    contract) cluster programs api || true ;;
    e2e_cluster) wait "$making" || { echo "== the cluster's programs and images:"; tail -20 "$made"; } >&2 ;;
  esac
  echo "== test: $part"
  start=$SECONDS skipped=""
  if [ "$part" != vllm ]; then "$bin/python" -m pytest -q "tests/$part" || failed=1
  elif vllm_is_there; then with_vllm -q tests/vllm || failed=1
  else
    skipped=" SKIPPED, real vLLM can not be set up here"
    printf '== SKIPPED: tests/vllm, because\n%s\n' "$reason" >&2
    [ -z "${CI:-}" ] || { echo "== in CI nothing is skipped" >&2; failed=1; }
  fi
  summary+="   $part: $((SECONDS - start)) s$skipped"$'\n'
done
printf '== time of each part\n%s' "$summary"
[ "$failed" = 0 ] && echo "== all parts passed" || echo "== a part failed: see above" >&2
exit "$failed"
