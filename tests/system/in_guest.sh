#!/usr/bin/env bash
# Runs a command beside Soft-RoCE: here where scripts/rxe-vm has started this, else in a guest of its own.
#
#   tests/system/in_guest.sh COMMAND [ARGUMENT]...
set -euo pipefail

[[ $# -gt 0 ]] || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[[ -z ${POLLCORE_RXE:-} ]] || exec "$@"
options=()
for name in "${!POLLCORE_@}"; do
    options+=(--env "$name")
done
# With hugepages, as this machine may have none: both ways are taken.
exec "$(dirname "$0")/../../scripts/rxe-vm" --timeout 900 --hugepages 64 --share "$PWD" "${options[@]}" "$@"
