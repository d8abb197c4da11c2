#!/usr/bin/env bash
# Tests that on a machine with one CPU every program works with its defaults and the samples, and reports which results mean
# little. Runs as root in a guest, and switches the guest's other CPUs off meanwhile.
#
#   tests/system/one_cpu.sh BUILD
set -euo pipefail

[[ $# -eq 1 && -n ${POLLCORE_RXE:-} ]] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/../.."
build=$1
# shellcheck source=tests/system/steps.sh
. tests/system/steps.sh
daemon=''
running() {
    for cpu in /sys/devices/system/cpu/cpu*/online; do echo 1 >"$cpu"; done # restores the CPUs
    echo "$daemon"
}
for cpu in /sys/devices/system/cpu/cpu*/online; do echo 0 >"$cpu"; done
[[ $(nproc) -eq 1 && $(</sys/devices/system/cpu/online) == 0 ]] || fail 'there is more than one CPU'

pollperf=$build/apps/pollperf/pollperf
pollcored=$build/apps/pollcored/pollcored
expect() { # TEXT FILE
    grep -qF -- "$1" "$2" || fail "missing in the output: $1"
}

step='the demo'
scripts/demo --no-setup --build "$build" -n 500 >"$work/demo.out" 2>&1
for text in 'by verbs, on the' 'by turns' "write to the peer's memory" 'add to a number there' 'This process has one CPU'; do
    expect "$text" "$work/demo.out"
done
scripts/demo --no-setup --build "$build" --details -n 500 >"$work/details.out" 2>&1
expect 'application and worker take turns on CPU 0' "$work/details.out"
expect 'client 2 ' "$work/details.out"
passed

step='pollperf, on a software device and on one of the kernel'
"$pollperf" lat -d soft0 >"$work/soft.out" 2>&1
expect 'take turns on CPU 0' "$work/soft.out"
"$pollperf" lat -d rxe0 --loopback -n 100 >"$work/rxe.out" 2>&1
expect 'take turns on CPU 0' "$work/rxe.out"
code=0
"$pollperf" wake >"$work/wake.out" 2>&1 || code=$?
[[ $code -eq 2 ]] || fail "wake, which takes two CPUs, ended with $code"
expect 'on CPU 0 only' "$work/wake.out"
passed

step='each example with the sample that it is to take'
for example in write_with_imm datagram remote_store order_gateway block_store 'stream credits both anywhere 5000 5' \
    'stream ring both anywhere 5000 5' event_server; do
    read -r name more <<<"$example"
    [[ $more == config/* ]] || more="config/loopback.toml $more"
    # shellcheck disable=SC2086 # words are wanted
    timeout 200 "$build/apps/examples/$name" $more >"$work/$name.out" 2>&1
done
passed

step='the daemon with the configuration that is installed, and with that of the README'
sed -n '/^```toml$/,/^```$/p' README.md | sed '/^```/d' >"$work/hello.toml"
[[ -s $work/hello.toml ]] || fail 'the README shows none'
for config in config/pollcored.toml "$work/hello.toml"; do
    "$pollcored" --config "$config" --print >"$work/print.out" 2>&1
    expect 'core = 0' "$work/print.out"
    expect 'idle = "yield"' "$work/print.out"
    "$pollcored" --config "$config" >"$work/daemon.out" 2>&1 &
    daemon=$!
    within 60 grep -q 'ready: ' "$work/daemon.out"
    kill "$daemon"
    wait "$daemon"
    daemon=''
done
passed
