"""What the tests have in common that run programs with pollcore-run: the daemon, and the command."""
import contextlib
import os
import pathlib
import re
import signal
import tempfile

from beside_daemon import BUILD, PATIENCE, fail, start_daemon

RUN = BUILD / "apps" / "pollcore-run" / "pollcore-run"
# UCX has shared receive queues of 4096 receives, whose completion queue needs room for all of them and for the sends: cq_depth.
CONFIG = """
[runtime]
share_cores = true
[memory]
size = "256MiB"
[[device]]
name = "{name}"
{device}
[[worker]]
name = "w"
core = {core}
idle = "yield"
cq_depth = 65536
[attach]
path = "{directory}/attach.sock"
own_memory = "{own_memory}"
"""


@contextlib.contextmanager
def daemon_process(device, name="nic0", own_memory="on", log=None, **options):
    """A pollcored with this device. Yields its socket and its process. Its log is checked at the end, and handed to `log`."""
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "d.toml"
        core = max(os.sched_getaffinity(0))
        config.write_text(CONFIG.format(name=name, device=device, core=core, directory=folder, own_memory=own_memory))
        process, said = start_daemon(config, **options)
        try:
            yield f"{folder}/attach.sock", process
        finally:
            process.send_signal(signal.SIGTERM)
            said += process.stderr.read()
            code = process.wait(timeout=PATIENCE)
        counts = re.search(r"attached since the start: (\d+) process(?:es)?; (\d+) detached, (\d+) died or hung up, (\d+) were ended", said)
        if code != 0 or not counts or counts[4] != "0":
            fail(f"pollcored returned {code}: {said}")
        if log is not None:
            log.append((said, int(counts[1]), int(counts[3])))


@contextlib.contextmanager
def daemon(device, **options):
    """As daemon_process(), but yields the socket only."""
    with daemon_process(device, **options) as (socket, _):
        yield socket


def served(socket, command, *options):
    """The command that runs `command` over the daemon."""
    return [RUN, "--socket", socket, *options, *command]


def gid_index(device, address):
    wanted = "0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x" % tuple(map(int, address.split(".")))
    for path in sorted(pathlib.Path(f"/sys/class/infiniband/{device}/ports/1/gids").glob("*"), key=lambda one: int(one.name)):
        if path.read_text().strip() == wanted:
            return path.name
    fail(f"{device} has no GID of {address}")
