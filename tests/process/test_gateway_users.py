#!/usr/bin/python3
"""Users of helm-gateway: the owners of API keys, or addresses. Each is a peer of its own to helmd (queue, prefix cache, ps), and
has a share of the gateway: of bodies that are received, of threads that read them, of open generations.

HELM_BIN: folder of the programs; HELM_PYPROTO: where protoc's Python output lies. Run from the repository's root.
"""
import http.client
import json
import os
import re
import select
import shutil
import socket
import sys
import tempfile
import threading
import time

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process"]
import helmd_harness as helmd  # noqa: E402
from gateway_harness import Gateway, SLOW, Scripted, check, cli, model_folder, sum_up, until  # noqa: E402

KEYS = {"alice": "alice-secret-key", "bob": "bob-secret-key", "carol": "carol-secret-key", "dave": "dave-secret-key",
        "": "nameless-secret-key"}
VERSE = "And it came to pass in those days, that"
MIB = 1 << 20


def keys_file(folder):
    path = os.path.join(folder, "keys")
    with open(path, "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
        f.writelines("%s %s\n" % item for item in KEYS.items())
    return path


def send(g, name, path, body, pad=0, keep=0):
    """A socket with this user's request sent, with `pad` blanks after the body, of which the last `keep` are not sent."""
    s = socket.create_connection(("127.0.0.1", g.port), timeout=30 * SLOW)
    data = json.dumps(body).encode() + b" " * pad
    s.sendall(("POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n"
               % (path, KEYS[name], len(data))).encode() + data[:len(data) - keep])
    return s


def status_of(s, rest=b""):
    """The status of the answer, and its text, once the `rest` was sent."""
    s.sendall(rest)
    answer = http.client.HTTPResponse(s)
    answer.begin()
    text = answer.read().decode()
    s.close()
    return answer.status, text


def answered(sockets):
    return len(select.select(sockets, [], [], 0)[0])


def asks(g, name, times, **fields):
    """The statuses of some small requests, one after the other."""
    body = {"prompt": "In", "max_tokens": 1, **fields}
    return [status_of(send(g, name, "/v1/completions", body))[0] for _ in range(times)]


def hold(daemon):
    """From now on an answer is one token until it is cancelled."""
    daemon.say("ok", how=12)
    daemon.token_seconds = 1000


# ---- helmd is told -----------------------------------------------------------------------------------------------


def told_tests(g, daemon):
    daemon.say("ok")
    chat, message = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}, {"role": "user", "content": "Hi"}
    for path, body in (("/v1/chat/completions", chat), ("/v1/completions", {"prompt": "Hi", "max_tokens": 4}),
                       ("/v1/responses", {"input": "Hi", "max_output_tokens": 4}), ("/v1/messages", chat),
                       ("/api/chat", {"messages": [message], "stream": False}), ("/api/generate", {"prompt": "Hi", "stream": False})):
        status, text = status_of(send(g, "alice", path, body))
        check("helmd is told whose a request is: %s" % path, status == 200 and list(daemon.users.values())[-1] == "alice",
              (text, daemon.users))
    a = g.post("/v1/messages", chat, headers={"x-api-key": KEYS["bob"]})
    check("... by either header", a.status == 200 and list(daemon.users.values())[-1] == "bob", (a.body, daemon.users))
    status_of(send(g, "alice", "/v1/chat/completions", dict(chat, user="bob")))
    check("a request's own `user` is a label", list(daemon.users.values())[-1] == "alice" and daemon.generated[-1].label == "gateway:bob",
          daemon.generated[-1])
    asks(g, "", 2)
    names = list(daemon.users.values())[-2:]
    check("a key without a name has a hash", names[0] == names[1] and re.fullmatch("key-[0-9a-f]{12}", names[0]), names)


def shown_tests(g, daemon):
    hold(daemon)
    sockets = [send(g, name, "/v1/completions", {"prompt": "Hi", "stream": True}) for name in ("alice", "alice", "bob", "")]
    check("they are open", until(lambda: len(daemon.going) == 4), daemon.going)
    text = cli("--connect", daemon.endpoint, "ps")
    users = sorted(e["user"] for e in json.loads(cli("--connect", daemon.endpoint, "ps", "--json")))
    check("helm-cli ps shows users", users[:3] == ["alice", "alice", "bob"] and users[3].startswith("key-") and "(bob)" in text, text)
    check("... and no key", not any(key in text for key in KEYS.values()), text)
    for name, count in (("alice", 2), ("bob", 1), ("carol", 0)):
        slots = g.get("/slots", headers={"Authorization": "Bearer " + KEYS[name]}).json
        check("/slots shows a user its own requests: %s" % name, len(slots) == count, slots)
    for s in sockets:
        s.close()
    check("a user that leaves cancels its own", until(lambda: len(daemon.going) == 0), daemon.going)
    daemon.say("ok")
    asks(g, "carol", 1)
    check("the log names no key", not any(key in g.log() for key in KEYS.values()), g.log())


def address_tests(g, daemon):
    daemon.say("ok")
    for address in ("127.0.0.1", "127.0.0.2", "127.1.2.3", "127.0.0.2"):
        c = http.client.HTTPConnection("127.0.0.1", g.port, timeout=20 * SLOW, source_address=(address, 0))
        c.request("POST", "/v1/completions", json.dumps({"prompt": "Hi", "max_tokens": 1}), {"Authorization": "Bearer whatever-it-is"})
        status = c.getresponse().status
        c.close()
        check("without keys an address is a user: %s" % address, (status, list(daemon.users.values())[-1]) == (200, address), daemon.users)


def untold_tests(folder, endpoint):
    """A helmd that does not let the gateway name users, or is older than that; then one that does."""
    daemon = Scripted(endpoint, folder)
    daemon.start()
    with Gateway(endpoint, "--api-keys", keys_file(folder)) as g:
        daemon.say("ok")
        check("a helmd that takes no names is served as before", asks(g, "alice", 1) == [200] and set(daemon.users.values()) == {""},
              daemon.users)
        check("... and the log says so", "to helmd all users of this gateway are one" in g.log(), g.log())
        daemon.stop()
        daemon = Scripted(endpoint, folder)
        daemon.names_users = True
        daemon.say("ok")
        daemon.start()
        check("another helmd is asked anew", until(lambda: asks(g, "alice", 1) == [200], 20) and set(daemon.users.values()) == {"alice"},
              daemon.users)
    daemon.stop()


# ---- shares of the gateway ---------------------------------------------------------------------------------------


def resident(pid):
    with open("/proc/%d/status" % pid) as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmRSS"))


def close(g, sockets):
    """Ends unfinished requests. How many of them were refused before they ended, of each user, as the log says."""
    before = len(g.log())
    for s in sockets:
        s.close()
    ended = r"(\w+) POST /v1/completions: 0(.*),"
    until(lambda: len(re.findall(ended, g.log()[before:])) >= len(sockets), 30)
    found = re.findall(ended, g.log()[before:])
    return len(found), {name: sum(n == name and "server_busy" in why for n, why in found) for name in KEYS if name}


def body_tests(g, daemon):
    """Unfinished bodies of 8 MiB: what one user may hold, and what all may."""
    daemon.say("ok")
    body = {"prompt": "In", "max_tokens": 1}
    pad = 8 * MIB - len(json.dumps(body))
    hold = [send(g, "bob", "/v1/completions", body, pad, keep=1) for _ in range(10)]
    check("a user's unfinished bodies are in nobody's way", asks(g, "alice", 10) == [200] * 10)
    status, text = status_of(send(g, "bob", "/v1/completions", body))
    check("... but its own, which have a bound", status == 429 and "bodies of one user take at most 64 MiB" in text, text)
    ended, refused = close(g, hold)
    check("it is half of what all may hold", (ended, refused["bob"]) == (10, 2), (ended, refused))
    check("what is over is given back", asks(g, "bob", 2) == [200] * 2)
    before = resident(g.process.pid)
    hold = [send(g, name, "/v1/completions", body, pad, keep=1) for _ in range(6) for name in ("bob", "carol", "dave")]
    check("many users' unfinished bodies are in nobody's way", asks(g, "alice", 10) == [200] * 10)
    status, text = status_of(send(g, "alice", "/v1/completions", body, pad))
    check("... not even of a large one", status == 200, text)
    grown = resident(g.process.pid) - before
    check("all bodies together are bounded", SLOW > 1 or grown < 280 * MIB, grown >> 20)  # a text's room doubles
    ended, refused = close(g, hold)
    shares = [6 - refused[name] for name in ("bob", "carol", "dave")]
    check("each has about as much as the others", ended == 18 and min(shares) >= 4 and sum(shares) <= 16 and refused["alice"] == 0, shares)


def waiting_tests(g, daemon):
    """Whole bodies that wait for a thread: those that hold most give some up for others."""
    daemon.say("ok")
    text = (VERSE + ". ") * (MIB // SLOW // len(VERSE))
    body = {"content": text}
    pad = 8 * MIB - len(json.dumps(body))
    sockets = [send(g, name, "/tokenize", body, pad) for _ in range(8) for name in ("bob", "carol")]
    begun = answered(sockets)
    check("whole bodies that wait are in nobody's way", asks(g, "alice", 10) == [200] * 10, begun)
    status, said = status_of(send(g, "alice", "/v1/completions", {"prompt": "In", "max_tokens": 1}, 8 * MIB - 40))
    check("... not even of a large one", status == 200, said)
    statuses = {status_of(s)[0] for s in sockets[:2] + sockets[-2:]}
    check("they are read, or were given up", statuses <= {200, 503} and 200 in statuses, statuses)
    for s in sockets:
        s.close()


def reading_tests(g, daemon):
    """Long texts to be tokenized: one user's do not stand before another's."""
    text = (VERSE + ". ") * (4 * MIB // SLOW // len(VERSE))
    sockets = [send(g, "bob", "/tokenize", {"content": text}) for _ in range(12)]
    until(lambda: answered(sockets) > 0, 60)
    before, begun = answered(sockets), time.time()
    status, _ = status_of(send(g, "alice", "/tokenize", {"content": "In"}))
    took, after = time.time() - begun, answered(sockets)
    check("a short text is read next to another user's long ones", status == 200 and after - before <= 3 and after < 12,
          (status, before, after, took))
    check("... which come to their end, too", {status_of(s)[0] for s in sockets} == {200})


def generation_tests(g, daemon):
    hold(daemon)
    body = {"prompt": "In", "n": 16, "stream": True}
    sockets = [send(g, "bob", "/v1/completions", body) for _ in range(31)]
    check("half of all generations may be one user's", until(lambda: len(daemon.going) == 31 * 16, 30), len(daemon.going))
    status, text = status_of(send(g, "bob", "/v1/completions", body))
    check("no more of them", status == 429 and "496 of the 496 open generations are this user's" in text, text)
    daemon.say("ok")
    check("another user has room", asks(g, "alice", 2, n=16) == [200] * 2)
    hold(daemon)
    for s in sockets:
        s.close()
    check("they end with their clients", until(lambda: not daemon.going, 60), len(daemon.going))
    daemon.say("ok")
    check("what ended is given back", until(lambda: asks(g, "bob", 1, n=16) == [200]))


# ---- with helmd --------------------------------------------------------------------------------------------------


def in_turn(g, requests, path="/v1/completions"):
    """Sends [(user, body)] in this order, all at once, and gives the users in the order of their answers."""
    order, lock = [], threading.Lock()

    def wait(name, s):
        status = status_of(s)[0]
        with lock:
            order.append((name, status))

    threads = [threading.Thread(target=wait, args=(name, send(g, name, path, body))) for name, body in requests]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check("all are answered", {status for _, status in order} == {200}, order)
    return [name for name, _ in order]


def queue_tests(g):
    def body(n, tokens):
        return {"prompt": VERSE, "max_tokens": tokens, "ignore_eos": True, "temperature": 1, "seed": n}
    sockets = [send(g, "bob", "/v1/completions", body(n, 120)) for n in range(100)]
    check("a user's 100 requests wait", until(lambda: g.metric("helm_requests_running") + g.metric("helm_requests_queued") > 60, 20))
    # how many end meanwhile also grows while this script waits for a processor: the least counts
    seen = []
    while len(seen) < 5 and (before := answered(sockets)) < 60:
        status, text = status_of(send(g, "alice", "/v1/completions", body(0, 2)))
        seen.append((answered(sockets) - before, status))
        if seen[-1][0] <= 8:
            break
    check("one of another user is next", seen and min(seen)[0] <= 8 and {s for _, s in seen} == {200}, seen)
    check("... and bob's are all answered", [status_of(s)[0] for s in sockets] == [200] * 100)
    order = in_turn(g, [(name, body(n, 24)) for name in ("bob", "alice", "carol", "dave", "") for n in range(10)])
    counts = dict.fromkeys(KEYS, 0)
    spread = []
    for name in order[:35]:
        counts[name] += 1
        spread.append(max(counts.values()) - min(counts.values()))
    check("keys share equally", max(spread) <= 6 and min(counts.values()) >= 4, (order, counts))


def prefix_tests(g):
    def cached(name, kind):
        status, text = status_of(send(g, name, "/v1/completions", {"prompt": ("%d " % kind + VERSE) * 12, "max_tokens": 2}))
        return json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"] if status == 200 else text
    first, again = cached("alice", 1), cached("alice", 1)
    check("a user finds its own prompt", first == 0 < again, (first, again))
    others = [cached(name, 1) for name in ("bob", "carol", "")]
    check("another user never does", others == [0, 0, 0], others)
    check("... who then finds its own", cached("bob", 1) == again)


def main():
    folder = model_folder("qwen3.jinja", ("<|im_start|>", "<|im_end|>"))
    endpoint = "ipc://%s/helmd.sock" % folder
    daemon = Scripted(endpoint, folder)
    daemon.names_users = True
    daemon.start()
    try:
        with Gateway(endpoint, "--api-keys", keys_file(folder), "--request-seconds", "900", "--stall-seconds", "900") as g:
            told_tests(g, daemon)
            shown_tests(g, daemon)
            body_tests(g, daemon)
            waiting_tests(g, daemon)
            reading_tests(g, daemon)
            generation_tests(g, daemon)
        with Gateway(endpoint) as g:
            address_tests(g, daemon)
        daemon.stop()
        untold_tests(folder, endpoint)
        with helmd.running("--parallel", "4", "--queue", "256", "--prefix-cache", "peer", real=True) as d, \
                tempfile.TemporaryDirectory() as base:
            with Gateway(d.endpoint, "--api-keys", keys_file(base), key=KEYS["carol"]) as g:
                queue_tests(g)
                prefix_tests(g)
    finally:
        daemon.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
    sum_up()
