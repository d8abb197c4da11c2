"""Runs tests of rdma-core's pyverbs suite, and prints a line of JSON before and after each. pyverbs_suite.py starts this.

usage: pyverbs_run.py FOLDER [suite's options, such as --dev rxe0] [-- ID...]

FOLDER holds the suite's package `tests`. Without ID the script only prints the tests that there are.
"""
import importlib
import json
import pathlib
import sys
import unittest

# These need a ConnectX, an EFA or a GPU.
FOREIGN = ("test_mlx5", "test_efa", "test_cuda")


def tell(**what):
    print(json.dumps(what), flush=True)


class Teller(unittest.TestResult):
    def startTest(self, test):
        super().startTest(test)
        self.said = {"outcome": "passed", "why": ""}
        tell(begins=test.id())

    def says(self, outcome, why):
        self.said = {"outcome": outcome, "why": str(why)}

    def addSkip(self, test, reason):
        self.says("skipped", reason)

    def addFailure(self, test, err):
        self.says("failed", err[1])

    def addError(self, test, err):
        self.says("failed", err[1])

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.says("failed", err[1])

    def stopTest(self, test):
        super().stopTest(test)
        tell(ended=test.id(), **self.said)


def all_tests(suite):
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from all_tests(one)
        else:
            yield one


def main():
    folder = pathlib.Path(sys.argv[1])
    wanted = None
    if "--" in sys.argv:
        at = sys.argv.index("--")
        wanted = set(sys.argv[at + 1:])
        del sys.argv[at:]
    sys.path[:0] = [str(folder), str(folder / "tests")]
    del sys.argv[1]
    importlib.import_module("args_parser").parser.parse_args()
    result = Teller()
    for file in sorted((folder / "tests").glob("test_*.py")):
        if file.name.startswith(FOREIGN):
            continue
        module = importlib.import_module(f"tests.{file.stem}")
        for test in all_tests(unittest.defaultTestLoader.loadTestsFromModule(module)):
            if wanted is None:
                tell(test=test.id())
            elif test.id() in wanted:
                test.run(result)


main()
