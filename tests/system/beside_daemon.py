"""What the tests have in common that run programs beside a pollcored."""
import os
import pathlib
import subprocess
import sys
import time

BUILD = pathlib.Path(os.environ["POLLCORE_BUILD"]).resolve()
PATIENCE = 120  # seconds; ends a test that hangs


def program(name):
    return BUILD / "apps" / name / name


def fail(what):
    print(f"FAIL: {what}")
    sys.exit(1)


def passed(what):
    print(f"passed: {what}")


def until(what, holds):
    """Waits until `holds` returns something true, and returns that."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = holds()
        if found:
            return found
        time.sleep(0.05)
    fail(f"{what}: not within {PATIENCE} s")


def start(*command, **options):
    """Starts a program that the kernel kills when this test ends in any way."""
    return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *map(str, command)], text=True, **options)


def start_daemon(config, **options):
    """Starts a pollcored. Returns it when it is ready, and what it has said until then."""
    daemon = start(program("pollcored"), "--config", config, stderr=subprocess.PIPE, **options)
    said = ""
    for line in daemon.stderr:
        said += line
        if "ready:" in line:
            return daemon, said
    fail(f"pollcored did not start: {said}")
