#!/usr/bin/env python3
"""Checks that pollcored and libpollcore.so have the static probes that runtime/base/README.md lists, and no others.

usage: tests/system/probes.py        (POLLCORE_BUILD: the build directory)
"""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ["POLLCORE_BUILD"])


def documented():
    text = (ROOT / "runtime" / "base" / "README.md").read_text().split("## Static probes")[1]
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def probes_of(file):
    notes = subprocess.run(["readelf", "--notes", "--wide", file], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"Provider: pollcore\s+Name: (\w+)", notes))


def main():
    wanted = documented()
    wrong = not wanted
    for file in (BUILD / "apps" / "pollcored" / "pollcored", BUILD / "runtime" / "libpollcore.so"):
        found = probes_of(file)
        for name in sorted(wanted - found):
            print(f"FAIL: {file.name} lacks the probe {name}")
        for name in sorted(found - wanted):
            print(f"FAIL: {file.name} has the probe {name}, which runtime/base/README.md does not list")
        wrong |= found != wanted
        if found == wanted:
            print(f"passed: {file.name} has {len(found)} probes")
    sys.exit(wrong)


if __name__ == "__main__":
    main()
