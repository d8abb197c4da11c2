#!/usr/bin/env bash
# A stream between two processes, whose reader is slower than its writer, and whose reader is killed in the middle. Runs in the
# guest of scripts/rxe-vm, which sets POLLCORE_RXE_*:
#
#   scripts/rxe-vm tests/system/stream_over_rxe.sh STREAM      the program of apps/examples
#
# MESSAGES and PAUSE_US set the length of the first part, for example, 20 minutes (with --timeout 3000):
#   MESSAGES=1000000 PAUSE_US=1000
set -euo pipefail

[[ $# -eq 1 ]] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
stream=$1
: "${POLLCORE_RXE_DEVICE:?run this by scripts/rxe-vm}"
address=$POLLCORE_RXE_PEER_ADDRESS:7480
messages=${MESSAGES:-6000} pause_us=${PAUSE_US:-500}
work=$(mktemp -d)
reader='' writer=''
step='starting'
finish() {
    local code=$?
    if [[ $code -ne 0 ]]; then
        echo "FAILED: $step (exit code $code)" >&2
        tail -n 20 "$work"/*.out >&2 || true
    fi
    for process in $reader $writer; do
        kill -KILL "$process" 2>/dev/null || true
    done
    rm -rf "$work"
    exit "$code"
}
trap finish EXIT
fail() { echo "$*" >&2; return 1; }

config() { # NAME DEVICE CORE
    mkdir -p "$work/$1"
    printf '[runtime]\nlock_directory = "%s"\n[memory]\nsize = "16MiB"\n[[device]]\nname = "d"\nkind = "verbs"\nverbs_name = "%s"\n[[worker]]\nname = "w"\ncore = %s\nidle = "yield"\n' \
        "$work/$1" "$2" "$3" >"$work/$1.toml"
}
config reader "$POLLCORE_RXE_PEER" 1
config writer "$POLLCORE_RXE_DEVICE" 0

read_stream() { # OUTPUT PAUSE_US
    "$stream" "$work/reader.toml" read "$address" "$2" >"$work/$1.out" 2>&1 &
    reader=$!
    for ((i = 0; i < 200; ++i)); do
        ! grep -q listening "$work/$1.out" || return 0
        sleep 0.05
    done
    fail "the reader does not listen"
}
write_stream() { # MESSAGES
    "$stream" "$work/writer.toml" write "$address" "$1" >"$work/writer.out" 2>&1 &
    writer=$!
}
rnrs() {
    sleep 0.1 # the kernel looks its counters up once in a while only
    local sum=0 file
    for file in /sys/class/infiniband/rxe?/ports/1/hw_counters/{rcvd_rnr_err,send_rnr_err}; do
        sum=$((sum + $(<"$file")))
    done
    echo "$sum"
}
wrote() { sed -n "s/^wrote $1 messages.*$2.*/\1/p" "$work/writer.out"; } # MESSAGES PATTERN: a figure of what the writer says
resident() { awk '/^VmRSS/ { print $2 }' "/proc/$1/status"; }

step='a slow reader: each message once, in order, whole; nobody retries, and memory is bounded'
before=$(rnrs)
read_stream slow 0
write_stream 6000
wait "$writer" "$reader"
per_message=$(("$(wrote 6000 'in \([0-9]*\) us')" * 1000 / 6000))
read_stream slow "$pause_us"
write_stream "$messages"
sleep 2
resident_early=$(resident "$writer") reader_early=$(resident "$reader")
while kill -0 "$writer" 2>/dev/null && resident_late=$(resident "$writer") && reader_late=$(resident "$reader") &&
    [[ -n $resident_late && -n $reader_late ]]; do
    last_writer=$resident_late last_reader=$reader_late
    sleep 0.2
done 2>/dev/null
wait "$writer" || fail "the writer failed"
wait "$reader" || fail "the reader failed"
grep -q "^read $messages messages, each once, in order and whole" "$work/slow.out" || fail "the reader has not read all"
slow_per_message=$(("$(wrote "$messages" 'in \([0-9]*\) us')" * 1000 / messages))
waits=$(wrote "$messages" '; \([0-9]*\) had to wait')
[[ ${waits:-0} -gt $((messages / 2)) ]] || fail "only ${waits:-0} messages had to wait: that reader was not slow"
[[ $(rnrs) -eq $before ]] || fail "$(($(rnrs) - before)) RNR NAKs"
[[ $((last_writer - resident_early)) -lt 1024 && $((last_reader - reader_early)) -lt 1024 ]] ||
    fail "memory grew: writer $resident_early to $last_writer KiB, reader $reader_early to $last_reader KiB"
echo "passed: $step ($messages messages, $waits waited; $slow_per_message ns each, and $per_message ns when the reader does not pause)"

step='a reader that is killed: the writer learns of it, and begins again with the next one'
read_stream killed 2000
write_stream 3000
sleep 2
kill -KILL "$reader"
wait "$reader" 2>/dev/null || true
for ((i = 0; i < 600; ++i)); do
    ! grep -q 'beginning again' "$work/writer.out" || break
    sleep 0.1
done
grep -q 'beginning again' "$work/writer.out" || fail "the writer does not know that its reader is gone"
read_stream next 100
wait "$writer" || fail "the writer failed"
wait "$reader" || fail "the reader failed"
grep -q '^read 3000 messages, each once, in order and whole' "$work/next.out" || fail "the second reader has not read all"
echo "passed: $step"
