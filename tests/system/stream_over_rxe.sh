#!/usr/bin/env bash
# Tests a stream between two processes, with credits and rendezvous, and with write rings. First the reader is slower than the
# writer; then the reader or the writer is killed in the middle. Runs in the guest of scripts/rxe-vm, which sets POLLCORE_RXE_*:
#
#   scripts/rxe-vm tests/system/stream_over_rxe.sh STREAM      the program of apps/examples
#
# MESSAGES and PAUSE_US set the length of the streams to slow readers. For example, half an hour (with --timeout 4000):
#   MESSAGES=1000000 PAUSE_US=200
set -euo pipefail

[[ $# -eq 1 ]] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
stream=$1
: "${POLLCORE_RXE_DEVICE:?run this by scripts/rxe-vm}"
address=$POLLCORE_RXE_PEER_ADDRESS:7480
messages=${MESSAGES:-1500} pause_us=${PAUSE_US:-500}
reader='' writer=''
running() { echo "$reader $writer"; }
# shellcheck source=tests/system/steps.sh
source "$(dirname "$0")/steps.sh"

one_worker reader "$POLLCORE_RXE_PEER" 1
one_worker writer "$POLLCORE_RXE_DEVICE" 0

read_stream() { # FLOW OUTPUT PAUSE_US
    "$stream" "$work/reader.toml" "$1" read "$address" "$3" >"$work/$2.out" 2>&1 &
    reader=$!
    within 120 grep -q listening "$work/$2.out" || fail "the reader does not listen"
}
write_stream() { # FLOW MESSAGES
    "$stream" "$work/writer.toml" "$1" write "$address" "$2" >"$work/writer.out" 2>&1 &
    writer=$!
}
in_the_middle() { # of a stream that takes seconds
    within 120 grep -q '^writing to' "$work/writer.out" || fail "the writer does not write"
    sleep 0.5
}
all_was_read() { # OUTPUT MESSAGES
    wait "$writer" || fail "the writer failed"
    wait "$reader" || fail "the reader failed"
    grep -q "^read $2 messages, each once, in order and whole" "$work/$1.out" || fail "the reader has not read all"
}
wrote() { sed -n "s/^wrote $1 messages.*$2.*/\1/p" "$work/writer.out"; } # MESSAGES PATTERN: a figure from the writer's output
per_message() { echo $(("$(wrote "$1" 'in \([0-9]*\) us')" / $1)); }     # MESSAGES: us
rnrs() {
    sleep 0.1 # the kernel updates its counters only from time to time
    awk '{ sum += $1 } END { print sum }' /sys/class/infiniband/rxe?/ports/1/hw_counters/{rcvd_rnr_err,send_rnr_err}
}
resident() { awk '/^VmRSS/ { print $2 }' "/proc/$1/status"; } # prints nothing for a process that has ended

before=$(rnrs)
for flow in credits ring; do
    step="$flow, a slow reader: each message once, in order, whole; nobody retries, and memory is bounded"
    read_stream "$flow" full 0
    write_stream "$flow" 1000
    all_was_read full 1000
    full=$(per_message 1000)
    read_stream "$flow" slow "$pause_us"
    write_stream "$flow" "$messages"
    in_the_middle
    early=$(resident "$writer") reader_early=$(resident "$reader")
    late=$early reader_late=$reader_early
    while kill -0 "$writer" 2>/dev/null; do # until it has ended
        now=$(resident "$writer" 2>/dev/null) && reader_now=$(resident "$reader" 2>/dev/null) || break
        late=${now:-$late} reader_late=${reader_now:-$reader_late}
        sleep 0.2
    done
    all_was_read slow "$messages"
    waits=$(wrote "$messages" '; \([0-9]*\) had to wait')
    [[ ${waits:-0} -gt $((messages / 2)) ]] || fail "only ${waits:-0} messages had to wait: that reader was not slow"
    [[ $(rnrs) -eq $before ]] || fail "$(($(rnrs) - before)) RNR NAKs"
    [[ $((late - early)) -lt 1024 && $((reader_late - reader_early)) -lt 1024 ]] ||
        fail "memory grew: writer $early to $late KiB, reader $reader_early to $reader_late KiB"
    passed "$messages messages, $waits waited; $(per_message "$messages") us each, and $full us when the reader does not pause"

    step="$flow, a reader that is killed: the writer learns of it, and begins again with the next one"
    read_stream "$flow" killed 2000
    write_stream "$flow" 1000
    in_the_middle
    kill -KILL "$reader"
    wait "$reader" || [[ $? -eq 137 ]]
    within 300 grep -q 'beginning again' "$work/writer.out" || fail "the writer does not know that its reader is gone"
    read_stream "$flow" next 100
    all_was_read next 1000
    passed

    step="$flow, a writer that is killed: the reader is told, and the next two begin"
    read_stream "$flow" left 300
    write_stream "$flow" 100000
    in_the_middle
    kill -KILL "$writer"
    wait "$writer" || [[ $? -eq 137 ]]
    ! wait "$reader" || fail "the reader says that all is well"
    grep -q 'completed with' "$work/left.out" || fail "the reader was not told"
    read_stream "$flow" again 0
    write_stream "$flow" 500
    all_was_read again 500
    passed
done
