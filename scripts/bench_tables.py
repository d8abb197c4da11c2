"""Combines the measurements of several runs of the programs of tests/bench, and makes tables in Markdown.

A measurement is a dictionary with the keys `table`, `row`, `column`, `distance`, `samples` and `median`. `distance` names the distance between the
two CPUs that were measured, such as `near`. The table's name ends with the distance. `distance` is empty if the figures do not depend on it.
"""
import statistics


def _key(one):
    return one["table"], one["row"], one["column"]


def together(parts):
    """Returns the measurements of all parts. Measurements with the same table, row and column become one measurement."""
    all_of = {}
    for part in parts:
        for one in part:
            place = all_of.setdefault(_key(one), {**one, "samples": []})
            place["samples"] += one["samples"]
            place["median"] = statistics.median(place["samples"])
    return list(all_of.values())


def goals_together(parts):
    """Returns the goals of all parts. Goals with the same name become one goal."""
    all_of = {}
    for part in parts:
        for one in part:
            all_of.setdefault(one["goal"], {**one, "samples": []})["samples"] += one["samples"]
    return list(all_of.values())


def figure(value):
    """Returns the value as text, with about three significant digits."""
    return f"{value:.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"


def _spread(samples):
    return f"{figure(statistics.median(samples))} ({figure(min(samples))}–{figure(max(samples))})"


def _base(one):
    return one["table"].removesuffix(f", {one['distance']}")


def markdown(measurements):
    """Returns the tables in Markdown. A cell has the median of the samples, and the smallest and the largest. Tables that differ only in the
    distance follow each other."""
    bases = list(dict.fromkeys(_base(one) for one in measurements))
    names = sorted(dict.fromkeys(one["table"] for one in measurements),
                   key=lambda name: min(bases.index(_base(one)) for one in measurements if one["table"] == name))
    tables = []
    for name in names:
        of_table = [one for one in measurements if one["table"] == name]
        columns = list(dict.fromkeys(one["column"] for one in of_table))
        lines = [f"| {name} | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
        for row in dict.fromkeys(one["row"] for one in of_table):
            cells = {one["column"]: _spread(one["samples"]) for one in of_table if one["row"] == row}
            lines.append(f"| {row} | {' | '.join(cells.get(column, '') for column in columns)} |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def by_compiler(measurements_of, table, row, beside):
    """Makes a table that compares the rows `row` and `beside` of all tables whose names begin with `table`. It has a column for each compiler.
    `measurements_of` is {compiler: measurements}."""
    compilers = list(measurements_of)
    places = list(dict.fromkeys((one["table"], one["column"]) for all_of in measurements_of.values() for one in all_of
                                if one["table"].startswith(table)))
    lines = [f"| {row} beside {beside}, by compiler | {' | '.join(compilers)} |", "|---|" + "---|" * len(compilers)]
    for name, column in places:
        cells = []
        for compiler in compilers:
            found = {one["row"]: one["median"] for one in measurements_of[compiler] if (one["table"], one["column"]) == (name, column)}
            cells.append(f"{figure(found[row])} of {figure(found[beside])}" if row in found and beside in found else "")
        lines.append(f"| {name}: {column} | {' | '.join(cells)} |")
    return "\n".join(lines)
