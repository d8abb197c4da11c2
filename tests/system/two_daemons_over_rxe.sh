#!/usr/bin/env bash
# Tests a stream between two processes, each attached to its own daemon, with its own device at one end of a wire. Meanwhile the
# link goes down and up again, and one of the daemons is killed and started again. Runs in the guest of scripts/rxe-vm, which
# sets POLLCORE_RXE_*:
#
#   scripts/rxe-vm tests/system/two_daemons_over_rxe.sh POLLCORED STREAM      STREAM: the program of apps/examples
set -euo pipefail

[[ $# -eq 2 ]] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
pollcored=$1 stream=$2
: "${POLLCORE_RXE_DEVICE:?run this by scripts/rxe-vm}"
address=$POLLCORE_RXE_PEER_ADDRESS:7490
near='' far='' reader='' writer=''
running() { echo "$reader $writer $near $far"; }
# shellcheck source=tests/system/steps.sh
source "$(dirname "$0")/steps.sh"

for end in near far; do
    [[ $end == near ]] && device=$POLLCORE_RXE_DEVICE core=0 || device=$POLLCORE_RXE_PEER core=1
    one_worker $end "$device" $core
    printf '\n[attach]\npath = "%s/%s.sock"\n' "$work" $end >>"$work/$end.toml"
done
log_says() { grep -qF -- "$2" "$work/$1.out"; } # END TEXT
start_daemon() { # END; sets the variable of that name to the process's id
    : >"$work/$1.out"
    "$pollcored" --config "$work/$1.toml" 2>>"$work/$1.out" &
    printf -v "$1" %s $!
    within 60 log_says "$1" 'ready: ' || fail "the daemon at the $1 end does not come up"
}
read_stream() { # OUTPUT [PAUSE_US]
    "$stream" "$work/far.sock" credits read "$address" "${2:-200}" >"$work/$1.out" 2>&1 &
    reader=$!
    within 120 grep -q listening "$work/$1.out" || fail "the reader does not listen"
}
write_stream() { # MESSAGES
    "$stream" "$work/near.sock" credits write "$address" "$1" >"$work/writer.out" 2>&1 &
    writer=$!
}
in_the_middle() { # of a stream that takes seconds
    within 120 grep -q '^writing to' "$work/writer.out" || fail "the writer does not write"
    sleep 0.3
}
all_was_read() { # OUTPUT MESSAGES
    wait "$writer" || fail "the writer failed"
    wait "$reader" || fail "the reader failed"
    grep -q "^read $2 messages, each once, in order and whole" "$work/$1.out" || fail "the reader has not read all"
}
# If the reader has no request in flight, no request can fail, and the reader notices the loss only by its own timeout.
reader_gives_up() { # OUTPUT
    ! wait "$reader" || fail "the reader says that all is well"
    grep -qE 'completed with|no completion came' "$work/$1.out" || fail "the reader does not say why it ends"
}
rnrs() {
    sleep 0.1 # the kernel updates its counters only from time to time
    awk '{ sum += $1 } END { print sum }' /sys/class/infiniband/rxe?/ports/1/hw_counters/{rcvd_rnr_err,send_rnr_err}
}
# Prints the devices and the resources in use. Leaves out contexts and completion queues, because a daemon makes them
# for its first process and keeps them.
resources() { rdma resource show | sed -E 's/^[0-9]*: //; s/(cq|ctx) [0-9]+ //g'; }

step='two daemons on the ends of a wire'
start_daemon near
start_daemon far
before=$(resources)
passed

step='a stream with credits between two attached processes: each message once, in order, whole; nobody retries'
rnrs_before=$(rnrs)
read_stream whole
write_stream 1000
all_was_read whole 1000
[[ $(rnrs) -eq $rnrs_before ]] || fail "$(($(rnrs) - rnrs_before)) RNR NAKs"
passed "$(sed -n 's/^wrote 1000 messages \(in [0-9]* us\).*/\1/p' "$work/writer.out")"

# The two attached processes are stopped while the link is down. Otherwise they would learn of the loss and disconnect,
# which sends connection management messages (MADs). If Soft-RoCE of Linux 6.1 sends MADs while its link is down, it
# accepts no further MADs until the device is made anew.
step='the link goes down under a stream, and up again: both are told, and the writer begins again with the next reader'
read_stream cut 2000
write_stream 1500
in_the_middle
kill -STOP "$reader" "$writer"
ip link set "$POLLCORE_RXE_NETDEV" down
for end in near far; do
    within 10 log_says $end IBV_EVENT_PORT_ERR || fail "the daemon at the $end end does not say that the link is down"
done
sleep 1
ip link set "$POLLCORE_RXE_NETDEV" up
# The kernel forgets the routes of a link that goes down. On real hosts, other software sets them again.
ip route replace "$POLLCORE_RXE_PEER_ADDRESS" dev "$POLLCORE_RXE_NETDEV" src "$POLLCORE_RXE_ADDRESS" table 100
for end in near far; do
    within 10 log_says $end IBV_EVENT_PORT_ACTIVE || fail "the daemon at the $end end does not say that the link is up"
done
kill -CONT "$reader" "$writer"
within 60 grep -q 'beginning again' "$work/writer.out" || fail "the writer does not know that its link was down"
reader_gives_up cut
read_stream up
all_was_read up 1500
passed

step='a daemon is killed under a stream: its writer is told, attaches to the next one, and begins again with the next reader'
read_stream orphan 2000
write_stream 1500
in_the_middle
kill -KILL "$near"
wait "$near" || [[ $? -eq 137 ]]
reader_gives_up orphan
within 60 grep -q 'the daemon is gone' "$work/writer.out" || fail "the writer does not know that its daemon is gone"
start_daemon near
within 60 grep -q 'attached again' "$work/writer.out" || fail "the writer does not attach again"
read_stream after
all_was_read after 1500
passed

step='what all of them had is gone, and both daemons end with 0'
as_before() { [[ $(resources) == "$before" ]]; }
within 60 as_before || fail "before: $before; now: $(resources)"
for end in near far; do
    kill -TERM "${!end}"
    wait "${!end}" || fail "the daemon at the $end end ends with $?"
    log_says $end 'stopped' || fail "the daemon at the $end end did not stop in order"
done
near='' far=''
passed
