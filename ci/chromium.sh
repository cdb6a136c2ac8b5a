#!/usr/bin/env bash
# Puts Debian's Chromium, with which reports are looked at, into a folder: the one on
# PATH, else the package and those that it needs, which needs Debian and no root.
#
#   ci/chromium.sh FOLDER
set -euo pipefail
folder=$1
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
for name in chromium chromium-headless-shell google-chrome; do
    if command -v "$name" >/dev/null; then
        ln -sf "$(command -v "$name")" "$folder/chromium"
        exit
    fi
done
# shellcheck source=ci/debian.sh
. "$(dirname "$0")/debian.sh"
get update
# What is not installed of it, by name.
wanted=$(get --simulate --no-install-recommends install chromium-headless-shell fonts-dejavu-core |
    sed -n 's/^Inst \([^ ]*\) .*/\1/p')
# shellcheck disable=SC2086
unpack $wanted
rm -rf "$folder/root"
mv "$scratch/root" "$folder/root"
program=$(find "$folder/root/usr" -name "*headless-shell" -type f -size +1M)
libraries=$(find "$folder/root" -name "*.so*" -printf "%h\n" | sort -u | paste -sd :)
cat >"$folder/chromium.part" <<EOF
#!/bin/sh
export LD_LIBRARY_PATH="$libraries"
export XDG_DATA_DIRS="$folder/root/usr/share:/usr/share"
exec "$program" "\$@"
EOF
chmod +x "$folder/chromium.part"
mv "$folder/chromium.part" "$folder/chromium"
