#!/usr/bin/python3
"""A real Prometheus, as Debian packages it, scrapes helm-gateway in front of the real helmd while requests run; every query of
the committed dashboard is then asked of it.

    prometheus.py      (`make test-prometheus`, which installs Prometheus and promtool; `make test` holds the text alone against
                        the conventions, by test_gateway.py)

HELM_BIN, HELM_PYPROTO as in test_gateway.py. Run from the repository's root. Without Prometheus it fails, and says so."""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process"]
import exposition  # noqa: E402
import helmd_harness as helmd  # noqa: E402
import processor  # noqa: E402
from gateway_harness import Gateway, SLOW, check, sum_up, until  # noqa: E402

SCRAPE_SECONDS = 1
VERSE = "And it came to pass in those days, that"
# Series that only a machine with a GPU, a refused client or a lost worker has; all others must have a value.
MAY_BE_EMPTY = ('worker="gpu"',)


class Prometheus:
    def __init__(self, folder, target):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        config = os.path.join(folder, "prometheus.yml")
        with open(config, "w") as f:
            f.write("global: {scrape_interval: %ds}\nscrape_configs:\n- job_name: helm\n  static_configs:\n  - targets: ['%s']\n"
                    % (SCRAPE_SECONDS, target))
        self.log = open(os.path.join(folder, "log"), "w+")
        self.process = subprocess.Popen(["prometheus", "--config.file", config, "--storage.tsdb.path", os.path.join(folder, "data"),
                                         "--web.listen-address", "127.0.0.1:%d" % self.port], stdout=self.log, stderr=self.log)

    def get(self, path, **query):
        url = "http://127.0.0.1:%d/api/v1/%s?%s" % (self.port, path, urllib.parse.urlencode(query))
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            return {"error": error.read().decode()}
        except OSError as error:
            return {"error": str(error)}

    def values(self, query):
        found = self.get("query", query=query)
        return [float(r["value"][1]) for r in found["result"]] if "result" in found else found

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        processor.ended(self.process, 20)
        self.log.close()


def rules_of(folder):
    """Every query of the dashboard as a rule, for promtool to parse."""
    path = os.path.join(folder, "rules.json")  # JSON is YAML
    with open(path, "w") as f:
        json.dump({"groups": [{"name": "dashboard", "rules": [
            {"record": "helm:query%d" % i, "expr": q} for i, q in enumerate(exposition.queries())]}]}, f)
    return path


def main():
    missing = [p for p in ("prometheus", "promtool") if not shutil.which(p)]
    check("Prometheus and promtool are here (apt-get install prometheus)", not missing, missing)
    if missing:
        sum_up()
    with tempfile.TemporaryDirectory() as folder, helmd.running("--parallel", "4", real=True) as daemon, Gateway(daemon.endpoint) as g:
        run = processor.run(["promtool", "check", "rules", rules_of(folder)], capture_output=True, timeout=60)
        check("promtool parses every query of the dashboard", run.returncode == 0, run.stdout + run.stderr)
        check("promtool has nothing against the metrics", exposition.promtool(g.get("/metrics").body.decode()) == "")
        p = Prometheus(folder, "127.0.0.1:%d" % g.port)
        try:
            check("Prometheus scrapes the gateway", until(lambda: p.values("up") == [1.0], 30), (p.values("up"), p.get("targets")))
            before = p.values("helm_output_tokens_total")
            end, asked = time.monotonic() + 8 * SCRAPE_SECONDS, 0
            while time.monotonic() < end:
                asked += g.complete([VERSE, "In the beginning"], max_tokens=40, temperature=0, ignore_eos=True).status == 200
            time.sleep(2 * SCRAPE_SECONDS + 1)
            after = p.values("helm_output_tokens_total")
            check("what was generated is what it counted", asked > 3 and before != after == [g.metric("helm_output_tokens_total")], (before, after))
            median = p.values("histogram_quantile(0.5, rate(helm_time_per_output_token_seconds_bucket[1m]))")
            check("quantiles come of the histograms", len(median) == 1 and 0 < median[0] < 1, median)
            target = p.get("targets")["activeTargets"][0]
            check("... and no scrape failed", target["health"] == "up" and target["lastError"] == "", target)
            empty = {q: v for q in exposition.queries() if not isinstance(v := p.values(q), list) or
                     not v and not any(word in q for word in MAY_BE_EMPTY)}
            check("every query of the dashboard has an answer", not empty, empty)
            daemon.process.send_signal(signal.SIGTERM)
            check("a daemon that went away is seen", until(lambda: p.values("helm_up") == [0.0], 30), p.values("helm_up"))
        finally:
            p.close()
    sum_up()


if __name__ == "__main__":
    main()
