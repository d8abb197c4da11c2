#!/usr/bin/env bash
# Tests pollcored on one end of a real wire, with pollperf and a plain verbs program as peers on the other end, and
# then the ways to stop it. Runs in the guest of scripts/rxe-vm, which sets POLLCORE_RXE_*:
#
#   scripts/rxe-vm tests/system/daemon_over_rxe.sh POLLCORED POLLPERF PLAIN_PEER
#
# Prints the steps that passed. Ends at the first that failed, with the daemon's log.
set -euo pipefail

[[ $# -eq 3 ]] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
pollcored=$1 pollperf=$2 plain_peer=$3
: "${POLLCORE_RXE_DEVICE:?run this by scripts/rxe-vm}"
device=$POLLCORE_RXE_DEVICE address=$POLLCORE_RXE_ADDRESS
peer_device=$POLLCORE_RXE_PEER peer_address=$POLLCORE_RXE_PEER_ADDRESS
echo_port=7471 memory_port=7472 depth=32 message_size_max=4096

daemon='' peer=''
running() { echo "$peer $daemon"; }
# shellcheck source=tests/system/steps.sh
source "$(dirname "$0")/steps.sh"
log=$work/pollcored.out

config() { # DRAIN_TIMEOUT
    cat >"$work/config" <<TEXT
[runtime]
share_cores = true
drain_timeout = "$1"
[[device]]
name = "nic0"
kind = "verbs"
verbs_name = "$device"
[[worker]]
name = "worker0"
core = 1
idle = "yield"
[[service]]
name = "echo0"
kind = "echo"
device = "nic0"
worker = "worker0"
address = "$address:$echo_port"
depth = $depth
message_size_max = "${message_size_max}B"
[[service]]
name = "store"
kind = "memory"
device = "nic0"
worker = "worker0"
address = "$address:$memory_port"
size = "1MiB"
TEXT
}

await_log() { # TEXT [SECONDS]
    local deadline=$((SECONDS + ${2:-60}))
    until grep -qF -- "$1" "$log"; do
        ((SECONDS < deadline)) || fail "the log does not say '$1'" || return
        kill -0 "$daemon" 2>/dev/null || grep -qF -- "$1" "$log" || fail "pollcored ended" || return
        sleep 0.05
    done
}

# Starts the daemon as an unprivileged user, with the capabilities and the limit of the systemd unit.
start() { # DRAIN_TIMEOUT
    config "$1"
    : >"$log"
    ulimit -l unlimited
    chown 65534:65534 "$work"
    setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs --inh-caps=-all,+net_bind_service,+chown \
        --ambient-caps=-all,+net_bind_service,+chown --bounding-set=-all,+net_bind_service,+chown \
        "$pollcored" --config "$work/config" 2>>"$log" &
    daemon=$!
    await_log 'ready: 2 services'
}

end_code() { # waits until the daemon ends, and writes its exit code to $work/code
    local code=0
    wait "$daemon" || code=$?
    daemon=''
    echo "$code" >"$work/code"
}
expect_code() { # CODE
    end_code
    [[ $(<"$work/code") == "$1" ]] || fail "exit code $(<"$work/code") instead of $1"
}

plain() { timeout 60 "$plain_peer" --bind "$peer_address" "$address" "$echo_port" "$@"; }
lat() { # OP PORT [OPTION]...
    timeout 240 "$pollperf" lat "$address" --service -p "$2" -d "$peer_device" -o "$1" --share-core --verify "${@:3}" >"$work/lat" ||
        { cat "$work/lat"; return 1; }
}

step='starting on a verbs device, with the rights of the systemd unit'
start 5s
passed

step='a plain verbs peer has 400 messages of 0 to 300 bytes sent back'
plain echo 400 300
passed

step='a message that is too long ends its own connection only'
plain too-long $((message_size_max + 1))
await_log 'longer than message_size_max'
plain echo 10 64
passed

step='several plain peers at once'
peers=()
for _ in 1 2 3 4; do
    plain echo 100 64 &
    peers+=($!)
done
for process in "${peers[@]}"; do
    wait "$process"
done
passed

# Tests that each byte is right, not the speed. pollperf's threads share both CPUs with pollcored's threads, on a
# machine that may be busy, so pollperf gets a long --timeout.
lat_each() { # PATH [OPTION]...
    local path=$1 op
    local options=(--path "$@" -n 300 --warmup 20 --timeout 120s)
    step="pollperf lat --path $path: send against echo"
    lat send $echo_port -s 64 "${options[@]}"
    passed
    for op in write read; do
        step="pollperf lat --path $path: $op against memory"
        lat $op $memory_port -s 512 "${options[@]}"
        passed
    done
    step="pollperf lat --path $path: fetch-add against memory"
    lat fetch-add $memory_port "${options[@]}"
    passed
}
lat_each direct
lat_each runtime --idle yield

step='peers that left have given their places back'
deadline=$((SECONDS + 10))
until [[ $(grep -cE ' connected, queue pair ' "$log") == $(grep -cE ' left: | failed: ' "$log") ]]; do
    ((SECONDS < deadline)) || fail 'some connection was not closed'
    sleep 0.05
done
passed

step='SIGTERM with nothing in flight ends with 0'
kill -TERM "$daemon"
expect_code 0
await_log 'stopped'
passed

# Starts a peer that sends and takes one answer back.
stall() {
    plain stall 4 >"$work/stalled" &
    peer=$!
    local deadline=$((SECONDS + 30))
    until grep -q stalled "$work/stalled"; do
        ((SECONDS < deadline)) || fail 'the peer did not get so far' || return
        sleep 0.05
    done
}

step='a peer that takes nothing more is cut short by drain_timeout, told so, and the exit code is 3'
start 500ms
stall
kill -TERM "$daemon"
expect_code 3
await_log 'not drained within drain_timeout (500 ms)'
wait "$peer"
peer=''
passed

step='a second SIGTERM ends at once'
start 300s
stall
kill -TERM "$daemon"
await_log 'SIGTERM: stopping'
kill -TERM "$daemon"
expect_code 3
await_log 'ending at once'
wait "$peer"
peer=''
passed

step='a killed daemon leaves nothing that stops the next one'
start 5s
stall
kill -KILL "$daemon"
expect_code 137
wait "$peer"
peer=''
start 5s
plain echo 10 64
kill -TERM "$daemon"
expect_code 0
passed
