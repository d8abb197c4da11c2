#!/usr/bin/env bash
# Checks that a history is the same in every process. Earlier histories of the process must not change it.
# usage: repeats.sh SIMULATE
set -euo pipefail
simulate=$1
first=$("$simulate" --digests --from 1 --seeds 600)
second=$("$simulate" --digests --from 301 --seeds 300)
if [ "$(tail -300 <<<"$first")" != "$second" ]; then
    echo "histories differ between two processes; the first that does:"
    diff <(tail -300 <<<"$first") <(echo "$second") | head -4
    exit 1
fi
echo "300 histories were the same in two processes"
