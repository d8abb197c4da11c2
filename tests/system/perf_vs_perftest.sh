#!/usr/bin/env bash
# pollperf's direct path next to perftest: same wire, same boot, same sizes, two processes against two.
#
#   scripts/rxe-vm tests/system/perf_vs_perftest.sh POLLPERF
#
# Fails when pollperf's typical latency is more than 1.10 of perftest's for send, write or read: then the baseline that
# the runtime is compared with would not be honest. Rounds of the two take turns, and medians are compared, since single
# runs on a shared machine differ by more than the two programs do.
set -euo pipefail

pollperf=${1:?usage: perf_vs_perftest.sh POLLPERF}
device=${POLLCORE_RXE_DEVICE:?is not set: run this by scripts/rxe-vm}
peer=${POLLCORE_RXE_PEER:?is not set: run this by scripts/rxe-vm}
address=${POLLCORE_RXE_ADDRESS:?is not set: run this by scripts/rxe-vm}
size=8
iterations=2000
rounds=${ROUNDS:-5}
limit=1.10
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

# Until the server listens at $port: then its client can come.
await_listener() { # PID
    for ((tries = 0; tries < 300; tries++)); do
        if rdma resource show cm_id | grep -q "LISTEN.*:$port\b"; then
            return
        fi
        kill -0 "$1" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}

# Runs the command as a server on one end of the wire, and as its client on the other. $typical is then the client's typical latency in usec,
# the fifth column of the line that begins with the size, perftest's and pollperf's alike.
typical=
measure() { # COMMAND...
    port=$((port + 1))
    timeout 60 "$@" -d "$device" -p "$port" >"$work/server" 2>&1 &
    server=$!
    if ! await_listener "$server"; then
        cat "$work/server" >&2
        fail "no server came up: $*"
    fi
    if ! timeout 60 "$@" -d "$peer" -p "$port" "$address" >"$work/client" 2>&1; then
        cat "$work/server" "$work/client" >&2
        fail "the client failed: $*"
    fi
    wait "$server" || { cat "$work/server" >&2; fail "the server failed: $*"; }
    server=
    typical=$(awk -v size="$size" '$1 == size && NF >= 9 { print $5 }' "$work/client")
    [[ $typical =~ ^[0-9]+\.[0-9]+$ ]] || { cat "$work/client" >&2; fail "no result: $*"; }
}

median() { sort -n | awk '{ at[NR] = $1 } END { print at[int((NR + 1) / 2)] }'; }

too_slow=0
printf '%-8s %18s %18s %10s   (typical, usec, medians of %d rounds)\n' op perftest 'pollperf direct' ratio "$rounds"
for op in send write read; do
    : >"$work/theirs"
    : >"$work/ours"
    for ((round = 0; round < rounds; round++)); do
        measure "ib_${op}_lat" -R -s "$size" -n "$iterations" -F
        echo "$typical" >>"$work/theirs"
        measure "$pollperf" lat --path direct -o "$op" -s "$size" -n "$iterations" -F
        echo "$typical" >>"$work/ours"
    done
    theirs=$(median <"$work/theirs")
    ours=$(median <"$work/ours")
    ratio=$(awk -v a="$ours" -v b="$theirs" 'BEGIN { printf "%.3f", a / b }')
    printf '%-8s %18s %18s %10s   perftest: %s  pollperf: %s\n' "$op" "$theirs" "$ours" "$ratio" \
        "$(tr '\n' ' ' <"$work/theirs")" "$(tr '\n' ' ' <"$work/ours")"
    if awk -v ratio="$ratio" -v limit="$limit" 'BEGIN { exit !(ratio > limit) }'; then
        too_slow=$((too_slow + 1))
    fi
done

echo
"$pollperf" lat -d "$device" --loopback --path both -o send,write,read -s "$size" -n "$iterations" ||
    fail "pollperf in one process failed"

if ((too_slow > 0)); then
    fail "$too_slow of 3 operations are slower than $limit times perftest's"
fi
