#!/usr/bin/python3
"""Measures the latency of an attached process beside hostile verbs programs, which pollcore-run has started over the same pollcored.

usage: POLLCORE_BUILD=DIRECTORY tests/system/hostile_latency.py [ATTACK...]     (hostile_verbs.cc has the attacks; default: all)

pollperf does one read of 8 bytes at a time on a software device. A hostile program runs on a third CPU if there is one, else on the CPU of pollperf
(CPUS=APPLICATION,WORKER). There the kernel lets the two take turns of some milliseconds, so the worst latencies are the scheduler's. Therefore each
attack is compared with a program that does nothing but take the CPU.

Fails if a program does not work. With GOALS=FILE (scripts/bench) it measures for longer, and writes a goal to that file, with the value of each of
ROUNDS rounds; scripts/bench judges it: the median beside the worst attack is at most 1.25 times that beside the program that takes the CPU.
"""
import contextlib
import os
import signal
import statistics
import sys

sys.dont_write_bytecode = True
from attached_latency import place, write_goals
from beside_daemon import BUILD, PATIENCE, fail, passed, start
from served_daemon import served

BOUND = 1.25  # of the medians
ATTACKS = ("freed-objects", "exits-in-calls", "closed-descriptors", "unmapped-rings", "garbled-rings", "exhausted-objects", "any-end", "unloaded-library",
           "wild-requests", "races", "threads", "misused-events", "forked-children", "forked-children-after-init")
FOREVER = 1000 * PATIENCE  # milliseconds: until it is ended


@contextlib.contextmanager
def beside(here, command):
    """Runs `command`, with all that it starts, in turn with the measuring thread or beside it."""
    third = sorted(os.sched_getaffinity(0) - here.cpus)
    process = start("taskset", "-c", third[0] if third else here.cpu, *command, start_new_session=True,
                    env={**os.environ, "POLLCORE_TEST_VERBS": "soft0"})
    try:
        yield process
        if process.poll() is not None:
            fail(f"{command} ended with {process.returncode} while it was to disturb")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=PATIENCE)


def disturbed(here, attack, seconds):
    """Returns the latencies beside the attack. None is a program that only takes the CPU."""
    command = served(here.socket, [BUILD / "tests" / "hostile-verbs", attack, FOREVER], "--log", "off") if attack else ["sh", "-c", "while :; do :; done"]
    with beside(here, command):
        return here.pollperf("read", "-D", seconds)


def main():
    attacks = sys.argv[1:] or ATTACKS
    rounds, seconds = int(os.environ.get("ROUNDS", "1")), 3 if "GOALS" in os.environ else 1
    figures = {attack: [] for attack in (None, *attacks)}
    with place() as here:
        alone = here.pollperf("read", "-D", seconds)
        for _ in range(rounds):
            for attack, latencies in figures.items():
                latencies.append(disturbed(here, attack, seconds))
    # pollcore-run attaches to see whether it may, and then the program and its children do.
    if here.attached < 2 * rounds * len(attacks):
        fail(f"only {here.attached} processes have attached")
    print(f"{'read latency of another process, us':<36} {'median':>8} {'p99':>8}   (medians of {rounds})\n"
          f"{'alone':<36} {alone['typical']:>8.3f} {alone['p99']:>8.3f}")
    for attack, latencies in figures.items():
        median, p99 = (statistics.median(one[name] for one in latencies) for name in ("typical", "p99"))
        print(f"{attack or 'beside a program that takes its CPU':<36} {median:>8.3f} {p99:>8.3f}")
    worst = [max(figures[attack][i]["typical"] for attack in attacks) / busy["typical"] for i, busy in enumerate(figures[None])]
    write_goals([{"goal": "read latency beside the worst hostile verbs program / beside a busy program", "at_least": False, "bound": BOUND, "samples": worst}])
    passed(f"latency beside {len(attacks)} attacks")


main()
