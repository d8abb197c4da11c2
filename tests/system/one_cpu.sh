#!/usr/bin/env bash
# scripts/demo where there is one CPU: thread and worker take turns, and it says so. As root, in a guest: it makes a control group
# with one CPU and ends with it.
#
#   tests/system/one_cpu.sh BUILD
set -euo pipefail

[[ $# -eq 1 ]] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/../.."
group=/sys/fs/cgroup/one-cpu
echo +cpuset >/sys/fs/cgroup/cgroup.subtree_control
mkdir "$group"
echo 0 >"$group/cpuset.cpus"
echo $$ >"$group/cgroup.procs"
[[ $(nproc) -eq 1 ]]

expect() { # TEXT FILE
    grep -qF -- "$1" "$2" || { echo "the demo does not say: $1" >&2; cat "$2" >&2; exit 1; }
}
out=$(mktemp)
scripts/demo --no-setup --build "$1" -n 500 >"$out"
for text in 'by verbs, on the' 'by turns' "write to the peer's memory" 'add to a number there' 'This process has one CPU'; do
    expect "$text" "$out"
done
scripts/demo --no-setup --build "$1" --details -n 500 >"$out"
expect 'application and worker take turns on CPU 0' "$out"
expect 'client 2 ' "$out"
