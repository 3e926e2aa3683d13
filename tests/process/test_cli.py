#!/usr/bin/python3
"""helm-cli against a stand-in daemon: every command but the chat, every exit status, signals.

HELM_BIN: folder of the programs; HELM_PYPROTO: where protoc's Python output lies. Run from the repository's root.
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "client/python", "tests/process"]
import processor  # noqa: E402
from cli_harness import CLI, MODEL, PROFILE, check, check_exit, cli, run_in_folder, skip  # noqa: E402
from fake_helmd import FakeDaemon  # noqa: E402
import helm_client  # noqa: E402

BIN = os.path.dirname(CLI)


def usage_tests():
    check_exit("no command is a usage error", 2)
    check_exit("unknown command", 2, "fly", text="fly")
    check_exit("a misspelt command", 2, "stauts", text="no command 'stauts': is 'status' meant?")
    check_exit("a command of two letters", 2, "rn", text="no command 'rn': is 'run' meant?")
    for word, instead in (("serve", "`helmd --model PATH`"), ("list", "`hf cache ls`"), ("ls", "`hf cache ls`"),
                          ("rm", "`hf cache rm`"), ("show", "`helm-inspect PATH`"), ("stop", "`helm-cli cancel ID`"),
                          ("create", "`helm-quantize "), ("server", "`helm-gateway ")):
        check_exit("%s of other programs" % word, 2, word, text="no command '%s': " % word)
        check("... points to HELM's", instead in cli(word)[2], cli(word)[2])
        check_exit("... also to help", 2, "help", word, text=instead)
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
    said = cli("--connect", "ipc://%s/none.sock" % folder, "status")[2]
    check("... says how to start one there, or --model", "start one with `helmd --model PATH --listen ipc://%s/none.sock`, or give "
          "--model PATH" % folder in said, said)
    check_exit("a port above 65535", 2, "--connect", "tcp://127.0.0.1:65536", "status", text="65536 is not between 1 and 65535")
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
    begin = processor.clock()
    check_exit("a listener that never answers", 3, "--connect", "ipc://%s/mute.sock" % folder, "status",
               text="no answer")
    check("... is given up in time", processor.clock() - begin < 8)
    mute.close()
    check_exit("default endpoint from $XDG_RUNTIME_DIR", 3, "status", text=folder + "/helm/helmd.sock",
               env={"HELM_ENDPOINT": "", "XDG_RUNTIME_DIR": folder}) if not os.path.exists("/run/helm/helmd.sock") \
        else skip("default endpoint", "a system daemon is there")
    check_exit("default endpoint from $HELM_ENDPOINT", 3, "status", text="ipc:///nowhere/at/all",
               env={"HELM_ENDPOINT": "ipc:///nowhere/at/all"})


def interrupt_tests(folder):
    """An interrupted program leaves nothing, and says by which signal it ended."""
    work = os.path.join(folder, "work")
    os.mkdir(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        p = subprocess.Popen([BIN + "/helm-mkmodel", "--arch", "qwen3", "--size", "1.7b", "--threads", "1", "--out", work + "/made"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        begun = processor.until(lambda: os.path.exists(work + "/made/model.safetensors"))
        p.send_signal(number)
        err = processor.finish(p, 60)[1]
        check("helm-mkmodel, interrupted", begun and (p.returncode, err) == (-number, b""), (begun, p.returncode, err))
        check("... leaves nothing", os.listdir(work) == [], os.listdir(work))
        # its report waits for a reader, so that it cannot come to its end before the signal
        read, write = os.pipe()
        os.set_blocking(write, False)
        try:
            while os.write(write, b"x" * 512):
                pass
        except BlockingIOError:
            os.set_blocking(write, True)
        p = subprocess.Popen([BIN + "/helm-quantize", "--model", MODEL, "--to", "q8_0", "--out", work + "/small.gguf"],
                             stdout=write, stderr=subprocess.PIPE)
        begun = processor.until(lambda: os.listdir(work))
        # one that comes between the last look for signals and the write is seen when the next ends the write
        processor.until(lambda: p.poll() is not None or p.send_signal(number) or time.sleep(0.2))
        err = processor.finish(p, 60)[1]
        os.close(read)
        os.close(write)
        check("helm-quantize, interrupted", begun and (p.returncode, err) == (-number, b""), (begun, p.returncode, err))
        check("... leaves nothing", os.listdir(work) == [], os.listdir(work))
        env = dict(os.environ, TMPDIR=work, HOME=work, XDG_CACHE_HOME=folder + "/cache", XDG_STATE_HOME=folder + "/cache")
        p = subprocess.Popen([BIN + "/helm-profile", "--device", "cpu", "--quick", "--threads", "1", "--caches", "4MiB", "--out",
                              work + "/profile.json"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env)
        begun = any(b"CPU: loading" in line for line in iter(p.stderr.readline, b""))
        p.send_signal(number)
        err = processor.finish(p, 60)[1].decode()
        check("helm-profile, interrupted", begun and p.returncode == -number, (begun, p.returncode, err))
        check("... leaves nothing", os.listdir(work) == [], os.listdir(work))


def early_tests(folder):
    """Refusals before anything takes long: the model is not even there."""
    absent = folder + "/absent"
    many = str(len(os.sched_getaffinity(0)) + 1)
    for program, args in (("helmd", ("--model", absent)), ("helm-profile", ("--device", "cpu")),
                          ("helm-cli", ("--model", MODEL, "status"))):
        check_exit("%s with more threads than CPUs" % program, 2, *args[:2], "--threads", many, *args[2:],
                   text="--threads %s: this process may use " % many, program=os.path.join(BIN, program))
    gateway = {"program": os.path.join(BIN, "helm-gateway")}
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen(1)
    port = taken.getsockname()[1]
    for listen, status, text in (("8080", 2, "write 127.0.0.1:8080 for clients on this machine, 0.0.0.0:8080 for all"),
                                 (":8081", 2, "write 127.0.0.1:8081"), ("localhost", 2, "write 127.0.0.1:8080"),
                                 ("http://127.0.0.1:80", 2, "not HOST:PORT"), ("127.0.0.1:65536", 2, "ports end at 65535"),
                                 ("65536", 2, "such as 127.0.0.1:8080"),
                                 ("127.0.0.1:%d" % port, 5, "another program has that port: write another, such as 127.0.0.1:%d"
                                  % (port + 1))):
        check_exit("helm-gateway --listen %s" % listen.replace(str(port), "PORT"), status, "--model", absent, "--listen", listen,
                   text=text, **gateway)
    taken.close()
    check_exit("helmd --listen with a port above 65535", 2, "--model", absent, "--listen", "tcp://127.0.0.1:65536",
               text="65536 is not between 0 and 65535", program=os.path.join(BIN, "helmd"))


def missing_tests(folder):
    """A file cut short, and names that are nearly right."""
    model = os.path.join(folder, "cut")
    shutil.copytree(MODEL, model)
    path = os.path.join(model, "model.safetensors")
    size = os.path.getsize(path)
    for there, expected in ((size - 1, "%d expected" % size), (100, "at least "), (0, "at least ")):
        os.truncate(path, there)
        check_exit("weights cut to %d bytes" % there, 1, model, program=BIN + "/helm-inspect",
                   text="incomplete download: %d bytes are there, %s" % (there, expected))
    cache = os.path.join(folder, "hub")
    commit = "0" * 40
    snapshot = os.path.join(cache, "models--org--Small-Model", "snapshots", commit)
    os.makedirs(snapshot)
    open(snapshot + "/small-Q4_K_M.gguf", "w").close()
    env = {"HF_HUB_CACHE": cache}
    for name, nearest in (("org/Small-Model/small-Q8_0.gguf", "small-Q4_K_M.gguf"), ("org/Smal-Model", "org/Small-Model"),
                          (folder + "/cat", "cut"), (snapshot + "/tiny.gguf", "small-Q4_K_M.gguf")):
        check_exit("%s is not there" % name.replace(folder, ""), 4, "--model", name, "tokenize", "x",
                   text="the nearest name there is " + nearest, env=env)


def completed(*words):
    script = 'source client/completion/helm.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _helm; printf "%s\n" "${COMPREPLY[@]}"'
    return processor.run(["bash", "-c", script, "-", *words], capture_output=True, text=True, timeout=60).stdout.split()


def completion_tests():
    for words, wanted, files in (((CLI, ""), "chat", False), ((CLI, "st"), "status", False), ((CLI, "help", ""), "pull", False),
                                 ((CLI, "status", ""), None, False), ((CLI, "run", ""), None, False), ((CLI, "pull", ""), None, False),
                                 ((CLI, "--strategy", ""), "all-gpu", False), ((CLI, "--ctx", ""), None, False),
                                 ((CLI, "run", "--js"), "--json-schema", False), ((CLI, "--model", ""), None, True),
                                 ((CLI, "session", ""), None, True), ((CLI, "run", "--json-schema", ""), None, True),
                                 ((BIN + "/helm-inspect", ""), None, True), ((BIN + "/helm-quantize", "--model", ""), None, True)):
        found = completed(*words)
        check("completion of %s" % " ".join(os.path.basename(w) for w in words), (wanted is None or wanted in found) and
              ("README.md" in found) == files, found)


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
    check("... shows snapshots", "snapshots  6 of 32, 3.00 MiB each; 9 sequences began with one, 2 dropped" in out, out)
    check("... in JSON too", [status[k] for k in ("snapshots", "snapshots_total", "snapshot_bytes", "snapshot_hits_total",
                              "snapshots_dropped_total")] == [6, 32, 3 << 20, 9, 2], status)
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
    check("... what memory gave", "host memory reads 80 GB/s? now" in out, out)
    check("... the drift, without escape sequences", "drift: decode 100 % slower?" in out and "\x1b" not in out, out)
    plan = json.loads(check_exit("plan --json", 0, *at, "plan", "--json"))
    check("... has it all in numbers", plan["forecast"]["decode_tok_s"] == {"value": 20, "low": 16, "high": 25} and
          plan["measured"]["decode"] == [{"batch": 1, "context": 130, "steps": 12, "tok_s": 10, "planned_tok_s": 20,
                                          "difference_percent": -50}] and
          plan["measured"]["ttft"][0]["difference_percent"] == 25 and plan["measured"]["drifting"] is True and
          plan["measured"]["resources"][0]["planned_bytes_per_second"] == 80e9 and plan["now"].startswith("host memory"), plan)
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
        out, err = processor.finish(p, 10)
        check("%s ends with %d" % (name, status), p.returncode == status, (p.returncode, err))
        check("... and cancels at the daemon", len(daemon.cancelled) == begin + 1)
    p = subprocess.Popen([CLI, *at, "generate", "--tokens", "12,300", "-n", "4000"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    p.stdout.read(1)
    ps = json.loads(cli(*at, "ps", "--json")[1])
    check("ps shows a running request", len(ps) == 1 and ps[0]["label"] == "helm-cli generate", ps)
    check_exit("ps as a table", 0, *at, "ps", text="helm-cli generate")
    check_exit("cancel ID", 0, *at, "cancel", str(ps[0]["id"]), text="cancelled")
    out, err = processor.finish(p, 10)
    check("... ends the other helm-cli with 5", p.returncode == 5 and b"cancelled" in err, (p.returncode, err))
    p = subprocess.Popen([CLI, *at, "generate", "--tokens", "12,300", "-n", "4000"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    p.stdout.read(1)
    p.stdout.close()
    check("a closed pipe ends it with 5", processor.ended(p, 10) == 5, p.returncode)
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
        f.write('{"do_sample": true, "top_p": 1.5}')
    check_exit("top_p 1.5 in generation_config.json is off", 0, *at, "run", "Hi you", text=" you\n")
    check("... and said to be", daemon.sampling.top_p == 1 and "'top_p' is 1.5" in cli(*at, "run", "Hi you")[2], daemon.sampling)
    with open(os.path.join(model, "generation_config.json"), "w") as f:
        f.write('{"do_sample": true, "top_p": 0}')
    check_exit("top_p 0 in generation_config.json is taken", 0, *at, "run", "Hi you", text=" you\n")
    check("... as the likeliest token", 0 < daemon.sampling.top_p < 1e-30 and "top_p" not in cli(*at, "run", "Hi you")[2], daemon.sampling)
    check_exit("... unless --top-p says otherwise", 0, *at, "run", "Hi you", "--top-p", "0.5", text=" you\n")
    with open(os.path.join(model, "generation_config.json"), "w") as f:
        f.write('{"top_p": 0}')
    check_exit("... or nothing is drawn", 0, *at, "run", "Hi you", text=" you\n")
    for odd in ('"top_k": -1', '"temperature": -0.5', '"min_p": 2', '"repetition_penalty": 0', '"top_k": 1.5'):
        with open(os.path.join(model, "generation_config.json"), "w") as f:
            f.write('{"do_sample": true, %s}' % odd)
        check_exit("%s is off" % odd, 0, *at, "run", "Hi you", text=" you\n")
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
    check("... and ends with its input", processor.ended(p, 5) == 0)
    p.stdout.close()
    check_exit("a line that is no string", 4, *at, "tokenize", "--jsonl", stdin=b"5\n", text="line 1")
    check_exit("a later line that is none", 5, *at, "tokenize", "--jsonl", stdin=b'"a"\n[\n', text="line 2")


def lost_tests(folder):
    endpoint = "ipc://%s/lost.sock" % folder
    daemon = FakeDaemon(endpoint, MODEL)
    daemon.start()
    begin = processor.clock()
    check_exit("a daemon that goes away midway", 5, "--connect", endpoint, "generate", "--tokens", "16,300", "-n", "9",
               text="went away")
    check("... is noticed at once", processor.clock() - begin < 5)


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
        check("Python client: leaving the loop cancels", processor.until(lambda: helm.list() == []), helm.list())


def daemon_tests(folder):
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
    lost_tests(folder)


if __name__ == "__main__":
    usage_tests()
    completion_tests()
    run_in_folder(no_daemon_tests, early_tests, missing_tests, interrupt_tests, tokenizer_tests, daemon_tests)
