#!/usr/bin/env bash
# Runs the README's first command, scripts/demo, on a finished build. The command must work and print the expected
# lines, in short form and with details.
#
# With GOALS=FILE (scripts/bench) it runs the command often, and writes goals and the reached values to that file;
# scripts/bench judges them. The first goal: on the software device, the way through a worker on another core adds at
# most 1.6 raw round trips between the two cores to an operation (for send, one way). The second goal: an operation of
# an attached process takes at most 1.05 times as long as with an embedded runtime.
set -euo pipefail

cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A shared machine has bad moments, even within a run: the two CPUs do not run at the same time, or the host moves them
# to cores further apart. So a run counts for the first goal only if the round trips before and after it differ by at
# most a quarter. A ratio below PLAUSIBLE is left out, because it compares the operation with a round trip between other
# cores. Ratios a little below 1 are possible, because the worker does part of the direct path's work while a cache line
# is on its way.
python3 - "$work" "${POLLCORE_BUILD:-build/release}" <<'PY'
import json, os, subprocess, sys

GOALS = os.environ.get("GOALS")
BOUND, ATTACHED, PLAUSIBLE, WANTED, ATTEMPTS = 1.6, 1.05, 0.6, 9, 30
SHOWN = ("direct", "runtime", "difference  / round trip", "attached   / runtime", "application's switches", "ran on",
         "two processes, both attached to one daemon", "client 2 ")
work, build = sys.argv[1:]
BRIEF = ("by verbs, on the", "through a worker", "from another process", "send a message", "write to the peer's memory",
         "read from the peer's memory", "add to a number there", "the thread slept, times", "scripts/demo --details")


def demo(*options):
    run = subprocess.run(["scripts/demo", "--no-setup", "--build", build, *options], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"scripts/demo {' '.join(options)} ended with {run.returncode}:\n{run.stdout}{run.stderr}")
    return run.stdout


def require(shown, whole):
    for what in shown:
        if what not in whole:
            sys.exit(f"the demo does not show: {what}\n{whole}")


if not GOALS:
    short = demo("-n", "20000")
    require((*BRIEF, "ns more here"), short)
    table = short.split("\n\n")[1].splitlines()
    if len(table) != 2 + 5 or len(short.splitlines()) > 15:
        sys.exit(f"the demo's table is not short any more:\n{short}")
ratios, attached = {}, {}
counted = 0
for attempt in range(ATTEMPTS):
    details = demo("--details", "--json", f"{work}/json")
    require(SHOWN, details)
    with open(f"{work}/json") as file:
        report = json.load(file)
    if {hop["op"] for hop in report["hops"]} != {"send", "write", "write-imm", "read", "fetch-add", "cmp-swap"}:
        sys.exit(f"the demo does not measure every operation\n{details}")
    if not GOALS:
        sys.exit()
    trips = [report["round_trip_ns"][when]["typical"] for when in ("before", "after")]
    steady = max(trips) <= 1.25 * min(trips)
    hops = {hop["op"]: hop["difference_round_trips"] for hop in report["hops"]}
    for hop in report["hops"]:
        attached.setdefault(hop["op"], []).append(hop["attached_ns"] / hop["runtime_ns"])  # the two are measured in turn, so the cores do not matter
    print(f"round trip {trips[0]:.0f} ns before, {trips[1]:.0f} ns after;",
          ", ".join(f"{op} {ratio:.2f}" for op, ratio in hops.items()), "" if steady else "(does not count)")
    if steady:
        for op, ratio in hops.items():
            ratios.setdefault(op, []).append(ratio)
        counted += 1
        if counted == WANTED:
            break
if counted < WANTED:
    sys.exit(f"only {counted} of {ATTEMPTS} runs had the same round trip before and after: this machine is too restless to tell")

ratios = {op: [value for value in values if value >= PLAUSIBLE] for op, values in ratios.items()}
if min(map(len, ratios.values())) < WANTED // 2:
    sys.exit("the cores changed in most runs: this machine is too restless to tell")
with open(GOALS, "w") as file:
    for op, values in ratios.items():
        print(json.dumps({"goal": f"demo, {op}: runtime - direct, in raw round trips", "at_least": False, "bound": BOUND, "samples": values}), file=file)
    for op, values in attached.items():
        print(json.dumps({"goal": f"demo, {op}: attached / runtime", "at_least": False, "bound": ATTACHED, "samples": values}), file=file)
PY
