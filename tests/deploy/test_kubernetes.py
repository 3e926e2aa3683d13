#!/usr/bin/python3
"""tools/deploy/kubernetes.yaml: valid by Kubernetes' schemas (npm's kubernetes-models), what its parts name is there, and what it
starts is what the image and the gateway have. There is no cluster here: nothing is started.

HELM_BIN: folder of the programs, in whose parent npm's packages are kept. Long form: `make test-deploy`.
"""
import json
import os
import re
import shutil
import subprocess
import sys

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process"]
from gateway_harness import BIN, check, sum_up  # noqa: E402

PACKAGES = ["kubernetes-models@5.1.0", "js-yaml@4.1.0"]
MANIFEST = "tools/deploy/kubernetes.yaml"


def fetch_packages(folder):
    if os.path.exists(folder + "/node_modules/kubernetes-models") and os.path.exists(folder + "/node_modules/js-yaml"):
        return ""
    if not shutil.which("npm"):
        return "there is no npm here"
    os.makedirs(folder, exist_ok=True)
    run = subprocess.run(["npm", "install", "--prefix", folder, "--no-save", "--no-audit", "--no-fund", "--ignore-scripts", *PACKAGES],
                         capture_output=True, text=True, timeout=240)
    return "" if run.returncode == 0 else "npm cannot fetch %s: %s" % (PACKAGES, run.stderr[-300:])


def main():
    folder = os.path.join(os.path.dirname(BIN), "npm-kubernetes")
    missing = fetch_packages(folder)
    if missing:
        print("skip test_kubernetes.py: " + missing)
        sum_up(1)
    run = subprocess.run(["node", "tests/deploy/kubernetes.mjs", folder, MANIFEST], capture_output=True, text=True, timeout=60)
    check("node's script comes to its end", run.returncode == 0, run.stderr[-1000:])
    documents = []
    for line in run.stdout.splitlines():
        if line.startswith("json "):
            documents = json.loads(line[5:])
        else:
            check(line[5:], line.startswith("ok  "))
    services = {d["metadata"]["name"]: d for d in documents if d["kind"] == "Service"}
    stateful = next(d for d in documents if d["kind"] == "StatefulSet")
    pod = stateful["spec"]["template"]
    container = pod["spec"]["containers"][0]
    labels = pod["metadata"]["labels"].items()
    check("its service is there, without an address", services[stateful["spec"]["serviceName"]]["spec"].get("clusterIP") == "None")
    for name, service in services.items():
        check("service %s chooses the pods" % name, service["spec"]["selector"].items() <= labels)
        check("service %s names a port of theirs" % name, {p["targetPort"] for p in service["spec"]["ports"]} <= {p["name"] for p in container["ports"]})
    check("it chooses its own pods", stateful["spec"]["selector"]["matchLabels"].items() <= labels)
    check("one GPU a replica", container["resources"]["limits"]["nvidia.com/gpu"] == 1)
    check("ready by /health", container["readinessProbe"]["httpGet"] == {"path": "/health", "port": "http"})
    known = {v["name"] for v in pod["spec"]["volumes"]} | {v["metadata"]["name"] for v in stateful["spec"]["volumeClaimTemplates"]}
    check("every mount has its volume", {m["name"] for m in container["volumeMounts"]} == known)
    keys = next(v for v in pod["spec"]["volumes"] if v["name"] == "keys")
    check("keys are not for others, as the gateway wants it", keys["secret"]["defaultMode"] in (0o440, 440), keys)
    with open("Containerfile") as f:
        image = f.read()
    entry = json.loads(re.search(r"^ENTRYPOINT (.*)$", image, re.M).group(1))
    check("the keys lie where the image looks for them", entry[entry.index("--api-keys") + 1] == "/etc/helm/keys" and
          any(m["mountPath"] == "/etc/helm" for m in container["volumeMounts"]), entry)
    check("the port is the image's", str(container["ports"][0]["containerPort"]) == re.search(r"^EXPOSE (\d+)$", image, re.M).group(1))
    options = subprocess.run([BIN + "/helm-gateway", "--help"], capture_output=True, text=True).stdout
    for option in [a for a in entry + container["args"] if a.startswith("--")]:
        check("the gateway knows %s" % option, re.search(r"^ +%s[ =]" % option, options, re.M))
    sum_up()


main()
