#!/usr/bin/env bash
# Measures the cost of waiting, and checks that a worker and an application really sleep. Runs pollperf's wake-ups, and
# its latency with threads that sleep, by plain verbs and through a worker.
#
# With GOALS=FILE (scripts/bench) it writes goals and the reached values to that file; scripts/bench judges them. The goals: a sleeping
# worker or application wakes up within 1.25 times the time that eventfd and epoll take between two plain threads;
# at full load a worker that waits by `spin` does at most 1.02 times the operations of one that waits by `pause`; a
# sleeping worker takes at most 1% of its core.
set -euo pipefail

cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 - "$work" "${POLLCORE_BUILD:-build/release}/apps/pollperf/pollperf" <<'PY'
import json, os, subprocess, sys

work, pollperf = sys.argv[1:]
GOALS = os.environ.get("GOALS")
RUNS = 5 if GOALS else 1
bounds = {"waking a worker / eventfd's": 1.25, "waking an application / eventfd's": 1.25, "full load, spin / pause": 1.02,
          "a sleeping worker's CPU": 0.01}
figures = {name: [] for name in bounds}
for _ in range(RUNS):
    subprocess.run([pollperf, "wake", "-n", "200", "--wait", "spin", "--wait", "pause", "--wait", "event",
                    "--json", f"{work}/json"], check=True)
    with open(f"{work}/json") as file:
        report = json.load(file)
    rows = {row["how"]: row for row in report["worker"]}
    figures["waking a worker / eventfd's"].append(report["worker_ratio"])
    figures["waking an application / eventfd's"].append(report["application_ratio"])
    figures["full load, spin / pause"].append(rows["spin"]["full_load_per_s"] / rows["pause"]["full_load_per_s"])
    figures["a sleeping worker's CPU"].append(rows["event"]["cpu_idle"])

# A thread that sleeps makes voluntary context switches. Plain verbs need none here, because one thread has both ends
# and does the software device's work while it polls.
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
if GOALS:
    with open(GOALS, "w") as file:
        for name, values in figures.items():
            print(json.dumps({"goal": name, "at_least": False, "bound": bounds[name], "samples": values}), file=file)
sys.exit(failed)
PY
