"""The verbs programs that pollcore-run is tested with. The table in apps/pollcore-run/README.md is made from this list."""
import dataclasses
import os
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


BOTH = ("server", "client")
ALL_WAYS = (BOTH, ("server",), ("client",))


@dataclasses.dataclass
class Program:
    """A program with two ends."""
    words: list
    check: typing.Callable
    package: str
    on_rxe: tuple = ()  # which ends are served there, run by run
    on_model: bool = False
    attempts: int = 1

    @property
    def name(self):
        return " ".join(self.words)

    def command(self, device, port, address):
        words = [*self.words]
        if self.words[0] == "rping":
            words += ["-p", port, "-a", os.environ["POLLCORE_RXE_ADDRESS"], "-c" if address else "-s"]
            return words
        words += ["-d", device, "-p", port]
        gid = os.environ.get("POLLCORE_SERVED_GID", "0")
        if self.words[0].startswith("ibv_"):
            words += ["-g", gid]
        elif "-R" not in self.words:
            words += ["-x", gid]
        return words + ([address] if address else [])


def pingpong(text, **more):
    return Program(text.split() + ["-n", "100", "-c"], iterations_done, "ibverbs-utils", **more)


def perftest(text, iterations=100, **more):
    return Program(text.split() + ["-n", str(iterations), "-F"], result_line, "perftest", **more)


# Programs that exchange their addresses by TCP.
ON_ALL = [
    pingpong("ibv_rc_pingpong", on_model=True, on_rxe=ALL_WAYS),
    pingpong("ibv_rc_pingpong -e", on_model=True, on_rxe=(BOTH,)),
    pingpong("ibv_rc_pingpong -N"),
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
    perftest("ib_write_bw -s 4096 -c UC"),
    perftest("ib_read_bw -s 4096"),
    perftest("ib_atomic_bw"),
]

# Programs of librdmacm, which need the kernel's connection manager and so a device of the kernel.
ON_KERNEL = [
    Program("rping -C 20 -V -v".split(), data_verified, "rdmacm-utils", on_rxe=ALL_WAYS),
    # The client of perftest connects twice. The second time it may be there before the server listens again, and then it crashes. A served
    # server is slower, so that this happens more often.
    perftest("ib_send_lat -R", on_rxe=(("client",),), attempts=8),
    perftest("ib_write_bw -R -s 4096", on_rxe=(("client",),), attempts=8),
]


@dataclasses.dataclass
class Single:
    """A program with one end."""
    words: list
    check: typing.Callable
    package: str

    @property
    def name(self):
        return " ".join(self.words)


def names_the_device(name, said):
    if "soft0" not in said:
        fail(f"{name} does not name the device: {said}")


SINGLE = [
    Single(["ibv_devices"], names_the_device, "ibverbs-utils"),
    Single(["ibv_devinfo", "-v"], names_the_device, "ibverbs-utils"),
]


def ways(program):
    """Which ends were served on Soft-RoCE."""
    if not program.on_rxe:
        return "not run"
    return {(BOTH,): "works", ALL_WAYS: "works, also with a native peer", (("client",),): "works as client of a native server"}[tuple(program.on_rxe)]


def table():
    """The table of programs for the README."""
    lines = ["| program | package | software device | libmlx5 on the model | Soft-RoCE |", "|---|---|---|---|---|"]
    for one in SINGLE:
        lines.append(f"| `{one.name}` | {one.package} | works | not run | not run |")
    for one in ON_ALL + ON_KERNEL:
        needs_kernel = one in ON_KERNEL
        soft = "needs a device of the kernel" if needs_kernel else "works"
        model = "needs a device of the kernel" if needs_kernel else "works" if one.on_model else "not run"
        lines.append(f"| `{one.name}` | {one.package} | {soft} | {model} | {ways(one)} |")
    return "\n".join(lines) + "\n"
