#!/usr/bin/env bash
# Installs the Debian packages that the test cluster, the images and the check of metrics need: as root on Debian or
# Ubuntu. Elsewhere it names those that are absent.
set -euo pipefail
declare -A package=([ip]=iproute2 [nft]=nftables [iptables]=iptables [unshare]=util-linux [buildah]=buildah [debootstrap]=debootstrap [promtool]=prometheus)
lacking=()
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
for program in "${!package[@]}"; do command -v "$program" >/dev/null || lacking+=("${package[$program]}"); done
[ ${#lacking[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "packages: the tests need ${lacking[*]}; on Debian and Ubuntu: sudo apt-get install -y ${lacking[*]}" >&2
  exit 1
fi
echo "packages: installing ${lacking[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${lacking[@]}" >/dev/null
