// Draws the page. The documents (FORMAT.md) are in the element #data, as an array. Each chart is an <svg class="chart ..."
// with role="img" and a <title>; its marks carry what they show in data- attributes.
"use strict";
(() => {

const documents = JSON.parse(document.getElementById("data").textContent);
const main = d3.select("main");

// ---- Numbers in words ----

const kMissing = "–";
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const exact = (value, unit) => isNumber(value)
    ? value.toLocaleString("en-US", {maximumFractionDigits: Math.abs(value) < 10 ? 3 : 1}) + (unit ? " " + unit : "") : kMissing;

const kNanoseconds = [[1, "ns"], [1e3, "µs"], [1e6, "ms"], [1e9, "s"]];
const kBytesPerSecond = [[1, "B/s"], [1e3, "kB/s"], [1e6, "MB/s"], [1e9, "GB/s"], [1e12, "TB/s"]];
const kOperationsPerSecond = [[1, "/s"], [1e3, "k/s"], [1e6, "M/s"], [1e9, "G/s"]];

/// The unit in which a value has one to three digits before the point.
function unit_for(value, units) {
    return units.reduce((best, unit) => Math.abs(value) >= unit[0] * 0.9995 ? unit : best, units[0]);
}
/// Three digits, or all digits before the point.
function three_digits(value) {
    if (value === 0) {
        return "0";
    }
    const before = Math.floor(Math.log10(Math.abs(value)) + 1e-9) + 1;
    return value.toFixed(Math.min(6, Math.max(0, 3 - before)));
}
function in_unit(value, units) {
    if (!isNumber(value)) {
        return kMissing;
    }
    const [factor, name] = unit_for(value, units);
    return `${three_digits(value / factor)} ${name}`;
}
/// As the label of a tick: without zeros at the end.
function tick(value, units) {
    const [factor, name] = unit_for(value, units);
    return `${Number((value / factor).toPrecision(4))} ${name}`;
}
const time = (value) => in_unit(value, kNanoseconds);
const bytes_rate = (value) => in_unit(value, kBytesPerSecond);
const operations_rate = (value) => in_unit(value, kOperationsPerSecond);

function size(bytes) {
    for (const [factor, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
        if (bytes >= factor && bytes % factor === 0) {
            return `${bytes / factor} ${name}`;
        }
    }
    return `${exact(bytes)} B`;
}
function percent(fraction) {
    return `${Number((fraction * 100).toPrecision(9))} %`;
}
function list(words) {
    return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}`;
}
const distinct = (values) => [...new Set(values)];

// The figures that a round or an interval can be of.
const kFigures = {
    typical_ns: {name: "median latency of the round", units: kNanoseconds},
    bytes_per_s: {name: "throughput of the round", units: kBytesPerSecond},
    operations_per_s: {name: "operations of the round in a second", units: kOperationsPerSecond},
};

// ---- Series: what one document has measured on one path ----

const kPaths = ["direct", "event", "runtime", "attached"];
const is_mesh = (document) => document.program === "pollperf-mesh";
const compared = documents.length > 1;
const letter = (index) => documents.length > 26 ? String(index + 1) : String.fromCharCode(65 + index);

const results = documents.flatMap((document, index) => (is_mesh(document) ? [] : document.results ?? [])
    .map((result) => ({...result, index})));
const meshes = documents.map((document, index) => ({document, index})).filter((one) => is_mesh(one.document));

// What results of one document, operation, path and size can differ in.
const kVariants = {
    transport: (value) => value,
    queue_pairs: (value) => `${value} queue pairs`,
    sessions: (value) => `${value} sessions`,
    threads: (value) => `${value} threads`,
    workers: (value) => `${value} workers`,
    bidirectional: (value) => value ? "both directions" : "one direction",
    offered_per_s: (value) => value ? `${tick(value, kOperationsPerSecond)} offered` : "closed loop",
};

function name_series() {
    const varying = new Set();
    const alike = d3.nest().key((one) => [one.index, one.op, one.path, one.bytes].join()).entries(results);
    for (const {values} of alike) {
        Object.keys(kVariants).filter((key) => distinct(values.map((one) => one[key])).length > 1)
            .forEach((key) => varying.add(key));
    }
    const kinds = [];
    for (const one of results) {
        one.kind = [one.path, ...[...varying].map((key) => kVariants[key](one[key]))].join(", ");
        kinds.push(one.kind);
    }
    // Results that differ in nothing that is known here are numbered.
    for (const {values} of d3.nest().key((one) => [one.index, one.op, one.kind, one.bytes].join("\n")).entries(results)) {
        values.slice(1).forEach((one, i) => kinds.push(one.kind = `${one.kind}, no. ${i + 2}`));
    }
    const order = distinct(kinds);
    order.sort((a, b) => kPaths.indexOf(a.split(",")[0]) - kPaths.indexOf(b.split(",")[0]));
    // A path has the same colour in every page. If all is of one path, the colours tell the documents apart.
    const plain = order.every((kind) => kPaths.includes(kind));
    const of_documents = order.length === 1 && compared;
    for (const one of results) {
        one.series = compared ? `${letter(one.index)} ${one.kind}` : one.kind;
        one.color = (of_documents ? one.index : plain ? kPaths.indexOf(one.kind) : order.indexOf(one.kind)) % 8;
        one.dash = of_documents ? 0 : one.index % kDashes.length;
        one.symbol = (of_documents ? one.index : order.indexOf(one.kind) + one.index) % d3.symbols.length;
    }
}
const kDashes = [null, "7 4", "2 3", "9 3 2 3"];
name_series();
const series_color = (one) => `var(--c${one.color})`;

/// What a latency of this result is.
const meaning = (one) => one.half_round_trip ? "half a round trip"
    : one.offered_per_s ? "from when the request was due to its completion" : "from post to completion";
const short_meaning = (one) => one.half_round_trip ? "half a trip" : one.offered_per_s ? "from due" : "from post";
const main_figure = (one) => one.interval?.of ?? (one.rounds?.some((round) => round.median_ns > 0) ? "typical_ns"
    : "operations_per_s");
function figure_of_round(one, round) {
    if (main_figure(one) === "typical_ns") {
        return round.median_ns;
    }
    const rate = round.seconds > 0 ? round.operations / round.seconds : NaN;
    return main_figure(one) === "bytes_per_s" ? rate * one.bytes : rate;
}
const is_noisy = (round) => round.steal_ms > 0 || round.migrations > 0;

/// The histogram with running totals, for percentiles.
function running(one) {
    if (!one.running) {
        let total = 0;
        const buckets = (one.histogram_ns ?? []).map(([value, samples]) => ({value, end: total += samples}));
        one.running = {buckets, total};
    }
    return one.running;
}
function percentile(one, fraction) {
    const {buckets, total} = running(one);
    const rank = Math.max(1, Math.ceil(fraction * total - 1e-6));
    return buckets[Math.min(buckets.length - 1, d3.bisector((bucket) => bucket.end).left(buckets, rank))]?.value;
}

// ---- Elements ----

/// A part of the page. If it cannot be drawn, the other parts still are.
function part(parent, id, heading, draw) {
    const section = parent.append("section").attr("id", id);
    section.append("h2").text(heading);
    const body = section.append("div");
    const redraw = () => {
        body.selectAll("*").remove();
        try {
            draw(body);
        } catch (error) {
            console.error(error);
            empty(body, `This part cannot be drawn: ${error.message}`);
        }
    };
    redraw();
    return redraw;
}
const note = (parent, text) => parent.append("p").attr("class", "note").text(text);
const empty = (parent, text) => parent.append("p").attr("class", "empty").text(text);

function table(parent, name, columns) {
    const node = parent.append("div").attr("class", "wide").append("table").attr("class", name);
    const head = node.append("thead").append("tr");
    for (const column of columns) {
        head.append("th").attr("scope", "col").attr("class", column.number ? "number" : null).text(column.name);
    }
    return node.append("tbody");
}
/// A number whose exact value stands in data-value and in the tooltip.
function number_cell(row, key, value, text, unit) {
    return row.append("td").attr("class", "number").attr("data-key", key).attr("data-value", isNumber(value) ? value : null)
        .attr("title", isNumber(value) ? exact(value, unit) : null).text(text);
}
function letter_cell(row, index) {
    row.append("td").append("span").attr("class", "letter").text(letter(index));
}

/// A figure with an empty chart.
function chart(parent, {name, caption, title, width = 1040, height, margin}) {
    const figure = parent.append("figure");
    if (caption) {
        figure.append("figcaption").text(caption);
    }
    const svg = figure.append("svg").attr("class", `chart ${name}`).attr("role", "img").attr("viewBox", [0, 0, width, height]);
    const id = `title${chart.count = (chart.count ?? 0) + 1}`;
    svg.append("title").attr("id", id).text(title);
    svg.attr("aria-labelledby", id);
    const plot = svg.append("g").attr("transform", `translate(${margin.left},${margin.top})`);
    return {figure, svg, plot, width: width - margin.left - margin.right, height: height - margin.top - margin.bottom, margin};
}
function bottom_axis(place, scale, ticks, format, title, grid = true) {
    const axis = d3.axisBottom(scale).tickValues(ticks).tickFormat(format).tickSizeOuter(0);
    if (grid) {
        place.plot.append("g").attr("class", "grid").attr("transform", `translate(0,${place.height})`)
            .call(d3.axisBottom(scale).tickValues(ticks).tickFormat("").tickSize(-place.height).tickSizeOuter(0))
            .select(".domain").remove();
    }
    place.plot.append("g").attr("class", "axis x").attr("transform", `translate(0,${place.height})`).call(axis);
    place.plot.append("text").attr("class", "axis-title").attr("x", place.width / 2).attr("y", place.height + 36)
        .attr("text-anchor", "middle").text(title);
}
function left_axis(place, scale, ticks, format, title, top = 0, height = place.height) {
    place.plot.append("g").attr("class", "grid")
        .call(d3.axisLeft(scale).tickValues(ticks).tickFormat("").tickSize(-place.width).tickSizeOuter(0))
        .select(".domain").remove();
    place.plot.append("g").attr("class", "axis y")
        .call(d3.axisLeft(scale).tickValues(ticks).tickFormat(format).tickSizeOuter(0));
    place.plot.append("text").attr("class", "axis-title").attr("text-anchor", "middle")
        .attr("transform", `translate(${14 - place.margin.left},${top + height / 2}) rotate(-90)`).text(title);
}

/// A logarithmic scale for positive values, and its ticks: as many as there is room for.
function log_scale(values, range, most = 8) {
    const low = d3.min(values), high = d3.max(values);
    const steps = [];
    for (let power = Math.floor(Math.log10(low)) - 1; power <= Math.log10(high) + 1; ++power) {
        steps.push(1 * 10 ** power, 2 * 10 ** power, 5 * 10 ** power);
    }
    const below = steps.filter((step) => step <= low * 1.0001), above = steps.filter((step) => step >= high * 0.9999);
    let domain = [below[below.length - 1], above[0]];
    if (domain[0] === domain[1]) {
        domain = [domain[0] / 2, domain[1] * 2];
    }
    // Close values would be lost between two such steps.
    if (high / low < 1.6) {
        const room = Math.max(high - low, high * 0.02) * 0.3;
        domain = [low - room, high + room];
    }
    const scale = d3.scaleLog().domain(domain).range(range);
    const inside = (candidates) => candidates.filter((step) => step >= domain[0] * 0.9999 && step <= domain[1] * 1.0001);
    const powers = steps.filter((_, i) => i % 3 === 0);
    let ticks = inside(steps);
    if (ticks.length > most) {
        ticks = inside(powers);
    }
    for (let every = 2; ticks.length > most; ++every) {
        ticks = inside(powers.filter((_, i) => i % every === 0));
    }
    if (ticks.length < 3) {
        ticks = d3.ticks(domain[0], domain[1], Math.min(5, most));
    }
    return {scale, ticks};
}

/// Line and symbol of a series, for a legend.
function swatch(parent, one) {
    const svg = parent.append("svg").attr("width", 30).attr("height", 14).attr("aria-hidden", "true");
    svg.append("line").attr("x1", 0).attr("x2", 30).attr("y1", 7).attr("y2", 7).style("stroke", series_color(one))
        .attr("stroke-width", 2).attr("stroke-dasharray", kDashes[one.dash]);
    svg.append("path").attr("transform", "translate(15,7)").attr("d", symbol(one, 44)()).style("fill", series_color(one));
}
const symbol = (one, area) => d3.symbol().type(d3.symbols[one.symbol]).size(area);
function legend(parent, shown) {
    const items = parent.append("ul").attr("class", "legend");
    for (const one of d3.nest().key((each) => each.series).entries(shown).map((entry) => entry.values[0])) {
        const item = items.append("li");
        swatch(item, one);
        item.append("span").text(one.series);
    }
    return items;
}
function color_legend(parent, entries) {
    const items = parent.append("ul").attr("class", "legend");
    for (const [style, text] of entries) {
        const item = items.append("li");
        const svg = item.append("svg").attr("width", 16).attr("height", 14).attr("aria-hidden", "true");
        style(svg);
        item.append("span").text(text);
    }
}
const box = (color, opacity = 1) => (svg) => svg.append("rect").attr("y", 1).attr("width", 16).attr("height", 12)
    .style("fill", color).style("fill-opacity", opacity);

// ---- What the pointer shows ----

const tip = d3.select("body").append("div").attr("class", "tip");
/// Rows are [series or null, label, value].
function show_tip(event, heading, rows) {
    tip.selectAll("*").remove();
    tip.append("b").text(heading);
    const body = tip.append("table").append("tbody");
    for (const [one, label, value] of rows) {
        const row = body.append("tr");
        const cell = row.append("td");
        if (one) {
            swatch(cell, one);
        }
        row.append("td").text(label);
        row.append("td").attr("class", "number").text(value);
    }
    const box = tip.style("display", "block").node().getBoundingClientRect();
    const x = event.clientX + 18 + box.width > window.innerWidth ? event.clientX - 14 - box.width : event.clientX + 18;
    const y = Math.min(event.clientY + 14, window.innerHeight - box.height - 6);
    tip.style("left", `${Math.max(4, x)}px`).style("top", `${Math.max(4, y)}px`);
}
const hide_tip = () => tip.style("display", "none");
function explain(mark, heading, rows) {
    mark.node().addEventListener("pointermove", (event) => show_tip(event, heading, rows));
    mark.node().addEventListener("pointerleave", hide_tip);
    return mark;
}
/// Calls `at(x)` while the pointer is over the plot. It returns {x, heading, rows}, or nothing.
function explain_by_x(place, at) {
    const cursor = place.plot.append("line").attr("class", "cursor").attr("y1", 0).attr("y2", place.height).style("display", "none");
    const area = place.plot.append("rect").attr("class", "catch").attr("width", place.width).attr("height", place.height).node();
    area.addEventListener("pointermove", (event) => {
        const inverse = area.getScreenCTM().inverse();
        const found = at(new DOMPoint(event.clientX, event.clientY).matrixTransform(inverse).x);
        if (!found) {
            return;
        }
        cursor.attr("x1", found.x).attr("x2", found.x).style("display", null);
        show_tip(event, found.heading, found.rows);
    });
    area.addEventListener("pointerleave", () => {
        cursor.style("display", "none");
        hide_tip();
    });
}

// ---- The head of the page ----

function what(document) {
    if (is_mesh(document)) {
        return `A mesh of ${document.ranks?.length ?? "?"} ranks`;
    }
    const kind = {"pollperf lat": "Latency", "pollperf bw": "Throughput", "pollperf rate": "Message rate"}[document.program]
        ?? document.program;
    const all = document.results ?? [];
    const sizes = distinct(all.map((one) => one.bytes)).sort((a, b) => a - b);
    const rates = distinct(all.map((one) => one.offered_per_s).filter(Boolean));
    const paths = distinct(all.map((one) => one.path));
    return `${kind} of ${list(distinct(all.map((one) => one.op))) || "nothing"}` +
        (sizes.length === 0 ? "" : `, ${sizes.length > 3 ? `${sizes.length} sizes from ${size(sizes[0])} to ${size(sizes[sizes.length - 1])}` : list(sizes.map(size))}`) +
        (paths.length === 0 ? "" : `, ${paths.length > 1 ? "paths" : "path"} ${list(paths)}`) +
        (rates.length === 0 ? "" : `, open loop at ${list(rates.map((rate) => tick(rate, kOperationsPerSecond)))}`);
}
const kHostFacts = [["name", "name"], ["cpu", "CPU"], ["cpus_online", "CPUs online"], ["kernel", "kernel"], ["governor", "governor of frequencies"],
    ["hypervisor", "hypervisor"], ["isolated_cpus", "isolated CPUs"], ["clock", "clock"]];
function host_line(host) {
    return `${host.name ?? "a host without a name"}: ` + [host.cpu, isNumber(host.cpus_online) ? `${host.cpus_online} CPUs` : null,
        host.kernel && `Linux ${host.kernel}`.replace("Linux Linux", "Linux"), host.hypervisor && `on ${host.hypervisor}`].filter(Boolean).join(", ");
}
function when(began) {
    const date = new Date(began);
    return Number.isNaN(date.getTime()) ? began ?? "unknown" : `${date.toISOString().slice(0, 16).replace("T", " ")} UTC`;
}

function head() {
    main.append("h1").text(document.title);
    const warned = documents.map((one, index) => ({index, warnings: one.warnings ?? []})).filter((one) => one.warnings.length > 0);
    if (warned.length > 0) {
        const all = main.append("section").attr("class", "warnings").attr("role", "note");
        all.append("h2").text("Read this before you believe the figures");
        const items = all.append("ul");
        for (const {index, warnings} of warned) {
            for (const warning of warnings) {
                const item = items.append("li");
                if (compared) {
                    item.append("span").attr("class", "letter").text(letter(index));
                }
                item.append("span").text(warning);
            }
        }
    }
    const items = main.append("ol").attr("class", "documents");
    documents.forEach((one, index) => {
        const item = items.append("li");
        const first = item.append("div").attr("class", "what");
        if (compared) {
            first.append("span").attr("class", "letter").text(letter(index));
        }
        first.append("span").text(what(one));
        const second = item.append("div");
        second.append("code").text(one.command ?? one.program);
        second.append("span").text(` on ${one.host?.name ?? "an unnamed host"}`);
        const facts = item.append("div").attr("class", "facts");
        facts.append("div").text([`Began ${when(one.began)}`, one.device && `device ${one.device}`, one.peer && `peer ${one.peer}`,
            one.verified === undefined ? null : one.verified ? "every byte was checked" : "the bytes were not checked",
            `pollcore ${one.version ?? "of an unknown version"}`].filter(Boolean).join("; "));
        for (const host of [one.host, one.peer_host].filter(Boolean)) {
            facts.append("div").text(host_line(host));
        }
        if (one.round_trip_ns) {
            facts.append("div").text(`One word to the worker's CPU and back takes ${time(one.round_trip_ns.typical)}`);
        }
    });
    settings();
}

/// Settings and hosts of all documents, side by side. What differs is marked.
function settings() {
    const groups = [
        ["setting", (one) => Object.entries(one.settings ?? {})],
        ["host", (one) => kHostFacts.map(([key, name]) => [name, one.host?.[key]])],
        ["host of the peer", (one) => kHostFacts.map(([key, name]) => [name, one.peer_host?.[key]])],
        ["found", (one) => [["device", one.device], ["peer", one.peer], ["memory", one.memory?.description],
            ["huge pages", one.memory && (one.memory.hugepages ? "yes" : "no")], ["CPUs of the round trip", one.round_trip_ns?.cpus?.join(" and ")],
            ["pollcore", one.version]]]];
    const all = main.append("details").attr("class", "settings");
    all.append("summary").text("Settings and hosts" + (compared ? ", with marks where they differ" : ""));
    const body = table(all, "settings", [{name: ""}, ...documents.map((_, index) => ({name: compared ? letter(index) : "value"}))]);
    for (const [group, of] of groups) {
        const texts = documents.map((one) => new Map(of(one).filter(([, value]) => value !== undefined && value !== null && value !== "")
            .map(([name, value]) => [name, String(value)])));
        const names = distinct(texts.flatMap((found) => [...found.keys()]));
        if (names.length > 0) {
            body.append("tr").attr("class", "group").append("th").attr("scope", "rowgroup").attr("colspan", documents.length + 1).text(group);
        }
        for (const name of names) {
            const values = texts.map((found) => found.get(name) ?? kMissing);
            const row = body.append("tr").attr("class", distinct(values).length > 1 ? "differs" : null).attr("data-group", group);
            row.append("th").attr("scope", "row").text(name);
            values.forEach((value) => row.append("td").text(value));
        }
    }
}

// ---- All results in one table ----

function summary(parent) {
    if (results.length === 0) {
        empty(parent, "The documents have no results.");
        return;
    }
    const open_loop = results.some((one) => one.offered_per_s);
    const columns = [...(compared ? [{name: "document"}] : []), {name: "operation"}, {name: "size", number: true}, {name: "path"},
        {name: "typical", number: true}, {name: "p99", number: true}, {name: "p99.9", number: true}, {name: "latency"},
        {name: "throughput", number: true}, {name: "operations", number: true}, ...(open_loop ? [{name: "offered", number: true}] : []),
        {name: "interval, 95 %", number: true}];
    const body = table(parent, "summary", columns);
    for (const one of results) {
        const row = body.append("tr").attr("data-series", one.series).attr("data-op", one.op).attr("data-bytes", one.bytes);
        if (compared) {
            letter_cell(row, one.index);
        }
        row.append("td").text(one.op);
        number_cell(row, "bytes", one.bytes, size(one.bytes), "B");
        row.append("td").text(one.kind);
        for (const key of ["typical", "p99", "p99_9"]) {
            number_cell(row, key, one.latency_ns?.[key], time(one.latency_ns?.[key]), "ns");
        }
        row.append("td").attr("class", "word").attr("title", one.latency_ns ? meaning(one) : null).text(one.latency_ns ? short_meaning(one) : kMissing);
        number_cell(row, "bytes_per_s", one.bytes_per_s, bytes_rate(one.bytes_per_s), "B/s");
        number_cell(row, "operations_per_s", one.operations_per_s, operations_rate(one.operations_per_s), "operations/s");
        if (open_loop) {
            number_cell(row, "offered_per_s", one.offered_per_s, one.offered_per_s ? operations_rate(one.offered_per_s) : kMissing, "/s");
        }
        const interval = one.interval;
        const text = (value) => in_unit(value, kFigures[interval.of]?.units ?? kOperationsPerSecond);
        row.append("td").attr("class", "number").attr("data-key", "interval").attr("data-low", interval?.low).attr("data-high", interval?.high)
            .attr("title", interval ? `${exact(interval.low)} to ${exact(interval.high)}, ${interval.of}` : "there are fewer than 6 rounds")
            .text(interval ? `${text(interval.low)} to ${text(interval.high)}` : kMissing);
    }
    note(parent, `Typical is the median. Latency: ${list(distinct(results.filter((one) => one.latency_ns).map((one) => `"${short_meaning(one)}" is ${meaning(one)}`)))}. ` +
        "The interval holds the median of the rounds with a probability of 95 % (bootstrap); two results whose intervals overlap may be equal.");
    const hops = documents.flatMap((document, index) => (document.hops ?? []).map((hop) => ({...hop, index})));
    if (hops.length > 0) {
        parent.append("h3").text("What a worker adds to an operation");
        const rows = table(parent, "hops", [...(compared ? [{name: "document"}] : []), {name: "operation"}, {name: "size", number: true},
            {name: "plain verbs", number: true}, {name: "through a worker", number: true}, {name: "difference", number: true},
            {name: "in round trips between the CPUs", number: true}, {name: "attached", number: true}]);
        for (const hop of hops) {
            const row = rows.append("tr");
            if (compared) {
                letter_cell(row, hop.index);
            }
            row.append("td").text(hop.op);
            number_cell(row, "bytes", hop.bytes, size(hop.bytes), "B");
            for (const key of ["direct_ns", "runtime_ns", "difference_ns"]) {
                number_cell(row, key, hop[key], time(hop[key]), "ns");
            }
            number_cell(row, "difference_round_trips", hop.difference_round_trips,
                isNumber(hop.difference_round_trips) ? three_digits(hop.difference_round_trips) : kMissing);
            number_cell(row, "attached_ns", hop.attached_ns, time(hop.attached_ns), "ns");
        }
    }
}

// ---- The choice of an operation and a size ----

const chosen = {op: null, bytes: null};
const sizes_of = (op) => distinct(results.filter((one) => one.op === op).map((one) => one.bytes)).sort((a, b) => a - b);
const operations = distinct(results.map((one) => one.op));
const shown = () => results.filter((one) => one.op === chosen.op && one.bytes === chosen.bytes);
const chosen_text = () => `${chosen.op}, ${size(chosen.bytes)}`;
/// For charts of all operations: the chosen size, or the nearest that the operation has.
function nearest_size(op) {
    const distance = (bytes) => Math.abs(Math.log2(Math.max(bytes, 1)) - Math.log2(Math.max(chosen.bytes, 1)));
    return d3.scan(sizes_of(op).map(distance)) === undefined ? null : sizes_of(op)[d3.scan(sizes_of(op).map(distance))];
}

function choose(op, bytes) {
    chosen.op = operations.includes(op) ? op : operations[0];
    const sizes = sizes_of(chosen.op);
    chosen.bytes = sizes.includes(bytes) ? bytes : sizes.includes(chosen.bytes) ? chosen.bytes : sizes[0];
}
function chooser(parent, redraw) {
    const asked = new URLSearchParams(location.hash.slice(1));
    choose(asked.get("op"), asked.has("bytes") ? Number(asked.get("bytes")) : undefined);
    if (operations.length < 2 && sizes_of(operations[0]).length < 2) {
        return;
    }
    const bar = parent.append("div").attr("class", "chooser");
    bar.append("span").text("The charts below show");
    const of_op = bar.append("label").text("operation").append("select").attr("id", "op");
    const of_size = bar.append("label").text("size").append("select").attr("id", "bytes");
    const fill = () => {
        of_op.selectAll("option").data(operations).join("option").attr("value", (op) => op).text((op) => op)
            .property("selected", (op) => op === chosen.op);
        of_size.selectAll("option").data(sizes_of(chosen.op)).join("option").attr("value", (bytes) => bytes).text(size)
            .property("selected", (bytes) => bytes === chosen.bytes);
    };
    const changed = () => {
        choose(of_op.property("value"), Number(of_size.property("value")));
        fill();
        // A link to the page shows this choice.
        history.replaceState(null, "", `#op=${chosen.op}&bytes=${chosen.bytes}`);
        redraw();
    };
    fill();
    of_op.node().addEventListener("change", changed);
    of_size.node().addEventListener("change", changed);
}

// ---- Percentiles ----

const kPercentiles = [0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999];
const kPercentileKeys = {0.5: "typical", 0.99: "p99", 0.999: "p99_9", 0.9999: "p99_99", 0.99999: "p99_999", 0.999999: "p99_9999"};
const known_percentile = (one, fraction) => one.latency_ns?.[kPercentileKeys[fraction]] ?? percentile(one, fraction);
/// Whether less than one sample lies above the percentile, so that the percentile is the maximum.
const has_few = (one, fraction) => running(one).total * (1 - fraction) < 0.999999;
const nines = (fraction) => -Math.log10(1 - fraction);

function percentiles(parent) {
    const all = shown().filter((one) => running(one).total > 0);
    if (all.length === 0) {
        empty(parent, `No latencies were measured for ${chosen_text()}.`);
        return;
    }
    legend(parent, all);
    const place = chart(parent, {name: "percentiles", height: 400, margin: {left: 84, right: 40, top: 12, bottom: 46},
        title: `Latency by percentile: ${chosen_text()}, ${list(all.map((one) => one.series))}`});
    const x = d3.scaleLinear().domain([nines(0.5), 6]).range([0, place.width]);
    // The greatest sample would end at 100 %, which is infinitely far to the right. It gets the width of half a sample.
    const lines = all.map((one) => {
        const {buckets, total} = running(one);
        const right = Math.min(6, Math.log10(2 * total));
        const points = [{x: nines(0.5), y: percentile(one, 0.5)}];
        for (const {value, end} of buckets) {
            const at = Math.min(right, end >= total ? right : nines(end / total));
            if (at > points[points.length - 1].x) {
                points.push({x: at, y: value});
            }
        }
        return {one, points};
    });
    const values = lines.flatMap((line) => [line.points[0].y, line.points[line.points.length - 1].y]).filter((value) => value > 0);
    const {scale: y, ticks} = log_scale(values, [place.height, 0], 10);
    bottom_axis(place, x, kPercentiles.map(nines), (_, i) => percent(kPercentiles[i]), "percentile (each step: ten times fewer requests are slower)");
    left_axis(place, y, ticks, (value) => tick(value, kNanoseconds), "latency");
    for (const {one, points} of lines) {
        place.plot.append("path").attr("class", "line").attr("data-series", one.series).attr("data-points", points.length)
            .attr("d", d3.line().x((point) => x(point.x)).y((point) => y(point.y)).curve(d3.curveStepBefore)(points))
            .style("stroke", series_color(one)).attr("stroke-dasharray", kDashes[one.dash]);
        for (const fraction of kPercentiles.filter((each) => !has_few(one, each))) {
            place.plot.append("path").attr("class", "mark").attr("data-series", one.series).attr("data-percentile", fraction)
                .attr("data-value", percentile(one, fraction)).style("fill", series_color(one)).attr("d", symbol(one, 46)())
                .attr("transform", `translate(${x(nines(fraction))},${y(percentile(one, fraction))})`);
        }
    }
    explain_by_x(place, (at) => {
        const fraction = 1 - 10 ** -x.invert(at);
        return {x: at, heading: percent(Number(fraction.toPrecision(Math.ceil(x.invert(at)) + 2))), rows: all.map((one) =>
            [one, one.series, fraction > 1 - 1 / running(one).total ? `${exact(one.latency_ns?.max)} ns, the maximum` : `${exact(percentile(one, fraction))} ns`])};
    });
    const body = table(parent, "percentile-values", [{name: "latency"}, {name: "samples", number: true}, {name: "least", number: true},
        ...kPercentiles.map((fraction) => ({name: percent(fraction), number: true})), {name: "greatest", number: true}]);
    let few = false;
    for (const one of all) {
        const row = body.append("tr").attr("data-series", one.series);
        row.append("th").attr("scope", "row").text(one.series);
        number_cell(row, "samples", running(one).total, exact(running(one).total));
        number_cell(row, "min", one.latency_ns?.min, time(one.latency_ns?.min), "ns");
        for (const fraction of kPercentiles) {
            few ||= has_few(one, fraction);
            number_cell(row, fraction, known_percentile(one, fraction), time(known_percentile(one, fraction)), "ns").classed("few", has_few(one, fraction));
        }
        number_cell(row, "max", one.latency_ns?.max, time(one.latency_ns?.max), "ns");
    }
    const meanings = d3.nest().key(meaning).entries(all)
        .map(({key, values}) => key + (compared ? ` (${list(distinct(values.map((one) => letter(one.index))))})` : ""));
    note(parent, `A latency is ${list(meanings)}.` +
        (few ? " Slanted numbers: so few samples were taken that less than one of them lies above this percentile." : ""));
}

// ---- Over time ----

function over_time(parent) {
    const all = shown().filter((one) => one.over_time?.length > 0);
    if (all.length === 0) {
        empty(parent, `The course over time of ${chosen_text()} was not recorded.`);
        return;
    }
    const latencies = all.flatMap((one) => one.over_time.flatMap((slice) => [slice.median_ns, slice.p99_ns, slice.max_ns])).filter((value) => value > 0);
    const has_latency = latencies.length > 0;
    const rate = (slice) => slice.seconds > 0 ? slice.operations / slice.seconds : 0;
    const margin = {left: 84, right: 16, top: 16, bottom: 44};
    const upper = has_latency ? 130 : 0, gap = has_latency ? 22 : 0, lower = has_latency ? 52 : 110;
    const rate_most = d3.max(all, (one) => d3.max(one.over_time, rate)) || 1;
    color_legend(parent, [
        ...(has_latency ? [
            [(svg) => svg.append("line").attr("x2", 16).attr("y1", 7).attr("y2", 7).style("stroke", "var(--ink)").attr("stroke-width", 2), "median"],
            [(svg) => svg.append("line").attr("class", "p99").attr("x2", 16).attr("y1", 7).attr("y2", 7).style("stroke", "var(--ink)"), "p99"],
            [(svg) => svg.append("circle").attr("cx", 8).attr("cy", 7).attr("r", 2.2).style("fill", "var(--ink)"), "greatest"]] : []),
        [box("var(--ink)", 0.35), "operations in a second"],
        [(svg) => svg.append("line").attr("class", "round").attr("x1", 8).attr("x2", 8).attr("y2", 14), "begin of a round"],
        [box("var(--alarm)", 0.17), "noisy round: time was stolen, or a thread migrated"]]);
    for (const one of all) {
        const place = chart(parent, {name: "over-time", caption: one.series, height: margin.top + upper + gap + lower + margin.bottom, margin,
            title: `Latency and operations over time: ${chosen_text()}, ${one.series}`});
        place.svg.attr("data-series", one.series).style("--series", series_color(one));
        const end = d3.max(one.over_time, (slice) => slice.at_s);
        const x = d3.scaleLinear().domain([0, end]).range([0, place.width]);
        let begin = 0;
        (one.rounds ?? []).forEach((round, i) => {
            const right = Math.min(end, begin + round.seconds);
            if (is_noisy(round)) {
                place.plot.append("rect").attr("class", "noisy").attr("data-round", i + 1).attr("x", x(begin)).attr("width", Math.max(0, x(right) - x(begin)))
                    .attr("height", place.height);
            }
            place.plot.append("line").attr("class", "round").attr("data-round", i + 1).attr("x1", x(begin)).attr("x2", x(begin))
                .attr("y1", -4).attr("y2", place.height);
            if (one.rounds.length <= 40 && x(right) - x(begin) > 14) {
                place.plot.append("text").attr("class", "value").attr("x", x(begin) + 3).attr("y", -4).text(i + 1);
            }
            begin += round.seconds;
        });
        if (has_latency) {
            const {scale: y, ticks} = log_scale(latencies, [upper, 0], 5);
            left_axis(place, y, ticks, (value) => tick(value, kNanoseconds), "latency", 0, upper);
            for (const key of ["median", "p99"]) {
                const line = d3.line().defined((slice) => slice[`${key}_ns`] > 0).x((slice) => x(slice.at_s - slice.seconds / 2)).y((slice) => y(slice[`${key}_ns`]));
                place.plot.append("path").attr("class", `line ${key}`).attr("data-series", one.series).attr("data-points", one.over_time.length)
                    .attr("d", line(one.over_time)).style("stroke", "var(--series)");
            }
            place.plot.append("g").attr("class", "greatest").selectAll("circle").data(one.over_time.filter((slice) => slice.max_ns > 0)).join("circle")
                .attr("r", 2.2).attr("cx", (slice) => x(slice.at_s - slice.seconds / 2)).attr("cy", (slice) => y(slice.max_ns))
                .attr("data-value", (slice) => slice.max_ns).style("fill", "var(--series)");
        }
        const below = {...place, plot: place.plot.append("g").attr("transform", `translate(0,${upper + gap})`), height: lower};
        const y = d3.scaleLinear().domain([0, rate_most]).nice(2).range([lower, 0]);
        bottom_axis(below, x, x.ticks(10), (value) => value, "time of the measurement, without pauses (s)");
        left_axis(below, y, y.ticks(2), (value) => value === 0 ? "0" : tick(value, kOperationsPerSecond), "operations");
        below.plot.append("g").attr("class", "slices").selectAll("rect").data(one.over_time).join("rect").attr("class", "operations")
            .attr("data-value", (slice) => slice.operations).attr("x", (slice) => x(Math.max(0, slice.at_s - slice.seconds)))
            .attr("width", (slice) => Math.max(0.5, x(slice.at_s) - x(Math.max(0, slice.at_s - slice.seconds))))
            .attr("y", (slice) => y(rate(slice))).attr("height", (slice) => lower - y(rate(slice))).style("fill", "var(--series)");
        explain_by_x(place, (at) => {
            const i = Math.min(one.over_time.length - 1, d3.bisector((slice) => slice.at_s).left(one.over_time, x.invert(at)));
            const slice = one.over_time[i];
            return {x: x(slice.at_s - slice.seconds / 2), heading: `${exact(slice.at_s - slice.seconds)} to ${exact(slice.at_s)} s`, rows: [
                [null, "median", exact(slice.median_ns, "ns")], [null, "p99", exact(slice.p99_ns, "ns")], [null, "greatest", exact(slice.max_ns, "ns")],
                [null, "operations", exact(slice.operations)], [null, "in a second", exact(rate(slice))]]};
        });
    }
}

// ---- Rounds ----

function rounds(parent) {
    const all = shown().filter((one) => one.rounds?.length > 0);
    if (all.length === 0) {
        empty(parent, `The rounds of ${chosen_text()} were not recorded.`);
        return;
    }
    color_legend(parent, [
        [(svg) => svg.append("circle").attr("cx", 8).attr("cy", 7).attr("r", 4.5).style("fill", "var(--faint)"), "a round; the first at the top of its strip"],
        [(svg) => svg.append("circle").attr("class", "disturbed").attr("cx", 8).attr("cy", 7).attr("r", 4.5), "noisy round: time was stolen, or a thread migrated"],
        [box("var(--ink)", 0.22), "interval of 95 %, with the median"]]);
    for (const {key: figure, values} of d3.nest().key(main_figure).entries(all)) {
        const {name, units} = kFigures[figure] ?? {name: figure, units: kOperationsPerSecond};
        const strips = values.map((one) => {
            const marks = one.rounds.map((round, i) => ({round, number: i + 1, value: figure_of_round(one, round)})).filter((mark) => mark.value > 0);
            return {one, marks, middle: d3.median(marks, (mark) => mark.value)};
        }).filter((strip) => strip.middle > 0);
        if (strips.length === 0) {
            empty(parent, "The rounds have no figures.");
            continue;
        }
        const step = 58;
        const place = chart(parent, {name: "rounds", height: strips.length * step + 58, margin: {left: 200, right: 24, top: 8, bottom: 50},
            title: `${name}, round by round: ${chosen_text()}, ${list(strips.map(({one}) => one.series))}`});
        place.svg.attr("data-figure", figure);
        // Each strip is relative to its own median: the strips show how much rounds differ, not how much paths differ.
        const deviation = (strip, value) => value / strip.middle - 1;
        const ends = d3.extent(strips.flatMap((strip) => [...strip.marks.map((mark) => mark.value), strip.one.interval?.low, strip.one.interval?.high]
            .filter((value) => value > 0).map((value) => deviation(strip, value))));
        const x = d3.scaleLinear().domain([Math.min(ends[0], -0.01), Math.max(ends[1], 0.01)]).nice().range([0, place.width]);
        bottom_axis(place, x, x.ticks(9), (value) => value === 0 ? "median" : `${value > 0 ? "+" : "−"}${Number(Math.abs(value * 100).toPrecision(3))} %`,
            `${name}, relative to the median of all rounds`);
        strips.forEach((one_strip, row) => {
            const {one, marks, middle} = one_strip;
            const at = (value) => x(deviation(one_strip, value));
            const strip = place.plot.append("g").attr("class", "strip").attr("data-series", one.series).attr("transform", `translate(0,${row * step})`);
            strip.append("text").attr("x", -12).attr("y", step / 2 - 4).attr("text-anchor", "end").text(one.series);
            strip.append("text").attr("class", "value").attr("x", -12).attr("y", step / 2 + 12).attr("text-anchor", "end").text(`median ${in_unit(middle, units)}`);
            strip.append("line").attr("class", "round").attr("x2", place.width).attr("y1", step).attr("y2", step);
            if (one.interval?.of === figure && one.interval.low > 0) {
                const {low, median, high} = one.interval;
                explain(strip.append("rect").attr("class", "interval").attr("data-low", low).attr("data-high", high).attr("x", at(low)).attr("y", 5)
                    .attr("width", Math.max(1, at(high) - at(low))).attr("height", step - 10).style("fill", series_color(one)),
                    `${one.series}: interval`, [[null, "low", in_unit(low, units)], [null, "median", in_unit(median, units)], [null, "high", in_unit(high, units)]]);
                strip.append("line").attr("class", "median").attr("x1", at(median)).attr("x2", at(median)).attr("y1", 5).attr("y2", step - 5)
                    .style("stroke", series_color(one)).attr("stroke-width", 2);
            }
            for (const {round, number, value} of marks) {
                const mark = strip.append("circle").attr("class", is_noisy(round) ? "mark disturbed" : "mark").attr("data-round", number).attr("data-value", value)
                    .attr("r", 4.5).attr("cx", at(value)).attr("cy", 12 + (step - 24) * (one.rounds.length < 2 ? 0.5 : (number - 1) / (one.rounds.length - 1)))
                    .style("fill", series_color(one)).style("stroke", "var(--paper)");
                const frequency = round.frequency_high_mhz > 0
                    ? [[null, "CPU frequency", `${exact(round.frequency_low_mhz)} to ${exact(round.frequency_high_mhz)} MHz`]] : [];
                explain(mark, `${one.series}, round ${number}`, [[null, name, in_unit(value, units)], [null, "median", exact(round.median_ns, "ns")],
                    [null, "p99", exact(round.p99_ns, "ns")], [null, "operations", exact(round.operations)], [null, "length", exact(round.seconds, "s")],
                    [null, "stolen", exact(round.steal_ms, "ms")], [null, "migrations", exact(round.migrations)], ...frequency]);
            }
        });
    }
}

// ---- The paths side by side ----

/// One group of results for each operation, each at the chosen size or near it.
function groups_of(usable) {
    return operations.map((op) => {
        const bytes = nearest_size(op);
        return {name: `${op}, ${size(bytes)}`, op, all: results.filter((one) => one.op === op && one.bytes === bytes && usable(one))};
    }).filter((group) => group.all.length > 0);
}
function paths(parent) {
    const groups = groups_of((one) => one.latency_ns);
    if (groups.length === 0) {
        empty(parent, "No latencies were measured.");
        return;
    }
    const all = groups.flatMap((group) => group.all);
    const names = distinct(all.map((one) => one.series));
    const opacity = (one) => [1, 0.6, 0.35][one.dash % 3];
    color_legend(parent, names.map((series) => all.find((one) => one.series === series)).map((one) => [box(series_color(one), opacity(one)), one.series]));
    const pair = parent.append("div").attr("class", names.length * groups.length > 16 ? "" : "pair");
    const width = names.length * groups.length > 16 ? 1040 : 510;
    for (const [key, name] of [["typical", "Typical latency"], ["p99", "p99 of latency"]]) {
        const place = chart(pair, {name: `paths ${key}`, caption: name, width, height: 300, margin: {left: 76, right: 6, top: 20, bottom: 44},
            title: `${name} by operation and path: ${list(groups.map((group) => group.name))}`});
        const x = d3.scaleBand().domain(groups.map((group) => group.name)).range([0, place.width]).paddingInner(0.18).paddingOuter(0.06);
        const y = d3.scaleLinear().domain([0, d3.max(all, (one) => one.latency_ns[key])]).nice(5).range([place.height, 0]);
        left_axis(place, y, y.ticks(5), (value) => value === 0 ? "0" : tick(value, kNanoseconds), "latency");
        bottom_axis(place, x, x.domain(), (value) => value, "operation and size", false);
        for (const group of groups) {
            const inner = d3.scaleBand().domain(names.filter((series) => group.all.some((one) => one.series === series))).range([0, x.bandwidth()]).padding(0.08);
            const thick = Math.min(64, inner.bandwidth());
            for (const one of group.all) {
                const value = one.latency_ns[key];
                const left = x(group.name) + inner(one.series) + (inner.bandwidth() - thick) / 2;
                explain(place.plot.append("rect").attr("class", "bar").attr("data-series", one.series).attr("data-op", one.op).attr("data-bytes", one.bytes)
                    .attr("data-value", value).attr("x", left).attr("width", thick)
                    .attr("y", y(value)).attr("height", place.height - y(value)).style("fill", series_color(one))
                    .style("fill-opacity", opacity(one)).style("stroke", series_color(one)),
                    `${group.name}, ${one.series}`, [[null, "typical", exact(one.latency_ns.typical, "ns")], [null, "p99", exact(one.latency_ns.p99, "ns")],
                        [null, "latency is", meaning(one)]]);
                if (inner.bandwidth() >= 24) {
                    place.plot.append("text").attr("class", "value").attr("text-anchor", "middle").attr("y", y(value) - 4)
                        .attr("x", left + thick / 2)
                        .text(three_digits(value / unit_for(y.domain()[1], kNanoseconds)[0]));
                }
            }
        }
    }
    if (distinct(all.map(meaning)).length > 1) {
        note(parent, "Not all of these are alike: some latencies are half a round trip, others last from post, or from when the request was due, to completion.");
    }
}

// ---- Stages ----

const kStages = [["submission_ring", "submission ring"], ["device", "device"], ["completion_ring", "completion ring"]];
function stages(parent) {
    const groups = groups_of((one) => one.stages_ns || (one.latency_ns && (one.path === "direct" || one.path === "event")));
    if (!groups.some((group) => group.all.some((one) => one.stages_ns))) {
        empty(parent, "No path with a worker was measured, so there are no stages.");
        return;
    }
    const rows = groups.flatMap((group) => group.all.map((one) => ({one, label: `${group.name}: ${one.series}`})));
    color_legend(parent, [...kStages.map(([, name], i) => [box(`var(--stage${i})`), name]),
        [(svg) => svg.append("line").attr("class", "typical").attr("x1", 8).attr("x2", 8).attr("y2", 14), "typical latency of the whole request"]]);
    const step = 26;
    const place = chart(parent, {name: "stages", height: rows.length * step + 54, margin: {left: 250, right: 70, top: 4, bottom: 50},
        title: `Stages of a request: ${list(groups.map((group) => group.name))}`});
    const parts = ({one}) => one.stages_ns ? kStages.map(([key, name], i) => ({key, name, i, ...one.stages_ns[key]})).filter((stage) => isNumber(stage.median))
        : [{key: "device", name: meaning(one), i: 1, median: one.latency_ns.typical, p99: one.latency_ns.p99}];
    const whole = ({one}) => one.stages_ns && one.latency_ns && !one.half_round_trip ? one.latency_ns.typical : null;
    const x = d3.scaleLinear().domain([0, d3.max(rows, (row) => Math.max(d3.sum(parts(row), (stage) => stage.median), whole(row) ?? 0))]).nice().range([0, place.width]);
    bottom_axis(place, x, x.ticks(8), (value) => value === 0 ? "0" : tick(value, kNanoseconds), "time (medians of the stages)");
    rows.forEach((row, i) => {
        const bar = place.plot.append("g").attr("class", "request").attr("data-series", row.one.series).attr("data-op", row.one.op)
            .attr("transform", `translate(0,${i * step})`);
        bar.append("text").attr("x", -10).attr("y", step / 2).attr("dy", "0.35em").attr("text-anchor", "end").text(row.label);
        let from = 0;
        for (const stage of parts(row)) {
            const rows_of_tip = [[null, "median", exact(stage.median, "ns")], [null, "p99", exact(stage.p99, "ns")],
                ...(isNumber(stage.samples) ? [[null, "samples", exact(stage.samples)]] : [])];
            explain(bar.append("rect").attr("class", `stage ${stage.key}`).attr("data-value", stage.median).attr("x", x(from)).attr("y", 3)
                .attr("width", x(from + stage.median) - x(from)).attr("height", step - 6).style("fill", `var(--stage${stage.i})`),
                `${row.label}: ${stage.name}`, rows_of_tip);
            if (x(from + stage.median) - x(from) > 52) {
                bar.append("text").attr("class", "inside").attr("x", x(from + stage.median / 2)).attr("y", step / 2).attr("dy", "0.35em").text(time(stage.median));
            }
            from += stage.median;
        }
        const total = whole(row);
        if (total !== null) {
            bar.append("line").attr("class", "typical").attr("x1", x(total)).attr("x2", x(total)).attr("y1", 0).attr("y2", step);
        }
        bar.append("text").attr("class", "value").attr("x", Math.max(x(from), x(total ?? 0)) + 6).attr("y", step / 2).attr("dy", "0.35em").text(time(from));
    });
    note(parent, "A path without a worker has one bar, its typical latency, which is the device's time and the application's calls. " +
        "Medians of stages do not add up exactly to the median of the whole.");
}

// ---- Against size ----

const kSizeCharts = [
    {name: "throughput", title: "Throughput", axis: "throughput", units: kBytesPerSecond, of: (one) => one.bytes_per_s, interval: "bytes_per_s"},
    {name: "rate", title: "Operations in a second", axis: "operations", units: kOperationsPerSecond, of: (one) => one.operations_per_s, interval: "operations_per_s"},
    {name: "latency", title: "Typical latency", axis: "latency", units: kNanoseconds, of: (one) => one.latency_ns?.typical, interval: "typical_ns"}];
function sizes(parent) {
    const all = results.filter((one) => one.op === chosen.op);
    if (sizes_of(chosen.op).length < 2) {
        empty(parent, `${chosen.op} was measured with one size only.`);
        return;
    }
    const by_series = d3.nest().key((one) => one.series).entries(all)
        .map(({values}) => values.slice().sort((a, b) => a.bytes - b.bytes));
    legend(parent, by_series.map((values) => values[0]));
    const pair = parent.append("div").attr("class", "pair");
    for (const kind of kSizeCharts) {
        const lines = by_series.map((values) => values.filter((one) => kind.of(one) > 0)).filter((values) => values.length > 0);
        if (lines.length === 0) {
            empty(pair, `${kind.title}: nothing was measured.`);
            continue;
        }
        const place = chart(pair, {name: `sizes ${kind.name}`, caption: kind.title, width: 510, height: 320, margin: {left: 84, right: 14, top: 10, bottom: 46},
            title: `${kind.title} against size: ${chosen.op}, ${list(lines.map((values) => values[0].series))}`});
        const least = Math.max(1, d3.min(lines, (values) => values[0].bytes)), most = d3.max(lines, (values) => values[values.length - 1].bytes);
        const x = d3.scaleLog().base(2).domain(least < most ? [least, most] : [least / 2, least * 2]).range([0, place.width]);
        const powers = d3.range(Math.ceil(Math.log2(least)), Math.floor(Math.log2(most)) + 1);
        const every = Math.ceil(powers.length / 8);
        const {scale: y, ticks} = log_scale(lines.flatMap((values) => values.map(kind.of)), [place.height, 0], 9);
        bottom_axis(place, x, powers.filter((_, i) => i % every === 0).map((power) => 2 ** power), size, "size of a message");
        left_axis(place, y, ticks, (value) => tick(value, kind.units), kind.axis);
        for (const values of lines) {
            const one = values[0];
            for (const each of values.filter((candidate) => candidate.interval?.of === kind.interval && candidate.interval.low > 0)) {
                const at = x(Math.max(1, each.bytes));
                place.plot.append("line").attr("class", "error").attr("x1", at).attr("x2", at).attr("y1", y(each.interval.low)).attr("y2", y(each.interval.high))
                    .style("stroke", series_color(one)).attr("stroke-width", 5).attr("stroke-opacity", 0.3);
            }
            place.plot.append("path").attr("class", "line").attr("data-series", one.series).attr("data-points", values.length)
                .attr("d", d3.line().x((each) => x(Math.max(1, each.bytes))).y((each) => y(kind.of(each)))(values))
                .style("stroke", series_color(one)).attr("stroke-dasharray", kDashes[one.dash]);
            for (const each of values) {
                place.plot.append("path").attr("class", "mark").attr("data-series", one.series).attr("data-bytes", each.bytes).attr("data-value", kind.of(each))
                    .attr("d", symbol(one, 34)()).attr("transform", `translate(${x(Math.max(1, each.bytes))},${y(kind.of(each))})`).style("fill", series_color(one));
            }
        }
        const measured = distinct(lines.flatMap((values) => values.map((one) => one.bytes))).sort((a, b) => a - b);
        explain_by_x(place, (at) => {
            const bytes = measured[d3.scan(measured.map((each) => Math.abs(x(Math.max(1, each)) - at)))];
            const found = lines.flatMap((values) => values.filter((one) => one.bytes === bytes));
            return {x: x(Math.max(1, bytes)), heading: `${chosen.op}, ${size(bytes)}`, rows: found.map((one) => [one, one.series, exact(kind.of(one), kind.units[0][1])])};
        });
    }
}

// ---- A mesh of ranks ----

const kMaps = [
    {key: "latency_ns", name: "latency", title: "Latency from rank to rank", units: kNanoseconds, is_of: (what) => /lat|_ns/i.test(what)},
    {key: "bandwidth_bytes_per_s", name: "bandwidth", title: "Throughput from rank to rank", units: kBytesPerSecond, is_of: (what) => /band|throughput|bytes|bw/i.test(what)}];
const kNumbersUpTo = 16;

function rank_name(document, rank) {
    const found = document.ranks?.find((one) => one.rank === rank);
    return found ? `${rank} (${[found.host, isNumber(found.cpu) ? `CPU ${found.cpu}` : null, found.device].filter(Boolean).join(", ")})` : String(rank);
}
function heat_map(parent, document, kind, wide) {
    const matrix = document[kind.key];
    const cells = (matrix ?? []).flatMap((row, from) => row.map((value, to) => ({from, to, value})));
    const values = cells.map((cell) => cell.value).filter(isNumber);
    if (values.length === 0) {
        empty(parent, `${kind.title}: nothing was measured.`);
        return;
    }
    const n = matrix.length;
    const with_numbers = n <= kNumbersUpTo;
    const width = wide ? 1040 : 510;
    const margin = {left: 96, right: 12, top: 40, bottom: 56};
    const side = Math.min(64, (width - margin.left - margin.right) / n), height = Math.min(side, wide ? 34 : 64);
    const [factor, unit] = unit_for(d3.median(values), kind.units);
    const place = chart(parent, {name: `heat ${kind.name}`, caption: `${kind.title} (${unit})`, width, height: height * n + margin.top + margin.bottom, margin,
        title: `${kind.title}: ${n} ranks, from ${in_unit(d3.min(values), kind.units)} to ${in_unit(d3.max(values), kind.units)}`});
    const outliers = (document.outliers ?? []).filter((one) => kind.is_of(one.what ?? "") && isNumber(one.from) && isNumber(one.to));
    // Outliers are outlined. The colours are for the differences between the other cells, which an outlier would hide.
    const usual = cells.filter((cell) => !outliers.some((one) => one.from === cell.from && one.to === cell.to)).map((cell) => cell.value).filter(isNumber);
    const [low, high] = d3.extent(usual.length > 1 ? usual : values);
    const color = d3.scaleSequential(d3.interpolateCividis).domain(low < high ? [low, high] : [low - 1, high + 1]).clamp(true);
    const label = (rank) => wide || n <= 8 ? `${rank} ${document.ranks?.find((one) => one.rank === rank)?.host ?? ""}`.slice(0, 13) : String(rank);
    const labelled = d3.range(n).filter((rank) => rank % Math.ceil(n / 32) === 0);
    for (const rank of labelled) {
        place.plot.append("text").attr("class", "value").attr("text-anchor", "middle").attr("x", (rank + 0.5) * side).attr("y", -6).text(rank);
        place.plot.append("text").attr("class", "value").attr("text-anchor", "end").attr("x", -6).attr("y", (rank + 0.5) * height).attr("dy", "0.35em").text(label(rank));
    }
    place.plot.append("text").attr("class", "axis-title").attr("x", n * side / 2).attr("y", -24).attr("text-anchor", "middle").text("to rank");
    place.plot.append("text").attr("class", "axis-title").attr("text-anchor", "middle").attr("transform", `translate(${14 - margin.left},${n * height / 2}) rotate(-90)`).text("from rank");
    for (const {from, to, value} of cells) {
        const cell = place.plot.append("rect").attr("class", isNumber(value) ? "cell" : "cell none").attr("data-from", from).attr("data-to", to)
            .attr("data-value", isNumber(value) ? value : null).attr("x", to * side).attr("y", from * height).attr("width", side).attr("height", height);
        if (!isNumber(value)) {
            continue;
        }
        cell.style("fill", color(value));
        explain(cell, kind.title, [[null, "from", rank_name(document, from)], [null, "to", rank_name(document, to)],
            [null, kind.name, `${in_unit(value, kind.units)} (${exact(value, kind.units[0][1])})`]]);
        if (with_numbers) {
            place.plot.append("text").attr("class", "number").attr("x", (to + 0.5) * side).attr("y", (from + 0.5) * height).attr("dy", "0.35em")
                .style("fill", d3.hcl(color(value)).l > 55 ? "#111418" : "#ffffff").style("font-size", `${Math.min(12, side / 3.1)}px`).text(three_digits(value / factor));
        }
    }
    for (const {from, to} of outliers) {
        for (const [name, inset] of [["outlier", 1.5], ["outlier-gap", 4]]) {
            place.plot.append("rect").attr("class", name).attr("data-from", from).attr("data-to", to).attr("x", to * side + inset).attr("y", from * height + inset)
                .attr("width", Math.max(1, side - 2 * inset)).attr("height", Math.max(1, height - 2 * inset));
        }
    }
    const bar = place.plot.append("g").attr("transform", `translate(0,${n * height + 14})`);
    const length = Math.min(260, n * side), pieces = 40;
    d3.range(pieces).forEach((i) => bar.append("rect").attr("x", i * length / pieces).attr("width", length / pieces + 0.5).attr("height", 10)
        .style("fill", color(color.domain()[0] + (i + 0.5) / pieces * (color.domain()[1] - color.domain()[0]))));
    bar.append("text").attr("class", "value").attr("y", 23).text(`${d3.min(values) < low ? "≤ " : ""}${in_unit(low, kind.units)}`);
    bar.append("text").attr("class", "value").attr("y", 23).attr("x", length).attr("text-anchor", "end").text(`${d3.max(values) > high ? "≥ " : ""}${in_unit(high, kind.units)}`);
}
/// Bars of rates, each of several parts.
function rate_bars(parent, {name, title, rows, reference}) {
    const step = 22;
    const place = chart(parent, {name, height: rows.length * step + 56, margin: {left: 210, right: 80, top: 4, bottom: 50}, title});
    const total = (row) => row.total ?? d3.sum(row.parts, (each) => each.value);
    const x = d3.scaleLinear().domain([0, Math.max(d3.max(rows, total), d3.max(rows, (row) => d3.sum(row.parts, (each) => each.value))) || 1]).nice().range([0, place.width]);
    bottom_axis(place, x, x.ticks(8), (value) => value === 0 ? "0" : tick(value, kBytesPerSecond), "throughput");
    rows.forEach((row, i) => {
        const bar = place.plot.append("g").attr("class", "row").attr("data-value", total(row)).attr("transform", `translate(0,${i * step})`);
        bar.append("text").attr("x", -10).attr("y", step / 2).attr("dy", "0.35em").attr("text-anchor", "end").text(row.label);
        let from = 0;
        row.parts.forEach((each, k) => {
            explain(bar.append("rect").attr("class", "bar").attr("data-value", each.value).attr("x", x(from)).attr("y", 2).attr("height", step - 4)
                .attr("width", Math.max(0.5, x(from + each.value) - x(from) - (row.parts.length > 1 ? 1 : 0))).style("fill", "var(--c0)").style("fill-opacity", k % 2 ? 0.6 : 0.9),
                row.label, [[null, each.label, `${bytes_rate(each.value)} (${exact(each.value, "B/s")})`], [null, "together", bytes_rate(total(row))]]);
            from += each.value;
        });
        bar.append("text").attr("class", "value").attr("x", place.width + 10).attr("y", step / 2).attr("dy", "0.35em").text(bytes_rate(total(row)));
    });
    if (isNumber(reference)) {
        place.plot.append("line").attr("class", "cursor").attr("x1", x(reference)).attr("x2", x(reference)).attr("y2", place.height);
    }
}
function mesh(parent, document) {
    const n = document.ranks?.length ?? document.latency_ns?.length ?? 0;
    const outliers = document.outliers ?? [];
    const ranks = parent.append("details").attr("class", "ranks");
    ranks.append("summary").text(`The ${n} ranks`);
    const body = table(ranks, "ranks", [{name: "rank", number: true}, {name: "host"}, {name: "CPU"}, {name: "device"}]);
    for (const one of document.ranks ?? []) {
        const row = body.append("tr");
        row.append("td").attr("class", "number").text(one.rank);
        [one.host, one.cpu, one.device].forEach((fact) => row.append("td").text(fact ?? kMissing));
    }
    parent.append("h3").text("Outliers");
    if (outliers.length === 0) {
        note(parent, "No pair of ranks stands out.");
    } else {
        const items = parent.append("ul").attr("class", "outliers");
        for (const one of outliers) {
            items.append("li").attr("data-from", one.from).attr("data-to", one.to).text(one.text ??
                `${one.what}: from ${one.from} to ${one.to}, ${exact(one.value)}, where the median is ${exact(one.median)}`);
        }
    }
    const wide = n > 8;
    const pair = parent.append("div").attr("class", wide ? "" : "pair");
    kMaps.forEach((kind) => heat_map(pair, document, kind, wide));

    parent.append("h3").text("Many to one");
    if ((document.incast ?? []).length === 0) {
        empty(parent, "No rank was sent to by several ranks at once.");
    } else {
        rate_bars(parent, {name: "incast", title: `Throughput of many ranks to one: ${document.incast.length} measurements`, rows: document.incast.map((one) => {
            const senders = Array.isArray(one.senders) ? one.senders : null;
            return {label: `to ${one.to} from ${senders ? senders.length : one.senders} ranks`, total: one.bytes_per_s,
                parts: (one.per_sender_bytes_per_s ?? [one.bytes_per_s]).map((value, i) => ({value, label: senders ? `from rank ${senders[i]}` : `sender ${i + 1}`}))};
        })});
        note(parent, "Each part of a bar is one sender's share.");
    }
    parent.append("h3").text("All to all");
    const shares = document.all_to_all?.per_rank_bytes_per_s ?? [];
    if (shares.length === 0) {
        empty(parent, "All ranks together were not measured.");
    } else {
        rate_bars(parent, {name: "all-to-all", title: `Throughput of each rank while all send to all: together ${bytes_rate(document.all_to_all.bytes_per_s)}`,
            reference: d3.mean(shares), rows: shares.map((value, rank) => ({label: `rank ${rank_name(document, rank)}`.slice(0, 30), parts: [{value, label: "this rank"}]}))});
        note(parent, `Together ${bytes_rate(document.all_to_all.bytes_per_s)}. The line is the mean of the ranks.`);
    }
}

// ---- The page ----

head();
if (results.length > 0 || meshes.length === 0) {
    part(main, "summary", "Results", summary);
}
if (results.length > 0) {
    const redraws = [];
    chooser(main, () => redraws.forEach((redraw) => redraw()));
    const detail = (id, heading, draw) => redraws.push(part(main, id, heading, draw));
    detail("percentiles", "Latency by percentile", percentiles);
    detail("over-time", "Over time", over_time);
    detail("rounds", "Rounds", rounds);
    detail("paths", "The paths side by side", paths);
    detail("stages", "Where a request spends its time", stages);
    detail("sizes", "Against size", sizes);
}
for (const one of meshes) {
    part(main, `mesh${one.index}`, `Between ranks${compared ? `: document ${letter(one.index)}` : ""}`, (body) => mesh(body, one.document));
}
window.addEventListener("beforeprint", () => document.querySelectorAll("main details").forEach((one) => one.open = true));

})();
