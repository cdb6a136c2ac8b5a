# To be sourced: packages of Debian's without root, in a folder that goes with the shell.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Runs apt-get with lists of packages of our own: a fresh machine may have none or old ones.
get() {
    mkdir -p "$scratch/lists/partial" "$scratch/cache/archives/partial"
    apt-get -qq -o Dir::State::Lists="$scratch/lists" -o Dir::Cache="$scratch/cache" \
        -o APT::Sandbox::User="$(id -un)" "$@"
}

# Unpacks packages, named without those that they need, below $scratch/root.
unpack() {
    cd "$scratch"
    get download "$@"
    for package in *.deb; do
        dpkg -x "$package" root
    done
    cd - >/dev/null
}
