#!/usr/bin/env bash
# Runs the tests part by part and prints the time of each part. Some parts compute, others mostly wait, so they run in
# lanes beside each other. A part that fails under that load runs its failed tests once more, alone (0146).
# `--quick` alone runs the parts that need neither vLLM nor a Kubernetes API server.
# Other arguments go to pytest and replace the parts; tests/vllm among them runs with the python that has vLLM.
set -uo pipefail
bin="${BIN:-.venv/bin}" vllm="${VLLM_VENV:-.venv-vllm}/bin"
faults=tests/e2e_cluster/test_faults_under_load.py  # has its own cluster: it kills the operator and freezes a node
exec 3>&1 4>&1  # 4 stays the terminal where a part writes to its log, so that a download of gigabytes is shown

# Installs what tests/vllm needs. On failure, $reason says why.
set_up_vllm() { reason="$(make --no-print-directory setup-vllm 2>&1 >&4 | grep -v '^make'; exit "${PIPESTATUS[0]}")"; }
pytest_with_vllm() { HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 "$vllm/python" -m pytest "$@"; }

# Parts of `shown` print as they run, one after another. Each lane runs beside them and prints when it has ended.
shown=(unit contract) lanes=(faults e2e_cluster operator integration vllm e2e)
case " $* " in
  " --quick "*)
    shown=(quick_unit_a_f)
    lanes=(quick_unit_g_z quick_router_a_l quick_router_m_z "quick_simulator quick_contract")
    shift ;;
  *" tests/vllm"*) set_up_vllm || { echo "$reason" >&2; exit 1; }; pytest_with_vllm "$@"; exit ;;
esac
if [ $# -gt 0 ]; then exec "$bin/python" -m pytest "$@"; fi

# The programs and images of the test cluster are built beside the first tests. A test that misses them is skipped with
# the reason, or fails in CI; this log says why the build failed.
logs="$(mktemp -d)" jobs=()
stop_jobs() { for job in "${jobs[@]}"; do kill -- "-$job"; done 2>/dev/null; rm -rf "$logs"; }
trap stop_jobs EXIT
cluster() { BIN="$bin" bash scripts/cluster.sh "$@"; }
uses_cluster() { [ -d tests/e2e_cluster ] && [[ " ${lanes[*]} " == *" e2e_cluster "* ]]; }
make_cluster() {
  cluster programs api && [ "$(id -u)" = 0 ] && cluster programs nodes && touch "$logs/programs" &&
    bash scripts/make_images.sh plumage engine-without-vllm
}
# The tests start their cluster while the images are built, and then wait for PLUMAGE_IMAGES_BUILT.
wait_for_programs() {
  until [ -f "$logs/programs" ] || [ -f "$logs/cluster.status" ]; do sleep 1; done
  export PLUMAGE_IMAGES_BUILT="$logs/cluster.status"
}

# Prints pytest's paths of a part; nothing where this checkout lacks them.
part_paths() {
  case "$1" in
    faults) ls "$faults" ;;
    e2e_cluster) [ ! -d tests/e2e_cluster ] || echo "tests/e2e_cluster --ignore=$faults" ;;
    operator) ls -d tests/integration/operator ;;
    integration) ls -d tests/integration/[!_]*/ | grep -v /operator/ ;;
    vllm) ls -d tests/vllm/[!_]*/ | grep -v /fleet/; ls -d tests/vllm/fleet/ ;;  # fleets last, when less runs beside
    quick_unit_a_f) ls -d tests/unit/[a-f]*/ ;;  # half of their CPU time
    quick_unit_g_z) ls -d tests/unit/[g-z]*/ ;;
    quick_contract) ls -d tests/contract ;;
    quick_router_a_l) ls tests/integration/router/test_[a-l]*.py ;;  # they wait more than they compute
    quick_router_m_z) ls tests/integration/router/test_[m-z]*.py ;;
    quick_simulator) ls -d tests/integration/simulator ;;
    *) ls -d "tests/$1" ;;
  esac 2>/dev/null
}

# Runs pytest on one part, with further arguments. Each part has its own cache of failed tests. The tests of a cluster wait
# for its images and end last, so they come first. Parts that compute without a wait come last.
run_pytest() (
  name=$1; shift
  set -- -q -o "cache_dir=$logs/cache-$name" $(part_paths "$name") "$@"  # split into words
  [ "${name#quick_}" = "$name" ] || set -- "$@" -m "not api_server"
  case "$name" in
    unit | contract | quick_unit_* | quick_contract) renice -n 8 "$BASHPID" >/dev/null ;;
    vllm | operator | integration | e2e) renice -n 4 "$BASHPID" >/dev/null ;;
  esac
  if [ "$name" = vllm ]; then pytest_with_vllm "$@"; else "$bin/python" -m pytest "$@"; fi
)

# Sets up what a part needs and runs it. Returns 42 if this machine can not run it.
run_part() {
  case "$1" in
    vllm) set_up_vllm || { printf "== SKIPPED: tests/vllm, because\n%s\n" "$reason"; return 42; } ;;
    contract | integration | operator) cluster programs api || true ;;
    e2e_cluster | faults) wait_for_programs ;;
  esac
  run_pytest "$1"
}

# Prints the CPU seconds of this shell's processes, from the output of `times`.
cpu_seconds() { tail -1 "$1" | tr ms '  ' | awk '{ printf "%.0f", 60 * $1 + $2 + 60 * $3 + $4 }'; }

# Runs a part and writes its line of the final summary.
record_part() (
  local start=$SECONDS status=0 words
  run_part "$1" || status=$?
  times >"$logs/$1.times"
  words="$((SECONDS - start)) s, $(cpu_seconds "$logs/$1.times") s of CPU"
  case "$status" in
    0) ;;
    42) words="SKIPPED, can not be set up here"
       [ -z "${CI:-}" ] || { echo "== with CI set, a missing part is a failure" >&2; words+=" FAILED"; } ;;
    *) words+=" FAILED" ;;
  esac
  echo "   $1: $words" >"$logs/$1.summary"
  echo "$status" >"$logs/$1.status"
)

# Prints pytest's summary of a log, or the log's end if pytest wrote no summary.
failure_summary() { sed -n '/short test summary info/,$p' "$1" | grep . | head -40 || tail -40 "$1"; }

# Runs the failed tests of a part again, if they are few. Unit tests have neither clocks nor sockets, so they have no retry.
passes_alone() {
  local known="$logs/cache-$1/v/cache/lastfailed"
  [[ "$1" != *unit* ]] && [ "$(cat "$logs/$1.status")" = 1 ] && [ "$(grep -c ': true' "$known")" -le 5 ] || return 1
  echo "== test: the failed tests of $1 once more, alone"
  run_pytest "$1" --last-failed --last-failed-no-failures=none
}

# Runs parts one after another, each into its log.
run_lane() {
  local name
  for name in "$@"; do
    [ -z "$(part_paths "$name")" ] || record_part "$name" >"$logs/$name" 2>&1 3>&1
  done
}

# Prints what still runs and what is built for the cluster: minutes without a line look like a hang.
print_progress() {
  local name left=""
  for name in ${lanes[*]}; do [ -f "$logs/$name.shown" ] || left+=" $name"; done
  echo "== test: $((SECONDS / 60)) minutes so far, still running:$left"
  [ -f "$logs/cluster.status" ] || [ ! -s "$logs/cluster" ] || echo "   for the cluster: $(tail -1 "$logs/cluster")"
}

# Prints the log of each part in a lane when the part has ended.
print_lanes() {
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
    [ $((SECONDS - last)) -lt 60 ] || { print_progress; last=$SECONDS; }
    sleep 1
  done
}

# Printed before the wait, because the first build takes longer than the tests on a busy machine.
if uses_cluster && ! cluster programs "$([ "$(id -u)" = 0 ] && echo nodes || echo api)" --check 2>/dev/null; then
  echo "== test: the first time, the test cluster's programs are built: about 12 minutes on two cores with nothing else to
   do, 36 were measured beside other work. They are kept; make cluster-programs builds them alone, with its progress"
fi
set -m  # process groups of their own: otherwise their processes would ignore SIGINT, which tests send
! uses_cluster || { { make_cluster >"$logs/cluster" 2>&1; echo "$?" >"$logs/cluster.status"; } & jobs+=("$!"); }
echo "== test: ${lanes[*]}, beside the others; each is shown when it has ended"
for names in "${lanes[@]}"; do
  run_lane $names &  # split into words
  jobs+=("$!")
done
set +m
[ ! -t 1 ] || export PY_COLORS=1  # pytest writes into a pipe
for name in "${shown[@]}"; do
  [ -n "$(part_paths "$name")" ] || continue
  echo "== test: $name"
  record_part "$name" 2>&1 | tee "$logs/$name"
done
print_lanes
if uses_cluster && [ "$(cat "$logs/cluster.status")" != 0 ]; then
  echo "== the cluster's programs and images were not built:"
  tail -20 "$logs/cluster"
fi
if [[ "${lanes[*]}" == quick_* ]]; then
  echo "== these were the quick tests: make test also runs a Kubernetes API server, test clusters, whole pools and real vLLM"
else
  echo "== not among these: a real vLLM engine in the cluster, whose image is 4 GB: make e2e-vllm; ten pairs of a fleet that
   shrinks, twenty minutes: make e2e-victims"
fi
echo "== time of each part"
cat "$logs"/*.summary
failed=0
for log in $(grep -l FAILED "$logs"/*.summary); do
  name="$(basename "$log" .summary)"
  printf '== %s failed:\n%s\n' "$name" "$(failure_summary "$logs/$name")"
  passes_alone "$name" && echo "== $name: these PASS ALONE. They depend on time; please look for the race" || failed=1
done
[ "$failed" = 0 ] && echo "== all parts passed" || echo "== a part failed: see above" >&2
exit "$failed"
