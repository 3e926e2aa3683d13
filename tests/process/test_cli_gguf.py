#!/usr/bin/python3
"""helm-cli with GGUF files: tokenizer, chat template and sampling defaults come from the file, with a private daemon, with a
running one and without any. The tokenizer agrees with the tokenizer.json that the file was made from. Needs HELM_BIN."""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time

import processor

BIN = os.path.abspath(os.environ["HELM_BIN"])
CLI = os.path.join(BIN, "helm-cli")
FILE = os.path.abspath("tests/data/golden-gguf/qwen3-Q2_K/model.gguf")
SAME = os.path.abspath("tests/data/golden/qwen3")  # its tokenizer.json has the same tokens and merges
DAEMON = ["--device", "cpu", "--threads", "1", "--profile", os.path.abspath("tests/data/profiles/described.json")]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
counts = {True: 0, False: 0}


def check(name, ok, detail=""):
    counts[bool(ok)] += 1
    print("%s %s%s" % ("ok  " if ok else "FAIL", name, "" if ok else ": %s" % (detail,)), flush=True)


def cli(*args, stdin=None):
    run = processor.run([CLI, *args], input=stdin, capture_output=True, timeout=60)
    return run.returncode, run.stdout.decode(), run.stderr.decode()


def check_cli(name, want, *args, text=None, **more):
    code, out, err = cli(*args, **more)
    check(name, code == want and (text is None or text in out + err), (code, out[-300:], err[-300:]))
    return out


def skip_value(data, at, kind):
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    if kind == 8:
        return at + 8 + struct.unpack_from("<Q", data, at)[0]
    if kind != 9:
        return at + sizes[kind]
    kind, count = struct.unpack_from("<iQ", data, at)
    at += 12
    if kind != 8:
        return at + count * sizes[kind]
    for _ in range(count):
        at = skip_value(data, at, 8)
    return at


def with_keys(path, keys, drop=()):
    """The file with `keys` (texts, whole numbers and floats) added and others left out."""
    data = open(path, "rb").read()
    version, tensors, count = struct.unpack_from("<IQQ", data, 4)
    at, kept = 24, []
    for _ in range(count):
        begin = at
        at = skip_value(data, at, 8)
        name = data[begin + 8:at].decode()
        at = skip_value(data, at + 4, struct.unpack_from("<i", data, at)[0])
        if name not in drop:
            kept.append(data[begin:at])
    infos = at
    for _ in range(tensors):
        at = skip_value(data, at, 8)
        at += 4 + 8 * struct.unpack_from("<I", data, at)[0] + 12
    for name, value in keys.items():
        key = struct.pack("<Q", len(name)) + name.encode()
        if isinstance(value, str):
            kept.append(key + struct.pack("<iQ", 8, len(value.encode())) + value.encode())
        elif isinstance(value, int):
            kept.append(key + struct.pack("<iI", 4, value))
        else:
            kept.append(key + struct.pack("<if", 6, value))
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, len(kept)) + b"".join(kept) + data[infos:at]
    return head + bytes(-len(head) % 32) + data[at + -at % 32:]


def split(path):
    """The file in two parts, half of the tensors in each."""
    data = open(path, "rb").read()
    version, tensors, count = struct.unpack_from("<IQQ", data, 4)
    at = 24
    for _ in range(count):
        at = skip_value(data, at, 8)
        at = skip_value(data, at + 4, struct.unpack_from("<i", data, at)[0])
    keys, infos = data[24:at], []
    for _ in range(tensors):
        begin = at
        at = skip_value(data, at, 8)
        at += 4 + 8 * struct.unpack_from("<I", data, at)[0] + 4
        infos.append((data[begin:at], struct.unpack_from("<Q", data, at)[0]))
        at += 8
    values = data[at + -at % 32:]
    ends = [offset for _, offset in infos[1:]] + [len(values)]
    for number, part in enumerate((range(tensors // 2), range(tensors // 2, tensors))):
        more = b"".join(struct.pack("<Q", len(name)) + name + struct.pack("<i" + kind, type_, value) for name, type_, kind, value in
                        ((b"split.no", 2, "H", number), (b"split.count", 2, "H", 2), (b"split.tensors.count", 5, "i", tensors)))
        head = b"GGUF" + struct.pack("<IQQ", version, len(part), 3 + (0 if number else count)) + (b"" if number else keys) + more
        first = infos[part[0]][1]
        head += b"".join(infos[i][0] + struct.pack("<Q", infos[i][1] - first) for i in part)
        yield head + bytes(-len(head) % 32) + values[first:ends[part[-1]]]


def write(folder, name, data):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as f:
        f.write(data)
    return os.path.join(folder, name)


def tokenizer_tests(folder):
    pieces = ["a", "the ", " ", "  ", "\n", "\t", "'s", "'LL", "12", "3456", "\u00e9", "\u4e2d\u6587", "\U0001f600", "!", "...",
              "<|bos|>", "<|eos|>", "Z", "_", "\u00a0", "\u2003", "nul \0"]
    pick = random.Random(5)
    texts = ["".join(pick.choices(pieces, k=pick.randint(0, 30))) for _ in range(1000)]
    lines = "".join(json.dumps(t) + "\n" for t in texts).encode()
    want = check_cli("tokenize by tokenizer.json", 0, "--model", SAME, "tokenize", "--jsonl", "--no-special", stdin=lines)
    check("... every line", want.count("\n") == len(texts), want.count("\n"))
    data = open(FILE, "rb").read()
    first = write(os.path.join(folder, "split"), "m-00001-of-00002.gguf", data)
    write(os.path.join(folder, "split"), "m-00002-of-00002.gguf", b"GGUF")
    for name, option in (("FILE.gguf", ("--model", FILE)), ("a folder with one", ("--model", os.path.dirname(FILE))),
                         ("--tokenizer FILE.gguf", ("--tokenizer", FILE)), ("the first of several", ("--model", first)),
                         ("a folder with several parts", ("--tokenizer", os.path.dirname(first)))):
        out = check_cli("tokenize by " + name, 0, *option, "tokenize", "--jsonl", "--no-special", stdin=lines)
        check("... as by tokenizer.json", out == want)
    back = check_cli("detokenize", 0, "--model", FILE, "detokenize", "--jsonl", stdin=want.encode())
    check("... gives the texts back", [json.loads(line) for line in back.split("\n")[:-1]] == texts)
    kind = with_keys(FILE, {"tokenizer.ggml.pre": "falcon"}, ["tokenizer.ggml.pre"])
    check_cli("another kind is refused", 4, "--model", write(folder, "kind.gguf", kind), "tokenize", "x",
              text="'falcon' is not supported (supported: gpt-2, ")
    bare = write(folder, "bare.gguf", with_keys(FILE, {}, ["tokenizer.ggml.model"]))
    check_cli("a file without a tokenizer is refused", 4, "--model", bare, "tokenize", "x", text="tokenizer.ggml.model")
    check_cli("... and generates from ids", 0, "--model", bare, *DAEMON, "generate", "--tokens", "300", "-n", "2")
    check_cli("no such file", 4, "--model", folder + "/baer.gguf", "tokenize", "x",
              text="baer.gguf: no such file or folder; the nearest name there is bare.gguf")
    check_cli("... in a folder that has none", 4, "--model", folder + "/none/none.gguf", "tokenize", "x", text="no such")
    whole = open(FILE, "rb").read()
    for name, size, says in (("a byte short", len(whole) - 1, "%d expected" % len(whole)), ("cut in its header", 100, "at least "),
                             ("empty", 0, "at least ")):
        cut = write(folder, "cut.gguf", whole[:size])
        run = processor.run([os.path.join(BIN, "helm-inspect"), cut], capture_output=True, text=True, timeout=60)
        check("a file %s is an incomplete download" % name, run.returncode == 1 and
              "incomplete download: %d bytes are there, %s" % (size, says) in run.stdout, run.stdout[-300:])
    os.unlink(cut)
    for program, args, says in (("helm-plan", ("--model", FILE, "--profile", DAEMON[-1]), "model    model.gguf (Qwen3"),
                                ("helm-inspect", (FILE,), "file           " + FILE + "\n")):
        out = processor.run([os.path.join(BIN, program), *args], capture_output=True, text=True, timeout=60).stdout
        check("%s calls a file by its name" % program, out.startswith(says), out[:200])


def daemon_tests(folder):
    whole = check_cli("run", 0, "--model", FILE, *DAEMON, "generate", "--prompt", "Once upon", "-n", "8")
    parts = [write(os.path.join(folder, "parts"), "m-0000%d-of-00002.gguf" % (i + 1), part) for i, part in enumerate(split(FILE))]
    check("a file in two parts", max(map(os.path.getsize, parts)) < os.path.getsize(FILE))
    out = check_cli("... runs", 0, "--model", parts[0], *DAEMON, "generate", "--prompt", "Once upon", "-n", "8")
    check("... as the whole", out == whole and len(out) > 8, (out, whole))
    os.remove(parts[1])
    check_cli("... and not without its second", 4, "--model", parts[0], *DAEMON, "run", "Once upon", "-n", "1",
              text="m-00002-of-00002.gguf")
    check_cli("chat without a template is refused", 4, "--model", FILE, *DAEMON, "run", "--chat", "Hi", "-n", "1",
              text="no chat template")
    full = write(os.path.join(folder, "full"), "m.gguf",
                 with_keys(FILE, {"tokenizer.chat_template": TEMPLATE, "general.sampling.temp": 0.7}))
    endpoint = "ipc://%s/s" % folder
    os.mkdir(os.path.join(folder, "r"), 0o700)
    daemon = subprocess.Popen([os.path.join(BIN, "helmd"), "--model", full, "--listen", endpoint, "--rundir",
                               os.path.join(folder, "r"), "--log-level", "warn"] + DAEMON, stdin=subprocess.DEVNULL)
    try:
        check("the daemon is ready", processor.until(lambda: '"ready"' in cli("--connect", endpoint, "status", "--json")[1], 60))
        at = ("--connect", endpoint)
        ids = json.loads(cli("--model", SAME, "tokenize", "--json", "--no-special", "user: Hi<|eos|>")[1])
        chat = check_cli("the daemon's file has the chat template", 0, *at, "run", "--chat", "Hi", "-n", "6", "--seed", "3",
                         "--json")
        plain = check_cli("generate from its ids", 0, *at, "generate", "--tokens", ",".join(map(str, ids)), "-n", "6", "--seed",
                          "3", "--temperature", "0.7", "--json")
        check("... and its temperature", json.loads(chat)["tokens"][:5] == json.loads(plain)["tokens"][:5], (chat, plain))
        for key, value in (("general.sampling.top_p", 1.5), ("general.sampling.top_k", -1.0), ("general.sampling.temp", -1.0)):
            odd = write(folder, "odd.gguf", with_keys(FILE, {"tokenizer.chat_template": TEMPLATE, "general.sampling.temp": 0.7, key: value},
                                                      drop=("general.sampling.temp",) if key.endswith("temp") else ()))
            check_cli("%s of %g is off, and said to be" % (key, value), 0, *at, "--tokenizer", odd, "run", "--chat", "Hi", "-n", "1", text="it is off")
        alias = write(folder, "alias.gguf", with_keys(FILE, {"tokenizer.ggml.pre": "deepseek-r1-qwen"}, drop=("tokenizer.ggml.pre",)))
        check("another name of a pre-tokenizer", cli("--tokenizer", alias, "tokenize", "it's 12 (x)") ==
              cli("--tokenizer", write(folder, "qwen2.gguf", with_keys(FILE, {"tokenizer.ggml.pre": "qwen2"}, drop=("tokenizer.ggml.pre",))),
                  "tokenize", "it's 12 (x)"))
        check_cli("--tokenizer FILE.gguf beside a daemon", 0, *at, "--tokenizer", full, "run", "--chat", "Hi", "-n", "1")
    finally:
        daemon.terminate()
        check("helmd ends with 0", processor.ended(daemon, 30) == 0, daemon.returncode)


def main():
    with tempfile.TemporaryDirectory(prefix="helm-gguf-") as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        tokenizer_tests(folder)
        daemon_tests(folder)
    print("%d passed, %d failed" % (counts[True], counts[False]))
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())
