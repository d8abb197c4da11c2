#!/usr/bin/env bash
# Tests that a program that knows nothing of this project can be a peer, as client and as server, without flow control. The
# program is librdmacm's rping(1). Runs in the guest of scripts/rxe-vm, which sets POLLCORE_RXE_*:
#
#   scripts/rxe-vm tests/system/foreign_peer.sh RPING_PEER
set -euo pipefail

[[ $# -eq 1 ]] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
rping_peer=$1
: "${POLLCORE_RXE_DEVICE:?run this by scripts/rxe-vm}"
pings=50
server=''
running() { echo "$server"; }
# shellcheck source=tests/system/steps.sh
source "$(dirname "$0")/steps.sh"

one_worker near "$POLLCORE_RXE_DEVICE" 1

step='rping calls'
"$rping_peer" "$work/near.toml" serve "$POLLCORE_RXE_ADDRESS:7490" "$pings" >"$work/serve.out" 2>&1 &
server=$!
within 120 grep -q listening "$work/serve.out"
timeout 60 rping -c -a "$POLLCORE_RXE_ADDRESS" -p 7490 -C "$pings" -V -v >"$work/rping-c.out" 2>&1 || [[ $? -ne 124 ]]
wait "$server"
server=''
grep -q "^served $pings pings" "$work/serve.out"
[[ $(grep -c '^ping data: rdma-ping-' "$work/rping-c.out") -eq $pings ]]
passed

step='rping is called'
timeout 60 rping -s -a "$POLLCORE_RXE_ADDRESS" -p 7491 -C "$pings" -V -v >"$work/rping-s.out" 2>&1 &
server=$!
sleep 1 # rping does not report that it listens
"$rping_peer" "$work/near.toml" call "$POLLCORE_RXE_ADDRESS:7491" "$pings" >"$work/call.out" 2>&1
wait "$server" || [[ $? -ne 124 ]] # rping ends with an error when its caller disconnects
server=''
grep -q "^called with $pings pings" "$work/call.out"
[[ $(grep -c '^server ping data: rdma-ping-' "$work/rping-s.out") -eq $pings ]]
passed
