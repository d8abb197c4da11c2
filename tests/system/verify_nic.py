#!/usr/bin/env python3
"""Tests scripts/verify-nic: its report and its exit code must show which claims held and which did not.

usage: POLLCORE_BUILD=DIRECTORY tests/system/verify_nic.py                      without any device, with programs that only pretend to test
POLLCORE_BUILD=DIRECTORY tests/system/verify_nic.py DEVICE ADDRESS WAY   on this device

WAY is --quick, --whole or --peer. With --peer the other end is DEVICE's peer in the guest of scripts/rxe-vm, over the network. The report
has parts, each with a claim. On a device, each claim must hold, and a part may be left out only if it is in one of the lists below. Measured
figures may miss their bounds, because the machine may be busy.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts" / "verify-nic"
# Parts that any run may leave out: the device lacks the feature, the build lacks a program, or perftest shows nothing on a busy machine.
MAY_BE_LEFT_OUT = re.compile(r"host-(hugepages|port-down)|probe-(clock|stamps|small-receives-untouched|short-atomic|moderation|compressed|extended-poll)|latency-beside-perftest|bench")
# The model of an mlx5 HCA has both ends of a connection in one process, and advances only when that process calls it.
ON_MODEL = "mlx5-model" in os.environ.get("LD_PRELOAD", "")
MODEL_LEAVES_OUT = re.compile(r"rdma_cm-.*|latency-beside-perftest")
QUICK_LEAVES_OUT = re.compile(r"works|latency-.*|kills|bench")

PROBE = """#!/bin/sh
case $1 in
    --describe) echo '{"firmware": "1.2", "vendor": 5555, "part": 4123, "link_layer": "Ethernet", "mtu": 1024,
 "gids": [{"index": 3, "gid": "::ffff:192.0.2.7", "type": "RoCE v2"}]}' | tr -d '\\n' ;;
    *) echo '{"id": "numbers", "claim": "c", "outcome": "found", "text": "t", "figures": {"n": 2}}' ;;
esac
"""
TESTS = """#!/bin/sh
for word in "$@"; do case $word in --gtest_output=xml:*) file=${word#--gtest_output=xml:} ;; esac; done
cat >"$file" <<'XML'
<testsuites><testsuite name="Errors"><testcase name="Good" classname="Errors" result="completed"><properties>
<property name="exercised" value="RC: 02 SEND; statuses: 00 IBV_WC_SUCCESS"/></properties></testcase>PLANTED</testsuite></testsuites>
XML
"""
# A program of perftest: 2 us and 80 MB/s natively, 3 us and 60 MB/s when pollcore-run has started it.
PERFTEST = """#!/bin/sh
if [ "$SERVED" ]; then latency=3.00 bandwidth=60.00; else latency=2.00 bandwidth=80.00; fi
echo "65536 5000 90.00 $bandwidth 0.001"
echo "8 1000 1.00 9.00 $latency 2.10 0.10 4.00 9.00"
"""
RUN = """#!/bin/sh
shift 2
SERVED=yes exec "$@"
"""
DAEMON = """#!/bin/sh
echo "pollcored: ready: it only pretends"
exec sleep 60
"""
FAILURE = ('<testcase name="Bad" classname="Errors" result="completed"><failure message="Expected equality of these values:&#x0A;  c.status&#x0A;'
           '    Which is: IBV_WC_LOC_QP_OP_ERR&#x0A;  Status::loc_prot_error&#x0A;    Which is: IBV_WC_LOC_PROT_ERR"/></testcase>')


class Pretended(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.work = pathlib.Path(self.directory.name)
        (self.work / "sys/class/infiniband/nic0").mkdir(parents=True)
        (self.work / "build/tests").mkdir(parents=True)
        self.program("nic-probe", PROBE)
        self.program("conformance-tests", TESTS.replace("PLANTED", ""))

    def program(self, name, text, directory="build/tests"):
        file = self.work / directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)

    def verify(self, *arguments):
        return subprocess.run([SCRIPT, "--build", self.work / "build", "--out", self.work / "report", *arguments], capture_output=True, text=True,
                              env={**{name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}, "SYSFS_PATH": str(self.work / "sys"),
                                   "PATH": f"{self.work / 'bin'}:{os.environ['PATH']}"})

    def serve_programs(self, daemon):
        self.program("pollcored", daemon, "build/apps/pollcored")
        self.program("pollcore-run", RUN, "build/apps/pollcore-run")
        for name in ("ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_write_bw"):
            self.program(name, PERFTEST, "bin")

    def report(self):
        return (self.work / "report.md").read_text(), {part["id"]: part for part in json.loads((self.work / "report.json").read_text())["parts"]}

    def test_a_device_that_is_not_there_is_told_with_those_that_are(self):
        done = self.verify("nic1")
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("there is no RDMA device nic1: there is nic0", done.stderr)
        self.assertFalse((self.work / "report.md").exists())

    def test_a_device_without_the_address_is_told(self):
        done = self.verify("--address", "192.0.2.8", "nic0")
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("no GID of RoCE v2 with the address 192.0.2.8; its GIDs: 192.0.2.7 (RoCE v2)", done.stderr)

    def test_wrong_options_are_refused(self):
        for wrong in (("--quik", "nic0"), (), ("nic0", "192.0.2.9"), ("--serve", "nic0", "192.0.2.9"), ("--address", "nowhere", "nic0"), ("nic0; true",)):
            done = self.verify(*wrong)
            self.assertEqual(done.returncode, 2, wrong)
            self.assertTrue(done.stderr.startswith("scripts/verify-nic: "), done.stderr)

    def test_no_part_of_that_name_is_told(self):
        done = self.verify("--only", "nothing", "nic0")
        self.assertEqual(done.returncode, 4)
        self.assertIn("no part has a name of --only", done.stderr)

    def test_what_holds_is_told(self):
        done = self.verify("--only", "conformance,statuses,probe-", "nic0")
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        text, parts = self.report()
        self.assertEqual(parts["conformance"]["result"], "held")
        self.assertEqual(parts["probe-numbers"]["result"], "found")
        self.assertIn("**2 held, 0 did not hold, 0 not run; 1 were found out", text)

    def test_what_does_not_hold_is_told_with_what_came_instead(self):
        self.program("conformance-tests", TESTS.replace("PLANTED", FAILURE))
        done = self.verify("--only", "conformance,statuses,works-", "nic0")
        self.assertEqual(done.returncode, 1, done.stderr + done.stdout)
        self.assertIn("did not hold: conformance", done.stdout)
        text, parts = self.report()
        self.assertEqual(parts["statuses"]["result"], "did not hold")
        self.assertIn("| Errors.Bad | IBV_WC_LOC_QP_OP_ERR | IBV_WC_LOC_PROT_ERR |", text)
        self.assertEqual(parts["works-UD"]["result"], "did not hold")  # no test has used it
        self.assertIn("\nDid not hold: conformance, statuses, works-", text)
        self.assertIn("| What works, on this device | did not hold |", text)

    def test_a_test_program_that_crashes_does_not_hold(self):
        self.program("conformance-tests", "#!/bin/sh\necho '[ RUN      ] Errors.Ends'\nkill -9 $$\n")
        done = self.verify("--only", "conformance,statuses", "nic0")
        self.assertEqual(done.returncode, 1, done.stderr + done.stdout)
        _, parts = self.report()
        self.assertIn("in Errors.Ends", parts["conformance"]["text"])
        self.assertEqual(parts["statuses"]["result"], "not run")

    def test_programs_by_pollcore_run_are_compared_with_themselves(self):
        self.serve_programs(DAEMON)
        done = self.verify("--only", "served-", "nic0")
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        text, parts = self.report()
        self.assertEqual(parts["served-ib_read_lat"]["figures"], {"by pollcore-run, us": 3.0, "natively, us": 2.0, "by pollcore-run / natively": 1.5})
        self.assertEqual(parts["served-ib_write_bw"]["figures"], {"by pollcore-run, MB/s": 60.0, "natively, MB/s": 80.0, "by pollcore-run / natively": 0.75})
        self.assertIn("| Verbs programs run unmodified over the daemon | held |", text)

    def test_programs_that_do_not_run_by_pollcore_run_do_not_hold(self):
        self.serve_programs(DAEMON)
        self.program("pollcore-run", "#!/bin/sh\necho nobody may register memory\nexit 125\n", "build/apps/pollcore-run")
        done = self.verify("--quick", "--only", "served-", "nic0")
        self.assertEqual(done.returncode, 1, done.stderr + done.stdout)
        _, parts = self.report()
        self.assertEqual({part["result"] for part in parts.values()}, {"did not hold"})
        self.assertIn("nobody may register memory", parts["served-ib_send_lat"]["text"])
        self.serve_programs("#!/bin/sh\necho no such device\nexit 1\n")
        done = self.verify("--quick", "--only", "served-", "nic0")
        self.assertEqual(done.returncode, 1, done.stderr + done.stdout)
        _, parts = self.report()
        self.assertEqual(parts["served"]["result"], "did not hold")
        self.assertIn("no such device", parts["served"]["text"])

    def test_the_parts_that_the_device_README_names_exist(self):
        text = (ROOT / "runtime/device/verbs/README.md").read_text()
        named = {part for line in text.splitlines() if line.startswith("| ") for part in re.findall(r"`([^`]+)`", line.split("|")[2])}
        questions = "".join((ROOT / "tests/system" / name).read_text() for name in ("nic_behaviour.cc", "nic_costs.cc"))
        known = SCRIPT.read_text()
        rows = re.findall(r"^\| ([\w ]+) \|", (ROOT / "tests/conformance/README.md").read_text(), re.M)
        self.assertGreater(len(named), 30)
        for part in named:
            kind, _, rest = part.partition("-")
            there = f'{{"{rest}",' in questions if kind == "probe" else rest.replace("-", " ") in rows if kind == "works" else f'"{part}"' in known or \
                part.startswith("pollperf-") and f'"{rest}": ' in known
            self.assertTrue(there, part)

    def test_what_cannot_be_run_is_told_with_the_reason(self):
        done = self.verify("--only", "kills,bench,rdma_cm-echo,served-", "nic0")
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        text, parts = self.report()
        self.assertEqual({part["result"] for part in parts.values()}, {"not run"})
        self.assertIn("kill-tests is not in", parts["kills"]["text"])
        self.assertIn("pollcore-run is not in", parts["served"]["text"])


def on_device(device, address, way):
    build = ROOT / os.environ["POLLCORE_BUILD"]
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        out = pathlib.Path(name) / "report"
        command = [SCRIPT, "--build", build, "--address", address, "--out", out]
        if ON_MODEL:
            command += ["--without", "rdma_cm-,latency-beside-perftest"]
        serving = None
        try:
            if way == "--peer":
                peer, peer_address = os.environ["POLLCORE_RXE_PEER"], os.environ["POLLCORE_RXE_PEER_ADDRESS"]
                serving = subprocess.Popen([sys.executable, "-u", SCRIPT, "--build", build, "--address", peer_address, "--serve", peer], stdout=subprocess.PIPE, text=True)
                key = next(found[1] for line in serving.stdout if (found := re.search(r"--key (\S+)", line)))
                other = subprocess.run([*command, "--quick", "--key", "x" + key, device, peer_address], capture_output=True, text=True)
                if other.returncode != 4 or "the key is not the one" not in other.stderr:
                    wrong.append(f"another key: {other.returncode}, {other.stderr}")
                done = subprocess.run([*command, "--quick", "--only", "rdma_cm-,pollperf-peer,served-", "--key", key, device, peer_address], text=True)
            else:
                done = subprocess.run([*command, *(("--quick",) if way == "--quick" else ()), device], text=True)
        finally:
            if serving:
                serving.terminate()
                serving.wait()
        report = json.loads(out.with_suffix(".json").read_text())
        parts = {part["id"]: part for part in report["parts"]}
        for part in parts.values():
            left_out = MAY_BE_LEFT_OUT.fullmatch(part["id"]) or (ON_MODEL and MODEL_LEAVES_OUT.fullmatch(part["id"])) or (way == "--quick" and QUICK_LEAVES_OUT.fullmatch(part["id"]))
            if (part["result"] == "did not hold" and not part["measures"]) or (part["result"] == "not run" and not left_out):
                wrong.append(f"{part['id']}: {part['result']}: {part['text']} {part['rows']}")
        for needed in {"--peer": ("rdma_cm-rping-calls-peer", "pollperf-peer", "served-ib_send_lat")}.get(
                way, ("conformance", "statuses", "probe-flush-order", "rdma_cm-echo", "pollperf-attached", "served-ib_send_lat", "served-ib_write_bw")):
            if needed not in parts:
                wrong.append(f"there is no part {needed}")
        # perftest may show nothing natively on a busy machine, but not each time.
        ratios = [part["figures"].get("by pollcore-run / natively") for name, part in parts.items() if name.startswith("served-")]
        if way == "--whole" and any(ratios) == ON_MODEL:
            wrong.append(f"the ratios of programs by pollcore-run are {ratios}")
        if done.returncode != int(any(part["result"] == "did not hold" for part in parts.values())):
            wrong.append(f"exit code {done.returncode}")
        text = out.with_suffix(".md").read_text()
        wrong += [f"the report does not show {name}" for name in parts if f"### {name}" not in text]
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) == 4:
        sys.exit(on_device(*sys.argv[1:]))
    unittest.main()
