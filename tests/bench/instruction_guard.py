#!/usr/bin/env python3
"""Counts the instructions of the hot path and compares them with their bounds (instructions.json).

usage: instruction_guard.py PROGRAM MODEL [--update | --table]
       POLLCORE_BUILD=DIRECTORY instruction_guard.py --served [--update | --table]

Times mean nothing on a shared machine; the number of instructions is the same each time. An operation is counted through
Session::try_submit, Worker::step and Session::poll, on a device that completes at once; the step includes that device's few
instructions. The loads are writes, also with inline payloads among them; sends that invalidate a key; messages of a send pool, each of
which is claimed, written and committed, and whose buffer comes back by the poll; messages to a receive pool or a write ring, without flow control,
with credits, and beside queue pairs that wait for credit; and writes beside another process's session whose ring is always full. In the last load, the
step includes the worker's work for both sessions, and it may take no more when the other ring is full of garbage (no_more_than).
An idle step of a spinning worker, which is 16 looks, may take not one instruction more (slack). A worker that falls asleep arms the CQ of
the last burst, and wakes up.
With many queue pairs, misses of the first cache matter. They are counted too, as callgrind simulates a cache, for each load with "lines".
callgrind simulates no prefetching: only times show its gain (scripts/bench).
The instructions of libmlx5 are counted on MODEL, the model of an mlx5 HCA (tests/mlx5_model), as a bare chain and as part of the worker's step.

--served counts what a program of verbs executes in its posts and polls (served_load.hpp) when pollcore-run starts it over a pollcored with a software
device. Of that daemon nothing is counted. A poll is counted when all completions are there for which it asks, or none.

A count above its bound fails. A count far below it fails too, so that the bounds follow improvements. --update writes new bounds from the
counts: give the reason in the commit message. --table prints the counts as Markdown, and compares nothing.
"""
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

BOUNDS = pathlib.Path(__file__).with_name("instructions.json")
# One version of a compiler always gives the same count; the count of another version may differ by this share.
SLACK = 0.05
INSTRUCTIONS, LINES = "Ir", "D1mr,D1mw"
CACHE = "--D1=49152,12,64"
FEW, FEW_MORE, MANY = 40, 80, 240  # rounds: the difference of two runs leaves out the start-up


# The parts of a served load: what a program calls.
CALLS = {"post": "ibv_post_send", "build": "ibv_wr_start to ibv_wr_complete", "post_receives": "ibv_post_recv", "poll": "ibv_poll_cq of sends",
         "poll_receives": "ibv_poll_cq of receives", "poll_extended": "ibv_start_poll to ibv_end_poll", "poll_nothing": "ibv_poll_cq",
         "poll_extended_nothing": "ibv_start_poll"}


class Counted:
    """A program whose instructions are counted."""

    def __init__(self, program, model=None, started_by=()):
        self.program, self.model, self.started_by = program, model, started_by

    def environment(self, load):
        # With "hand" the model works only when the program calls it, so that none of its instructions are counted.
        return os.environ | ({"LD_PRELOAD": self.model, "MLX5_MODEL": "hand"} if "mlx5_0" in load["load"] else {})


@contextlib.contextmanager
def served():
    """Starts a pollcored, and yields the program that pollcore-run starts over it. The daemon's worker yields: one that sleeps would be woken by
    some posts, which takes instructions."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))
    import served_daemon
    with served_daemon.daemon('kind = "soft"', name="soft0") as socket:
        os.environ["POLLCORE_TEST_VERBS"] = "soft0"
        yield Counted(str(served_daemon.BUILD / "tests" / "served-load"), started_by=tuple(map(str, served_daemon.served(socket, []))))


def counts_of(counted, load, rounds, events):
    """Returns the inclusive count of each part of a burst: the sum of these events."""
    with tempfile.TemporaryDirectory() as directory:
        out = f"{directory}/callgrind.out"
        simulated = ["--cache-sim=yes", CACHE] if events != INSTRUCTIONS else []
        command = [*counted.started_by, "valgrind", "--tool=callgrind", *simulated, f"--callgrind-out-file={out}", counted.program, str(rounds),
                   str(load["burst"]), *load["load"].split()]
        done = subprocess.run(command, capture_output=True, text=True, env=counted.environment(load))
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
        listing = subprocess.run(["callgrind_annotate", "--inclusive=yes", "--threshold=100", "--show-percs=no", f"--show={events}", out],
                                 capture_output=True, text=True, check=True).stdout
    counts = {}
    for part in load["instructions" if events == INSTRUCTIONS else "lines"]:
        found = re.findall(rf"^\s*([\d,. ]+)\s.*bench::\w+Load::{part}\(\)", listing, re.MULTILINE)
        if not found:
            sys.exit(f"{counted.program}: nothing was counted of {part}; was it inlined?")
        counts[part] = sum(int(count.replace(",", "")) for count in found[0].split() if count != ".")
    return counts


def per_operation(counted, load, events):
    least, most = (FEW, MANY) if events == INSTRUCTIONS else (FEW, FEW_MORE)
    few, many = (counts_of(counted, load, rounds, events) for rounds in (least, most))
    operations = (most - least) * load["burst"]
    return {part: round((many[part] - few[part]) / operations, 1) for part in few}


def heading(of_served):
    return ("| instructions per request of a program that pollcore-run has started, counted by callgrind | |\n|---|---|" if of_served else
            "| instructions per operation, counted by callgrind | application: submit | worker: step, or post | poll |\n|---|---|---|---|")


def rows(load, counts):
    """Returns the load's part of the table."""
    if load.get("served"):
        return "\n".join(f"| {CALLS[part]}, {load['name']} | {count} |" for part, count in counts.items())
    worker = next(counts[part] for part in ("step", "post", "look", "sleep") if part in counts)
    return f"| {load['name']} | {counts.get('submit', '')} | {worker} | {counts.get('poll', '')} |"


def guard(counted, of_served, options):
    update = options == ["--update"]
    table = options == ["--table"]
    loads = json.loads(BOUNDS.read_text())
    wrong = 0
    steps = {}
    if table:
        print(heading(of_served))
    for load in loads:
        if load.get("served", False) != of_served:
            continue
        counts = per_operation(counted, load, INSTRUCTIONS)
        lines = per_operation(counted, load, LINES) if "lines" in load else {}
        name = load["name"]
        steps[name] = counts.get("step")
        if table:
            print(rows(load, counts))
            continue
        if update:
            load["instructions"] = counts
            if lines:
                load["lines"] = lines
            print(f"{name}: {counts}{f', lines {lines}' if lines else ''}")
            continue
        for kind, some in (("instructions", counts), ("lines", lines)):
            for part, count in some.items():
                bound = load[kind][part]
                fits = bound * (1 - 2 * SLACK) <= count <= bound * (1 + load.get("slack", SLACK))
                wrong += not fits
                print(f"{name}: {part} takes {count} {kind} per operation, {bound} are expected{'' if fits else ': WRONG'}")
        if "no_more_than" in load and counts["step"] > steps[load["no_more_than"]] * (1 + SLACK):
            wrong += 1
            print(f"{name}: step takes {counts['step']} instructions, but {steps[load['no_more_than']]} for {load['no_more_than']}: WRONG")
    if update:
        BOUNDS.write_text("[\n" + ",\n".join("  " + json.dumps(load) for load in loads) + "\n]\n")
    if wrong:
        sys.exit(f"{wrong} counts differ from those that are kept: {pathlib.Path(__file__).name} --help says what to do")


def main():
    if "--help" in sys.argv or len(sys.argv) < 2 or (len(sys.argv) < 3 and sys.argv[1] != "--served"):
        print(__doc__)
        sys.exit(0 if "--help" in sys.argv else 2)
    if sys.argv[1] == "--served":
        with served() as counted:
            guard(counted, True, sys.argv[2:])
    else:
        guard(Counted(*sys.argv[1:3]), False, sys.argv[3:])


if __name__ == "__main__":
    main()
