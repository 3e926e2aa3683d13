#!/usr/bin/python3
"""Every row of docs/coming-from.md: the command in its last column is run as it stands there, with a small model in a hub's
cache for ORG/NAME. A row that this does not know how to judge is a failure.

HELM_BIN: folder of the programs. Run from the repository's root."""
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, "tests/process")
import processor  # noqa: E402
from fake_hub import Hub  # noqa: E402

BIN = os.path.abspath(os.environ["HELM_BIN"])
DEMO = "tools/models/demo"
counts = {True: 0, False: 0}


def check(name, ok, detail=""):
    counts[bool(ok)] += 1
    print("%s %s%s" % ("ok  " if ok else "FAIL", name, "" if ok else "  [%s]" % (str(detail)[-1500:],)), flush=True)


def rows():
    """(habit, command) of the first table."""
    found = []
    with open("docs/coming-from.md") as f:
        for line in f:
            cells = [c.strip() for c in line.strip().strip("|").split("|")]
            if line.startswith("What has no counterpart"):
                break
            if len(cells) == 3 and line.startswith("|") and cells[0] not in ("habit", "---"):
                found.append((cells[0], re.search(r"`([^`]*)`", cells[2]).group(1)))
    return found


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Case:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="helm-habits-")
        self.hub = Hub()
        self.hub.repos["org/demo"] = {n: open(os.path.join(DEMO, n), "rb").read() for n in os.listdir(DEMO)
                                      if n.endswith(".json") and n != "golden.json" or n.endswith(".safetensors")}
        greedy = dict(json.load(open(os.path.join(DEMO, "generation_config.json"))), do_sample=False)  # four drawn tokens may be no text
        self.hub.repos["org/demo"]["generation_config.json"] = json.dumps(greedy).encode()
        with open("tests/data/golden-gguf/llama-Q4_K_M/model.gguf", "rb") as f:
            self.hub.repos["org/demo"]["demo-Q4_K_M.gguf"] = f.read()
        self.ports = {}
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "XDG_", "HELM_"))}
        self.env.update(HOME=self.folder, HF_ENDPOINT=self.hub.url, PATH=BIN + ":" + os.environ["PATH"],
                        XDG_RUNTIME_DIR=self.folder)
        self.endpoint = "ipc://%s/run/helmd.sock" % self.folder
        self.env["HELM_ENDPOINT"] = self.endpoint
        self.running = []
        os.mkdir(self.folder + "/run")
        os.symlink(os.path.abspath("profiles"), self.folder + "/profiles")
        with open(self.folder + "/keys", "w") as f:
            f.write("a-long-secret\n")
        os.chmod(self.folder + "/keys", 0o600)
        # a measured machine is not what this is about
        self.profile = os.path.abspath("tests/data/profiles/described.json")
        with open(self.folder + "/q4.ini", "w") as f:
            f.write("[helmd]\nweights = q4_k_m\n")
        with open(self.folder + "/schema.json", "w") as f:
            f.write('{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}')
        with open(self.folder + "/list.gbnf", "w") as f:
            f.write('root ::= "<" [a-c]{2,5} ">"\n')

    def words(self, command):
        """The command's words, with this machine's names for what the page has."""
        text = command.replace("ORG/NAME", "org/demo").replace("ipc:///run/helm/helmd.sock", self.endpoint)
        for port in re.findall(r"127\.0\.0\.1:(\d+)", text):
            text = text.replace("127.0.0.1:" + port, "127.0.0.1:%d" % self.ports.setdefault(port, free_port()))
        words = shlex.split(text)
        if "--model" in words and "--profile" not in words and words[0] in ("helm-cli", "helmd", "helm-gateway", "helm-plan") and \
                "tokenize" not in words:
            words[1:1] = ["--profile", self.profile] if words[0] != "helm-cli" else []
            if words[0] == "helm-cli":
                words[words.index("--model"):words.index("--model")] = ["--profile", self.profile]
            if words[0] in ("helm-cli", "helmd", "helm-gateway") and "--device" not in words:
                words[words.index("--model"):words.index("--model")] = ["--device", "cpu"]
        if words[0] == "helmd":
            words += ["--listen", self.endpoint]
        return words

    def run(self, command, text=None, more=(), want=0):
        words = self.words(command)
        env = dict(self.env)
        while "=" in words[0]:
            name, value = words.pop(0).split("=", 1)
            env[name] = value
        done = processor.run(words + list(more), input=text, capture_output=True, text=True, timeout=120, env=env,
                              cwd=self.folder)
        return done.returncode == want, done.stdout, done.stderr

    def serve(self, command, ready):
        with open(self.folder + "/serve.log", "a") as log:
            self.running.append(subprocess.Popen(self.words(command), env=self.env, cwd=self.folder, stdout=log, stderr=log))
        return processor.until(lambda: ready() or self.running[-1].poll() is not None, 90) is True and self.running[-1].poll() is None

    def get(self, port, path, **headers):
        try:
            request = urllib.request.Request("http://127.0.0.1:%d%s" % (self.ports[port], path), headers=headers)
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, ""
        except OSError:
            return 0, ""

    def ready(self):
        return '"state":"ready"' in self.run("helm-cli status --json")[1]

    def stop(self, which=-1):
        process = self.running.pop(which)
        process.send_signal(signal.SIGTERM)
        return processor.ended(process, 30)

    def close(self):
        while self.running:
            self.stop()
        self.hub.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def said(*words):
    """Judges a command by its end and by what it prints."""
    def judge(c, command):
        ok, out, err = c.run(command)
        return ok and all(w in out + err for w in words), (out, err)
    return judge


def text(c, command):
    ok, out, err = c.run(command)
    return ok and len(out.strip()) > 0, (out, err)


def fits(expression):
    def judge(c, command):
        ok, out, err = c.run(command)
        return ok and re.fullmatch(expression, out.strip()), (out, err)
    return judge


def chat(c, command):
    ok, out, err = c.run(command, text="Hello\n/bye\n", more=["-n", "8"])
    return ok and len(out.strip()) > 0, (out, err)


def serve_daemon(c, command):
    return c.serve(command, c.ready), open(c.folder + "/serve.log").read()


def serve_parallel(c, command):
    c.stop(0)
    return serve_daemon(c, command)


def gateway(port, path, wanted, **headers):
    def judge(c, command):
        ok = c.serve(command, lambda: c.get(port, path, **headers)[0] == 200)
        answer = c.get(port, path, **headers)
        return ok and wanted in answer[1], (answer, open(c.folder + "/serve.log").read())
    return judge


def keys(c, command):
    ok, detail = gateway("8082", "/v1/models", "demo", Authorization="Bearer a-long-secret")(c, command)
    return ok and c.get("8082", "/v1/models")[0] == 401, detail


def quantise_while_loading(c, command):
    ok, out, err = c.run(command.replace("helm-cli", "helm-cli --log-level info --config q4.ini", 1))
    return ok and out.strip() and "q4_k_m" in err.lower(), (out, err)


def top(c, command):
    ok, out, err = c.run(command, more=["--once", "--interval", "0.2"])
    return ok and "tokens/s" in out, (out, err)


def cancel(c, command):
    long = subprocess.Popen([BIN + "/helm-cli", "run", "Once", "--ignore-eos"], env=c.env, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True)
    found = processor.until(lambda: re.search(r'"id":(\d+)', c.run("helm-cli ps --json")[1]))
    ok, out, err = c.run(command.rsplit(" ", 1)[0] + " " + (found.group(1) if found else "1"))
    processor.finish(long, 30)
    return ok and "cancelled" in out, (out, err)


# the longest-lived daemon first: the rows after it ask it
JUDGES = {
    "get a model": said("models--org--demo"), "get one quantisation": said("/demo-Q4_K_M.gguf"), "chat in the terminal": chat, "one answer": text, "continue a text": text,
    "sampling": text, "JSON by a schema": fits(r'\{\s*"n":\s*-?\d+\s*\}'), "a grammar": fits("<[a-c]{2,5}>"), "serve a model": serve_daemon, "HTTP beside it": gateway("8080", "/health", ""),
    "HTTP in one command": gateway("8081", "/v1/models", "demo"), "OpenAI's client": said('"org/demo"'),
    "Ollama's client": gateway("11434", "/api/tags", "demo"), "where the server is": said("ready"), "API keys": keys,
    "metrics": said("helm_up 1"), "embeddings": said('"embedding":['), "what runs": said("PREFILLED"), "is it healthy": said("ready"), "watch it": top,
    "stop an answer": cancel, "what is in a model": said("Qwen3", "loads          yes"), "quantise": said("small.gguf"),
    "quantise while loading": quantise_while_loading, "use a file": text, "token ids": text, "context length": text,
    "KV cache in 8 bits": text, "threads": text, "layers on the GPU": said("decode"), "will it fit": said("token/s", "RTX 3090"),
    "how fast is it": said("decode"), "several at once": serve_parallel,
}


def main():
    c = Case()
    try:
        table = rows()
        for habit, command in table:
            judge = JUDGES.get(habit)
            ok, detail = judge(c, command) if judge else (False, "no way to judge this row")
            check("%s: %s" % (habit, command), ok, detail)
        check("every judge has its row", {h for h, _ in table} == set(JUDGES), set(JUDGES) ^ {h for h, _ in table})
    finally:
        c.close()
    print("%d passed, %d failed" % (counts[True], counts[False]))
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())
