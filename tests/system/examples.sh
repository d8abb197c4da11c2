#!/usr/bin/env bash
# Tests that the programs of apps/examples do what their first lines say, on the device that POLLCORE_TEST_DEVICE names
# (soft, or verbs:NAME with an address of its port in POLLCORE_TEST_ADDRESS):
#
#   tests/system/examples.sh DIRECTORY        where they were built
set -euo pipefail

[[ $# -eq 1 ]] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
programs=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

device=${POLLCORE_TEST_DEVICE:-soft}
{
    printf '[runtime]\nshare_cores = true\n\n[memory]\nsize = "16MiB"\n\n[[device]]\nname = "d"\n'
    case $device in
        soft) printf 'kind = "soft"\n' ;;
        verbs:*) printf 'kind = "verbs"\nverbs_name = "%s"\n' "${device#verbs:}" ;;
        *) echo "POLLCORE_TEST_DEVICE = $device: accepted are soft and verbs:NAME" >&2; exit 2 ;;
    esac
    printf '\n[[worker]]\nname = "w"\ncore = 1\nidle = "yield"\n'
} >"$work/config"

expect() { # PATTERN PROGRAM ARGUMENT...
    local pattern=$1
    shift
    echo "== $*"
    timeout 300 "$programs/$1" "$work/config" "${@:2}" >"$work/out" 2>"$work/err" || {
        echo "exit code $?" >&2
        cat "$work/out" "$work/err" >&2
        return 1
    }
    cat "$work/out"
    grep -Eq "$pattern" "$work/out" || { echo "it does not say: $pattern" >&2; return 1; }
}

expect 'the reader was told 2026: 24 bytes arrived: "written by the other end"' write_with_imm
expect "the writer's request 2 is done" write_with_imm
expect '^queue pair [0-9]+ asks: "what is the time\?"' datagram
expect '^the answer: "time to send a datagram"' datagram
answered='10000 orders, each answered once and in order'
expect "^exchange 1: $answered; [0-9]+ held back, at most [0-9]+ at a time; [0-9]+ late by 1 ms$" order_gateway 10000 100000
expect "^exchange 2, which halted: $answered; [1-9][0-9]+ held back, at most [1-9][0-9]+ at a time; [0-9]+ late by 1 ms$" order_gateway 10000 100000
expect '^1000 blocks written and read, 32 requests under way, all checksums right' block_store 1000
expect '^block 500 is damaged: its checksum is [0-9a-f]{8}, and [0-9a-f]{8} was written' block_store 1000
expect '^4096 records locked once, and refused to the second owner' remote_store
[[ $device != soft ]] || expect '^read 5000 messages, each once, in order and whole' stream credits both anywhere 5000 5
[[ $device != soft ]] || expect '^read 5000 messages, each once, in order and whole' stream ring both anywhere 5000 5
[[ $device == soft ]] && address=anywhere || address=${POLLCORE_TEST_ADDRESS:?}:0
expect '^1000 connections: each was accepted, echoed its message, and was told of the end' event_server 1000 "$address"

# Wrong arguments give a message and a nonzero exit code.
for wrong in '/nowhere.toml' "$work/config abc" "$work/config 0"; do
    # shellcheck disable=SC2086 # the arguments are words
    if "$programs/order_gateway" $wrong >"$work/out" 2>"$work/err"; then
        echo "order_gateway $wrong: exit code 0" >&2
        exit 1
    fi
    [[ -s $work/err ]] || { echo "order_gateway $wrong: says nothing" >&2; exit 1; }
done
