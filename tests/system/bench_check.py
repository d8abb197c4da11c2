#!/usr/bin/env python3
"""Tests how scripts/bench judges goals and keeps their history (scripts/bench_goals.py), with invented samples. It measures nothing."""
import json
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import bench_goals
from bench_goals import MET, MISSED, UNDECIDED


def goal(samples, bound=1.0, at_least=False, name="a / b", **more):
    return {"goal": name, "samples": samples, "bound": bound, "at_least": at_least, **more}


class Judging(unittest.TestCase):
    def test_the_middle_half_decides(self):
        for samples, at_most, at_least in (
                ([0.8, 0.9, 0.9, 0.9, 0.95], MET, MISSED),
                ([1.1, 1.1, 1.2, 1.2, 1.3], MISSED, MET),
                ([0.8, 0.9, 0.99, 1.1, 1.2], UNDECIDED, UNDECIDED),
                ([0.9, 0.9, 0.9, 0.9, 7.0], MET, MISSED),     # one sample from a moment when the machine was busy
                ([0.1, 1.2, 1.2, 1.2, 1.2], MISSED, MET),
                ([1.0, 1.0, 1.0], MET, MET),                  # a goal is met at exactly the bound
                ([0.5], MET, MISSED), ([1.5], MISSED, MET)):
            self.assertEqual(bench_goals.judge(goal(samples)), at_most, samples)
            self.assertEqual(bench_goals.judge(goal(samples, at_least=True)), at_least, samples)

    def test_nothing_is_judged_on_a_machine_that_is_too_noisy(self):
        noise = [{"text": "the hypervisor gave 3 of 10 s to others"}]
        self.assertEqual(bench_goals.judge(goal([0.5]), noise), UNDECIDED)
        self.assertEqual(bench_goals.judge(goal([1.5]), noise), UNDECIDED)

    def test_a_limit_that_wandered_leaves_undecided_what_was_compared_with_it(self):
        noise = [{"text": "it lay between 3 and 9", "table": "ring, 64 B, million items/s"}]
        self.assertEqual(bench_goals.judge(goal([0.5], tables=["round trip", "ring, 64 B, million items/s"]), noise), UNDECIDED)
        self.assertEqual(bench_goals.judge(goal([0.5], tables=["round trip"]), noise), MET)
        self.assertEqual(bench_goals.judge(goal([0.5]), noise), MET)

    def test_a_goal_that_is_out_of_reach_is_judged_by_its_other_bound(self):
        self.addCleanup(setattr, bench_goals, "OUT_OF_REACH", bench_goals.OUT_OF_REACH)
        bench_goals.OUT_OF_REACH = {"a / b": (1.5, "lines are far away")}
        self.assertEqual([bench_goals.judge(goal([sample])) for sample in (1.4, 1.6)], [MET, MISSED])
        row = bench_goals.table([goal([1.4]), goal([0.5], name="another")], [])
        self.assertIn("| a / b | ≤ 1 | ≤ 1.5 | 1.40 (1.40–1.40) of 1 | met |", row)
        self.assertIn("| a / b | lines are far away |", row)
        self.assertNotIn("| another | ≤ 1 | ≤", row)

    def test_what_was_not_measured_is_undecided(self):
        self.assertEqual(bench_goals.judge(goal([])), UNDECIDED)
        self.assertIn("not measured", bench_goals.table([goal([])], []))


class Check(unittest.TestCase):
    def test_its_exit_code_and_whom_it_names(self):
        met, missed, open_one = goal([0.5], name="this"), goal([1.5], name="that"), goal([0.5, 1.5], name="the other")
        noise = [{"text": "something else ran"}]
        for goals, noisy, code, named in (([met], [], 0, ()), ([met, missed], [], 1, ("that",)), ([met, open_one], [], 3, ("the other",)),
                                          ([met, missed, open_one], [], 1, ("that", "the other")),
                                          ([met, missed], noise, 3, ("something else ran",))):
            text, got = bench_goals.check(goals, noisy)
            self.assertEqual(got, code, text)
            for name in ("this", "that", "the other", "something else ran"):
                self.assertEqual(f"  {name}\n" in f"{text}\n", name in named, text)


class History(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = pathlib.Path(directory.name) / "build" / "history.jsonl"

    def keep(self, commit, samples, cpu="fast"):
        return bench_goals.keep(self.path, bench_goals.history_line(commit, "2026-01-02", cpu, [goal(samples)], []))

    def test_a_commit_and_machine_have_one_line(self):
        for commit, samples, cpu in (("c1", [1.5], "fast"), ("c2", [0.5], "fast"), ("c1", [0.5], "slow"), ("c1", [0.25, 0.5, 0.75], "fast")):
            lines = self.keep(commit, samples, cpu)
        self.assertEqual([(line["commit"], line["cpu"]) for line in lines], [("c2", "fast"), ("c1", "slow"), ("c1", "fast")])
        self.assertEqual([json.loads(text) for text in self.path.read_text().splitlines()], lines)
        self.assertEqual(lines[-1]["goals"], {"a / b": {"median": 0.5, "lower": 0.375, "upper": 0.625, "verdict": MET}})

    def test_the_table_is_of_the_last_commits_on_this_machine(self):
        for i in range(9):
            lines = self.keep(f"c{i}", [1.0 + i / 10])
            self.keep(f"c{i}", [99.0], "slow")
        text = bench_goals.history_table(lines)
        heading, dates, row = text.splitlines()
        self.assertEqual(heading.split()[-5:], ["c4", "c5", "c6", "c7", "c8"])
        self.assertEqual(dates.split(), 5 * ["2026-01-02"])
        self.assertIn("!1.80 (1.80–1.80)", row)
        self.assertNotIn("99", text)


if __name__ == "__main__":
    unittest.main()
