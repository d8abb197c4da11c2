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
import os
import statistics
import sys

sys.dont_write_bytecode = True
from attached_latency import SIZE, place, write_goals
from beside_daemon import fail, passed
from served_daemon import served
from served_pairs import try_pair

BOUND = 1.05
TRIES = 5  # perftest fails if a busy machine disturbs its calibration of the clock
STEADY = 1.1  # the most that the figures of pollperf in one round may differ, as a ratio
ATTEMPTS = 4  # for each round that is wanted
OPERATIONS = {"ib_read_lat": "read", "ib_atomic_lat": "fetch-add"}


def perftest(here, name, iterations):
    """Returns the typical latency in microseconds: the fifth column of the client's line that begins with the size."""
    figures = []

    def check(_, said):
        figures.extend(float(words[4]) for words in map(str.split, said[1].splitlines()) if len(words) >= 9 and words[0] == str(SIZE))

    def end(*peer):
        size = () if "atomic" in name else ("-s", SIZE)
        return lambda port: ["taskset", "-c", here.cpu, *served(here.socket, [name, "-d", "soft0", "-x", 0, *size, "-n", iterations, "-F", "-p", port, *peer])]

    for _ in range(TRIES):
        failure = try_pair(name, end(), end("127.0.0.1"), check)
        if failure is None and figures:
            return figures[0]
    fail(f"{name}: {failure or 'it has printed no figure'}")


def compare(here, name, rounds, iterations):
    """Returns the ratio of each round that counts."""
    def attached():
        return here.pollperf(OPERATIONS[name], "-n", iterations)["latency_ns"]["typical"] / 1000

    theirs, ours = [], []
    attempts = 0
    while len(theirs) < rounds and attempts < ATTEMPTS * rounds:
        attempts += 1
        before, between, after = attached(), perftest(here, name, iterations), attached()
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
    iterations = 100000 if "GOALS" in os.environ else 1000
    goals = []
    with place() as here:
        print(f"{'typical, us':<14} {'perftest':>10} {'pollperf':>10} {'ratio':>8}   (medians)")
        for name in OPERATIONS:
            goals.append({"goal": f"pollcore-run {name} / pollperf attached", "at_least": False, "bound": BOUND,
                          "samples": compare(here, name, rounds, iterations)})
    write_goals(goals)
    passed("perftest by pollcore-run, and pollperf attached")


main()
