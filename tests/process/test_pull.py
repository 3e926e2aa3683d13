#!/usr/bin/python3
"""helm-cli pull against a stand-in for the hub: what it fetches and where it puts it, going on after a break, checksums,
tokens and the hosts they are sent to, what a repository may not make it do; and --model with names in the cache.

HELM_BIN: folder of the programs. Run from the repository's root."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, "tests/process")
from fake_hub import Hub  # noqa: E402

BIN = os.path.abspath(os.environ["HELM_BIN"])
MODEL = "tests/data/golden/qwen3"
counts = {True: 0, False: 0}


def check(name, ok, detail=""):
    counts[bool(ok)] += 1
    print("%s %s%s" % ("ok  " if ok else "FAIL", name, "" if ok else "  [%s]" % (detail,)), flush=True)


class Case:
    """A hub, and a home of one's own."""

    def __init__(self):
        self.home = tempfile.mkdtemp(prefix="helm-pull-")
        self.hub = Hub()
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "XDG_"))}
        self.env.update(HOME=self.home, HF_ENDPOINT=self.hub.url)
        self.cache = os.path.join(self.home, ".cache/huggingface/hub")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.hub.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def run(self, *args, program="helm-cli", **env):
        done = subprocess.run([os.path.join(BIN, program), *args], capture_output=True, timeout=60,
                              env=dict(self.env, **env), stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def refused(self, what, status, text, *args, **env):
        code, out, err = self.run("pull", *args, **env)
        check(what, code == status and text in err and not out, (code, out, err))
        return err

    def blobs(self, repo):
        folder = os.path.join(self.cache, "models--" + repo.replace("/", "--"), "blobs")
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def read(path):
    with open(path, "rb") as f:
        return f.read()


def checkpoint():
    files = {name: read(os.path.join(MODEL, name)) for name in os.listdir(MODEL) if name != "golden.json"}
    return files


def layout_tests():
    with Case() as c:
        files = checkpoint()
        c.hub.repos["org/tiny"] = dict(files, **{"README.md": b"read me", "pytorch_model.bin": b"pickle",
                                                 "onnx/model.safetensors": b"not this one", ".gitattributes": b"*"})
        code, out, err = c.run("pull", "org/tiny")
        commit = Hub.commit("org/tiny")
        folder = os.path.join(c.cache, "models--org--tiny")
        snapshot = os.path.join(folder, "snapshots", commit)
        check("a checkpoint is fetched", code == 0 and out == snapshot + "\n", (code, out, err))
        check("... the command that uses it is said", "helm-cli --model org/tiny chat" in err, err)
        wanted = [n for n in files if n.endswith((".json", ".safetensors", ".jinja"))]
        check("... of it what HELM reads", sorted(os.listdir(snapshot)) == sorted(wanted), os.listdir(snapshot))
        check("... as links to blobs by their ids", all(
            os.readlink(os.path.join(snapshot, n)) == "../../blobs/" + Hub.blob(n, files[n]) for n in wanted))
        check("... whole", all(read(os.path.join(snapshot, n)) == files[n] for n in wanted))
        check("... with the branch's name", read(os.path.join(folder, "refs/main")).decode() == commit)
        check("... and nothing half", not [b for b in c.blobs("org/tiny") if "." in b], c.blobs("org/tiny"))
        check("... large files from the store, once each", [p.split("?")[0] for w, p, _ in c.hub.log if w == "store"] ==
              ["/org/tiny/model.safetensors"], c.hub.log)
        c.hub.log.clear()
        check("a second pull", c.run("pull", "org/tiny")[0] == 0 and len(c.hub.log) == 1, c.hub.log)

        code, out, err = c.run("--model", "org/tiny", "tokenize", "Hello", HF_ENDPOINT="")
        check("--model takes the name", code == 0 and out.strip(), (code, out, err))
        same = c.run("--model", MODEL, "tokenize", "Hello")[1]
        check("... and means the same model", out == same, (out, same))
        for path in (snapshot, folder):
            check("--model takes " + os.path.relpath(path, c.cache), c.run("--model", path, "tokenize", "Hello")[1] == same)
        code, out, err = c.run("org/tiny", program="helm-inspect")
        check("helm-inspect takes the name", code == 0 and "Qwen3" in out, (code, out, err))
        code, out, err = c.run("--model", "org/tiny", "--profile", "tests/data/profiles/described.json", program="helm-plan")
        check("helm-plan takes it", code == 0 and "decode" in out, (code, out, err))
        code, out, err = c.run("--model", "org/tiny", "--profile", "tests/data/profiles/described.json", "--device", "cpu",
                               "generate", "--tokens", "1,2", "-n", "2", "--json")
        check("helmd loads it", code == 0 and len(json.loads(out)["tokens"]) == 2, (code, out, err))
        code, out, err = c.run("--model", "org/other", "status")
        check("a name that is not in the cache names the command", code == 4 and "`helm-cli pull org/other`" in err, (code, err))
        os.makedirs(os.path.join(folder, "snapshots", "f" * 40))
        os.unlink(os.path.join(folder, "refs/main"))
        code, out, err = c.run("--model", folder, "tokenize", "Hello")
        check("several snapshots and no branch: one is to be named", code == 2 and "snapshots/COMMIT" in err, (code, err))


def place_tests():
    with Case() as c:
        c.hub.add("org/tiny", config_DOT_json=b"{}", model_DOT_safetensors=b"x" * 1000)
        for variable, value, below in (("HF_HOME", "a", "a/hub"), ("HF_HUB_CACHE", "b", "b"), ("XDG_CACHE_HOME", "d", "d/huggingface/hub")):
            code, out, err = c.run("pull", "org/tiny", **{variable: os.path.join(c.home, value)})
            check("$%s is honoured" % variable, out.startswith(os.path.join(c.home, below, "models--org--tiny/snapshots/")), (code, out, err))
        c.refused("$HF_HUB_OFFLINE is honoured", 4, "HF_HUB_OFFLINE", "org/tiny", HF_HUB_OFFLINE="1")
        c.refused("an address that is no http", 4, "HF_ENDPOINT", "org/tiny", HF_ENDPOINT="file:///etc")
        c.refused("nobody at the address", 5, "127.0.0.1:9", "org/tiny", HF_ENDPOINT="http://127.0.0.1:9")
        for name in ("tiny", "../tiny", "org/..", "org/tiny/../../x", "org/ti--ny", "org//x", "/etc/passwd", "org/tiny/a//b", ".org/x"):
            c.refused("a name that is none: " + name, 2, "no name of the hub", name)
        c.refused("a revision that is none", 4, "revision", "org/tiny", "--revision", "../../x")
        c.refused("a revision that is not there", 4, "404", "org/tiny", "--revision", "v2")


def gguf_tests():
    with Case() as c:
        parts = {"sub/big-Q8_0-0000%d-of-00002.gguf" % i: b"part %d" % i for i in (1, 2)}
        c.hub.repos["org/ggufs"] = dict(parts, **{"a-Q4_K_M.gguf": b"four", "mmproj-a.gguf": b"eyes", "README.md": b""})
        err = c.refused("of several GGUF files one is to be named", 4, "org/ggufs has 2 GGUF files", "org/ggufs")
        check("... they are listed with their sizes", "4 B  a-Q4_K_M.gguf" in err and "12 B  sub/big-Q8_0-00001-of-00002.gguf" in err and
              "mmproj" not in err and "00002-of-00002" not in err, err)
        check("... and nothing was fetched", c.blobs("org/ggufs") == [], c.blobs("org/ggufs"))
        code, out, err = c.run("pull", "org/ggufs/sub/big-Q8_0-00001-of-00002.gguf")
        folder = os.path.dirname(out.strip())
        check("a split file comes with its parts", code == 0 and sorted(os.listdir(folder)) == sorted(os.path.basename(p) for p in parts) and
              os.readlink(out.strip()).startswith("../../../blobs/"), (code, out, err))
        check("... whole", read(out.strip()) == b"part 1")
        c.refused("a file that is not there", 4, "no file b.gguf", "org/ggufs/b.gguf")
        c.hub.repos["org/one"] = {"one.gguf": read(sorted(find_ggufs())[0]), "README.md": b""}
        code, out, err = c.run("pull", "org/one")
        check("the only GGUF file needs no name", code == 0, (code, out, err))
        for name in ("org/one", "org/one/one.gguf"):
            code, out, err = c.run(name, program="helm-inspect")
            check("--model takes " + name, code == 0, (code, out[-200:], err))
        c.hub.add("org/old", pytorch_model_DOT_bin=b"x", config_DOT_json=b"{}")
        c.refused("only .bin files", 4, "does not read PyTorch's .bin files", "org/old")


def find_ggufs():
    for folder, _, names in os.walk("tests/data/golden-gguf"):
        for name in names:
            if name.endswith(".gguf"):
                yield os.path.join(folder, name)


def break_tests():
    data = bytes(range(256)) * 4000
    with Case() as c:
        c.hub.add("org/tiny", model_DOT_safetensors=data)
        c.hub.cut = [100000, 300000]
        code, out, err = c.run("pull", "org/tiny")
        ranges = [h.get("Range") for w, _, h in c.hub.log if w == "store"]
        check("an answer that breaks off is gone on with", code == 0 and ranges[0] is None and len(ranges) == 3 and
              all(r.startswith("bytes=") for r in ranges[1:]), (code, ranges, err))
        check("... and is whole", read(os.path.join(out.strip(), "model.safetensors")) == data)
    with Case() as c:
        c.hub.add("org/tiny", model_DOT_safetensors=data)
        c.hub.cut, c.hub.ranges = [100000], False
        code, out, err = c.run("pull", "org/tiny")
        check("a server without ranges begins again", code == 0 and read(os.path.join(out.strip(), "model.safetensors")) == data, (code, err))
    with Case() as c:
        c.hub.add("org/tiny", model_DOT_safetensors=data)
        blobs = os.path.join(c.cache, "models--org--tiny/blobs")
        os.makedirs(blobs)
        half = os.path.join(blobs, Hub.blob("model.safetensors", data) + ".incomplete")
        with open(half, "wb") as f:
            f.write(data[:500000])
        code, out, err = c.run("pull", "org/tiny")
        ranges = [h.get("Range") for w, _, h in c.hub.log if w == "store"]
        check("what an earlier run left is gone on with", code == 0 and ranges == ["bytes=500000-"], (code, ranges, err))
        check("... with its checksum", read(os.path.join(out.strip(), "model.safetensors")) == data and not os.path.exists(half))
    with Case() as c:  # what was left is not the beginning of it
        c.hub.add("org/tiny", model_DOT_safetensors=data)
        os.makedirs(blobs := os.path.join(c.cache, "models--org--tiny/blobs"))
        with open(os.path.join(blobs, Hub.blob("model.safetensors", data) + ".incomplete"), "wb") as f:
            f.write(b"z" * 500000)
        c.refused("what was left and is not of this file", 4, "checksum", "org/tiny")
        check("... is not kept", c.blobs("org/tiny") == [], c.blobs("org/tiny"))
        check("... and the next run has it", c.run("pull", "org/tiny")[0] == 0)
    with Case() as c:
        c.hub.add("org/tiny", model_DOT_safetensors=data)
        c.hub.spoil = True
        c.refused("a wrong checksum", 4, "checksum", "org/tiny")
        check("... leaves nothing", c.blobs("org/tiny") == [] and not os.path.exists(os.path.join(c.cache, "models--org--tiny/refs")))
        c.hub.spoil, c.hub.etag = False, "0" * 64
        c.refused("a file that has changed meanwhile", 4, "another one than it listed", "org/tiny")
        check("... leaves nothing", c.blobs("org/tiny") == [])
        c.hub.etag = None
        c.hub.extra = {"siblings": [{"rfilename": "model.safetensors", "size": 1000, "lfs": {
            "sha256": Hub.blob("model.safetensors", data), "size": 1000}}]}
        c.refused("a file that is longer than it was listed", 4, "more than the 1000 bytes", "org/tiny")
    with Case() as c:  # Ctrl-C in the middle
        c.hub.add("org/tiny", model_DOT_safetensors=data)
        c.hub.cut = [1000] * 100
        p = subprocess.Popen([os.path.join(BIN, "helm-cli"), "pull", "org/tiny"], env=c.env, stderr=subprocess.PIPE)
        until = time.monotonic() + 10
        while not c.blobs("org/tiny") and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.2)
        p.send_signal(signal.SIGINT)
        err = p.communicate(timeout=20)[1]
        check("Ctrl-C ends it", p.returncode == 130, (p.returncode, err))
        left = c.blobs("org/tiny")
        check("... and leaves what came", len(left) == 1 and left[0].endswith(".incomplete"), left)


def token_tests():
    with Case() as c:
        c.hub.add("org/secret", model_DOT_safetensors=b"x" * 1000, config_DOT_json=b"{}")
        c.hub.private["org/secret"] = "hf_right"
        err = c.refused("a private repository without a token", 4, "wants a token (401", "org/secret")
        check("... with what helps, and what the hub said", "HF_TOKEN" in err and "Invalid credentials" in err, err)
        c.refused("... with a wrong one", 4, "refuses this token", "org/secret", HF_TOKEN="hf_wrong")
        c.hub.log.clear()
        code, out, err = c.run("pull", "org/secret", HF_TOKEN="hf_right")
        check("... with the right one", code == 0, (code, err))
        sent = {(w, h.get("Authorization")) for w, _, h in c.hub.log}
        check("... which goes to the hub and not to the store", sent == {("hub", "Bearer hf_right"), ("store", None)}, sent)
        shutil.rmtree(c.cache)
        with open(os.path.join(c.home, ".cache/huggingface/token"), "w") as f:
            f.write("hf_right\n")
        check("a token in its file", c.run("pull", "org/secret")[0] == 0)
        check("$HF_TOKEN_PATH", c.run("pull", "org/secret", HF_TOKEN_PATH=os.path.join(c.home, "none"))[0] == 4)
        c.refused("a token of two lines", 4, "is none", "org/secret", HF_TOKEN="a b")
        shutil.rmtree(c.cache)
        c.hub.location = "file:///etc/passwd"
        c.refused("a redirect to a file", 4, "not http", "org/secret", HF_TOKEN="hf_right")
        c.hub.location = c.hub.url + "/org/secret/resolve/" + Hub.commit("org/secret") + "/model.safetensors"
        c.refused("redirects without end", 4, "redirects", "org/secret", HF_TOKEN="hf_right")


def stranger_tests():
    with Case() as c:
        c.hub.add("org/tiny", model_DOT_safetensors=b"x" * 1000)
        for name in ("../../../../evil", "/etc/evil", "a/../../evil", "a\\b", "a\nb", "", "a//b", "x" * 600):
            c.hub.name = lambda _, name=name: name
            c.refused("a file called %r" % name[:20], 4, "the hub's answer", "org/tiny")
        c.hub.name = lambda name: name
        for extra in ({"sha": "../../x"}, {"sha": "main"}, {"sha": None}, {"siblings": {}}, {"siblings": [1]},
                      {"siblings": [{"rfilename": "model.safetensors", "size": -1}]},
                      {"siblings": [{"rfilename": "model.safetensors", "size": 5, "lfs": {"sha256": "../../../x", "size": 5}}]}):
            c.hub.extra = extra
            c.refused("a list with %s" % json.dumps(extra)[:60], 4, "the hub's answer", "org/tiny")
        c.hub.extra = {"siblings": [{"rfilename": "model.safetensors", "size": 5}]}
        c.refused("a file without a blob", 4, "does not say which blob", "org/tiny")
        c.hub.extra = {"siblings": [{"rfilename": "model.safetensors", "size": 1 << 49, "lfs": {"sha256": "0" * 64, "size": 1 << 49}}]}
        c.refused("more than the disk has", 4, "is free", "org/tiny")
        found = [os.path.join(d, n) for d, _, names in os.walk(c.home) for n in names]
        check("... and none of it left a file", found == [], found)


for tests in (layout_tests, place_tests, gguf_tests, break_tests, token_tests, stranger_tests):
    tests()
print("%d passed, %d failed" % (counts[True], counts[False]))
sys.exit(1 if counts[False] else 0)
