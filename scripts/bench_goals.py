"""The goals that scripts/bench measures: what is made of their samples, and how they were at earlier commits.

A goal is a dictionary: `goal` its name, `bound`, `at_least` (else at most), `samples`, and `tables`, the tables that its figures are
from; one without samples could not be measured. Noise is a list of dictionaries: `text`, and `table` where only the figures of that one
are in doubt.
"""
import json
import statistics

from bench_tables import figure

MET, MISSED, UNDECIDED = "met", "missed", "undecided"
ALL_MET, SOME_MISSED, NOT_TO_BE_JUDGED = 0, 1, 3  # exit codes
COLUMNS = 5  # of the table of earlier commits


def figures(lower, median, upper):
    return f"{figure(median)} ({figure(lower)}–{figure(upper)})"


def spread(samples):
    """The lower quartile, the median and the upper quartile: half of the samples lie between the outer two."""
    return samples * 3 if len(samples) == 1 else statistics.quantiles(samples, n=4, method="inclusive")


def judge(goal, noise=()):
    """By the middle half of the samples: met where all of it is within the bound, missed where none is."""
    if not goal["samples"] or any("table" not in line or line["table"] in goal.get("tables", ()) for line in noise):
        return UNDECIDED
    lower, _, upper = spread(goal["samples"])
    bound = goal["bound"]
    within, outside = (lower >= bound, upper < bound) if goal["at_least"] else (upper <= bound, lower > bound)
    return MET if within else MISSED if outside else UNDECIDED


def with_whole_names(goals):
    """A name that begins with "…" goes on where the one before it has its first " / ", or else its end."""
    whole = []
    stem = ""
    for goal in goals:
        if goal["goal"].startswith("…"):
            whole.append({**goal, "goal": stem + goal["goal"][1:]})
        else:
            stem = goal["goal"].partition(" / ")[0]
            whole.append(goal)
    return whole


def table(goals, noise):
    """In Markdown."""
    lines = ["| goal | wanted | median (middle half) of so many | |", "|---|---|---|---|"]
    for goal in goals:
        verdict = judge(goal, noise)
        reached = f"{figures(*spread(goal['samples']))} of {len(goal['samples'])}" if goal["samples"] else "not measured"
        lines.append(f"| {goal['goal']} | {'≥' if goal['at_least'] else '≤'} {goal['bound']:g} | {reached} | "
                     f"{'**missed**' if verdict == MISSED else verdict} |")
    return "\n".join(lines)


def check(goals, noise):
    """What --check says, and its exit code."""
    of_all = [line["text"] for line in noise if "table" not in line]
    if of_all:
        return "The machine was too noisy to judge anything on it:" + "".join(f"\n  {text}" for text in of_all), NOT_TO_BE_JUDGED
    verdicts = {verdict: [goal["goal"] for goal in goals if judge(goal, noise) == verdict] for verdict in (MET, MISSED, UNDECIDED)}
    lines = [f"{len(names)} {verdict}{':' if names and verdict != MET else ''}" + "".join(f"\n  {name}" for name in names if verdict != MET)
             for verdict, names in verdicts.items()]
    return "\n".join(lines), SOME_MISSED if verdicts[MISSED] else NOT_TO_BE_JUDGED if verdicts[UNDECIDED] else ALL_MET


# ---- Earlier commits: a line of JSON for each commit and machine ----

def history_line(commit, date, cpu, goals, noise):
    kept = {}
    for goal in goals:
        if goal["samples"]:
            lower, median, upper = spread(goal["samples"])
            kept[goal["goal"]] = {"median": median, "lower": lower, "upper": upper, "verdict": judge(goal, noise)}
    return {"commit": commit, "date": date, "cpu": cpu, "goals": kept}


def keep(path, line):
    """In the place of what stands there of the same commit and machine. Returns all lines, the new one last."""
    lines = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    lines = [one for one in lines if (one["commit"], one["cpu"]) != (line["commit"], line["cpu"])] + [line]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in lines))
    return lines


def history_table(lines):
    """Of the machine of the last line, the last few commits: columns of medians and middle halves."""
    shown = [line for line in lines if line["cpu"] == lines[-1]["cpu"]][-COLUMNS:]
    marks = {MET: " ", MISSED: "!", UNDECIDED: "?"}
    names = list(dict.fromkeys(name for line in reversed(shown) for name in line["goals"]))

    def cell(line, name):
        if name not in line["goals"]:
            return ""
        one = line["goals"][name]
        return marks[one["verdict"]] + figures(one["lower"], one["median"], one["upper"])

    rows = [[f"{lines[-1]['cpu']}; ! missed, ? undecided", *(line["commit"] for line in shown)], ["", *(line["date"] for line in shown)]]
    rows += [[name, *(cell(line, name) for line in shown)] for name in names]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows)
