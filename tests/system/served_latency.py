#!/usr/bin/python3
"""Compares the latency of perftest, started by pollcore-run, with that of pollperf, which is attached to the same pollcored.

usage: POLLCORE_BUILD=DIRECTORY tests/system/served_latency.py

Both pay for the rings and the worker; only perftest pays for the preloaded verbs, too. Both do one operation of 8 bytes at a time on a
software device. The worker spins on one CPU, and the thread that measures spins on another one: CPUS=APPLICATION,WORKER (the first and the last).

Operations are reads and atomics, whose target is passive: the server of perftest sleeps. In ib_send_lat and ib_write_lat the server spins, too,
and answers, so that they need a third CPU, while pollperf can have both ends in one thread. Those figures cannot be compared.

Fails if a program does not work. With GOALS=FILE (scripts/bench) it writes goals to that file, with the values of each of ROUNDS rounds;
scripts/bench judges them. The goals: perftest takes at most 1.05 times as long as pollperf. In a round pollperf runs before perftest and after it.
A virtual machine's CPUs move nearer to each other and away, so a round counts only if both figures of pollperf are alike.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from beside_daemon import PATIENCE, fail, passed, program, start_daemon
from served_daemon import served
from served_pairs import try_pair

BOUND = 1.05
SIZE = 8
TRIES = 5  # perftest fails if a busy machine disturbs its calibration of the clock
STEADY = 1.1  # the most that the figures of pollperf in one round may differ, as a ratio
ATTEMPTS = 4  # for each round that is wanted
OPERATIONS = {"ib_read_lat": "read", "ib_atomic_lat": "fetch-add"}
CONFIG = """
[runtime]
share_cores = true
[memory]
size = "64MiB"
[[device]]
name = "soft0"
kind = "soft"
[[worker]]
name = "worker0"
core = {worker}
[attach]
path = "{directory}/socket"
own_memory = "on"
"""


class Latencies:
    """Both programs, which measure over one daemon."""

    def __init__(self, directory, cpu, iterations):
        self.directory, self.cpu, self.iterations = pathlib.Path(directory), cpu, iterations
        self.config, self.socket = self.directory / "daemon.toml", self.directory / "socket"

    def perftest(self, name):
        """Returns the typical latency in microseconds: the fifth column of the client's line that begins with the size."""
        figures = []

        def check(_, said):
            figures.extend(float(words[4]) for words in map(str.split, said[1].splitlines()) if len(words) >= 9 and words[0] == str(SIZE))

        def end(*peer):
            size = () if "atomic" in name else ("-s", SIZE)
            return lambda port: ["taskset", "-c", self.cpu, *served(self.socket, [name, "-d", "soft0", "-x", 0, *size, "-n", self.iterations,
                                                                               "-F", "-p", port, *peer])]

        for _ in range(TRIES):
            failure = try_pair(name, end(), end("127.0.0.1"), check)
            if failure is None and figures:
                return figures[0]
        fail(f"{name}: {failure or 'it has printed no figure'}")

    def pollperf(self, operation):
        file = self.directory / "pollperf.json"
        done = subprocess.run(list(map(str, (program("pollperf"), "lat", "--path", "attached", "--attach", self.socket, "--config", self.config, "-o", operation,
                                             "-s", SIZE, "-n", self.iterations, "--rounds", 1, "--core", self.cpu, "--json", file))),
                              capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode != 0:
            fail(f"pollperf {operation}: {done.stdout}{done.stderr}")
        return json.loads(file.read_text())["results"][0]["latency_ns"]["typical"] / 1000


def compare(latencies, name, rounds):
    """Returns the ratio of each round that counts."""
    theirs, ours = [], []
    attempts = 0
    while len(theirs) < rounds and attempts < ATTEMPTS * rounds:
        attempts += 1
        before, between, after = latencies.pollperf(OPERATIONS[name]), latencies.perftest(name), latencies.pollperf(OPERATIONS[name])
        if max(before, after) <= STEADY * min(before, after):
            theirs.append(between)
            ours.append((before + after) / 2)
    ratios = [one / other for one, other in zip(theirs, ours)]
    if ratios:
        print(f"{name:<14} {statistics.median(theirs):>10.3f} {statistics.median(ours):>10.3f} {statistics.median(ratios):>8.3f}   "
              f"perftest: {' '.join(f'{one:.2f}' for one in theirs)}  pollperf: {' '.join(f'{one:.3f}' for one in ours)}")
    print(f"{name:<14} {len(ratios)} of {attempts} rounds count")
    return ratios


def main():
    rounds = int(os.environ.get("ROUNDS", "1"))
    cpus = sorted(os.sched_getaffinity(0))
    cpu, worker = map(int, os.environ.get("CPUS", f"{cpus[0]},{cpus[-1]}").split(","))
    if cpu == worker:
        fail("it needs two CPUs, one for the worker and one for the program")
    goals = []
    with tempfile.TemporaryDirectory() as directory:
        latencies = Latencies(directory, cpu, 100000 if "GOALS" in os.environ else 1000)
        latencies.config.write_text(CONFIG.format(worker=worker, directory=directory))
        daemon, _ = start_daemon(latencies.config)
        try:
            print(f"{'typical, us':<14} {'perftest':>10} {'pollperf':>10} {'ratio':>8}   (medians)")
            for name in OPERATIONS:
                goals.append({"goal": f"pollcore-run {name} / pollperf attached", "at_least": False, "bound": BOUND, "samples": compare(latencies, name, rounds)})
        finally:
            daemon.terminate()
            daemon.communicate(timeout=PATIENCE)
    if daemon.returncode != 0:
        fail(f"pollcored returned {daemon.returncode}")
    if "GOALS" in os.environ:
        pathlib.Path(os.environ["GOALS"]).write_text("".join(json.dumps(goal) + "\n" for goal in goals))
    passed("perftest by pollcore-run, and pollperf attached")


main()
