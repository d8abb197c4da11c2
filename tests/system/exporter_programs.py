"""A pollcored, a process with traffic, and pollstat --prometheus, for the tests of metrics."""
import http.client
import os
import pathlib
import re
import subprocess
import sys
import time

BUILD = pathlib.Path(os.environ["POLLCORE_BUILD"])
POLLCORED, POLLSTAT = (BUILD / "apps" / name / name for name in ("pollcored", "pollstat"))
ATTACHED_LOAD = BUILD / "tests/attached-load"
RUNTIME = "prometheus-test"
PATIENCE = 60  # seconds; ends a test that hangs

CONFIG = """
[runtime]
share_cores = true
[statistics]
name = "{runtime}"
[[device]]
name = "soft0"
kind = "soft"
[[worker]]
name = "worker0"
core = {core}
idle = "yield"
[attach]
path = "{directory}/attach.sock"
[[service]]
name = "echo"
kind = "echo"
device = "soft0"
worker = "worker0"
address = "echo"
"""


def fail(what):
    print(f"FAIL: {what}")
    sys.exit(1)


def passed(what):
    print(f"passed: {what}")


def until(what, holds):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = holds()
        if found:
            return found
        time.sleep(0.1)
    fail(f"{what}: not within {PATIENCE} s")


class Programs:
    """Programs that run beside the test. They end with it."""

    def __init__(self, directory):
        self.directory = directory
        self.config = directory / "pollcored.toml"
        self.config.write_text(CONFIG.format(runtime=RUNTIME, core=max(os.sched_getaffinity(0)), directory=directory))
        self.all = []

    def start(self, *command, **options):
        program = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *map(str, command)], text=True, **options)
        self.all.append(program)
        return program

    def daemon(self):
        daemon = self.start(POLLCORED, "--config", self.config, stderr=subprocess.PIPE)
        said = ""
        for line in daemon.stderr:
            said += line
            if "ready:" in line:
                return daemon
        fail(f"pollcored did not start: {said}")

    def traffic(self):
        """A process whose requests worker0 serves."""
        return self.start(ATTACHED_LOAD, "load", self.directory / "attach.sock", 1, stdout=subprocess.DEVNULL)

    def exporter(self, *arguments, **options):
        """Returns the program and its port."""
        exporter = self.start(POLLSTAT, *arguments, "--prometheus", "127.0.0.1:0", stdout=subprocess.PIPE, **options)
        line = exporter.stdout.readline()
        found = re.fullmatch(r"metrics: http://127\.0\.0\.1:(\d+)/metrics\n", line)
        if not found:
            fail(f"the exporter says {line!r}")
        return exporter, int(found[1])

    def end(self):
        for program in self.all:
            if program.poll() is None:
                program.terminate()  # a daemon that is killed leaves its segment
        for program in self.all:
            try:
                program.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()


def get(port, path="/metrics", method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request(method, path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body
