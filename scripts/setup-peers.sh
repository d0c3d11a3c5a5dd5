#!/usr/bin/env bash
# Creates the virtual environment with other routers, for `plumage bench router peers=1` and `plumage bench quality`.
# Called by `make setup-peers`; PYTHON and PEERS_VENV choose interpreter and folder. Nothing else needs them.
set -euo pipefail
python="${PYTHON:-python3}" venv="${PEERS_VENV:-.venv-peers}" pins=constraints-peers.txt

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || {
  echo "setup-peers: could not create $venv; on Debian and Ubuntu: apt-get install python3-venv" >&2
  exit 1
}
failed=()
while read -r pin; do
  echo "setup-peers: $pin"
  "$venv/bin/python" scripts/install.py "$pin" || {
    echo "setup-peers: $pin could not be installed for $("$python" --version); the lines above say why." >&2
    failed+=("$pin")
  }
done < <(grep -v '^#' "$pins")
[ ${#failed[@]} -eq 0 ] || {
  echo "setup-peers: the benchmark leaves out: ${failed[*]}" >&2
  exit 1
}
echo "setup-peers: done; measure with .venv/bin/plumage bench router peers=1, or bench quality"
