#!/usr/bin/python3
"""helmd with a fake worker, through real processes and sockets: what it promises its clients."""
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
from helmd_harness import (Client, Daemon, VOCAB, check, expected_tokens, pb, run_tests, running, same,  # noqa: E402
                           wait_until, zmq, SLOW)


def test_one_request_streams_the_expected_tokens():
    with running() as d:
        c = Client(d.endpoint)
        s = c.generate([5, 6, 7], 20, seed=11)
        c.run(s)
        same(s.tokens, expected_tokens([5, 6, 7], 20, seed=11), "tokens")
        same(s.done.finish_reason, pb.FINISH_LENGTH, "finish reason")
        same((s.done.usage.prompt_tokens, s.done.usage.completion_tokens), (3, 20), "usage")
        same(s.done.seed, 11, "seed")
        t = s.done.timings
        check(0 < t.ttft_ms <= t.total_ms and t.tpot_ms > 0 and t.decode_tok_s > 0 and t.prefill_tok_s > 0, f"{t}")


def test_a_req_socket_gets_its_delimiter_back():
    with running() as d:
        c = Client(d.endpoint, req=True)
        same(c.ask("status").status.state, "ready", "state")


def test_64_requests_interleave():
    with running("--parallel", 64, "--step-tokens", 64) as d:
        clients = [Client(d.endpoint) for _ in range(8)]
        streams, order = [], []
        for n in range(64):
            prompt = [2 + (n * 7 + i) % 90 for i in range(1 + n * 3 % 50)]
            s = clients[n % 8].generate(prompt, 30, seed=n)
            streams.append((clients[n % 8], s, prompt, n))
        poller = zmq.Poller()
        for c in clients:
            poller.register(c.socket, zmq.POLLIN)
        end = processor.clock() + 30 * SLOW
        while not all(s.ended for _, s, _, _ in streams) and processor.clock() < end:
            for c in clients:
                while c.socket.poll(0):
                    r = c.receive()
                    if r.WhichOneof("body") == "token":
                        order.append(r.token.id)
            poller.poll(50)
        for _, s, prompt, n in streams:
            same(s.tokens, expected_tokens(prompt, 30, seed=n), f"stream {n}")
        switches = sum(a != b for a, b in zip(order, order[1:]))
        check(switches > len(order) * 0.8, f"only {switches} switches in {len(order)} tokens: not interleaved")


def test_a_small_kv_pool_preempts_and_loses_nothing():
    with running("--parallel", 8, "--ctx", 256, "--kv-tokens", 320) as d:
        c = Client(d.endpoint)
        streams = [(c.generate([2 + n] * (20 + n), 150, seed=n), n) for n in range(12)]
        c.run(*[s for s, _ in streams])
        for s, n in streams:
            same(s.tokens, expected_tokens([2 + n] * (20 + n), 150, seed=n), f"stream {n}")
        check("gives its KV pages" in d.log(), "nothing was preempted: the test tests nothing")
        same(c.ask("status").status.kv_pages_used, 0, "pages in use at the end")


def test_a_full_queue_says_busy():
    with running("--parallel", 1, "--queue", 2, faults="step_us=20000") as d:
        c = Client(d.endpoint)
        streams = [c.generate([3], 30, seed=n) for n in range(5)]
        c.run(streams[3], streams[4])
        same([s.error.code for s in streams[3:]], [pb.ERROR_BUSY] * 2, "codes")
        check("queue of 2" in streams[3].error.message, streams[3].error.message)
        c.run(*streams[:3])
        for n, s in enumerate(streams[:3]):
            same(s.tokens, expected_tokens([3], 30, seed=n), f"stream {n}")


def test_cancel_by_id_request_id_and_by_another_client():
    with running(faults="step_us=2000") as d:
        c, other = Client(d.endpoint), Client(d.endpoint)
        a, b = c.generate([3], 400), c.generate([4], 400)
        while len(a.tokens) < 3 or len(b.tokens) < 3:
            c.receive()
        same(other.ask("cancel", id=a.id).accepted.id, a.id, "cancelled id")
        c.run(a)
        same(a.done.finish_reason, pb.FINISH_CANCELLED, "reason")
        check(len(a.tokens) < 100, "cancelled late")
        c.ask("cancel", request_id=2)
        c.run(b)
        same(b.done.finish_reason, pb.FINISH_CANCELLED, "reason")
        same(other.ask("cancel", id=a.id).error.code, pb.ERROR_NOT_FOUND, "cancelling the dead")
        same(other.ask("cancel", request_id=1).error.code, pb.ERROR_NOT_FOUND, "cancelling another's request_id")
        same(other.ask("cancel").error.code, pb.ERROR_MALFORMED, "cancelling nothing")
        same(c.ask("list").list.entries[:], [], "open requests")


def test_a_queued_request_can_be_cancelled():
    with running("--parallel", 1, faults="step_us=5000") as d:
        c = Client(d.endpoint)
        a, b = c.generate([3], 200), c.generate([4], 200)
        while len(a.tokens) < 2:
            c.receive()
        entries = c.ask("list").list.entries
        same([e.state for e in entries], ["decode", "queued"], "states")
        c.ask("cancel", id=b.id)
        c.run(b)
        same((b.done.finish_reason, b.tokens), (pb.FINISH_CANCELLED, []), "b")
        check(not a.ended, "a ended too")


def test_a_disconnect_stops_the_work():
    with running(faults="step_us=1000") as d:
        c, watcher = Client(d.endpoint), Client(d.endpoint)
        s = c.generate([3], 500)
        while len(s.tokens) < 5:
            c.receive()
        c.close()
        check(wait_until(lambda: watcher.ask("status").status.running == 0, 2), "still running")
        steps = watcher.ask("status").status.steps_total
        check(steps < 400, f"{steps} steps were computed for nobody")


def test_a_disconnect_is_noticed_while_nothing_is_sent():
    with running("--parallel", 1, "--step-tokens", 16, faults="step_us=20000") as d:
        stays, leaves, watcher = Client(d.endpoint), Client(d.endpoint), Client(d.endpoint)
        long_prompt = leaves.generate([3] * 500, 5)  # 32 steps before its first token
        queued = leaves.generate([4], 5)
        while not (long_prompt.id and queued.id):
            leaves.receive()
        mine = stays.generate([5], 3, seed=1)
        started = processor.clock()
        leaves.close()
        stays.run(mine)
        check(processor.clock() - started < 0.4 * SLOW, "the prompt of a client that left was computed to its end")
        same(mine.tokens, expected_tokens([5], 3, seed=1), "tokens")
        same(watcher.ask("list").list.entries[:], [], "open requests")


def test_a_slow_client_stalls_nobody():
    with running("--ctx", 512, "--parallel", 8) as d:
        slow, quick = Client(d.endpoint, rcvhwm=1), Client(d.endpoint)
        # With 20 logprobs a token costs 300 bytes; enough requests overflow every buffer on the way.
        for n in range(150):
            slow.generate([3, n % 90], 500, seed=n, logprobs=20)
            if n % 10 == 0:
                s = quick.generate([4], 20, seed=n)
                started = processor.clock()
                quick.run(s)
                check(processor.clock() - started < 3 * SLOW, "the quick client waited for the slow one")
                same(s.tokens, expected_tokens([4], 20, seed=n), "quick tokens")
        check(wait_until(lambda: (lambda st: st.running + st.queued == 0)(quick.ask("status").status), 30),
              "the slow client's requests go on for ever")
        total = quick.ask("status").status.tokens_output_total
        check(total < 150 * 500, "nothing was cancelled")


def test_hostile_frames_cost_their_sender_an_error_and_nobody_else_anything():
    with running(faults="step_us=2000") as d:
        good, bad = Client(d.endpoint), Client(d.endpoint)
        s = good.generate([9, 8, 7], 300, seed=5)
        rng = random.Random(1)
        valid = pb.Request(version=1, request_id=9)
        valid.generate.prompt.extend(range(2, 60))
        valid.generate.max_tokens = 4
        base = valid.SerializeToString()
        wrong = pb.Request(version=2, request_id=77)
        wrong.status.SetInParent()
        frames = [b"", b"\0", b"\xff" * 1000, base[:-1], base[: len(base) // 2], wrong.SerializeToString(),
                  pb.Request(version=1, request_id=5).SerializeToString(), b"\x1a\xff\xff\xff\xff\x0f" + b"x" * 50,
                  b"\x08\x01\x10\x07\x1a\x84\x80\x80\x02" + b"\x1a\x02\x52\x00" * 8]
        frames += [bytes(rng.randrange(256) for _ in range(rng.randrange(200))) for _ in range(300)]
        for _ in range(300):
            mutant = bytearray(base)
            for _ in range(rng.randrange(1, 6)):
                mutant[rng.randrange(len(mutant))] = rng.randrange(256)
            frames.append(bytes(mutant))
        for frame in frames:
            bad.socket.send(frame)
        bad.socket.send_multipart([b"one", b"two", b"three"])
        # a frame that claims thousands of tiny messages: logit_bias entries of no bytes
        body = b"\x42\x00" * 8000
        sampling = b"\x1a" + varint(len(body)) + body
        frame = b"\x08\x01\x10\x08\x1a" + varint(len(sampling)) + sampling
        bad.socket.send(frame)
        answers, codes = 0, set()
        while bad.socket.poll(1500):
            r = pb.Response.FromString(bad.socket.recv())
            answers += 1
            codes.add(r.WhichOneof("body"))
        check(answers >= len(frames) // 2, f"{answers} answers to {len(frames)} frames")
        huge = Client(d.endpoint)
        huge.socket.send(b"\x08\x01" + b"\0" * (9 << 20))
        good.run(s)
        same(s.tokens, expected_tokens([9, 8, 7], 300, seed=5), "the undisturbed client's tokens")
        same(Client(d.endpoint).ask("status").status.workers[0].restarts, 0, "worker restarts")
        check(d.process.poll() is None, "helmd died")


def test_a_frame_too_large_is_refused_unread_and_beyond_that_costs_the_connection():
    with running("--ctx", 256) as d:
        c, huge = Client(d.endpoint), Client(d.endpoint)
        longer = c.generate([3] * 300, 4)  # too long for the context, but a Request
        c.run(longer)
        same(longer.error.code, pb.ERROR_CONTEXT, "a prompt longer than the context")
        largest = c.generate([VOCAB - 1] * 255, 1, stop=[VOCAB - 1] * 64, label="x" * 64)
        c.run(largest)
        same(largest.done.finish_reason, pb.FINISH_LENGTH, "the longest prompt")
        for tokens in [400000, 1000000]:  # beyond a piece of a session, which is longer than any other frame
            s = c.generate([3] * tokens, 4)
            c.run(s)
            same(s.error.code, pb.ERROR_TOO_LARGE, f"{tokens} tokens")
            check("are taken with a context of 256 tokens" in s.error.message, s.error.message)
        huge.generate([3] * 3000000, 4)
        check(not huge.socket.poll(500), "an answer to a frame beyond all bounds")
        status = c.ask("status").status
        same((status.state, status.workers[0].restarts), ("ready", 0), "state and restarts")


def test_one_client_cannot_keep_others_out_of_the_queue():
    with running("--parallel", 1, "--queue", 16, faults="step_us=20000") as d:
        greedy, modest = Client(d.endpoint), Client(d.endpoint)
        many = [greedy.generate([3], 500, seed=n) for n in range(40)]  # ten seconds each: none ends meanwhile
        while not all(s.id or s.error for s in many):
            greedy.receive()
        same(sum(not s.error for s in many), 15, "places of 17 that one client holds")
        refused = [s.error for s in many if s.error]
        check(all(e.code == pb.ERROR_BUSY and "its share is" in e.message for e in refused), refused[0])
        s = modest.generate([4], 5, seed=1)
        while not (s.id or s.error):
            modest.receive()
        check(not s.error, s.error)
        greedy.close()
        modest.run(s)
        same(s.tokens, expected_tokens([4], 5, seed=1), "tokens")


def varint(n):
    out = b""
    while n >= 128:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def test_bad_fields_are_named():
    with running() as d:
        c = Client(d.endpoint)
        cases = [
            (dict(prompt=[], count=1), pb.ERROR_MALFORMED, "prompt"),
            (dict(prompt=[VOCAB], count=1), pb.ERROR_MALFORMED, "vocabulary"),
            (dict(prompt=[3] * 600, count=1), pb.ERROR_CONTEXT, "context"),
            (dict(prompt=[3], count=512), pb.ERROR_CONTEXT, "max_tokens"),
            (dict(prompt=[3], count=1, logprobs=21), pb.ERROR_MALFORMED, "logprobs"),
            (dict(prompt=[3], count=1, sampling={"temperature": -1}), pb.ERROR_MALFORMED, "temperature"),
            (dict(prompt=[3], count=1, sampling={"temperature": float("nan")}), pb.ERROR_MALFORMED, "temperature"),
            (dict(prompt=[3], count=1, sampling={"top_p": 1.5}), pb.ERROR_MALFORMED, "top_p"),
            (dict(prompt=[3], count=1, stop=[3] * 65), pb.ERROR_TOO_LARGE, "stop_token_ids"),
            (dict(prompt=[3], count=1, label="x" * 65), pb.ERROR_TOO_LARGE, "label"),
            (dict(prompt=[3], count=1, label="a\x1b[2J"), pb.ERROR_MALFORMED, "label"),
        ]
        for fields, code, word in cases:
            s = c.generate(**fields)
            c.run(s)
            check(s.error and s.error.code == code and word in s.error.message, f"{fields}: {s.error or s.done}")


def test_a_duplicate_request_id_is_refused():
    with running(faults="step_us=2000") as d:
        c = Client(d.endpoint)
        s = c.generate([3], 100, request_id=900)
        while not s.id:
            c.receive()
        twin = pb.Request(version=1, request_id=900)
        twin.generate.prompt.append(3)
        del c.streams[900]
        c.socket.send(twin.SerializeToString())
        codes = []
        for _ in range(30):
            r = c.receive()
            if r.WhichOneof("body") == "error":
                codes.append(r.error.code)
                break
        same(codes, [pb.ERROR_DUPLICATE], "codes")


def test_eos_stop_length_and_ignore_eos():
    with running(faults="eos_at=4") as d:
        c = Client(d.endpoint)
        a = c.generate([3], 20)
        c.run(a)
        same((a.tokens[-1], len(a.tokens), a.done.finish_reason), (1, 4, pb.FINISH_EOS), "eos")
        b = c.generate([3], 6, ignore_eos=True)
        c.run(b)
        same((len(b.tokens), b.done.finish_reason), (6, pb.FINISH_LENGTH), "ignore_eos")
        want = expected_tokens([3], 3)
        e = c.generate([3], 20, stop=[want[1]])
        c.run(e)
        same((e.tokens, e.done.finish_reason), (want[:2], pb.FINISH_STOP), "stop")
        f = c.generate([3], 0, ignore_eos=True)
        c.run(f)
        same((len(f.tokens), f.done.finish_reason), (511, pb.FINISH_LENGTH), "max_tokens 0: all that fits")
        g = c.generate([3], 2, logprobs=3)
        c.run(g)
        same([[t.token for t in x.top] for x in g.first], [[x.token, (x.token + 1) % VOCAB, (x.token + 2) % VOCAB]
                                                        for x in g.first], "logprobs")


def test_sequences_that_end_by_themselves_leave_nothing_behind():
    # their next step is rung already: its result is dropped, and slot and pages go to waiting requests
    with running("--parallel", 4, "--step-tokens", 64, faults="step_us=300") as d:
        c = Client(d.endpoint)
        streams = []
        for n in range(24):
            prompt = [5 + n % 60, 6, 7]
            want = expected_tokens(prompt, 40, seed=n)
            stop = want[n % 35]
            streams.append((c.generate(prompt, 40, seed=n, stop=[stop]), want[:want.index(stop) + 1]))
        c.run(*[s for s, _ in streams])
        for n, (s, want) in enumerate(streams):
            same((s.tokens, s.done.finish_reason), (want, pb.FINISH_STOP), f"stream {n}")
        wait_until(lambda: c.ask("status").status.kv_pages_used == 0, 5)


def test_a_deadline_ends_a_request():
    with running(faults="step_us=5000") as d:
        c = Client(d.endpoint)
        s = c.generate([3], 500, deadline_ms=150)
        started, fair = time.time(), processor.clock()
        c.run(s)
        same((s.done.finish_reason, s.done.detail), (pb.FINISH_CANCELLED, "deadline"), "end")
        check(0.1 < time.time() - started and processor.clock() - fair < 2 * SLOW, "late or early")


def test_queries():
    with running() as d:
        c = Client(d.endpoint)
        info = c.ask("model_info").model_info
        same((info.architecture, info.layers, info.vocab, list(info.eos), info.context, info.dtype),
             ("Qwen3ForCausalLM", 2, VOCAB, [1], 512, "bf16"), "model info")
        check('"home":"cpu"' in c.ask("plan").plan.json, "plan")
        st = c.ask("status").status
        same((st.state, st.workers[0].state, st.workers[0].kernels), ("ready", "ready", "fake"), "status")
        check(st.kv_pages_total > 0 and st.workers[0].pid > 0, "status numbers")
        per_head = info.head_dim * 2  # fp16
        same((st.kv_dtype, st.kv_token_bytes), ("f16", 2 * info.layers * info.kv_heads * per_head), "status: KV cache")


def test_clients_are_told_the_whole_path():
    folder = os.path.join(tempfile.mkdtemp(prefix="helmd-test-"), "model")
    with running(model=os.path.relpath(folder)) as d:
        same(Client(d.endpoint).ask("model_info").model_info.folder, os.path.realpath(folder), "folder")


def test_loading_says_not_ready():
    with running(faults="load_ms=600", wait=False) as d:
        c = Client(d.endpoint)
        st = c.ask("status").status
        same(st.state, "loading", "state")
        s = c.generate([3], 3)
        c.run(s)
        same(s.error.code, pb.ERROR_NOT_READY, "code")
        check(d.wait_ready().startswith("ready ipc://"), "ready line")


def test_sigterm_ends_everything_in_order():
    with running(faults="step_us=2000") as d:
        c = Client(d.endpoint)
        s = c.generate([3], 400)
        while len(s.tokens) < 3:
            c.receive()
        d.process.send_signal(signal.SIGTERM)
        c.run(s)
        same(s.done.finish_reason, pb.FINISH_CANCELLED, "reason")
        same(processor.ended(d.process, 5 * SLOW), 0, "exit status")
        same(d.left_behind(), [], "left behind")


def test_drain_seconds_let_requests_end():
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.bind(os.path.join(tempfile.mkdtemp(prefix="helmd-test-"), "notify"))
    told.settimeout(60)
    with running("--drain-seconds", 20, faults="step_us=2000", env={"NOTIFY_SOCKET": told.getsockname()}) as d:
        c = Client(d.endpoint)
        s = c.generate([3], 100, seed=1)
        while len(s.tokens) < 3:
            c.receive()
        d.process.send_signal(signal.SIGTERM)
        said = b""
        while b"STOPPING=1" not in said:
            said = told.recv(4096)
        late = c.generate([4], 5)
        c.run(s, late)
        same(s.tokens, expected_tokens([3], 100, seed=1), "tokens")
        same(late.error.code, pb.ERROR_NOT_READY, "late code")
        same(processor.ended(d.process, 5 * SLOW), 0, "exit status")
        check(b"EXTEND_TIMEOUT_USEC=80000000" in said, said)


def test_a_second_daemon_is_refused_and_the_first_goes_on():
    with running() as d:
        twin = Daemon(base=d.base, wait=True)
        same(processor.ended(twin.process, 5 * SLOW), 4, "exit status")
        check("already listens" in twin.ready and f"pid {d.pid}" in twin.ready, twin.ready)
        same(Client(d.endpoint).ask("status").status.state, "ready", "the first daemon")


def test_what_cannot_fit_is_refused_with_numbers():
    d = Daemon("--host-memory", "8MiB")
    same(processor.ended(d.process, 5 * SLOW), 4, "exit status")
    check(d.ready.startswith("error capacity ") and "weights" in d.ready and "--host-memory" in d.ready, d.ready)
    d.close()


def test_refusals_name_the_reason():
    cases = [(["--device", "cuda"], 4, "no helm-worker-gpu"), (["--device", "emulated"], 4, "no helm-worker-gpu"),
             (["--device", "tpu"], 2, "tpu"), (["--ctx", "4096"], 4, "512"), (["--parallel", "65"], 2, "parallel"),
             (["--listen", "tcp://127.0.0.1:0"], 4, "CURVE"), (["--nonsense"], 2, "nonsense"),
             (["--listen", "ipc://relative"], 2, "absolute"), (["--plan", "/nonexistent"], 4, "nonexistent")]
    for options, status, word in cases:
        d = Daemon(*options)
        same(processor.ended(d.process, 5 * SLOW), status, f"{options}: {d.log()}")
        check(word in d.log(), f"{options}: {d.log()}")
        d.close()


def test_a_config_file_is_read_and_checked():
    with running(wait=False) as first:
        base = first.base
        first.wait_ready()
        first.stop()
        path = os.path.join(base, "helmd.ini")
        for text, status, word in [("[helmd]\nctx = 128\nparallel = 3\n", 0, None), ("ctx = 128\nbogus = 1\n", 2, ":2:"),
                                   ("ctx = many\n", 2, ":1:"), ("ctx = 64\nctx = 65\n", 2, "twice"),
                                   ("[other]\nctx = 64\n", 2, "other")]:
            with open(path, "w") as f:
                f.write(text)
            d = Daemon("--config", path, "--parallel", "5", base=base)
            if status:
                same(processor.ended(d.process, 5 * SLOW), status, text)
                check(word in d.ready + d.log(), f"{text}: {d.ready}")
            else:
                same(Client(d.endpoint).ask("model_info").model_info.context, 128, "ctx")
                check('"slots":5' in Client(d.endpoint).ask("plan").plan.json, "the command line wins")
                d.stop()


def test_a_saved_plan_can_be_edited_and_used():
    with running() as first:
        plan = json.loads(Client(first.endpoint).ask("plan").plan.json)
        first.stop()
        path = os.path.join(first.base, "plan.json")

        def start(**changes):
            with open(path, "w") as f:
                json.dump(dict(plan, **changes), f)
            return Daemon("--plan", path, base=first.base)

        d = start(slots=3, context_tokens=96, page_count=9, kv_dtype="f32")
        check(d.ready.startswith("ready "), d.ready)
        c = Client(d.endpoint)
        same((c.ask("model_info").model_info.context, c.ask("status").status.kv_pages_total), (96, 9), "sizes")
        s = c.generate([3], 20, seed=1)
        c.run(s)
        same(s.tokens, expected_tokens([3], 20, seed=1), "tokens")
        same(s.done.detail, "", "why it ended: as long as asked")
        s = c.generate([3] * 90, 0, seed=1)
        c.run(s)
        same((len(s.tokens), s.done.finish_reason, s.done.detail), (6, pb.FINISH_LENGTH, "the context of 96 tokens is full"), "all of it")
        d.stop()
        for changes, word in [(dict(page_count=2), "one context"), (dict(layers=3), "plan"),
                              (dict(kv_dtype="q8_0"), "multiple of 32 dimensions: this model's have 16"),
                              (dict(stages=[dict(plan["stages"]["decode"][0], home="gpu")]), "gpu")]:
            d = start(**changes)
            same(processor.ended(d.process, 5 * SLOW), 4, f"{changes}: {d.ready}")
            check(word in d.ready, f"{changes}: {d.ready}")


def test_curve_lets_in_only_the_known():
    if not zmq.has("curve"):
        raise AssertionError("python3-zmq without CURVE")
    server_public, server_secret = zmq.curve_keypair()
    public, secret = zmq.curve_keypair()
    with running() as first:
        base = first.base
        first.stop()
        keys = {"server": server_secret, "clients": b"# friends\n" + public + b"\n"}
        for name, text in keys.items():
            with open(os.path.join(base, name), "wb") as f:
                f.write(text)
            os.chmod(os.path.join(base, name), 0o600)
        with socket.create_server(("127.0.0.1", 0)) as free:  # a free port
            endpoint = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        d = Daemon("--listen", endpoint, "--curve-secret-key-file", os.path.join(base, "server"),
                   "--curve-clients-file", os.path.join(base, "clients"), base=base)
        check(d.ready == "ready " + endpoint, d.ready + d.log())

        def ask(pair):
            c = Client.__new__(Client)
            c.socket = Client.context.socket(zmq.DEALER)
            c.socket.linger, c.next, c.streams = 0, 1, {}
            if pair:
                c.socket.curve_serverkey, c.socket.curve_publickey, c.socket.curve_secretkey = server_public, *pair
            c.socket.connect(endpoint)
            r = c.request()
            r.status.SetInParent()
            c.socket.send(r.SerializeToString())
            heard = c.socket.poll(2000) != 0
            c.close()
            return heard

        check(ask((public, secret)), "a known client was not let in")
        check(not ask(zmq.curve_keypair()), "an unknown client was let in")
        check(not ask(None), "a client without keys was let in")
        os.chmod(os.path.join(base, "server"), 0o644)
        d.stop()
        d = Daemon("--listen", endpoint, "--curve-secret-key-file", os.path.join(base, "server"),
                   "--curve-clients-file", os.path.join(base, "clients"), base=base)
        check("0644" in d.ready, d.ready)
        d.stop()


def test_socket_and_directory_are_private():
    with running() as d:
        same(oct(os.stat(d.rundir).st_mode & 0o777), "0o700", "run directory")
        same(oct(os.stat(d.endpoint[6:]).st_mode & 0o777), "0o660", "socket")
        d.stop()
        os.mkdir(d.rundir)
        os.chmod(d.rundir, 0o777)
        twin = Daemon(base=d.base)
        same(processor.ended(twin.process, 5 * SLOW), 4, "exit status")
        check("0777" in twin.ready, twin.ready)
        os.rmdir(d.rundir)


def test_fair_between_clients():
    with running("--parallel", 2, faults="step_us=3000") as d:
        greedy, modest = Client(d.endpoint), Client(d.endpoint)
        many = [greedy.generate([3], 40, seed=n) for n in range(10)]
        while not all(s.id for s in many):
            greedy.receive()
        s = modest.generate([4], 10)
        modest.run(s)
        while greedy.socket.poll(0):
            greedy.receive()
        check(sum(m.ended for m in many) <= 3, "the modest client waited for all of the greedy one's requests")


if __name__ == "__main__":
    run_tests(globals())
