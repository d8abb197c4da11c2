"""The goals that scripts/bench measures: the verdicts on their samples, and their figures at earlier commits.

A goal is a dictionary. `goal` is its name. `bound` is a lower bound if `at_least` is true, else an upper bound. `samples` has the figures, and
`tables` names the tables from which the figures come. A goal without samples could not be measured. Noise is a list of dictionaries. Each has
a `text`, and a `table` if the noise affects only the figures of that table.
"""
import json
import statistics

from bench_tables import figure

MET, MISSED, UNDECIDED = "met", "missed", "undecided"
ALL_MET, SOME_MISSED, NOT_TO_BE_JUDGED = 0, 1, 3  # exit codes
COLUMNS = 5  # number of commits in the table of earlier commits

# Goals that runs did not reach, or that one run reached and the next did not: {goal: (bound, why)}. This bound replaces the goal's own bound,
# so that a run shows whether something got worse. `why` explains the difference. The table shows the goal's own bound, too.
OUT_OF_REACH = {
    "ring, 64 B, by 32, 4096 slots / stream limit, near CPUs": (0.80, "0.90 to 0.98, a quarter of the samples 0.83 to 0.86: the limit itself lies between 400 and 660 million/s"),
    "ring, 64 B, by 32, 4096 slots / best other ring, near CPUs": (0.95, "1.05 to 1.08: rte_ring's zero-copy calls come close to the stream limit, too, so none can be far ahead"),
    "ring, 64 B, by 32, 1024 slots / best other ring, near CPUs": (0.92, "1.02 to 1.04: rte_ring's zero-copy calls come close to the stream limit, too, so none can be far ahead"),
    "ring, 64 B, by 32, 1024 slots / best other ring, far CPUs": (1.05, "1.18, beside a stream limit that both are near to"),
    "ring, 64 B, one at a time, 4096 slots / stream limit, near CPUs":
        (0.25, "0.74 to 0.78, and 0.29 of what clang -O2 builds. The limit grows with 4096 slots, 475 to 650 million/s; one at a time stays at 475"),
    "ring, 64 B, one at a time, 4096 slots / stream limit, far CPUs": (0.45, "0.60 to 0.64; the cause is not known"),
    "ring, 64 B, one at a time, 1024 slots / best other ring, far CPUs": (1.0, "1.65, of some builds 1.10"),
    "ring, round trip / two lines, near CPUs": (1.25, "1.09 to 1.12: 9 ns more than two bare lines"),
    "ring, round trip p99 / the limit's p99, near CPUs": (1.5, "1.16 to 1.27: 30 ns more than two bare lines"),
    "ring, round trip / two lines, far CPUs": (1.2, "1.00 to 1.05, in one run a quarter of the samples above 1.13"),
    "ring, round trip p99 / the limit's p99, far CPUs": (1.3, "1.07, a quarter of the samples above 1.10"),
    "1024 QPs at random against one, more cycles per operation": (30, "23.0 to 24.5, the largest 25.3"),
    "hop, one in flight / two lines, looked at as fast as can be, near CPUs":
        (1.1, "0.98 to 1.01: 45 to 60 ns of the hop are work between its transfers, which spaces the looks already"),
    "latency of send and receive / of a write ring, near CPUs": (0.88, "0.93: 285 ns and 305; the cause is not known"),
    "throughput with statistics, stage latency and admission / compiled out, near CPUs": (0.94, "0.94 to 0.98: the counts of each queue pair take about one cycle of 30"),
    "throughput with statistics, stage latency and admission / compiled out, two threads of one core": (0.94, "0.97"),
    "throughput with statistics, stage latency and admission / compiled out, far CPUs":
        (0.94, "0.95 to 0.96, and 0.98 before queue pairs counted their requests and bytes"),
    "worker with its provider, 16 QPs at random / model of costs, at least": (0.8, "0.87 to 0.95: faster than the model of costs says"),
    **{f"worker with its provider, {load} / model of costs, at most": (1.2, "1.00 to 1.09, in some runs a quarter of the samples above 1.10")
       for load in ("bursts of 16", "bursts of 32", "16 QPs at random", "64 QPs at random", "256 QPs at random", "1024 QPs at random")},
    **{f"pollcore-run {name} / pollperf attached": (1.25, "1.10 to 1.12, half an hour before 1.14 to 1.21: posts and polls through verbs take more instructions")
       for name in ("ib_read_lat", "ib_atomic_lat")},
    **{f"{attack}: longest control call of another process, ms": (50, "10 to 25 in two seconds, the longest in ten 84: attacker, callers and the daemon's other threads share one CPU")
       for attack in ("much-memory", "many-objects", "many-requests", "silent-addresses")},
}


def figures(lower, median, upper):
    return f"{figure(median)} ({figure(lower)}–{figure(upper)})"


def spread(samples):
    """Returns the lower quartile, the median and the upper quartile. Half of the samples are between the two quartiles."""
    return samples * 3 if len(samples) == 1 else statistics.quantiles(samples, n=4, method="inclusive")


def judge(goal, noise=()):
    """Returns the verdict from the middle half of the samples. It is MET if the whole half is within the bound, MISSED if no part of it is,
    else UNDECIDED. OUT_OF_REACH replaces some bounds."""
    if not goal["samples"] or any("table" not in line or line["table"] in goal.get("tables", ()) for line in noise):
        return UNDECIDED
    lower, _, upper = spread(goal["samples"])
    bound = OUT_OF_REACH.get(goal["goal"], (goal["bound"], ""))[0]
    within, outside = (lower >= bound, upper < bound) if goal["at_least"] else (upper <= bound, lower > bound)
    return MET if within else MISSED if outside else UNDECIDED


def table(goals, noise):
    """Returns the goals as a table in Markdown."""
    lines = ["| goal | wanted | judged by | median (middle half) of so many | |", "|---|---|---|---|---|"]
    answers = []
    for goal in goals:
        verdict = judge(goal, noise)
        reached = f"{figures(*spread(goal['samples']))} of {len(goal['samples'])}" if goal["samples"] else "not measured"
        sign = "≥" if goal["at_least"] else "≤"
        bound, why = OUT_OF_REACH.get(goal["goal"], (goal["bound"], ""))
        lines.append(f"| {goal['goal']} | {sign} {goal['bound']:g} | {f'{sign} {bound:g}' if why else ''} | {reached} | "
                     f"{'**missed**' if verdict == MISSED else verdict} |")
        if why:
            answers.append(f"| {goal['goal']} | {why} |")
    if answers:
        lines += ["", "| out of reach so far | measured in November 2026, and why |", "|---|---|", *answers]
    return "\n".join(lines)


def check(goals, noise):
    """Returns the text that --check prints, and the exit code."""
    of_all = [line["text"] for line in noise if "table" not in line]
    if of_all:
        return "The machine was too noisy to judge anything on it:" + "".join(f"\n  {text}" for text in of_all), NOT_TO_BE_JUDGED
    verdicts = {verdict: [goal["goal"] for goal in goals if judge(goal, noise) == verdict] for verdict in (MET, MISSED, UNDECIDED)}
    lines = [f"{len(names)} {verdict}{':' if names and verdict != MET else ''}" + "".join(f"\n  {name}" for name in names if verdict != MET)
             for verdict, names in verdicts.items()]
    return "\n".join(lines), SOME_MISSED if verdicts[MISSED] else NOT_TO_BE_JUDGED if verdicts[UNDECIDED] else ALL_MET


# ---- Earlier commits: the file has a line of JSON for each commit and machine ----

def history_line(commit, date, cpu, goals, noise):
    kept = {}
    for goal in goals:
        if goal["samples"]:
            lower, median, upper = spread(goal["samples"])
            kept[goal["goal"]] = {"median": median, "lower": lower, "upper": upper, "verdict": judge(goal, noise)}
    return {"commit": commit, "date": date, "cpu": cpu, "goals": kept}


def keep(path, line):
    """Adds the line to the file. It replaces an earlier line of the same commit and machine. Returns all lines, with the new line last."""
    lines = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    lines = [one for one in lines if (one["commit"], one["cpu"]) != (line["commit"], line["cpu"])] + [line]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in lines))
    return lines


def history_table(lines):
    """Returns a table of the last few commits on the machine of the last line. Each commit has a column with medians and middle halves."""
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
