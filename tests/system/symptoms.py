#!/usr/bin/python3
"""Makes each line of the table "When something is wrong" of config/README.md happen, gives the command of the line, and looks for what it is to
say. Runs as root.

usage: tests/system/symptoms.py        (POLLCORE_BUILD: the build directory)
"""
import contextlib
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from beside_daemon import BUILD, PATIENCE, fail, passed, program, start, start_daemon, until

ROOT = pathlib.Path(__file__).resolve().parents[2]
TROUBLED = BUILD / "tests/troubled"
CORE = max(os.sched_getaffinity(0))
CONFIG = """
[runtime]
share_cores = true
hang_limit = "600s"
[statistics]
name = "in-trouble"
[[device]]
name = "nic0"
kind = "soft"
[[worker]]
name = "worker0"
core = {core}
idle = "{idle}"
[attach]
path = "{directory}/attach.sock"
sessions_max = 3
[control]
path = "{directory}/control.sock"
"""


def table():
    """{symptom: (command, what it is to say)} of config/README.md."""
    text = (ROOT / "config/README.md").read_text().split("## When something is wrong")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \| `(.*?)` \| (.*?) \| .*? \|$", text, re.MULTILINE)
    return {symptom: (command, re.findall(r"`(.*?)`", says)) for symptom, command, says in rows if symptom != "symptom"}


class Daemon:
    """A pollcored. `path` is where processes attach."""

    def __init__(self, directory, idle="yield"):
        self.path = directory / "attach.sock"
        self.control = directory / "control.sock"
        config = directory / "pollcored.toml"
        config.write_text(CONFIG.format(core=CORE, directory=directory, idle=idle))
        self.process, _ = start_daemon(config)

    def end(self):
        self.process.kill()
        self.process.wait(PATIENCE)


@dataclasses.dataclass
class Embedded:
    """A runtime of `troubled daemon`, to which processes attach at `path`."""
    process: subprocess.Popen
    path: pathlib.Path

    @property
    def control(self):
        return f"{self.path}.control"


@contextlib.contextmanager
def troubled(what, *arguments):
    """A process in this trouble, and the line by which it has told so."""
    process = start(TROUBLED, what, *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    line = process.stdout.readline().strip()
    if not line or line.startswith("failed"):
        fail(f"the process in trouble says {line!r}")
    try:
        yield process, line
    finally:
        process.kill()
        process.wait(PATIENCE)


def says(symptom, daemon, number=None):
    """Gives the symptom's command until it says what it is to say. `number` replaces the number in the command."""
    command, wanted = table()[symptom]
    words = command.split()
    if number is not None:
        words = [str(number) if word.isdigit() else word for word in words]
    if words[0] == "pollstat":
        words = [words[0], str(daemon.process.pid), *words[1:], *(["--count", "1", "--interval", "0.2"] if "--watch" in words else [])]
    else:
        words = [words[0], "--socket", str(daemon.control), *words[1:]]
    patterns = [re.escape(text).replace("N", r"[1-9][0-9.]*[kM]?") for text in wanted]
    if not patterns:
        fail(f"the line of {symptom!r} does not say what the command shows")
    seen = []

    def shown():
        done = subprocess.run([program(words[0]), *words[1:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
        seen[:] = [done.stdout + done.stderr]
        return all(re.search(pattern, seen[0], re.MULTILINE) for pattern in patterns)

    end = f"{command!r} shows {wanted}"
    try:
        until(end, shown)
    except SystemExit:
        print(f"it shows:\n{seen[0]}")
        raise
    passed(f"{symptom}: {command}")


def number_of_process(daemon):
    """The daemon's number of the only attached process."""
    def only():
        listed = subprocess.run([program("pollctl"), "--socket", daemon.control, "--json", "list", "processes"], stdout=subprocess.PIPE, text=True, check=True)
        numbers = re.findall(r'"process":\s*(\d+)', listed.stdout)
        return int(numbers[0]) if len(numbers) == 1 else None  # one that was killed may still be there
    return until("only one process is attached", only)


def dies(symptom, daemon, _):
    with troubled("holder", daemon.path) as (process, _line):
        process.kill()
        says(symptom, daemon)


def is_slow(symptom, daemon, _):
    with troubled("slow", daemon.path):
        says(symptom, daemon)


def is_greedy(symptom, daemon, _):
    with troubled("greedy", daemon.path) as (_process, refusal):
        if "sessions" not in refusal:
            fail(f"the process is refused with {refusal!r}")
        says(symptom, daemon, number_of_process(daemon))


def is_unready(symptom, daemon, _):
    with troubled("unready", daemon.path):
        says(symptom, daemon)


def hangs(symptom, _, directory):
    """The provider does not return from a post: the fault plan of the software device says so."""
    path = directory / "attach.sock"
    with troubled("daemon", path, "hangs") as (process, _line):
        process.stdin.write("hang\n")
        process.stdin.flush()
        process.stdout.readline()
        with troubled("unready", path):
            says(symptom, Embedded(process, path))


def loses_its_cpu(symptom, _, directory):
    """A worker spins, and so does another process on its CPU."""
    spinning = Daemon(directory, idle="spin")
    thief = subprocess.Popen([sys.executable, "-c", f"import os\nos.sched_setaffinity(0, [{CORE}])\nwhile True: pass"])
    try:
        says(symptom, spinning)
    finally:
        thief.kill()
        thief.wait(PATIENCE)
        spinning.end()


def loses_its_device(symptom, _, directory):
    path = directory / "attach.sock"
    with troubled("daemon", path, "loses") as (process, _line), troubled("holder", path):
        process.stdin.write("lose\n")
        process.stdin.flush()
        says(symptom, Embedded(process, path))


HAPPENS = {
    "a peer lost its connection to a process of this host": dies,
    "a program may submit nothing more": is_slow,
    "a program's call fails with `EDQUOT`": is_greedy,
    "messages are slow, or fail with `rnr_retry_exc_err`": is_unready,
    "all programs of a worker stand still": hangs,
    "requests take long now and then": loses_its_cpu,
    "requests complete with `device_removed`": loses_its_device,
}


def main():
    if set(table()) != set(HAPPENS):
        fail(f"config/README.md has the lines {sorted(table())}, and this test makes {sorted(HAPPENS)} happen")
    with tempfile.TemporaryDirectory() as name:
        daemon = Daemon(pathlib.Path(name))
        for symptom, happens in HAPPENS.items():
            with tempfile.TemporaryDirectory() as own:
                happens(symptom, daemon, pathlib.Path(own))
        daemon.end()


if __name__ == "__main__":
    main()
