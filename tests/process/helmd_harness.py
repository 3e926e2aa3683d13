"""Helpers of helmd's process tests: a tiny checkpoint, helmd with the fake worker, a client of python3-zmq and protoc output
only, and the reckoning of what a stopped daemon leaves behind.

The fake worker's answer is known here too (expected_tokens), so every stream is checked token by token."""
import faulthandler
import glob
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.environ["HELM_PYPROTO"])
import helm_pb2 as pb  # noqa: E402
import processor  # noqa: E402
try:
    import zmq
except ImportError:  # then only a Client with a socket of its own can be made
    zmq = None

BIN = os.environ["HELM_BIN"]
TEST_BIN = os.environ.get("HELM_TEST_BIN") or os.path.join(os.path.dirname(BIN), "release", "tests", "process")
DATA = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data")
DEMO = os.path.join(os.path.dirname(os.path.dirname(DATA)), "tools", "models", "demo")
PROFILE = os.path.join(DATA, "profiles", "described.json")  # of no machine there is: nothing is measured for it
DEVICE = os.environ.get("HELM_TEST_DEVICE", "emulated")  # that tests with a device of their own run on: cuda, where there is one
SLOW = 4 if "asan" in BIN or "tsan" in BIN or "ubsan" in BIN else 1
READY_S = 120 * SLOW  # that a start may take, on a machine with much else to do
VOCAB = 100


def write_checkpoint(folder, layers=2, hidden=32, heads=2, kv_heads=1, head_dim=16, intermediate=48, context=512):
    """A Qwen3 checkpoint of zeros: the fake worker never looks at it, helmd checks all of it."""
    os.makedirs(folder, exist_ok=True)
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": hidden,
        "intermediate_size": intermediate, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "vocab_size": VOCAB, "rms_norm_eps": 1e-6,
        "max_position_embeddings": context, "rope_theta": 10000.0, "tie_word_embeddings": True,
        "hidden_act": "silu", "attention_bias": False, "torch_dtype": "bfloat16", "eos_token_id": 1,
        "bos_token_id": 0,
    }
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    tensors = {"model.embed_tokens.weight": [VOCAB, hidden], "model.norm.weight": [hidden]}
    for n in range(layers):
        p = f"model.layers.{n}."
        tensors.update({
            p + "input_layernorm.weight": [hidden], p + "post_attention_layernorm.weight": [hidden],
            p + "self_attn.q_proj.weight": [heads * head_dim, hidden],
            p + "self_attn.k_proj.weight": [kv_heads * head_dim, hidden],
            p + "self_attn.v_proj.weight": [kv_heads * head_dim, hidden],
            p + "self_attn.o_proj.weight": [hidden, heads * head_dim],
            p + "self_attn.q_norm.weight": [head_dim], p + "self_attn.k_norm.weight": [head_dim],
            p + "mlp.gate_proj.weight": [intermediate, hidden], p + "mlp.up_proj.weight": [intermediate, hidden],
            p + "mlp.down_proj.weight": [hidden, intermediate],
        })
    header, at = {}, 0
    for name, shape in tensors.items():
        size = 2
        for n in shape:
            size *= n
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + bytes(at))


def expected_tokens(prompt, count, seed=0, eos_at=0):
    """tests/process/fake_worker.c, sample()."""
    tokens, out = list(prompt), []
    while len(out) < count:
        h = 1469598103934665603 ^ seed
        for t in tokens:
            h = ((h ^ t) * 1099511628211) & (2**64 - 1)
        token = 2 + (h >> 20) % (VOCAB - 2)
        if eos_at and len(out) + 1 == eos_at:
            token = 1
        out.append(token)
        tokens.append(token)
        if token == 1:
            break
    return out


def stages(layers, homes):
    """A list of stages: `homes` has one letter a layer, c(pu), g(pu), G(pu1), s(tream), m(ixed), (s)h(ared) or d(isk), or two: its attention, its
    MLP."""
    names = {"c": "cpu", "g": "gpu", "G": "gpu1", "s": "stream", "m": "mixed", "h": "shared", "d": "disk"}
    halves = homes if len(homes) == 2 * layers else "".join(h + h for h in homes)
    out = []
    for n in range(layers):
        attention, mlp = halves[2 * n:2 * n + 2]
        if attention == mlp:
            if out and out[-1]["ops"] == "all" and out[-1]["home"] == names[mlp]:
                out[-1]["layers"][1] = n
            else:
                out.append({"layers": [n, n], "ops": "all", "home": names[mlp], "bytes": 0})
        else:
            out.append({"layers": [n, n], "ops": "attention", "home": names[attention], "bytes": 0})
            out.append({"layers": [n, n], "ops": "mlp", "home": names[mlp], "bytes": 0})
    return out


def plan_json(layers, homes, embed, head, prefill=None, prefill_from=None, packed="", **sizes):
    """A plan as a person writes it. `homes`, and `prefill` for steps of `prefill_from` tokens and more, as above; `packed`: the
    letters of homes whose weights lie packed."""
    names = {"c": "cpu", "g": "gpu", "G": "gpu1"}
    lists = {"decode": stages(layers, homes)}
    for stage in lists["decode"]:
        if stage["home"][0] in packed:
            stage["format"] = "bf16-packed"
    if prefill:
        lists["prefill"] = stages(layers, prefill)
    empty = {"limit": None, "lines": [], "total": 0}
    memories = ["host", "vram"] + ["vram1"] * ("G" in homes + embed + head) + ["disk"] * ("d" in homes)
    return {"layers": layers, "context_tokens": 512, "step_tokens": 64, "slots": 8, "page_tokens": 32,
            "page_count": 0, "kv_dtype": "f16", "stages": lists, "prefill_from_tokens": prefill_from, "embed": names[embed],
            "head": names[head], **{name: empty for name in memories}, **sizes}


class Daemon:
    """helmd in a run directory of its own: with fake workers, or with the real ones on the demo model (`real`).
    `model`: another folder than that; `gpu`: there is a GPU worker; `plan`: written to a file and given with --plan; `profile`: given with --profile,
    None: helmd finds or measures one. `env` is added to the environment."""

    def __init__(self, *options, faults="", wait=True, base=None, gpu=False, real=False, plan=None, layers=2,
                 profile=PROFILE, env=None, model=None):
        self.base = base or tempfile.mkdtemp(prefix="helmd-test-")
        self.rundir = os.path.join(self.base, "run")
        self.model = model or (DEMO if real else os.path.join(self.base, "model"))
        self.endpoint = f"ipc://{self.rundir}/helmd.sock"
        workers = BIN if real else os.path.join(self.base, "workers")
        if not base and not real:
            if not os.path.exists(os.path.join(self.model, "config.json")):
                write_checkpoint(self.model, layers=layers)
            os.makedirs(workers)
            for name in ["helm-worker-cpu"] + ["helm-worker-gpu"] * gpu:
                os.symlink(os.path.join(TEST_BIN, "fake_worker"), os.path.join(workers, name))
        if plan:
            path = os.path.join(self.base, "plan.json")
            with open(path, "w") as f:
                json.dump(plan, f)
            options += ("--plan", path)
        if profile:
            options += ("--profile", profile)
        if "--kv-page-tokens" not in options:  # what tests count is in these, whatever a page costs here
            options += ("--kv-page-tokens", 32)
        self.log_path = os.path.join(self.base, "log")
        ready_r, ready_w = os.pipe()
        os.set_inheritable(ready_w, True)
        env = dict(os.environ, HELM_FAKE_WORKER=faults, **(env or {}))
        command = [os.path.join(BIN, "helmd"), "--model", self.model, "--rundir", self.rundir, "--worker-dir", workers,
                   "--ready-fd", str(ready_w), "--log-level", "debug"]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(command + [str(o) for o in options], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, env=env, close_fds=False)
        self.pid = self.process.pid
        os.close(ready_w)
        self.ready_fd = ready_r
        self.ready = self.wait_ready() if wait else ""

    def wait_ready(self):
        text = b""
        while not text.endswith(b"\n"):
            if not processor.wait(READY_S, lambda s: select.select([self.ready_fd], [], [], s)[0] or None):
                raise AssertionError(f"no word of helmd within {READY_S} s; its children {self.children()}, its log:\n{self.log()}")
            chunk = os.read(self.ready_fd, 4096)
            if not chunk:
                break
            text += chunk
        os.close(self.ready_fd)
        self.ready_fd = -1
        return text.decode().strip()

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def children(self):
        """Pids whose parent is helmd: "keeper", each worker as "cpu" or "gpu", and one of them as "worker"."""
        found = {}
        for pid, parent, _ in processor.stat_rows():
            if parent == self.pid:
                line = processor.command_line(pid)
                if b"--keeper" in line:
                    found["keeper"] = pid
                elif b"helm-worker-" in line.split(b"\0")[0]:  # else forked, but not yet what it will be
                    found["worker"] = found[line.split(b"\0")[0].decode()[-3:]] = pid
        return found

    def keeper(self):
        """Its pid, once it has become what it is."""
        wait_until(lambda: "keeper" in self.children(), 5)
        return self.children()["keeper"]

    def stop(self, sig=signal.SIGTERM, timeout=20):
        if self.process.poll() is None:
            self.process.send_signal(sig)
        return processor.ended(self.process, timeout)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.ready_fd >= 0:
            os.close(self.ready_fd)
        wait_until(lambda: not self.left_behind(), 3)
        shutil.rmtree(self.base, ignore_errors=True)

    def left_behind(self):
        """Everything that should be gone when the daemon is: processes, files, shared memory."""
        left = [p for p in glob.glob(self.rundir + "*") + glob.glob(self.rundir + "/*")]
        for pid in processor.pids():
            line = processor.command_line(pid)  # empty: of the kernel, or ended
            if self.base.encode() in line and pid != os.getpid():
                left.append(f"process {pid}: {line!r}")
            try:
                if b"--keeper" in line and any(self.base in os.readlink(fd) for fd in glob.glob(f"/proc/{pid}/fd/*")):
                    left.append(f"keeper {pid}")
            except OSError:
                pass
        return left


class Client:
    """One connection. `open` maps our request ids to what has come back."""

    context = zmq and zmq.Context()

    def __init__(self, endpoint, rcvhwm=None, req=False, socket=None):
        self.socket = socket or self.context.socket(zmq.REQ if req else zmq.DEALER)
        if not socket:
            self.socket.linger = 0
            if rcvhwm:
                self.socket.rcvhwm = rcvhwm
            self.socket.connect(endpoint)
        self.next = 1
        self.streams = {}

    def request(self, request_id=None, user=""):
        if request_id is None:
            request_id, self.next = self.next, self.next + 1
        return pb.Request(version=1, request_id=request_id, user=user)

    def generate(self, prompt, count, seed=0, **fields):
        r = self.request(fields.pop("request_id", None), fields.pop("user", ""))
        sampling = fields.pop("sampling", {})
        r.generate.prompt.extend(prompt)
        r.generate.max_tokens = count
        r.generate.sampling.has_seed = True
        r.generate.sampling.seed = seed
        for key, value in sampling.items():
            setattr(r.generate.sampling, key, value)
        r.generate.stop_token_ids.extend(fields.pop("stop", []))
        r.generate.marks.extend(fields.pop("marks", []))
        r.generate.prediction.extend(fields.pop("prediction", []))
        for key, value in fields.items():
            setattr(r.generate, key, value)
        self.streams[r.request_id] = Stream()
        self.socket.send(r.SerializeToString())
        return self.streams[r.request_id]

    def receive(self, timeout=10):
        if not processor.wait(timeout * SLOW, lambda s: self.socket.poll(int(s * 1000) + 1) or None):
            raise TimeoutError("no answer")
        response = pb.Response.FromString(self.socket.recv())
        stream = self.streams.get(response.request_id)
        if stream:
            stream.take(response)
        return response

    def ask(self, body, timeout=10, user="", **fields):
        """A request with one answer; streams' messages that come in between are filed."""
        r = self.request(user=user)
        getattr(r, body).SetInParent()
        for key, value in fields.items():
            setattr(getattr(r, body), key, value)
        self.socket.send(r.SerializeToString())
        while True:
            response = self.receive(timeout)
            if response.request_id == r.request_id:
                return response

    def run(self, *streams, timeout=30):
        end = processor.clock() + timeout * SLOW
        while not all(s.ended for s in streams):
            self.receive(max(0.01, end - processor.clock()) / SLOW)

    def close(self):
        self.socket.close(0)


class Stream:
    def __init__(self):
        self.id, self.tokens, self.done, self.error, self.first = 0, [], None, None, []

    @property
    def ended(self):
        return bool(self.done or self.error)

    def take(self, response):
        body = response.WhichOneof("body")
        assert not self.ended, f"{body} after the end"
        if body == "accepted":
            self.id = response.accepted.id
        elif body == "token":
            assert response.token.index == len(self.tokens), "a token is missing or repeated"
            self.tokens.append(response.token.token)
            self.first.append(response.token)
        elif body == "done":
            self.done = response.done
        elif body == "error":
            self.error = response.error
        else:
            raise AssertionError(body)


def wait_until(condition, seconds):
    return bool(processor.until(condition, seconds * SLOW))


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def same(got, want, what):
    if got != want:
        raise AssertionError(f"{what}: got {got!r}, expected {want!r}")


def as_user(uid, gid, groups, folder, ask):
    """The text that ask() gives in a child that is another user and whose current folder is `folder`, or of what it raised.
    The child imports and opens nothing more: such a user may not be able to read the checkout, nor to pass the folders
    above `folder`. ask() makes its own sockets; ZeroMQ's contexts are the parent's."""
    result, given = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.chdir(folder)
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
            os.write(given, str(ask()).encode())
        except BaseException as failure:
            os.write(given, repr(failure).encode())
        finally:
            os._exit(0)
    os.close(given)
    with open(result) as f:
        text = f.read()
    os.waitpid(child, 0)
    return text


def status_of(d):
    return Client(d.endpoint).ask("status").status


class Skipped(Exception):
    pass


def skip(reason):
    """Ends a test that cannot run here; `reason`: what this machine lacks."""
    raise Skipped(reason)


def run_tests(namespace):
    """Runs every function test_*, one line each, then the sum; the exit status says whether all passed. Arguments: words of
    the names of those that are to be run."""
    names = [n for n in namespace if n.startswith("test_")]
    if len(sys.argv) > 1:
        unknown = [a for a in sys.argv[1:] if not any(a in n for n in names)]
        if unknown:
            sys.exit(f"no test has {unknown} in its name: {names}")
        names = [n for n in names if any(a in n for a in sys.argv[1:])]
    passed = failed = skipped = 0
    faulthandler.enable(sys.stdout)
    for name in names:
        started = time.time()
        faulthandler.dump_traceback_later(200, file=sys.stdout)  # says where it hangs before tests/run.py ends it
        try:
            namespace[name]()
            passed += 1
            print(f"ok   {name[5:].replace('_', ' ')} ({time.time() - started:.2f} s)", flush=True)
        except Skipped as reason:
            skipped += 1
            print(f"{name[5:].replace('_', ' ')} skipped: {reason}", flush=True)
        except BaseException as failure:  # a test that is killed is a failed test
            failed += 1
            print(f"FAIL {name[5:].replace('_', ' ')}: {failure}", flush=True)
            traceback.print_exc(file=sys.stdout)
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    sys.exit(failed != 0)


class running:
    """with running(options, faults=...) as daemon: ... ; the daemon's log is printed when the body fails."""

    def __init__(self, *options, **named):
        self.options, self.named = options, named

    def __enter__(self):
        self.daemon = Daemon(*self.options, **self.named)
        if self.named.get("wait", True) and not self.daemon.ready.startswith("ready "):
            text = self.daemon.log()
            self.daemon.close()
            raise AssertionError(f"helmd did not start: {self.daemon.ready}\n{text}")
        return self.daemon

    def __exit__(self, kind, value, trace):
        if kind:
            print("---- helmd's log:\n" + self.daemon.log()[-4000:])
        self.daemon.close()


# Products of exactly what weights stand for, with fp32 activations: what remains is the order of sums.
FORMAT_OPTIONS = ["--exact", "--kernels", "avx2", "--threads", 2, "--ctx", 512]


def format_tokens(model, device, **named):
    """The tokens by which tests compare a model whose weights lie in some format with its values as F32. It has 2,048 tokens."""
    with running("--device", device, *FORMAT_OPTIONS, real=True, model=model, **named) as d:
        c = Client(d.endpoint)
        s = c.generate([(11 * i * i + 5) % 2048 for i in range(13)], 12, ignore_eos=True)
        c.run(s)
        same(len(s.tokens), 12, f"tokens: {s.error or s.done}")
        return s.tokens
