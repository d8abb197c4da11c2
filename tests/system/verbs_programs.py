#!/usr/bin/python3
"""Tests pollcore-run: verbs programs, as the distribution has them, run over a pollcored.

usage: tests/system/verbs_programs.py          on a software device        (POLLCORE_BUILD: the build directory)
       tests/system/verbs_programs.py --mlx5   on libmlx5 and the model of its HCA
       tests/system/verbs_programs.py --rxe [PART]    on Soft-RoCE in the guest of scripts/rxe-vm: served ends, and a served end with a native
                                               one. With PART only the programs that have it in their command.
       tests/system/verbs_programs.py --sanitized    some programs, with the library of a build with the address sanitizer
       tests/system/verbs_programs.py --table  prints the table of programs for apps/pollcore-run/README.md

Nothing here judges a figure that a program has measured.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from beside_daemon import BUILD, PATIENCE, fail, passed, start, until
from served_daemon import RUN, daemon, gid_index, served
from served_pairs import all_pairs, listens
from served_programs import BOTH, CANNOT, ON_ALL, ON_KERNEL, SINGLE, WITHOUT_DEVICE_FILES, table

README = pathlib.Path(__file__).resolve().parents[2] / "apps" / "pollcore-run" / "README.md"


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


def programs_that_cannot(device, socket):
    for one in CANNOT:
        def ends(address, one=one):
            return served(socket, ["env", "POLLCORE_VERBS_LOG=all", *one.ends(one.words, device, 18699, address)])
        server = start(*ends(None), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        until(f"{one.name}: the server", lambda: listens(18699) or server.poll() is not None)
        client = subprocess.run([str(word) for word in ends("localhost")], capture_output=True, text=True, timeout=PATIENCE)
        said = client.stdout + client.stderr + server.communicate(timeout=PATIENCE)[0]
        if client.returncode <= 0 or server.returncode <= 0 or one.told not in said:
            fail(f"{one.name} ended with {client.returncode} and {server.returncode}: {said}")
        passed(f"{one.name} cannot be served, and says so")


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
    with daemon('kind = "soft"', name="soft0") as socket:
        programs_that_cannot("soft0", socket)


def on_model():
    model = BUILD / "tests" / "mlx5_model" / "mlx5-model.so"
    environment = {**os.environ, "LD_PRELOAD": str(model), "MLX5_MODEL": "thread"}
    with daemon('kind = "verbs"\nverbs_name = "mlx5_0"\ngid = "127.0.0.1"', env=environment) as socket:
        verbs_tests("mlx5_0", socket)
        programs = [program for program in ON_ALL if program.on_model]
        all_pairs(programs, "mlx5_0", socket, "localhost", lambda program: [BOTH])


def on_rxe(part=""):
    device, address = os.environ["POLLCORE_RXE_DEVICE"], os.environ["POLLCORE_RXE_ADDRESS"]
    os.environ["POLLCORE_SERVED_GID"] = gid_index(device, address)
    # Soft-RoCE looks for the memory of a shared receive queue's requests in the protection domain of the queue pair.
    cannot = "*ASharedReceiveQueueHasAProtectionDomainOfItsOwn*"
    # Natively, its provider in rdma-core 44 also fails requests that are built by ibv_wr_start(), with IBV_WC_LOC_QP_OP_ERR.
    verbs_tests(device, without=f"{cannot}:*RequestsCanBeBuilt*")
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
        verbs_tests(device, socket, without=cannot)
        all_pairs([one for one in ON_ALL + ON_KERNEL if one.on_rxe and part in one.name], device, socket, address, lambda program: program.on_rxe)
        hidden = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /dev/infiniband && exec "$@"', "sh"]
        if output_of([*hidden, "ibv_devices"]).count("rxe"):
            fail("the device files are not hidden")
        all_pairs([one for one in WITHOUT_DEVICE_FILES if part in one.name], device, socket, address, lambda program: [BOTH], hidden)
        passed("all that without /dev/infiniband")


def with_sanitizers():
    """The programs are not instrumented, so they must load the sanitizer's own library first."""
    library = BUILD / "apps" / "pollcore-run" / "libpollcore-verbs.so"
    expect("the library", output_of(["ldd", library]), "libasan")
    runtime = output_of(["g++", "-print-file-name=libasan.so"]).strip()
    some = ("ibv_rc_pingpong -e", "ibv_ud_pingpong -n", "ibv_srq_pingpong -n", "ib_send_lat -e", "ib_atomic_lat -n", "--use-srq", "-b ", "-q 8")
    with daemon('kind = "soft"', name="soft0") as socket:
        # The programs leave memory when they end.
        environment = ["env", f"LD_PRELOAD={runtime} {library}", f"POLLCORE_SOCKET={socket}", "ASAN_OPTIONS=detect_leaks=0"]
        programs = [one for one in ON_ALL if any(part in one.name for part in some)]
        all_pairs(programs, "soft0", socket, "localhost", lambda program: [()], environment)
    if len(programs) < len(some):
        fail(f"only {len(programs)} programs were run")


def main():
    if sys.argv[1:] == ["--sanitized"]:
        with_sanitizers()
    elif sys.argv[1:2] == ["--rxe"]:
        on_rxe(*sys.argv[2:])
    elif sys.argv[1:] == ["--mlx5"]:
        on_model()
    elif sys.argv[1:] == ["--table"]:
        print(table(), end="")
    else:
        on_software_device()


main()
