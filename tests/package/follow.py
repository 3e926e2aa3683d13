#!/usr/bin/env python3
"""Runs the commands of README.md or docs/deploy.md in a root, as they stand there. Called as root, by
test-readme.sh and test-deb.sh.

  follow.py readme ROOT FOLDER USER     FOLDER: HELM's checkout within ROOT, followed by USER
  follow.py deploy ROOT FOLDER          FOLDER: where the packages lie within ROOT

A command that this does not know how to judge is a failure, so that a page cannot get one that is not
tried. $README_TEST=0 leaves out `make test`, which is then counted as skipped; $HELM_CPU reaches HELM's programs. No hub
can be asked, so a stand-in on this machine serves a small model under the name that the page pulls: the demo
model, or of a Qwen3.5 or 3.6 mixture one of its architecture, with random weights and the demo model's words.
Exit status: 0, 1."""
import array
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../tests/process"))
import hybrid_files  # noqa: E402
from fake_hub import Hub  # noqa: E402
from gguf_edit import Gguf  # noqa: E402

URL = "http://127.0.0.1:8080"  # of a gateway without options
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TEST_LIMIT_S = 4 * 3600
HYBRID = {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "vocab_size": 4096, "hidden_size": 256,
          "num_hidden_layers": 8, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 64, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
          "linear_num_key_heads": 4, "linear_num_value_heads": 8, "num_experts": 16, "num_experts_per_tok": 4,
          "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128, "max_position_embeddings": 4096,
          "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25}, "hidden_act": "silu",
          "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "partial_rotary_factor": 0.25, "eos_token_id": [2, 0], "bos_token_id": None, "dtype": "bfloat16"}
ANSWER = "\u010a", "And", "\u0120it", "\u0120came", "\u0120to", "\u0120pass"  # what ends a chat's prompt, and what follows
counts = {"ok": 0, "FAIL": 0, "skip": 0}


def check(name, ok, detail=""):
    counts["ok" if ok else "FAIL"] += 1
    detail = "" if ok else "  [%s]" % (str(detail)[-3000:],)
    print("%s %s%s" % ("ok  " if ok else "FAIL", name, detail), flush=True)


def commands(text, sections):
    """In the order of the page: lines of the code blocks before a comment (only lines after `$` in a block
    with a prompt), and the `make TARGET` that a paragraph begins with."""
    for section in sections:
        part = text[text.index(section + "\n"):]
        part = part[:part.index("\n## ", 4)]
        for block, target in re.findall(r"^```\n(.*?)^```$|\n\n`(make [a-z-]+)`", part, re.S | re.M):
            lines = block.splitlines() or [target]
            shown = [line[2:] for line in lines if line.startswith("$ ")]
            for line in shown or lines:
                yield re.sub(r"\s+#.*", "", line)


def until(what, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if what():
                return True
        except OSError:
            pass
        time.sleep(0.5)
    return False


def get(path, data=None):
    with urllib.request.urlopen(urllib.request.Request(URL + path, data), timeout=60) as answer:
        return answer.read().decode()


class Root:
    """Commands in a root as one user, and processes that go on."""

    def __init__(self, root, folder, hub, user="root", path=""):
        self.root, self.folder, self.hub, self.user, self.path = root, folder, hub, user, path
        self.kept = []  # (process, its log)

    def home(self, user):
        with open(self.root + "/etc/passwd") as f:
            return next(line.split(":")[5] for line in f if line.startswith(user + ":"))

    def chroot(self, user, inner, *more):
        env = ["HOME=" + self.home(user), "USER=" + user, PATH, "LC_ALL=C.UTF-8",
               "HF_ENDPOINT=" + self.hub.url, *more]
        if os.environ.get("HELM_CPU"):
            env.append("HELM_CPU=" + os.environ["HELM_CPU"])
        return ["chroot", self.root, "setpriv", "--reuid", user, "--regid", user, "--init-groups",
                "env", "-i", *env, "sh", "-c", inner]

    def run(self, text, said="", limit_s=3600):
        begin = time.monotonic()
        inner = "cd %s && %s%s" % (self.folder, self.path, text)
        done = subprocess.run(self.chroot(self.user, inner), input=said, capture_output=True, text=True,
                              errors="replace", timeout=limit_s)
        return done.returncode, done.stdout, done.stderr, time.monotonic() - begin

    def start(self, arguments):
        log = open("%s.started.%d.log" % (self.root, len(self.kept)), "w+")
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.kept.append((process, log))
        return self.kept[-1]

    def end(self):
        statuses = []
        for process, _ in reversed(self.kept):
            process.send_signal(signal.SIGTERM)
            statuses.append(process.wait(60))
        self.kept = []
        return statuses

    def offer(self, name, demo):
        """A small GGUF file under the name that the page pulls."""
        status, _, err, _ = self.run("helm-quantize --model %s --to Q8_0 --out /tmp/offered.gguf" % demo)
        with open(self.root + "/tmp/offered.gguf", "rb") as f:
            data = f.read()
        if re.search(r"Qwen3\.[56]-\d+B-A\d+B", name):  # with the demo model's words
            with open(self.root + "/tmp/hybrid.json", "w") as f:
                json.dump(HYBRID, f)
            status, _, err, _ = self.run("helm-mkmodel --config /tmp/hybrid.json --embedding 16 --out /tmp/hybrid")
            with open("%s%s/%s/tokenizer.json" % (self.root, self.folder, demo), encoding="utf-8") as f:
                ids = json.load(f)["model"]["vocab"]
            data = with_words(self.root + "/tmp/hybrid", Gguf(data), [ids[word] for word in ANSWER] + [HYBRID["eos_token_id"][0]])
        check("a file for the hub", status == 0, err)
        repo, file = name.rsplit("/", 1)
        self.hub.repos[repo] = {file: data}


def with_words(folder, words, answer):
    """The GGUF file of a checkpoint with the tokenizer of another file, in which each token of `answer` follows the one before: its row
    of the head is the other's embedding, whose values are some 16, times 1 / 64."""
    with open(hybrid_files.write_gguf(folder + ".gguf", folder), "rb") as f:
        model = Gguf(f.read())
    model.keys.update((key, value) for key, value in words.keys.items() if key.startswith("tokenizer."))
    tensors = {tensor[0]: tensor for tensor in model.tensors}
    rows = [array.array("H", tensors[name][3]) for name in ("token_embd.weight", "output.weight")]
    width = HYBRID["hidden_size"]
    for before, after in zip(answer, answer[1:]):
        rows[1][after * width:(after + 1) * width] = array.array("H", (value - (6 << 7) for value in rows[0][before * width:(before + 1) * width]))
    tensors["output.weight"][3] = rows[1].tobytes()
    return model.bytes()


def up(root, program):
    if program == "helmd":
        return until(lambda: root.run("helm-cli status")[0] == 0, 300)
    return until(lambda: get("/health"), 60)


# ---- README.md ----------------------------------------------------------------------------------------------


def follow_readme(root, line):
    words = line.split()
    program = os.path.basename(words[0])
    if line == "make test" and os.environ.get("README_TEST") == "0":
        counts["skip"] += 1
        return print("skip make test: README_TEST=0", flush=True)
    if program in ("helmd", "helm-gateway"):
        process, log = root.start(root.chroot(root.user, "cd %s && exec %s" % (root.folder, line)))
        ready = up(root, program)
        log.seek(0)
        return check(line, ready and process.poll() is None, log.read())
    if "pull" in words:
        root.offer(words[-1], "tools/models/demo")
    said = "And it came to pass\n/bye\n" if words[-1] == "chat" else ""
    status, out, err, took = root.run(line, said, TEST_LIMIT_S)
    shown = {"make": "built: ", "helm-plan": "token/s", "helm-cli": ""}.get(program)
    shown = {"make demo": "token/s", "make test": " passed"}.get(line, shown)
    if line == "make test":
        print("     " + "\n     ".join(out.splitlines()[-20:]))
    fine = shown is not None and status == 0 and shown in out + err and out.strip()
    check("%s  (%.0f s)" % (line, took), fine, (status, out, err))


def readme(folder, user):
    with open(sys.argv[2] + folder + "/README.md") as f:
        lines = list(commands(f.read(), ("## Try it", "## The first real model")))
    fine = len(lines) >= 10 and lines[0] == "make demo" and "make test" in lines
    check("README has commands, and `make test`", fine, lines)
    hub = Hub()
    root = Root(sys.argv[2], folder, hub, user, "export PATH=$PWD/build/bin:$PATH && ")
    try:
        for line in lines:
            follow_readme(root, line)
    finally:
        statuses = root.end()
        hub.close()
    check("what was started ends with 0", len(statuses) == 2 and not any(statuses), statuses)


# ---- docs/deploy.md -----------------------------------------------------------------------------------------


def unit_command(root, name):
    """A unit's own command line, as its user, with the folders and the umask that systemd would give it: a
    root has no systemd."""
    with open("%s/usr/lib/systemd/system/%s.service" % (root.root, name)) as f:
        unit = dict(line.strip().split("=", 1) for line in f if re.match(r"[A-Za-z]+=", line))
    options = ""
    if "EnvironmentFile" in unit:
        with open(root.root + unit["EnvironmentFile"].lstrip("-")) as f:
            options = "".join(line.split("=", 1)[1].strip() for line in f if line.startswith("OPTIONS="))
    command = unit["ExecStart"].replace("$OPTIONS", options)
    if "User" not in unit:  # DynamicUser: any that is nobody, in the groups
        return ["chroot", root.root, "setpriv", "--reuid", "nobody", "--regid", "nogroup",
                "--groups", unit["SupplementaryGroups"].replace(" ", ","), "env", "-i", PATH, "sh", "-c", "exec " + command]
    run, state = "/run/" + unit["RuntimeDirectory"], "/var/lib/" + unit["StateDirectory"]
    subprocess.run(["chroot", root.root, "install", "-d", "-o", unit["User"], "-g", unit["Group"],
                    "-m", unit["RuntimeDirectoryMode"], run], check=True)
    return root.chroot(unit["User"], "umask %s && exec %s" % (unit["UMask"], command),
                       "RUNTIME_DIRECTORY=" + run, "STATE_DIRECTORY=" + state)


def follow_deploy(root, line):
    words = line.split()
    if words[0] == "systemctl":
        for name in words[words.index("--now") + 1:]:
            process, log = root.start(unit_command(root, name))
            ready = up(root, name)
            log.seek(0)
            check("%s  (%s)" % (line, name), ready and process.poll() is None, log.read())
        return
    if "pull" in words:
        root.offer(words[-1], "/usr/share/helm/demo")
    status, out, err, took = root.run(line)
    shown = {"apt-get": "helm", "sudo": "/var/lib/helm", "echo": "", "curl": '"id"'}.get(words[0])
    check("%s  (%.0f s)" % (line, took), shown is not None and status == 0 and shown in out, (status, out, err))


def deploy(folder):
    with open(os.path.join(HERE, "../../docs/deploy.md")) as f:
        # test-deb.sh has run `make deb` in another root
        lines = [line for line in commands(f.read(), ("## Debian packages",)) if line != "make deb"]
    check("deploy.md has commands", len(lines) >= 5 and lines[0].startswith("apt-get install"), lines)
    hub = Hub()
    root = Root(sys.argv[2], folder, hub)
    try:
        for line in lines:
            follow_deploy(root, line)
        data = b'{"prompt": "And it came to pass", "max_tokens": 8}'
        check("a completion by HTTP", until(lambda: '"text"' in get("/v1/completions", data), 60))
        status, out, err, _ = root.run("find /var/lib/helm ! -user helm; stat -c %U /var/lib/helm")
        check("all in /var/lib/helm is the service's", status == 0 and out == "helm\n", out + err)
    finally:
        statuses = root.end()
        hub.close()
    check("what was started ends with 0", len(statuses) == 2 and not any(statuses), statuses)
    check("... and leaves nothing in /run/helm", not os.listdir(sys.argv[2] + "/run/helm"))


def main():
    with socket.socket() as taken:
        if taken.connect_ex(("127.0.0.1", 8080)) == 0:
            sys.exit("follow.py: another program listens at port 8080")
    {"readme": readme, "deploy": deploy}[sys.argv[1]](*sys.argv[3:])
    print("%d passed, %d failed, %d skipped" % (counts["ok"], counts["FAIL"], counts["skip"]))
    return counts["FAIL"] > 0


if __name__ == "__main__":
    sys.exit(main())
