#!/usr/bin/env bash
# Creates the virtual environment. Called by `make setup`; PYTHON and VENV choose interpreter and folder.
set -euo pipefail
python="${PYTHON:-python3}" venv="${VENV:-.venv}"

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "setup: Plumage needs Python 3.11 or newer; '$python' is $("$python" --version 2>&1 || echo missing)." >&2
  echo "       Point PYTHON at one, for example: make setup PYTHON=python3.12" >&2
  exit 1
fi
echo "setup: installing Plumage and its tools into $venv"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || {
  echo "setup: could not create $venv; on Debian and Ubuntu: apt-get install python3-venv" >&2
  exit 1
}
"$venv/bin/python" scripts/install.py -c constraints.txt -e '.[dev]' || {
  echo "setup: the installation failed; the lines above say why. The network, or a full disk (about 1.2 GB is needed)?" >&2
  exit 1
}
touch "$venv/.ready"
echo "setup: done; the command is $venv/bin/plumage"
