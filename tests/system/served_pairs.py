"""Runs programs with two ends, a server and a client, with pollcore-run or natively."""
import pathlib
import re
import subprocess
import tempfile
import time

from beside_daemon import PATIENCE, fail, passed, start, until
from served_daemon import served


def listens(port):
    """Whether somebody waits for a client at this port, by TCP or by rdma_cm."""
    wanted = f":{port:04X}"
    for table_of in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in pathlib.Path(table_of).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(wanted) and fields[3] == "0A":
                return True
    ids = subprocess.run(["rdma", "resource", "show", "cm_id"], capture_output=True, text=True)
    return any("LISTEN" in line and f":{port} " in line + " " for line in ids.stdout.splitlines())


PORT = 18700


ATTEMPTS = 10  # at a race that a program may lose


def pair(program, server, client):
    """Runs both ends of a program."""
    for attempt in range(ATTEMPTS):
        failure = try_pair(program.name, server, client, program.check)
        if failure is None:
            return
        print(f"{program.name}: {failure}")
        if not program.own_race or not re.search(program.own_race, failure):
            fail(program.name)
    fail(f"{program.name} has lost its own race {ATTEMPTS} times")


def try_pair(name, server, client, check):
    """Runs both ends, each of which is a function that makes the command for a port. Returns what went wrong, or None.
    `check` gets the outputs."""
    global PORT
    PORT += 1
    outputs = [tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")]
    waiting = start(*server(PORT), stdout=outputs[0], stderr=subprocess.STDOUT)
    until(f"{name}: the server listens at port {PORT}", lambda: listens(PORT) or waiting.poll() is not None)
    time.sleep(0.2)  # rdma_cm shows the listener a moment before it takes requests
    calling = start(*client(PORT), stdout=outputs[1], stderr=subprocess.STDOUT)
    codes = []
    for process in (calling, waiting):
        try:
            # A server whose client has failed waits for ever.
            codes.append(process.wait(timeout=PATIENCE if codes in ([], [0]) else 1))
        except subprocess.TimeoutExpired:
            codes.append("no exit")
            for one in (calling, waiting):
                one.kill()
                one.wait()
    said = []
    for output in outputs:
        output.seek(0)
        said.append(output.read())
    if codes != [0, 0]:
        return f"client and server ended with {codes}; the server said:\n{said[0]}\nthe client said:\n{said[1]}"
    check(name, said)
    return None


def all_pairs(programs, device, socket, address, sides_of, prefix=()):
    """Runs each program with the ends served that `sides_of` lists, run by run. `prefix` is put before both ends' commands."""
    for program in programs:
        sides = sides_of(program)
        for side in sides:
            ends = []
            for end in ("server", "client"):
                def command(port, end=end):
                    words = program.command(device, port, None if end == "server" else address)
                    return [*prefix, *(served(socket, words) if end in side else words)]
                ends.append(command)
            pair(program, *ends)
        passed(f"{program.name} ({', '.join(' and '.join(side) + ' served' for side in sides)})")
