#!/usr/bin/env bash
# Runs the tests part by part and prints the time of each. Parts are lanes beside each other: some compute, most wait, and
# a cluster's story of faults takes ten minutes however fast the machine is. What failed in that crowd runs once more,
# alone, and is told either way (0146).
# Arguments go to pytest and replace the parts; tests/vllm among them runs where vLLM is.
set -uo pipefail
bin="${BIN:-.venv/bin}" vllm="${VLLM_VENV:-.venv-vllm}/bin"
lanes=(faults e2e_cluster integration vllm)  # beside those that are shown as they run
story=tests/e2e_cluster/test_faults_under_load.py  # has a cluster of its own: it kills the operator and freezes a node
exec 3>&1 4>&1  # 4 stays the terminal where a part writes into its log: a download of gigabytes is not hidden there

# Sets up what tests/vllm needs; what it says of a failure is left in $reason.
vllm_is_there() { reason="$(make --no-print-directory setup-vllm 2>&1 >&4 | grep -v '^make'; exit "${PIPESTATUS[0]}")"; }
with_vllm() { HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 "$vllm/python" -m pytest "$@"; }

case " $* " in
  *" tests/vllm"*) vllm_is_there || { echo "$reason" >&2; exit 1; }; with_vllm "$@"; exit ;;
esac
if [ $# -gt 0 ]; then exec "$bin/python" -m pytest "$@"; fi

# What a real API server and the test cluster are made of is built beside the first tests. A test that misses it then says
# why, and is skipped, in CI failed; this log says what became of it.
logs="$(mktemp -d)" beside=()
end() { for job in "${beside[@]}"; do kill -- "-$job"; done 2>/dev/null; rm -rf "$logs"; }
trap end EXIT
cluster() { BIN="$bin" bash scripts/cluster.sh "$@"; }
make_cluster() {
  cluster programs api && [ "$(id -u)" = 0 ] && cluster programs nodes && bash scripts/make_images.sh plumage engine-without-vllm
}
is_made() {
  until [ -f "$logs/cluster.status" ]; do sleep 1; done
  [ "$(cat "$logs/cluster.status")" = 0 ] || { echo "== the cluster's programs and images:"; tail -20 "$logs/cluster"; }
}

# Where a part's tests are; nothing where they are not here.
places() {
  case "$1" in
    faults) ls "$story" ;;
    e2e_cluster) [ ! -d tests/e2e_cluster ] || echo "tests/e2e_cluster --ignore=$story" ;;
    vllm) ls -d tests/vllm/[!_]*/ | grep -v /fleet/; ls -d tests/vllm/fleet/ ;;  # fleets last, when less runs beside
    *) ls -d "tests/$1" ;;
  esac 2>/dev/null
}

# One part's tests, with pytest's arguments; each part remembers by itself what failed. Real vLLM takes longest, and a
# cluster's stories go by the clock: the other parts give way to them, those with clocks of their own too. Side by side
# as equals, with a load of 50, vLLM ended four minutes after all others.
tests() (
  name=$1; shift
  set -- -q -o "cache_dir=$logs/cache-$name" $(places "$name") "$@"  # split into words
  case "$name" in vllm | e2e_cluster | faults) ;; *) renice -n 5 "$BASHPID" >/dev/null ;; esac
  if [ "$name" = vllm ]; then with_vllm "$@"; else "$bin/python" -m pytest "$@"; fi
)

# The same; 42 where the machine can not run it.
part() {
  case "$1" in
    vllm) vllm_is_there || { printf "== SKIPPED: tests/vllm, because\n%s\n" "$reason"; return 42; } ;;
    contract | integration) cluster programs api || true ;;
    e2e_cluster | faults) is_made ;;
  esac
  tests "$1"
}

# Seconds of CPU that the processes of this shell took, from what `times` says of them.
cpu() { tail -1 "$1" | tr ms '  ' | awk '{ printf "%.0f", 60 * $1 + $2 + 60 * $3 + $4 }'; }

# part, and what is to be told of it in the end.
told() (
  local start=$SECONDS status=0 words
  part "$1" || status=$?
  times >"$logs/$1.times"
  words="$((SECONDS - start)) s, $(cpu "$logs/$1.times") s of CPU"
  case "$status" in
    0) ;;
    42) words="SKIPPED, can not be set up here"
       [ -z "${CI:-}" ] || { echo "== in CI nothing is skipped" >&2; words+=" FAILED"; } ;;
    *) words+=" FAILED" ;;
  esac
  echo "   $1: $words" >"$logs/$1.told"
  echo "$status" >"$logs/$1.status"
)

# pytest's summary of what failed, or what was said last where it came to none.
said_last() { sed -n '/short test summary info/,$p' "$1" | grep . | head -40 || tail -40 "$1"; }

# Few tests of a part with clocks and sockets in it failed: do they pass alone? unit has neither.
passes_alone() {
  local known="$logs/cache-$1/v/cache/lastfailed"
  [ "$1" != unit ] && [ "$(cat "$logs/$1.status")" = 1 ] && [ "$(grep -c ': true' "$known")" -le 5 ] || return 1
  echo "== test: what failed of $1 once more, alone"
  tests "$1" --last-failed --last-failed-no-failures=none
}

# Parts one after another, into their logs.
lane() {
  local name
  for name in "$@"; do
    [ -z "$(places "$name")" ] || told "$name" >"$logs/$name" 2>&1 3>&1
  done
}

# What still runs, and what is built for the cluster: minutes without a line look like a hang.
still_waiting() {
  local name left=""
  for name in ${lanes[*]}; do [ -f "$logs/$name.shown" ] || left+=" $name"; done
  echo "== test: $((SECONDS / 60)) minutes so far, still running:$left"
  [ -f "$logs/cluster.status" ] || [ ! -s "$logs/cluster" ] || echo "   for the cluster: $(tail -1 "$logs/cluster")"
}

# The parts of all lanes, each when it has ended.
show_lanes() {
  local running name last=$SECONDS
  while
    running="$(jobs -rp)"
    for name in ${lanes[*]}; do
      [ -f "$logs/$name.status" ] && [ ! -f "$logs/$name.shown" ] || continue
      echo "== test: $name"
      cat "$logs/$name"
      touch "$logs/$name.shown"
    done
    [ -n "$running" ]
  do
    [ $((SECONDS - last)) -lt 60 ] || { still_waiting; last=$SECONDS; }
    sleep 1
  done
}

# Says it before the wait: what is built once takes longer than the tests on a busy machine.
if [ -d tests/e2e_cluster ] && ! cluster programs "$([ "$(id -u)" = 0 ] && echo nodes || echo api)" --check 2>/dev/null; then
  echo "== test: the first time, the test cluster's programs are built: about 12 minutes on two cores with nothing else to
   do, 36 were measured beside other work. They are kept; make cluster-programs builds them alone, with its progress"
fi
set -m  # groups of their own: without one their processes would ignore SIGINT, which tests send
[ ! -d tests/e2e_cluster ] || { { make_cluster >"$logs/cluster" 2>&1; echo "$?" >"$logs/cluster.status"; } & beside+=("$!"); }
echo "== test: ${lanes[*]}, beside the others; each is shown when it has ended"
for names in "${lanes[@]}"; do
  lane $names &  # split into words
  beside+=("$!")
done
set +m
[ ! -t 1 ] || export PY_COLORS=1  # pytest writes into a pipe
for name in unit contract e2e; do
  [ -n "$(places "$name")" ] || continue
  echo "== test: $name"
  told "$name" 2>&1 | tee "$logs/$name"
done
show_lanes
echo "== not among these: a real vLLM engine in the cluster, whose image is 4 GB: make e2e-vllm; ten pairs of a fleet that
   shrinks, twenty minutes: make e2e-victims"
echo "== time of each part"
cat "$logs"/*.told
failed=0
for log in $(grep -l FAILED "$logs"/*.told); do
  name="$(basename "$log" .told)"
  printf '== %s failed:\n%s\n' "$name" "$(said_last "$logs/$name")"
  passes_alone "$name" && echo "== $name: these PASS ALONE. Something in them hangs on time; please look for it" || failed=1
done
[ "$failed" = 0 ] && echo "== all parts passed" || echo "== a part failed: see above" >&2
exit "$failed"
