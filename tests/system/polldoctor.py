#!/usr/bin/python3
"""Tests polldoctor on the machine at hand: what it prints, that it changes nothing, that it leaves the core of a running worker alone, and its
bundle of a killed daemon. Tests host-tune, which runs nothing.

usage: tests/system/polldoctor.py        (POLLCORE_BUILD: the build directory)
"""
import hashlib
import json
import os
import pathlib
import pwd
import re
import stat
import subprocess
import sys
import tarfile
import tempfile

sys.dont_write_bytecode = True
from beside_daemon import PATIENCE, fail, passed, program, start_daemon

ROOT = pathlib.Path(__file__).resolve().parents[2]
POLLDOCTOR = program("polldoctor")
OK, WARNINGS, USAGE, FAULTS, FAILED = range(5)  # exit codes

CONFIG = """
[runtime]
lock_directory = "{directory}/locks"
[statistics]
name = "under-test"
[[device]]
name = "soft0"
kind = "soft"
[[worker]]
name = "worker0"
core = {core}
idle = "yield"
[attach]
path = "{directory}/attach.sock"
"""
# Files that somebody who tunes a host would write.
SETTINGS = ("proc/sys/kernel/*", "proc/sys/vm/*", "proc/irq/*/smp_affinity", "sys/devices/system/cpu/cpu*/online",
            "sys/devices/system/cpu/cpu*/cpufreq/scaling_governor", "sys/devices/system/cpu/cpu*/cpuidle/state*/disable",
            "sys/kernel/mm/transparent_hugepage/*", "sys/devices/virtual/workqueue/*", "sys/class/net/*/mtu",
            "sys/devices/system/clocksource/clocksource0/current_clocksource", "sys/fs/cgroup/cpu.max")
# Files among them that change by themselves.
LIVELY = {"random", "ns_last_pid", "stat_refresh", "tainted", "pty"}


def run(*command, user=None, environment=None):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, user=user, env=environment,
                          group=None if user is None else pwd.getpwnam(user).pw_gid, extra_groups=None if user is None else [])


def doctor(*arguments, codes=(OK, WARNINGS, FAULTS), user=None):
    done = run(POLLDOCTOR, *arguments, user=user)
    if done.returncode not in codes:
        fail(f"polldoctor {' '.join(map(str, arguments))} returned {done.returncode}: {done.stdout[-2000:]}{done.stderr}")
    return done


def judged(*arguments, **options):
    done = doctor("--json", *arguments, **options)
    report = json.loads(done.stdout)
    by_severity = {"ok": OK, "note": OK, "warning": WARNINGS, "fault": FAULTS}
    if done.returncode != by_severity[report["severity"]]:
        fail(f"it returned {done.returncode}, and the worst finding is a {report['severity']}")
    return report


def of(report, check):
    return [finding for finding in report["findings"] if finding["id"] == check]


def settings():
    """A hash of each setting that can be read."""
    found = {}
    for pattern in SETTINGS:
        for file in pathlib.Path("/").glob(pattern):
            if file.name not in LIVELY and file.is_file():
                try:
                    found[str(file)] = hashlib.sha256(file.read_bytes()).hexdigest()
                except OSError:
                    continue
    return found


def check_report(report):
    """Checks that the JSON has all that a finding promises."""
    ids = [check["id"] for check in report["checks"]]
    found = {finding["id"] for finding in report["findings"]}
    if len(ids) < 40 or set(ids) != found:
        fail(f"{len(ids)} checks; without a finding: {set(ids) - found}, unknown: {found - set(ids)}")
    for finding in report["findings"]:
        if finding["severity"] not in ("ok", "note", "warning", "fault") or finding["certainty"] not in ("sure", "guess") or not finding["seen"]:
            fail(f"a finding is not complete: {finding}")
        if finding["severity"] in ("warning", "fault") and not (finding["cost"]["text"] and finding["mend"]["text"] and finding["source"]):
            fail(f"a finding has no cost, no way to mend it, or no source: {finding}")
        if not finding["judged"] and finding["severity"] != "note":
            fail(f"what was not judged counts as {finding['severity']}: {finding}")
        for command in finding["mend"]["commands"]:
            if command["when"] not in ("now", "boot", "firmware") or not command["command"]:
                fail(f"a command is not complete: {finding}")


def without_configuration():
    before = settings()
    if len(before) < 20:
        fail(f"only {len(before)} settings can be read here")
    text = doctor("--config", "/dev/null", codes=(USAGE,))
    if "/dev/null" not in text.stderr:
        fail(f"an empty configuration is not explained: {text.stderr}")
    doctor("--no-such-option", codes=(USAGE,))
    doctor("--bundle", "x.zip", codes=(USAGE,))
    doctor("--root", "/usr/bin", codes=(FAILED,))
    report = judged() if not json.loads(doctor("--json").stdout)["configuration"] else None
    if report is not None:
        check_report(report)
        cores = {worker["core"] for worker in report["workers"]}
        if cores != os.sched_getaffinity(0):
            fail(f"it judged the CPUs {cores}")
    table = doctor("--all").stdout
    widest = max(map(len, table.splitlines()))
    if widest > 120 or "virtual-machine" not in table:
        fail(f"the table is {widest} columns wide:\n{table}")
    if settings() != before:
        after = settings()
        fail(f"settings changed: {[file for file in before if after.get(file) != before[file]]}")
    passed(f"without a configuration each CPU is judged; {len(before)} settings are as before; the table has {widest} columns")


def with_worker(config, core):
    report = judged("--config", config)
    check_report(report)
    if report["workers"] != [{"name": "worker0", "core": core}] or report["configuration"] != str(config):
        fail(f"it judged {report['workers']}")
    gap = of(report, "longest-gap")
    if len(gap) != 1 or gap[0]["about"] != {"worker": "worker0", "core": core}:
        fail(f"the findings of the core are {gap}")
    if not gap[0]["judged"]:  # another test runs a runtime there
        if "--disturb" not in gap[0]["seen"]:
            fail(f"the core was not measured: {gap}")
        report = judged("--config", config, "--disturb")
        gap = of(report, "longest-gap")
    if not gap[0]["judged"] or gap[0]["cost"]["basis"] != "measured":
        fail(f"the core was not measured: {gap}")
    if report["sample_seconds"] < 0.9:
        fail(f"the sample took {report['sample_seconds']} s")
    passed(f"with a configuration its core is measured: {gap[0]['seen']}")


def with_running_worker(config):
    """Returns a daemon that runs."""
    daemon, _ = start_daemon(config)
    try:
        gap = of(judged("--config", config), "longest-gap")[0]
        if gap["judged"] or "--disturb" not in gap["seen"]:
            fail(f"the core of a running worker was measured: {gap}")
        disturbed = of(judged("--config", config, "--disturb"), "longest-gap")[0]
        if not disturbed["judged"] or disturbed["cost"]["basis"] != "measured":
            fail(f"--disturb does not measure the core: {disturbed}")
        if os.geteuid() == 0:
            # nobody may not read the segment, but sees the lock and the socket of the claim.
            other = of(judged("--config", config, user="nobody"), "longest-gap")[0]
            if other["judged"] or "--disturb" not in other["seen"]:
                fail(f"another user's polldoctor measured the core: {other}")
        passed("a running worker's core is measured with --disturb only, also by another user")
        return daemon
    except BaseException:
        daemon.kill()
        raise


def bundle(config, directory, daemon):
    pid = daemon.pid
    daemon.kill()
    daemon.wait(PATIENCE)
    hostile = pathlib.Path(f"/dev/shm/pollcore-1-2-hostile {os.getpid()}.statistics")
    hostile.write_bytes(b"pollstat" + b"\xff" * 500)
    os.environ["POLLDOCTOR_TEST_SECRET"] = "hunter2"
    try:
        file = directory / "report.tar.gz"
        done = doctor("--config", config, "--bundle", file)
        if str(file) not in done.stderr or "finding" not in done.stdout:
            fail(f"--bundle says {done.stderr}")
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode != 0o600:
            fail(f"the bundle has mode {mode:o}")
        if "replaces no file" not in doctor("--config", config, "--bundle", file, codes=(FAILED,)).stderr:
            fail("an existing file is not explained")
    finally:
        hostile.unlink(missing_ok=True)  # a runtime that starts may have removed it
    with tarfile.open(file) as archive:
        names = archive.getnames()
        if any(name.startswith("/") or ".." in name.split("/") for name in names):
            fail(f"the bundle has names outside of it: {names}")
        archive.extractall(directory)
    top = directory / "report"
    for name in ("README.txt", "configuration.toml", "effective.toml", "versions.txt", "findings.json", "findings.txt", "journal.txt", "dmesg.txt",
                 "host/proc/interrupts", "host/later/proc/interrupts", "host/proc/self/limits", f"host/asked/spin/{max(os.sched_getaffinity(0))}"):
        if not (top / name).is_file():
            fail(f"the bundle has no {name}: {names}")
    described = re.findall(r"^(\S+)(?:, (\S+))?  ", (top / "README.txt").read_text(), re.M)
    for word in [word for words in described for word in words if word]:
        if not (top / word).exists():
            fail(f"README.txt names {word}, which is not there")
    segment = next((top / "segments").glob(f"pollcore-{pid}-*.json"))
    events = json.loads(segment.read_text())["tables"]["event"]
    if not any("ready:" in event["text"] for event in events):
        fail(f"the last events of the killed daemon are {events}")
    if "hostile" not in (top / "segments/not-read.txt").read_text():
        fail("a hostile segment is not named")
    whole = b"".join(path.read_bytes() for path in top.rglob("*") if path.is_file())
    for secret in (b"hunter2", b"a comment with a password"):
        if secret in whole:
            fail(f"the bundle has {secret}")
    if b"built from" not in (top / "versions.txt").read_bytes():
        fail("the bundle has no versions")

    original = json.loads((top / "findings.json").read_text())
    again = judged("--root", top / "host", "--config", top / "configuration.toml")
    check_report(again)

    def essence(report):
        # The command line has fewer words in the copy, and a directory without files is not there.
        return sorted((finding["id"], finding["severity"], finding["judged"], finding["seen"], json.dumps(finding["about"]))
                      for finding in report["findings"])
    if essence(again) != essence(original):
        differing = set(essence(again)) ^ set(essence(original))
        fail(f"the unpacked bundle is judged otherwise: {differing}")
    zstd = directory / "second.tar.zst"
    doctor("--config", config, "--bundle", zstd)
    if zstd.read_bytes()[:4] != b"\x28\xb5\x2f\xfd":
        fail("the other bundle is no zstd")
    passed(f"the bundle of a killed daemon has {len(names)} entries and its last {len(events)} events, no secrets, and is judged again alike")


def host_tune(config, directory):
    before = settings()
    tune = ROOT / "scripts" / "host-tune"
    environment = {**os.environ, "POLLDOCTOR": str(POLLDOCTOR)}
    done = run(tune, "--config", config, environment=environment)
    if done.returncode != 0 or settings() != before:
        fail(f"host-tune returned {done.returncode}: {done.stdout}{done.stderr}")
    lines = [line for line in done.stdout.splitlines() if line and not line.startswith("#")]
    if len(lines) != len(set(lines)):
        fail(f"host-tune says a command twice:\n{done.stdout}")
    report = directory / "findings.json"
    firmware = "the PCIe slot"
    report.write_text(json.dumps({"severity": "warning", "findings": [
        {"id": name, "severity": severity, "seen": "x", "mend": {"text": "", "commands": [
            {"when": "now", "command": f"touch {directory}/was-run"}, {"when": "boot", "command": "isolcpus=3"},
            {"when": "firmware", "command": firmware}]}} for name, severity in (("a", "warning"), ("b", "fault"), ("c", "ok"))]}))
    done = run(tune, "--findings", report)
    wanted = [f"touch {directory}/was-run", "isolcpus=3", firmware]
    if done.returncode != 0 or (directory / "was-run").exists() or any(done.stdout.count(line) != 1 for line in wanted):
        fail(f"host-tune prints:\n{done.stdout}{done.stderr}")
    if done.stdout.index(wanted[0]) > done.stdout.index(wanted[1]) or done.stdout.index(wanted[1]) > done.stdout.index(wanted[2]):
        fail(f"host-tune's groups are not in order:\n{done.stdout}")
    if run(tune, "--config", "/dev/null", environment=environment).returncode != 2:
        fail("host-tune does not fail when polldoctor does")
    passed("host-tune prints each command once, and runs none")


def main():
    without_configuration()
    core = max(os.sched_getaffinity(0))
    daemon = None
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        os.chmod(directory, 0o755)
        (directory / "locks").mkdir(mode=0o755)
        config = directory / "pollcored.toml"
        config.write_text("# a comment with a password\n" + CONFIG.format(core=core, directory=directory))
        config.chmod(0o644)
        with_worker(config, core)
        try:
            daemon = with_running_worker(config)
            bundle(config, directory, daemon)
        finally:
            if daemon is not None and daemon.poll() is None:
                daemon.kill()
        host_tune(config, directory)


if __name__ == "__main__":
    main()
