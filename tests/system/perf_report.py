#!/usr/bin/python3
"""Tests the page of pollperf's results: measures on the software device, makes pages, and looks at them in a browser that has no network.

usage: tests/system/perf_report.py [--keep FOLDER]        (POLLCORE_BUILD: the build directory)

  --keep FOLDER  write the documents and the pages there, and leave them
"""
import html.parser
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from beside_daemon import PATIENCE, fail, passed, program

POLLPERF = program("pollperf")
OPERATIONS = ("send", "write", "read")
STAGES = ("submission_ring", "device", "completion_ring")
PERCENTILES = (0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999)
TICKS = ["50 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %", "99.9999 %"]
RANKS = 4
HOSTILE = "Rank 2 </script><script>document.title = 'broken'</script> &amp; shares its CPU."
UNITS = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9, "B/s": 1, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "/s": 1, "k/s": 1e3, "M/s": 1e6, "G/s": 1e9}
VOID = {"meta", "link", "br", "hr", "img", "input", "col", "base"}


def expect(what, found, wanted):
    if found != wanted:
        fail(f"{what}: {found!r}, not {wanted!r}")


# ---- The document of the browser ----

class Element:
    def __init__(self, name, attributes):
        self.name = name
        self.attributes = attributes
        self.children = []  # elements and texts

    def __getitem__(self, attribute):
        return self.attributes[attribute]

    def get(self, attribute):
        return self.attributes.get(attribute)

    @property
    def classes(self):
        return (self.get("class") or "").split()

    @property
    def text(self):
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def number(self):
        return float(self["data-value"])

    def all(self, selector="*", **attributes):
        """The elements inside: `name.class`, with these attributes. Their names have _ for -."""
        name, *classes = selector.split(".")
        wanted = {key.replace("_", "-"): str(value) for key, value in attributes.items()}
        for child in self.children:
            if isinstance(child, Element):
                if name in ("*", "", child.name) and set(classes) <= set(child.classes) and all(child.get(key) == value for key, value in wanted.items()):
                    yield child
                yield from child.all(selector, **attributes)

    def list(self, selector, **attributes):
        return list(self.all(selector, **attributes))

    def one(self, selector, **attributes):
        found = self.list(selector, **attributes)
        if len(found) != 1:
            fail(f"there are {len(found)} elements {selector} {attributes}")
        return found[0]


class Reader(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.root = Element("root", {})
        self.open = [self.root]
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        if tag not in VOID:
            if self.open[-1].name != tag:
                fail(f"</{tag}> ends <{self.open[-1].name}>")
            self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(data)


class Browser:
    """Loads pages in Chromium, where nothing but the page can be reached."""

    def __init__(self, directory):
        self.directory = directory
        self.chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        if not self.chromium:
            fail("there is no chromium: run scripts/setup")
        # In a container, even root may not be allowed to. Then only Chromium's options keep it from the network.
        isolated = subprocess.run(["unshare", "-n", "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        self.without_network = ["unshare", "-n"] if isolated.returncode == 0 else []

    def load(self, page, choice="", script=None):
        """The elements of the page after its scripts have run, and after `script`, if given."""
        if script is not None:
            text = page.read_text()
            page = self.directory / "with-script.html"
            page.write_text(text.replace("</body>", f"<script>{script}</script></body>"))
        done = subprocess.run([*self.without_network, self.chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                               "--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:9", "--enable-logging=stderr", "--v=0",
                               f"--user-data-dir={self.directory / 'chromium'}", "--virtual-time-budget=10000", "--window-size=1200,2000", "--dump-dom",
                               page.resolve().as_uri() + choice], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
        if done.returncode != 0 or "</html>" not in done.stdout:
            fail(f"chromium returned {done.returncode} for {page}: {done.stderr[-3000:]}")
        # Chromium's own pages, such as that of its address bar, write there, too.
        said = [line for line in done.stderr.splitlines() if "CONSOLE" in line and "source: chrome://" not in line]
        if said:
            fail(f"{page} writes to the console: {said}")
        return Reader(done.stdout).root


# ---- The documents ----

def run(*command, code=0):
    done = subprocess.run([POLLPERF, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    if (done.returncode == 0) != (code == 0):
        fail(f"pollperf {' '.join(map(str, command))} returned {done.returncode}: {done.stdout} {done.stderr}")
    return done.stderr


def mesh_document():
    def matrix(usual, step, outlier):
        rows = [[None if to == origin else usual + step * (RANKS * origin + to) for to in range(RANKS)] for origin in range(RANKS)]
        rows[outlier[0]][outlier[1]] = outlier[2]
        return rows
    return {
        "program": "pollperf-mesh", "version": "0", "format": 2, "command": "pollperf-mesh of a test", "began": "2026-11-29T07:20:00Z",
        "settings": {"bytes": "64"}, "host": {"name": "mesh-host", "cpu": "a CPU", "cpus_online": 8, "kernel": "6.1"}, "device": "soft0",
        "ranks": [{"rank": rank, "host": f"host{rank // 2}", "cpu": rank % 2, "device": "soft0"} for rank in range(RANKS)],
        "latency_ns": matrix(1500.5, 10, (2, 1, 9999.0)),
        "bandwidth_bytes_per_s": matrix(11.5e9, 1e7, (0, 3, 2e9)),
        "incast": [{"to": to, "senders": RANKS - 1, "bytes_per_s": 9e9, "per_sender_bytes_per_s": [2e9, 3e9, 4e9]} for to in range(RANKS)],
        "all_to_all": {"bytes_per_s": 34e9, "per_rank_bytes_per_s": [8e9, 9e9, 10e9, 7e9]},
        "outliers": [
            {"what": "latency", "from": 2, "to": 1, "value": 9999.0, "median": 1560, "text": "From rank 2 to rank 1: 10.0 µs, 6.4 times the median."},
            {"what": "bandwidth", "from": 0, "to": 3, "value": 2e9, "median": 11.5e9, "text": "From rank 0 to rank 3: 2 GB/s, 0.17 times the median."}],
        "warnings": [HOSTILE]}


def documents(directory):
    """Measures, and returns the files' paths."""
    files = {name: directory / f"{name}.json" for name in ("latency", "sweep", "open", "mesh")}
    run("lat", "-d", "soft0", "--path", "all", "-o", ",".join(OPERATIONS), "-n", "2000", "--rounds", "6", "--json", files["latency"])
    run("bw", "-d", "soft0", "--path", "direct", "-a", "-D", "50ms", "--json", files["sweep"])
    run("lat", "-d", "soft0", "--path", "direct", "-o", "read", "--rate", "10k", "-D", "500ms", "--json", files["open"])
    files["mesh"].write_text(json.dumps(mesh_document()))
    read = {name: json.loads(file.read_text()) for name, file in files.items()}
    if {one["op"] for one in read["latency"]["results"]} != set(OPERATIONS) or len(read["sweep"]["results"]) < 10 or not read["open"]["results"][0]["offered_per_s"]:
        fail("the runs did not measure what they were asked for")
    passed("pollperf has measured latency, a sweep of sizes, and an open loop")
    return files, read


# ---- Checks ----

def check_page(file, root, wanted):
    """What holds for each page: it has the documents, it needs nothing else, and its charts can be found and are named."""
    expect("the data of the page", json.loads(root.one("script", id="data").text), wanted)
    for element in root.all():
        for attribute, value in element.attributes.items():
            if attribute in ("src", "href", "xlink:href", "srcset", "data", "action", "poster"):
                fail(f"<{element.name}> refers to {value}")
            if "url(" in (value or ""):
                fail(f"<{element.name}> has {attribute}={value}")
    for style in root.all("style"):
        if re.search(r"@import|url\(|https?:", style.text):
            fail("the style refers to another file")
    policy = root.one("meta", http_equiv="Content-Security-Policy")["content"]
    if not policy.startswith("default-src 'none'"):
        fail(f"the page may load things: {policy}")
    numbers = set()
    for chart in root.all("svg.chart"):
        title = chart.one("title")
        if chart["role"] != "img" or not title.text or chart["aria-labelledby"] != title["id"]:
            fail(f"a chart has no name: {chart.attributes}")
        numbers.add(title["id"])
        if "NaN" in "".join(str(value) for element in chart.all() for value in element.attributes.values()):
            fail(f"{title.text}: a mark has no place")
        if not chart.list("text.axis-title"):
            fail(f"{title.text}: the axes have no titles")
    expect("charts with the same number", len(numbers), len(root.list("svg.chart")))
    for broken in root.all("p.empty"):
        if "cannot be drawn" in broken.text:
            fail(f"{file}: {broken.text}")


def shown_number(text):
    number, unit = text.replace(",", "").split(" ", 1)
    return float(number) * UNITS[unit]


def check_summary(root, wanted):
    results = [one for document in wanted for one in document.get("results", [])]
    rows = root.one("table.summary").one("tbody").list("tr")
    expect("rows of the summary", len(rows), len(results))
    for row, result in zip(rows, results):
        values = {**result.get("latency_ns", {}), "bytes": result["bytes"], "bytes_per_s": result.get("bytes_per_s"), "operations_per_s": result.get("operations_per_s")}
        if result["op"] not in row.text or result["path"] not in row.text:
            fail(f"the row of {result['op']} on {result['path']} is {row.text}")
        for key in ("bytes", "typical", "p99", "p99_9", "bytes_per_s", "operations_per_s"):
            cell = row.one("td", data_key=key)
            if values.get(key) is None:
                expect(f"{key} that was not measured", cell.text, "–")
                continue
            expect(f"{key} of {result['op']} on {result['path']}", cell.number(), values[key])
            if key != "bytes" and values[key] and abs(shown_number(cell.text) / values[key] - 1) > 0.006:
                fail(f"{key} of {result['op']} on {result['path']} is shown as {cell.text}, and is {values[key]}")
        interval = row.one("td", data_key="interval")
        if "interval" in result:
            expect("the interval", (float(interval["data-low"]), float(interval["data-high"])), (result["interval"]["low"], result["interval"]["high"]))
        else:
            expect("the interval of few rounds", interval.text, "–")


def percentile(histogram, fraction):
    rank, before = max(1, math.ceil(fraction * sum(samples for _, samples in histogram) - 1e-6)), 0
    for value, samples in histogram:
        before += samples
        if before >= rank:
            return value
    return histogram[-1][0]


def check_percentiles(root, results):
    """`results`: by the names of their series."""
    chart = root.one("svg.percentiles")
    lines = {line["data-series"]: line for line in chart.list("path.line")}
    expect("lines of percentiles", set(lines), set(results))
    expect("ticks of percentiles", [tick.text for tick in chart.one("g.axis.x").list("text")], TICKS)
    for series, result in results.items():
        histogram = result["histogram_ns"]
        total = sum(samples for _, samples in histogram)
        expect(f"samples of {series}", total, result["iterations"])
        last, points, before = -math.log10(0.5), 1, 0
        for _, samples in histogram:
            before += samples
            at = min(6, math.log10(2 * total), -math.log10(1 - before / total) if before < total else math.inf)
            if at > last + 1e-12:
                last, points = at, points + 1
        expect(f"points of {series}", int(lines[series]["data-points"]), points)
        expect(f"points drawn of {series}", len(re.findall(r"[MLHV]", lines[series]["d"])) >= points, True)
        marks = {float(mark["data-percentile"]): mark.number() for mark in chart.list("path.mark", data_series=series)}
        expect(f"marks of {series}", marks, {fraction: percentile(histogram, fraction) for fraction in PERCENTILES if total * (1 - fraction) >= 0.999999})
        row = root.one("table.percentile-values").one("tr", data_series=series)
        for key, name in (("0.5", "typical"), ("0.99", "p99"), ("0.999", "p99_9"), ("0.999999", "p99_9999"), ("max", "max")):
            expect(f"{name} of {series}", row.one("td", data_key=key).number(), result["latency_ns"][name])


def is_noisy(a_round):
    return a_round["steal_ms"] > 0 or a_round["migrations"] > 0


def check_slices(series, chart, result, slices):
    expect(f"lines over time of {series}", sorted(line["class"] for line in chart.list("path.line")), ["line median", "line p99"])
    expect(f"points over time of {series}", [int(line["data-points"]) for line in chart.list("path.line")], [len(slices)] * 2)
    expect(f"greatest latencies of {series}", [mark.number() for mark in chart.one("g.greatest").list("circle")],
           [one["max_ns"] for one in slices if one["max_ns"] > 0])
    expect(f"operations over time of {series}", [mark.number() for mark in chart.list("rect.operations")], [one["operations"] for one in slices])
    expect(f"rounds over time of {series}", len(chart.list("line.round")), len(result["rounds"]))
    expect(f"noisy rounds over time of {series}", {mark["data-round"] for mark in chart.list("rect.noisy")},
           {str(number) for number, one in enumerate(result["rounds"], 1) if is_noisy(one)})


def check_time_and_rounds(root, results):
    charts = {chart["data-series"]: chart for chart in root.list("svg.over-time")}
    expect("charts over time", set(charts), {series for series, result in results.items() if result["over_time"]})
    strips = {strip["data-series"]: strip for strip in root.list("g.strip")}
    expect("strips of rounds", set(strips), set(results))
    for series, result in results.items():
        slices = result["over_time"]
        if slices:
            check_slices(series, charts[series], result, slices)
        noisy = {str(number) for number, one in enumerate(result["rounds"], 1) if is_noisy(one)}
        marks = strips[series].list("circle.mark")
        expect(f"rounds of {series}", [mark.number() for mark in marks], [one["median_ns"] for one in result["rounds"] if one["median_ns"] > 0])
        expect(f"noisy rounds of {series}", {mark["data-round"] for mark in marks if "disturbed" in mark.classes}, noisy)
        interval = strips[series].list("rect.interval")
        expect(f"intervals of {series}", [(float(one["data-low"]), float(one["data-high"])) for one in interval],
               [(result["interval"]["low"], result["interval"]["high"])] if "interval" in result else [])


def check_paths_and_stages(root, results):
    """`results`: of all operations, which all have one size."""
    for key in ("typical", "p99"):
        bars = {(bar["data-op"], bar["data-series"]): bar.number() for bar in root.one(f"svg.paths.{key}").list("rect.bar")}
        expect(f"bars of {key}", bars, {(one["op"], one["path"]): one["latency_ns"][key] for one in results})
    requests = {(request["data-op"], request["data-series"]): request for request in root.one("svg.stages").list("g.request")}
    expect("bars of stages", set(requests), {(one["op"], one["path"]) for one in results if "stages_ns" in one or one["path"] in ("direct", "event")})
    for one in results:
        if "stages_ns" in one:
            stages = requests[one["op"], one["path"]].list("rect.stage")
            expect(f"stages of {one['op']} on {one['path']}", [(stage.classes[1], stage.number()) for stage in stages],
                   [(stage, one["stages_ns"][stage]["median"]) for stage in STAGES])


def check_sizes(root, results):
    for name, value in (("throughput", lambda one: one["bytes_per_s"]), ("rate", lambda one: one["operations_per_s"]),
                        ("latency", lambda one: one.get("latency_ns", {}).get("typical"))):
        wanted = {one["bytes"]: value(one) for one in results if value(one)}
        if not wanted:
            continue
        chart = root.one(f"svg.sizes.{name}")
        expect(f"lines of {name}", [(line["data-series"], int(line["data-points"])) for line in chart.list("path.line")], [("direct", len(wanted))])
        expect(f"marks of {name}", {int(mark["data-bytes"]): mark.number() for mark in chart.list("path.mark")}, wanted)


def check_mesh(root, document):
    for name, key, what in (("latency", "latency_ns", "latency"), ("bandwidth", "bandwidth_bytes_per_s", "bandwidth")):
        chart = root.one(f"svg.heat.{name}")
        cells = {(int(cell["data-from"]), int(cell["data-to"])): cell for cell in chart.list("rect.cell")}
        expect(f"cells of {name}", {place: cell.number() if cell.get("data-value") else None for place, cell in cells.items()},
               {(origin, to): document[key][origin][to] for origin in range(RANKS) for to in range(RANKS)})
        expect(f"empty cells of {name}", {place for place, cell in cells.items() if "none" in cell.classes}, {(rank, rank) for rank in range(RANKS)})
        expect(f"numbers in {name}", len(chart.list("text.number")), RANKS * (RANKS - 1))
        expect(f"outlined cells of {name}", [(int(mark["data-from"]), int(mark["data-to"])) for mark in chart.list("rect.outlier")],
               [(one["from"], one["to"]) for one in document["outliers"] if one["what"] == what])
    expect("named outliers", [item.text for item in root.one("ul.outliers").list("li")], [one["text"] for one in document["outliers"]])
    incast = root.one("svg.incast").list("g.row")
    expect("incasts", [(row.number(), [bar.number() for bar in row.list("rect.bar")]) for row in incast],
           [(one["bytes_per_s"], one["per_sender_bytes_per_s"]) for one in document["incast"]])
    expect("ranks of all to all", [row.number() for row in root.one("svg.all-to-all").list("g.row")], document["all_to_all"]["per_rank_bytes_per_s"])


# ---- The pages ----

def report(directory, name, files, *options):
    page = directory / f"{name}.html"
    run("report", *files, "-o", page, *options)
    return page


def one_document(browser, directory, files, read):
    document = read["latency"]
    page = report(directory, "latency", [files["latency"]], "--title", "Latency & <paths>")
    for op in OPERATIONS:
        results = {one["path"]: one for one in document["results"] if one["op"] == op}
        if len(results) < 3:
            fail(f"only {set(results)} were measured")
        root = browser.load(page, f"#op={op}")
        check_page(page, root, [document])
        expect("the title", root.one("h1").text, "Latency & <paths>")
        check_percentiles(root, results)
        check_time_and_rounds(root, results)
    passed(f"percentiles up to {TICKS[-1]}, the course over time and the rounds of {len(results)} paths, for each of {len(OPERATIONS)} operations")
    check_summary(root, [document])
    check_paths_and_stages(root, document["results"])
    if document["host"]["name"] not in root.one("ol.documents").text or document["command"] not in root.one("ol.documents").text:
        fail("the head does not say what was measured, and where")
    rows = {row.one("th").text: row.one("td").text for row in root.one("table.settings").list("tr", data_group="setting")}
    expect("settings", rows, {name: value for name, value in document["settings"].items() if value})
    expect("hops", len(root.one("table.hops").one("tbody").list("tr")) if document["hops"] else 0, len(document["hops"]))
    expect("warnings", [item.text for item in root.list("section.warnings") for item in item.list("li")], document["warnings"])
    if not any("one size only" in one.text for one in root.list("p.empty")):
        fail("no sentence stands in place of the charts against size")
    passed("the table, the paths side by side, the stages, the settings and the warnings are those of the document")

    page = report(directory, "sweep", [files["sweep"]])
    root = browser.load(page)
    check_page(page, root, [read["sweep"]])
    check_summary(root, [read["sweep"]])
    check_sizes(root, read["sweep"]["results"])
    passed(f"a sweep of {len(read['sweep']['results'])} sizes is drawn against size")

    page = report(directory, "mesh", [files["mesh"]])
    root = browser.load(page)
    check_page(page, root, [read["mesh"]])
    check_mesh(root, read["mesh"])
    expect("the warning", [item.text for item in root.one("section.warnings").list("li")], [HOSTILE])
    expect("charts of results on the page of a mesh", root.list("svg.percentiles"), [])
    passed("the mesh's maps have the numbers of its matrices, and outliers are named and outlined")


def compared(browser, directory, files, read):
    names = ("latency", "sweep", "open", "mesh")
    wanted = [read[name] for name in names]
    page = report(directory, "compared", [files[name] for name in names], "--title", "Compared")
    root = browser.load(page, "#op=read")
    check_page(page, root, wanted)
    check_summary(root, wanted)
    check_mesh(root, read["mesh"])
    size = read["latency"]["results"][0]["bytes"]
    results = {f"{letter} {one['path']}": one for letter, document in zip("ABC", wanted) for one in document["results"]
               if one["op"] == "read" and one["bytes"] == size and one.get("histogram_ns")}
    if "A direct" not in results or "C direct" not in results:
        fail(f"a closed and an open loop cannot be compared: {set(results)}")
    if not results["C direct"]["over_time"]:
        fail("a run of half a second has no course over time")
    check_percentiles(root, results)
    check_time_and_rounds(root, results)
    said = [item.text for item in root.one("ol.documents").list("li")]
    for letter, text, document in zip("ABCD", said, wanted):
        if not text.startswith(letter) or document["command"] not in text or document["host"]["name"] not in text:
            fail(f"document {letter} is called {text}")
    if HOSTILE not in root.one("section.warnings").text or "offered" not in root.one("table.summary").text:
        fail("the warnings, or the rates that were offered, are not shown")
    passed(f"{len(names)} documents are compared in one page")
    return page


LOOK = """
const move = (node, x) => {
    const box = node.getBoundingClientRect();
    node.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + box.width * x, clientY: box.top + box.height / 2, bubbles: true}));
    document.body.append(Object.assign(document.createElement("pre"), {className: "seen", textContent: document.querySelector(".tip").textContent}));
};
move(document.querySelector("svg.percentiles .catch"), 0);
move(document.querySelector("svg.over-time[data-series='C direct'] .catch"), 0.001);
move(document.querySelector("svg.paths rect.bar"), 0.5);
move(document.querySelector("svg.heat rect.cell:not(.none)"), 0.5);
const select = document.getElementById("op");
select.value = "write";
select.dispatchEvent(new Event("change"));
"""


def exactly(value):
    """As the page writes a value of more than 10."""
    return f"{round(value, 1):,}".removesuffix(".0")


def used(browser, page, read):
    root = browser.load(page, "#op=read", LOOK)
    seen = [one.text for one in root.list("pre.seen")]
    results = read["latency"]["results"]
    direct = next(one for one in results if one["op"] == "read" and one["path"] == "direct")
    first = next(one for one in results if one["op"] == OPERATIONS[0])
    wanted = [percentile(direct["histogram_ns"], 0.5), read["open"]["results"][0]["over_time"][0]["operations"], first["latency_ns"]["typical"], read["mesh"]["latency_ns"][0][1]]
    for text, value in zip(seen, wanted, strict=True):
        if not any(exactly(near) in text for near in (value - 0.05, value, value + 0.05)):
            fail(f"the pointer shows {text!r} without {exactly(value)}")
    writes = {line["data-series"] for line in root.one("svg.percentiles").list("path.line")}
    if "write" not in root.one("svg.percentiles").one("title").text or not {f"A {one['path']}" for one in results} <= writes:
        fail(f"after another operation was chosen, the lines are {writes}")
    passed("the pointer shows exact numbers, and another operation can be chosen")


def little_data(browser, directory):
    """Each chart that has no data is a sentence."""
    head = {"version": "0", "format": 2, "command": "a command", "began": "2026-11-29T07:20:00Z"}
    result = {"op": "write", "path": "direct", "bytes": 8, "iterations": 0, "operations": 5, "seconds": 0.5, "operations_per_s": 10, "bytes_per_s": 80}
    made = {"bare": {"program": "pollperf rate", **head, "results": [result]}, "empty": {"program": "pollperf lat", **head, "results": []},
            "bare-mesh": {"program": "pollperf-mesh", **head, "ranks": []}}
    for name, document in made.items():
        file = directory / f"{name}.json"
        file.write_text(json.dumps(document))
        page = report(directory, name, [file])
        root = browser.load(page)
        check_page(page, root, [document])
        sentences = root.list("p.empty")
        expect(f"charts of {name}", root.list("svg.chart"), [])
        expect(f"sentences of {name}", len(sentences), {"bare": 6, "empty": 1, "bare-mesh": 4}[name])
        if any(not sentence.text.endswith(".") for sentence in sentences):
            fail(f"{name} says {[sentence.text for sentence in sentences]}")
    passed("what was not measured is said in a sentence")


def at_once(browser, directory):
    """A run writes its page itself."""
    page, file = directory / "at-once.html", directory / "at-once.json"
    run("lat", "-d", "soft0", "--path", "direct", "-o", "write", "-n", "1000", "--rounds", "6", "--json", file, "--report", page)
    document = json.loads(file.read_text())
    root = browser.load(page)
    check_page(page, root, [document])
    check_summary(root, [document])
    passed("a run writes its page itself")


def refused(directory, files):
    other = directory / "other.json"
    page = directory / "none.html"
    for text in ('{"program": "fio", "format": 2}', '{"program": "pollperf lat", "format": 1}', "no JSON"):
        other.write_text(text)
        if not run("report", files["latency"], other, "-o", page, code=1) or page.exists():
            fail(f"{text} is not refused with a sentence")
    passed("what is none of pollperf's documents is refused")


def main():
    if sys.argv[1:2] not in ([], ["--keep"]) or len(sys.argv) not in (1, 3):
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(sys.argv[2] if len(sys.argv) == 3 else name)
        directory.mkdir(parents=True, exist_ok=True)
        browser = Browser(pathlib.Path(name))
        files, read = documents(directory)
        one_document(browser, directory, files, read)
        page = compared(browser, directory, files, read)
        used(browser, page, read)
        little_data(browser, directory)
        at_once(browser, directory)
        refused(directory, files)


if __name__ == "__main__":
    main()
