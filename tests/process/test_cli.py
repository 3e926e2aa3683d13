#!/usr/bin/python3
"""helm-cli against a stand-in daemon: every command, every exit status, signals, private daemons.

HELM_BIN: folder of the programs; HELM_PYPROTO: where protoc's Python output lies. Run from the repository's root.
"""
import fcntl
import json
import os
import pty
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "client/python", "tests/process"]
from fake_helmd import FakeDaemon  # noqa: E402
import helm_client  # noqa: E402
import zmq  # noqa: E402

CLI = os.path.abspath(os.path.join(os.environ["HELM_BIN"], "helm-cli"))
MODEL = os.path.abspath("tests/data/golden/qwen3")  # for its tokenizer.json
PROFILE = os.path.abspath("tests/data/profiles/described.json")  # nothing is measured for it
counts = {True: 0, False: 0}


def check(name, ok, detail=""):
    counts[bool(ok)] += 1
    print("%s %s%s" % ("ok  " if ok else "FAIL", name, "" if ok else ("  [%s]" % (detail,))[:2000]), flush=True)


def sum_up():
    print("%d passed, %d failed" % (counts[True], counts[False]))
    sys.exit(1 if counts[False] else 0)


def cli(*args, stdin=None, env=None, program=CLI, timeout=30):
    run = subprocess.run([program, *args], input=stdin, capture_output=True, timeout=timeout,
                         env=dict(os.environ, **(env or {})))
    return run.returncode, run.stdout.decode(), run.stderr.decode()


def check_exit(name, want, *args, text=None, **more):
    code, out, err = cli(*args, **more)
    check(name, code == want and (text is None or text in out + err), (code, out[-300:], err[-300:]))
    return out


def usage_tests():
    check_exit("no command is a usage error", 2)
    check_exit("unknown command", 2, "fly", text="fly")
    check_exit("a misspelt command", 2, "stauts", text="no command 'stauts': is 'status' meant?")
    check_exit("unknown option", 2, "status", "--wings")
    check_exit("a misspelt option", 2, "generate", "--temprature", "1", text="is '--temperature' meant?")
    check_exit("a misspelt option before the command", 2, "--modl", "x", "run", text="is '--model' meant?")
    check_exit("help", 0, "help", text="exit status")
    check_exit("help of a command", 0, "help", "generate", text="usage: helm-cli generate")
    check_exit("help of what is none", 2, "help", "generat", text="is 'generate' meant?")
    check_exit("--help", 0, "--help", text="exit status")
    check_exit("--version", 0, "--version", text="helm-cli ")
    for command in "run chat generate tokenize detokenize status ps cancel plan".split():
        check_exit("%s --help" % command, 0, command, "--help", text="usage: helm-cli %s" % command)
    check_exit("generate without a prompt", 2, "generate", "-n", "3", text="--prompt")
    check_exit("generate with two prompts", 2, "generate", "-n", "3", "--tokens", "1", "--prompt", "x")
    check_exit("generate without -n", 2, "generate", "--tokens", "1", text="-n")
    check_exit("generate with bad ids", 2, "generate", "-n", "3", "--tokens", "1,x", text="--tokens")
    check_exit("temperature out of bounds", 2, "generate", "-n", "3", "--tokens", "1", "--temperature", "-1")
    for option, limit in (("--top-p", "above 0 and at most 1"), ("--repetition-penalty", "above 0 and at most 100")):
        for value in ("0", "-0", "1e-50"):
            check_exit("%s %s, which the daemon would take for off" % (option, value), 2, "generate", "-n", "3", "--tokens",
                       "1", option, value, text="%s: %s is not %s" % (option, value, limit))
    check_exit("logprobs out of bounds", 2, "generate", "-n", "3", "--tokens", "1", "--logprobs", "21")
    check_exit("--connect with --model", 2, "--connect", "ipc:///x", "--model", "x", "status", text="exclude")
    check_exit("helmd's options without --model", 2, "--ctx", "100", "status", text="--model")
    check_exit("bad size", 2, "--model", "x", "--vram", "lots", "status")
    check_exit("an endpoint of an unknown kind", 2, "--connect", "udp://x", "status", text="udp://x")
    check_exit("tokenize without text", 2, "--model", MODEL, "tokenize")
    check_exit("cancel without id", 2, "cancel")
    check_exit("cancel with a word", 2, "cancel", "seven")


def no_daemon_tests(folder):
    check_exit("no socket", 3, "--connect", "ipc://%s/none.sock" % folder, "status", text="no such socket")
    stale = os.path.join(folder, "stale.sock")
    s = socket.socket(socket.AF_UNIX)
    s.bind(stale)
    s.close()
    check_exit("stale socket", 3, "--connect", "ipc://" + stale, "status", text="nobody listens")
    check_exit("tcp without keys", 2, "--connect", "tcp://127.0.0.1:9", "status", text="CURVE")
    keys = [os.path.join(folder, name) for name in ("daemon.key", "secret.key")]
    for path in keys:
        with open(path, "w") as f:
            f.write("rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7\n")
    curve = ("--curve-daemon-key-file", keys[0], "--curve-secret-key-file", keys[1])
    os.chmod(keys[1], 0o644)
    check_exit("a secret key that others may read", 2, "--connect", "tcp://127.0.0.1:9", *curve, "status", text="0644")
    os.chmod(keys[1], 0o600)
    check_exit("refused tcp port", 3, "--connect", "tcp://127.0.0.1:9", *curve, "status", text="tcp://127.0.0.1:9")
    mute = socket.socket(socket.AF_UNIX)
    mute.bind(os.path.join(folder, "mute.sock"))
    mute.listen(5)
    begin = time.monotonic()
    check_exit("a listener that never answers", 3, "--connect", "ipc://%s/mute.sock" % folder, "status",
               text="no answer")
    check("... is given up in time", time.monotonic() - begin < 8)
    mute.close()
    check_exit("default endpoint from $XDG_RUNTIME_DIR", 3, "status", text=folder + "/helm/helmd.sock",
               env={"HELM_ENDPOINT": "", "XDG_RUNTIME_DIR": folder}) if not os.path.exists("/run/helm/helmd.sock") \
        else print("skip default endpoint: a system daemon is there")
    check_exit("default endpoint from $HELM_ENDPOINT", 3, "status", text="ipc:///nowhere/at/all",
               env={"HELM_ENDPOINT": "ipc:///nowhere/at/all"})


def query_tests(at, daemon):
    status = json.loads(check_exit("status --json", 0, *at, "status", "--json"))
    check("... has the daemon's fields", status["state"] == "ready" and status["workers"][0]["threads"] == 2 and
          status["model"]["eos"] == [1, 2], status)
    out = check_exit("status", 0, *at, "status", text="helmd 0.0-fake")
    check("... shows no escape sequences", "\x1b" not in out)
    check("... shows the KV cache's type", "KV pages   0 of 1024 in use, q8_0, 68.00 KiB a token" in out, out)
    check("... shows the prefix cache", "prefixes   pe?er, 12 more pages kept, 3 requests found 640 tokens, 5 pages dropped" in out, out)
    check("... in JSON too", (status["prefix_cache"], status["kv_pages_cached"], status["prefix_hits_total"],
                              status["tokens_cached_total"], status["prefix_evictions_total"]) == ("pe\x1ber", 12, 3, 640, 5), status)
    check("... shows the tiers of the cache",
          "in VRAM    90 of 120 pages, 33 in host memory alone; 40 moved out so far, 7 fetched" in out, out)
    check("... in JSON too", [status[k] for k in ("kv_places_used", "kv_places_total", "kv_pages_host",
                              "kv_pages_moved_out_total", "kv_pages_fetched_total")] == [90, 120, 33, 40, 7], status)
    check("... in JSON too", (status["kv_dtype"], status["kv_token_bytes"]) == ("q8_0", 69632), status)
    check("... shows the device, its memory and busy shares", "device: a fake?" in out and "VRAM in use 3.00 MiB" in out and
          "busy 25 % of the steps' time, waiting 50 %; weights read 1.00 MiB, over the link 2.00 MiB" in out, out)
    check("... also in JSON", status["workers"][1]["busy_seconds"] == 2 and status["workers"][1]["vram_bytes"] == 3 << 20 and
          status["seconds_steps"] == 8, status)
    check_exit("top, once", 0, *at, "top", "--once", "--interval", "0.1", text="of prompts")
    check_exit("top without a terminal", 2, *at, "top", text="--once")
    check("ps --json, nothing open", json.loads(check_exit("ps", 0, *at, "ps", "--json")) == [])
    check("plan --json", json.loads(check_exit("plan", 0, *at, "plan", "--json"))["layers"] == 4)
    out = check_exit("plan as a table", 0, *at, "plan", text="0-3  all        cpu")
    lines = {line[:36].strip(): line[36:].split() for line in out.splitlines()}
    check("... with what was forecast", lines.get("forecast: 1 at once, context 128") ==
          "20.0 - token/s - planned 16.0 to 25.0".split(), out)
    check("... what was measured beside what was planned", lines.get("decode, 1 at once, context 130") ==
          "20.0 10.0 token/s -50.0 % 12 steps".split() and
          lines.get("first token after a prompt of 64") == "200 250 ms +25.0 % 3 prompts".split() and
          lines.get("cpu weights") == "80.0 61.0 GB/s -23.8 %".split(), out)
    check("... the drift, without escape sequences", "drift: decode 100 % slower?" in out and "\x1b" not in out, out)
    plan = json.loads(check_exit("plan --json", 0, *at, "plan", "--json"))
    check("... has it all in numbers", plan["forecast"]["decode_tok_s"] == {"value": 20, "low": 16, "high": 25} and
          plan["measured"]["decode"] == [{"batch": 1, "context": 130, "steps": 12, "tok_s": 10, "planned_tok_s": 20,
                                          "difference_percent": -50}] and
          plan["measured"]["ttft"][0]["difference_percent"] == 25 and plan["measured"]["drifting"] is True and
          plan["measured"]["resources"][0]["planned_bytes_per_second"] == 80e9, plan)
    check_exit("cancel of an unknown id", 4, *at, "cancel", "999", text="no request")


def generate_tests(at, daemon):
    out = check_exit("generate --json", 0, *at, "generate", "--tokens", "10,2,3", "-n", "3", "--json", "--logprobs", "2",
                     "--temperature", "0.5", "--top-k", "7", "--top-p", "0.9", "--min-p", "0.1", "--seed", "18446744073709551615",
                     "--repetition-penalty", "1.5", "--presence-penalty", "-1", "--frequency-penalty", "2", "--ignore-eos")
    result = json.loads(out)
    check("... members as the command line promises",
          sorted(result) == sorted(["id", "tokens", "text", "finish_reason", "logprobs", "usage", "timings"]), result)
    check("... values", result["tokens"] == [100, 101, 102] and result["finish_reason"] == "length" and
          result["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "cached_tokens": 2} and result["timings"]["ttft_ms"] == 12.5 and
          sorted(result["timings"]) == ["decode_tok_s", "prefill_tok_s", "tpot_ms", "ttft_ms"] and
          result["logprobs"][1] == [{"token": 101, "logprob": -0.5}, {"token": 102, "logprob": -1.5}] and
          result["id"] > 0, result)
    g = daemon.generated[-1]
    s = g.sampling
    check("... every option reaches the daemon",
          list(g.prompt) == [10, 2, 3] and g.max_tokens == 3 and g.logprobs == 2 and g.ignore_eos and s.top_k == 7 and
          abs(s.temperature - 0.5) < 1e-6 and abs(s.top_p - 0.9) < 1e-6 and abs(s.min_p - 0.1) < 1e-6 and s.has_seed and
          s.seed == 2 ** 64 - 1 and s.repetition_penalty == 1.5 and s.presence_penalty == -1 and
          s.frequency_penalty == 2, g)
    check("... text is what detokenize says", result["text"] == json.loads(
        check_exit("detokenize --json", 0, "--model", MODEL, "detokenize", "100,101,102", "--json")), result["text"])
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
        f.write("[11, 300,\n 301]\n")
        f.flush()
        result = json.loads(check_exit("generate --tokens-file", 0, *at, "generate", "--tokens-file", f.name, "-n", "9",
                                       "--json"))
    check("... ends with eos", result["finish_reason"] == "eos" and result["tokens"] == [300, 301, 1], result)
    check("... no special token in the text, no logprobs unasked", "<|" not in result["text"] and
          result["logprobs"] == [], result)
    result = json.loads(check_exit("generate --show-special", 0, *at, "generate", "--tokens", "11,300", "-n", "9",
                                   "--json", "--show-special"))
    check("... shows them", result["text"].endswith("<|eos|>"), result)
    check_exit("busy is refused", 4, *at, "generate", "--tokens", "13", "-n", "3", text="refused \\x1b[31m")
    check_exit("too long is refused", 4, *at, "generate", "--tokens", "14", "-n", "3")
    out = check_exit("failing midway", 5, *at, "generate", "--tokens", "15,300", "-n", "3", "--json", text="told to fail")
    result = json.loads(out)
    check("... still prints what there is", result["finish_reason"] == "error" and len(result["tokens"]) == 2, result)
    code, out, err = cli(*at, "generate", "--tokens", "12", "-n", "3", "--stop", "", "--json")
    check("an empty stop text is a usage error", code == 2, (code, err))


def stop_tests(at, daemon):
    ids = json.loads(cli("--model", MODEL, "tokenize", "--json", "--no-special", " alpha beta gamma delta")[1])
    whole = cli("--model", MODEL, "detokenize", "--json", ",".join(map(str, ids)))[1]
    check("tokens and text agree", json.loads(whole) == " alpha beta gamma delta", whole)
    prompt = ",".join(map(str, [12] + ids))
    begin = len(daemon.cancelled)
    result = json.loads(check_exit("--stop across tokens", 0, *at, "generate", "--tokens", prompt, "-n", "1000", "--stop",
                                   "never", "--stop", "ta gam", "--json"))
    check("... cuts before it", result["text"] == " alpha be" and result["finish_reason"] == "stop", result)
    n = len(result["tokens"])
    up_to = json.loads(cli("--model", MODEL, "detokenize", "--json", ",".join(map(str, result["tokens"])))[1])
    one_less = json.loads(cli("--model", MODEL, "detokenize", "--json", ",".join(map(str, result["tokens"][:-1] or [0])))[1])
    check("... tokens up to the one that completed it", "ta gam" in up_to and "ta gam" not in one_less and
          result["usage"]["completion_tokens"] == n, result)
    check("... and cancels at the daemon", len(daemon.cancelled) == begin + 1)
    code, out, err = cli(*at, "generate", "--tokens", prompt, "-n", "1000", "--stop", "ta gam")
    check("--stop while streaming prints nothing beyond", (code, out) == (0, " alpha be\n"), (code, out, err))


def signal_tests(at, daemon):
    for name, number, status in (("Ctrl-C", signal.SIGINT, 130), ("SIGTERM", signal.SIGTERM, 143)):
        begin = len(daemon.cancelled)
        p = subprocess.Popen([CLI, *at, "generate", "--tokens", "12,300", "-n", "4000"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE)
        p.stdout.read(1)
        p.send_signal(number)
        out, err = p.communicate(timeout=10)
        check("%s ends with %d" % (name, status), p.returncode == status, (p.returncode, err))
        check("... and cancels at the daemon", len(daemon.cancelled) == begin + 1)
    p = subprocess.Popen([CLI, *at, "generate", "--tokens", "12,300", "-n", "4000"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    p.stdout.read(1)
    ps = json.loads(cli(*at, "ps", "--json")[1])
    check("ps shows a running request", len(ps) == 1 and ps[0]["label"] == "helm-cli generate", ps)
    check_exit("ps as a table", 0, *at, "ps", text="helm-cli generate")
    check_exit("cancel ID", 0, *at, "cancel", str(ps[0]["id"]), text="cancelled")
    out, err = p.communicate(timeout=10)
    check("... ends the other helm-cli with 5", p.returncode == 5 and b"cancelled" in err, (p.returncode, err))
    p = subprocess.Popen([CLI, *at, "generate", "--tokens", "12,300", "-n", "4000"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    p.stdout.read(1)
    p.stdout.close()
    check("a closed pipe ends it with 5", p.wait(10) == 5, p.returncode)
    p.stderr.close()
    check("... and cancels at the daemon", not json.loads(cli(*at, "ps", "--json")[1]))


def run_tests(folder, tokenizer):
    endpoint = "ipc://%s/run.sock" % folder
    at = ("--connect", endpoint)
    first = json.loads(cli("--model", MODEL, "tokenize", "--json", "Hi")[1])
    model = os.path.join(folder, "model")
    os.mkdir(model)
    shutil.copy(tokenizer, model)
    daemon = FakeDaemon(endpoint, model)
    # the stand-in takes its orders from the first token: make "Hi" mean 11 (an echo of the rest)
    handle = daemon.handle

    def rewrite(client, request):
        if request.WhichOneof("body") == "generate" and list(request.generate.prompt[:len(first)]) == first:
            daemon.seen = list(request.generate.prompt)
            daemon.sampling = request.generate.sampling
            request.generate.prompt[:] = [11] + daemon.seen[len(first):]
        handle(client, request)
    daemon.handle = rewrite
    daemon.start()
    check_exit("run PROMPT", 0, *at, "run", "Hi there, friend", text=" there, friend\n")
    check("... is greedy without generation_config.json", daemon.sampling.temperature == 0)
    check_exit("run from standard input", 0, *at, "run", stdin=b"Hi there\n", text=" there\n")
    check_exit("run -", 0, *at, "run", "-", stdin=b"Hi\xc3\xa9", text="\u00e9\n")
    with open(os.path.join(model, "generation_config.json"), "w") as f:
        f.write('{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95}')
    result = json.loads(check_exit("run --json", 0, *at, "run", "Hi you", "--json", "--top-k", "5"))
    check("... same object as generate's", result["text"] == " you" and result["finish_reason"] == "eos", result)
    s = daemon.sampling
    check("... sampling from generation_config.json, options first", abs(s.temperature - 0.6) < 1e-6 and
          abs(s.top_p - 0.95) < 1e-6 and s.top_k == 5, s)
    with open(os.path.join(model, "generation_config.json"), "w") as f:
        f.write('{"do_sample": true, "top_p": 0}')
    check_exit("top_p 0 in generation_config.json is refused", 4, *at, "run", "Hi", text="above 0 and at most 1")
    check_exit("... unless --top-p says otherwise", 0, *at, "run", "Hi you", "--top-p", "0.5", text=" you\n")
    with open(os.path.join(model, "generation_config.json"), "w") as f:
        f.write('{"top_p": 0}')
    check_exit("... or nothing is drawn", 0, *at, "run", "Hi you", text=" you\n")
    with open(os.path.join(model, "generation_config.json"), "w") as f:
        f.write('{"do_sample": true, "temperature": "hot"}')
    check_exit("a broken generation_config.json is refused", 4, *at, "run", "Hi", text="generation_config.json")
    with open(os.path.join(model, "tokenizer.json"), "w") as f:
        f.write("{}")
    check_exit("a broken tokenizer is refused", 4, *at, "run", "Hi")
    os.unlink(os.path.join(model, "tokenizer.json"))
    check_exit("no tokenizer is refused", 4, *at, "run", "Hi", text="tokenizer.json")
    out = check_exit("generate --tokens needs none", 0, *at, "generate", "--tokens", "10", "-n", "3")
    check("... and prints ids", out == "100 101 102\n", out)
    result = json.loads(cli(*at, "generate", "--tokens", "10", "-n", "3", "--json")[1])
    check("... text is empty with --json", result["text"] == "", result)
    check_exit("--stop without a tokenizer is refused", 4, *at, "generate", "--tokens", "10", "-n", "3", "--stop", "x")
    daemon.stop()


def tokenizer_tests(folder):
    at = ("--model", MODEL)
    out = check_exit("tokenize", 0, *at, "tokenize", "Hello world")
    ids = out.strip()
    check_exit("detokenize", 0, *at, "detokenize", ids, text="Hello world")
    check_exit("detokenize of several operands", 0, *at, "detokenize", *ids.split(","), text="Hello world")
    check("tokenize -", check_exit("tokenize - reads every byte", 0, *at, "tokenize", "-", "--json", stdin=b"a\x00b\n") !=
          check_exit("...", 0, *at, "tokenize", "-", "--json", stdin=b"a"))
    check_exit("--tokenizer FILE", 0, "--tokenizer", MODEL + "/tokenizer.json", "tokenize", "Hello world", text=ids)
    check_exit("no such folder", 4, "--model", folder + "/none", "tokenize", "x")
    check_exit("special tokens are parsed", 0, *at, "tokenize", "<|eos|>", "--no-special", text="1\n")
    check("... unless --plain", check_exit("--plain", 0, *at, "tokenize", "<|eos|>", "--no-special", "--plain") != "1\n")
    check_exit("--skip-special", 0, *at, "detokenize", "1", "--skip-special", "--json", text='""')
    texts = ["", "Hello", "a\nb", "nul \0 in", "\u00e9 \U0001f600", "<|eos|>", " " * 100]
    lines = "".join(json.dumps(t) + "\n" for t in texts).encode()
    out = check_exit("tokenize --jsonl", 0, *at, "tokenize", "--jsonl", stdin=lines)
    arrays = [json.loads(line) for line in out.splitlines()]
    check("... an array for each line", len(arrays) == len(texts) and all(isinstance(a, list) for a in arrays), out)
    back = check_exit("detokenize --jsonl", 0, *at, "detokenize", "--jsonl", stdin=out.encode())
    check("... gives the texts back", [json.loads(line) for line in back.split("\n")[:-1]] == texts, back)
    p = subprocess.Popen([CLI, *at, "tokenize", "--jsonl"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    p.stdin.write(b'"one"\n')
    p.stdin.flush()
    check("... answers each line at once", p.stdout.readline().startswith(b"["))
    p.stdin.close()
    check("... and ends with its input", p.wait(5) == 0)
    p.stdout.close()
    check_exit("a line that is no string", 4, *at, "tokenize", "--jsonl", stdin=b"5\n", text="line 1")
    check_exit("a later line that is none", 5, *at, "tokenize", "--jsonl", stdin=b'"a"\n[\n', text="line 2")


TEMPLATE = ("{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}[assistant]{% endif %}")


class Terminal:
    """helm-cli on a terminal of its own."""

    def __init__(self, *args, program=CLI, env=None, columns=80):
        pid, self.fd = pty.fork()
        if pid == 0:
            os.execve(program, [program, *args], dict(os.environ, **(env or {})))
        self.pid, self.seen, self.all = pid, "", ""
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def take(self):
        came = os.read(self.fd, 4096).decode(errors="replace")
        self.seen += came
        self.all += came

    def expect(self, text, seconds=60):
        until = time.monotonic() + seconds
        while text not in self.seen and time.monotonic() < until:
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.take()
                except OSError:
                    break
        found = text in self.seen
        self.seen = self.seen[self.seen.index(text) + len(text):] if found else self.seen
        return found

    def type(self, data):
        """In pieces, what comes back read meanwhile: a terminal's two directions are bounded."""
        while data:
            ready = select.select([self.fd], [self.fd], [], 10)
            if ready[0]:
                self.take()
            if ready[1]:
                data = data[os.write(self.fd, data[:512]):]

    def wait(self):
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


def chat_tests(folder):
    endpoint = "ipc://%s/chat.sock" % folder
    at = ("--connect", endpoint)
    model = os.path.join(folder, "chat-model")
    os.mkdir(model)
    shutil.copy(MODEL + "/tokenizer.json", model)
    with open(os.path.join(model, "tokenizer_config.json"), "w") as f:
        json.dump({"chat_template": TEMPLATE, "eos_token": "<|eos|>"}, f)
    answer = json.loads(cli("--model", MODEL, "tokenize", "--json", "--no-special", " fine thanks")[1])
    daemon = FakeDaemon(endpoint, model, token_seconds=0.05)
    prompts = []
    handle = daemon.handle

    def rewrite(client, request):
        if request.WhichOneof("body") == "generate":
            prompts.append(list(request.generate.prompt))
            stops = list(request.generate.stop_token_ids)
            request.generate.prompt[:] = [daemon.how] + answer
            daemon.stops, daemon.ignore_eos = stops, request.generate.ignore_eos
        handle(client, request)
    daemon.handle = rewrite
    daemon.how = 11
    daemon.start()

    def text_of(i):
        return json.loads(cli("--model", MODEL, "detokenize", "--jsonl", stdin=json.dumps(prompts[i]).encode())[1])

    check_exit("run --chat", 0, *at, "run", "--chat", "--system", "Be brief.", "Hi", text=" fine thanks\n")
    check("... renders the template", text_of(-1) == "[system]Be brief.\n[user]Hi\n[assistant]", text_of(-1))
    check("... stops at the tokenizer's end token", daemon.stops == [1] and not daemon.ignore_eos, daemon.stops)
    check_exit("run --chat --ignore-eos", 0, *at, "run", "--chat", "--ignore-eos", "Hi", text=" fine thanks\n")
    check("... does not stop at it", daemon.stops == [] and daemon.ignore_eos, daemon.stops)
    check_exit("chat --ignore-eos", 0, *at, "chat", "--ignore-eos", stdin=b"Hi\n", text=" fine thanks\n")
    check("... does not either", daemon.stops == [] and daemon.ignore_eos, daemon.stops)
    out = check_exit("chat from a pipe", 0, *at, "chat", stdin=b"Hi\n\nAnd you?\n/reset\nNew")
    check("... stops at it again", daemon.stops == [1], daemon.stops)
    check("... answers each line", out == " fine thanks\n" * 3, out)
    check("... with the history", text_of(-2) == "[user]Hi\n[assistant] fine thanks\n[user]And you?\n[assistant]",
          text_of(-2))
    check("... until /reset", text_of(-1) == "[user]New\n[assistant]", text_of(-1))

    t = Terminal(*at, "chat")
    check("chat on a terminal prompts", t.expect("> "))
    t.type(b"Hello\n")
    check("... answers", t.expect(" fine thanks") and t.expect("> "), t.seen)
    t.type(b"one\ntwo\n")
    check("... takes a paste as one message", t.expect(" fine thanks") and t.expect("> ") and
          text_of(-1).endswith("[user]one\ntwo\n[assistant]"), text_of(-1))
    t.type(b"/help\n")
    check("... /help", t.expect("/clear") and t.expect("> "), t.seen)
    daemon.how = 12
    t.type(b"/reset\nx\n")
    check("... a pasted command is a message", t.expect(" fine"), t.seen)
    begin = len(daemon.cancelled)
    t.type(b"\x03")
    check("... Ctrl-C stops the answer", t.expect("> ") and len(daemon.cancelled) == begin + 1, t.seen)
    daemon.how = 11
    t.type(b"again\n")
    check("... and the conversation goes on", t.expect(" fine thanks") and t.expect("> ") and
          "[assistant] fine" in text_of(-1), text_of(-1))
    t.type(b"\x03")
    check("... Ctrl-C at the prompt says how to leave", t.expect("/exit") and t.expect("> "), t.seen)
    daemon.how = 14
    t.type(b"more\n")
    check("... a full context is explained", t.expect("/clear begins") and t.expect("> "), t.seen)
    t.type(b"\x04")
    check("... Ctrl-D leaves with 0", t.wait() == 0)
    editor_tests(at, daemon, prompts, text_of, folder)
    daemon.stop()
    with open(os.path.join(model, "tokenizer_config.json"), "w") as f:
        f.write("{}")
    daemon = FakeDaemon(endpoint, model)
    daemon.start()
    check_exit("chat without a template is refused", 4, *at, "chat", stdin=b"Hi\n", text="template")
    daemon.stop()


def editor_tests(at, daemon, prompts, text_of, folder):
    """The line editor: what is sent of what is typed and pasted, commands, how answers are shown."""
    def last():
        return text_of(-1).rsplit("[user]", 1)[1][:-len("\n[assistant]")]

    def ask(t, keys):
        t.type(keys)
        return t.expect(" fine thanks") and t.expect("> ")

    daemon.how = 11
    t = Terminal(*at, "chat", "-n", "500", env={"TERM": "xterm"})
    check("a terminal's chat asks for brackets around pastes", t.expect("\x1b[?2004h"))
    long = b"".join(b"word%d " % i for i in range(1400))[:9349]
    check("a line of 9,349 bytes", ask(t, long + b"\n") and last().encode() == long, (len(last()), t.seen[-200:]))
    lines = b"".join(b"line %d with some words in it\n" % i for i in range(1500))
    check("a bracketed paste of 43 KB and 1,500 lines", ask(t, b"see: \x1b[200~" + lines.replace(b"\n", b"\r") + b"\x1b[201~ (end)\r") and
          last().encode() == b"see: " + lines + b" (end)", (len(last()), last()[:80]))
    check("... is shown as a word", "[paste 1: 1501 lines, " in t.all, t.all[-300:])
    check("a short paste is the line's own", ask(t, b"\x1b[200~one word\x1b[201~\r") and last() == "one word", last())
    check("... an unbracketed one of many lines", ask(t, lines) and last().encode() == lines.rstrip(b"\n"), len(last()))
    check("keys edit", ask(t, b"Hxllo\x01\x1b[C\x1b[C\x7fe\r") and last() == "Hello", last())
    check("... and letters of other scripts are whole", ask(t, "na\u00efve \u4f60\u597d\u597d\x7f\r".encode()) and
          last() == "na\u00efve \u4f60\u597d", last())
    check("Up brings the line before", ask(t, b"\x1b[A\r") and last() == "na\u00efve \u4f60\u597d", last())
    sent = len(prompts)
    for keys, answer in ((b"/hlep\r", "no command /hlep (/help?)"), (b"/nothing at all\r", "no command /nothing"),
                         (b"/set temprature 1\r", "(temperature?)"), (b"/set temperature hot\r", "not a number"),
                         (b"/set temperature 0.7\r", "> "), (b"/set seed 7\r", "> "), (b"/set\r", "temperature          0.7"),
                         (b"/system Be brief.\r", "> "), (b"/system\r", "Be brief."), (b"/stats\r", "tokens at 307.7 token/s"),
                         (b"/load /nowhere\r", "no such file"), (b"/save\r", "no file named")):
        t.type(keys)
        check("... %s" % keys.decode().strip(), t.expect(answer) and (answer == "> " or t.expect("> ")), t.seen)
    check("... none of which was sent", len(prompts) == sent)
    check("a message with a blank before its slash is one", ask(t, b" /nothing\r") and last() == " /nothing", last())
    check("... so is a path", ask(t, b"/usr/bin/env is\r") and last() == "/usr/bin/env is", last())
    check("... with what was set", abs(daemon.generated[-1].sampling.temperature - 0.7) < 1e-6 and daemon.generated[-1].sampling.seed == 7 and
          text_of(-1).startswith("[system]Be brief."), (daemon.generated[-1], text_of(-1)[:40]))
    path = os.path.join(folder, "talk.json")
    t.type(b"/save %s\r" % path.encode())
    check("/save writes it", t.expect("messages in") and t.expect("> "), t.seen)
    saved = json.load(open(path))["messages"]
    check("... for its owner alone", os.stat(path).st_mode & 0o777 == 0o600 and saved[0] == {"role": "system", "content": "Be brief."} and
          saved[-1]["role"] == "assistant", saved[-2:])
    t.type(b"/clear\r")
    check("/clear forgets all but the system message", t.expect("> ") and ask(t, b"A\r") and
          text_of(-1) == "[system]Be brief.\n[user]A\n[assistant]", text_of(-1))
    t.type(b"/load %s\r" % path.encode())
    check("/load brings it back", t.expect("%d messages from" % len(saved)) and t.expect("> ") and ask(t, b"B\r") and
          "/usr/bin/env is" in text_of(-1), text_of(-1)[-200:])
    with open(path, "w") as f:
        json.dump({"messages": [{"role": "robot", "content": "x"}]}, f)
    t.type(b"/load %s\r" % path.encode())
    check("... a file that is none changes nothing", t.expect("'robot' is none of") and t.expect("> ") and ask(t, b"C\r") and
          "/usr/bin/env is" in text_of(-1), t.seen)
    t.type(b"/bye\r")
    check("/bye leaves with 0", t.wait() == 0)

    words = "The quick brown fox jumps over the lazy dog again and again"
    ids = [json.loads(cli("--model", MODEL, "tokenize", "--json", "--no-special", text)[1]) for text in
           ("<think>\nLet me see\n</think>\n" + words + "\n```\n" + words + "\n```\n", words)]
    show = daemon.handle

    def answer_with(which):
        def handle(client, request):
            if request.WhichOneof("body") == "generate":
                request.generate.prompt[:] = [11] + ids[which]
            FakeDaemon.handle(daemon, client, request)
        daemon.handle = handle
    answer_with(0)
    t = Terminal(*at, "chat", env={"TERM": "xterm"}, columns=30)
    t.expect("> ")
    t.type(b"x\r")
    check("thinking is dimmed", t.expect("\x1b[2m<think>\r\nLet me see\r\n</think>\x1b[0m\r\n"), t.seen)
    check("... lines are broken between words", t.expect("The quick brown fox jumps over\r\nthe lazy dog again and again\r\n```\r\n"), t.seen)
    check("... code is not", t.expect(words + "\r\n```\r\n"), t.seen)
    t.type(b"\x04")
    t.wait()
    daemon.handle = show
    daemon.how = 10
    t = Terminal(*at, "chat")
    t.expect("> ")
    t.type(b"x\r")
    check("an answer that fills the context says so", t.expect("the context is full: /clear begins"), t.seen)
    t.type(b"\x04")
    t.wait()
    daemon.how = 11


def lost_tests(folder):
    endpoint = "ipc://%s/lost.sock" % folder
    daemon = FakeDaemon(endpoint, MODEL)
    daemon.start()
    begin = time.monotonic()
    check_exit("a daemon that goes away midway", 5, "--connect", endpoint, "generate", "--tokens", "16,300", "-n", "9",
               text="went away")
    check("... is noticed at once", time.monotonic() - begin < 5)


def private_tests(folder):
    own = os.path.join(folder, "own")
    runtime = os.path.join(folder, "runtime")
    os.mkdir(own)
    os.mkdir(runtime, 0o700)
    program = os.path.join(own, "helm-cli")
    shutil.copy(CLI, program)
    more = {"program": program, "env": {"XDG_RUNTIME_DIR": runtime, "FAKE_HELMD_ARGS": folder + "/args"}}
    check_exit("--model without a helmd beside helm-cli", 4, "--model", MODEL, "status", text="no helmd to start", **more)
    shutil.copy("tests/process/fake_helmd.py", os.path.join(own, "helmd"))
    os.chmod(os.path.join(own, "helmd"), 0o755)
    out = check_exit("--model starts a private daemon", 0, "--model", MODEL, "--device", "cpu", "--vram", "1GiB",
                     "--host-memory", "2GiB", "--ctx", "512", "--threads", "2", "--plan", "p.json", "--kv-dtype", "f32", "--profile", "q.json", "--strategy", "thesis",
                     "generate", "--tokens", "10", "-n", "2", "--json", **more)
    check("... that generates", json.loads(out)["tokens"] == [100, 101], out)
    args = open(folder + "/args").read().split("\n")
    value = dict(zip(args, args[1:]))
    check("... with the options handed over", value["--model"] == MODEL and value["--device"] == "cpu" and
          value["--vram"] == str(1 << 30) and value["--host-memory"] == str(2 << 30) and value["--ctx"] == "512" and
          value["--threads"] == "2" and value["--plan"] == "p.json" and value["--kv-dtype"] == "f32" and
          value["--profile"] == "q.json" and value["--strategy"] == "thesis" and
          "--die-with-parent" in args and value["--listen"].startswith("ipc://" + runtime), args)
    check("... and leaves nothing behind", os.listdir(runtime) == [], os.listdir(runtime))
    for how, status, text in (("refuse", 4, "does not fit: needs 10 GiB"), ("die", 5, "about to die")):
        more["env"]["FAKE_HELMD"] = how
        check_exit("a private daemon told to %s" % how, status, "--model", MODEL, "status", text=text, **more)
        check("... leaves nothing behind", os.listdir(runtime) == [], os.listdir(runtime))
    more["env"]["FAKE_HELMD"] = "measure"
    err = cli("--model", MODEL, "status", **more)[2]
    check("that the machine is measured is said once", err == "helm-cli: measuring this machine\n", err)
    err = cli("--model", MODEL, "--log-level", "warn", "status", **more)[2]
    check("... not beside the daemon's own log", "measuring" not in err, err)
    t = Terminal("--model", MODEL, "status", program=program, env=more["env"])
    check("... on a terminal with how far it is", t.expect(" s  measuring this machine: 1.5 s  CPU: 2 threads read 12 GB/s") and
          t.expect("helmd 0.0-fake") and t.wait() == 0, t.seen)
    for how, args in (("hang", ["status"]), ("", ["generate", "--tokens", "12,300", "-n", "4000"])):
        env = {**os.environ, **more["env"], "FAKE_HELMD": how}
        p = subprocess.Popen([program, "--model", MODEL, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        if how:
            time.sleep(0.7)
        else:
            p.stdout.read(1)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=15)
        name = "while loading" if how else "while generating"
        check("Ctrl-C %s ends with 130" % name, p.returncode == 130, (p.returncode, err))
        check("... and leaves nothing behind", os.listdir(runtime) == [], os.listdir(runtime))


def python_client_tests(endpoint, daemon):
    with helm_client.Client(endpoint) as helm:
        check("Python client: status, model, plan, list", helm.status().state == "ready" and
              helm.model_info().vocab == 2048 and "stages" in helm.plan() and helm.list() == [])
        tokens = [t.token for t in helm.stream([10, 1], max_tokens=4, sampling={"temperature": 0.5})]
        check("Python client: stream", tokens == [100, 101, 102, 103] and helm_client.FINISH[
            helm.last_done.finish_reason] == "length", tokens)
        try:
            list(helm.stream([13], max_tokens=4))
            check("Python client: errors are raised", False)
        except helm_client.HelmError as e:
            check("Python client: errors are raised", e.code == 3 and "as told" in str(e), e)
        for token in helm.stream([12, 5]):
            break
        time.sleep(0.2)
        check("Python client: leaving the loop cancels", helm.list() == [])


def helmd_tests(folder):
    """The real daemon behind --model: what the stand-in cannot show."""
    runtime = os.path.join(folder, "real")
    os.mkdir(runtime, 0o700)
    env = {"XDG_RUNTIME_DIR": runtime}
    golden = json.load(open(os.path.join(MODEL, "golden.json")))["cases"][0]
    prompt = ",".join(map(str, golden["prompt"]))
    at = ("--model", MODEL, "--device", "cpu", "--threads", "1", "--profile", PROFILE)
    out = check_exit("helmd: generate", 0, *at, "generate", "--tokens", prompt, "-n", "4", "--logprobs", "3", "--json",
                     env=env)
    result = json.loads(out)
    steps = golden["steps"][:4]
    sure = all(step["gap"] > 0.4 for step in steps)
    check("... agrees with the reference", len(result["tokens"]) == 4 and
          (not sure or result["tokens"] == [step["token"] for step in steps]) and
          abs(result["logprobs"][0][0]["logprob"] - steps[0]["top"][0][1]) < 0.4, result)
    check("... leaves nothing behind", os.listdir(runtime) == [], os.listdir(runtime))
    check_exit("helmd: run", 0, *at, "run", "Once upon", "-n", "8", env=env)
    check_exit("helmd: status", 0, *at, "status", text="ready", env=env)
    plan = json.loads(check_exit("helmd: plan --json", 0, *at, "plan", "--json", env=env))
    check("... covers every layer", plan["stages"]["decode"][-1]["layers"][1] == plan["layers"] - 1, plan)
    check("... with a forecast of everything, and nothing measured yet", plan["forecast"]["decode_tok_s"]["value"] > 0 and
          plan["forecast"]["ttft_ms"]["value"] > 0 and plan["measured"]["decode"] == [], plan)
    saved = os.path.join(folder, "saved.json")
    with open(saved, "w") as f:
        json.dump(plan, f)
    again = json.loads(check_exit("helmd: what it prints is a plan again", 0, *at, "--plan", saved, "plan", "--json",
                                  env=env))
    check("... the same", again["stages"] == plan["stages"], again)
    check_exit("helmd: plan as a table", 0, *at, "plan", text="HOST MEMORY", env=env)
    check_exit("helmd: a device that is none is a usage error", 2, "--model", MODEL, "--device", "foo", "run", "x",
               text="foo", env=env)
    check_exit("helmd: --strategy is handed on", 4, *at, "--strategy", "all-gpu", "plan", env=env)
    check_exit("helmd: a strategy that is none", 2, *at, "--strategy", "fast", "plan", text="--strategy", env=env)
    check_exit("helmd: a profile that is none", 4, *at[:-1], saved, "plan", text="--profile", env=env)
    check_exit("helmd: too little memory is refused with numbers", 4, *at, "--host-memory", "1MiB", "status",
               text="1.00 MiB", env=env)
    check_exit("helmd: no such folder is refused", 4, "--model", folder + "/none", "status", text="/none", env=env)
    check_exit("helmd: a prompt beyond the context is refused", 4, *at, "--ctx", "64", "generate", "--tokens", "5,6", "-n",
               "100", text="64", env=env)
    check_exit("helmd: a token beyond the vocabulary is refused", 4, *at, "generate", "--tokens", "99999", "-n", "1",
               text="99999", env=env)
    check("... all of them leave nothing behind", os.listdir(runtime) == [], os.listdir(runtime))
    for name, number in (("Ctrl-C", signal.SIGINT), ("kill -9", signal.SIGKILL)):
        p = subprocess.Popen([CLI, *at, "generate", "--tokens", prompt, "-n", "4000", "--ignore-eos"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **env})
        p.stdout.read(1)
        children = [int(c) for c in open("/proc/%d/task/%d/children" % (p.pid, p.pid)).read().split()]
        p.send_signal(number)
        p.communicate(timeout=20)
        check("helmd: %s ends helm-cli" % name, p.returncode == (130 if number == signal.SIGINT else -9), p.returncode)
        until = time.monotonic() + 10
        while any(os.path.exists("/proc/%d" % c) for c in children) and time.monotonic() < until:
            time.sleep(0.02)
        check("... and the daemon with it", children and not any(os.path.exists("/proc/%d" % c) for c in children))
        sockets = [f for _, _, files in os.walk(runtime) for f in files if f.endswith(".sock")]
        check("... no socket is left", sockets == [], sockets)
    left = os.listdir(runtime)
    check("kill -9 leaves only its directory", len(left) == 1, left)
    os.utime(os.path.join(runtime, left[0]), (1, 1))
    check_exit("the next helm-cli", 0, *at, "status", env=env)
    check("... removes it", os.listdir(runtime) == [], os.listdir(runtime))


def curve_tests(folder):
    """The real daemon over TCP: only with keys that fit."""
    for name, key in zip(("daemon", "client", "stranger"), [zmq.curve_keypair() for _ in range(3)]):
        for part, text in zip(("public", "secret"), key):
            path = os.path.join(folder, "%s.%s" % (name, part))
            with open(path, "wb") as f:
                f.write(text + b"\n")
            os.chmod(path, 0o600)
    free = socket.socket()
    free.bind(("127.0.0.1", 0))
    endpoint = "tcp://127.0.0.1:%d" % free.getsockname()[1]
    free.close()
    ready, told = os.pipe()
    daemon = subprocess.Popen(
        [os.path.join(os.environ["HELM_BIN"], "helmd"), "--model", MODEL, "--listen", endpoint, "--rundir", folder,
         "--curve-secret-key-file", folder + "/daemon.secret", "--curve-clients-file", folder + "/client.public",
         "--ready-fd", str(told), "--log-level", "error", "--threads", "1", "--profile", PROFILE], pass_fds=[told])
    os.close(told)
    check("helmd listens on TCP", os.read(ready, 200).startswith(b"ready"))
    os.close(ready)

    def at(public, secret):
        return ("--connect", endpoint, "--curve-daemon-key-file", "%s/%s.public" % (folder, public),
                "--curve-secret-key-file", "%s/%s.secret" % (folder, secret))
    check_exit("TCP with the right keys", 0, *at("daemon", "client"), "generate", "--tokens", "5", "-n", "2")
    check_exit("TCP with a key that is not allowed", 3, *at("daemon", "stranger"), "status", text="keys")
    check_exit("TCP with another daemon's key", 3, *at("stranger", "client"), "status", text="keys")
    daemon.terminate()
    daemon.wait(20)


def main():
    folder = tempfile.mkdtemp(prefix="helm-test-cli-")
    try:
        usage_tests()
        no_daemon_tests(folder)
        tokenizer_tests(folder)
        endpoint = "ipc://%s/fake.sock" % folder
        daemon = FakeDaemon(endpoint, MODEL)
        daemon.start()
        at = ("--connect", endpoint)
        query_tests(at, daemon)
        generate_tests(at, daemon)
        stop_tests(at, daemon)
        signal_tests(at, daemon)
        python_client_tests(endpoint, daemon)
        daemon.stop()
        run_tests(folder, MODEL + "/tokenizer.json")
        chat_tests(folder)
        lost_tests(folder)
        private_tests(folder)
        helmd_tests(folder)
        curve_tests(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sum_up()


if __name__ == "__main__":
    main()
