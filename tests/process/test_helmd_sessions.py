#!/usr/bin/python3
"""Sessions through real processes: saved under one plan, restored under another; what is refused; which clients find
restored pages.

Fake workers' cells are token ids and their tokens a hash of all cells that are read back, so a page with wrong bytes changes
the tokens. Real ones on the demo model and the emulated device have pages in VRAM alone, which the GPU worker must move."""
import os
import random
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
from helmd_harness import (BIN, Client, check, expected_tokens, pb, plan_json, run_tests, running, same, status_of,  # noqa: E402
                           wait_until, zmq)

PAGE, LAYERS = 8, 4
SIZES = dict(context_tokens=256, page_tokens=PAGE, step_tokens=32, slots=4, page_count=128)
PLACES = (32 - 1) // PAGE + 1 + 2 * 4  # plan_vram_pages_least


def alone(*options, faults="", **sizes):
    return running(*options, layers=LAYERS, faults=faults, plan=plan_json(LAYERS, "cccc", "c", "c", **{**SIZES, **sizes}))


def tiered(direct, *options, **sizes):
    return running("--device", "emulated", *options, gpu=True, layers=LAYERS,
                   plan=plan_json(LAYERS, "gcgc", "c", "g", **{**SIZES, "vram_page_count": PLACES,
                                                              "kv_direct_permille": direct, **sizes}))


def prompt_of(count, kind=0):
    return [2 + (i * i + 7 * kind + i * kind) % 90 for i in range(count)]


def generate(c, prompt, count=10, seed=1):
    s = c.generate(prompt, count, seed=seed)
    c.run(s)
    same(s.tokens, expected_tokens(prompt, count, seed=seed), f"tokens of {len(prompt)} + {count} ({s.error or s.done})")
    return s.done.usage.cached_tokens


def ask(c, body, **fields):
    r = c.request()
    getattr(r, body).CopyFrom(getattr(pb, "Session" + body.removeprefix("session_").capitalize())(**fields))
    c.socket.send(r.SerializeToString())
    while True:
        response = c.receive()
        if response.request_id == r.request_id:
            return response


def save(c, tokens):
    """The session's opening, and its pages."""
    opened = ask(c, "session_save", tokens=tokens)
    check(opened.WhichOneof("body") == "session_opened", f"{opened}")
    opened, pages = opened.session_opened, []
    for p in range(opened.pages):
        page = b""
        while len(page) < opened.page_bytes:
            piece = ask(c, "session_read", id=opened.id).session_piece
            same((piece.page, piece.offset), (p, len(page)), "where the piece is")
            page += piece.data
        pages.append(page)
    same(ask(c, "session_end", id=opened.id).session_stored.pages, opened.pages, "pages at the end")
    return opened, pages


def restore(c, tokens, opened, pages, shape=None):
    """(first, pages that are there, full) or the error's text."""
    answer = ask(c, "session_restore", tokens=tokens, shape=shape or opened.shape)
    if answer.WhichOneof("body") == "error":
        return answer.error.message
    to, there = answer.session_opened, answer.session_opened.first
    for p in range(to.first, to.pages):
        for at in range(0, to.page_bytes, to.piece_bytes):
            answer = ask(c, "session_write", id=to.id, page=p, offset=at, data=pages[p][at:at + to.piece_bytes])
            if answer.WhichOneof("body") == "error":
                return answer.error.message
            there = answer.session_stored.pages
            if answer.session_stored.full:
                return to.first, there, True
    ask(c, "session_end", id=to.id)
    return to.first, there, False


def nothing_is_held(d):
    check(wait_until(lambda: status_of(d).kv_pages_used == 0, 10), f"pages in use at the end: {status_of(d)}")


def test_saved_under_one_plan_and_restored_under_another():
    """The second plan has other sizes. Real workers restore cells of another worker, further down."""
    prompt = prompt_of(150)
    for name, start, begin in [("cpu", alone, lambda: alone(page_count=40, slots=2)),
                               ("two tiers", lambda: tiered(300), lambda: tiered(1000, page_count=64)),
                               ("two tiers, more places", lambda: tiered(1000), lambda: tiered(0, vram_page_count=64))]:
        with start() as d:
            c = Client(d.endpoint)
            generate(c, prompt)
            opened, pages = save(c, prompt)
            same((opened.pages, len(pages)), (150 // PAGE, 150 // PAGE), f"{name}: pages")
        with begin() as d:
            c = Client(d.endpoint)
            same(restore(c, prompt[:144], opened, pages), (0, 18, False), f"{name}: restored")
            same(status_of(d).kv_pages_cached, 18, f"{name}: kept")
            same(generate(c, prompt), 144, f"{name}: found")
            same(generate(c, prompt_of(20, 1)), 0, f"{name}: found of another text")
            same(restore(c, prompt[:144], opened, pages), (18, 18, False), f"{name}: a second time")
            same(save(c, prompt)[1], pages, f"{name}: saved again")
            nothing_is_held(d)


def test_steps_go_on_beside_it():
    """Others decode meanwhile, with the right tokens."""
    for start in alone, lambda: tiered(500):
        with start() as d:
            one, two = Client(d.endpoint), Client(d.endpoint)
            prompt = prompt_of(120)
            generate(one, prompt)
            busy = two.generate(prompt_of(30, 3), 200, seed=5)
            opened, pages = save(one, prompt)
            same(len(pages), 15, "pages")
            same(restore(one, prompt_of(80, 4), opened, pages[:10]), (0, 10, False), "restored as another text's")
            two.run(busy)
            same(busy.tokens, expected_tokens(prompt_of(30, 3), 200, seed=5), "tokens")
            nothing_is_held(d)


def test_what_is_not_of_this_daemon_is_refused():
    with alone() as d:
        c = Client(d.endpoint)
        prompt = prompt_of(100)
        same(ask(c, "session_save", tokens=prompt).error.code, pb.ERROR_NOT_FOUND, "nothing is there")
        generate(c, prompt)
        opened, pages = save(c, prompt)
        for field, value, text in [("model", 1, "model"), ("weights", "q4_k_m", "weights"), ("kv_dtype", "f32", "f32"),
                                   ("layers", 5, "layers"), ("kv_heads", 9, "KV heads"), ("head_dim", 8, "head_dim"),
                                   ("page_tokens", 32, "tokens in a page"), ("weights", "x" * 40, "40 bytes"),
                                   ("weights", "\x1b[31m", "control characters")]:
            shape = pb.SessionShape()
            shape.CopyFrom(opened.shape)
            setattr(shape, field, value)
            check(text in restore(c, prompt[:96], opened, pages, shape), f"{field}: {restore(c, prompt[:96], opened, pages, shape)}")
        check("whole pages" in restore(c, prompt, opened, pages), "not whole pages")
        check("vocabulary" in restore(c, [1 << 20] * 8, opened, pages), "vocabulary")
        check("context" in ask(c, "session_save", tokens=[3] * 257).error.message, "context")
        # numbers that are not finite would be met by others' kernels
        bad = bytearray(pages[1])
        bad[-2:] = b"\x00\x7c"
        same(opened.shape.kv_dtype, "f16", "cache")
        check("layer 3" in restore(c, prompt_of(96, 2), opened, [pages[0], bytes(bad)]), "infinity")
        nothing_is_held(d)
        # pieces out of turn
        to = ask(c, "session_restore", tokens=prompt_of(96, 3), shape=opened.shape).session_opened
        check("due" in ask(c, "session_write", id=to.id, page=1, offset=0, data=pages[1][:to.piece_bytes]).error.message, "turn")
        check("no session" in ask(c, "session_write", id=to.id, page=0, offset=0, data=b"x").error.message, "it is over")
        for body, fields in [("session_read", {}), ("session_end", {}), ("session_write", dict(data=b"x"))]:
            same(ask(c, body, id=99, **fields).error.code, pb.ERROR_NOT_FOUND, body)
        # one at a time, of this connection
        one = ask(c, "session_save", tokens=prompt).session_opened
        other = Client(d.endpoint)
        same(ask(other, "session_save", tokens=prompt).error.code, pb.ERROR_BUSY, "a second one")
        same(ask(other, "session_read", id=one.id).error.code, pb.ERROR_NOT_FOUND, "of another connection")
        check("one to read" in ask(c, "session_write", id=one.id, page=0, offset=0, data=b"x").error.message, "write to one to read")
        c.close()  # it ends with its connection
        check(wait_until(lambda: ask(other, "session_save", tokens=prompt).WhichOneof("body") == "session_opened", 10), "after it")
        nothing_is_held(d)
    with alone("--prefix-cache", "off") as d:
        check("off" in restore(Client(d.endpoint), prompt[:96], opened, pages), "no cache")


def test_what_does_not_fit_is_dropped_from_the_end():
    with alone() as d:
        c = Client(d.endpoint)
        prompt = prompt_of(250)
        generate(c, prompt, 3)
        opened, pages = save(c, prompt)
    with alone(page_count=32, context_tokens=256, slots=1) as d:
        c = Client(d.endpoint)
        other = prompt_of(150, 1)
        generate(c, other)  # kept for others: gives way
        same(restore(c, prompt[:248], opened, pages), (0, 31, False), "restored")
        same(generate(c, prompt, 3), 248, "found")
        same(restore(c, prompt_of(248, 2), opened, pages), (0, 31, False), "another text takes its place")
        same(generate(c, prompt, 3), PAGE, "found of the first, in the one page that was to spare")
    with alone(faults="step_us=150000", context_tokens=64, page_count=8, slots=1) as d:
        c = Client(d.endpoint)
        answer = restore(c, prompt[:64], opened, pages)
        same(answer, (0, 8, False), "all of a small pool")
        busy = c.generate(prompt_of(20, 3), 40, seed=2)
        while not busy.tokens:  # its prompt has its pages then
            c.receive()
        first, there, full = restore(c, prompt_of(64, 4), opened, pages)
        check(not busy.ended, "it was to run beside it")
        c.ask("cancel", id=busy.id)
        c.run(busy)
        same(busy.tokens, expected_tokens(prompt_of(20, 3), 40, seed=2)[:len(busy.tokens)], "tokens")
        check(first == 0 and there < 8 and full, f"beside one that runs: {(first, there, full)}")
        nothing_is_held(d)


def test_only_its_peer_finds_what_was_restored():
    """Restored pages may not be what the model makes of their tokens: another user does not get them."""
    server, (one, two) = zmq.curve_keypair(), [zmq.curve_keypair() for _ in range(2)]
    prompt = prompt_of(100)
    with tempfile.TemporaryDirectory() as base:
        for name, text in [("server", server[1]), ("clients", one[0] + b"\n" + two[0])]:
            with open(os.path.join(base, name), "wb", opener=lambda p, f: os.open(p, f, 0o600)) as f:
                f.write(text)
        endpoint = f"tcp://127.0.0.1:{random.randrange(20000, 32000)}"
        with alone("--listen", endpoint, "--curve-secret-key-file", os.path.join(base, "server"), "--curve-clients-file",
                   os.path.join(base, "clients")):
            def client(pair):
                c = Client.__new__(Client)
                c.socket, c.next, c.streams = Client.context.socket(zmq.DEALER), 1, {}
                c.socket.linger = 0
                c.socket.curve_serverkey, c.socket.curve_publickey, c.socket.curve_secretkey = server[0], *pair
                c.socket.connect(endpoint)
                return c
            a, b = client(one), client(two)
            generate(a, prompt)
            opened, pages = save(a, prompt)
            forged = [pages[0]] * 12  # of other tokens than it says
            lie = prompt_of(96, 5)
            same(restore(a, lie, opened, forged), (0, 12, False), "forged")
            same(ask(b, "session_save", tokens=lie).error.code, pb.ERROR_NOT_FOUND, "saved by another key")
            s = a.generate(lie + [9], 5, seed=1)
            a.run(s)
            same(s.done.usage.cached_tokens, 96, "found by its own")
            check(s.tokens != expected_tokens(lie + [9], 5, seed=1), "and of what was restored")
            same(generate(b, lie + [4]), 0, "found by another key")
            same(generate(b, lie + [7]), 96, "what was computed is found by all")
            same(generate(a, lie + [8]), 96, "and preferred to what was restored")


def test_it_ends_with_a_worker():
    with tiered(0) as d:
        c = Client(d.endpoint)
        prompt = prompt_of(100)
        generate(c, prompt)
        to = ask(c, "session_save", tokens=prompt).session_opened
        same(ask(c, "session_read", id=to.id).session_piece.page, 0, "page")
        os.kill(d.children()["gpu"], signal.SIGKILL)
        check(wait_until(lambda: {w.restarts for w in status_of(d).workers} == {1}, 10), "restarts")
        check("no session" in ask(c, "session_read", id=to.id).error.message, "over")
        check(wait_until(lambda: status_of(d).state == "ready", 10), "ready")
        same(len(save(c, prompt)[1]), 12, "pages of a worker that was killed from outside")
        nothing_is_held(d)


# ---- real workers, and files ----

CLI = os.path.join(BIN, "helm-cli")
REAL = dict(context_tokens=512, step_tokens=64, page_tokens=32, slots=4, page_count=64)


def real(homes, *ends, **sizes):
    return running("--device", "emulated", real=True, plan=plan_json(8, homes, *ends, **{**REAL, **sizes}))


def cli(d, *words, status=0):
    run = processor.run([CLI, "--connect", d.endpoint, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    same(run.returncode, status, f"{words}: {run.stdout} {run.stderr}")
    return run.stdout + run.stderr


def greedy(d, prompt, count=12):
    c = Client(d.endpoint)
    s = c.generate(prompt, count)
    c.run(s, timeout=60)
    return s.tokens, s.done.usage.cached_tokens


def test_files_of_real_workers():
    """One tier with all in VRAM, one split, two tiers, the CPU alone: what one has saved every other one goes on with."""
    prompt = [3 + i * i % 400 for i in range(200)]
    tokens = ",".join(map(str, prompt))
    plans = [("all in VRAM", lambda: real("gggggggg", "g", "g")), ("split", lambda: real("ggccgggc", "c", "g")),
             ("two tiers", lambda: real("ggccgggg", "c", "g", vram_page_count=10, kv_direct_permille=300)),
             ("cpu", lambda: running(real=True, plan=plan_json(8, "cccccccc", "c", "c", **REAL)))]
    with tempfile.TemporaryDirectory() as base:
        files, want = [os.path.join(base, str(n)) for n in range(len(plans))], []
        for n, (name, start) in enumerate(plans):
            with start() as d:
                want.append(greedy(d, prompt)[0])
                check("192 of 200 tokens" in cli(d, "session", "save", files[n], "--tokens", tokens), name)
                if n == 0:  # pages go out between the steps of one that decodes
                    c = Client(d.endpoint)
                    busy = c.generate(prompt[:40], 100, ignore_eos=True)
                    cli(d, "session", "save", files[n], "--tokens", tokens)
                    c.run(busy, timeout=60)
                    same(len(busy.tokens), 100, "tokens beside it")
                nothing_is_held(d)
        for n, (name, start) in enumerate(plans):
            with start() as d:
                source = files[(n + 1) % len(files)]
                check("192 of 200 tokens" in cli(d, "session", "restore", source), f"{name}: restored")
                got, found = greedy(d, prompt)
                same(found, 192, f"{name}: found")
                same(got[0], want[(n + 1) % len(files)][0], f"{name}: its first token")
                again = os.path.join(base, "again")
                cli(d, "session", "save", again, "--tokens", tokens)
                with open(again, "rb") as a, open(source, "rb") as b:
                    check(a.read() == b.read(), f"{name}: saved again it is another file")
                nothing_is_held(d)
        hostile_files(base, files[3])
        own = os.path.join(base, "own")
        with plans[1][1]() as d:
            cli(d, "session", "restore", files[1])
            same(greedy(d, prompt), (want[1], 192), "the same plan: the same tokens")
            text = "In the beginning God created the heaven and the earth. " * 6
            said = cli(d, "session", "save", own, text)
            same(cli(d, "session", "restore", own), said.replace(" in ", " from ").split(",")[0] + "\n", "of text")


def hostile_files(base, good):
    with open(good, "rb") as f:
        data = f.read()
    bad = os.path.join(base, "bad")

    def refused(content, text):
        with open(bad, "wb") as f:
            f.write(content)
        run = processor.run([CLI, "--connect", "ipc:///nowhere", "session", "restore", bad], capture_output=True, text=True, timeout=60)
        same(run.returncode, 4, run.stderr)
        check(text in run.stderr and bad in run.stderr, f"{text}: {run.stderr}")
    refused(b"GGUF" + data[4:], "no file of a session")
    refused(data[:-1], "bytes")
    refused(data + b"x", "bytes")
    refused(data[:8] + b"\x09" + data[9:], "version 9")
    refused(data[:100] + bytes([data[100] ^ 1]) + data[101:], "head is damaged")
    with running(real=True, plan=plan_json(8, "cccccccc", "c", "c", **REAL)) as d:
        for at, text in [(len(data) - 4, "end is damaged"), (len(data) // 2, "is damaged")]:
            with open(bad, "wb") as f:
                f.write(data[:at] + bytes([data[at] ^ 16]) + data[at + 1:])
            check(text in cli(d, "session", "restore", bad, status=4), text)
        nothing_is_held(d)
    with running("--kv-dtype", "q8_0", real=True) as d:
        check("f16" in cli(d, "session", "restore", good, status=4), "another type of cache")
        # a scale that no writer makes
        c = Client(d.endpoint)
        c.run(c.generate(prompt_of(64), 1, seed=1))
        opened, pages = save(c, prompt_of(64))
        bad = bytearray(pages[1])
        bad[-1] ^= 0x80
        check("negative scale" in restore(c, prompt_of(64, 2), opened, [pages[0], bytes(bad)]), "its last one")


if __name__ == "__main__":
    run_tests(globals())
