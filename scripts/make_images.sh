#!/usr/bin/env bash
# Builds the images: make_images.sh [plumage|engine|cpu-engine|engine-without-vllm]…   (default: plumage engine)
#
# With docker, podman or buildah: TOOL, else the first that works. REPOSITORY (default: localhost) and TAG (the version)
# make the names. BASE says what they stand on: `registry` takes the Dockerfiles' own bases, `debootstrap` a Debian made
# here (root and debootstrap needed), where no registry is reached; without BASE it is found out. PLUMAGE_BASE and
# ENGINE_BASE name other bases. BUILD_BASE names what compiles the router beside PLUMAGE_BASE: the same Python with its
# headers and gcc. COMPILE=false leaves that out; then the router takes about 40 % more CPU.
# `cpu-engine` is the engine image on vLLM's CPU build (3.5 GB), for tests without a GPU. WHEELS is a folder with PyTorch's CPU build for it, where PyTorch's index is not reached. `engine-without-vllm` is the
# engine image on a base that has no vLLM, for CI: it runs the same steps, and pods of simulated engines run from it.
# pip's own settings are passed on as secrets: PIP_CONFIG_FILE, and PIP_CERT or SSL_CERT_FILE.
set -euo pipefail
cd "$(dirname "$0")/.."
repository="${REPOSITORY:-localhost}"
version="$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml | head -1)"
tag="${TAG:-$version}"
cache="${PLUMAGE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/plumage}/images"
secrets=()

refuse() { printf 'images: %s\n' "$@" >&2; exit 1; }
step() { echo "images: $1 ($SECONDS s so far)"; }

works() {
  command -v "$1" >/dev/null || return 1
  case "$1" in buildah) ;; *) timeout 20 "$1" info >/dev/null 2>&1 ;; esac
}
find_tool() {
  local tool
  for tool in ${TOOL:-docker podman buildah}; do works "$tool" && { echo "$tool"; return; }; done
  refuse "${TOOL:-none of docker, podman and buildah} works here (docker without its daemon does not)." \
    "On Debian and Ubuntu: apt-get install buildah"
}

# Where nothing else can start containers, buildah's chroot isolation can; for the others it is no setting.
build() {
  case "$tool" in
    buildah) buildah bud --isolation "${BUILDAH_ISOLATION:-chroot}" --layers --ulimit nofile=20000:20000 "$@" ;;
    docker) DOCKER_BUILDKIT=1 docker build "$@" ;;
    podman) podman build "$@" ;;
  esac
}
exists() {
  case "$tool" in
    buildah) buildah inspect --type image "$1" >/dev/null 2>&1 ;;
    *) "$tool" image inspect "$1" >/dev/null 2>&1 ;;
  esac
}
import_folder() { # FOLDER NAME
  case "$tool" in
    buildah)
      local container; container="$(buildah from scratch)"
      buildah add -q "$container" "$1" / >/dev/null
      buildah config --env LANG=C.UTF-8 --cmd /bin/bash "$container"
      buildah commit -q "$container" "$2" >/dev/null; buildah rm "$container" >/dev/null ;;
    *) tar -C "$1" -c . | "$tool" import - "$2" >/dev/null ;;
  esac
}

debian="localhost/plumage-debian:bookworm" debian_build="localhost/plumage-debian-build:bookworm"
make_debian() { # IMAGE FOLDER PACKAGES
  exists "$1" && return
  command -v debootstrap >/dev/null || refuse "no registry, so debootstrap makes the base: apt-get install debootstrap"
  [ "$(id -u)" = 0 ] || refuse "debootstrap needs root; or name a base that you have: PLUMAGE_BASE=IMAGE"
  mkdir -p "$cache"
  local root="$cache/$2"
  if [ ! -e "$root/.complete" ]; then
    step "debootstrap: Debian bookworm with $3, one to ten minutes, once ($cache/debootstrap.log)"
    rm -rf --one-file-system "$root"
    debootstrap --variant=minbase --include="$3" bookworm "$root" \
      ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >"$cache/debootstrap.log" 2>&1 || refuse "debootstrap failed; its last lines:" \
      "$(tail -3 "$cache/debootstrap.log")" "DEBIAN_MIRROR names another mirror."
    rm -rf "$root/var/cache/apt" "$root/var/lib/apt/lists" "$root"/var/log/*.log \
      "$root/usr/share/doc" "$root/usr/share/man" "$root/usr/share/locale"
    touch "$root/.complete"
  fi
  import_folder "$root" "$1"
}

registry_answers() {
  local code
  code="$(curl -sS -o /dev/null -m 10 -w '%{http_code}' https://registry-1.docker.io/v2/ 2>/dev/null || true)"
  [ "$code" = 200 ] || [ "$code" = 401 ]
}

# One image: NAME DOCKERFILE BASE [FLAG]…; an empty BASE is the Dockerfile's own.
image() {
  local name="$repository/$1:$tag" base=("${@:4}")
  [ -z "$3" ] || base+=(--build-arg "BASE_IMAGE=$3")
  case "$3" in localhost/*) [ "$tool" != buildah ] || base+=(--pull-never) ;; esac
  step "$name${3:+ on $3}"
  build -f "$2" -t "$name" "${base[@]}" "${secrets[@]}" --build-arg "VERSION=$version" \
    --build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || echo unknown)" \
    --build-arg "CREATED=$(git log -1 --format=%cI 2>/dev/null || echo unknown)" . \
    || refuse "$name was not built; the lines above say why"
  exists "$name" || refuse "$tool said nothing, and there is no $name"
  step "$name is there"
}

tool="$(find_tool)" || exit 1
[ "$tool" != buildah ] || export STORAGE_DRIVER="${STORAGE_DRIVER:-overlay}"
[ ! -e "${PIP_CONFIG_FILE:-/etc/pip.conf}" ] || secrets+=(--secret "id=pip,src=${PIP_CONFIG_FILE:-/etc/pip.conf}")
ca="${PIP_CERT:-${SSL_CERT_FILE:-}}"
[ -z "$ca" ] || secrets+=(--secret "id=ca,src=$ca")

base="${BASE:-$(registry_answers && echo registry || echo debootstrap)}"
plumage_base="${PLUMAGE_BASE:-}" engine_base="${ENGINE_BASE:-}" build_base="${BUILD_BASE:-}" compile="${COMPILE:-true}"
case "$compile" in true | false) ;; *) refuse "COMPILE must be true or false, and is '$compile'" ;; esac
if [ -n "$plumage_base" ] && [ -z "$build_base" ] && [ "$compile" = true ]; then
  echo "images: the router is not compiled: name by BUILD_BASE an image with the Python of $plumage_base and gcc" >&2
  compile=false
fi
case "$base" in
  registry) ;;
  debootstrap)
    if [ -z "$plumage_base" ]; then
      python="python3-minimal,python3-venv" plumage_base="$debian"
      make_debian "$debian" debian "$python"
      if [ "$compile" = true ] && [ -z "$build_base" ]; then
        build_base="$debian_build"
        make_debian "$build_base" debian-build "$python,python3-dev,gcc"
      fi
    fi ;;
  *) refuse "BASE must be registry or debootstrap, and is '$base'" ;;
esac
[ "$compile" = true ] || build_base="$plumage_base"
compiling=(--build-arg "COMPILE=$compile") engine_compiling=()
[ -z "${COMPILE:-}" ] || engine_compiling=(--build-arg "COMPILE=$COMPILE")  # else where its base has a compiler
[ -z "$build_base" ] || compiling+=(--build-arg "BUILD_IMAGE=$build_base")
step "$tool builds $version; base: $base"

[ $# -gt 0 ] || set -- plumage engine
for what; do
  case "$what" in
    plumage) image plumage images/plumage/Dockerfile "$plumage_base" "${compiling[@]}" ;;
    engine)
      [ "$base" = registry ] || [ -n "$engine_base" ] || refuse \
        "the engine image stands on vllm/vllm-openai, and no registry answers: name a copy by ENGINE_BASE=IMAGE," \
        "or make_images.sh cpu-engine for vLLM's CPU build (3.5 GB), or make_images.sh plumage for all but vLLM."
      image plumage-engine images/engine/Dockerfile "$engine_base" "${engine_compiling[@]}" ;;
    cpu-engine)
      wheels="${WHEELS:-../shared/wheels}"
      context=(); [ ! -d "$wheels" ] || context=(--build-context "wheels=$(cd "$wheels" && pwd)")
      image plumage-vllm-cpu images/engine/cpu.Dockerfile "$plumage_base" "${context[@]}"
      image plumage-engine images/engine/Dockerfile "$repository/plumage-vllm-cpu:$tag" "${engine_compiling[@]}" ;;
    engine-without-vllm)
      image plumage-without-vllm images/engine/without-vllm.Dockerfile "$plumage_base"
      image plumage-engine-without-vllm images/engine/Dockerfile "$repository/plumage-without-vllm:$tag" "${engine_compiling[@]}" ;;
    *) refuse "there is no image '$what': plumage, engine, cpu-engine or engine-without-vllm" ;;
  esac
done
