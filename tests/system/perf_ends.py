#!/usr/bin/python3
"""Tests pollperf between two processes: every operation, transport and way to connect; a server that outlives its clients; ends that die.

usage: tests/system/perf_ends.py          both ends attach to one daemon with a software device     (POLLCORE_BUILD: the build directory)
       tests/system/perf_ends.py --rxe    plain verbs and workers on the two ends of a wire, in the guest of scripts/rxe-vm

Nothing here judges a figure that was measured.
"""
import contextlib
import json
import os
import pathlib
import pty
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from beside_daemon import PATIENCE, fail, passed, program, start, start_daemon, until

POLLPERF = program("pollperf")
PROTOCOL = 3  # kProtocol of apps/pollperf/peer/letters.hpp
OPERATIONS = ("send", "write", "write-imm", "read", "fetch-add", "cmp-swap")
CONFIG = """
[runtime]
share_cores = true
[[device]]
name = "soft0"
kind = "soft"
[[worker]]
name = "worker0"
core = {core}
idle = [{{spin = "20us"}}, "event"]
[memory]
size = "512MiB"
[attach]
path = "{directory}/attach.sock"
"""


# With many long messages in flight both ways, while threads keep its CPUs busy, Soft-RoCE in the guest was seen to answer writes with
# IBV_WC_REM_INV_REQ_ERR. The tests therefore have few bytes in flight.


class Ends:
    """How the two ends are told where to measure."""

    def __init__(self, server, client, address, paths):
        self.server, self.client, self.address, self.paths = server, client, address, paths
        self.wire_path = "attached" if "--attach" in server else "direct"
        self.port = 18600

    @contextlib.contextmanager
    def serving(self, *more, command="serve", code=0):
        """Starts a server. It is ended by SIGTERM, if it has not ended by itself, and must then return `code`."""
        self.port += 1
        with tempfile.TemporaryFile("w+") as said:
            server = start(POLLPERF, command, *self.server, "--port", self.port, *more, stderr=said, stdout=said)

            def text():
                said.flush()
                return pathlib.Path(f"/proc/self/fd/{said.fileno()}").read_text()

            server.says = text
            until("the server listens", lambda: "waiting for a client" in text() or server.poll() is not None)
            try:
                yield server
            except BaseException:
                print(text())
                raise
            finally:
                if server.poll() is None:
                    server.terminate()
                try:
                    ended = server.wait(timeout=PATIENCE)
                except subprocess.TimeoutExpired:
                    server.kill()
                    fail(f"the server does not end: {text()}")
            if code is not None and ended != code:
                fail(f"the server returned {ended}: {text()}")

    def begin(self, *words, **options):
        return start(POLLPERF, *words[:1], *self.client, "--port", self.port, *words[1:], self.address, stdout=subprocess.PIPE,
                     stderr=subprocess.PIPE, **options)

    def measure(self, *words, code=0):
        """Runs a client. Returns its document, or what it has said if another exit code is expected."""
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory, "result.json")
            client = self.begin(*words, "--json", file)
            try:
                out, error = client.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                client.kill()
                fail(f"pollperf {' '.join(map(str, words))} does not end")
            if client.returncode != code:
                fail(f"pollperf {' '.join(map(str, words))} returned {client.returncode}: {error}{out}")
            return json.loads(file.read_text()) if code in (0, 3) else error


def demand(holds, what, seen):
    if not holds:
        fail(f"{what}: {seen}")


def check(document, count, **wanted):
    """Checks that there are so many results, all with figures and with these values."""
    results = document["results"]
    demand(len(results) == count, f"{count} results", [(one["op"], one["bytes"], one["path"]) for one in results])
    for one in results:
        demand(one["operations"] > 0 and one["seconds"] > 0, "something was measured", one)
        demand(one["latency_ns"]["min"] > 0, "latencies", one["latency_ns"])
        for key, value in wanted.items():
            demand(one[key] == value, f"{key} is {value}", one[key])
        if one["transport"] == "RC":
            demand(one.get("arrived", 0) == one.get("sent", 0), "all messages arrive", one)
    return results


def every_operation(ends):
    with ends.serving():
        for path in ends.paths:
            results = check(ends.measure("lat", *path, "-o", "all" if "event" not in path else "send,write-imm,read", "-s", "8,2000", "-n", 200, "--verify"),
                            10 if "event" not in path else 6)
            demand({one["op"] for one in results} <= set(OPERATIONS), "operations", results)
            if "event" not in path:  # the first size is inline, so that not each answer of the server has a completion, and the second is not
                check(ends.measure("lat", *path, "-o", "write,send", "-s", "8,2000", "-n", 200), 4)
            document = ends.measure("bw", *path, "-o", "all", "-s", "8,16KiB", "-t", 8, "-n", 300, "--verify")
            check(document, 10)
            demand(document["peer_host"]["name"] == os.uname().nodename and document["verified"], "the document tells of the peer", document)
            check(ends.measure("rate", *path, "-o", "send,write,read", "-n", 3000, "--verify"), 3)
    passed(f"every operation, byte by byte, by {len(ends.paths)} paths: lat, bw and rate")


def transports(ends):
    with ends.serving():
        for path in ends.paths:
            check(ends.measure("lat", *path, "-c", "UC", "-o", "send", "-n", 100, "--verify"), 1, transport="UC")
            check(ends.measure("bw", *path, "-c", "UC", "-o", "send", "-s", 1024, "-n", 300, "--verify"), 1, transport="UC")
            check(ends.measure("bw", *path, "-c", "UC", "-o", "write,write-imm", "-s", 1024, "-n", 300), 2, transport="UC")
            check(ends.measure("lat", *path, "-c", "UD", "-n", 100, "--verify"), 1, transport="UD")
            sweep = check(ends.measure("rate", *path, "-c", "UD", "-a", "-n", 300, "--verify"), len(sizes_to(1024)) if "--rxe" in sys.argv else len(sizes_to(4096)))
            demand(all(one["arrived"] <= one["sent"] for one in sweep), "no datagram arrives twice", sweep)
            demand("datagram has at most" in ends.measure("lat", *path, "-c", "UD", "-s", 4097, code=2), "a datagram that is too long is refused", "")
    passed("UC and UD; the sizes of a sweep by datagrams end at the MTU")


def sizes_to(most):
    size, sizes = 2, []
    while size <= most:
        sizes.append(size)
        size *= 2
    return sizes


def ways_to_connect(ends):
    with ends.serving():
        for path in ends.paths:
            check(ends.measure("lat", *path, "-R", "-o", "send,read", "-n", 200, "--verify"), 2)
            check(ends.measure("bw", *path, "-R", "-q", 4, "--threads", 2, "-s", 4096, "-t", 16, "-n", 300, "--verify"), 1, queue_pairs=4, threads=2)
            check(ends.measure("bw", *path, "-q", 6, "--threads", 2, "-o", "send,write", "-s", 4096, "-t", 16, "-n", 300, "--verify", "-b"), 2, bidirectional=True, queue_pairs=6)
    passed("connections by rdma_cm and by exchanged information, several threads and queue pairs, both directions at once")


def open_loop(ends):
    with ends.serving():
        for path in ends.paths:
            results = check(ends.measure("lat", *path, "-o", "send,read", "--rate", "2k", "-n", 300, "--poisson"), 2, iterations=300, operations=300)
            demand(all(one["offered_per_s"] == 2000 for one in results), "the rate that was offered", results)
            check(ends.measure("bw", *path, "-o", "write", "-s", 1024, "--rate", "1k", "-D", "200ms", "--rounds", 1), 1, operations=200)
    passed("an open loop: each operation that was due counts once")


def one_after_the_other(ends):
    with ends.serving() as server:
        first = ends.begin("lat", *ends.paths[0], "-D", "1s")
        until("the first client is served", lambda: "serves" in server.says())
        second = ends.begin("lat", *ends.paths[0], "-n", 100)
        for client in (first, second):
            _, error = client.communicate(timeout=PATIENCE)
            demand(client.returncode == 0, "both clients measure", error)
    with ends.serving("--clients", 2) as server:
        clients = [ends.begin("lat", *ends.paths[0], "-D", "8s") for _ in range(2)]
        until("two clients are served at once", lambda: server.says().count("serves") == 2 and "has left" not in server.says())
        for client in clients:
            _, error = client.communicate(timeout=PATIENCE)
            demand(client.returncode == 0, "both clients measure", error)
    with ends.serving(command="lat") as server:
        ends.measure("rate", *ends.paths[0], "-n", 1000)
        until("a server without `serve` ends after its client", lambda: server.poll() is not None)
        demand(server.returncode == 0, "and returns 0", server.says())
    passed("clients one after the other, two at once, and a server for one client only")


def ends_that_die(ends):
    with ends.serving() as server:
        with socket.create_connection(("127.0.0.1" if ends.address == "127.0.0.1" else ends.address, ends.port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
            demand(b"error" in stranger.recv(4096), "a stranger is told why it is sent away", "")
        # A client that dies in the middle leaves a server that serves the next one.
        for how in (signal.SIGKILL, signal.SIGINT):
            client = ends.begin("bw", *ends.paths[0], "-D", "60s")
            served = server.says().count("serves")
            until("the client is served", lambda: server.says().count("serves") > served or "serves" in server.says().splitlines()[-1])
            time.sleep(0.3)
            client.send_signal(how)
            client.communicate(timeout=PATIENCE)
        check(ends.measure("lat", *ends.paths[0], "-n", 100, "--verify"), 1)
    # A server that dies in the middle: the client says so, and ends.
    with ends.serving(code=None) as server:
        client = ends.begin("lat", *ends.paths[0], "-D", "60s", "--timeout", "2s")
        until("the client is served", lambda: "serves" in server.says())
        time.sleep(0.5)
        server.kill()
        _, error = client.communicate(timeout=PATIENCE)
        demand(client.returncode == 1 and error, "the client of a dead server fails", (client.returncode, error))
    demand("connecting to a pollperf server" in ends.measure("lat", *ends.paths[0], code=1), "a server that is not there", "")
    passed("a stranger, clients and servers that die in the middle, and a server that is not there")


def hostile(ends):
    """Clients that speak the server's language, but not in its order. The server tells them so, and serves on."""
    plan = {"transport": "RC", "size": 64, "slots": 1, "receive_slots": 64, "receive_buffers": 64, "send_depth": 64, "post_list": 1, "threads": 1, "connections": 1,
            "sessions": 1, "mtu": 0, "flow": "off", "rdma_cm": False}
    hello = {"do": "hello", "pollperf": PROTOCOL}
    opened = {"do": "open", "path": ends.wire_path, "plan": plan}
    strange = [
        ['{"do":"hello","pollperf":' + "[" * 500_000 + "]" * 500_000 + "}"],
        [hello, opened, {"do": "start", "id": 0}],
        [hello, opened, {"do": "start", "id": 0, "until": {"operations": 2**64 - 1}}],
        [hello, opened, {"do": "count", "id": 0, "posted": [1]}],
        [hello, opened, {"do": "begin", "id": 0, "workload": {}}],
        [hello, {**opened, "plan": {**plan, "connections": 4096, "post_list": 60000, "send_depth": 65536}}],
        [hello, {**opened, "plan": {**plan, "size": 1 << 26, "slots": 65536}}],
        [hello, {"do": "close", "id": 7}],
        [hello, {"do": "dance"}],
    ]
    with ends.serving() as server:
        for messages in strange:
            with socket.create_connection((ends.address, ends.port)) as client:
                client.settimeout(PATIENCE)
                stream = client.makefile("rw")
                answer = ""
                for message in messages:
                    stream.write((message if isinstance(message, str) else json.dumps(message)) + "\n")
                    stream.flush()
                    answer = stream.readline()
                demand('"error"' in answer, f"an answer to {str(messages[-1])[:80]}", answer[:200])
        demand(server.poll() is None, "the server lives", server.says())
        check(ends.measure("lat", *ends.paths[0], "-n", 100, "--verify"), 1)
    passed(f"{len(strange)} clients that ask for what is not their turn, or for too much")


def limits(ends):
    with ends.serving(), tempfile.TemporaryDirectory() as directory:
        file = pathlib.Path(directory, "baseline.json")
        document = ends.measure("lat", *ends.paths[0], "-n", 2000)
        file.write_text(json.dumps(document))
        ends.measure("lat", *ends.paths[0], "-n", 2000, "--max-p99", "100s", "--baseline", file, "--tolerance", "100000%")
        ends.measure("lat", *ends.paths[0], "-n", 2000, "--max-p99", "1ns", code=3)
        ends.measure("rate", *ends.paths[0], "-n", 2000, "--min-rate", "1000G", code=3)
        ends.measure("bw", *ends.paths[0], "-n", 200, "--min-bw", "100TiB", code=3)
        # A result that no run can reach.
        for result in document["results"]:
            result["latency_ns"] = {name: value / 1e6 for name, value in result["latency_ns"].items()}
        file.write_text(json.dumps(document))
        ends.measure("lat", *ends.paths[0], "-n", 2000, "--baseline", file, code=3)
        demand("no results of pollperf bw" in ends.measure("bw", *ends.paths[0], "-n", 200, "--baseline", file, code=2), "another command's baseline", "")
    passed("limits and baselines by exit code")


def files(ends):
    with ends.serving(), tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        client = ends.begin("lat", *ends.paths[0], "-o", "send,read", "-n", 500, "--csv", folder / "a.csv", "--hdr", folder / "a.hgrm", "--report", folder / "a.html")
        out, error = client.communicate(timeout=PATIENCE)
        demand(client.returncode == 0, "all outputs at once", error)
        demand(len((folder / "a.csv").read_text().splitlines()) == 3, "a line for each measurement", "")
        demand(len(list(folder.glob("a-*.hgrm"))) == 2, "a file for each measurement", list(folder.iterdir()))
        demand("<script" in (folder / "a.html").read_text(), "the page", "")
        demand(max(map(len, out.splitlines())) <= 120, "at most 120 columns", out)
        path = ends.paths[0]
        demand("/nowhere" in ends.measure("lat", *path, "--csv", "/nowhere/x", code=1), "a file that cannot be written is refused at once", "")
    passed("the table, CSV, HdrHistogram's text and the page")


def progress(ends):
    """The line of progress, on a terminal only, and gone at the end."""
    with ends.serving():
        child, terminal = pty.fork()
        if child == 0:
            os.execv(POLLPERF, [str(word) for word in (POLLPERF, "lat", *ends.client, "--port", ends.port, *ends.paths[0], "-D", "3s", "--rounds", 10, ends.address)])
        shown = b""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if select.select([terminal], [], [], 1)[0]:
                try:
                    shown += os.read(terminal, 65536)
                except OSError:  # the program has ended
                    break
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    demand(code == 0 and b"round" in shown and b"\r" in shown, "progress on a terminal", shown)
    last = shown.replace(b"\r\n", b"\n").split(b"\n")
    demand(not any(b"round 1 of" in line.split(b"\r")[-1] for line in last), "the line is erased", shown)
    passed("a terminal shows how far it is")


def worker_options(ends):
    """What only paths through workers have."""
    with ends.serving():
        for path in ends.paths:
            if "direct" in path or "event" in path:
                continue
            check(ends.measure("lat", *path, "--flow", "credits", "-n", 200, "--verify"), 1)
            check(ends.measure("bw", *path, "--flow", "credits", "-s", 1024, "-n", 500, "--verify"), 1)
    passed("flow control between two processes")


def on_soft():
    with tempfile.TemporaryDirectory() as directory:
        config = pathlib.Path(directory, "pollcored.toml")
        config.write_text(CONFIG.format(directory=directory, core=max(os.sched_getaffinity(0))))
        place = ("--config", config, "--attach", f"{directory}/attach.sock")
        daemon, _ = start_daemon(config)
        try:
            # With two CPUs the threads give up theirs while they wait.
            ends = Ends((*place, "--wait", "yield"), place, "127.0.0.1", [("--wait", "yield"), ("--wait", "event")])
            each = Ends(ends.server, ends.client, ends.address, [("--wait", "yield")])
            steps(ends, each)
            demand(daemon.poll() is None, "the daemon lives", "")
        finally:
            daemon.terminate()
            daemon.wait(timeout=PATIENCE)


def on_rxe():
    device, peer, address = (os.environ[f"POLLCORE_RXE_{name}"] for name in ("DEVICE", "PEER", "ADDRESS"))
    ends = Ends(("-d", device, "--share-core", "--wait", "yield"), ("-d", peer, "--share-core"), address,
                [("--path", "direct", "--wait", "yield"), ("--path", "event"), ("--path", "runtime", "--wait", "yield")])
    steps(ends, ends)
    with ends.serving():
        document = ends.measure("lat", "--path", "direct,event,runtime,attached", "--wait", "yield", "-o", "send,read", "-n", 200, "--rounds", 6)
        check(document, 8)
        demand({one["path"] for one in document["results"]} == {"direct", "event", "runtime", "attached"}, "all paths", document)
    passed("one run compares direct, event, runtime and attached")


def steps(ends, each):
    for step in (transports, ways_to_connect, open_loop, worker_options):
        step(each)
    every_operation(Ends(each.server, each.client, each.address, [path for path in each.paths]))
    for step in (one_after_the_other, ends_that_die, hostile, limits, files, progress):
        step(ends)


if __name__ == "__main__":
    on_rxe() if "--rxe" in sys.argv else on_soft()
