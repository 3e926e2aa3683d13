"""Helpers of the tests of metrics: Prometheus's text taken apart and held against its conventions, and the queries of the
committed dashboard held against the names in it. Used by test_gateway.py, test_cli.py and prometheus.py."""
import json
import re
import shutil

import processor

DASHBOARD = "docs/grafana/helm.json"
# Base units, and what counts things without a unit; Prometheus, "Metric and label naming".
UNITS_NOT_BASE = r"_(ms|milliseconds|us|microseconds|minutes|hours|kib|mib|gib|kilobytes|megabytes|percent)(_|$)"
SUFFIXES = {"_bucket": "histogram", "_sum": "histogram", "_count": "histogram"}


def parse(text):
    """(families {name: type}, samples {name + labels: value}, lines that are not of the format or break a convention)"""
    types, helps, samples, bad = {}, set(), {}, []
    last = None
    for line in text.splitlines():
        kind = re.fullmatch(r"# TYPE ([a-z][a-z0-9_]*) (counter|gauge|histogram)", line)
        told = re.fullmatch(r"# HELP ([a-z][a-z0-9_]*) \S.*", line)
        sample = re.fullmatch(r'([a-z][a-z0-9_]*)(\{(?:[a-z_]+="[^"\\\n]*",?)+\})? (NaN|[+-]Inf|-?[0-9.]+(?:e[+-]?\d+)?)', line)
        if kind:
            if kind.group(1) in types or (kind.group(2) == "counter") != kind.group(1).endswith("_total") \
                    or re.search(UNITS_NOT_BASE, kind.group(1)):
                bad.append(line)
            types[kind.group(1)] = kind.group(2)
        elif told:
            helps.add(told.group(1))
        elif sample:
            name, labels, value = sample.group(1), sample.group(2) or "", float(sample.group(3))
            family = family_of(name, types)
            if family is None or family not in helps or name + labels in samples:
                bad.append(line)
            if name.endswith("_bucket"):
                if last and last[0] == name and value < last[1]:
                    bad.append("falls: " + line)
                last = (name, value)
            samples[name + labels] = value
        else:
            bad.append(line)
    return types, samples, bad


def family_of(name, types):
    if name in types:
        return name
    for suffix, kind in SUFFIXES.items():
        if name.endswith(suffix) and types.get(name[:-len(suffix)]) == kind:
            return name[:-len(suffix)]
    return None


def queries():
    """Every query of the dashboard, its variables filled in as Grafana does."""
    with open(DASHBOARD) as f:
        board = json.load(f)
    found = [t["expr"] for p in board["panels"] for t in p["targets"]]
    return [e.replace("$__rate_interval", "30s").replace('"$instance"', '".*"') for e in found]


def unknown_in_dashboard(types):
    """Names and uses in queries that do not fit what is exported: another name, a counter without a rate, a rate of none."""
    wrong = []
    for query in queries():
        names = re.findall(r"helm_[a-z0-9_]+", query)
        for name in names:
            family = family_of(name, types)
            rated = re.search(r"(rate|increase)\(%s[{\[]" % name, query) is not None
            rises = family is not None and (types[family] == "counter" or name != family)
            if family is None or rated != rises:
                wrong.append((name, query))
        if not names:
            wrong.append(("no name", query))
    return wrong


def promtool(text):
    """None where there is no promtool; else what it has against the text, "" for nothing."""
    tool = shutil.which("promtool")
    if not tool:
        return None
    run = processor.run([tool, "check", "metrics"], input=text.encode(), capture_output=True, timeout=60)
    said = (run.stdout + run.stderr).decode()
    return said or ("" if run.returncode == 0 else "status %d" % run.returncode)
