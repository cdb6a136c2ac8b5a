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
# shellcheck source=ci/debian.sh
. "$(dirname "$0")/debian.sh"
get update
unpack docker-registry
mv "$scratch/root/usr/bin/docker-registry" "$folder/docker-registry.part"
# The package's own time is years ago, and make would get it again and again.
touch "$folder/docker-registry.part"
mv "$folder/docker-registry.part" "$folder/docker-registry"
