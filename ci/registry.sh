#!/usr/bin/env bash
# Puts Debian's docker-registry, to which the tests push, into a folder: the one on PATH,
# else the package's, which needs Debian or Ubuntu and no root.
#
#   ci/registry.sh FOLDER
set -euo pipefail
folder=$1
mkdir -p "$folder"
if command -v docker-registry >/dev/null; then
    ln -sf "$(command -v docker-registry)" "$folder/docker-registry"
    exit
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Lists of packages of our own, since a fresh machine may have none or old ones.
get() {
    mkdir -p "$scratch/lists/partial" "$scratch/cache/archives/partial"
    apt-get -qq -o Dir::State::Lists="$scratch/lists" -o Dir::Cache="$scratch/cache" \
        -o APT::Sandbox::User="$(id -un)" "$@"
}

cd "$scratch"
get update
get download docker-registry
dpkg -x docker-registry_*.deb root
cd - >/dev/null
mv "$scratch/root/usr/bin/docker-registry" "$folder/docker-registry.part"
# The package's own time is years ago, and make would get it again and again.
touch "$folder/docker-registry.part"
mv "$folder/docker-registry.part" "$folder/docker-registry"
