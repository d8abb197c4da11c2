"""A pollcored, a process with traffic, and pollstat --prometheus, for the tests of metrics."""
import http.client
import os
import re
import subprocess

from beside_daemon import BUILD, PATIENCE, fail, program, start, start_daemon

POLLSTAT = program("pollstat")
ATTACHED_LOAD = BUILD / "tests/attached-load"
RUNTIME = f"prometheus-test-{os.getpid()}"

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


class Programs:
    """Programs that run beside the test. They end with it."""

    def __init__(self, directory):
        self.directory = directory
        self.config = directory / "pollcored.toml"
        self.config.write_text(CONFIG.format(runtime=RUNTIME, core=max(os.sched_getaffinity(0)), directory=directory))
        self.all = []

    def start(self, *command, **options):
        self.all.append(start(*command, **options))
        return self.all[-1]

    def daemon(self):
        daemon, _ = start_daemon(self.config)
        self.all.append(daemon)
        return daemon

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
