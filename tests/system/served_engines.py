#!/usr/bin/python3
"""Tests the engines that others build on over pollcore-run: UCX, and Open MPI over UCX. Results are checked, and the daemon must have carried the bytes.

usage: tests/system/served_engines.py     on a software device     (POLLCORE_BUILD: the build directory)

Nothing here judges a figure that a program has measured.
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
from beside_daemon import BUILD, PATIENCE, fail, passed, program, start, start_daemon, until

RUN = BUILD / "apps" / "pollcore-run" / "pollcore-run"
# UCX has shared receive queues of 4096 receives, whose completion queue needs room for all of them and for the sends.
CONFIG = """
[runtime]
share_cores = true
[memory]
size = "256MiB"
[[device]]
name = "soft0"
kind = "soft"
[[worker]]
name = "w"
core = {core}
idle = "yield"
cq_depth = 65536
[attach]
path = "{directory}/attach.sock"
own_memory = "on"
"""
# Ranks of one host would use shared memory.
UCX = {"UCX_TLS": "rc_v,ud_v,self", "UCX_NET_DEVICES": "soft0:1"}
# With the data layout that each operation has over rc_verbs. Verbs have no swap.
OPERATIONS = {"am_lat": [], "am_bw": ["-D", "zcopy"], "put_lat": [], "put_bw": ["-D", "bcopy"], "get": ["-D", "bcopy"], "add_lat": [], "fadd": [],
              "cswap": []}
UCP_OPERATIONS = ["tag_lat", "tag_bw", "tag_sync_lat", "ucp_put_lat", "ucp_put_bw", "ucp_get", "ucp_add", "ucp_fadd", "ucp_swap", "ucp_cswap",
                  "stream_lat", "stream_bw"]

MPI_PROGRAM = """
#include <mpi.h>
#include <stdio.h>
#include <string.h>
static char buffer[1 << 20];
static int differ(int bytes, char value) {
    int wrong = 0;
    for (int i = 0; i < bytes; ++i) wrong += buffer[i] != value;
    return wrong;
}
int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    int rank, size, wrong = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    /* Short messages go as they are, long ones by rendezvous. */
    for (int bytes = 1; bytes <= 1 << 20; bytes *= 4) {
        for (int i = 0; i < 4; ++i) {
            const char value = (char)(bytes + i);
            if (rank == 0) {
                memset(buffer, value, bytes);
                MPI_Send(buffer, bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
                MPI_Recv(buffer, bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                wrong += differ(bytes, (char)(value + 1));
            } else if (rank == 1) {
                MPI_Recv(buffer, bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                wrong += differ(bytes, value);
                memset(buffer, value + 1, bytes);
                MPI_Send(buffer, bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
            }
        }
    }
    double in[1000], out[1000];
    for (int i = 0; i < 1000; ++i) in[i] = rank * 1000 + i;
    MPI_Allreduce(in, out, 1000, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < 1000; ++i) wrong += out[i] != size * (size - 1) / 2 * 1000.0 + size * i;
    MPI_Barrier(MPI_COMM_WORLD);
    printf("rank %d of %d: %d wrong\\n", rank, size, wrong);
    MPI_Finalize();
    return wrong != 0;
}
"""


class Carried:
    """The most bytes that the daemon's table of processes has shown at once, while the block runs."""

    def __init__(self, pid):
        self.pid, self.bytes, self.over = pid, 0, threading.Event()

    def look(self):
        while not self.over.wait(0.1):
            done = subprocess.run([program("pollstat"), str(self.pid), "--json"], capture_output=True, text=True)
            if done.returncode == 0:
                rows = json.loads(done.stdout)["tables"]["queue_pair"]
                self.bytes = max(self.bytes, sum(row["send_bytes"] + row["receive_bytes"] for row in rows))

    def __enter__(self):
        self.thread = threading.Thread(target=self.look)
        self.thread.start()
        return self

    def __exit__(self, *ended):
        self.over.set()
        self.thread.join()


def listens(port):
    wanted = f":{port:04X}"
    return any(line.split()[1].endswith(wanted) and line.split()[3] == "0A"
               for table in ("/proc/net/tcp", "/proc/net/tcp6") for line in pathlib.Path(table).read_text().splitlines()[1:])


PORT = 15600


def ucx(socket, test, *words):
    global PORT
    PORT += 1
    command = [RUN, "--socket", socket, "ucx_perftest", "-p", PORT, "-n", 200, "-w", 10, "-t", test, *words]
    environment = {**os.environ, **UCX}
    with tempfile.TemporaryFile("w+") as said:
        server = start(*command, env=environment, stdout=said, stderr=subprocess.STDOUT)
        until(f"ucx_perftest {test}: the server", lambda: listens(PORT) or server.poll() is not None)
        client = subprocess.run([str(word) for word in [*command, "localhost"]], env=environment, capture_output=True, text=True, timeout=PATIENCE)
        code = server.wait(timeout=PATIENCE)
        said.seek(0)
        if client.returncode != 0 or code != 0 or "Final:" not in client.stdout:
            fail(f"ucx_perftest {test}: {client.returncode} and {code}: {client.stdout}{client.stderr}{said.read()}")


def ranks(socket, pid, mpi_program, count):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", count, "--mca", "pml", "ucx"]
    for name, value in UCX.items():
        command += ["-x", f"{name}={value}"]
    with Carried(pid) as carried:
        done = subprocess.run([str(word) for word in [*command, RUN, "--socket", socket, mpi_program]], capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode != 0 or len(re.findall(r"rank \d+ of \d+: 0 wrong", done.stdout)) != count:
        fail(f"{count} ranks: {done.returncode}: {done.stdout}{done.stderr}")
    if carried.bytes < 1 << 20:
        fail(f"the daemon has carried {carried.bytes} bytes only")
    passed(f"Open MPI over UCX: {count} ranks, ping-pong and allreduce are right (the daemon has shown {carried.bytes} bytes)")


def main():
    with tempfile.TemporaryDirectory() as folder:
        directory = pathlib.Path(folder)
        config = directory / "d.toml"
        config.write_text(CONFIG.format(core=max(os.sched_getaffinity(0)), directory=directory))
        daemon, said = start_daemon(config)
        socket = directory / "attach.sock"
        for test in UCP_OPERATIONS:
            ucx(socket, test)
        passed(f"UCP over rc_v and ud_v: {', '.join(UCP_OPERATIONS)}")
        for test, layout in OPERATIONS.items():
            ucx(socket, test, "-x", "rc_verbs", "-d", "soft0:1", *layout)
        passed(f"UCT over rc_verbs: {', '.join(OPERATIONS)}")
        for test in ("am_lat", "am_bw"):
            ucx(socket, test, "-x", "ud_verbs", "-d", "soft0:1")
        passed("UCT over ud_verbs: am_lat, am_bw")
        source, mpi_program = directory / "ranks.c", directory / "ranks"
        source.write_text(MPI_PROGRAM)
        subprocess.run(["mpicc", source, "-o", mpi_program], check=True)
        for count in (2, 4):
            ranks(socket, daemon.pid, mpi_program, count)
        daemon.send_signal(signal.SIGTERM)
        said += daemon.stderr.read()
        if daemon.wait(timeout=PATIENCE) != 0 or ", 0 died or hung up, 0 were ended" not in said:
            fail(f"pollcored: {said}")
        passed("all have detached")


main()
