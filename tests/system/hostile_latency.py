#!/usr/bin/python3
"""Measures an attached process beside hostile verbs programs, which pollcore-run has started over the same pollcored.

usage: POLLCORE_BUILD=DIRECTORY tests/system/hostile_latency.py [ATTACK...]     (hostile_verbs.cc has the attacks; default: all)

pollperf does one read of 8 bytes at a time on a software device. A hostile program runs on a third CPU if there is one, else on the CPU of pollperf
(CPUS=APPLICATION,WORKER). There the kernel lets them take turns of some milliseconds. Therefore each attack is compared with a program that does
nothing but take the CPU, and operations are counted in a second of pollperf's own CPU time. A worker that stalls makes pollperf look in vain, which
takes its CPU time.

Fails if a program does not work. With GOALS=FILE (scripts/bench) it measures for longer, and writes goals to that file, with the value of each of
ROUNDS rounds; scripts/bench judges them. The goals: the median latency beside the worst attack is at most 1.25 times that beside the program that
takes the CPU, and there are at least 0.7 times as many operations.
"""
import contextlib
import os
import resource
import signal
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True
from attached_latency import place, write_goals
from beside_daemon import BUILD, PATIENCE, fail, passed, start, until
from served_daemon import served

LATENCY_MOST, OPERATIONS_LEAST = 1.25, 0.7
ATTACKS = ("freed-objects", "exits-in-calls", "closed-descriptors", "unmapped-rings", "garbled-rings", "exhausted-objects", "any-end", "unloaded-library",
           "wild-requests", "races", "threads", "misused-events", "forked-children", "forked-children-after-init")
FOREVER = 1000 * PATIENCE  # milliseconds: until it is ended


@contextlib.contextmanager
def beside(here, command):
    """Runs `command`, and what it starts, on a CPU where it does not disturb the worker."""
    third = sorted(os.sched_getaffinity(0) - here.cpus)
    process = start("taskset", "-c", third[0] if third else here.cpu, *command, process_group=0, env={**os.environ, "POLLCORE_TEST_VERBS": "soft0"})
    try:
        yield process
        if process.poll() is not None:
            fail(f"{command} ended with {process.returncode} while it was to disturb")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=PATIENCE)


def measured(here, seconds):
    """Returns the median and the p99 of the latency in microseconds, and the operations in a second of CPU time."""
    def cpu_time():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = cpu_time()
    result = here.pollperf("read", "-D", seconds)
    latency = result["latency_ns"]
    return latency["typical"] / 1000, latency["p99"] / 1000, result["operations"] / (cpu_time() - before)


def disturbed(here, attack, seconds):
    """Measures beside the attack. None is a program that only takes the CPU."""
    if not attack:
        with beside(here, ["sh", "-c", "while :; do :; done"]):
            return measured(here, seconds)
    with beside(here, served(here.socket, [BUILD / "tests" / "hostile-verbs", attack, FOREVER], "--log", "off")) as process:
        # Its children attack.
        until(f"{attack} has begun", lambda: subprocess.run(["pgrep", "--parent", str(process.pid)], stdout=subprocess.DEVNULL).returncode == 0)
        return measured(here, seconds)


def main():
    attacks = sys.argv[1:] or ATTACKS
    rounds, seconds = int(os.environ.get("ROUNDS", "1")), 3 if "GOALS" in os.environ else 1
    figures = {attack: [] for attack in (None, *attacks)}
    with place() as here:
        alone = [measured(here, seconds) for _ in range(rounds)]
        for _ in range(rounds):
            for attack, found in figures.items():
                found.append(disturbed(here, attack, seconds))
    # Each pollperf attaches. For each attack pollcore-run attaches to see whether it may, and then at least one hostile process does.
    least = rounds * (2 + 3 * len(attacks))
    if here.attached < least:
        fail(f"only {here.attached} processes have attached, not {least}")
    print(f"{'another process reads, latency in us':<40} {'median':>8} {'p99':>8} {'operations in a second of CPU time':>36}   (medians of {rounds})")
    for what, found in (("alone", alone), *((attack or "beside a program that takes its CPU", found) for attack, found in figures.items())):
        median, p99, operations = map(statistics.median, zip(*found))
        print(f"{what:<40} {median:>8.3f} {p99:>8.3f} {operations:>36.0f}")
    latency, operations = ([[figures[attack][i][which] / busy[which] for attack in attacks] for i, busy in enumerate(figures[None])] for which in (0, 2))
    versus = "beside the worst hostile verbs program / beside a busy program"
    write_goals([{"goal": f"read latency {versus}", "at_least": False, "bound": LATENCY_MOST, "samples": [max(one) for one in latency]},
                 {"goal": f"reads in a second of CPU time {versus}", "at_least": True, "bound": OPERATIONS_LEAST, "samples": [min(one) for one in operations]}])
    passed(f"an attached process beside {len(attacks)} attacks")


main()
