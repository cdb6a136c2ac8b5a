#!/usr/bin/env bash
# One new bundle against the one that is served, step by step, on any machine.
#
#   GATE_REFERENCE=REGISTRY/REPOSITORY:TAG GATE_BUNDLE=new.tar.zst ci/gate/gate.sh
#
# runs pull, build and check; `gate.sh push` makes the new bundle the baseline. Each step
# may be called by itself, as ci/gate/action.yml and ci/gate/gitlab.yml do, and says with
# what it works. Settings are variables; options are words apart by spaces.
#
#   GATE_REFERENCE  where the baseline is kept, as `flytune pull` takes it
#   GATE_BUNDLE     the new bundle; where it is empty
#   GATE_BUILD      are the arguments of `flytune build`, but --out
#   GATE_PULL, GATE_CHECK, GATE_PUSH  further options of those commands
#   GATE_UNDECIDED  what becomes of times that decide nothing here: fail, or pass
#   GATE_PUBLISH    whether push does so: true, false, or auto on the default branch
#   GATE_DIR        where it all lies  [default: a folder of the runner's, else ./.gate]
#   FLYTUNE         the command
set -euo pipefail

flytune=${FLYTUNE:-flytune}
place=${GATE_DIR:-${RUNNER_TEMP:+$RUNNER_TEMP/flytune-gate}}
place=${place:-.gate}
baseline=$place/baseline.tar.zst
mkdir -p "$place"

fail() {
    echo "error: $1" >&2
    exit 2
}

# Words of a variable, without the shell's own reading of `*` or `$`.
words() {
    read -r -d '' -a found <<<"$1" || true
}

# What the platform shows beside a run; elsewhere it is a file.
summary=${GITHUB_STEP_SUMMARY:-$place/summary.md}

new_bundle() {
    [ -f "$place/new" ] || fail "no new bundle: gate.sh build comes first"
    cat "$place/new"
}

pull() {
    : "${GATE_REFERENCE:?where the baseline is kept}"
    rm -rf "$baseline"
    words "${GATE_PULL:-}"
    "$flytune" pull "$GATE_REFERENCE" --out "$baseline" --allow-absent \
        "${found[@]+"${found[@]}"}"
}

build() {
    local bundle=${GATE_BUNDLE:-}
    if [ -z "$bundle" ]; then
        [ -n "${GATE_BUILD:-}" ] || fail "neither GATE_BUNDLE nor GATE_BUILD is set"
        bundle=$place/new.tar.zst
        rm -rf "$bundle"
        words "$GATE_BUILD"
        "$flytune" build "${found[@]}" --out "$bundle"
    fi
    [ -e "$bundle" ] || fail "there is no bundle: $bundle"
    printf %s "$bundle" >"$place/new"
}

check() {
    local bundle code=0
    bundle=$(new_bundle)
    if [ ! -e "$baseline" ]; then
        echo "There is no baseline yet at \`${GATE_REFERENCE:-}\`: nothing to compare." |
            tee -a "$summary"
        outcome first
        return
    fi
    words "${GATE_CHECK:-}"
    "$flytune" check "$bundle" --baseline "$baseline" --markdown "$place/check.md" \
        --junit "$place/junit.xml" "${found[@]+"${found[@]}"}" || code=$?
    [ ! -e "$place/check.md" ] || cat "$place/check.md" >>"$summary"
    case $code in
    0) outcome fine ;;
    1) outcome regression ;;
    3)
        outcome undecided
        [ "${GATE_UNDECIDED:-fail}" = pass ] || return "$code"
        return
        ;;
    esac
    return "$code"
}

outcome() {
    printf %s "$1" >"$place/outcome"
    [ -z "${GITHUB_OUTPUT:-}" ] || echo "outcome=$1" >>"$GITHUB_OUTPUT"
}

push() {
    : "${GATE_REFERENCE:?where the baseline is kept}"
    if ! published; then
        echo "the baseline stays: this is not the default branch"
        return
    fi
    case $(cat "$place/outcome" 2>/dev/null) in
    fine | first) ;;
    # Times that decide nothing are no reason to keep a baseline of another device.
    undecided) [ "${GATE_UNDECIDED:-fail}" = pass ] || fail "the gate is undecided" ;;
    *) fail "the gate has not passed: nothing is pushed" ;;
    esac
    words "${GATE_PUSH:-}"
    "$flytune" push "$(new_bundle)" "$GATE_REFERENCE" "${found[@]+"${found[@]}"}"
}

published() {
    case ${GATE_PUBLISH:-auto} in
    true) return 0 ;;
    false) return 1 ;;
    auto) ;;
    *) fail "GATE_PUBLISH is neither true, false nor auto: $GATE_PUBLISH" ;;
    esac
    # A pull request has another name for its ref, and GitLab no branch at all.
    local branch=${CI_COMMIT_BRANCH:-${GITHUB_REF_NAME:-}}
    local main=${CI_DEFAULT_BRANCH:-${GATE_DEFAULT_BRANCH:-}}
    [ -n "$branch" ] && [ "$branch" = "$main" ] &&
        [ "${GITHUB_EVENT_NAME:-push}" != pull_request ]
}

case ${1:-all} in
pull | build | check | push) "$1" ;;
all) pull && build && check ;;
*) fail "unknown step: $1 (pull, build, check, push)" ;;
esac
