#!/usr/bin/python3
"""Tests pollstat beside a pollcored: what it shows of an idle daemon, of one with traffic, and of one that was killed; and who may look.

usage: tests/system/pollstat.py [--picture FILE]        (POLLCORE_BUILD: the build directory)

  --picture FILE  also draw the live view, as config/README.md has it
"""
import fcntl
import json
import os
import pathlib
import pty
import pwd
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

import pyte

sys.dont_write_bytecode = True
import terminal_picture
from beside_daemon import PATIENCE, fail, passed, program, start_daemon, until

POLLPERF, POLLSTAT = program("pollperf"), program("pollstat")

DEAD_KEPT = 4  # kDeadKept of segment_writer.hpp
CONFIG = """
[runtime]
share_cores = true
[statistics]
name = "under-test"
[[device]]
name = "soft0"
kind = "soft"
[[worker]]
name = "worker0"
core = {core}
idle = "{idle}"
[attach]
path = "{directory}/attach.sock"
[[service]]
name = "echo"
kind = "echo"
device = "soft0"
worker = "worker0"
address = "echo"
"""


def stat(*arguments, user=None, code=0):
    """Runs pollstat, and returns what it printed. As `user`, if given."""
    done = subprocess.run([POLLSTAT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, user=user,
                          group=None if user is None else pwd.getpwnam(user).pw_gid, extra_groups=None if user is None else [])
    if done.returncode != code:
        fail(f"pollstat {' '.join(map(str, arguments))} returned {done.returncode}: {done.stderr}")
    return done.stdout if code == 0 else done.stderr


def cycles_per_second(pid):
    return json.loads(stat(str(pid), "--json"))["runtime"]["cycles_per_second"]


def tables(pid):
    return json.loads(stat(str(pid), "--json"))["tables"]


class Terminal:
    """A program in a terminal."""

    def __init__(self, *command, size=(120, 20)):
        columns, lines = size
        self.screen = pyte.Screen(columns, lines)
        self.stream = pyte.ByteStream(self.screen)
        self.child, self.fd = pty.fork()
        if self.child == 0:
            os.environ.update(TERM="linux", LC_ALL="C.UTF-8")
            os.execv(command[0], [str(word) for word in command])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        os.kill(self.child, signal.SIGWINCH)

    def press(self, keys):
        os.write(self.fd, keys.encode())

    def shows(self, *wanted, one_of=("",)):
        """Waits until the screen has all that is wanted, and one of `one_of`."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if select.select([self.fd], [], [], 0.2)[0]:
                self.stream.feed(os.read(self.fd, 65536))
            shown = "\n".join(self.screen.display)
            if all(text in shown for text in wanted) and any(text in shown for text in one_of):
                return
        fail(f"the terminal does not show {wanted}, but:\n" + "\n".join(self.screen.display))

    def ends(self):
        self.press("q")
        code = os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])
        if code != 0:
            fail(f"the live view returned {code}")


def in_a_terminal(pid):
    """Drives the live view while a process has traffic."""
    terminal = Terminal(POLLSTAT, str(pid), "--interval", "0.1")
    # The bar of a worker consists of blocks of eight heights.
    terminal.shows("under-test (process", ": 1 workers", "worker0", "% ", "/s", "1 workers 2 sessions", one_of="\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588")
    terminal.press("\r")
    terminal.shows("sessions of worker 1", "echo", "p99 device")
    terminal.press("\x7f3")
    terminal.shows("queue pairs", "RC", "RTS", "sends", "bytes", "errors")
    terminal.press("5")
    terminal.shows("1 processes", "pollperf")
    terminal.press("4")
    terminal.shows("1 devices", "soft0")
    terminal.press("7")
    terminal.shows(" events", "info", "ready: 1 service")
    terminal.press("8")
    terminal.shows(" stalls", "waited for CPU")
    terminal.press("9")
    terminal.shows("0 counters of ports")
    terminal.press("1tf")
    terminal.shows("frozen - totals", "worker0")
    terminal.press("fs")
    terminal.shows(": 1 workers - totals", "core^")
    terminal.ends()
    passed("the live view in a terminal: workers, sessions of a worker, queue pairs, processes, devices; sorting, totals, freezing")


def stalls(directory):
    """Stops a daemon whose worker spins for some time, and looks for the stall."""
    config = directory / "spins.toml"
    config.write_text(CONFIG.format(core=max(os.sched_getaffinity(0)), directory=directory, idle="spin"))
    daemon, _ = start_daemon(config)
    stopped = 0.3
    daemon.send_signal(signal.SIGSTOP)
    time.sleep(stopped)
    daemon.send_signal(signal.SIGCONT)
    length = stopped / 2 * cycles_per_second(daemon.pid)  # the kernel may stop the thread a little late
    found = until("the stall", lambda: [one for one in tables(daemon.pid)["stall"] if one["length"] > length])
    if found[0]["worker"] != 1 or abs(found[0]["began"] / 1e9 - time.time()) > PATIENCE:
        fail(f"the stall is {found}")
    # The table of workers may have been written a moment before the stall's row was.
    until("the worker's own count of it", lambda: (worker := tables(daemon.pid)["worker"][0])["stalls"] >= 1 and
          worker["stall_time"] >= length and worker["longest_step"] >= length)
    until("the line of the log", lambda: "stalled for" in stat(str(daemon.pid), "--events") and "coincident: " in stat(str(daemon.pid), "--events"))
    daemon.terminate()
    daemon.wait(PATIENCE)
    passed("a stall is counted, and the log says what happened meanwhile")


def traced(pid, file):
    """Writes a trace while a process has traffic, and checks it as the viewer would need it."""
    until("followed requests", lambda: tables(pid)["followed"])
    said = stat(str(pid), "--trace", str(file), "--count", "5", "--interval", "0.2")
    events = json.loads(file.read_text())["traceEvents"]
    begun = {}
    ended = {}
    for event in events:
        if event["ph"] in "be":
            (begun if event["ph"] == "b" else ended)[event["id"], event["name"]] = event
    if not begun or set(begun) != set(ended):
        fail(f"the trace has {len(begun)} begins and {len(ended)} ends")
    if any(ended[key]["ts"] < event["ts"] for key, event in begun.items()):
        fail("a stage ends before it begins")
    requests = {number for number, _ in begun}
    stages = {name for _, name in begun}
    if stages != {"submission ring", "device", "completion ring"} or f"{len(requests)} requests" not in said:
        fail(f"the trace has the stages {stages}, and pollstat said {said}")
    for number in requests:
        before, after = ended.get((number, "submission ring")), begun.get((number, "device"))
        if before and after and before["ts"] != after["ts"]:
            fail(f"the stages of request {number} do not follow each other: {before}, {after}")
    sessions = {event["pid"] for event in events if event["ph"] == "M" and event["args"]["name"].startswith("session ")}
    if not {event["pid"] for event in begun.values()} <= sessions:
        fail("a session has no name")
    passed("a trace has the stages of followed requests")


def picture(pid, file):
    """Draws workers, sessions and queue pairs."""
    screens = []
    for key, wanted in (("1", "worker0"), ("2", "p99 device"), ("3", "RTS")):
        terminal = Terminal(POLLSTAT, str(pid), "--interval", "0.5", size=(150, 8))
        terminal.press(key)
        terminal.shows(wanted)
        time.sleep(14 if key == "1" else 2)  # until the bar is full, and rates are known
        terminal.shows(wanted)
        terminal.ends()
        screens.append(terminal.screen)
    pathlib.Path(file).write_text(terminal_picture.svg(screens))


def main():
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        os.chmod(directory, 0o755)
        config = directory / "pollcored.toml"
        config.write_text(CONFIG.format(core=max(os.sched_getaffinity(0)), directory=directory, idle="yield"))
        stalls(directory)
        daemon, _ = start_daemon(config)
        pid = daemon.pid
        segment = next(pathlib.Path("/dev/shm").glob(f"pollcore-{pid}-*.statistics"))

        listed = next(line for line in stat("--list").splitlines() if str(pid) in line)
        if "under-test" not in listed or "alive" not in listed or str(segment) not in listed:
            fail(f"--list says {listed}")
        if not any(one.get("pid") == pid and one["alive"] for one in json.loads(stat("--list", "--json"))):
            fail("--list --json does not have the daemon")
        passed("the daemon is listed")

        worker = until("the worker's row", lambda: tables(pid)["worker"])[0]
        if worker["name"] != "worker0" or worker["core"] != max(os.sched_getaffinity(0)) or not worker["thread"]:
            fail(f"the worker's row is {worker}")
        until("steps", lambda: tables(pid)["worker"][0]["steps"] > worker["steps"])
        if tables(pid)["device"][0]["name"] != "soft0":
            fail("the device has no row")
        if [one["name"] for one in tables(pid)["session"]] != ["echo"]:
            fail("the service's session has no row")
        text = stat("under-test", "--once", "--interval", "0.2")
        if "worker 1 worker0" not in text or "session 1 echo" not in text:
            fail(f"--once prints {text}")
        passed("worker, device and session have rows")

        idle = [float(line) for line in stat(str(pid), "--watch", "worker0.busy", "--count", "3", "--interval", "0.2").split()]
        if len(idle) != 3 or min(idle) > 0.5:
            fail(f"an idle worker is busy: {idle}")
        traffic = subprocess.Popen([POLLPERF, "lat", "--attach", directory / "attach.sock", "--config", config, "-o", "write", "-n", "100000000"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        until("queue pairs", lambda: tables(pid)["queue_pair"])
        until("completions", lambda: tables(pid)["worker"][0]["completions"] > 1000)
        now = tables(pid)
        attached = [one for one in now["session"] if one["process"] != 0]
        if not attached or not all(one["worker"] == 1 for one in attached):
            fail(f"the sessions are {now['session']}")
        ids = {one["session"] for one in attached}
        if not any(one["first_session"] in ids and one["device"] == 1 and one["qp_num"] for one in now["queue_pair"]):
            fail(f"the queue pairs are {now['queue_pair']}")
        busy = [float(line) for line in stat(str(pid), "--watch", "worker0.busy", "--count", "3", "--interval", "0.2").split()]
        rates = [float(line) for line in stat(str(pid), "--watch", "worker0.completions", "--count", "2", "--interval", "0.2").split()]
        if max(busy) <= 0 or max(busy) > 1 or max(rates) <= 0:
            fail(f"with traffic: busy {busy}, completions in a second {rates}")
        passed("an attached process, its queue pairs and its traffic are shown")
        process = tables(pid)["process"]
        if len(process) != 1 or process[0]["pid"] != traffic.pid or process[0]["queue_pairs"] != len(now["queue_pair"]) or not process[0]["bytes"]:
            fail(f"the process's row is {process}")
        if process[0]["uid"] != os.geteuid() or not process[0]["sends"] or not process[0]["send_bytes"] or process[0]["errors"]:
            fail(f"the sums of the process are {process}")
        pairs = [one for one in now["queue_pair"] if one["process"] == process[0]["process"]]
        if sum(one["sends"] for one in tables(pid)["queue_pair"] if one["process"]) < sum(one["sends"] for one in pairs) or tables(pid)["device"][0]["sends"] < process[0]["sends"]:
            fail("the sums do not fit")
        measured = until("stages", lambda: [one for one in tables(pid)["session"] if one["process"] and sum(one["device_stage"])])
        if not sum(measured[0]["completion_ring"]):
            fail(f"the stages of the session are not measured: {measured}")
        until("the stages in words", lambda: "median" in stat(str(pid), "--once", "--interval", "0.5"))
        passed("what a process holds, and how long its requests take, are shown")
        traced(pid, directory / "trace.json")
        in_a_terminal(pid)
        if sys.argv[1:2] == ["--picture"]:
            picture(pid, sys.argv[2])
        traffic.send_signal(signal.SIGINT)
        traffic.wait(PATIENCE)
        until("no row of the process that ended", lambda: all(one["process"] == 0 for one in tables(pid)["session"]))
        passed("nothing is left of the process")

        if "no value" not in stat(str(pid), "--watch", "worker0.colour", code=1) or "worker0" not in stat(str(pid), "--watch", "x.y", code=1):
            fail("a wrong --watch is not explained")
        if "no such runtime" not in stat("999999999", code=1):
            fail("a wrong runtime is not explained")
        stat("--list", "--once", code=2)
        if os.geteuid() == 0:
            if "Permission denied" not in stat(str(segment), user="nobody", code=1):
                fail("a stranger may read the segment")
            mode = segment.stat().st_mode & 0o777
            if mode != 0o640:
                fail(f"the segment has mode {mode:o}")
        passed("what is wrong is explained, and strangers may not read")

        daemon.kill()
        daemon.wait(PATIENCE)
        if "dead" not in next(line for line in stat("--list").splitlines() if str(pid) in line):
            fail("a killed daemon counts as alive")
        if "worker 1 worker0" not in stat(str(pid), "--once"):
            fail("the last values of a killed daemon are gone")
        said = stat(str(pid), "--events")
        if "info: ready: 1 service" not in said or "attached: pid" not in said or not said.splitlines()[0].startswith("20"):
            fail(f"the last lines of its log are {said}")
        stat(str(pid), "--watch", "worker0.busy", "--count", "1", code=1)
        elder_config = directory / "elder.toml"
        elder_config.write_text(config.read_text().replace("under-test", "elder").replace("attach.sock", "elder.sock"))
        elder, _ = start_daemon(elder_config)
        elders = next(pathlib.Path("/dev/shm").glob(f"pollcore-{elder.pid}-*.statistics"))
        again, _ = start_daemon(config)
        if not segment.exists():
            fail("the next daemon removes what a dead one has left")
        if str(again.pid) not in stat("under-test", "--once"):
            fail("pollstat does not choose the daemon that lives")
        for _ in range(DEAD_KEPT):  # then one more has been killed
            again.kill()
            again.wait(PATIENCE)
            again, _ = start_daemon(config)
        if segment.exists():
            fail("the segments of dead daemons become more and more")
        elder.kill()
        elder.wait(PATIENCE)
        again.terminate()
        if again.wait(PATIENCE) != 0:
            fail("the daemon did not stop")
        again, _ = start_daemon(config)
        if not elders.exists():
            fail("the segment of a daemon that died last is removed, because it started first")
        again.terminate()
        if again.wait(PATIENCE) != 0:
            fail("the daemon did not stop")
        if list(pathlib.Path("/dev/shm").glob(f"pollcore-{again.pid}-*.statistics")):
            fail("a stopped daemon leaves its segment")
        passed(f"the last values of the last {DEAD_KEPT} killed daemons can be read")


if __name__ == "__main__":
    main()
