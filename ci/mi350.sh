#!/usr/bin/env bash
# What is to be seen on a real MI350 or MI355X, check by check; README.md says what each
# one shows.
#
#   [PYTHON=...] ci/mi350.sh [--list] [FOLDER]
#
# PYTHON is the interpreter of an environment with ROCm's torch, FOLDER keeps logs and
# bundles, and --list prints the commands and runs none.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD/ci/types${PYTHONPATH:+:$PYTHONPATH}"
python=${PYTHON:-python3}
list=
if [ "${1:-}" = --list ]; then
    list=yes
    shift
fi
folder=${1:-build/mi350}
profile=$folder/profile.json
bundle=$folder/bundle
passed=0
failed=0

flytune() {
    "$python" -c "from flytune.tuner.cli import main; main()" "$@"
}

# Runs a command into a log, and says in a line what came of it.
check() {
    local name=$1 log=$folder/$1.log begin=$SECONDS
    shift
    if [ -n "$list" ]; then
        echo "$name: $*"
    elif "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "pass $name ($((SECONDS - begin)) s)"
    else
        failed=$((failed + 1))
        echo "FAIL $name ($((SECONDS - begin)) s): $(reason "$log"); $log"
        return 1
    fi
}

# The first line of a log that names an error, else its last.
reason() {
    grep -m 1 -i "error" "$1" || tail -n 1 "$1"
}

if [ -z "$list" ]; then
    mkdir -p "$folder"
    rm -rf "$profile" "$bundle"
fi
check device flytune doctor --profile "$profile" || exit 1
check gfx950 "$python" ci/mi350_facts.py arch "$profile" || exit 1
check doctor flytune doctor || true
check profile "$python" ci/mi350_facts.py profile "$profile" || true
# As `make test-gpu`, but not in make's own environment: that has PyPI's torch.
check tests "$python" -m pytest -m gpu || true
check build flytune build --model Qwen3-4B --tokens 1,64 \
    --backends ATEN,TRITON,FLYDSL --work "$folder/work" --out "$bundle" || true
if [ -n "$list" ] || [ -e "$bundle" ]; then
    check program "$python" ci/mi350_facts.py program "$bundle" || true
    check verify flytune verify "$bundle" --strict || true
else
    echo "skip program, verify: there is no bundle"
fi
check first_call "$python" ci/bench/first_call.py \
    --state "$folder/first_call.json" --work "$folder/first_call" || true
check regret "$python" ci/bench/regret.py --models Llama-3.1-8B --tokens 16,256 \
    --state "$folder/regret.json" --work "$folder/regret" || true
if [ -n "$list" ]; then
    exit
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
