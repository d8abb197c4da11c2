#!/usr/bin/env bash
# Runs a command with Soft-RoCE: directly if scripts/rxe-vm has started this script, else in a new guest.
#
#   tests/system/in_guest.sh COMMAND [ARGUMENT]...
set -euo pipefail

[[ $# -gt 0 ]] || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[[ -z ${POLLCORE_RXE:-} ]] || exec "$@"
options=()
for name in "${!POLLCORE_@}"; do
    options+=(--env "$name")
done
# The guest has hugepages. The host may have none, so both cases are tested.
exec "$(dirname "$0")/../../scripts/rxe-vm" --timeout 900 --hugepages 64 --share "$PWD" "${options[@]}" "$@"
