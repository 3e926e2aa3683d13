#!/usr/bin/python3
"""helmd and clients that mean harm: nothing that one sends costs another. Each bound of the table in docs/bounds.md."""
import contextlib
import os
import resource
import signal
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
import zmq  # noqa: E402
from helmd_harness import (Client, Daemon, as_user, check, expected_tokens, pb, run_tests, running, same, skip,  # noqa: E402
                           wait_until, SLOW)
from raw_zmtp import Raw, frame, greeting, ready  # noqa: E402

MIB = 1 << 20
if SLOW > 1:  # what AddressSanitizer keeps of freed memory is no growth
    os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=16"


def resident(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmRSS"))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def status_frame(request_id=1):
    request = pb.Request(version=1, request_id=request_id)
    request.status.SetInParent()
    return frame(request.SerializeToString())


def list_frame(request_id=1):
    request = pb.Request(version=1, request_id=request_id)
    request.list.SetInParent()
    return frame(request.SerializeToString())


class watching:
    """with watching(daemon) as w: ... ; w.most is the most memory that helmd grew by meanwhile, and a client that asked
    for its status all the time waited w.longest seconds at most."""

    def __init__(self, d):
        self.d, self.stop, self.most, self.longest, self.answers = d, False, 0, 0.0, 0

    def look(self):
        client = Client(self.d.endpoint)
        while not self.stop:
            begun = processor.clock()
            client.ask("status", timeout=30)
            self.answers += 1
            self.longest = max(self.longest, processor.clock() - begun)
            self.most = max(self.most, resident(self.d.pid) - self.before)
            time.sleep(0.005)
        client.close()

    def __enter__(self):
        self.before = resident(self.d.pid)
        self.thread = threading.Thread(target=self.look)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop = True
        self.thread.join()
        self.most = max(self.most, resident(self.d.pid) - self.before)


@contextlib.contextmanager
def with_keys(*options, keys=("",), **named):
    """A daemon that a local user and CURVE keys may use; `keys`: the text after each in the clients' file. Gives the daemon
    and, for each key, a function that connects with it."""
    server_public, server_secret = zmq.curve_keypair()
    pairs = [zmq.curve_keypair() for _ in keys]
    first = Daemon()  # for its folder
    base = first.base
    first.stop()
    with open(os.path.join(base, "server"), "wb") as f:
        f.write(server_secret + b"\n")
    os.chmod(os.path.join(base, "server"), 0o600)
    with open(os.path.join(base, "clients"), "wb") as f:
        for (public, _), word in zip(pairs, keys):
            f.write(public + b" " + word.encode() + b"\n")
    port = 20000 + os.getpid() % 12000  # below what the kernel gives to sockets that connect
    tcp = f"tcp://127.0.0.1:{port}"
    d = Daemon("--listen", tcp, "--listen", f"ipc://{base}/local.sock", "--curve-secret-key-file", os.path.join(base, "server"),
               "--curve-clients-file", os.path.join(base, "clients"), *options, base=base, **named)
    d.endpoint = f"ipc://{base}/local.sock"
    check(d.ready.startswith("ready "), d.ready + d.log())

    def connector(pair):
        def connect():
            c = Client.__new__(Client)
            c.socket, c.next, c.streams = Client.context.socket(zmq.DEALER), 1, {}
            c.socket.linger = 0
            c.socket.curve_serverkey, c.socket.curve_publickey, c.socket.curve_secretkey = server_public, *pair
            c.socket.connect(tcp)
            return c
        return connect

    try:
        yield d, [connector(pair) for pair in pairs]
    except BaseException:
        print("---- helmd's log:\n" + d.log()[-4000:])
        raise
    finally:
        d.close()


# ---- messages that do not end --------------------------------------------------------------------------------


def test_a_message_of_endless_parts_is_not_gathered():
    for part in (b"", b"x" * 200):
        with running() as d:
            raw = Raw(d.endpoint)
            with watching(d) as w:
                sent = raw.send_some(frame(part, more=True) * ((96 << 20) // (len(part) + 2)), 10 * SLOW)
                check(raw.is_closed(10 * SLOW), "the connection lives on")
            check(sent < 8 * MIB, f"took {sent >> 20} MiB of parts of {len(part)} bytes")
            check(w.most < 16 * MIB * SLOW, f"grew by {w.most >> 20} MiB for parts of {len(part)} bytes")
            check("too many parts" in d.log(), "no reason in the log")


def test_three_million_empty_parts_cost_their_connection():
    with running() as d:
        c = Client(d.endpoint)
        same(c.ask("status").status.state, "ready", "state")
        raw = Raw(d.endpoint)
        with watching(d) as w:
            raw.send_some(frame(b"", more=True) * 3_000_000, 20 * SLOW)
            check(raw.is_closed(10 * SLOW), "the connection lives on")
        check(w.most < 16 * MIB * SLOW, f"grew by {w.most >> 20} MiB")
        same(c.ask("status").status.state, "ready", "state for others")


def test_a_few_parts_are_one_error_and_the_connection_goes_on():
    with running() as d:
        raw = Raw(d.endpoint)
        for data in (frame(b"", more=True) * 2 + frame(b"x"), frame(b"a", more=True) + frame(), frame(b"a" * 300, more=True) * 60 + frame()):
            raw.send(data)
            answer = raw.frame() or raw.frame()  # after an empty frame, if the message had one
            response = pb.Response.FromString(answer)
            same(response.error.code, pb.ERROR_MALFORMED, "code")
        raw.send(frame(b"", more=True) + status_frame())
        same(raw.frame(), b"", "delimiter")
        same(pb.Response.FromString(raw.frame()).WhichOneof("body"), "status", "body")


def test_keys_do_not_help_a_message_of_endless_parts():
    with with_keys() as (d, (connect,)):
        friend, other = connect(), connect()
        same(friend.ask("status").status.state, "ready", "state")
        with watching(d) as w:  # libzmq sends none of them before it has the last
            for _ in range(200_000):
                other.socket.send(b"x" * 200, zmq.SNDMORE)
            other.socket.send(b"")
            wait_until(lambda: "too many parts" in d.log(), 10)
        check(w.most < 16 * MIB * SLOW, f"grew by {w.most >> 20} MiB")
        check("too many parts" in d.log(), "no reason in the log")
        same(friend.ask("status").status.state, "ready", "state for others")


def test_frames_that_claim_much_take_nothing():
    with running() as d:
        with watching(d) as w:
            raws = [Raw(d.endpoint) for _ in range(50)]
            for raw in raws:
                raw.send(b"\x02" + (MIB).to_bytes(8, "big") + b"x" * 100)
            time.sleep(0.3)
        check(w.most < 16 * MIB * SLOW, f"grew by {w.most >> 20} MiB")
        bad = Raw(d.endpoint)
        bad.send(b"\x02" + (1 << 62).to_bytes(8, "big"))
        check(bad.is_closed(5 * SLOW), "a frame of 4 EiB is waited for")


# ---- connections ---------------------------------------------------------------------------------------------


def test_connections_under_a_taken_routing_id_leave_nothing():
    with running() as d:
        first = Raw(d.endpoint, identity=b"taken")
        payload = frame(b"x" * (MIB - 64)) * 4
        with watching(d) as w:
            for _ in range(400):
                raw = Raw(d.endpoint, identity=b"taken")
                raw.send_some(payload, 0.02)
                raw.close()
            check(wait_until(lambda: descriptors(d.pid) < 60, 10), "descriptors stay")
        check(w.most < 64 * MIB * SLOW, f"grew by {w.most >> 20} MiB")
        check(resident(d.pid) - w.before < 24 * MIB * SLOW, f"{(resident(d.pid) - w.before) >> 20} MiB stay")
        first.send(status_frame())
        same(pb.Response.FromString(first.frame()).WhichOneof("body"), "status", "the first of that name")


def test_half_sent_messages_are_bounded_in_all():
    with running() as d:
        c = Client(d.endpoint)
        c.ask("status")
        with watching(d) as w:
            raws = []
            for _ in range(300):  # 210 MiB that never become whole
                raws.append(Raw(d.endpoint))
                raws[-1].send_some(b"\x02" + (MIB - 1).to_bytes(8, "big") + b"x" * (700 << 10), 5 * SLOW)
        check(w.most < 160 * MIB * SLOW, f"grew by {w.most >> 20} MiB")
        check("clients' buffers hold more than 128 MiB" in d.log(), "no reason in the log")
        closed = sum(raw.is_closed(0.001) for raw in raws)
        check(100 < closed < 299, f"{closed} of 300 were let go")
        same(c.ask("status").status.state, "ready", "state for others")


def test_a_full_house_lets_in_the_next():
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))

    with running() as first:
        base = first.base
        first.stop()
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, limit[1]))
        try:
            d = Daemon(base=base)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        try:
            check(d.ready.startswith("ready "), d.ready)
            busy = Client(d.endpoint)
            stream = busy.generate([5, 6, 7], 400)
            while not stream.tokens:
                busy.receive()
            raws = [Raw(d.endpoint) for _ in range(200)]
            check(descriptors(d.pid) < 128, f"{descriptors(d.pid)} descriptors")
            late = Client(d.endpoint)
            same(late.ask("status").status.state, "ready", "a latecomer")
            check(sum(raw.is_closed(0.001) for raw in raws) > 100, "nobody had to go")
            busy.run(stream)
            same(stream.tokens, expected_tokens([5, 6, 7], 400), "who has an open request stays")
        finally:
            d.close()


def test_who_does_not_greet_is_let_go():
    with running() as d:
        before = descriptors(d.pid)
        raws = [Raw(d.endpoint, greet=False) for _ in range(20)]
        wrong = [(b"GET / HTTP/1.1\r\n\r\n".ljust(64, b" "), "ZMTP 3"), (greeting(b"CURVE"), "keys"), (greeting() + frame(b"x"), "READY"),
                 (greeting() + ready(b"SUB"), "DEALER"), (greeting() + frame(b"x" * 2000, command=True), "bounds")]
        for data, word in wrong:
            bad = Raw(d.endpoint, greet=False)
            bad.send(data)
            check(bad.is_closed(3 * SLOW), f"{data[:20]} lives on")
            check(word in d.log(), f"no '{word}' in the log")
        check(all(raw.is_closed(8) for raw in raws), "silent connections live on")
        check(wait_until(lambda: descriptors(d.pid) <= before, 5), f"{descriptors(d.pid)} descriptors, {before} before")


def test_pings_are_answered_and_a_flood_of_them_waits():
    with running() as d:
        raw = Raw(d.endpoint)
        raw.send(frame(b"\x04PING\0\x0ahello", command=True))
        same(raw.frame(), b"\x04PONGhello", "pong")
        with watching(d) as w:
            raw.send_some(frame(b"\x04PING\0\x0a0123456789abcdef", command=True) * 1_000_000, 2)
        check(w.most < 16 * MIB * SLOW, f"grew by {w.most >> 20} MiB")


# ---- readers -------------------------------------------------------------------------------------------------


def test_readers_who_never_read_hold_little():
    with running("--queue", 256, faults="step_us=20000") as d:
        c = Client(d.endpoint)
        many = [c.generate([3], 400, label="x" * 60, seed=n) for n in range(200)]
        while not all(s.id for s in many):
            c.receive()
        raws = [Raw(d.endpoint) for _ in range(20)]
        with watching(d) as w:
            data = list_frame() * 4000
            threads = [threading.Thread(target=raw.send_some, args=(data, 2)) for raw in raws]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            time.sleep(1.5)  # a daemon without bounds would answer in this time
        check(w.most < 24 * MIB * SLOW, f"grew by {w.most >> 20} MiB")
        check(w.longest < 1 * SLOW, f"another waited {w.longest:.2f} s")
        raws[0].socket.settimeout(10)
        for _ in range(100):  # what was taken is answered as soon as it is read
            same(len(pb.Response.FromString(raws[0].frame()).list.entries), 200, "entries")


def test_a_flood_of_questions_holds_up_nobody():
    with running(faults="step_us=300") as d:
        stop = time.time() + 2
        raws, heard = [Raw(d.endpoint) for _ in range(8)], []

        def ask(raw):
            while time.time() < stop and raw.send(status_frame() * 500):
                pass
            raw.socket.shutdown(socket.SHUT_WR)

        def read(raw):  # until helmd closes what will ask no more
            heard.append(0)
            own = len(heard) - 1
            with contextlib.suppress(ConnectionError):
                while data := raw.socket.recv(1 << 20):
                    heard[own] += len(data)

        threads = [threading.Thread(target=f, args=(raw,)) for f in (read, ask) for raw in raws]
        with watching(d) as w:
            for t in threads:
                t.start()
            c = Client(d.endpoint)
            stream = c.generate([5, 6, 7], 300)
            c.run(stream)
            during = time.time() < stop
            for t in threads:
                t.join()
        check(during and min(heard) > 100_000, f"no flood: {heard} bytes of answers, the stream ended {'in' if during else 'behind'} it")
        same(stream.tokens, expected_tokens([5, 6, 7], 300), "tokens")
        check(w.longest < 0.5 * SLOW and w.answers > 10, f"{w.answers} answers, the slowest after {w.longest:.2f} s")


# ---- shares and rights ---------------------------------------------------------------------------------------


def place_of_the_next(d, victim):
    """Eight connections of the local user with 32 requests each; then one of `victim`: its place when it is taken, and how many
    others end from then on until it has."""
    greedy = [Client(d.endpoint) for _ in range(8)]
    streams = [[c.generate([3], 40, seed=n) for n in range(32)] for c in greedy]
    for c, own in zip(greedy, streams):
        while not all(s.id or s.error for s in own):
            c.receive()
    r = victim.request()
    r.generate.prompt.extend([5, 6, 7])
    r.generate.max_tokens = 10
    r.generate.sampling.has_seed = True
    victim.socket.send(r.SerializeToString())
    answer = victim.receive()
    same(answer.WhichOneof("body"), "accepted", f"answer ({answer.error.message})")
    place = answer.accepted.queue_position

    def ended():
        for c in greedy:
            while c.socket.poll(0):
                c.receive()
        return sum(bool(s.done) for own in streams for s in own)

    before = ended()
    while victim.receive().WhichOneof("body") != "done":
        pass
    os.kill(d.process.pid, signal.SIGSTOP)  # counting is slower than the daemon, which must not end more meanwhile
    try:
        return place, ended() - before
    finally:
        os.kill(d.process.pid, signal.SIGCONT)


def waits_at_most(open_daemon, most_place, most_ended):
    """The place is the daemon's own word. How many end meanwhile also grows while this script waits for a processor: the least of
    up to five daemons counts, which a daemon that is not fair does not reach."""
    seen = []
    while len(seen) < 5 and (not seen or min(seen) > most_ended):
        with open_daemon() as (d, client):
            place, ended = place_of_the_next(d, client)
        check(place <= most_place, f"place {place}")
        seen.append(ended)
    check(min(seen) <= most_ended, f"{seen} requests ended before it")


# 320 ms for a request of 40 tokens: what this script is late to count is little beside it
SLOW_STEPS = "step_us=8000"


def test_another_peer_waits_for_one_share():
    @contextlib.contextmanager
    def daemon():
        with with_keys("--parallel", 8, "--queue", 512, faults=SLOW_STEPS) as (d, (connect,)):
            yield d, connect()
    waits_at_most(daemon, 1, 24)


def test_another_connection_waits_for_one_turn_of_each():
    @contextlib.contextmanager
    def daemon():
        with running("--parallel", 8, "--queue", 512, faults=SLOW_STEPS) as d:
            yield d, Client(d.endpoint)
    waits_at_most(daemon, 9, 32)


def test_requests_are_their_peers_own():
    with with_keys(keys=("", "# another", "admin"), faults="step_us=30000") as (d, connects):
        mine, theirs, admin = (connect() for connect in connects)
        a = mine.generate([3], 400, label="mine")
        while not a.tokens:
            mine.receive()
        answer = theirs.ask("cancel", id=a.id)
        same(answer.error.code, pb.ERROR_NOT_FOUND, "cancelling another's")
        check("of yours" in answer.error.message, answer.error.message)
        got = theirs.ask("list").list
        same((len(got.entries), got.others), (0, 1), "what others see")
        same(len(connects[0]().ask("list").list.entries), 1, "another connection of the same key")
        same([e.label for e in admin.ask("list").list.entries], ["mine"], "what an administrator sees")
        same(len(Client(d.endpoint).ask("list").list.entries), 1, "what helmd's own user sees")
        same(admin.ask("cancel", id=a.id).accepted.id, a.id, "an administrator cancels")
        mine.run(a)
        same(a.done.finish_reason, pb.FINISH_CANCELLED, "reason")
        b = mine.generate([3], 400)
        while not b.tokens:
            mine.receive()
        same(connects[0]().ask("cancel", id=b.id).accepted.id, b.id, "another connection of the same key cancels")
        mine.run(b)


def test_hangup_reads_the_keys_again():
    with with_keys(keys=("", "")) as (d, connects):
        clients, hears = os.path.join(d.base, "clients"), lambda c: c.socket.poll(int(2000 * SLOW)) != 0
        with open(clients, "rb") as f:
            lines = f.readlines()

        def keep(*kept):
            with open(clients, "wb") as f:
                f.writelines(kept)
            before = d.log().count("SIGHUP: ")
            os.kill(d.pid, signal.SIGHUP)
            check(wait_until(lambda: d.log().count("SIGHUP: ") > before, 5), "nothing is said of SIGHUP")

        def asks(c):
            r = c.request()
            r.status.SetInParent()
            c.socket.send(r.SerializeToString())
            return hears(c)

        first, second = (connect() for connect in connects)
        check(asks(first) and asks(second), "a known key is not let in")
        keep(lines[0])
        check(asks(second), "a connected client had to go")
        late = connects[1]()
        check(not asks(late), "a key that was taken out is let in")
        late.close()
        keep(*lines)
        check(asks(connects[1]()), "a key that was added is not let in")


def cancel_frame(request_id, of):
    request = pb.Request(version=1, request_id=request_id)
    request.cancel.id = of
    return frame(request.SerializeToString())


def test_users_have_rights_of_their_own():
    if os.getuid() != 0:
        skip("only root can be other users")
    with running("--admin-group", "4321", faults="step_us=30000") as d:  # 15 s: three children ask within them
        os.chmod(d.rundir, 0o755)
        os.chmod(d.rundir + "/helmd.sock", 0o666)

        def list_and_cancel(request):
            raw = Raw("ipc://helmd.sock")  # below the folder that the child is in
            raw.send(list_frame(1) + cancel_frame(2, request))
            got, cancelled = (pb.Response.FromString(raw.frame()) for _ in range(2))
            return f"{len(got.list.entries)} {got.list.others} {cancelled.WhichOneof('body')}"

        def ask_as(uid, gid, groups, request):
            return as_user(uid, gid, groups, d.rundir, lambda: list_and_cancel(request))

        c = Client(d.endpoint)
        streams = [c.generate([3], 500, seed=n) for n in range(3)]
        while not all(s.tokens for s in streams):
            c.receive()
        same(ask_as(1234, 1234, [], streams[0].id), "0 3 error", "a user")
        same(ask_as(1234, 4321, [], streams[0].id), "3 0 accepted", "one whose group administers")
        c.run(streams[0])
        same(ask_as(1234, 1234, [77, 4321], streams[1].id), "2 0 accepted", "one who is in that group besides")
        c.run(streams[1])
        check(not streams[2].ended, "the third was ended, too")


if __name__ == "__main__":
    run_tests(globals())
