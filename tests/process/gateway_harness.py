"""Helpers of the tests of helm-gateway: the program on a port of its own, HTTP with nothing but sockets and http.client, and a
stand-in daemon whose answers are texts."""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process"]
import processor  # noqa: E402
from fake_helmd import FakeDaemon  # noqa: E402

BIN = os.path.abspath(os.environ["HELM_BIN"])
SLOW = 4 if "asan" in BIN or "tsan" in BIN or "ubsan" in BIN else 1
TOKENIZER = os.path.abspath("tests/data/golden/qwen3")
TEMPLATES = os.path.abspath("tests/data/chat/templates")
counts = {True: 0, False: 0}


def check(name, ok, detail=""):
    counts[bool(ok)] += 1
    print("%s %s%s" % ("ok  " if ok else "FAIL", name, "" if ok else "  [%s]" % (str(detail)[:1500],)), flush=True)


def sum_up(skipped=0):
    for command, translator in Translator.running.items():
        status = translator.end()
        if status:
            check("helm-cli %s ends with 0" % " ".join(command), False, status)
    print("%d passed, %d failed, %d skipped" % (counts[True], counts[False], skipped))
    sys.exit(1 if counts[False] else 0)


def until(condition, seconds=10):
    return processor.until(condition, seconds * SLOW)


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def events(self):
        """Server-sent events; the last one must be [DONE]."""
        # a slow machine's silence is a comment
        parts = [p for p in self.body.decode().split("\n\n") if not p.startswith(":")]
        assert parts[-1] == "" and all(p.startswith("data: ") for p in parts[:-1]), parts
        assert parts[-2] == "data: [DONE]", parts[-2]
        return [json.loads(p[6:]) for p in parts[:-2]]

    @property
    def lines(self):
        return [json.loads(line) for line in self.body.decode().splitlines()]


class Gateway:
    """helm-gateway at a port of its own. with Gateway(endpoint, options) as g: g.post(...)"""

    def __init__(self, endpoint, *options, key=None, prefix=()):
        self.log_file = tempfile.NamedTemporaryFile(prefix="helm-gateway-", suffix=".log")
        self.key = key
        command = [*prefix, os.path.join(BIN, "helm-gateway"), *(("--connect", endpoint) if endpoint else ()), "--listen", "127.0.0.1:0", *options]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log_file, stderr=self.log_file)
        if not until(lambda: " at http://" in self.log() or self.process.poll() is not None, 20):
            raise AssertionError("helm-gateway did not start: " + self.log())
        found = re.search(r" at http://127\.0\.0\.1:(\d+),", self.log())
        if not found:
            raise AssertionError("helm-gateway did not start: " + self.log())
        self.port = int(found.group(1))
        self.url = "http://127.0.0.1:%d" % self.port

    def log(self):
        with open(self.log_file.name, errors="replace") as f:
            return f.read()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        code = self.stop()
        if kind or code:
            print("---- helm-gateway's log:\n" + self.log()[-4000:])
        check("the gateway ends with 0", code == 0, code)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return processor.ended(self.process, 20 * SLOW)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "no end"

    def request(self, method, path, body=None, headers=None, timeout=30):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * SLOW)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        wanted = {"Content-Type": "application/json", **({"Authorization": "Bearer " + self.key} if self.key else {}),
                  **(headers or {})}
        try:
            connection.request(method, path, data, wanted)
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def chat(self, text="Hi", **fields):
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields})

    def complete(self, prompt, **fields):
        return self.post("/v1/completions", {"prompt": prompt, **fields})

    def open_stream(self, path, body, window=0):
        """A socket on which a request was sent. `window`: bytes that the kernel keeps of an answer."""
        s = socket.socket()
        if window:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        s.settimeout(20 * SLOW)
        s.connect(("127.0.0.1", self.port))
        data = json.dumps(body).encode()
        key = "Authorization: Bearer %s\r\n" % self.key if self.key else ""
        s.sendall(("POST %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n" % (path, key, len(data))).encode()
                  + data)
        return s

    def metric(self, name):
        found = re.search(r"^%s (\S+)$" % re.escape(name), self.get("/metrics").body.decode(), re.M)
        return float(found.group(1)) if found else None


def missing_node():
    """Why node cannot run the scripts here, or ""."""
    if not shutil.which("node"):
        return "there is no node here"
    version = subprocess.run(["node", "--version"], capture_output=True).stdout.decode().strip()
    found = re.match(r"v(\d+)\.(\d+)", version)
    if not found or tuple(map(int, found.groups())) < (20, 10):
        return "node here is %s, 20.10 or later is needed" % version
    return ""


def fetch_packages(folder, packages, files):
    """"" once npm's packages, known by these files, are there; else why they are not."""
    if all(os.path.exists(os.path.join(folder, "node_modules", file)) for file in files):
        return ""
    if not shutil.which("npm"):
        return "there is no npm here"
    os.makedirs(folder, exist_ok=True)
    try:
        run = processor.run(["npm", "install", "--prefix", folder, "--no-save", "--no-audit", "--no-fund", "--ignore-scripts",
                              "--fetch-retries=1", "--fetch-timeout=20000", *packages], capture_output=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "npm does not fetch %s within a minute" % " ".join(packages)
    said = [line for line in run.stderr.decode(errors="replace").splitlines() if "error" in line]
    return "" if run.returncode == 0 else "npm cannot fetch %s: %s" % (" ".join(packages), ", ".join(said[:2]))


def cli(*args):
    return subprocess.run([os.path.join(BIN, "helm-cli"), *args], capture_output=True, check=True).stdout.decode()


class Translator:
    """A helm-cli that translates line by line for as long as the test runs: to start one for each text takes most of a test's time."""
    running = {}

    def __init__(self, *command):
        self.process = subprocess.Popen([os.path.join(BIN, "helm-cli"), *command, "--jsonl"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    @classmethod
    def of(cls, *command):
        if command not in cls.running:
            cls.running[command] = cls(*command)
        return cls.running[command]

    def translate(self, value):
        self.process.stdin.write(json.dumps(value).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        return self.process.wait()


def ids_of(text, folder):
    return Translator.of("--model", folder, "tokenize", "--no-special").translate(text)


def text_of(ids, folder):
    return Translator.of("--tokenizer", folder, "detokenize").translate(ids)


class Scripted(FakeDaemon):
    """Answers every prompt with `script`, a list of token ids, then end of sequence; keeps the prompts."""

    def __init__(self, endpoint, folder, token_seconds=0.0):
        super().__init__(endpoint, folder, token_seconds)
        self.script, self.how, self.prompts = [], 11, []
        self.vocab = 4096      # room for special tokens

    def say(self, text, how=11):
        self.script, self.how = ids_of(text, self.folder), how

    def tick(self):
        for _ in range(64 if self.how == 11 else 1):  # tokens one after the other, without a look at the socket
            super().tick()

    def handle(self, client, request):
        if request.WhichOneof("body") == "generate":
            self.prompts.append(list(request.generate.prompt))
            request.generate.prompt[:] = [self.how] + self.script
        super().handle(client, request)


def model_folder(template, special=()):
    """A folder with the golden model's tokenizer, to which `special` tokens are added, and a chat template."""
    folder = tempfile.mkdtemp(prefix="helm-gateway-model-")
    with open(TOKENIZER + "/tokenizer.json") as f:
        tokenizer = json.load(f)
    first = 1 + max(*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"]))
    for i, text in enumerate(special):
        tokenizer["added_tokens"].append({"id": first + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                                          "normalized": False, "special": True})
    with open(folder + "/tokenizer.json", "w") as f:
        json.dump(tokenizer, f)
    shutil.copy(os.path.join(TEMPLATES, template), folder + "/chat_template.jinja")
    return folder


class Stage:
    """A stand-in daemon with a model that has the given chat template, and a gateway before it."""

    def __init__(self, template, special=(), options=()):
        self.folder = model_folder(template, special)
        self.endpoint = "ipc://%s/helmd.sock" % self.folder
        self.start()
        self.gateway = Gateway(self.endpoint, *options)

    def start(self):
        self.daemon = Scripted(self.endpoint, self.folder)
        self.daemon.start()

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.gateway.__exit__(*failure)
        self.daemon.stop()
        shutil.rmtree(self.folder)

    def prompt(self):
        """The last prompt as text."""
        return text_of(self.daemon.prompts[-1], self.folder)
