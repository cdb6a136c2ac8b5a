#!/usr/bin/env bash
# One new bundle against the one that is served, step by step, on any machine.
#
#   GATE_REFERENCE=REGISTRY/REPOSITORY:TAG GATE_BUNDLE=new.tar.zst ci/gate/gate.sh
#
# runs pull, build and check; `gate.sh push` makes the bundle that was checked the
# baseline. Each step may be called by itself, as ci/gate/action.yml and
# ci/gate/gitlab.yml do. Settings are variables; options are words apart by spaces.
#
#   GATE_REFERENCE  where the baseline is kept, as `flytune pull` takes it
#   GATE_BUNDLE     the new bundle; where it is empty
#   GATE_BUILD      are the arguments of `flytune build`, but --out
#   GATE_PULL, GATE_CHECK, GATE_PUSH  further options of those commands
#   GATE_UNDECIDED  what becomes of times that decide nothing here: fail, or pass
#   GATE_PUBLISH    whether push does so: true, false, or auto on the default branch
#   GATE_DIR        where it all lies; one for each baseline that a job compares with
#                   [default: one of its name in a folder of the runner's, or in ./.gate]
#   FLYTUNE         the command
set -euo pipefail

flytune=${FLYTUNE:-flytune}

fail() {
    echo "error: $1" >&2
    exit 2
}

case ${1:-all} in
-h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" && exit ;;
esac
[ -n "${GATE_REFERENCE:-}" ] || fail "GATE_REFERENCE is not set: where the baseline is kept"
case ${GATE_UNDECIDED:=fail} in
fail | pass) ;;
*) fail "GATE_UNDECIDED is neither fail nor pass: $GATE_UNDECIDED" ;;
esac
case ${GATE_PUBLISH:=auto} in
true | false | auto) ;;
*) fail "GATE_PUBLISH is neither true, false nor auto: $GATE_PUBLISH" ;;
esac

place=${GATE_DIR:-${RUNNER_TEMP:+$RUNNER_TEMP/flytune-}gate-$(printf %s "$GATE_REFERENCE" | tr -c A-Za-z0-9 -)}
[ -n "${GATE_DIR:-}${RUNNER_TEMP:-}" ] || place=.$place
baseline=$place/baseline.tar.zst
mkdir -p "$place"

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
    # What an earlier run has left decides nothing.
    rm -rf "$baseline" "$place/new" "$place/outcome"
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
    rm -f "$place/outcome"
    printf %s "$bundle" >"$place/new"
}

check() {
    local bundle code=0
    bundle=$(new_bundle)
    rm -f "$place/outcome" "$place/check.md" "$place/junit.xml"
    if [ ! -e "$baseline" ]; then
        echo "There is no baseline yet at \`$GATE_REFERENCE\`: nothing to compare." |
            tee -a "$summary"
        outcome first "$bundle"
        return
    fi
    words "${GATE_CHECK:-}"
    "$flytune" check "$bundle" --baseline "$baseline" --markdown "$place/check.md" \
        --junit "$place/junit.xml" --undecided "$GATE_UNDECIDED" \
        "${found[@]+"${found[@]}"}" || code=$?
    # Written where the two were compared; without it the command itself has failed.
    if [ ! -e "$place/check.md" ]; then
        [ "$code" -ne 0 ] || code=2
        return "$code"
    fi
    cat "$place/check.md" >>"$summary"
    case $code in
    0) outcome fine "$bundle" ;;
    1) outcome regression "$bundle" ;;
    3)
        outcome undecided "$bundle"
        [ "$GATE_UNDECIDED" = pass ] || return "$code"
        return
        ;;
    esac
    return "$code"
}

# Kept with what names the bundle for good: no other is pushed for it.
outcome() {
    printf '%s %s\n' "$1" "$(digest "$2")" >"$place/outcome"
    [ -z "${GITHUB_OUTPUT:-}" ] || echo "outcome=$1" >>"$GITHUB_OUTPUT"
}

digest() {
    "$flytune" inspect "$1" | sed -n '1s/.*@sha256://p'
}

push() {
    local bundle checked result
    if ! published; then
        echo "the baseline stays: this is not the default branch"
        return
    fi
    bundle=$(new_bundle)
    [ -f "$place/outcome" ] || fail "the bundle was not checked: nothing is pushed"
    read -r result checked <"$place/outcome"
    [ "$checked" = "$(digest "$bundle")" ] ||
        fail "another bundle was checked than this one: nothing is pushed"
    case $result in
    fine | first) ;;
    # Times that decide nothing are no reason to keep a baseline of another device.
    undecided) [ "$GATE_UNDECIDED" = pass ] || fail "the gate is undecided" ;;
    *) fail "the gate has not passed: nothing is pushed" ;;
    esac
    words "${GATE_PUSH:-}"
    "$flytune" push "$bundle" "$GATE_REFERENCE" "${found[@]+"${found[@]}"}"
}

published() {
    case $GATE_PUBLISH in
    true) return 0 ;;
    false) return 1 ;;
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
