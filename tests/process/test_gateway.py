#!/usr/bin/python3
"""helm-gateway with the demo model on the real helmd: both of OpenAI's text paths, Ollama's, what is refused, clients that
go away, 200 streams at once.

HELM_BIN: folder of the programs; HELM_PYPROTO: where protoc's Python output lies. Run from the repository's root.
"""
import base64
import concurrent.futures
import http.client
import json
import math
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process"]
import exposition  # noqa: E402
import processor  # noqa: E402
import helmd_harness as helmd  # noqa: E402
from gateway_harness import BIN, Gateway, SLOW, check, cli, sum_up, until  # noqa: E402

VERSE = "And it came to pass in those days, that"


def text_tests(g, endpoint):
    models = g.get("/v1/models").json
    check("the model has its folder's name", [m["id"] for m in models["data"]] == ["demo"], models)
    check("a model by its name", g.get("/v1/models/demo").json["id"] == "demo" and g.get("/v1/models/x").status == 404)
    a = g.complete(VERSE, max_tokens=24, temperature=0).json
    wanted = json.loads(cli("--connect", endpoint, "generate", "--prompt", VERSE, "-n", "24", "--json"))
    check("a greedy completion is helm-cli's", a["choices"][0]["text"] == wanted["text"] and
          {k: v for k, v in a["usage"].items() if k != "prompt_tokens_details"} == {"prompt_tokens": wanted["usage"]["prompt_tokens"], "completion_tokens": 24,
                         "total_tokens": wanted["usage"]["prompt_tokens"] + 24}, (a, wanted))
    check("... and ends by its length", a["choices"][0]["finish_reason"] == "length", a)
    check("max_tokens of completions is 16 unless given", g.complete(VERSE, temperature=0).json["usage"]["completion_tokens"] == 16)
    many = g.complete([VERSE, "In the beginning"], max_tokens=4, temperature=0, n=2).json
    check("several prompts, n answers each", [c["index"] for c in many["choices"]] == [0, 1, 2, 3] and
          many["choices"][0]["text"] == many["choices"][1]["text"] != many["choices"][2]["text"], many)
    ids = g.post("/tokenize", {"content": VERSE}).json["tokens"]
    check("token ids as the prompt", g.complete(ids, max_tokens=24, temperature=0).json["choices"][0]["text"] == wanted["text"])
    long = g.complete(VERSE * 12, max_tokens=2).json["usage"], g.complete(VERSE * 12, max_tokens=2).json["usage"]
    check("usage tells what of the prompt was cached", long[0]["prompt_tokens_details"]["cached_tokens"] == 0 <
          long[1]["prompt_tokens_details"]["cached_tokens"] < long[1]["prompt_tokens"], long)
    check("/detokenize turns them back", g.post("/detokenize", {"tokens": ids}).json["content"] == VERSE)
    chat = g.chat(VERSE, max_tokens=20, temperature=0).json
    said = json.loads(cli("--connect", endpoint, "run", "--chat", "--json", "-n", "20", "--temperature", "0", VERSE))
    check("a chat is helm-cli's", chat["choices"][0]["message"]["content"] == said["text"] and
          chat["choices"][0]["message"]["role"] == "assistant", (chat, said))
    parts = g.post("/v1/chat/completions", {"max_tokens": 20, "temperature": 0, "model": "demo", "messages": [
        {"role": "user", "content": [{"type": "text", "text": VERSE[:10]}, {"type": "text", "text": VERSE[10:]}]}]}).json
    check("content in parts is joined", parts["choices"][0]["message"]["content"] == said["text"], parts)
    return said["text"]


def stream_tests(g, said):
    a = g.chat(VERSE, max_tokens=20, temperature=0, stream=True, stream_options={"include_usage": True})
    events = a.events
    check("a stream is of events", a.headers["Content-Type"] == "text/event-stream", a.headers)
    check("its first chunk names the role", events[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None},
          events[0])
    check("its text is the whole answer's", "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1]) == said, events)
    check("usage comes last, and null before", events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 20 and
          all(e["usage"] is None for e in events[:-1]), events[-1])
    check("one reason, in the last chunk with a choice", [e["choices"][0]["finish_reason"] for e in events[:-1]] ==
          [None] * (len(events) - 2) + ["length"])
    check("without include_usage there is none", all("usage" not in e for e in g.chat(VERSE, max_tokens=2, stream=True).events))
    two = g.complete(VERSE, max_tokens=8, n=2, seed=3, temperature=1, stream=True).events
    again = g.complete(VERSE, max_tokens=8, n=2, seed=3, temperature=1).json["choices"]
    text = ["".join(e["choices"][0]["text"] for e in two if e["choices"][0]["index"] == i) for i in (0, 1)]
    check("a seed: two different answers, the same ones again", text == [c["text"] for c in again] and text[0] != text[1], (text, again))


def stop_tests(g):
    text = g.complete(VERSE, max_tokens=40, temperature=0).json["choices"][0]["text"]
    for name, stop in (("across tokens", text[17:26]), ("within a token", text[11:13]), ("of several", ["zzz", text[20:28], "qqq"])):
        texts = [stop] if isinstance(stop, str) else stop
        cut = min(text.find(t) for t in texts if t in text)
        whole = g.complete(VERSE, max_tokens=40, temperature=0, stop=stop).json["choices"][0]
        check("stop " + name, (whole["text"], whole["finish_reason"]) == (text[:cut], "stop"), (text, stop, whole))
        pieces = g.complete(VERSE, max_tokens=40, temperature=0, stop=stop, stream=True).events
        check("... in a stream", "".join(e["choices"][0]["text"] for e in pieces) == text[:cut], pieces)
    whole = g.complete(VERSE, max_tokens=40, temperature=0, stop=text[17:26], logprobs=1).json["choices"][0]
    check("... whose tokens are no longer than its text", "".join(whole["logprobs"]["tokens"])[:len(whole["text"])] == whole["text"] and
          all(o < len(whole["text"]) for o in whole["logprobs"]["text_offset"]), whole)


def sampling_tests(g):
    a = g.chat(VERSE, max_tokens=10, temperature=0, logprobs=True, top_logprobs=3).json["choices"][0]
    tokens = a["logprobs"]["content"]
    check("logprobs of every token", len(tokens) == 10 and
          b"".join(bytes(t["bytes"]) for t in tokens).decode() == a["message"]["content"], a)
    check("... three each, falling, the first of them drawn", all(
        len(t["top_logprobs"]) == 3 and t["top_logprobs"][0]["token"] == t["token"] and
        t["top_logprobs"][0]["logprob"] >= t["top_logprobs"][1]["logprob"] >= t["top_logprobs"][2]["logprob"] for t in tokens), a)
    streamed = [t for e in g.chat(VERSE, max_tokens=10, temperature=0, logprobs=True, top_logprobs=3, stream=True).events
                for t in (e["choices"][0]["logprobs"] or {"content": []})["content"]]
    check("... the same in a stream", streamed == tokens, streamed)
    check("logprobs without alternatives", g.chat(VERSE, max_tokens=1, logprobs=True).json["choices"][0]["logprobs"]["content"][0]
          ["top_logprobs"] == [])
    token = g.post("/tokenize", {"content": " Moses"}).json["tokens"]
    biased = g.complete(VERSE, max_tokens=3, temperature=0, logit_bias={str(token[0]): 100}).json["choices"][0]["text"]
    check("logit_bias", biased == " Moses Moses Moses" if len(token) == 1 else token, (token, biased))
    plain = g.complete(VERSE, max_tokens=30, temperature=0).json["choices"][0]["text"]
    for field in ("presence_penalty", "frequency_penalty"):
        check(field, g.complete(VERSE, max_tokens=30, temperature=0, **{field: 2}).json["choices"][0]["text"] != plain)


REFUSED = {"response_format": {"type": "xml"}, "modalities": ["text", "audio"], "audio": {"voice": "x"},
           "functions": [{"name": "f"}], "reasoning_effort": "much", "web_search_options": {},
           "tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f"}}], "wings": 2, "echo": True,
           "temperature": "hot", "top_p": -0.5, "n": 0, "max_tokens": -2, "stop": ["a"] * 5, "logit_bias": {"5000000": 1},
           "top_logprobs": 2, "seed": 1.5, "stream_options": {"include_usage": True}, "presence_penalty": 3, "stop_": None}


def refusal_tests(g):
    for name, value in REFUSED.items():
        a = g.chat(VERSE, **{name: value})
        error = a.json.get("error", {})
        check("%s is refused by its name" % name, a.status == 400 and error["param"] == name and name in error["message"] and
              error["type"] == "invalid_request_error" and error["code"], a.body)
    for name, value in (("echo", True), ("suffix", "x"), ("best_of", 3), ("messages", [])):
        a = g.complete(VERSE, **{name: value})
        check("completions: %s" % name, a.status == 400 and a.json["error"]["param"] == name, a.body)
    check("another model is 404", g.chat(VERSE, model="gpt-x").json["error"]["code"] == "model_not_found")
    a = g.chat("word " * 3000)
    check("a prompt beyond the context: both numbers", a.status == 400 and a.json["error"]["code"] == "context_length_exceeded" and
          re.search(r"2048 tokens.* \d{4,} in the prompt", a.json["error"]["message"]), a.body)
    a = g.chat(VERSE, max_tokens=3000)
    check("so is max_tokens", a.status == 400 and "3000 of output" in a.json["error"]["message"], a.body)
    a = g.post("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]})
    check("a picture is refused by its place", a.json["error"]["param"] == "messages[0].content" and "image_url" in a.body.decode(), a.body)
    for path in ("/api/create", "/api/push"):
        a = g.post(path, {})
        check("%s says that it is not there" % path, a.status == 501 and path in str(a.json["error"]), a.body)
    check("an unknown path", g.get("/v2").status == 404 and g.get("/v1/chat/completions").status == 405)


def hostile_tests(g):
    bodies = {"nothing": b"", "no JSON": b"{]", "a list": b"[]", "deep": b"{\"messages\":" + b"[" * 100000 + b"]" * 100000 + b"}",
              "bad UTF-8": b'{"messages":[{"role":"user","content":"\xff\xfe"}]}', "a half surrogate": b'{"prompt":"\\ud800"}',
              "a huge number": b'{"messages":[{"role":"user","content":"x"}],"max_tokens":' + b"9" * 400 + b"}",
              "a huge exponent": b'{"messages":[{"role":"user","content":"x"}],"temperature":1e999999}',
              "a key twice": b'{"stream":true,"stream":false}', "more behind it": b'{"messages":[]} {}', "too many values": b"[" + b"1," * 1200000 + b"1]",
              "messages of the wrong kind": b'{"messages":[1]}', "an unknown role": b'{"messages":[{"role":"god","content":""}]}'}
    for name, body in bodies.items():
        a = g.post("/v1/chat/completions", body)
        check("hostile: %s" % name, a.status == 400 and a.json["error"]["message"], (a.status, a.body[:200]))
    check("hostile: a NUL in a text is text", g.chat("a\0b", max_tokens=1).status == 200)
    a = g.request("POST", "/v1/chat/completions", None, headers={"Content-Length": str(1 << 40)})
    check("hostile: a body of a terabyte", a.status == 413, a.status)
    s = socket.create_connection(("127.0.0.1", g.port), timeout=20 * SLOW)
    s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    try:
        for _ in range(20):
            s.sendall(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")
        s.sendall(b"0\r\n\r\n")
        check("hostile: chunks beyond the limit", b" 413 " in s.recv(4096).split(b"\r\n")[0])
    except OSError as e:
        check("hostile: chunks beyond the limit", False, e)
    s.close()
    s = socket.create_connection(("127.0.0.1", g.port), timeout=20 * SLOW)
    begin, gone = processor.clock(), False
    s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
    try:
        while processor.clock() - begin < 15 * SLOW and not gone:
            s.sendall(b" ")
            s.settimeout(0.2)
            try:
                gone = s.recv(100) == b""
            except socket.timeout:
                pass
    except OSError:
        gone = True
    check("hostile: a byte now and then is not waited for", gone and processor.clock() - begin < 8 * SLOW, processor.clock() - begin)
    for host, status in (("evil.example", 403), ("127.0.0.1:1", 200), ("localhost", 200), ("[::1]:8", 200), ("me.example:80", 200),
                         ("1.2.3.4.evil.example", 403), ("", 403)):
        check("Host: %s is %d" % (host, status), g.get("/health", headers={"Host": host}).status == status)
    check("a page of another site may not ask", g.get("/health", headers={"Origin": "http://evil.example"}).status == 403)
    check("... the gateway's own may", g.get("/health", headers={"Origin": g.url}).status == 200)
    check("no CORS", not any(k.lower().startswith("access-control") for k in g.get("/health").headers))
    check("it is well after all that", g.get("/health").json == {"status": "ok"})


def open_at(daemon):
    client = helmd.Client(daemon.endpoint)
    entries = list(client.ask("list").list.entries)
    client.close()
    return entries


def abort_tests(g, daemon):
    for stream in (True, False):
        s = g.open_stream("/v1/completions", {"prompt": VERSE, "max_tokens": 2000, "ignore_eos": True, "stream": stream,
                                              "temperature": 1, "user": "test", "n": 8})
        came = until(lambda: any(e.output_tokens for e in open_at(daemon)))
        labels = [e.label for e in open_at(daemon)]
        s.close()
        begin = time.monotonic()
        gone = until(lambda: not open_at(daemon), 5)
        check("a client that goes away is cancelled, %s" % ("streaming" if stream else "waiting"),
              came and set(labels) == {"gateway:test"} and gone, (came, labels, gone))
        print("     after %.1f ms" % ((time.monotonic() - begin) * 1e3))
    check("... and counted", g.metric("helm_gateway_cancelled_total") == 2)


def slow_reader_tests(g, daemon):
    s = g.open_stream("/v1/completions", {"prompt": [VERSE] * 5, "max_tokens": 1900, "ignore_eos": True, "stream": True, "logprobs": 20}, window=4096)
    dropped = until(lambda: g.metric("helm_gateway_slow_clients_dropped_total") == 1, 30)
    check("a client that does not read is dropped", dropped and until(lambda: not open_at(daemon), 5), g.metric("helm_gateway_generations_open"))
    s.close()


def crowd_tests(g):
    def one(n):
        a = g.complete(VERSE, max_tokens=12, temperature=0, stream=True)
        return "".join(e["choices"][0]["text"] for e in a.events)
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        texts = list(pool.map(one, range(200)))
    check("200 streams at once, all of them right", len(set(texts)) == 1 and texts[0], set(texts))
    text = g.get("/metrics").body.decode()
    rows = [(float(b), int(n)) for b, n in re.findall(r'helm_gateway_handover_seconds_bucket\{le="([0-9.e-]+)"\} (\d+)', text)]
    total = g.metric("helm_gateway_handover_seconds_count")
    print("     %.2f s; from a token's coming to its writing: p50 under %g ms, p99 under %g ms" % (
        time.monotonic() - begin, *(next((b * 1e3 for b, n in rows if n >= part * total), 1e9) for part in (0.5, 0.99))))
    check("... tokens are handed over in time", total > 1000 and next(n for b, n in rows if b >= 0.25) >= 0.99 * total, rows)


def connection_tests(g, daemon):
    """One connection for many requests of all kinds, and a crowd of which half leaves in the middle."""
    connection = http.client.HTTPConnection("127.0.0.1", g.port, timeout=20 * SLOW)
    statuses = []
    for i in range(30):
        body = {"prompt": VERSE, "max_tokens": 1 + i % 3, "stream": i % 2 == 0, **({"wings": 1} if i % 5 == 4 else {})}
        connection.request(*(("GET", "/health") if i % 7 == 6 else ("POST", "/v1/completions", json.dumps(body))))
        response = connection.getresponse()
        text = response.read()
        statuses.append(response.status == (200 if i % 7 == 6 or i % 5 != 4 else 400) and text)
    connection.close()
    check("a connection is kept for the next request", all(statuses), statuses)
    sockets = [g.open_stream("/v1/completions", {"prompt": VERSE, "max_tokens": 100, "stream": i % 3 > 0, "ignore_eos": True, "n": 1 + i % 4})
               for i in range(24)]
    for i, s in enumerate(sockets):
        if i % 2:
            s.close()
    good = 0
    for s in sockets[::2]:
        text = b""
        while b"0\r\n\r\n" not in text[-5:] and b'"total_tokens"' not in text[-60:]:
            piece = s.recv(1 << 16)
            text += piece
            if not piece:
                break
        good += b" 200 OK" in text[:20] and (b"[DONE]" in text or b'"usage"' in text)
        s.close()
    check("half of a crowd leaves; the others have their answers, the daemon its rest", good == 12 and until(lambda: not open_at(daemon), 20),
          (good, len(open_at(daemon))))


def proxy_tests(g):
    """tools/deploy/nginx.conf, which docs/gateway.md names. 1 where it is skipped."""
    if not shutil.which("nginx") or not shutil.which("openssl"):
        print("the nginx example skipped: there is no %s here" % ("openssl" if shutil.which("nginx") else "nginx"))
        return 1
    sys.path.append("tests/deploy")
    from nginx_example import start_nginx
    with tempfile.TemporaryDirectory() as folder:
        nginx, port = start_nginx(folder, g.port)

        def ask(path, *more):
            return subprocess.run(["curl", "-sSk", "-m", "20", "--resolve", "helm.example:%d:127.0.0.1" % port,
                                   "https://helm.example:%d%s" % (port, path), *more], capture_output=True).stdout.decode()
        check("nginx: TLS under a name", until(lambda: ask("/health") == '{"status":"ok"}'), ask("/health"))
        text = ask("/v1/completions", "-d", json.dumps({"prompt": VERSE, "max_tokens": 5, "stream": True}))
        check("nginx: a stream", text.endswith("data: [DONE]\n\n"), text)
        nginx.terminate()
        processor.ended(nginx, 20)
    return 0


def ollama_tests(g):
    version = g.get("/api/version").json
    check("/api/version is of Ollama's API, beside HELM's", [int(x) for x in version["version"].split(".")] >= [0, 13, 4] and
          re.match(r"\d+\.\d+", version["helm"]), version)
    for path in ("/api/tags", "/api/ps"):
        tag = g.get(path).json["models"][0]
        check("%s: a digest, a family" % path, re.fullmatch(r"[0-9a-f]{64}", tag["digest"]) and tag["model"] == "demo:latest" and
              tag["details"]["families"] == ["qwen3"] == [tag["details"]["family"]], tag)
    check("/api/pull of the served model", g.post("/api/pull", {"model": "demo:latest"}).lines[-1] == {"status": "success"} ==
          g.post("/api/pull", {"name": "demo", "stream": False, "insecure": True}).json)
    check("... of another", g.post("/api/pull", {"model": "x"}).status == 404)
    one, list_ = g.post("/api/embeddings", {"prompt": VERSE}).json["embedding"], g.post("/api/embed", {"input": VERSE}).json["embeddings"]
    check("/api/embeddings is the older way to embed", [one] == list_)
    check("/api/tags", g.get("/api/tags").json["models"][0]["name"] == "demo:latest")
    shown = g.post("/api/show", {"model": "demo"}).json
    check("/api/show", shown["capabilities"] == ["completion"] and shown["model_info"]["qwen3.context_length"] == 2048 and
          g.post("/api/show", {"model": "x"}).status == 404, shown)
    check("/api/ps", g.get("/api/ps").json["models"][0]["context_length"] == 2048)
    whole = g.chat(VERSE, max_tokens=8, temperature=0).json["choices"][0]["message"]["content"]
    asked = {"model": "demo:latest", "messages": [{"role": "user", "content": VERSE}],
             "options": {"num_predict": 8, "temperature": 0}, "keep_alive": "5m"}
    lines = g.post("/api/chat", asked).lines
    check("/api/chat streams lines", "".join(m["message"]["content"] for m in lines) == whole and
          [m["done"] for m in lines] == [False] * (len(lines) - 1) + [True] and lines[-1]["done_reason"] == "length" and
          lines[-1]["eval_count"] == 8, lines)
    a = g.post("/api/chat", {**asked, "stream": False}).json
    check("... or answers in one", a["message"] == {"role": "assistant", "content": whole} and a["done"], a)
    wanted = {**asked, "logprobs": True, "top_logprobs": 2}
    tokens = g.post("/api/chat", {**wanted, "stream": False}).json["logprobs"]
    check("... with logprobs", len(tokens) == 8 and "".join(t["token"] for t in tokens) == whole and all(len(t["top_logprobs"]) == 2 for t in tokens), tokens)
    check("... in a stream", [t for m in g.post("/api/chat", wanted).lines for t in m.get("logprobs", [])] == tokens)
    a = g.post("/api/generate", {"prompt": VERSE, "stream": False, "options": {"num_predict": 8, "temperature": 0}}).json
    check("/api/generate asks a question", a["response"] == whole and a["total_duration"] > 0, a)
    a = g.post("/api/generate", {"prompt": VERSE, "raw": True, "stream": False, "options": {"num_predict": 8, "temperature": 0}}).json
    check("... or goes on with a text", a["response"] == g.complete(VERSE, max_tokens=8, temperature=0).json["choices"][0]["text"], a)
    check("... or only loads", g.post("/api/generate", {"model": "demo"}).json["done_reason"] == "load")
    a = g.post("/api/chat", {**asked, "options": {"mirostat": 2}})
    check("its errors are its own, and name the option", a.status == 400 and "mirostat" in a.json["error"], a.body)
    check("... a format that there is not", "format" in g.post("/api/chat", {**asked, "format": "xml"}).json["error"])
    a = g.post("/api/chat", {**asked, "stream": False, "format": {"enum": ["yes", "no"]}}).json
    check("a format is kept to", a["message"]["content"] in ('"yes"', '"no"') and a["done_reason"] == "stop", a)


def slots_tests(g):
    """A prompt's computed tokens are never more than it has, whatever part of the answer is in the KV cache."""
    with g.open_stream("/v1/completions", {"prompt": VERSE, "max_tokens": 1500, "ignore_eos": True, "stream": True}) as s:
        got = b""
        while got.count(b"data: ") < 40:
            got += s.recv(1 << 16)
        slots = [slot for slot in g.get("/slots").json if slot["n_decoded"] > 20]
        check("/slots", slots and all(slot["n_prompt_tokens_processed"] == slot["n_prompt_tokens"] and slot["is_processing"] for slot in slots), slots)


def length(v):
    return math.sqrt(sum(x * x for x in v))


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / (length(a) * length(b))


def embedding_tests(g, daemon):
    """/v1/embeddings and /api/embed on the demo model: shapes, encodings, pooling, refusals, crowds, clients that go away."""
    def ask(input, **fields):
        return g.post("/v1/embeddings", {"model": "demo", "input": input, **fields})
    ids = g.post("/tokenize", {"prompt": VERSE}).json["tokens"]
    a = ask(VERSE).json
    one = a["data"][0]["embedding"]
    check("an embedding has the model's width and unit length", a["object"] == "list" and a["data"][0]["index"] == 0 and
          len(one) == 256 and abs(length(one) - 1) < 1e-5, a)
    check("... its usage counts tokens", a["usage"] == {"prompt_tokens": len(ids), "total_tokens": len(ids)} and a["model"] == "demo", a["usage"])
    check("ids are the text's", cosine(ask(ids).json["data"][0]["embedding"], one) > 0.99999)
    packed = ask(VERSE, encoding_format="base64").json["data"][0]["embedding"]
    check("base64 is the same numbers", [*struct.unpack("<256f", base64.b64decode(packed))] == [struct.unpack("f", struct.pack("f", v))[0] for v in one])
    last = ask(VERSE, pooling="last").json["data"][0]["embedding"]
    first = ask(ids[:1], pooling="last").json["data"][0]["embedding"]
    check("the last token's is another than the mean", cosine(last, one) < 0.99)
    check("... but of one token", cosine(first, ask(ids[:1]).json["data"][0]["embedding"]) > 0.99999)
    texts = ["verse %d of the book" % i for i in range(100)]
    many = ask(texts).json["data"]
    check("a hundred inputs, in their order", [d["index"] for d in many] == list(range(100)) and
          cosine(many[57]["embedding"], ask(texts[57]).json["data"][0]["embedding"]) > 0.9999)
    long = ask([7] * 2048).json
    check("an input may fill the context", long["usage"]["total_tokens"] == 2048, long.get("error"))
    for body, param, code in (({"input": [7] * 2049}, "input", "context_length_exceeded"), ({"input": []}, "input", "invalid_value"),
                              ({"input": ""}, "input", "invalid_value"), ({"input": ["x"] * 257}, "input", "invalid_value"), ({}, "input", "missing_parameter"),
                              ({"input": "x", "dimensions": 64}, "dimensions", "unsupported_parameter"),
                              ({"input": "x", "encoding_format": "int8"}, "encoding_format", "invalid_value"),
                              ({"input": "x", "pooling": "max"}, "pooling", "invalid_value"),
                              ({"input": "x", "temperature": 1}, "temperature", "unknown_parameter")):
        e = g.post("/v1/embeddings", body)
        check("refused: %s" % str(body)[:40], e.status == 400 and (e.json["error"]["param"], e.json["error"]["code"]) == (param, code), e.body)
    o = g.post("/api/embed", {"model": "demo:latest", "input": [VERSE, "x"]}).json
    check("Ollama's /api/embed", len(o["embeddings"]) == 2 and cosine(o["embeddings"][0], one) > 0.99999 and o["prompt_eval_count"] > len(ids), o.keys())
    cut = g.post("/api/embed", {"input": "x " * 4000})
    check("... cuts what is too long, unless told not to", cut.status == 200 and cut.json["prompt_eval_count"] == 2048 and
          g.post("/api/embed", {"input": "x " * 4000, "truncate": False}).status == 400, cut.body[:200])
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        mixed = list(pool.map(lambda i: g.complete(VERSE, max_tokens=8, temperature=0).json["choices"][0]["text"] if i % 2 else
                              cosine(ask(VERSE).json["data"][0]["embedding"], one) > 0.9999, range(32)))
    check("embeddings beside generations change neither", all(mixed[::2]) and len(set(mixed[1::2])) == 1, mixed)
    s = g.open_stream("/v1/embeddings", {"input": [[i] * 2000 for i in range(10, 60)]})
    check("a client that goes away ...", until(lambda: g.metric("helm_requests_running") > 0))
    s.close()
    check("... takes its embeddings with it", until(lambda: g.metric("helm_requests_running") == 0 == g.metric("helm_requests_queued")))
    check("they are counted", daemon_metric(daemon, 'helm_requests_ended_total{end="embedded"}') > 100)


def daemon_metric(daemon, name):
    return exposition.parse(cli("--connect", daemon.endpoint, "metrics"))[1][name]


def golden_embedding_tests():
    """Against a reference of another hand, through the whole way (tests/data/golden/make_embeddings.py)."""
    with open("tests/data/golden/embeddings.json") as f, open("tests/data/golden/qwen3/golden.json") as c:
        wanted, cases = json.load(f), json.load(c)["cases"]
    with Gateway(None, "--model", os.path.abspath("tests/data/golden/qwen3"), "--profile", helmd.PROFILE, "--ctx", "512", "--pooling", "last") as g:
        for one in wanted:
            prompt = cases[one["case"]]["prompt"]
            got = {"last": g.post("/v1/embeddings", {"input": prompt}), "mean": g.post("/v1/embeddings", {"input": prompt, "pooling": "mean"})}
            worst = min(cosine(a.json["data"][0]["embedding"], one[k]) for k, a in got.items())
            check("%d tokens: mean and last are the reference's" % len(prompt), worst > 0.9998, worst)


def metrics_tests(g, daemon):
    """Prometheus's text: every line is of the format and its conventions, names are the dashboard's, numbers are what was done.
    `helm-cli metrics` has the same of helmd."""
    a = g.get("/metrics")
    text = a.body.decode()
    types, samples, bad = exposition.parse(text)
    check("/metrics is Prometheus's text", a.headers["Content-Type"].startswith("text/plain; version=0.0.4") and not bad, bad)
    check("... of the gateway and of helmd", types.get("helm_gateway_requests_total") == "counter" and
          types.get("helm_output_tokens_total") == "counter" and samples.get("helm_up") == 1 and samples.get("helm_ready") == 1, types)
    wrong = exposition.unknown_in_dashboard(types)
    check("every query of the dashboard asks for what is exported", not wrong and len(exposition.queries()) > 40, wrong)
    said = exposition.promtool(text)
    skipped = said is None
    if skipped:
        print("promtool's check of the metrics skipped: there is no promtool here (apt-get install prometheus)", flush=True)
    else:
        check("promtool has nothing against it", said == "", said)
    run = processor.run([os.path.join(BIN, "helm-cli"), "--connect", daemon.endpoint, "metrics"], capture_output=True, timeout=20 * SLOW)
    told, counted, bad = exposition.parse(run.stdout.decode())
    mine = {name: kind for name, kind in types.items() if not name.startswith("helm_gateway_")}
    check("helm-cli metrics prints the same families", run.returncode == 0 and not bad and told == mine,
          (run.stderr, bad, set(told) ^ set(mine)))
    ended = sum(v for k, v in counted.items() if k.startswith("helm_requests_ended_total"))
    check("requests are counted by their end", ended > 200 and counted['helm_requests_ended_total{end="cancelled"}'] > 0 and
          counted['helm_requests_ended_total{end="length"}'] > 200 and
          ended + counted["helm_requests_running"] + counted["helm_requests_queued"] == counted["helm_requests_total"], counted)
    check("... their times are in histograms", counted["helm_time_to_first_token_seconds_count"] >=
          counted["helm_time_per_output_token_seconds_count"] > 200 and counted["helm_time_to_first_token_seconds_sum"] > 0 and
          counted["helm_queue_seconds_count"] >= counted["helm_time_to_first_token_seconds_count"], counted)
    check("... steps by their sequences", counted["helm_step_sequences_count"] == counted["helm_steps_total"] and
          counted["helm_step_sequences_sum"] >= counted["helm_output_tokens_total"] and
          counted['helm_step_sequences_bucket{le="64"}'] == counted["helm_steps_total"], counted)
    parts = {r: counted['helm_resource_seconds_total{resource="%s"}' % r] for r in ("cpu", "gpu", "link", "waiting")}
    whole = counted["helm_step_seconds_total"]
    check("... the steps' time by resource", parts["gpu"] == parts["link"] == 0 < parts["cpu"] and
          abs(parts["cpu"] + parts["waiting"] - whole) < 1e-3 * whole, (parts, whole))
    check("... and the plan, forecast and measured", counted['helm_plan_decode_step_seconds{bound="low"}'] <=
          counted['helm_plan_decode_step_seconds{bound="expected"}'] <= counted['helm_plan_decode_step_seconds{bound="high"}'] and
          any(k.startswith("helm_decode_step_measured_seconds{") and v > 0 for k, v in counted.items()), counted)
    return skipped


def key_tests(endpoint, folder):
    path = os.path.join(folder, "keys")
    with open(path, "w") as f:
        f.write("# keys\nalice sk-first-0123\nsk-second-4567\n")
    os.chmod(path, 0o600)
    with Gateway(endpoint, "--api-keys", path, "--alias", "other", "--name", "org/model") as g:
        check("without a key: 401", g.chat().status == 401 and g.get("/v1/models").status == 401)
        check("... but /health and the page are open", g.get("/health").status == 200 and g.get("/").status == 200)
        g.key = "sk-first-0124"
        check("a wrong key: 401", g.chat().status == 401)
        g.key = "sk-second-4567"
        check("a right one", g.chat(max_tokens=1).status == 200 and g.get("/v1/models").json["data"][0]["id"] == "org/model")
        check("aliases are names too", g.chat(max_tokens=1, model="other").status == 200 and
              g.chat(max_tokens=1, model="org/model:latest").status == 200)
        check("a model's name may have a slash", g.get("/v1/models/org/model").json["id"] == "org/model")
        g.key = "sk-first-0123"
        check("the log says whose key it was", g.chat(max_tokens=1).status == 200 and until(lambda: " alice POST" in g.log()))
        with open(path, "w") as f:
            f.write("sk-third-8901\n")
        g.process.send_signal(signal.SIGHUP)
        check("SIGHUP reads the keys again", until(lambda: g.chat(max_tokens=1).status == 401))
        g.key = "sk-third-8901"
        check("... with the new one", g.chat(max_tokens=1).status == 200)
        with open(path, "w") as f:
            f.write("short\n")
        g.process.send_signal(signal.SIGHUP)
        check("a file that is wrong changes nothing", until(lambda: "keys stay as they were" in g.log()) and g.chat(max_tokens=1).status == 200)


def private_tests():
    with Gateway(None, "--model", helmd.DEMO, "--profile", helmd.PROFILE, "--ctx", "512") as g:
        a = g.chat(VERSE, max_tokens=4)
        check("--model starts a daemon", a.status == 200 and g.get("/v1/models").json["data"][0]["max_model_len"] == 512, a.body)
        s = g.open_stream("/v1/completions", {"prompt": VERSE, "max_tokens": 400, "ignore_eos": True, "stream": True})
        s.recv(10)
        g.process.send_signal(signal.SIGTERM)
        text = b""
        while chunk := s.recv(1 << 16):
            text += chunk
        check("SIGTERM lets an answer come to its end", b"data: [DONE]" in text, text[-300:])


def main():
    # drawn at temperature 1 beside each other, two answers are the same again where bits are
    with helmd.running("--parallel", "8", "--queue", "256", "--invariant", "on", real=True) as daemon, tempfile.TemporaryDirectory() as folder:
        with Gateway(daemon.endpoint, "--request-seconds", "2", "--host", "me.example", "--host", "helm.example") as g:
            said = text_tests(g, daemon.endpoint)
            stream_tests(g, said)
            stop_tests(g)
            sampling_tests(g)
            refusal_tests(g)
            hostile_tests(g)
            abort_tests(g, daemon)
            ollama_tests(g)
            slots_tests(g)
            crowd_tests(g)
            connection_tests(g, daemon)
            skipped = proxy_tests(g)
            slow_reader_tests(g, daemon)
            embedding_tests(g, daemon)
            skipped += metrics_tests(g, daemon)
        key_tests(daemon.endpoint, folder)
    private_tests()
    golden_embedding_tests()
    sum_up(skipped)


if __name__ == "__main__":
    main()
