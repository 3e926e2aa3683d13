#!/usr/bin/python3
"""Connections of helm-gateway: a place is free as soon as its client is gone or takes too long, the idlest one without a key
gives way in a full house, an address has a bound of its own, and /health is answered in any case. Then the short form of
`make chaos` before the gateway. The seed is printed; HELM_SEED chooses it.

HELM_BIN: folder of the programs; HELM_PYPROTO: where protoc's Python output lies. Run from the repository's root.
"""
import os
import random
import re
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process"]
import processor  # noqa: E402
from gateway_chaos import chaos  # noqa: E402
from gateway_harness import SLOW, Gateway, Scripted, check, model_folder, sum_up, until  # noqa: E402

HEAD = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"
WHOLE = HEAD + b"\r\n"
HEALTH = WHOLE.replace(b"v1/models", b"health")
BODY = b'{"prompt":"In","max_tokens":1}'
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(BODY)
PARTS = {"nothing": b"", "half a line": b"GET /hea", "half a head": HEAD + b"X: ", "a head without its body": POST, "half a body": POST + BODY[:9],
         "half a chunk": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1e\r\n{",
         "a whole request": WHOLE, "a request and half of another": WHOLE + HEAD, "a request with a body": POST + BODY}
SMALL = 160  # descriptors, which leave 16 places: see main.c


class Two(Scripted):
    """Requests for many tokens go on until they are cancelled; others are answered at once."""

    def handle(self, client, request):
        self.how = 12 if request.generate.max_tokens > 1000 else 11
        super().handle(client, request)


def send(g, data, address="127.0.0.1"):
    s = socket.socket()
    s.settimeout(20 * SLOW)
    s.bind((address, 0))
    s.connect(("127.0.0.1", g.port))
    if data:
        s.sendall(data)
    return s


def answer(s):
    """(status, text, whether the connection is closed then); status 0: closed without one."""
    got = b""
    try:
        while b"\r\n\r\n" not in got and (piece := s.recv(65536)):
            got += piece
        head, _, body = got.partition(b"\r\n\r\n")
        length = int((re.search(rb"content-length: (\d+)", head.lower()) or [0, 0])[1])
        while len(body) < length and (piece := s.recv(65536)):
            body += piece
        return int(head.split()[1]) if head else 0, body.decode(), b"connection: close" in head.lower()
    except ConnectionError:
        return 0, "", True


def is_closed(s):
    """Whether the gateway has closed it. Takes what was sent before."""
    s.setblocking(False)
    try:
        while s.recv(65536):
            pass
        return True
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    finally:
        s.settimeout(20 * SLOW)


def places(g):
    """Without the connection that asks."""
    return int(g.metric("helm_gateway_connections")) - 1


def reset(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def hangup_tests(g):
    before = places(g)
    for how, leave in (("closed", lambda s: s.close()), ("reset", reset), ("half closed", lambda s: s.shutdown(socket.SHUT_WR))):
        for name, part in PARTS.items():
            kept = [send(g, part) for _ in range(20)]
            for s in kept:
                leave(s)
            check("%s, then %s: its place is free" % (name, how), until(lambda: places(g) <= before, 5), places(g))
            for s in kept:
                s.close()
    s = send(g, WHOLE)
    s.shutdown(socket.SHUT_WR)
    check("a whole request of a client that sends no more is answered", answer(s)[0] == 200)
    s.close()
    kept = [send(g, WHOLE) for _ in range(5)]
    check("who stays, stays", all(answer(s)[0] == 200 for s in kept) and places(g) == before + 5, places(g))
    for s in kept:
        s.sendall(WHOLE)
    check("... and asks again", all(answer(s)[0] == 200 for s in kept))
    for s in kept:
        s.close()


def health_tests(g):
    """A connection that asks for /health and nothing else takes no place; whatever is not plainly that goes the usual way."""
    before = places(g)
    kept = send(g, HEALTH)
    first = answer(kept)
    check("/health", first[0] == 200 and first[1] == '{"status":"ok"}' and not first[2], first)
    for request in (HEALTH, HEALTH.replace(b"/health", b"/v1/health"), HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\nAccept: */*\r\n\r\n")):
        kept.sendall(request)
        check("... again on its connection", answer(kept)[0] == 200)
    check("... without a place", places(g) == before, places(g))
    kept.sendall(WHOLE)
    check("... and then for something else", answer(kept)[0] == 200 and places(g) == before + 1, places(g))
    kept.sendall(HEALTH)
    check("... and for /health with a place", answer(kept)[0] == 200)
    kept.close()
    ended = send(g, HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    check("a client that asks once", answer(ended)[2] and until(lambda: is_closed(ended)))
    half = send(g, HEALTH)
    half.shutdown(socket.SHUT_WR)
    check("a client that sends no more", answer(half)[0] == 200 and until(lambda: is_closed(half)))
    head = send(g, HEALTH.replace(b"GET", b"HEAD"))
    got = b""
    while b"\r\n\r\n" not in got:
        got += head.recv(65536)
    check("HEAD has a length and no body", b" 200 " in got and b"Content-Length: 15\r\n" in got and got.endswith(b"\r\n\r\n"), got)
    head.sendall(HEALTH)
    check("... and another request follows", answer(head)[0] == 200)
    counted = g.metric('helm_gateway_requests_total{path="/health",status="2xx"}')
    line = HEALTH[:-2]
    for name, request, status in (("in two pieces", None, 200), ("two at once", HEALTH + HEALTH, 200), ("with a query", HEALTH.replace(b"/health", b"/health?a=b"), 200),
                                  ("HTTP/1.0", HEALTH.replace(b"1.1", b"1.0"), 200), ("with a body", line + b"Content-Length: 2\r\n\r\nhi", 200),
                                  ("an unknown Host", HEALTH.replace(b"localhost", b"evil.example"), 403), ("two Hosts", line + b"Host: localhost\r\n\r\n", 400),
                                  ("no Host", HEALTH.replace(b"Host: localhost\r\n", b""), 400), ("another site's page", line + b"Origin: http://evil.example\r\n\r\n", 403),
                                  ("a length beside chunks", line + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
                                  ("POST", HEALTH.replace(b"GET", b"POST"), 405), ("a longer path", HEALTH.replace(b"/health", b"/healthy"), 404),
                                  ("a blank before the colon", line + b"X : 1\r\n\r\n", 400), ("a long head", line + b"X: " + b"y" * 5000 + b"\r\n\r\n", 200)):
        s = send(g, request or HEALTH[:-9])
        if not request:
            time.sleep(0.05)
            s.sendall(HEALTH[-9:])
        got = answer(s)
        check("/health, %s: %d" % (name, status), got[0] == status, got)
        s.close()
    check("all are counted", g.metric('helm_gateway_requests_total{path="/health",status="2xx"}') - counted >= 6)


def burst_tests(g):
    """More at once than a turn of the loop takes: the gateway stands still meanwhile."""
    before = places(g)
    kept = [send(g, WHOLE, "127.0.0.%d" % (1 + i % 3)) for i in range(120)]
    check("connections of three addresses", all(answer(s)[0] == 200 for s in kept))
    leave, stay = kept[:40], kept[40:]
    os.kill(g.process.pid, signal.SIGSTOP)
    for s in kept:
        s.sendall(POST + BODY if s in leave else WHOLE)
    new = [send(g, HEALTH if i % 2 else WHOLE, "127.0.0.2") for i in range(150)]
    for s in leave[:20]:
        reset(s)
    for s in leave[20:]:
        s.shutdown(socket.SHUT_WR)
    os.kill(g.process.pid, signal.SIGCONT)
    got = [answer(s) for s in stay + new]
    check("all of a burst are answered", all(a[0] == 200 for a in got), got)
    for s in stay:
        s.sendall(WHOLE)
    check("... and go on", all(answer(s)[0] == 200 for s in stay))
    for s in kept + new:
        s.close()
    check("places of a burst are free again", until(lambda: places(g) <= before), places(g))


def time_tests(g):
    """--stall-seconds 1, --request-seconds 5."""
    late = g.metric("helm_gateway_requests_late_total")
    begin = time.monotonic()
    still = {name: send(g, PARTS[name]) for name in ("nothing", "half a line", "half a head", "half a body", "half a chunk")}
    idle = send(g, WHOLE)
    check("a connection between two requests", answer(idle)[0] == 200)
    again = send(g, WHOLE)
    check("... and another one", answer(again)[0] == 200)
    again.sendall(HEAD)
    for _ in range(5):  # until this program is not held up itself
        trickles, slow, whole, at = send(g, HEAD), send(g, POST), send(g, POST), [time.monotonic()]
        for i in range(8):
            for s in (trickles, slow):
                try:
                    s.sendall(b"X" if s is trickles else BODY[i:i + 1])
                except OSError:
                    pass
            time.sleep(0.25)
            if i == 1:
                whole.sendall(BODY)
            at.append(time.monotonic())
        in_time = max(b - a for a, b in zip(at, at[2:])) < 0.9
        if in_time:
            check("a body that came in time", answer(whole)[0] == 200)
            break
    check("a head that trickles is ended", until(lambda: is_closed(trickles), 5))
    for name, s in still.items():
        check("%s that stands still is ended" % name, until(lambda s=s: is_closed(s), 5))
    check("half a head on a connection that had a request is ended", until(lambda: is_closed(again), 5))
    if in_time and time.monotonic() - begin < 4:  # otherwise other limits are over
        check("an idle connection stays", not is_closed(idle))
        slow.sendall(BODY[8:])
        check("... and so does a body that goes on", answer(slow)[0] == 200)
    trickles, begin, end = send(g, POST.replace(b"%d" % len(BODY), b"1000")), time.monotonic(), processor.clock() + 20
    try:
        while not is_closed(trickles) and processor.clock() < end:
            trickles.sendall(b" ")
            time.sleep(0.3)
    except OSError:
        pass
    check("a body that trickles on and on is ended after --request-seconds", time.monotonic() - begin > 4 and processor.clock() < end)
    check("an idle connection is ended, too", until(lambda: is_closed(idle), 10))
    check("they are counted", g.metric("helm_gateway_requests_late_total") - late >= 7, g.metric("helm_gateway_requests_late_total"))


def house_tests(endpoint):
    """16 places."""
    with Gateway(endpoint, prefix=("prlimit", "--nofile=%d:%d" % (SMALL, SMALL))) as g:
        check("fewer places for fewer descriptors", "160 descriptors are allowed: 16 connections instead of 1024" in g.log(), g.log())
        stream = g.open_stream("/v1/completions", {"prompt": "x", "max_tokens": 100000, "stream": True})
        check("a stream", b"200 OK" in stream.recv(65536))
        idle = send(g, WHOLE)
        check("an idle connection", answer(idle)[0] == 200)
        halves = []
        for group in range(4):  # one that has just come is spared while its first bytes are unread: each group is older than the next
            halves += [send(g, HEAD, "127.0.0.%d" % (2 + i % 3)) for i in range(10 * group, 10 * group + 10)]
            g.get("/health")
            time.sleep(0.2)
        check("a full house answers", g.get("/v1/models").status == 200 and places(g) < 16, places(g))
        check("... and takes generations", g.complete("x", max_tokens=2).status == 200)
        closed = [is_closed(s) for s in halves]
        check("the idlest gave way", all(closed[:20]) and not any(closed[-10:]), closed)
        check("... and no stream did", b"data: " in stream.recv(65536) and not is_closed(stream))
        check("... and it is counted", g.metric("helm_gateway_connections_evicted_total") >= 24)
        heads = [send(g, POST, "127.0.0.9") for _ in range(6)]
        time.sleep(0.2)
        more = [send(g, HEAD, "127.0.0.8") for _ in range(20)]
        check("heads give way before bodies", until(lambda: sum(map(is_closed, more)) >= 9) and not any(map(is_closed, heads)), (list(map(is_closed, more)), list(map(is_closed, heads))))
        for s in [stream, idle, *halves, *heads, *more]:
            s.close()
        check("all places are free again", until(lambda: places(g) == 0), places(g))


def reserve_tests(endpoint):
    """4 places for an address, which 4 streams take."""
    with Gateway(endpoint, "--address-connections", "4") as g:
        body = {"prompt": "x", "max_tokens": 100000, "stream": True}
        streams = [g.open_stream("/v1/completions", body) for _ in range(4)]
        check("streams up to the bound of an address", all(b"200 OK" in s.recv(65536) for s in streams))
        check("/health has a reserve", all(answer(send(g, HEALTH))[0] == 200 for _ in range(20)))
        status, text, closed = answer(send(g, WHOLE))
        check("others are told of the bound", status == 503 and closed and "no_place" in text and "127.0.0.1, which may have 4" in text, text)
        status, text, closed = answer(send(g, POST + BODY))
        check("... also those with a body", status == 503 and closed and "no_place" in text, text)
        kept = [send(g, HEAD) for _ in range(40)]
        check("a full reserve has a place for the next", answer(send(g, HEALTH))[0] == 200)
        status, text, _ = answer(send(g, WHOLE, "127.0.0.2"))
        check("another address has its own places", status == 200, text)
        check("the streams go on", all(b"data: " in s.recv(65536) for s in streams))
        streams.pop().close()
        check("a place that is free is given", until(lambda: answer(send(g, WHOLE))[0] == 200))
        for s in [*kept, *streams]:
            s.close()


def key_tests(endpoint):
    with tempfile.NamedTemporaryFile("w") as keys:
        keys.write("alice sk-first-0123\n")
        keys.flush()
        with Gateway(endpoint, "--api-keys", keys.name, "--address-connections", "24", key="sk-first-0123") as g:
            with_key = WHOLE[:-2] + b"Authorization: Bearer sk-first-0123\r\n\r\n"
            known = [send(g, with_key) for _ in range(4)]
            check("connections with a key", all(answer(s)[0] == 200 for s in known))
            refused = send(g, WHOLE)
            check("a connection without one", answer(refused)[0] == 401)
            halves = [send(g, HEAD) for _ in range(60)]
            check("who has no key gives way first", until(lambda: is_closed(refused) and all(map(is_closed, halves[:30]))))
            check("... and who has one stays", not any(map(is_closed, known)))
            known[0].sendall(with_key)
            check("... and is answered", answer(known[0])[0] == 200)
            for s in halves:
                s.close()
            more = [send(g, with_key) for _ in range(40)]
            check("of those with a key the idlest gives way", all(answer(s)[0] == 200 for s in more[-4:]) and until(lambda: any(map(is_closed, known[1:]))), list(map(is_closed, known + more)))


def main():
    folder = model_folder("qwen3.jinja")
    endpoint = "ipc://%s/helmd.sock" % folder
    daemon = Two(endpoint, folder, token_seconds=0.02)
    daemon.context_tokens = 1 << 17
    daemon.start()
    daemon.say("on and on")
    try:
        with Gateway(endpoint, "--stall-seconds", "1", "--request-seconds", "5") as g:
            time_tests(g)
        with Gateway(endpoint) as g:
            hangup_tests(g)
            health_tests(g)
            burst_tests(g)
        house_tests(endpoint)
        reserve_tests(endpoint)
        key_tests(endpoint)
    finally:
        daemon.stop()
        shutil.rmtree(folder)
    chaos(5, int(os.environ.get("HELM_SEED") or random.randrange(1 << 30)))


if __name__ == "__main__":
    main()
    sum_up()
