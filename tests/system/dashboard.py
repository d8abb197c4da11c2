#!/usr/bin/python3
"""Tests config/grafana-dashboard.json: its structure, and with a Prometheus that reads the metrics of a pollcored with traffic.

usage: tests/system/dashboard.py        (POLLCORE_BUILD: the build directory)
"""
import json
import os
import pathlib
import re
import socket
import sys
import tempfile
import time
import urllib.parse

sys.dont_write_bytecode = True
from beside_daemon import PATIENCE, fail, passed, until
from exporter_programs import RUNTIME, Programs, get

DASHBOARD = pathlib.Path(__file__).resolve().parents[2] / "config/grafana-dashboard.json"


def panels():
    """The dashboard's panels with queries, after checks of its structure."""
    dashboard = json.loads(DASHBOARD.read_text())
    if dashboard["schemaVersion"] < 36 or not dashboard["title"] or not dashboard["uid"]:
        fail("the dashboard is for no Grafana of today")
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    if variables["datasource"]["type"] != "datasource" or not {"instance", "runtime"} <= set(variables):
        fail(f"the dashboard's variables are {set(variables)}")
    numbers = [panel["id"] for panel in dashboard["panels"]]
    if len(numbers) != len(set(numbers)):
        fail("two panels have the same number")
    taken = set()
    with_queries = []
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        if taken & cells or place["x"] + place["w"] > 24:
            fail(f"{panel['title']} lies on another panel")
        taken |= cells
        if panel["type"] == "row":
            continue
        if panel["datasource"]["uid"] != "${datasource}" or not panel["targets"]:
            fail(f"{panel['title']} has no query, or a data source of its own")
        if len({target["refId"] for target in panel["targets"]}) != len(panel["targets"]):
            fail(f"{panel['title']} has two queries of one name")
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            if used - set(variables) or "instance" not in used:
                fail(f"{panel['title']} uses the variables {used}")
        with_queries.append(panel)
    passed(f"the dashboard has {len(with_queries)} panels, each with queries of its data source")
    return with_queries, [variables[name]["query"]["query"] for name in ("instance", "runtime")]


# Queries whose result is 0/0 in this test, and why.
NOT_A_NUMBER = {"Time to wake up": "the worker does not sleep"}


def evaluates(programs):
    """A Prometheus reads the metrics, and evaluates each query of the dashboard."""
    programs.daemon()
    programs.traffic()
    _, port = programs.exporter("--per", "session,queue_pair")
    _, sums_port = programs.exporter()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        prometheus_port = free.getsockname()[1]
    config = programs.directory / "prometheus.yml"
    config.write_text("global: {scrape_interval: 1s}\nscrape_configs:\n"
                      f"- {{job_name: pollcore, static_configs: [{{targets: ['127.0.0.1:{port}', '127.0.0.1:{sums_port}']}}]}}\n")
    log = (programs.directory / "prometheus.log").open("w")
    programs.start("prometheus", f"--config.file={config}", f"--storage.tsdb.path={programs.directory / 'tsdb'}",
                   f"--web.listen-address=127.0.0.1:{prometheus_port}", stdout=log, stderr=log)

    def ask(path, **parameters):
        try:
            response, body = get(prometheus_port, f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        except OSError:
            return None  # it is starting
        answer = json.loads(body) if response.status in (200, 400, 422) else {"status": str(response.status)}
        if answer["status"] != "success":
            if response.status == 503:
                return None
            fail(f"{parameters}: {answer}")
        return answer["data"]
    until("Prometheus has read the metrics several times",
          lambda: (found := ask("query", query=f'count_over_time(pollcore_up{{runtime="{RUNTIME}"}}[1m])')) and len(found["result"]) == 2 and
          all(int(one["value"][1]) >= 5 for one in found["result"]))
    def errors():
        return [one["lastError"] for one in ask("targets")["activeTargets"]]
    # On a busy machine a read may take longer than the interval, which is an error, too.
    end = time.monotonic() + PATIENCE
    while errors() != ["", ""]:
        if time.monotonic() > end:
            fail(f"Prometheus reads the metrics with errors: {errors()}")
        time.sleep(0.2)
    with_queries, of_variables = panels()
    for query in of_variables:
        selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", query).groups()
        found = ask(f"label/{label}/values", **{"match[]": selector.replace("$instance", ".*")})
        if not found or (label == "runtime" and RUNTIME not in found):
            fail(f"{query} gives {found}")
    asked = 0
    for panel in with_queries:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "10s").replace("$instance", ".*").replace("$runtime", RUNTIME)

            def result():
                found = ask("query", query=query)["result"]
                good = [one for one in found if one["value"][1] not in ("NaN", "+Inf", "-Inf")]
                return good or (found if panel["title"] in NOT_A_NUMBER else None)
            until(f"{panel['title']}: {query} has a result", result)
            asked += 1
    passed(f"Prometheus evaluates the dashboard: each of {asked} queries has a result")


def main():
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        os.chmod(directory, 0o755)
        programs = Programs(directory)
        try:
            evaluates(programs)
        finally:
            programs.end()


if __name__ == "__main__":
    main()
