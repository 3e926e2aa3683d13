#!/usr/bin/python3
"""tools/deploy/nginx.conf with Debian's nginx before helm-gateway: TLS, tokens as they come, a client that goes away, bounds,
paths that stay inside. A stand-in daemon sends a token every 50 ms.

HELM_BIN, HELM_PYPROTO as in tests/process. Long form: `make test-deploy`.
"""
import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import time

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process", "tests/deploy"]
from gateway_harness import Gateway, Scripted, check, model_folder, sum_up, until  # noqa: E402
from nginx_example import NAME, start_nginx  # noqa: E402
from ports import can_connect  # noqa: E402
import helm_pb2 as pb  # noqa: E402

KEY = "sk-of-the-test"
TOKENS, SECONDS = 40, 0.05


class Slow(Scripted):
    """A token every SECONDS, up to max_tokens."""

    def tick(self):
        for key, entry in list(self.going.items()):
            if entry[3] >= entry[2].max_tokens:
                self.finish(key, pb.FINISH_LENGTH)
        super().tick()


class Site:
    def __init__(self, folder, port):
        self.port = port
        self.context = ssl.create_default_context(cafile=folder + "/helm.pem")

    def open(self):
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=self.context)
        connection._create_connection = lambda address, *rest: http.client.socket.create_connection(("127.0.0.1", self.port), *rest)
        connection.host = NAME      # what the certificate is held against, and the Host header
        return connection

    def request(self, method, path, body=None, key=KEY):
        connection = self.open()
        headers = {"Content-Type": "application/json", "Host": NAME, **({"Authorization": "Bearer " + key} if key else {})}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        return connection, connection.getresponse()


def ask(tokens):
    return {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": tokens}


def stream_tests(site, g, daemon):
    began = time.monotonic()
    _, answer = site.request("POST", "/v1/chat/completions", ask(TOKENS))
    times, text = [], ""
    for line in answer:
        if line.startswith(b"data: {"):
            delta = json.loads(line[6:])["choices"][0]["delta"].get("content")
            if delta:
                times.append(time.monotonic() - began)
                text += delta
    whole = TOKENS * SECONDS
    check("a stream goes through TLS", answer.status == 200 and text, (answer.status, text))
    check("tokens come one by one", len(times) > TOKENS / 2, times)
    check("... the first long before the last", times[0] < 0.3 * whole and times[-1] > 0.8 * whole, (times[0], times[-1], whole))
    gaps = sorted(b - a for a, b in zip(times, times[1:]))
    check("... evenly", gaps[int(0.9 * len(gaps))] < 4 * SECONDS, gaps)
    connection, answer = site.request("POST", "/v1/chat/completions", ask(4000))
    answer.readline()
    before = len(daemon.cancelled)
    answer.close()
    connection.close()
    check("a client that goes away is cancelled", until(lambda: len(daemon.cancelled) > before, 5), daemon.cancelled)
    check("... and nothing is left open", until(lambda: g.metric("helm_gateway_generations_open") == 0, 5))


def other_tests(site):
    for name, status, method, path, more in (
            ("health needs no key", 200, "GET", "/health", {"key": None}), ("a wrong key is the gateway's 401", 401, "GET", "/v1/models", {"key": "x"}),
            ("models by the site's name", 200, "GET", "/v1/models", {}), ("metrics stay inside", 403, "GET", "/metrics", {}),
            ("status stays inside", 403, "GET", "/status", {}), ("the page", 200, "GET", "/", {"key": None}),
            ("a body beyond the bound", 413, "POST", "/v1/completions", {"body": {"prompt": "x" * (9 << 20)}}),
            ("a body of 3 MiB reaches the gateway", 400, "POST", "/v1/completions", {"body": {"prompt": "x " * (3 << 19)}})):
        _, answer = site.request(method, path, **more)
        check("%s: %d" % (name, status), answer.status == status, (answer.status, answer.read()[:300]))
    connections = [site.request("GET", "/v1/models")[1].status for _ in range(50)]
    check("50 connections one after the other", connections == [200] * 50, connections)


def main():
    if not shutil.which("nginx") or not shutil.which("openssl"):
        print("skip test_nginx.py: there is no nginx or no openssl here (tools/setup.sh deploy)")
        sum_up(1)
    folder, model = tempfile.mkdtemp(prefix="helm-nginx-"), model_folder("qwen3.jinja")
    os.chmod(folder, 0o755)
    with open(folder + "/keys", "w") as f:
        f.write(KEY + "\n")
    os.chmod(folder + "/keys", 0o600)
    daemon = Slow("ipc://%s/helmd.sock" % model, model, SECONDS)
    daemon.say("word ", how=12)
    daemon.start()
    with Gateway(daemon.endpoint, "--host", NAME, "--api-keys", folder + "/keys", key=KEY) as g:
        nginx, port = start_nginx(folder, g.port)
        try:
            site = Site(folder, port)
            check("nginx listens", until(lambda: can_connect(port), 10))
            stream_tests(site, g, daemon)
            other_tests(site)
        finally:
            nginx.terminate()
            nginx.wait()
    daemon.stop()
    shutil.rmtree(folder)
    shutil.rmtree(model)
    sum_up()


main()
