#!/usr/bin/python3
"""Tests pollctl and the control socket of pollcored: every command beside attached processes with traffic, who may give commands, and what
happens with sockets that are somebody else's, hostile clients and hostile servers. Runs as root.

usage: tests/system/pollctl.py        (POLLCORE_BUILD: the build directory)
"""
import ctypes
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading

sys.dont_write_bytecode = True
from beside_daemon import BUILD, PATIENCE, fail, passed, program, start, until

POLLCORED, POLLPERF, POLLCTL = program("pollcored"), program("pollperf"), program("pollctl")
GROUP, STRANGER = 54321, 65533  # a group and a user that need not exist

CONFIG = """
[runtime]
share_cores = true
log_level = "{level}"
drain_timeout = "500ms"
[[device]]
name = "soft0"
kind = "soft"
[[worker]]
name = "worker0"
core = {core}
idle = "yield"
[attach]
path = "{directory}/attach.sock"
clients_max = {clients}
[control]
path = "{directory}/control.sock"
group = "{group}"
[[service]]
name = "echo"
kind = "echo"
device = "soft0"
worker = "worker0"
address = "echo"
"""


class Daemon:
    def __init__(self, directory):
        self.directory = directory
        self.config = directory / "pollcored.toml"
        self.socket = directory / "control.sock"
        self.log = directory / "log"
        self.write()
        with open(self.log, "w") as log:
            self.process = start(POLLCORED, "--config", self.config, stderr=log)
        until("the start", lambda: "ready:" in self.said() or (self.process.poll() is not None and fail(f"no start: {self.said()}")))

    def write(self, **values):
        all_values = {"level": "info", "core": max(os.sched_getaffinity(0)), "directory": self.directory, "clients": 8, "group": GROUP} | values
        self.config.write_text(CONFIG.format(**all_values))

    def said(self):
        return self.log.read_text()

    def says(self, what):
        until(f"the log says {what}", lambda: what in self.said())

    def ends(self, code=0):
        got = self.process.wait(PATIENCE)
        if got != code:
            fail(f"the daemon ended with {got}, not {code}: {self.said()}")

    def ctl(self, *arguments, code=0, groups=None, at=None):
        """Runs pollctl, and returns what it printed. With `groups` as a user who has only these. `at`: another socket than the daemon's."""
        as_user = {} if groups is None else {"user": STRANGER, "group": STRANGER, "extra_groups": groups}
        done = subprocess.run([POLLCTL, "--socket", at or self.socket, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=PATIENCE, **as_user)
        if done.returncode != code:
            fail(f"pollctl {arguments} returned {done.returncode}, not {code}: {done.stdout}{done.stderr}")
        if code != 0 and not done.stderr and "health" not in arguments:
            fail(f"pollctl {arguments} fails without a reason")
        return done.stdout if not done.stderr else done.stderr

    def json(self, *arguments, **options):
        return json.loads(self.ctl("--json", *arguments, **options))

    def code_of(self, *arguments):
        return subprocess.run([POLLCTL, "--socket", self.socket, *arguments], stdout=subprocess.DEVNULL, timeout=PATIENCE).returncode

    def listed(self, kind):
        return self.json("list", kind)[kind.replace("-", "_")]

    def raw(self):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        one.settimeout(PATIENCE)
        one.connect(str(self.socket))
        return one

    def traffic(self):
        return start(POLLPERF, "lat", "--attach", self.directory / "attach.sock", "--config", self.config, "-o", "write", "-n", "100000000",
                     stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def number_of(self, process):
        """The daemon's number of an attached process that has queue pairs."""
        found = until("the process", lambda: [one for one in self.listed("processes") if one["pid"] == process.pid and one["queue_pairs"] == 2])
        return found[0]["process"]

    def requests(self):
        """How many requests each session has had."""
        segment = subprocess.run([BUILD / "apps/pollstat/pollstat", str(self.process.pid), "--json"], stdout=subprocess.PIPE, text=True, check=True)
        return {one["session"]: one["retired"] for one in json.loads(segment.stdout)["tables"]["session"]}


def lists(daemon):
    first, second = daemon.traffic(), daemon.traffic()
    number, other = daemon.number_of(first), daemon.number_of(second)
    worker, = daemon.listed("workers")
    if worker["name"] != "worker0" or worker["core"] != max(os.sched_getaffinity(0)) or worker["sessions"] != 3 or worker["queue_pairs"] != 4:
        fail(f"the worker is {worker}")
    if [one["name"] for one in daemon.listed("devices")] != ["soft0"] or [one["name"] for one in daemon.listed("services")] != ["echo"]:
        fail("the device or the service is not listed")
    def connected(process):
        pairs = [one for one in daemon.listed("queue-pairs") if one["process"] == process]
        return {one["state"] for one in pairs} == {"RTS"} and pairs
    of_first = until("its queue pairs are connected", lambda: connected(number))
    if len(of_first) != 2 or {one["type"] for one in of_first} != {"RC"}:
        fail(f"the queue pairs are {of_first}")
    if [one["address"] for one in daemon.listed("listeners") if one["process"] == 0] != ["echo"]:
        fail(f"the listeners are {daemon.listed('listeners')}")
    regions = [one for one in daemon.listed("memory-regions") if one["process"] == number]
    shown = daemon.json("show", "process", number)
    holdings = {one["what"]: one for one in shown["holdings"]}
    if shown["pid"] != first.pid or len(shown["queue_pairs"]) != 2 or shown["memory_regions"] != regions or not regions:
        fail(f"what process {number} has: {shown}")
    if holdings["queue_pairs"]["held"] != 2 or holdings["queue_pairs"]["user_held"] != 4 or holdings["queue_pairs"]["most"] != 256:
        fail(f"process {number} holds {holdings}")
    if holdings["bytes"]["held"] < sum(one["bytes"] for one in regions) or holdings["work_requests"]["user_most"] is not None:
        fail(f"process {number} holds {holdings}")
    sessions = [one for one in daemon.listed("sessions") if one["process"] == number]
    if len(sessions) != 1 or {one["worker"] for one in sessions} != {"worker0"} or not all(one["bytes"] for one in sessions):
        fail(f"the sessions are {sessions}")
    if daemon.listed("shared-receive-queues") or daemon.listed("receive-pools"):
        fail("there are shared receive queues or pools")
    status = daemon.json("status")
    if (status["processes"], status["state"], status["pid"], status["services"]) != (2, "serving", daemon.process.pid, 1):
        fail(f"the status is {status}")
    for kind in ("workers", "devices", "services", "processes", "sessions", "queue-pairs", "listeners", "memory-regions"):
        text = daemon.ctl("list", kind)
        if len(text.splitlines()) != len(daemon.listed(kind)) + 1:
            fail(f"list {kind} prints {text}")
    if "no receive pools" not in daemon.ctl("list", "receive-pools") or f"pid: {first.pid}" not in daemon.ctl("show", "process", number):
        fail("the text of a list or of a process is wrong")
    if "there is no process 999" not in daemon.ctl("show", "process", 999, code=1):
        fail("a process that is not there is not explained")
    passed("list, show and status, as JSON and as text")
    return first, number, second, other


def disconnects(daemon, first, number, second, other):
    its = {one["session"] for one in daemon.listed("sessions") if one["process"] == other}
    if "process" not in daemon.ctl("disconnect", "process", number):
        fail("disconnect says nothing")
    if any(one["process"] == number for one in daemon.listed("processes")):
        fail("the process is still there")
    first.wait(PATIENCE)
    if first.returncode == 0:
        fail("a disconnected process ends without an error")
    for line in (f"control: uid 0 (pid ", f"disconnected client {number}\n", "was disconnected by its operator: nothing of it is left"):
        daemon.says(line)
    before = daemon.requests()
    until("the other's traffic goes on", lambda: all(daemon.requests()[session] > before[session] + 100 for session in its))
    if second.poll() is not None:
        fail("the other process has ended")
    if "no process" not in daemon.ctl("disconnect", "process", number, code=1):
        fail("a second disconnect is not refused")
    passed("a process is disconnected, and the traffic of another goes on")

    queue_pair = next(one for one in daemon.listed("queue-pairs") if one["process"] == other)
    if "queue pairs are called so" in daemon.ctl("disconnect", "queue-pair", queue_pair["qp_num"], "--device", "soft0"):
        fail("a number with its device is ambiguous")
    daemon.says(f"disconnected queue pair {queue_pair['qp_num']} of client {other}")
    said = second.communicate(timeout=PATIENCE)[1]
    if second.returncode == 0 or "WR_FLUSH_ERR" not in said and "disconnect" not in said and "RETRY_EXC" not in said:
        fail(f"the owner of the queue pair ended with {second.returncode}: {said}")
    if "no queue pair" not in daemon.ctl("disconnect", "queue-pair", "no such name", code=1):
        fail("a queue pair that is not there is not explained")
    until("nothing is left", lambda: not daemon.listed("processes"))
    passed("a queue pair is disconnected, and its owner learns of it")

    slow = daemon.traffic()
    number = daemon.number_of(slow)
    slow.send_signal(signal.SIGSTOP)  # it does not detach by itself
    daemon.ctl("disconnect", "process", number, "--timeout", "0.3")
    slow.kill()
    slow.wait(PATIENCE)
    daemon.says(f"disconnected client {number}, which has 300 ms")
    passed("a process that does nothing in its time is disconnected after it")


def drains(daemon):
    stays = daemon.traffic()
    number = daemon.number_of(stays)
    if daemon.json("drain")["state"] != "draining" or daemon.json("status")["state"] != "draining":
        fail("it does not drain")
    refused = subprocess.run([POLLPERF, "lat", "--attach", daemon.directory / "attach.sock", "--config", daemon.config, "-o", "write", "-n", "10"],
                             capture_output=True, text=True, timeout=PATIENCE)
    if refused.returncode == 0 or "its operator drains it" not in refused.stderr:
        fail(f"a process attached to a draining daemon: {refused.stderr}")
    if [one["process"] for one in daemon.listed("processes")] != [number] or stays.poll() is not None:
        fail("the attached process is gone")
    if "still has 1 processes" not in daemon.ctl("drain", "--wait", "0.2", code=1):
        fail("drain --wait does not say who is left")
    stays.kill()
    stays.wait(PATIENCE)
    daemon.ctl("drain", "--wait", PATIENCE)
    if daemon.json("resume")["state"] != "serving":
        fail("it does not serve again")
    again = daemon.traffic()
    daemon.number_of(again)
    again.kill()
    again.wait(PATIENCE)
    for line in ("drains the daemon", "ends the draining"):
        daemon.says(line)
    passed("drain lets attached processes go on and takes no others, and resume takes them again")


def configures(daemon):
    if daemon.ctl("log-level") != "info\n" or daemon.json("log-level", "debug")["level"] != "debug" or daemon.ctl("log-level") != "debug\n":
        fail("the log level is not set")
    daemon.says("set the log level to debug")
    daemon.write(clients=9)
    if "reloaded: 1 service" not in daemon.ctl("reload") or daemon.ctl("log-level") != "info\n":
        fail("a reload does not set the level of the file")
    daemon.write(group=GROUP + 1, level="warning")
    if daemon.json("reload")["needs_restart"] != ["control.group"] or "control.group needs a restart" not in daemon.ctl("reload"):
        fail("reload does not name the key that needs a restart")
    daemon.write(clients="\"many\"")
    refused = daemon.ctl("reload", code=1)
    if f"{daemon.config}:15: attach.clients_max" not in refused or "nothing was changed" not in refused:
        fail(f"a wrong file is not explained: {refused}")
    daemon.write()
    daemon.ctl("reload")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.says("SIGHUP: reloaded")
    version = subprocess.run([POLLCTL, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[1]
    if daemon.ctl("version").strip() != version or daemon.json("version")["version"] != version:
        fail("the version is another one")
    passed("log-level, reload and version")


def thread_of(pid, name):
    return next(int(task.name) for task in pathlib.Path(f"/proc/{pid}/task").iterdir() if (task / "comm").read_text().strip() == name)


def hangs(daemon):
    """The control thread is stopped by a debugger."""
    if not daemon.json("health")["healthy"] or "all threads make progress" not in daemon.ctl("health"):
        fail("it is not healthy")
    attached = daemon.traffic()
    number = daemon.number_of(attached)
    thread = thread_of(daemon.process.pid, "pollcore-ctl")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    for request in (0x4206, 0x4207):  # PTRACE_SEIZE, PTRACE_INTERRUPT
        if libc.ptrace(request, thread, None, None) != 0:
            fail(f"ptrace: {os.strerror(ctypes.get_errno())}")
    os.waitpid(thread, 0x40000000)  # __WALL
    # Several at once, because each one waits for seconds.
    asked = [subprocess.Popen([POLLCTL, "--socket", daemon.socket, *what], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
             for what in (("list", "workers"), ("show", "process", str(number)), ("disconnect", "process", str(number)))]
    until("the hang is seen", lambda: daemon.code_of("health") == 1)
    hanging = [one for one in daemon.json("health", code=1)["threads"] if one["state"] == "hangs"]
    if [one["name"] for one in hanging] != ["pollcore-ctl"] or hanging[0]["busy_ms"] < 1000:
        fail(f"these threads hang: {hanging}")
    if daemon.json("status")["processes"] != 1:
        fail("no status while the control thread hangs")
    for one in asked:
        said = one.communicate(timeout=PATIENCE)[1]
        if one.returncode != 1 or "the control thread has made no progress for " not in said:
            fail(f"{one.args} returned {one.returncode}: {said}")
    libc.ptrace(17, thread, None, None)  # PTRACE_DETACH
    until("it is healthy again", lambda: daemon.code_of("health") == 0)
    if [one["process"] for one in daemon.listed("processes")] != [number]:
        fail("a command was carried out after its answer that it will not be")
    attached.kill()
    attached.wait(PATIENCE)
    passed("health and status answer while the control thread hangs, and other commands are refused in time")


def users(daemon):
    if "may not connect" not in daemon.ctl("status", groups=[], code=3) and "Permission denied" not in daemon.ctl("status", groups=[], code=3):
        fail("a stranger is not told why")
    if daemon.json("status", groups=[GROUP])["pid"] != daemon.process.pid:
        fail("a member of the group may not give commands")
    daemon.ctl("log-level", "info", groups=[GROUP])
    daemon.says(f"control: uid {STRANGER} (pid ")
    os.chmod(daemon.socket, 0o666)  # even so
    for what in (("status",), ("stop",), ("list", "workers"), ("disconnect", "process", "1")):
        if f"user {STRANGER} may not give commands" not in daemon.ctl(*what, groups=[], code=3):
            fail("a stranger is not told why")
    daemon.says(f"uid {STRANGER} refused: user {STRANGER} may not give commands")
    os.chmod(daemon.socket, 0o660)
    passed("who may give commands")


def hostile_clients(daemon):
    half = daemon.raw()
    half.send(b'{"protocol": 1, "comm')
    if b"this is no JSON" not in half.recv(65536):
        fail("half a command is not refused")
    for bytes_sent in (b"\x00\xff\x1b[2J" * 100, b"{" * 200000, b"[" * 4000, b"0"):
        one = daemon.raw()
        one.send(bytes_sent)
        if b"bad_command" not in one.recv(65536):
            fail(f"{bytes_sent[:20]} is not refused")
    def flood():
        for _ in range(250):
            one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            one.connect(str(daemon.socket))
            one.close()
    floods = [threading.Thread(target=flood) for _ in range(4)]
    for one in floods:
        one.start()
    for one in floods:
        one.join()
    silent = [daemon.raw() for _ in range(15)]
    if daemon.json("status")["state"] != "serving":
        fail("it does not answer beside silent clients")
    lines = daemon.said().count("control: ")
    if lines > 500:
        fail(f"clients made {lines} lines in the log")
    passed("half a command, garbage, a command of 200000 bytes, and 1000 connections")
    return silent


def hostile_servers(daemon):
    if "no control socket" not in daemon.ctl("status", at=daemon.directory / "attach.sock", code=3):
        fail("the socket for processes is taken for a control socket")
    if "is pollcored running" not in daemon.ctl("status", at="/nowhere/control.sock", code=3):
        fail("no daemon is not explained")
    path = daemon.directory / "hostile.sock"

    def serve(answer):
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(path))
        listener.listen()

        def one():
            client = listener.accept()[0]
            client.recv(65536)
            for packet in answer:
                client.send(packet)
            if answer:
                client.close()
            else:
                silent.append(client)
        threading.Thread(target=one, daemon=True).start()
        return listener
    silent = []
    for answer, said in (([b"garbage \x1b[2J"], "no control socket"), ([b'{"protocol":1,"result":{}}' + b" " * 30000] * 5, "no control socket"),
                         ([b'{"protocol":1,"error":{"code":"refused","text":"a\\u001b[2Jb"}}'], "a\\x1b[2Jb"), ([], "no answer in time")):
        with serve(answer):
            text = daemon.ctl("--answer-within", 1, "status", at=path, code=1 if "2Jb" in said else 3)
            if said not in text or "\x1b" in text:
                fail(f"after {answer} pollctl says {text!r}")
    passed("sockets of others, and servers that answer with garbage or not at all")


def sockets(daemon):
    daemon.socket.unlink()
    until("the socket is back", daemon.socket.exists)
    daemon.says("control.sock was removed, and is made anew")
    daemon.ctl("status")
    rival = daemon.directory / "rival.toml"
    rival.write_text(daemon.config.read_text().replace("/attach.sock", "/rival.sock"))
    done = subprocess.run([POLLCORED, "--config", rival], capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode != 1 or "control.path" not in done.stderr or "another process has its socket there" not in done.stderr:
        fail(f"a second daemon with the same socket: {done.returncode} {done.stderr}")
    daemon.ctl("status")
    passed("a removed socket file comes back, and a second daemon leaves the socket alone")


def main():
    if os.geteuid() != 0:
        fail("runs as root")
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        os.chmod(directory, 0o755)
        daemon = Daemon(directory)
        disconnects(daemon, *lists(daemon))
        drains(daemon)
        configures(daemon)
        users(daemon)
        hangs(daemon)
        silent = hostile_clients(daemon)
        hostile_servers(daemon)
        sockets(daemon)
        daemon.process.send_signal(signal.SIGTERM)
        daemon.ends()
        del silent
        if daemon.socket.exists():
            fail("the socket's file stays")
        passed("SIGTERM ends the daemon beside silent clients")

        daemon = Daemon(directory)
        daemon.process.kill()
        daemon.process.wait(PATIENCE)
        if not daemon.socket.exists():
            fail("a killed daemon leaves no file")
        daemon.ctl("status", code=3)
        daemon = Daemon(directory)
        if daemon.ctl("stop") != "stopping\n":
            fail("stop says something else")
        daemon.ends()
        daemon.says(": stopping")
        passed("the file of a killed daemon is replaced, and stop ends the daemon")


if __name__ == "__main__":
    main()
