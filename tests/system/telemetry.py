#!/usr/bin/python3
"""Tests the commands of DPDK's telemetry socket in pollcored: what they answer, who may ask, and clients that mean harm.

usage: tests/system/telemetry.py        (POLLCORE_BUILD: the build directory)
"""
import json
import os
import pathlib
import pwd
import socket
import stat
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from beside_daemon import BUILD, PATIENCE, fail, passed, start_daemon, until

ATTACHED_LOAD = BUILD / "tests/attached-load"
ANSWER_MAX = 16384  # bytes; EAL's limit

CONFIG = """
[runtime]
share_cores = true
[statistics]
name = "telemetry-test"
telemetry = {telemetry}
[[device]]
name = "soft0"
kind = "soft"
[[worker]]
name = "worker-0"
core = {core}
idle = "yield"
[attach]
path = "{directory}/{socket}.sock"
[[service]]
name = "echo"
kind = "echo"
device = "soft0"
worker = "worker-0"
address = "echo"
{services}
"""
SERVICE = """
[[service]]
name = "{name}"
kind = "echo"
device = "soft0"
worker = "worker-0"
address = "echo{number}"
depth = 1
connections_max = 1
"""
# More sessions than one answer has room for.
SERVICES = 120


def start_with(directory, telemetry, services=SERVICES, attach_socket="attach"):
    config = directory / "pollcored.toml"
    texts = "".join(SERVICE.format(name=f"{'x' * 40}{i}", number=i) for i in range(services))
    config.write_text(CONFIG.format(core=max(os.sched_getaffinity(0)), directory=directory, telemetry=telemetry, services=texts,
                                    socket=attach_socket))
    return start_daemon(config, env={**os.environ, "RUNTIME_DIRECTORY": str(directory / "run")})


def stop(daemon):
    daemon.terminate()
    if daemon.wait(PATIENCE) != 0:
        fail(f"the daemon returned {daemon.returncode}: {daemon.stderr.read()}")


class Client:
    def __init__(self, path):
        # EAL hangs up if it still has threads for ten clients, of which some may have left.
        self.info = json.loads(until("a client is served", lambda: self.connect(path)))

    def connect(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(str(path))  # waits: EAL lets only one client wait to be accepted
        self.socket.settimeout(PATIENCE)
        try:
            return self.socket.recv(ANSWER_MAX)
        except ConnectionResetError:
            return b""

    def ask(self, command):
        """The answer to a command, which is below a key of its name."""
        self.socket.send(command.encode())
        answer = self.socket.recv(4 * ANSWER_MAX)
        if len(answer) > ANSWER_MAX:
            fail(f"{command}: the answer has {len(answer)} bytes")
        try:
            return json.loads(answer)[command.split(",")[0]]
        except ValueError as error:
            fail(f"{command}: {error}: {answer[-200:]}")

    def error(self, command):
        return self.ask(command).get("error", "")


def answers(client, daemon):
    commands = client.ask("/")
    wanted = {f"/pollcore/{name}" for name in ("runtime", "worker", "workers", "device", "devices", "process", "processes", "session", "sessions",
                                               "queue_pair", "queue_pairs")}
    if client.info["pid"] != daemon.pid or not wanted <= set(commands):
        fail(f"the commands are {commands} of {client.info}")
    for command in wanted:
        if "Param" not in client.ask(f"/help,{command}")[command]:
            fail(f"{command} has no help")
    # The segment's figures are some 50 ms old.
    until("all sessions are counted", lambda: client.ask("/pollcore/runtime")["sessions"] == SERVICES + 1)
    runtime = client.ask("/pollcore/runtime")
    if runtime["name"] != "telemetry-test" or runtime["runtimes"] != 1 or runtime["workers"] != 1 or runtime["sessions"] != SERVICES + 1 or \
            not runtime["cycles_per_second"]:
        fail(f"the runtime is {runtime}")
    workers = client.ask("/pollcore/workers")
    if workers["name"] != ["worker-0"] or workers["worker"] != [1] or workers["rows"] != 1 or "next" in workers:
        fail(f"the workers are {workers}")
    worker = client.ask("/pollcore/worker,worker-0")
    if worker["worker"] != 1 or worker["core"] != max(os.sched_getaffinity(0)) or not worker["steps"] or len(worker["wake_up"]) < 8:
        fail(f"the worker is {worker}")
    until("steps", lambda: client.ask("/pollcore/worker,1")["steps"] > worker["steps"])
    if client.ask("/pollcore/devices")["name"] != ["soft0"] or client.ask("/pollcore/device,soft0")["lost"] != 0:
        fail("the device is wrong")
    passed("runtime, worker and device")


def all_sessions(client):
    """The names of all sessions, and how many answers they took."""
    names, start, asked = [], 0, 0
    while True:
        page = client.ask(f"/pollcore/sessions,{start}")
        if not len(page["session"]) == len(page["name"]) == len(page["worker"]) > 0 or page["session"] != sorted(page["session"]):
            fail(f"a part of the sessions is {page}")
        names += page["name"]
        asked += 1
        if "next" not in page:
            return names, asked
        start = page["next"]


def pages(client):
    wanted = sorted({"echo"} | {f"{'x' * 40}{i}" for i in range(SERVICES)})
    # A row that is being written is missing from an answer.
    names, asked = until("all sessions", lambda: (found := all_sessions(client)) and sorted(found[0]) == wanted and found)
    if asked < 2:
        fail(f"{len(names)} sessions in one answer")
    session = client.ask(f"/pollcore/session,{client.ask('/pollcore/sessions')['session'][0]}")
    if session["worker"] != 1 or len(session["device_stage"]) < 64:
        fail(f"the session is {session}")
    if client.ask("/pollcore/sessions,18446744073709551615")["session"]:
        fail("there are sessions behind the last one")
    passed(f"{len(names)} sessions in {asked} answers")


def attached(client, directory):
    if client.ask("/pollcore/processes")["process"] or client.ask("/pollcore/queue_pairs")["queue_pair"]:
        fail("there is a process already")
    traffic = subprocess.Popen([ATTACHED_LOAD, "survive", directory / "attach.sock"], stdout=subprocess.DEVNULL)
    queue_pairs = until("queue pairs", lambda: client.ask("/pollcore/queue_pairs")["queue_pair"])
    number = until("the process", lambda: client.ask("/pollcore/processes")["process"])[0]
    process = client.ask(f"/pollcore/process,{number}")
    if process["pid"] != traffic.pid or not process["bytes"] or r'\"attached-load\"' not in process["name"]:  # as pollstat shows quotes
        fail(f"the process is {process}")
    if client.ask(f"/pollcore/queue_pair,{queue_pairs[0]}")["process"] != number:
        fail("the queue pair is of nobody")
    traffic.terminate()
    traffic.wait(PATIENCE)
    until("no process", lambda: not client.ask("/pollcore/processes")["process"])
    passed("an attached process, and its queue pairs")


def mistakes(client):
    for command, wanted in (("/pollcore/worker", "there is no worker"), ("/pollcore/worker,worker0", "there is no worker"),
                            ("/pollcore/worker,2", "there is no worker"), ("/pollcore/session,x\"\n", "there is no session"),
                            ("/pollcore/session,-1", "there is no session"), ("/pollcore/sessions,x", "START is no number"),
                            ("/pollcore/runtime,1", "there are 1 runtimes"), ("/pollcore/workers,0,x", "there are 1 runtimes"),
                            ("/pollcore/process," + "9" * 900, "there is no process")):
        if wanted not in client.error(command):
            fail(f"{command}: {client.ask(command)}")
    if client.ask("/pollcore/nothing") is not None:
        fail("an unknown command has an answer")
    passed("mistakes are explained")


def harm(path, daemon):
    for i in range(50):
        client = Client(path)
        client.socket.send(bytes((i * 7 + k) % 256 for k in range(1 + 40 * i)))
        client.socket.close()
    for _ in range(20):  # gone before the daemon's first word
        gone = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gone.connect(str(path))
        gone.close()
    deaf = Client(path)
    deaf.socket.setblocking(False)
    try:
        for _ in range(10000):
            deaf.socket.send(b"/pollcore/worker,1")
    except BlockingIOError:
        pass
    if daemon.poll() is not None:
        fail("the daemon has died")
    steps = Client(path).ask("/pollcore/worker,1")["steps"]
    until("the worker goes on", lambda: Client(path).ask("/pollcore/worker,1")["steps"] > steps)
    passed("clients that send garbage, vanish or do not read")


def main():
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        os.chmod(directory, 0o755)
        (directory / "run").mkdir()
        path = directory / "run/dpdk/pollcore/dpdk_telemetry.v2"

        daemon, said = start_with(directory, "false", 0)
        if list((directory / "run").iterdir()) or "telemetry" in said:
            fail("there is telemetry that was not asked for")
        stop(daemon)
        passed("by default there is none")

        path.parents[1].mkdir()
        path.parents[1].chmod(0o777)
        daemon, said = start_with(directory, "true", 0)
        if f"there is no telemetry: {path.parents[1]} is no directory that only this user may use" not in said or path.exists():
            fail(f"the socket is where another user may replace it: {said}")
        stop(daemon)
        path.parents[1].rmdir()
        passed("a directory that others may write to is refused")

        daemon, said = start_with(directory, "true")
        if f", in {path.parent}" not in said or not stat.S_ISSOCK(path.stat().st_mode):
            fail(f"there is no socket {path}: {said}")
        answers(client := Client(path), daemon)
        pages(client)
        attached(client, directory)
        mistakes(client)
        # A thread of EAL's must not take time from a worker.
        cores = os.sched_getaffinity(0)
        tasks = [task for task in pathlib.Path(f"/proc/{daemon.pid}/task").iterdir() if (task / "comm").read_text().startswith("telemetry")]
        if not tasks or (len(cores) > 1 and any(max(cores) in os.sched_getaffinity(int(task.name)) for task in tasks)):
            fail(f"EAL's threads {tasks} may run on the worker's core")
        if os.geteuid() == 0:
            if path.parent.stat().st_mode & 0o777 != 0o700:
                fail(f"{path.parent} has mode {path.parent.stat().st_mode:o}")
            ask = f"import socket; socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect('{path}')"
            refused = subprocess.run(["/usr/bin/python3", "-c", ask], user="nobody", group=pwd.getpwnam("nobody").pw_gid, extra_groups=[],
                                     stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
            if "PermissionError" not in refused.stderr:
                fail(f"a stranger may connect: {refused.stderr}")
        passed("its thread is not on the worker's core, and strangers may not connect")
        harm(path, daemon)

        second, said = start_with(directory, "true", 0, "second")
        if Client(path).info["pid"] != daemon.pid or Client(f"{path}:1").info["pid"] != second.pid:
            fail(f"two daemons share a socket: {said}")
        stop(second)
        stop(daemon)
        if path.exists():
            fail("the socket stays")
        passed("two daemons have a socket each, and take it along")


if __name__ == "__main__":
    main()
