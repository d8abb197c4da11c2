#!/usr/bin/python3
"""Tests pollcore-run: verbs programs, as the distribution has them, run over a pollcored.

usage: tests/system/verbs_programs.py          on a software device        (POLLCORE_BUILD: the build directory)
       tests/system/verbs_programs.py --mlx5   on libmlx5 and the model of its HCA
       tests/system/verbs_programs.py --rxe    on Soft-RoCE in the guest of scripts/rxe-vm: served ends, and a served end with a native one
       tests/system/verbs_programs.py --table  prints the table of programs for apps/pollcore-run/README.md

Nothing here judges a figure that a program has measured.
"""
import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from beside_daemon import BUILD, PATIENCE, fail, passed, start, start_daemon, until
from served_programs import BOTH, ON_ALL, ON_KERNEL, SINGLE, table

RUN = BUILD / "apps" / "pollcore-run" / "pollcore-run"
README = pathlib.Path(__file__).resolve().parents[2] / "apps" / "pollcore-run" / "README.md"
CONFIG = """
[runtime]
share_cores = true
[memory]
size = "128MiB"
[[device]]
name = "{name}"
{device}
[[worker]]
name = "w"
core = {core}
idle = "yield"
[attach]
path = "{directory}/attach.sock"
own_memory = "{own_memory}"
"""


@contextlib.contextmanager
def daemon(device, name="nic0", own_memory="on", log=None, **options):
    """A pollcored with this device. Yields its socket. Its log is checked at the end, and handed to `log`."""
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "d.toml"
        core = max(os.sched_getaffinity(0))
        config.write_text(CONFIG.format(name=name, device=device, core=core, directory=folder, own_memory=own_memory))
        process, said = start_daemon(config, **options)
        try:
            yield f"{folder}/attach.sock"
        finally:
            process.send_signal(signal.SIGTERM)
            said += process.stderr.read()
            code = process.wait(timeout=PATIENCE)
        counts = re.search(r"attached since the start: (\d+) process(?:es)?; (\d+) detached, (\d+) died or hung up, (\d+) were ended", said)
        if code != 0 or not counts or counts[4] != "0":
            fail(f"pollcored returned {code}: {said}")
        if log is not None:
            log.append((said, int(counts[1]), int(counts[3])))


def served(socket, command, *options):
    """The command that runs `command` over the daemon."""
    return [RUN, "--socket", socket, *options, *command]


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


def pair(name, server, client, check, attempts):
    """Runs both ends of a program. Each is a function that makes the command for a port. `check` gets the outputs."""
    for attempt in range(attempts):
        failure = try_pair(name, server, client, check)
        if failure is None:
            return
        print(f"attempt {attempt + 1} of {attempts}: {failure}")
    fail(name)


def try_pair(name, server, client, check):
    """Returns what went wrong, or None."""
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


def all_pairs(programs, device, socket, address, sides_of):
    for program in programs:
        sides = sides_of(program)
        for side in sides:
            ends = []
            for end in ("server", "client"):
                def command(port, end=end):
                    words = program.command(device, port, None if end == "server" else address)
                    return served(socket, words) if end in side else words
                ends.append(command)
            pair(program.name, *ends, program.check, program.attempts)
        passed(f"{program.name} ({', '.join(' and '.join(side) + ' served' for side in sides)})")


def the_readme_has_the_table():
    if table() not in README.read_text():
        fail(f"{README} has another table than `verbs_programs.py --table` prints")
    passed("the README has the table of programs")


def output_of(command, code=0, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=PATIENCE, **options)
    if done.returncode != code:
        fail(f"{' '.join(map(str, command))} returned {done.returncode}, not {code}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def expect(what, text, *wanted):
    for one in wanted:
        if one not in text:
            fail(f"{what}: no '{one}' in: {text}")


def says_what_is_missing():
    expect("without a daemon", output_of(served("/nowhere/a.sock", ["ibv_devices"]), 125), "/nowhere/a.sock", "start pollcored")
    expect("without a program", output_of([RUN, "--socket", "/nowhere/a.sock", "no-such-program"], 127), "no-such-program")
    with daemon('kind = "soft"') as socket:
        expect("a program that is there and cannot run", output_of(served(socket, ["/etc/passwd"]), 126), "/etc/passwd")
        if output_of(served(socket, ["sh", "-c", "exit 7"]), 7):
            fail("pollcore-run says something of a program that succeeds")
    passed("pollcore-run says what is missing, and ends as the program does")


def checks_programs():
    said = output_of([RUN, "--check", "ib_send_lat"])
    expect("--check ib_send_lat", said, "served by pollcored", "ibv_create_qp", "passed on to rdma-core", "rdma_connect", "mlx5dv_create_qp")
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "own.c"
        source.write_text('extern int mlx5dv_init_obj(void*, unsigned long long); int main(void) { return mlx5dv_init_obj(0, 0); }\n')
        program = pathlib.Path(folder) / "own"
        output_of(["cc", source, "-o", program, "-lmlx5"])
        expect("--check of a program with mlx5dv", output_of([RUN, "--check", program]), "without them: 1", "mlx5dv_init_obj")
        source.write_text("int main(void) { return 0; }\n")
        output_of(["cc", "-static", source, "-o", program])
        expect("--check of a static program", output_of([RUN, "--check", program], 1), "statically")
    passed("--check says what is served, passed on and impossible")


def single_programs(socket):
    for program in SINGLE:
        program.check(program.name, output_of(served(socket, program.words)))
        passed(program.name)


def verbs_tests(device, socket=None, without=""):
    """Runs tests/served on the device: over the daemon, or natively."""
    alone = "BeforeAnyDevice.*"  # in a process that has opened no device yet
    programs = [[BUILD / "tests" / "verbs-tests", f"--gtest_filter={which}"] for which in (alone, f"-{alone}:{without}")]
    environment = {**os.environ, "POLLCORE_TEST_VERBS": device, "POLLCORE_TEST_GID": os.environ.get("POLLCORE_SERVED_GID", "0")}
    total = 0
    for command in programs:
        said = output_of(served(socket, command) if socket else command, env=environment)
        count = re.search(r"\[  PASSED  \] (\d+) test", said)
        if not count:
            fail(f"verbs-tests: {said}")
        total += int(count[1])
    passed(f"verbs-tests {'served' if socket else 'natively'}: {total}")


def on_software_device():
    the_readme_has_the_table()
    says_what_is_missing()
    checks_programs()
    logs = []
    with daemon('kind = "soft"', name="soft0", log=logs) as socket:
        single_programs(socket)
        verbs_tests("soft0", socket)
        all_pairs(ON_ALL, "soft0", socket, "localhost", lambda program: [BOTH])
    said, attached, died = logs[0]
    # pollcore-run attaches to see whether it may, and then the program does.
    # Two children of verbs-tests attach, and end by _exit(2).
    if attached < 4 * len(ON_ALL) or died != 2:
        fail(f"{attached} processes attached, and {died} died: {said}")
    passed(f"{attached} processes have attached, and all but two have detached")


def on_model():
    model = BUILD / "tests" / "mlx5_model" / "mlx5-model.so"
    environment = {**os.environ, "LD_PRELOAD": str(model), "MLX5_MODEL": "thread"}
    with daemon('kind = "verbs"\nverbs_name = "mlx5_0"\ngid = "127.0.0.1"', env=environment) as socket:
        verbs_tests("mlx5_0", socket)
        programs = [program for program in ON_ALL if program.on_model]
        all_pairs(programs, "mlx5_0", socket, "localhost", lambda program: [BOTH])


def gid_index(device, address):
    wanted = "0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x" % tuple(map(int, address.split(".")))
    for path in sorted(pathlib.Path(f"/sys/class/infiniband/{device}/ports/1/gids").glob("*"), key=lambda one: int(one.name)):
        if path.read_text().strip() == wanted:
            return path.name
    fail(f"{device} has no GID of {address}")


def on_rxe():
    device, address = os.environ["POLLCORE_RXE_DEVICE"], os.environ["POLLCORE_RXE_ADDRESS"]
    os.environ["POLLCORE_SERVED_GID"] = gid_index(device, address)
    # The provider of Soft-RoCE in rdma-core 44 fails requests that are built by ibv_wr_start(), with IBV_WC_LOC_QP_OP_ERR.
    verbs_tests(device, without="*RequestsCanBeBuilt*")
    config = f'kind = "verbs"\nverbs_name = "{device}"\ngid = "{address}"'
    with daemon(config, own_memory="off") as socket:
        expect("without own_memory", output_of(served(socket, ["ibv_devices"]), 125), 'own_memory = ["root"]', "operator")
        passed("with own_memory off, pollcore-run names the key")
    with daemon(config) as socket:
        listed = output_of(served(socket, ["ibv_devices"]))
        if listed.count(device) != 1 or os.environ["POLLCORE_RXE_PEER"] not in listed:
            fail(f"the devices are {listed}")
        expect("--beside", output_of(served(socket, ["ibv_devices"], "--beside")), "pollcore-nic0", f" {device} ")
        passed("a served device takes the place of the kernel's; others stay")
        verbs_tests(device, socket)
        all_pairs([one for one in ON_ALL + ON_KERNEL if one.on_rxe], device, socket, address, lambda program: program.on_rxe)


def main():
    if sys.argv[1:] == ["--rxe"]:
        on_rxe()
    elif sys.argv[1:] == ["--mlx5"]:
        on_model()
    elif sys.argv[1:] == ["--table"]:
        print(table(), end="")
    else:
        on_software_device()


main()
