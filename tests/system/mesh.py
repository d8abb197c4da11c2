#!/usr/bin/python3
"""Tests pollperf-mesh: ranks of MPI that are attached to pollcoreds measure between each other. Judges no time and no speed.

usage: tests/system/mesh.py          (POLLCORE_BUILD: the build directory) on the software device of one pollcored
       tests/system/mesh.py --rxe    in the guest of scripts/rxe-vm, with a pollcored at either end of the wire
"""
import csv
import itertools
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from beside_daemon import BUILD, PATIENCE, fail, passed, program, start, start_daemon, until

MESH = BUILD / "apps" / "pollperf" / "mesh" / "pollperf-mesh"
# One Open MPI for all: no network is looked for, and the ranks are not bound to CPUs, of which there are few.
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", "self,vader"]
MARK = "POLLCORE_MESH_TEST"  # a variable by which the ranks of this test are known
WIDEST = 120
# For Soft-RoCE in an emulated machine, which loses packets if many are on their way.
GENTLE = ["--timeout", "60s", "-D", "300ms", "-s", "1KiB", "-t", "4"]
LIMIT = 60  # seconds in which a job that fails has to end

CONFIG = """
[runtime]
share_cores = true
[memory]
size = "16MiB"
[[device]]
name = "d"
{device}
[[worker]]
name = "w"
core = {core}
idle = "yield"
[attach]
path = "{socket}"
"""


def expect(what, found, wanted):
    if found != wanted:
        fail(f"{what}: {found!r}, not {wanted!r}")


def job(ranks, *arguments):
    """The command of a job whose ranks are all alike."""
    return [*MPIRUN, "-np", ranks, MESH, *arguments]


def environment():
    return {**os.environ, MARK: str(os.getpid())}


def run(command, code=0, limit=PATIENCE * 3):
    """Runs a job. Returns what it has printed."""
    try:
        done = subprocess.run([str(word) for word in command], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=limit)
    except subprocess.TimeoutExpired as error:
        fail(f"{' '.join(map(str, command))} did not end within {limit} s: {error.stdout} {error.stderr}")
    if done.returncode != code:
        fail(f"{' '.join(map(str, command))} returned {done.returncode}, not {code}: {done.stdout} {done.stderr}")
    return done.stdout if code == 0 else done.stderr


def process_of(rank):
    """The id of a rank's process, once it runs."""
    def look():
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                variables = (folder / "environ").read_bytes().split(b"\0")
                name = (folder / "comm").read_text().strip()
            except OSError:
                continue
            if name == MESH.name and f"{MARK}={os.getpid()}".encode() in variables and f"OMPI_COMM_WORLD_RANK={rank}".encode() in variables:
                return int(folder.name)
        return None
    return until(f"rank {rank}", look)


def until_measuring(daemon, ranks):
    """Waits until all ranks have attached to the daemon and sent something."""
    def all_measure():
        shown = subprocess.run([str(program("pollstat")), str(daemon.pid), "--json"], stdout=subprocess.PIPE, text=True)
        processes = json.loads(shown.stdout)["tables"]["process"] if shown.returncode == 0 else []
        return len(processes) == ranks and all(one["sends"] for one in processes)
    until(f"{ranks} ranks measure", all_measure)


def check_matrix(what, matrix, ranks, measured=True):
    expect(f"the rows of {what}", len(matrix), ranks if measured else 0)
    for row, column in itertools.product(range(len(matrix)), repeat=2):
        value = matrix[row][column]
        if (value is None) != (row == column) or (value is not None and not value > 0):
            fail(f"{what} from {row} to {column} is {value}")


def check_outliers(document, share):
    """Finds the outliers again: there is one host, so all pairs are compared with each other."""
    wanted = set()
    for key, what, sign in (("latency_ns", "latency", 1), ("bandwidth_bytes_per_s", "bandwidth", -1)):
        pairs = {(row, column): value for row, values in enumerate(document[key]) for column, value in enumerate(values) if value is not None}
        if not pairs:
            continue
        median = statistics.median(pairs.values())
        deviation = statistics.median(abs(value - median) for value in pairs.values())
        wanted |= {(what, *pair) for pair, value in pairs.items() if sign * (value - median) > max(share * median, 3 * deviation)}
    expect("the outliers", {(one["what"], one["from"], one["to"]) for one in document["outliers"]}, wanted)


def check_document(document, ranks, targets=None, share=0.2):
    expect("program and format", (document["program"], document["format"]), ("pollperf-mesh", 2))
    expect("the ranks", [one["rank"] for one in document["ranks"]], list(range(ranks)))
    for one in document["ranks"]:
        if not one["host"] or not one["device"] or one["facts"]["cpus_online"] < 1 or one["cpu"] not in os.sched_getaffinity(0):
            fail(f"a rank is {one}")
    for what in ("latency_ns", "latency_p99_ns", "bandwidth_bytes_per_s"):
        check_matrix(what, document[what], ranks)
    for row, column in itertools.permutations(range(ranks), 2):
        if document["latency_p99_ns"][row][column] < document["latency_ns"][row][column]:
            fail(f"from {row} to {column} 99% are less than the median")
    targets = range(ranks) if targets is None else targets
    expect("the receivers of incast", [one["to"] for one in document["incast"]], list(targets))
    for one in document["incast"]:
        expect("the senders", one["senders"], [rank for rank in range(ranks) if rank != one["to"]])
        if len(one["per_sender_bytes_per_s"]) != ranks - 1 or min(one["per_sender_bytes_per_s"]) <= 0 or \
                abs(sum(one["per_sender_bytes_per_s"]) / one["bytes_per_s"] - 1) > 1e-6:
            fail(f"an incast is {one}")
    each = document["all_to_all"]["per_rank_bytes_per_s"]
    if len(each) != ranks or min(each) <= 0 or abs(sum(each) / document["all_to_all"]["bytes_per_s"] - 1) > 1e-6:
        fail(f"all to all is {document['all_to_all']}")
    check_outliers(document, share)


def check_table(text, ranks):
    for line in text.splitlines():
        if len(line) > WIDEST:
            fail(f"a line of {len(line)} columns: {line}")
    for wanted in (f"pollperf-mesh: {ranks} ranks on 1 host", "latency: median of half a round trip", "bandwidth: ", "many to one: ", "all to all, "):
        if wanted not in text:
            fail(f"the table has no '{wanted}': {text}")


def measures_all(directory, place, ranks):
    json_file, report, csv_file = directory / "mesh.json", directory / "mesh.html", directory / "mesh.csv"
    text = run(job(ranks, *place, "-D", "100ms", "--json", json_file, "--report", report, "--csv", csv_file))
    check_table(text, ranks)
    document = json.loads(json_file.read_text())
    check_document(document, ranks)
    page = report.read_text()
    if "<html" not in page or '"program":"pollperf-mesh"' not in page:
        fail("the report is no page of the mesh")
    lines = list(csv.DictReader(csv_file.read_text().splitlines()))
    expect("the pairs of the lines", [(int(line["from"]), int(line["to"])) for line in lines], list(itertools.permutations(range(ranks), 2)))
    for line in lines:
        found = [document[key][int(line["from"])][int(line["to"])] for key in ("latency_ns", "latency_p99_ns", "bandwidth_bytes_per_s")]
        for key, value in zip(("latency_ns", "latency_p99_ns", "bandwidth_bytes_per_s"), found):
            if abs(float(line[key]) - value) > 0.01:
                fail(f"a line is {line}, and the document has {value}")
    passed(f"{ranks} ranks: each pair, many to one, and all to all; the table, the document, the lines and the page")


def by_options(directory, place):
    file = directory / "options.json"
    for op in ("read", "send", "write-imm"):
        run(job(3, *place, "-D", "100ms", "-n", "500", "-o", op, "-s", "4KiB", "--serial", "--incast-to", "1", "--outlier", "0.5", "--json", file))
        check_document(json.loads(file.read_text()), 3, targets=[1], share=0.5)
    run(job(3, *place, "-D", "100ms", "--wait", "event", "--json", file))
    check_document(json.loads(file.read_text()), 3)
    text = run(job(2, *place, "-D", "100ms", "--only", "bandwidth,all-to-all", "--json", file))
    document = json.loads(file.read_text())
    check_matrix("latency", document["latency_ns"], 2, measured=False)
    check_matrix("bandwidth", document["bandwidth_bytes_per_s"], 2)
    if document["incast"] or "latency: median" in text or "many to one" in text:
        fail(f"--only has left out too little: {text}")
    passed("read, send and write-imm; by iterations, serially, to one receiver, by sleeping threads, and only parts")


def failing_rank_ends_all(directory, place, daemon):
    for what, wanted in ((signal.SIGKILL, "signal 9"), (signal.SIGTERM, "signal 15")):
        mesh = start(*job(4, *place, "-D", "5s"), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        others = [process_of(rank) for rank in (0, 1, 3)]
        pid = process_of(2)
        until_measuring(daemon, 4)
        os.kill(pid, what)
        try:
            said = mesh.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            fail(f"rank 2 was killed, and the others have not ended within {LIMIT} s")
        if mesh.returncode == 0 or wanted not in said[1]:
            fail(f"with a killed rank, the job returned {mesh.returncode}: {said}")
        until("the end of all ranks", lambda: not any(pathlib.Path(f"/proc/{one}").exists() for one in others))
    # A rank that hangs: the ranks that wait for it give up, and say so.
    mesh = start(*job(3, *place, "-D", "10s", "--only", "latency", "--timeout", "1s"), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    pid = process_of(1)
    until_measuring(daemon, 3)
    os.kill(pid, signal.SIGSTOP)
    try:
        said = mesh.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        fail(f"rank 1 hangs, and the others have not ended within {LIMIT} s")
    expect(f"the exit code with a hanging rank ({said})", mesh.returncode, 1)
    if not any(line.startswith("pollperf-mesh: rank ") and " on " in line and "has waited" in line for line in said[1].splitlines()):
        fail(f"no rank says for what it has waited: {said[1]}")
    # A daemon that is not there.
    said = run(job(2, "--config", directory / "d.toml", "--attach", directory / "nobody.sock"), code=1, limit=LIMIT)
    if "pollperf-mesh: each rank" not in said or "nobody.sock" not in said:
        fail(f"without a daemon: {said}")
    # Daemon and ranks part in the middle.
    other, socket = another_daemon(directory)
    mesh = start(*job(2, "--config", directory / "other.toml", "--attach", socket, "-D", "5s"), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until_measuring(other, 2)
    other.kill()
    other.wait()
    try:
        said = mesh.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        fail(f"the daemon is gone, and the ranks have not ended within {LIMIT} s")
    expect(f"the exit code without the daemon ({said})", mesh.returncode, 1)
    if "pollperf-mesh: rank " not in said[1]:
        fail(f"no rank is named: {said[1]}")
    passed("a killed rank, a hanging rank and a killed daemon end all ranks; the message names rank and host")


def another_daemon(directory):
    socket = directory / "other.sock"
    config = directory / "other.toml"
    config.write_text(CONFIG.format(device='kind = "soft"', core=max(os.sched_getaffinity(0)), socket=socket))
    return start_daemon(config)[0], socket


def wrong_options(directory, place):
    nowhere = directory / "no" / "such" / "folder" / "mesh.json"
    for arguments, code, wanted in ((["--no-such-option"], 2, "--no-such-option"), ([], 2, "say what to measure"), (["-d", "soft0"], 2, "software device"),
                                    ([*place, "--only", "pairs"], 2, "--only pairs"), ([*place, "--incast-to", "2"], 2, "--incast-to 2"),
                                    ([*place, "--path", "direct"], 2, "--attach"), ([*place, "-I", "100000"], 2, "--inline_size"),
                                    ([*place, "--json", nowhere], 1, "--json")):
        said = run(job(2, *arguments), code=code, limit=LIMIT)
        if wanted not in said or (code == 2 and said.count(wanted) > 2):
            fail(f"pollperf-mesh {arguments} said: {said}")
    said = run([MESH, *place], code=2, limit=LIMIT)
    if "a mesh has two ranks at least" not in said:
        fail(f"one rank alone said: {said}")
    said = run([*MPIRUN, "-np", "1", MESH, *place, ":", "-np", "1", MESH, *place, "-s", "1KiB"], code=2, limit=LIMIT)
    if "rank 1 has other options than rank 0" not in said:
        fail(f"ranks with different options said: {said}")
    for arguments in (["--help"], ["--help-all"], ["--version"]):
        text = run(job(2, *arguments))
        if text.count("pollperf-mesh") < 1 or text.count("--version") > 1:
            fail(f"two ranks with {arguments} said: {text}")
    passed("wrong options: exit code 2, said once; a file that cannot be written is known before the measurement")


def on_software_device():
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        config, socket = directory / "d.toml", directory / "d.sock"
        config.write_text(CONFIG.format(device='kind = "soft"', core=max(os.sched_getaffinity(0)), socket=socket))
        daemon, _ = start_daemon(config)
        place = ["--config", config, "--attach", socket]
        measures_all(directory, place, 4)
        measures_all(directory, place, 8)
        by_options(directory, place)
        wrong_options(directory, place)
        failing_rank_ends_all(directory, place, daemon)
        daemon.terminate()
        expect("the exit code of the daemon", daemon.wait(PATIENCE), 0)


def over_rxe():
    """Two ranks at either end of the wire, each attached to the daemon of its end."""
    ends = []
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        daemons = []
        for end, device, address, core in (("near", "POLLCORE_RXE_DEVICE", "POLLCORE_RXE_ADDRESS", 0), ("far", "POLLCORE_RXE_PEER", "POLLCORE_RXE_PEER_ADDRESS", 1)):
            config, socket = directory / f"{end}.toml", directory / f"{end}.sock"
            config.write_text(CONFIG.format(device=f'kind = "verbs"\nverbs_name = "{os.environ[device]}"\ngid = "{os.environ[address]}"', core=core, socket=socket))
            daemons.append(start_daemon(config)[0])
            ends.append(["-np", 2, MESH, "--config", config, "--attach", socket, *GENTLE])
        file, report = directory / "mesh.json", directory / "mesh.html"
        text = run([*MPIRUN, *ends[0], "--json", file, "--report", report, ":", *ends[1]])
        check_table(text, 4)
        document = json.loads(file.read_text())
        check_document(document, 4)
        devices = [one["device"] for one in document["ranks"]]
        if devices[0] != devices[1] or devices[2] != devices[3] or devices[0] == devices[2]:
            fail(f"the devices are {devices}")
        print(text)
        passed("two ranks at either end of a wire of Soft-RoCE: each pair, many to one, and all to all")
        # Plain verbs of two processes.
        plain = [[*MPIRUN, "-np", 1], ["-np", 1]]
        for words, device, index in zip(plain, ("POLLCORE_RXE_DEVICE", "POLLCORE_RXE_PEER"), ("POLLCORE_RXE_ADDRESS", "POLLCORE_RXE_PEER_ADDRESS")):
            words += [MESH, "-d", os.environ[device], "-x", gid_index(os.environ[device], os.environ[index]), *GENTLE, "--wait", "yield"]
        text = run([*plain[0], "--json", file, ":", *plain[1]])
        check_document(json.loads(file.read_text()), 2)
        print(text)
        passed("plain verbs between the two ends of the wire")
        for daemon in daemons:
            daemon.terminate()
            expect("the exit code of a daemon", daemon.wait(PATIENCE), 0)


def gid_index(device, address):
    """The index of the address in the device's table of GIDs of RoCE v2."""
    gids = pathlib.Path("/sys/class/infiniband") / device / "ports" / "1"
    mapped = "0000:0000:0000:0000:0000:ffff:" + "{:02x}{:02x}:{:02x}{:02x}".format(*map(int, address.split(".")))
    for index in range(32):
        try:
            if (gids / "gids" / str(index)).read_text().strip() == mapped and "v2" in (gids / "gid_attrs" / "types" / str(index)).read_text():
                return index
        except OSError:
            continue
    return fail(f"{device} has no GID of {address}")


def main():
    if sys.argv[1:] == ["--rxe"]:
        over_rxe()
    elif not sys.argv[1:]:
        on_software_device()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
