#!/usr/bin/python3
"""Tests the engines that others build on over pollcore-run: UCX, libfabric, and Open MPI over UCX. Results are checked, and the daemon must have
carried the bytes.

usage: tests/system/served_engines.py     on a software device     (POLLCORE_BUILD: the build directory)

Nothing here judges a figure that a program has measured.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from beside_daemon import PATIENCE, fail, passed, program, start, until
from served_daemon import RUN, daemon_process
from served_pairs import all_pairs
from served_programs import BOTH, ENGINES, UCX

MPI_PROGRAM = """
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
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
    /* The queue pairs stand until the test has read their counters. */
    while (access(argv[1], F_OK) != 0) usleep(10000);
    MPI_Finalize();
    return wrong != 0;
}
"""


PINGPONG_BYTES = 2 * 4 * sum(4**power for power in range(11))  # of that program


def bytes_shown(pid):
    """The bytes in the daemon's table of queue pairs."""
    done = subprocess.run([program("pollstat"), str(pid), "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"pollstat: {done.stderr}")
    return sum(row["send_bytes"] + row["receive_bytes"] for row in json.loads(done.stdout)["tables"]["queue_pair"])


def ranks(socket, pid, mpi_program, count):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", count, "--mca", "pml", "ucx"]
    for setting in (*UCX, "UCX_NET_DEVICES=soft0:1"):
        command += ["-x", setting]
    seen = mpi_program.parent / f"seen-{count}"
    running = start(*command, RUN, "--socket", socket, mpi_program, seen, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    carried = 0

    def has_carried():
        nonlocal carried
        carried = bytes_shown(pid)
        return carried >= PINGPONG_BYTES or running.poll() is not None
    until(f"{count} ranks: their bytes at the daemon", has_carried)
    seen.touch()
    said = running.communicate(timeout=PATIENCE)[0]
    if running.returncode != 0 or len(re.findall(r"rank \d+ of \d+: 0 wrong", said)) != count:
        fail(f"{count} ranks: {running.returncode}: {said}")
    if carried < PINGPONG_BYTES:
        fail(f"the daemon has carried {carried} bytes only")
    passed(f"Open MPI over UCX: {count} ranks, ping-pong and allreduce are right (the daemon has shown {carried} bytes)")


def main():
    with daemon_process('kind = "soft"', name="soft0", log=(log := [])) as (socket, process):
        all_pairs(ENGINES, "soft0", socket, "localhost", lambda program: [BOTH])
        with tempfile.TemporaryDirectory() as folder:
            source, mpi_program = pathlib.Path(folder) / "ranks.c", pathlib.Path(folder) / "ranks"
            source.write_text(MPI_PROGRAM)
            subprocess.run(["mpicc", source, "-o", mpi_program], check=True)
            for count in (2, 4):
                ranks(socket, process.pid, mpi_program, count)
    if log[0][2] != 0:
        fail(f"a process has not detached: {log[0][0]}")
    passed("all have detached")


main()
