"""The verbs programs that pollcore-run is tested with. The table in apps/pollcore-run/README.md is made from this list."""
import dataclasses
import os
import re
import shlex
import typing


def fail(what):
    raise SystemExit(f"FAIL: {what}")


def iterations_done(name, said):
    """The pingpong programs end with a line on the iterations that they have done."""
    for text in said:
        if "iters in" not in text:
            fail(f"{name} did no iterations: {text}")


def result_line(name, said):
    """The client of perftest prints a line of figures that begins with the size of a message."""
    if not any(line.split() and line.split()[0].isdigit() and len(line.split()) >= 4 for line in said[1].splitlines()):
        fail(f"{name} printed no result: {said[1]}")


def data_verified(name, said):
    """rping -V compares what comes back, and says so only when it differs."""
    for text in said:
        if "mismatch" in text or "error" in text.lower():
            fail(f"{name}: {text}")


def all_acknowledged(name, said):
    """fi_pingpong prints the bytes of a message, how many it has sent, and how many of them were acknowledged."""
    for text in said:
        if not re.search(r"^4k +100 +=100 ", text, re.MULTILINE):
            fail(f"{name}: not all messages were acknowledged: {text}")


def final_line(name, said):
    if "Final:" not in said[1]:
        fail(f"{name} printed no result: {said[1]}")


def qperf_results(name, said):
    """qperf prints the name of a test, and then its figures."""
    for test in (word for word in name.split() if word.startswith(("rc_", "uc_", "ud_", "ver_"))):
        if not re.search(rf"^{test}:\n +\w+ += +[1-9]", said[1], re.MULTILINE):
            fail(f"{name}: no figures of {test}: {said[1]}")


BOTH = ("server", "client")
ALL_WAYS = (BOTH, ("server",), ("client",))


def gid():
    return os.environ.get("POLLCORE_SERVED_GID", "0")


def pingpong_ends(words, device, port, address):
    return [*words, "-d", device, "-p", port, "-g", gid()] + ([address] if address else [])


def perftest_ends(words, device, port, address):
    way = [] if "-R" in words else ["-x", gid()]  # rdma_cm finds the GID itself
    return [*words, "-d", device, "-p", port, *way] + ([address] if address else [])


def rping_ends(words, device, port, address):
    return [*words, "-p", port, "-a", os.environ["POLLCORE_RXE_ADDRESS"], "-c" if address else "-s"]


def libfabric_ends(words, device, port, address):
    # With a domain fi_getinfo(3) of version 1.17 finds nothing for an address.
    domain = [] if "msg" in words else ["-d", f"{device}-dgram"]
    return [*words, *domain, *(["-P", port, address] if address else ["-B", port])]


def qperf_ends(words, device, port, address):
    """The server ends when the client asks for the test `quit`."""
    return ["qperf", address, "-lp", port, *words[1:], "quit"] if address else ["qperf", "-lp", port]


DEEP = "the worker needs `cq_depth = 65536`, since UCX posts thousands of receives"
UCX = ["UCX_TLS=rc_v,ud_v,self"]  # ends on one host would use shared memory


def ucx_ends(words, device, port, address):
    own = ["-d", f"{device}:1"] if "-x" in words else []  # UCT takes it from its options
    environment = [*UCX, f"UCX_NET_DEVICES={device}:1"]
    times = ["-n", "20" if "-s" in words else "200", "-w", "10"]
    return ["env", *environment, *words, *own, "-p", port, *times] + ([address] if address else [])


@dataclasses.dataclass
class Program:
    """A program with two ends."""
    words: list
    check: typing.Callable
    package: str
    ends: typing.Callable  # makes a command of the words, the device, the port, and for the client the server's address
    on_rxe: tuple = ()  # which ends are served there, run by run
    on_model: bool = False
    # A pattern of what try_pair() returns when the program has lost a race of its own, which it can lose natively, too. It is then run again.
    own_race: str = ""
    limit: str = ""  # for the table

    @property
    def name(self):
        return shlex.join(self.words)

    def command(self, device, port, address):
        return self.ends(self.words, device, port, address)


def pingpong(text, **more):
    return Program(text.split() + ["-n", "100", "-c"], iterations_done, "ibverbs-utils", pingpong_ends, **more)


def perftest(text, iterations=100, **more):
    return Program(text.split() + ["-n", str(iterations), "-F"], result_line, "perftest", perftest_ends, **more)


def libfabric(text, **more):
    return Program(f"fi_pingpong {text} -I 100 -S 4096 -c".split(), all_acknowledged, "libfabric-bin", libfabric_ends, **more)


def ucx(text, hooks=None, **more):
    environment = f"env UCX_MEM_MMAP_HOOK_MODE={hooks} " if hooks else ""
    return Program(f"{environment}ucx_perftest {text}".split(), final_line, "ucx-utils", ucx_ends, limit=DEEP, **more)


def qperf(text, **more):
    return Program(f"qperf {text}".split(), qperf_results, "qperf", qperf_ends, **more)


# Programs that exchange their addresses by TCP.
ON_ALL = [
    pingpong("ibv_rc_pingpong", on_model=True, on_rxe=ALL_WAYS),
    pingpong("ibv_rc_pingpong -e", on_model=True, on_rxe=(BOTH,)),
    pingpong("ibv_rc_pingpong -N"),
    pingpong("ibv_rc_pingpong -t"),
    pingpong("ibv_uc_pingpong"),
    pingpong("ibv_ud_pingpong", on_rxe=ALL_WAYS),
    pingpong("ibv_ud_pingpong -e"),
    pingpong("ibv_srq_pingpong", on_rxe=ALL_WAYS),
    pingpong("ibv_srq_pingpong -e"),
    perftest("ib_send_lat", on_model=True, on_rxe=ALL_WAYS),
    perftest("ib_send_lat -e", on_rxe=(BOTH,)),
    perftest("ib_send_lat -c UD"),
    perftest("ib_write_lat", on_model=True, on_rxe=(BOTH,)),
    perftest("ib_write_lat -c UC"),
    perftest("ib_read_lat", on_model=True, on_rxe=(BOTH,)),
    perftest("ib_atomic_lat", on_rxe=(BOTH,)),
    perftest("ib_atomic_lat -A CMP_AND_SWAP"),
    perftest("ib_send_bw -s 4096", on_model=True),
    perftest("ib_send_bw -s 4096 -e"),
    perftest("ib_send_bw -s 1024 -c UD"),
    perftest("ib_send_bw -s 1024 -c UC"),
    perftest("ib_send_bw -s 1024 -q 4 --use-srq", on_rxe=(BOTH,)),
    perftest("ib_send_bw -s 1024 -b"),
    perftest("ib_write_bw -s 4096 -q 8", on_model=True, on_rxe=ALL_WAYS),
    perftest("ib_write_bw -s 4096 -q 64"),
    perftest("ib_write_bw -s 4096 -c UC"),
    perftest("ib_read_bw -s 4096"),
    perftest("ib_atomic_bw"),
]

CONNECTS_TWICE = ("the client connects twice, and crashes if the server does not listen again in time; start both again then. In the guest this was one "
                  "run of eight with a served server, and one of sixty with a native one")
LISTENS_TOO_LATE = "RDMA_CM_EVENT_REJECTED; error: 8"  # nobody listens at this port
# The server of qperf 0.4.11 tells the client its port, and listens there only then.
TELLS_TOO_EARLY = "unexpected event from RDMA CM: Event rejected"
# Programs of librdmacm, which need the kernel's connection manager and so a device of the kernel.
ON_KERNEL = [
    Program("rping -C 20 -V -v".split(), data_verified, "rdmacm-utils", rping_ends, on_rxe=ALL_WAYS),
    libfabric("-p verbs -e msg", on_rxe=ALL_WAYS),
    qperf("-cm1 -t 1 rc_rdma_write_lat", on_rxe=(BOTH,), own_race=TELLS_TOO_EARLY),
    qperf("-cm1 -t 1 ver_rc_fetch_add", on_rxe=ALL_WAYS, own_race=TELLS_TOO_EARLY),
    perftest("ib_send_lat -R", on_rxe=ALL_WAYS, own_race=LISTENS_TOO_LATE, limit=CONNECTS_TWICE),
    perftest("ib_write_bw -R -s 4096", on_rxe=ALL_WAYS, own_race=LISTENS_TOO_LATE, limit=CONNECTS_TWICE),
]


# Engines that others build on. Verbs have no swap, so UCT has none over rc_verbs.
ENGINES = [
    *(ucx(f"-t {test}") for test in ("tag_lat", "tag_bw", "tag_sync_lat", "ucp_put_lat", "ucp_put_bw", "ucp_get", "ucp_add", "ucp_fadd", "ucp_swap",
                                     "ucp_cswap", "stream_lat", "stream_bw")),
    *(ucx(f"-x rc_verbs -t {test}") for test in ("am_lat", "am_bw -D zcopy", "put_lat", "put_bw -D bcopy", "get -D bcopy", "add_lat", "fadd", "cswap")),
    *(ucx(f"-x ud_verbs -t {test}") for test in ("am_lat", "am_bw")),
    # Rendezvous, for which UCX keeps regions registered until its hooks tell that their memory goes. On a software device registering moves it.
    ucx("-t tag_bw -s 4000000"),
    ucx("-t tag_bw -s 4000000", hooks="none"),
    libfabric("-p verbs;ofi_rxd -e rdm"),
]
# For a process that cannot open /dev/infiniband.
WITHOUT_DEVICE_FILES = [pingpong("ibv_rc_pingpong"), perftest("ib_write_bw -s 4096 -q 8"), ucx("-x rc_verbs -t am_lat")]


@dataclasses.dataclass
class Single:
    """A program with one end."""
    words: list
    check: typing.Callable
    package: str

    @property
    def name(self):
        return shlex.join(self.words)


def names_the_device(name, said):
    if "soft0" not in said:
        fail(f"{name} does not name the device: {said}")


SINGLE = [
    Single(["ibv_devices"], names_the_device, "ibverbs-utils"),
    Single(["ibv_devinfo", "-v"], names_the_device, "ibverbs-utils"),
]


@dataclasses.dataclass
class Cannot:
    """A program that cannot be served, and says why."""
    words: list
    package: str
    why: str  # for the table
    told: str  # a part of what it prints then
    ends: typing.Callable

    @property
    def name(self):
        return shlex.join(self.words)


def cannot(text, package, why, told, ends):
    return Cannot(text.split(), package, why, told, ends)


ONLY_TYPES = "only RC, UC and UD queue pairs are served"
CANNOT = [
    cannot("ibv_xsrq_pingpong", "ibverbs-utils", "XRC", "XRC is not served", pingpong_ends),
    cannot("ib_send_bw -c XRC", "perftest", "XRC", "XRC is not served", perftest_ends),
    cannot("ib_send_bw -c DC", "perftest", "DC, which needs mlx5dv", ONLY_TYPES, perftest_ends),
    cannot("raw_ethernet_lat --client -E 02:00:00:00:00:01 -B 02:00:00:00:00:02", "perftest", "raw packets", ONLY_TYPES,
           lambda words, device, port, address: [*words, "-d", device]),
    cannot("ibv_rc_pingpong -o", "ibverbs-utils", "on-demand paging", "isn't ODP capable", pingpong_ends),
    cannot("ibv_rc_pingpong -j", "ibverbs-utils", "device memory", "doesn't support dm allocation", pingpong_ends),
    cannot("ib_send_bw --odp", "perftest", "on-demand paging", "is not supported for RC transport", perftest_ends),
]


def ways(program):
    """Which ends were served on Soft-RoCE."""
    if not program.on_rxe:
        return "not run"
    return {(BOTH,): "works", ALL_WAYS: "works, also with a native peer"}[tuple(program.on_rxe)]


def table():
    """The tables of programs for the README."""
    lines = ["| works | package | software device | libmlx5 on the model | Soft-RoCE |", "|---|---|---|---|---|"]
    for one in SINGLE:
        lines.append(f"| `{one.name}` | {one.package} | works | not run | not run |")
    everywhere = ON_ALL + ENGINES
    for one in everywhere + ON_KERNEL:
        soft = "works" if one in everywhere else "needs a device of the kernel"
        model = soft if one in ON_KERNEL else "works" if one.on_model else "not run"
        lines.append(f"| `{one.name}` | {one.package} | {soft} | {model} | {ways(one)} |")
    hidden = ", ".join(f"`{one.name}`" for one in WITHOUT_DEVICE_FILES)
    lines += ["", f"On Soft-RoCE also in a mount namespace without `/dev/infiniband`: {hidden}.", "", "| works with limits | limit |", "|---|---|"]
    limits = {}
    for one in everywhere + ON_KERNEL:
        if one.limit:
            name = "ucx_perftest, and Open MPI over UCX" if one.limit == DEEP else f"`{one.name}`"
            limits.setdefault(one.limit, []).append(name)
    lines += [f"| {', '.join(dict.fromkeys(names))} | {limit} |" for limit, names in limits.items()]
    lines += ["", "| cannot | package | because this is not served | what it prints |", "|---|---|---|---|"]
    lines += [f"| `{one.name}` | {one.package} | {one.why} | ...{one.told}... |" for one in CANNOT]
    return "\n".join(lines) + "\n"
