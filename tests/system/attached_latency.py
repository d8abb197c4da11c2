"""What the tests have in common that measure latency over a pollcored: its configuration, and pollperf, attached to it."""
import contextlib
import json
import os
import pathlib
import re
import subprocess
import tempfile
import threading

from beside_daemon import PATIENCE, fail, program, start_daemon

SIZE = 8  # bytes of an operation
CONFIG = """
[runtime]
share_cores = true
[memory]
size = "64MiB"
[[device]]
name = "soft0"
kind = "soft"
[[worker]]
name = "worker0"
core = {worker}
[attach]
path = "{directory}/socket"
own_memory = "on"
"""


class Place:
    """A pollcored with a software device whose worker spins on one CPU, and the CPU of the thread that measures."""
    attached = 0  # processes that have attached; known at the end

    def __init__(self, directory, cpu, worker):
        self.cpus = {cpu, worker}
        self.cpu, self.config, self.socket, self.file = cpu, directory / "daemon.toml", directory / "socket", directory / "pollperf.json"

    def pollperf(self, operation, *length):
        """Returns the result of pollperf, which is attached, as its FORMAT.md has it. `length` is an option that says how long it measures."""
        done = subprocess.run(list(map(str, (program("pollperf"), "lat", "--path", "attached", "--attach", self.socket, "--config", self.config, "-o", operation,
                                             "-s", SIZE, *length, "--rounds", 1, "--core", self.cpu, "--json", self.file))),
                              capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode != 0:
            fail(f"pollperf {operation}: {done.stdout}{done.stderr}")
        return json.loads(self.file.read_text())["results"][0]


@contextlib.contextmanager
def place():
    """Yields a Place. CPUS=APPLICATION,WORKER names its CPUs: the first and the last."""
    cpus = sorted(os.sched_getaffinity(0))
    cpu, worker = map(int, os.environ.get("CPUS", f"{cpus[0]},{cpus[-1]}").split(","))
    if cpu == worker:
        fail("it needs two CPUs, one for the worker and one for the program")
    with tempfile.TemporaryDirectory() as name:
        here = Place(pathlib.Path(name), cpu, worker)
        here.config.write_text(CONFIG.format(worker=worker, directory=name))
        daemon, _ = start_daemon(here.config)
        log = []
        reader = threading.Thread(target=lambda: log.extend(daemon.stderr), daemon=True)  # does not keep a failed test from ending
        reader.start()
        try:
            yield here
        finally:
            daemon.terminate()
            daemon.wait(timeout=PATIENCE)
            reader.join()
        said = "".join(log)
        count = re.search(r"attached since the start: (\d+) process", said)
        if daemon.returncode != 0 or not count:
            fail(f"pollcored returned {daemon.returncode}: {said}")
        here.attached = int(count[1])


def write_goals(goals):
    """Writes goals for scripts/bench to the file in GOALS."""
    if "GOALS" in os.environ:
        pathlib.Path(os.environ["GOALS"]).write_text("".join(json.dumps(goal) + "\n" for goal in goals))
