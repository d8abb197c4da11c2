#!/usr/bin/python3
"""Tests pollstat --prometheus beside a pollcored with traffic, with promtool and, if asked for, with a Prometheus that evaluates the dashboard.

usage: tests/system/prometheus.py [--whole]        (POLLCORE_BUILD: the build directory)

--whole runs a Prometheus that reads the metrics, and evaluates every query of config/grafana-dashboard.json.
"""
import http.client
import json
import os
import pathlib
import pwd
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "config/grafana-dashboard.json"
BUILD = pathlib.Path(os.environ["POLLCORE_BUILD"])
POLLCORED, POLLSTAT = (BUILD / "apps" / name / name for name in ("pollcored", "pollstat"))
ATTACHED_LOAD = BUILD / "tests/attached-load"
SHARED_MEMORY = pathlib.Path("/dev/shm")
RUNTIME = "prometheus-test"
PATIENCE = 60  # seconds; ends a test that hangs

CONFIG = """
[runtime]
share_cores = true
[statistics]
name = "{runtime}"
[[device]]
name = "soft0"
kind = "soft"
[[worker]]
name = "worker0"
core = {core}
idle = "yield"
[attach]
path = "{directory}/attach.sock"
[[service]]
name = "echo"
kind = "echo"
device = "soft0"
worker = "worker0"
address = "echo"
"""


def fail(what):
    print(f"FAIL: {what}")
    sys.exit(1)


def passed(what):
    print(f"passed: {what}")


def until(what, holds):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = holds()
        if found:
            return found
        time.sleep(0.1)
    fail(f"{what}: not within {PATIENCE} s")


class Programs:
    """Programs that run beside the test. They end with it."""

    def __init__(self, directory):
        self.directory = directory
        self.config = directory / "pollcored.toml"
        self.config.write_text(CONFIG.format(runtime=RUNTIME, core=max(os.sched_getaffinity(0)), directory=directory))
        self.all = []

    def start(self, *command, **options):
        program = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *map(str, command)], text=True, **options)
        self.all.append(program)
        return program

    def daemon(self):
        daemon = self.start(POLLCORED, "--config", self.config, stderr=subprocess.PIPE)
        said = ""
        for line in daemon.stderr:
            said += line
            if "ready:" in line:
                return daemon
        fail(f"pollcored did not start: {said}")

    def traffic(self):
        """A process whose requests worker0 serves."""
        return self.start(ATTACHED_LOAD, "load", self.directory / "attach.sock", 1, stdout=subprocess.DEVNULL)

    def exporter(self, *arguments, **options):
        """Returns the program and its port."""
        exporter = self.start(POLLSTAT, *arguments, "--prometheus", "127.0.0.1:0", stdout=subprocess.PIPE, **options)
        line = exporter.stdout.readline()
        found = re.fullmatch(r"metrics: http://127\.0\.0\.1:(\d+)/metrics\n", line)
        if not found:
            fail(f"the exporter says {line!r}")
        return exporter, int(found[1])

    def end(self):
        for program in self.all:
            if program.poll() is None:
                program.terminate()  # a daemon that is killed leaves its segment
        for program in self.all:
            try:
                program.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()


def get(port, path="/metrics", method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request(method, path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


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


def process_start(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def segment(name, tables, version=1, lie=0):
    """A statistics segment (pollcore/statistics.hpp). Tables: [(name, [(field, kind, unit, bytes)], [row])]. It is longer by `lie` than it is."""
    header_bytes, table_bytes, field_bytes = 152, 64, 56
    fields = [field for _, its, _ in tables for field in its]
    rows_at = header_bytes + table_bytes * len(tables) + field_bytes * len(fields)
    body, described, first_field = b"", b"", 0
    for table, its, rows in tables:
        row_bytes = 8 + sum(size for *_, size in its)
        described += struct.pack("<32sQIIIIII", table, rows_at + len(body), row_bytes, len(rows), len(rows), first_field, len(its), 0)
        first_field += len(its)
        body += b"".join(struct.pack("<Q", 2) + b"".join(part.ljust(size, b"\0")[:size] for part, (*_, size) in zip(row, its)) for row in rows)
    places = b""
    for _, its, _ in tables:
        at = 8
        for field, kind, unit, size in its:
            places += struct.pack("<48sBBHI", field, kind, unit, size if kind == 4 else size // 8, at)
            at += size
    header = struct.pack("<8sIIQIIIIQIIQQQQ64s", b"pollstat", version, header_bytes, rows_at + len(body) + lie, len(tables), table_bytes, len(fields), field_bytes,
                         1_000_000_000, os.getpid(), os.geteuid(), process_start(os.getpid()), 1, 1, 1, name)
    return header + described + places + body


def hostile_segments():
    """Files that anybody may put into /dev/shm."""
    evil = b'"} 1\nevil{x="y\\'
    number = (1).to_bytes(8, "little")
    most = b"\xff" * 8
    worker = [(b"worker", 1, 0, 8), (b"name", 4, 0, 32), (b"steps", 2, 0, 8), (evil, 3, 0, 8), (b"longest_step", 3, 1, 8), (b"wake_up", 5, 1, 320),
              (b"le", 1, 0, 8), (b"runtime", 1, 0, 8), (b"text", 4, 0, 8)]
    row = [number, evil + b"\xff\xfe", most, most, most, most * 40, number, number, b"\x00\x01\x02"]
    # A metric with another type than the daemons'.
    device = [(b"device", 1, 0, 8), (b"name", 4, 0, 8), (b"lost", 2, 0, 8), (b"info", 3, 0, 8)]
    whole = segment(evil + b"\xc3", [(b"worker", worker, [row, row]), (b"device", device, [[number, b"\xc0\xaf", number, number]]), (evil, device, [])])
    prefix = f"pollcore-hostile{os.getpid()}-"
    return {f"{prefix}names.statistics": whole,
            os.fsdecode(prefix.encode() + b'na\nme"\xff.statistics'): whole,
            f"{prefix}empty.statistics": b"",
            f"{prefix}short.statistics": whole[:-100],
            f"{prefix}header.statistics": whole[:70],
            f"{prefix}version.statistics": segment(b"later", [], version=2),
            f"{prefix}lie.statistics": segment(b"lie", [(b"worker", worker, [row])], lie=1 << 40),
            f"{prefix}garbage.statistics": bytes((i * 7919) % 251 for i in range(100_000))}


def withstands(port):
    """Hostile segments beside the runtime's, and hostile clients."""
    before = metrics(port)
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
        samples = until("the bad segments are counted", lambda: (now := metrics(port)) and bad(now, "version") > bad(before, "version") and now)
        if bad(samples, "damaged") < bad(before, "damaged") + 8:
            fail(f"of 8 damaged segments {bad(samples, 'damaged') - bad(before, 'damaged')} are counted")
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
    daemon = programs.daemon()  # removes the segment of the dead one
    until("a runtime that starts again is up", lambda: value(metrics(port), "pollcore_up", runtime=RUNTIME) == 1)
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


def panels():
    """The dashboard's panels with queries, after checks of its structure."""
    dashboard = json.loads(DASHBOARD.read_text())
    if dashboard["schemaVersion"] < 36 or not dashboard["title"] or not dashboard["uid"]:
        fail("the dashboard is for no Grafana of today")
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    if variables["datasource"]["type"] != "datasource" or not {"instance", "runtime"} <= set(variables):
        fail(f"the dashboard's variables are {set(variables)}")
    numbers = [panel["id"] for panel in dashboard["panels"]]
    if len(numbers) != len(set(numbers)):
        fail("two panels have the same number")
    taken = set()
    with_queries = []
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        if taken & cells or place["x"] + place["w"] > 24:
            fail(f"{panel['title']} lies on another panel")
        taken |= cells
        if panel["type"] == "row":
            continue
        if panel["datasource"]["uid"] != "${datasource}" or not panel["targets"]:
            fail(f"{panel['title']} has no query, or a data source of its own")
        if len({target["refId"] for target in panel["targets"]}) != len(panel["targets"]):
            fail(f"{panel['title']} has two queries of one name")
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            if used - set(variables) or "instance" not in used:
                fail(f"{panel['title']} uses the variables {used}")
        with_queries.append(panel)
    passed(f"the dashboard has {len(with_queries)} panels, each with queries of its data source")
    return with_queries, [variables[name]["query"]["query"] for name in ("instance", "runtime")]


# Queries whose result is 0/0 in this test, and why.
NOT_A_NUMBER = {"Time to wake up": "the worker does not sleep"}


def evaluates(programs):
    """A Prometheus reads the metrics, and evaluates each query of the dashboard."""
    programs.daemon()
    programs.traffic()
    _, port = programs.exporter("--per", "session,queue_pair")
    _, sums_port = programs.exporter()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        prometheus_port = free.getsockname()[1]
    config = programs.directory / "prometheus.yml"
    config.write_text("global: {scrape_interval: 1s}\nscrape_configs:\n"
                      f"- {{job_name: pollcore, static_configs: [{{targets: ['127.0.0.1:{port}', '127.0.0.1:{sums_port}']}}]}}\n")
    log = (programs.directory / "prometheus.log").open("w")
    programs.start("prometheus", f"--config.file={config}", f"--storage.tsdb.path={programs.directory / 'tsdb'}",
                   f"--web.listen-address=127.0.0.1:{prometheus_port}", stdout=log, stderr=log)

    def ask(path, **parameters):
        try:
            response, body = get(prometheus_port, f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        except OSError:
            return None  # it is starting
        answer = json.loads(body) if response.status in (200, 400, 422) else {"status": str(response.status)}
        if answer["status"] != "success":
            if response.status == 503:
                return None
            fail(f"{parameters}: {answer}")
        return answer["data"]
    until("Prometheus has read the metrics several times",
          lambda: (found := ask("query", query=f'count_over_time(pollcore_up{{runtime="{RUNTIME}"}}[1m])')) and len(found["result"]) == 2 and
          all(int(one["value"][1]) >= 5 for one in found["result"]))
    targets = ask("targets")["activeTargets"]
    if [one["lastError"] for one in targets] != ["", ""]:
        fail(f"Prometheus reads the metrics with errors: {[one['lastError'] for one in targets]}")
    with_queries, of_variables = panels()
    for query in of_variables:
        selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", query).groups()
        found = ask(f"label/{label}/values", **{"match[]": selector.replace("$instance", ".*")})
        if not found or (label == "runtime" and RUNTIME not in found):
            fail(f"{query} gives {found}")
    asked = 0
    for panel in with_queries:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "10s").replace("$instance", ".*").replace("$runtime", RUNTIME)

            def result():
                found = ask("query", query=query)["result"]
                good = [one for one in found if one["value"][1] not in ("NaN", "+Inf", "-Inf")]
                return good or (found if panel["title"] in NOT_A_NUMBER else None)
            until(f"{panel['title']}: {query} has a result", result)
            asked += 1
    passed(f"Prometheus evaluates the dashboard: each of {asked} queries has a result")


def main():
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        os.chmod(directory, 0o755)
        programs = Programs(directory)
        try:
            if sys.argv[1:] == ["--whole"]:
                evaluates(programs)
                return
            panels()
            daemon, port = serves(programs)
            serves_each(programs, daemon)
            withstands(port)
            stranger(programs)
            ends(programs, daemon, port)
        finally:
            programs.end()


if __name__ == "__main__":
    main()
