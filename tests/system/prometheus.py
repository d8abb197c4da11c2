#!/usr/bin/python3
"""Tests pollstat --prometheus beside a pollcored with traffic, with promtool, hostile segments and hostile clients.

usage: tests/system/prometheus.py        (POLLCORE_BUILD: the build directory)
"""
import os
import pathlib
import pwd
import re
import signal
import socket
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from beside_daemon import PATIENCE, fail, passed, until
from exporter_programs import POLLSTAT, RUNTIME, Programs, get
from hostile_segments import hostile_segments

SHARED_MEMORY = pathlib.Path("/dev/shm")


SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (-?[0-9.e+-]+|[+-]Inf|NaN)')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"')


def metrics(port):
    """The exposition, read strictly: {(name, frozenset of labels): value}."""
    response, body = get(port)
    if response.status != 200 or response.headers["Content-Type"] != "text/plain; version=0.0.4; charset=utf-8":
        fail(f"{response.status} {response.headers}")
    text = body.decode()  # must be UTF-8
    samples, types = {}, {}
    for line in text.split("\n")[:-1]:
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            if name in types:
                fail(f"{name} has two types")
            types[name] = kind
        elif not line.startswith("# HELP "):
            found = SAMPLE.fullmatch(line)
            if not found:
                fail(f"no sample: {line!r}")
            name, labels, value = found.groups()
            key = name, frozenset(LABEL.findall(labels or ""))
            if key in samples:
                fail(f"twice: {line!r}")
            if not any(name == base or (kind == "histogram" and name in (f"{base}_bucket", f"{base}_sum", f"{base}_count"))
                       for base, kind in types.items()):
                fail(f"without a type: {line!r}")
            samples[key] = float(value)
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             timeout=PATIENCE, check=False)
    if checked.returncode != 0 or checked.stdout:
        fail(f"promtool: {checked.stdout}")
    return samples


def value(samples, name, **labels):
    """The value of the series that has these labels, among others; None if there is none."""
    wanted = set(labels.items())
    found = [sample for (its, has), sample in samples.items() if its == name and wanted <= has]
    if len(found) > 1:
        fail(f"{len(found)} series are {name} {labels}")
    return found[0] if found else None


def ours(samples):
    return {key: sample for key, sample in samples.items() if ("runtime", RUNTIME) in key[1]}


def serves(programs):
    """The runtime is found when it starts; its series follow what it does."""
    _, port = programs.exporter()
    if any(sample == 1 for (name, _), sample in ours(metrics(port)).items() if name == "pollcore_up"):
        fail("there is a runtime already")
    daemon = programs.daemon()
    until("the runtime is found", lambda: value(metrics(port), "pollcore_up", runtime=RUNTIME) == 1)
    traffic = programs.traffic()
    # The exporter counts what it sees, so it has to see the process first.
    until("the process is seen", lambda: value(metrics(port), "pollcore_user_processes", runtime=RUNTIME, uid=str(os.geteuid())) == 1)
    until("requests were measured", lambda: value(metrics(port), "pollcore_session_device_stage_seconds_count", runtime=RUNTIME, worker="worker0",
                                                  uid=str(os.geteuid())))
    first = ours(metrics(port))
    until("the worker was busy", lambda: value(metrics(port), "pollcore_worker_busy_seconds_total", runtime=RUNTIME, worker="worker0") >
          value(first, "pollcore_worker_busy_seconds_total", worker="worker0"))
    later = ours(metrics(port))
    for (name, labels), sample in first.items():
        if name.endswith(("_total", "_count", "_bucket")) and later.get((name, labels), sample) < sample:
            fail(f"{name} {labels} has decreased from {sample} to {later[name, labels]}")
    for name in ("sends", "completions", "steps", "idle_yield_seconds"):
        if not value(later, f"pollcore_worker_{name}_total", worker="worker0") > 0:
            fail(f"worker0 has no {name}")
    if value(later, "pollcore_worker_info", worker="worker0", core=str(max(os.sched_getaffinity(0)))) != 1 or \
            value(later, "pollcore_runtime_info", pid=str(daemon.pid), uid=str(os.geteuid())) != 1 or \
            value(later, "pollcore_device_lost", device="soft0") != 0:
        fail("a worker, a runtime or a device is not described")
    process = [dict(labels) for name, labels in later if name == "pollcore_process_info"]
    if len(process) != 1 or process[0]["pid"] != str(traffic.pid) or "attached-load" not in process[0]["name"]:
        fail(f"the processes are {process}")
    if value(later, "pollcore_user_bytes", uid=str(os.geteuid())) != value(later, "pollcore_process_bytes", process=process[0]["process"]):
        fail("a user has another sum than its only process")
    if any(dict(labels).get("session") for _, labels in later):
        fail("there are series of sessions that nobody asked for")
    passed(f"a runtime that starts later is found: {len(later)} series, promtool has nothing to say")
    return daemon, port


def serves_each(programs, daemon):
    """--per, and a runtime by its name."""
    _, port = programs.exporter(daemon.pid, "--per", "session,queue_pair")
    samples = metrics(port)
    sessions = [dict(labels) for name, labels in samples if name == "pollcore_session_retired_total"]
    queue_pairs = [dict(labels) for name, labels in samples if name == "pollcore_queue_pair_info"]
    if "echo" not in {one.get("name") for one in sessions} or not any(one.get("process") and one["uid"] == str(os.geteuid()) for one in sessions):
        fail(f"the sessions are {sessions}")
    if not queue_pairs or not all(one["worker"] == "worker0" and one["device"] == "soft0" and one["type"] == "RC" for one in queue_pairs):
        fail(f"the queue pairs are {queue_pairs}")
    if {dict(labels).get("runtime", RUNTIME) for _, labels in samples} != {RUNTIME}:
        fail("there are others than the runtime that was named")
    _, port = programs.exporter("no-such-runtime")
    if value(metrics(port), "pollcore_up", runtime="no-such-runtime") != 0:
        fail("a runtime that does not exist is not down")
    passed("series of each session and queue pair, if asked for; one runtime, if named")


def withstands(port):
    """Hostile segments beside the runtime's, and hostile clients."""
    made = []
    try:
        for name, content in hostile_segments().items():
            made.append(SHARED_MEMORY / name)
            made[-1].write_bytes(content)
            made[-1].chmod(0o644)
        for name, make in (("link", lambda path: path.symlink_to("/etc/passwd")), ("fifo", os.mkfifo), ("directory", os.mkdir)):
            made.append(SHARED_MEMORY / f"pollcore-hostile{os.getpid()}-{name}.statistics")
            make(made[-1])

        def bad(samples, reason):
            return value(samples, "pollcore_exporter_unreadable_segments", reason=reason)
        samples = until("the bad segments are counted, 8 of them damaged",
                        lambda: (now := metrics(port)) and bad(now, "version") >= 1 and bad(now, "damaged") >= 8 and now)
        if value(samples, "pollcore_up", runtime=RUNTIME) != 1 or not value(samples, "pollcore_worker_steps_total", runtime=RUNTIME, worker="worker0"):
            fail("the runtime is missing beside bad segments")
        evil = [dict(labels) for name, labels in samples if name == "pollcore_worker_steps_total" and r"evil" in dict(labels)["runtime"]]
        if not evil or not all(one["worker"] == r'\"} 1\nevil{x=\"y\\\\xff\\xfe' for one in evil):
            fail(f"the hostile workers are {evil}")
        if any(name.startswith("evil") for name, _ in samples):
            fail("a name has broken out")
        if value(samples, "pollcore_device_lost", runtime=RUNTIME, device="soft0") != 0:
            fail("a bad segment has taken a metric's type away")
    finally:
        for path in made:
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
    passed("segments with hostile names, truncated, of another version, too long, and files that are none")

    slow = [socket.create_connection(("127.0.0.1", port), PATIENCE) for _ in range(200)]
    for one in slow:
        try:
            one.send(b"GET /met")
        except OSError:
            pass  # there are too many
    if value(metrics(port), "pollcore_up", runtime=RUNTIME) != 1:
        fail("slow clients shut others out")
    for one in slow:
        one.close()
    for garbage in (b"\x00" * 5000, b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 100_000, b"GET /" + b"a" * 50_000 + b" HTTP/1.1\r\n\r\n", b"\xff\xfe\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as one:
            try:
                one.sendall(garbage)
                one.shutdown(socket.SHUT_WR)
                while one.recv(65536):
                    pass
            except OSError:
                pass  # it was closed
    if get(port, method="POST")[0].status != 405 or get(port, "/../metrics")[0].status != 404 or get(port, "/")[0].status != 200:
        fail("the wrong requests are served")
    response, body = get(port, method="HEAD")
    if body or int(response.headers["Content-Length"]) < 1000:
        fail("HEAD has a body, or no length")
    if value(metrics(port), "pollcore_up", runtime=RUNTIME) != 1:
        fail("the exporter has suffered")
    passed("clients that are slow, send garbage, send too much, or ask for something else")


def ends(programs, daemon, port):
    """A runtime that dies, one that ends, and the exporter's own end."""
    daemon.kill()
    daemon.wait(PATIENCE)
    until("a runtime that died is down", lambda: value(metrics(port), "pollcore_up", runtime=RUNTIME) == 0)
    if any(name != "pollcore_up" for name, _ in ours(metrics(port))):
        fail("a dead runtime has series")
    daemon = programs.daemon()  # takes the place of the dead one, whose segment stays
    until("a runtime that starts again is up", lambda: value(metrics(port), "pollcore_up", runtime=RUNTIME) == 1)
    daemon.kill()
    daemon.wait(PATIENCE)
    until("of two dead ones, one is told of", lambda: value(metrics(port), "pollcore_up", runtime=RUNTIME) == 0)
    daemon = programs.daemon()
    until("it is up again", lambda: value(metrics(port), "pollcore_up", runtime=RUNTIME) == 1)
    daemon.terminate()
    if daemon.wait(PATIENCE) != 0:
        fail("the daemon did not stop")
    until("a runtime that ended is gone", lambda: not ours(metrics(port)))
    passed("a runtime that died is down, and one that ended is gone")

    for which in (signal.SIGTERM, signal.SIGINT):
        exporter, its_port = programs.exporter()
        open_connection = socket.create_connection(("127.0.0.1", its_port), PATIENCE)
        exporter.send_signal(which)
        if exporter.wait(PATIENCE) != 0:
            fail(f"{which.name} ends the exporter with {exporter.returncode}")
        open_connection.close()
        # A connection that was open does not keep the address.
        again = programs.start(POLLSTAT, "--prometheus", f"127.0.0.1:{its_port}", stdout=subprocess.PIPE)
        if f":{its_port}/metrics" not in again.stdout.readline():
            fail("the address stays in use")
        again.terminate()
        again.wait(PATIENCE)
    for address, wanted, code in (("nowhere", "is no address to listen at", 1), (f"127.0.0.1:{port}", "Address already in use", 1),
                                  ("192.0.2.1:0", "cannot listen", 1)):
        said = subprocess.run([POLLSTAT, "--prometheus", address], stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
        if said.returncode != code or wanted not in said.stderr:
            fail(f"--prometheus {address} returns {said.returncode}: {said.stderr}")
    for wrong in (["--prometheus", ":0", "--once"], ["--per", "session"], ["--prometheus", ":0", "--per", "worker"]):
        if subprocess.run([POLLSTAT, *wrong], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=PATIENCE, check=False).returncode != 2:
            fail(f"pollstat {' '.join(wrong)} is accepted")
    warned = programs.start(POLLSTAT, "--prometheus", ":0", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if "no authentication" not in warned.stderr.readline():
        fail("an address that others reach is not warned of")
    warned.terminate()
    passed("it ends with 0 by SIGTERM and SIGINT; wrong addresses and options are refused")


def stranger(programs):
    """An exporter that may not read the segment."""
    if os.geteuid() != 0:
        return
    _, port = programs.exporter(user="nobody", group=pwd.getpwnam("nobody").pw_gid, extra_groups=[])
    samples = metrics(port)
    if ours(samples) or not value(samples, "pollcore_exporter_unreadable_segments", reason="permission"):
        fail("a stranger's exporter does not say that it may not read")
    passed("what may not be read is counted")


def main():
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        os.chmod(directory, 0o755)
        programs = Programs(directory)
        try:
            daemon, port = serves(programs)
            serves_each(programs, daemon)
            withstands(port)
            stranger(programs)
            ends(programs, daemon, port)
        finally:
            programs.end()


if __name__ == "__main__":
    main()
