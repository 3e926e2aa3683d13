#!/usr/bin/python3
"""tools/deploy/haproxy.cfg with Debian's HAProxy before two gateways, each with a helmd on the demo model: requests go on while
a helmd is killed, comes back, and a gateway is killed.

HELM_BIN, HELM_PYPROTO, HELM_TEST_BIN as in tests/process. Long form: `make test-deploy`.
"""
import http.client
import json
import os
import shutil
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process", "tests/deploy"]
import helmd_harness as helmd  # noqa: E402
from gateway_harness import Gateway, check, sum_up, until  # noqa: E402
from ports import can_connect, free_port  # noqa: E402

CLIENTS = 4
NOTICED = 0.3  # seconds in which a gateway learns that its helmd is gone: what it began meanwhile is lost, too


def start_haproxy(folder, gateways):
    """The recipe as it is, but for its addresses."""
    port = free_port()
    with open("tools/deploy/haproxy.cfg") as f:
        text = f.read()
    for old, new in (("bind :80 ", "bind 127.0.0.1:%d " % port), ("10.0.0.1:8080 check", "127.0.0.1:%d check" % gateways[0].port),
                     ("10.0.0.2:8080 check", "127.0.0.1:%d check" % gateways[1].port),
                     ("global\n", "global\n    stats socket %s/stats mode 600 level admin\n" % folder)):
        assert old in text, old
        text = text.replace(old, new)
    with open(folder + "/haproxy.cfg", "w") as f:
        f.write(text)
    tested = subprocess.run(["haproxy", "-c", "-f", folder + "/haproxy.cfg"], capture_output=True, text=True)
    check("HAProxy takes the recipe", tested.returncode == 0 and "WARN" not in tested.stderr, tested.stderr)
    return subprocess.Popen(["haproxy", "-db", "-f", folder + "/haproxy.cfg"], stderr=subprocess.DEVNULL), port


def server_states(folder):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(folder + "/stats")
        s.sendall(b"show stat\n")
        text = b"".join(iter(lambda: s.recv(65536), b"")).decode()
    rows = [line.split(",") for line in text.splitlines() if line.startswith("gateways,helm")]
    return {row[1]: row[17].split()[0] for row in rows}


def served(gateway):
    """Completions that it has answered."""
    lines = re.findall(r'^helm_gateway_requests_total\{[^}]*completions[^}]*\} (\d+)', gateway.get("/metrics").body.decode(), re.M)
    return sum(map(int, lines))


class Load:
    """Clients that ask one completion after the other, every third as a stream, and note what came of it."""

    def __init__(self, port):
        self.port, self.done, self.quit = port, [], False
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def run(self, number):
        while not self.quit:
            began, number = time.monotonic(), number + 1
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
                connection.request("POST", "/v1/completions", json.dumps({
                    "prompt": "In the beginning", "max_tokens": 24, "temperature": 0, "stream": number % 3 == 0}),
                    {"Content-Type": "application/json"})
                answer = connection.getresponse()
                body = answer.read().decode()
                whole = "[DONE]" in body if number % 3 == 0 else "text" in json.loads(body).get("choices", [{}])[0]
                self.done.append((began, answer.status if whole and "error" not in body else "half: " + body[-200:]))
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                self.done.append((began, repr(error)))
            finally:
                connection.close()

    def between(self, begin, end):
        return [status for at, status in self.done if begin <= at < end]

    def stop(self):
        self.quit = True
        for thread in self.threads:
            thread.join()


def all_good(name, answers, least=20):
    bad = [a for a in answers if a != 200]
    print("      %s: %d requests, %d of them failed" % (name, len(answers), len(bad)))
    check("%s: every request is answered" % name, len(answers) >= least and not bad, bad[:3])


def phases(load, folder, daemons, gateways):
    def seconds(n):
        at = time.monotonic()
        time.sleep(n)
        return at, time.monotonic()

    both = seconds(2)
    all_good("both are there", load.between(*both))
    each = [served(g) for g in gateways]
    check("both of them serve", min(each) > 5, each)
    daemons[0].process.kill()
    killed = time.monotonic()
    daemons[0].process.wait()
    time.sleep(NOTICED)
    after = seconds(4)
    flying = load.between(killed - 1, after[0])
    print("      around the kill: %d requests, %d failed (answers that were under way may)" % (len(flying), sum(a != 200 for a in flying)))
    check("only answers under way were lost", sum(a != 200 for a in flying) <= 2 * CLIENTS, [a for a in flying if a != 200])
    all_good("a helmd was killed", load.between(*after))
    check("HAProxy knows", server_states(folder) == {"helm1": "DOWN", "helm2": "UP"}, server_states(folder))
    daemons[0] = helmd.Daemon("--ctx", "512", real=True, base=daemons[0].base)
    check("helmd is back and HAProxy asks it again", until(lambda: server_states(folder).get("helm1") == "UP", 20), server_states(folder))
    before = served(gateways[0])
    back = seconds(2)
    all_good("it is back", load.between(*back))
    check("... and serves", served(gateways[0]) > before + 5)
    gateways[1].process.send_signal(signal.SIGKILL)
    gateways[1].process.wait()
    gone = seconds(4)
    all_good("a gateway was killed", load.between(*gone))
    check("HAProxy knows that, too", server_states(folder) == {"helm1": "UP", "helm2": "DOWN"}, server_states(folder))


def main():
    if not shutil.which("haproxy"):
        print("skip test_haproxy.py: there is no haproxy here (tools/setup.sh deploy)")
        sum_up(1)
    folder = tempfile.mkdtemp(prefix="helm-haproxy-")
    daemons = [helmd.Daemon("--ctx", "512", real=True) for _ in range(2)]
    gateways = [Gateway(d.endpoint) for d in daemons]
    haproxy, port = start_haproxy(folder, gateways)
    load = None
    try:
        check("both are found", until(lambda: can_connect(port) and list(server_states(folder).values()) == ["UP", "UP"], 10))
        load = Load(port)
        phases(load, folder, daemons, gateways)
    finally:
        if load:
            load.stop()
        haproxy.terminate()
        haproxy.wait()
        for g in gateways:
            g.stop()
        for d in daemons:
            d.stop()
            d.close()
    shutil.rmtree(folder)
    sum_up()


main()
