#!/usr/bin/python3
"""Tests scripts/perf-sweep between the two ends of the wire in the guest of scripts/rxe-vm (POLLCORE_BUILD: the build directory)."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from beside_daemon import fail, passed, program

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SWEEP = ROOT / "scripts/perf-sweep"
DEVICE, PEER, ADDRESS = (os.environ[f"POLLCORE_RXE_{name}"] for name in ("DEVICE", "PEER", "ADDRESS"))
OPTIONS = ("--quick", "--time", "100ms", "--pollperf", program("pollperf"), "--option=--wait=yield", "--option=--share-core")
KINDS = ("lat", "bw", "rate")


def sweep(directory, *more, code=0):
    done = subprocess.run([SWEEP, "-d", PEER, ADDRESS, "--out", directory, *OPTIONS, *map(str, more)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=500)
    if done.returncode != code:
        fail(f"perf-sweep returned {done.returncode}: {done.stdout}{done.stderr}")
    return done


def whole(directory):
    done = sweep(directory, "--serve-with", f"{program('pollperf')} serve -d {DEVICE} --wait yield --share-core", "--path", "direct,event,runtime,attached")
    documents = [json.loads(file.read_text()) for file in directory.glob("*.json")]
    seen = {(document["program"], one["path"]) for document in documents for one in document["results"]}
    wanted = {(f"pollperf {kind}", path) for kind in KINDS for path in ("direct", "event", "runtime", "attached")}
    if seen != wanted:
        fail(f"missing: {wanted - seen}, not wanted: {seen - wanted}")
    if not any(one.get("offered_per_s") for document in documents for one in document["results"]):
        fail("there is no latency under load")
    if any(one["operations"] == 0 for document in documents for one in document["results"]):
        fail("something was not measured")
    page = (directory / "report.html").read_text()
    for kind in KINDS:
        if f'"program":"pollperf {kind}"' not in page:
            fail(f"the page has nothing of pollperf {kind}")
    if not re.search(r"^\| send \| 8 \| direct \| [0-9.]+ \|", done.stdout, re.M):
        fail(f"the table: {done.stdout}")
    passed(f"{len(documents)} measurements by four paths, and their page")


def mishaps(directory):
    said = sweep(directory, "--serve-with", "false", code=1).stderr
    if "does not come up" not in said:
        fail(f"a server that does not come up: {said}")
    said = sweep(directory, "--path", "direct", code=1).stderr  # no server is there
    if "nothing was measured" not in said or "connecting to a pollperf server" not in said:
        fail(f"a server that is not there: {said}")
    passed("a server that does not come up, and one that is not there")


with tempfile.TemporaryDirectory() as folder:
    mishaps(pathlib.Path(folder))
    whole(pathlib.Path(folder))
