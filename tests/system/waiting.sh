#!/usr/bin/env bash
# What waiting costs, and that a worker and an application that sleep do so: pollperf's wake-ups, and its latency of those who sleep, by
# plain verbs and through a worker.
#
# With JUDGE=1 (scripts/bench) the costs have bounds: a worker and an application that sleep are woken within 1.25 of the time that
# eventfd and epoll take between two plain threads; `pause` costs a worker at full load nothing (1.02 of `spin`); a worker that sleeps
# takes less than 1% of its core.
set -euo pipefail

cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 - "$work" "${POLLCORE_BUILD:-build/release}/apps/pollperf/pollperf" <<'PY'
import json, os, statistics, subprocess, sys

work, pollperf = sys.argv[1:]
JUDGE = "JUDGE" in os.environ
RUNS = 3 if JUDGE else 1
bounds = {"worker": 1.25, "application": 1.25, "pause beside spin at full load": 1.02, "CPU of a sleeping worker": 0.01}
figures = {name: [] for name in bounds}
for _ in range(RUNS):
    subprocess.run([pollperf, "wake", "-n", "200", "--wait", "spin", "--wait", "pause", "--wait", "event",
                    "--json", f"{work}/json"], check=True)
    with open(f"{work}/json") as file:
        report = json.load(file)
    rows = {row["how"]: row for row in report["worker"]}
    figures["worker"].append(report["worker_ratio"])
    figures["application"].append(report["application_ratio"])
    figures["pause beside spin at full load"].append(rows["spin"]["full_load_per_s"] / rows["pause"]["full_load_per_s"])
    figures["CPU of a sleeping worker"].append(rows["event"]["cpu_idle"])

# Who sleeps gives its core away. Plain verbs need not here: a thread with both ends moves the software device while it looks.
subprocess.run([pollperf, "lat", "-d", "soft0", "-o", "send", "--path", "both", "--wait", "event", "-n", "500", "--verify",
                "--json", f"{work}/json"], check=True)
with open(f"{work}/json") as file:
    slept = {row["path"]: row["context_switches"] for row in json.load(file)["results"]}

failed = False
assert set(slept) == {"event", "runtime"}, slept
for thread in ("application", "worker"):
    switches = slept["runtime"][thread]["voluntary"]
    failed |= switches < 500
    print(f"the {thread} sleeps: {switches} voluntary context switches in 500 messages to and fro, at least 500")
for name, values in figures.items():
    # A shared machine only ever adds to what something takes: the median of runs in which it did so is not the program's.
    verdict = statistics.quantiles(values, n=4, method="inclusive")[0] if RUNS > 1 else values[0]
    failed |= JUDGE and verdict > bounds[name]
    print(f"{name}: lower quartile {verdict:.3f}, median {statistics.median(values):.3f} of {RUNS} runs, at most {bounds[name]}")
sys.exit(failed)
PY
