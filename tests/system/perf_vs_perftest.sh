#!/usr/bin/env bash
# Compares pollperf's direct path with perftest. Both use the same wire, boot and sizes, with two processes each.
#
#   scripts/rxe-vm tests/system/perf_vs_perftest.sh POLLPERF
#
# Fails if perftest does not work there, or one of pollperf's paths (direct, event, runtime). With GOALS=FILE
# (scripts/bench) it writes goals to that file, with the values of each of ROUNDS rounds; scripts/bench judges them. The
# goals: pollperf takes at most 1.05 times as long as perftest, for the typical latency of send, write and read, and for
# their bandwidth. With a slower pollperf, the runtime would be compared with a baseline that is too slow. Rounds of the
# two programs take turns.
set -euo pipefail

pollperf=${1:?usage: perf_vs_perftest.sh POLLPERF}
device=${POLLCORE_RXE_DEVICE:?is not set: run this by scripts/rxe-vm}
peer=${POLLCORE_RXE_PEER:?is not set: run this by scripts/rxe-vm}
address=${POLLCORE_RXE_ADDRESS:?is not set: run this by scripts/rxe-vm}
size=8
bandwidth_size=65536
iterations=2000
rounds=${ROUNDS:-3}
goals=${GOALS:-/dev/null}
port=18600

work=$(mktemp -d)
server=
finish() {
    if [[ -n $server ]]; then
        kill "$server" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap finish EXIT

fail() {
    echo "perf_vs_perftest: $*" >&2
    exit 1
}

# Waits until the server listens at $port, so that its client can connect: perftest by rdma_cm, pollperf by TCP.
await_listener() { # PID
    for ((tries = 0; tries < 300; tries++)); do
        if rdma resource show cm_id | grep -q "^link $device/.*LISTEN.*:$port\b" || grep -q 'waiting for a client' "$work/server"; then
            sleep 0.2 # the kernel shows the listening state a moment before it accepts requests
            return
        fi
        kill -0 "$1" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}

# Runs the command as a server on one end of the wire, and as its client on the other, each on a CPU of its own. Without
# that the kernel's work for Soft-RoCE is on the server's CPU or on the client's, as the scheduler likes, and bandwidth is
# 45 or 30 MB/s. Sets $figure to a column of the client's line that begins with the size. Both programs print the typical
# latency in usec as the fifth column, and the average bandwidth in MB/s as the fourth.
figure=
column=5
measure() { # COMMAND...
    local status=0
    port=$((port + 1))
    timeout 60 taskset -c 0 "$@" -d "$device" -p "$port" >"$work/server" 2>&1 &
    server=$!
    if ! await_listener "$server"; then
        echo "perf_vs_perftest: no server came up: $*" >&2
        status=1
    else
        timeout 60 taskset -c 1 "$@" -d "$peer" -p "$port" "$address" >"$work/client" 2>&1 || status=$?
        [[ $status -eq 0 ]] || kill "$server" 2>/dev/null || true
    fi
    wait "$server" || status=$?
    server=
    if [[ $status -eq 0 ]]; then
        figure=$(awk -v size="$size" -v column="$column" '$1 == size && NF >= 5 { print $column }' "$work/client")
        [[ $figure =~ ^[0-9]+\.[0-9]+$ ]] && return
    fi
    echo "perf_vs_perftest: failed with exit code $status: $*" >&2
    cat "$work/server" "$work/client" >&2 || true
    return 1
}

# perftest fails if a busy machine disturbs its calibration of the clock. Such a failure is no result, so the run is
# repeated.
measure_perftest() { # COMMAND...
    local attempt
    for attempt in 1 2 3 4 5; do
        if measure "$@" 2>"$work/perftest"; then
            return
        fi
        echo "perf_vs_perftest: attempt $attempt of ${1##*/} failed: $(grep -iE 'r\^2|error|fault|exit' "$work/perftest" | head -2 | tr '\n' ' ')" >&2
    done
    cat "$work/perftest" >&2
    fail "perftest cannot be run: $*"
}

# A typical latency of milliseconds shows time slices: other processes had a CPU, so the round says nothing about the
# program. The round is repeated, for either program, as long as there are spare rounds.
spare_rounds=10
undisturbed() { # MEASURE COMMAND...
    "$@" || exit 1
    while ((column == 5 && ${figure%.*} >= 1000 && spare_rounds > 0)); do
        spare_rounds=$((spare_rounds - 1))
        "$@" || exit 1
    done
}

median() { sort -n "$1" | awk '{ at[NR] = $1 } END { print at[int((NR + 1) / 2)] }'; }

# Both programs take turns. A sample of the goal is pollperf's time as a multiple of perftest's: the ratio of latencies, or
# the inverse ratio of bandwidths.
compare() { # GOAL BOUND PERFTEST POLLPERF...
    local goal=$1 bound=$2 perftest=$3 round
    : >"$work/theirs"
    : >"$work/ours"
    for ((round = 1; round <= rounds; round++)); do
        undisturbed measure_perftest "$perftest" -R -s "$size" -n "$iterations" -F
        echo "$figure" >>"$work/theirs"
        undisturbed measure "$pollperf" "${@:4}" --path direct -R -s "$size" -n "$iterations" --rounds 1 -F
        echo "$figure" >>"$work/ours"
    done
    paste "$work/ours" "$work/theirs" | awk -v inverse=$((column == 4)) '{ print inverse ? $2 / $1 : $1 / $2 }' >"$work/ratios"
    printf '%-16s %12s %16s %8s   perftest: %s  pollperf: %s\n' "$perftest" "$(median "$work/theirs")" "$(median "$work/ours")" \
        "$(median "$work/ratios")" "$(tr '\n' ' ' <"$work/theirs")" "$(tr '\n' ' ' <"$work/ours")"
    printf '{"goal": "%s", "at_least": false, "bound": %s, "samples": [%s]}\n' "$goal" "$bound" \
        "$(paste -sd, "$work/ratios")" >>"$goals"
}

: >"$goals"
printf '%-16s %12s %16s %8s   (latency in usec, bandwidth in MB/s, medians)\n' perftest theirs 'pollperf direct' ratio
for op in send write read; do
    compare "pollperf direct / perftest on Soft-RoCE, $op" 1.05 "ib_${op}_lat" lat -o "$op"
done
column=4
latency_size=$size
size=$bandwidth_size
for op in send write read; do
    compare "time of bandwidth, pollperf direct / perftest on Soft-RoCE, $op" 1.05 "ib_${op}_bw" bw -o "$op"
done
column=5
size=$latency_size

echo
"$pollperf" lat -d "$device" --loopback --path both -o send,write,read -s "$size" -n "$iterations" ||
    fail "pollperf in one process failed"

# The other paths of pollperf, each between two processes and with every byte checked.
echo
for ways in "--path event" "--path runtime --wait event" "--path runtime --wait event --flow credits"; do
    # Each option must be a separate word.
    # shellcheck disable=SC2086
    measure "$pollperf" lat --share-core $ways -o send -s "$size" -n 200 --verify || fail "pollperf lat $ways failed"
    printf '%-48s %s usec\n' "pollperf lat $ways" "$figure"
done

# With write rings, workers do not sleep. So both ends are in one process.
for flow in off ring; do
    "$pollperf" lat -d "$device" --loopback --path runtime -o send -s "$size" -n 500 --flow "$flow" --verify >"$work/client" ||
        fail "pollperf lat --flow $flow failed"
    printf '%-48s %s usec\n' "pollperf lat --path runtime --flow $flow" "$(awk -v size="$size" '$1 == size && NF >= 9 { print $5 }' "$work/client")"
done
