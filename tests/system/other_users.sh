#!/usr/bin/env bash
# Checks that the files that one user's run leaves behind do not disturb another user of the machine. Runs as root.
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=tests/system/steps.sh
. "$here/steps.sh"
running() { :; }

chmod 755 "$work"
cp "${POLLCORE_BUILD:?the build directory}/apps/pollperf/pollperf" "$work" # other users may not be able to read the build directory
measure() { # UID NAME=VALUE...
    setpriv --reuid="$1" --regid="$1" --clear-groups env -u RUNTIME_DIRECTORY -u XDG_RUNTIME_DIR "${@:2}" \
        "$work/pollperf" lat -d soft0 --path runtime --share-core -o write -n 100 >"$work/$1.out" 2>&1
    ! grep 'EAL' "$work/$1.out" || fail "user $1 reads what EAL has to say"
}

step='after root, a user who still has the XDG_RUNTIME_DIR of root, as su(1) leaves it'
mkdir -m 700 "$work/of-root"
measure 0 XDG_RUNTIME_DIR="$work/of-root"
measure 65534 XDG_RUNTIME_DIR="$work/of-root"
passed

step='users who have none, one after the other'
measure 65533
measure 65534
passed

step='a user whose RUNTIME_DIRECTORY is not there'
measure 65534 RUNTIME_DIRECTORY=/nowhere
passed
