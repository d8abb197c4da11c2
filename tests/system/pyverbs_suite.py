#!/usr/bin/python3
"""Runs rdma-core's pyverbs suite natively and by pollcore-run, and compares which tests pass.

usage: tests/system/pyverbs_suite.py          on Soft-RoCE in the guest of scripts/rxe-vm: natively, and by pollcore-run
       tests/system/pyverbs_suite.py --soft   on a software device, by pollcore-run only. Prints what does not pass.

The suite is in the documentation of the package python3-pyverbs. pyverbs_reasons.py has the differences that are known, with their reasons.
"""
import collections
import fnmatch
import gzip
import json
import os
import pathlib
import queue
import subprocess
import sys
import tempfile
import threading

sys.dont_write_bytecode = True
from beside_daemon import fail, passed, start
from pyverbs_reasons import BY_CHANCE, REASONS
from served_daemon import daemon, gid_index, served

PACKED = pathlib.Path("/usr/share/doc/rdma-core/tests")
RUNNER = pathlib.Path(__file__).resolve().with_name("pyverbs_run.py")
TEST_MOST_SECONDS = 60  # ends a test that hangs
ROUNDS = 3  # a test has passed if it passed in one of these: some depend on chance, natively, too


def unpack(folder):
    package = pathlib.Path(folder) / "tests"
    package.mkdir()
    for file in PACKED.glob("*.py*"):
        text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        (package / file.name.removesuffix(".gz")).write_bytes(text)
    if not (package / "test_qp.py").exists():
        fail(f"{PACKED} has no suite: install python3-pyverbs with its documentation (scripts/setup --all)")


def lines_of(process):
    """The lines that a process prints; None when it has been silent for too long."""
    lines = queue.Queue()

    def read():
        for line in process.stdout:
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=TEST_MOST_SECONDS)
        except queue.Empty:
            yield None
            return
        if line == "":
            return
        yield line


def said_by(process):
    """What the runner says. Other lines are printed by the tests themselves."""
    for line in lines_of(process):
        if line is None:
            yield None
        elif line.startswith("{"):
            yield json.loads(line)


def outcomes(way, wanted):
    """Runs these tests. `way` makes a command of a command. Returns the outcome of each, with its reason."""
    found = {}
    while len(found) < len(wanted):
        rest = [one for one in wanted if one not in found]
        process = start(*way(["/usr/bin/python3", "-B", RUNNER, *rest_of_command, "--", *rest]), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        running = None
        for said in said_by(process):
            if said is None:
                process.kill()
                break
            if "begins" in said:
                running = said["begins"]
            elif "ended" in said:
                found[said["ended"]] = (said["outcome"], said["why"])
                running = None
        code = process.wait()
        if running is not None:
            found[running] = ("failed", "it hung" if said is None else f"the process ended with {code}")
        elif len(found) < len(wanted) and not set(rest) & set(found):
            fail(f"the suite's process ended with {code} before a test")
    return found


def best_outcomes(way, wanted):
    found = outcomes(way, wanted)
    for _ in range(ROUNDS - 1):
        again = [name for name in wanted if found[name][0] == "failed"]
        found |= {name: one for name, one in outcomes(way, again).items() if one[0] == "passed"}
    return found


def summary(found):
    counts = collections.Counter(one[0] for one in found.values())
    return f"{len(found)} tests, {counts['passed']} passed, {counts['skipped']} skip themselves, {counts['failed']} failed"


def reason_for(name):
    return next((pattern for pattern in REASONS if fnmatch.fnmatchcase(name, pattern)), None)


def compare(native, preloaded):
    used, unknown, known = set(), [], 0
    for name in native:
        if name in BY_CHANCE or (native[name][0] == "passed") == (preloaded[name][0] == "passed"):
            continue
        pattern = reason_for(name)
        used.add(pattern)
        text = f"{name}: natively {': '.join(native[name])}; by pollcore-run {': '.join(preloaded[name])}"
        if pattern is None:
            unknown.append(text)
        else:
            known += 1
            print(f"differs: {text}\n  known: {REASONS[pattern]}")
    if unknown:
        fail("differences that pyverbs_reasons.py does not have:\n" + "\n".join(unknown))
    if missing := set(BY_CHANCE) - set(native):
        fail(f"the suite has no {', '.join(sorted(missing))}")
    if stale := set(REASONS) - used:
        fail(f"pyverbs_reasons.py has reasons for what does not differ: {', '.join(sorted(stale))}")
    passed(f"equal sets of passed tests, but for {known} with a known reason, and {len(BY_CHANCE)} that may fail by chance")


def main():
    global rest_of_command
    with tempfile.TemporaryDirectory() as folder:
        unpack(folder)
        on_soft = sys.argv[1:] == ["--soft"]
        device = "soft0" if on_soft else os.environ["POLLCORE_RXE_DEVICE"]
        config = 'kind = "soft"'
        options = ["--dev", device, "--port", "1"]
        if not on_soft:
            address = os.environ["POLLCORE_RXE_ADDRESS"]
            config = f'kind = "verbs"\nverbs_name = "{device}"\ngid = "{address}"'
            options += ["--gid", gid_index(device, address)]
        rest_of_command = [folder, *options]
        listing = subprocess.run(["/usr/bin/python3", "-B", RUNNER, *rest_of_command], capture_output=True, text=True, check=True).stdout
        wanted = [json.loads(line)["test"] for line in listing.splitlines()]
        with daemon(config, name="soft0" if on_soft else "nic0") as socket:
            preloaded = best_outcomes(lambda command: served(socket, command), wanted)
        print(f"by pollcore-run: {summary(preloaded)}")
        if on_soft:
            for name, (outcome, why) in preloaded.items():
                if outcome != "passed":
                    print(f"{outcome}: {name}: {why.splitlines()[0] if why else ''}")
            return
        native = best_outcomes(lambda command: command, wanted)
        print(f"natively: {summary(native)}")
        compare(native, preloaded)


main()
