#!/usr/bin/python3
"""helm-cli pull against a stand-in for the hub: what it fetches and where it puts it, going on after a break, checksums,
tokens and the hosts they are sent to, what a repository may not make it do, models that cannot run, which are not
fetched; tags; and --model with names in the cache.

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
import processor  # noqa: E402
from fake_hub import Hub  # noqa: E402
from gguf_edit import Gguf, string  # noqa: E402

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
        done = processor.run([os.path.join(BIN, program), *args], capture_output=True, timeout=60,
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


CONFIG = read(os.path.join(MODEL, "config.json"))
GGUF = "tests/data/golden-gguf/qwen3-Q2_K/model.gguf"


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
        c.hub.add("org/tiny", config_DOT_json=CONFIG, model_DOT_safetensors=b"x" * 1000)
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
        whole = read(GGUF)
        parts = {"sub/big-Q8_0-0000%d-of-00002.gguf" % (i + 1): part for i, part in enumerate(Gguf(whole).parts(2))}
        c.hub.repos["org/ggufs"] = dict(parts, **{"a-Q4_K_M.gguf": whole, "mmproj-a.gguf": b"eyes", "README.md": b""})
        err = c.refused("of several GGUF files one is to be named", 4, "org/ggufs has 2 GGUF files", "org/ggufs")
        check("... they are listed with sizes and tags", "1.62 MiB  :Q4_K_M        a-Q4_K_M.gguf" in err and
              " MiB  :Q8_0          sub/big-Q8_0-00001-of-00002.gguf" in err and "mmproj" not in err and
              "00002-of-00002" not in err and "`helm-cli pull org/ggufs:TAG`" in err, err)
        check("... and nothing was fetched", c.blobs("org/ggufs") == [], c.blobs("org/ggufs"))
        code, out, err = c.run("pull", "org/ggufs/sub/big-Q8_0-00001-of-00002.gguf")
        folder = os.path.dirname(out.strip())
        check("a split file comes with its parts", code == 0 and sorted(os.listdir(folder)) == sorted(os.path.basename(p) for p in parts) and
              os.readlink(out.strip()).startswith("../../../blobs/"), (code, out, err))
        check("... whole", all(read(os.path.join(folder, os.path.basename(name))) == part for name, part in parts.items()))
        c.refused("a file that is not there", 4, "no file b.gguf", "org/ggufs/b.gguf")
        code, out, err = c.run("pull", "org/ggufs/mmproj-a.gguf")
        check("a file that is no model is fetched when named, without advice", code == 0 and "chat" not in err and
              read(out.strip()) == b"eyes", (code, out, err))
        c.hub.repos["org/one"] = {"one.gguf": read(sorted(find_ggufs())[0]), "README.md": b""}
        code, out, err = c.run("pull", "org/one")
        check("the only GGUF file needs no name", code == 0 and out.endswith("/one.gguf\n"), (code, out, err))
        for name in ("org/one", "org/one/one.gguf", "org/one:one"):
            code, out, err = c.run(name, program="helm-inspect")
            check("--model takes " + name, code == 0, (code, out[-200:], err))
        c.hub.repos["org/deep"] = {"Q2_K/one.gguf": whole}
        check("the only GGUF file, in a folder", c.run("pull", "org/deep")[0] == 0)
        code, out, err = c.run("org/deep", program="helm-inspect")
        check("... is what the repository's name means", code == 0, (code, out[-200:], err))
        c.hub.add("org/old", pytorch_model_DOT_bin=b"x", config_DOT_json=b"{}")
        c.refused("only .bin files", 4, "does not read PyTorch's .bin files", "org/old")


def tag_tests():
    with Case() as c:
        whole = read(GGUF)
        parts = {"BF16/m-BF16-0000%d-of-00003.gguf" % (i + 1): part for i, part in enumerate(Gguf(whole).parts(3))}
        names = ("m-Q4_K_M.gguf", "m-Q4_K_XL.gguf", "m-UD-Q4_K_XL.gguf", "m-UD-Q2_K_XL.gguf", "Q6_K/m.gguf", "other/m-Q3_K_S.gguf",
                 "twin-Q5_0.gguf", "m-Q5_0.gguf", "m.iq4_xs.gguf", "mmproj-Q8_0.gguf")
        c.hub.repos["org/tags"] = dict(parts, **{name: whole for name in names})
        c.hub.repos["org/tags"]["BF16/mmproj-BF16.gguf"] = b"eyes"
        for tag, file in (("Q4_K_M", names[0]), ("q4_k_m", names[0]), ("m-Q4_K_M", names[0]), ("Q4_K_XL", names[1]),
                          ("UD-Q4_K_XL", names[2]), ("ud-q4_k_xl", names[2]), ("Q2_K_XL", names[3]), ("Q6_K", names[4]),
                          ("Q3_K_S", names[5]), ("IQ4_XS", names[8]), ("twin-Q5_0", names[6]), ("bf16", sorted(parts)[0])):
            code, out, err = c.run("pull", "org/tags:" + tag)
            check("org/tags:%s is %s" % (tag, file), code == 0 and out.endswith("/" + file + "\n") and
                  "helm-cli --model org/tags:%s chat" % tag in err, (code, out, err))
            code, shown, err = c.run("org/tags:" + tag, program="helm-inspect")
            check("... also to --model", code == 0 and "qwen3" in shown.lower(), (code, shown[-200:], err))
        code, same, err = c.run("pull", "hf.co/org/tags:BF16")
        check("a name as Ollama has it", code == 0 and same == out, (code, same, err))
        folder = os.path.dirname(out.strip())
        check("a split file comes with its parts, and no projector", sorted(os.listdir(folder)) ==
              sorted(os.path.basename(p) for p in parts), (out, os.listdir(folder)))
        snapshot = os.path.dirname(folder)
        check("what no tag named is not there", not os.path.lexists(os.path.join(snapshot, names[7])), os.listdir(snapshot))
        err = c.refused("a tag that is not there", 4, "no GGUF file org/tags:Q4_K_L, the nearest is :Q4_K_M; there are ", "org/tags:Q4_K_L")
        check("... all are listed", ":BF16 " in err and ":Q4_K_XL " in err and ":UD-Q4_K_XL " in err and "mmproj" not in err, err)
        c.refused("a part of a name that is no quantisation", 4, "no GGUF file org/tags:K_M", "org/tags:K_M")
        err = c.refused("a tag of several", 4, "org/tags:Q5_0 means 2 GGUF files, name one of", "org/tags:Q5_0")
        check("... says which", "twin-Q5_0" in err and "m-Q5_0" in err, err)
        for name in ("org/tags:", "org/tags:a/b", "org/tags:a b", "org/tags:../x", "org/tags:" + "x" * 97, "org:Q4/tags"):
            c.refused("a name that is none: " + name[:20], 2, "no name of the hub", name)
        code, out, err = c.run("--model", "org/tags:Q5_0", "tokenize", "Hello")
        check("--model does not guess at what the cache lacks", code == 0, (code, out, err))  # twin-Q5_0 alone is there
        code, out, err = c.run("--model", "org/tags:Q8_0", "status")
        check("--model with a tag that is not in the cache", code == 4 and "`helm-cli pull org/tags:Q8_0`" in err and
              "the nearest is" in err, (code, err))
        code, out, err = c.run("--model", "org/none:Q8_0", "status")
        check("... nor is its repository", code == 4 and "`helm-cli pull org/none:Q8_0`" in err, (code, err))
        code, out, err = c.run("--model", "org/tags:Q4_K_M", "--profile", "tests/data/profiles/described.json", program="helm-plan")
        check("helm-plan takes it", code == 0 and "decode" in out, (code, out, err))
        code, out, err = c.run("--model", "org/tags:bf16", "--profile", "tests/data/profiles/described.json", "--device", "cpu",
                               "generate", "--tokens", "1,2", "-n", "2", "--json")
        check("helmd loads it", code == 0 and len(json.loads(out)["tokens"]) == 2, (code, out, err))
        c.hub.repos["org/safe"] = {"config.json": CONFIG, "model.safetensors": b"x"}
        c.refused("a tag where there is no GGUF file", 4, "org/safe has no GGUF file", "org/safe:Q4_K_M")
        c.hub.repos["org/both"] = {"config.json": b"{}", "model.safetensors": b"x", "m-Q2_K.gguf": whole}
        check("a tag beside safetensors files", c.run("pull", "org/both:q2_k")[0] == 0)
        code, out, err = c.run("org/both:q2_k", program="helm-inspect")
        check("... also to --model", code == 0, (code, err))


def fits_tests():
    """A model that HELM cannot run is refused before its weights are asked for."""
    def refused(c, what, text, name="org/m"):
        c.hub.log.clear()
        err = c.refused(what, 4, text, name)
        heavy = [(p, h.get("Range")) for w, p, h in c.hub.log if p.split("?")[0].endswith((".safetensors", ".gguf")) and not h.get("Range")]
        check("... and no weights were asked for", heavy == [] and c.blobs("org/m") == [], (heavy, c.blobs("org/m")))
        return err

    def config(**changed):
        return json.dumps({k: v for k, v in dict(json.loads(CONFIG), **changed).items() if v is not None}).encode()
    with Case() as c:
        for what, files, text in (
                ("no config.json", {}, "org/m has no config.json"),
                ("a config.json that is no JSON", {"config.json": b"{"}, "config.json: "),
                ("... that is empty", {"config.json": b""}, "config.json: "),
                ("... of another kind", {"config.json": b"[]"}, "config.json: not a JSON object"),
                ("... of more than 1 MiB", {"config.json": b" " * ((1 << 20) + 1)}, "the limit is 1048576"),
                ("... without an architecture", {"config.json": b"{}"}, "'architectures' and 'model_type' are both missing"),
                ("an architecture", {"config.json": config(architectures=["NemotronHForCausalLM"], model_type="nemotron_h")},
                 "org/m is not downloaded, as HELM cannot run it: config.json: architecture 'NemotronHForCausalLM' is not supported (supported: "),
                ("a quantization", {"config.json": config(quantization_config={"quant_method": "awq"})}, "(method 'awq') is not supported"),
                ("no layers", {"config.json": config(num_hidden_layers=None)}, "'num_hidden_layers'"),
                ("a generation_config.json", {"config.json": CONFIG, "generation_config.json": b"{"}, "generation_config.json: ")):
            c.hub.repos["org/m"] = dict(files, **{"model.safetensors": b"x" * 1000})
            err = refused(c, what + " is refused", text)
            check("... without the name of a temporary folder", "/tmp" not in err and "helm-pull" not in err, err)
            if what == "an architecture":
                check("... with those that are", "LlamaForCausalLM" in err and "Qwen3ForCausalLM" in err, err)
        gguf = Gguf(read(GGUF))

        def offer(keys={}, tensors=None, without=(), cut=None):
            data = gguf.bytes(dict({k: v for k, v in gguf.keys.items() if k not in without}, **keys), tensors)
            c.hub.repos["org/m"] = {"m-Q2_K.gguf": data[:cut]}
            return data
        offer({"general.architecture": string("nemotron_h")})
        err = refused(c, "a GGUF file's architecture is refused", "org/m is not downloaded, as HELM cannot run it: m-Q2_K.gguf: ")
        check("... by name, with those that are", "'nemotron_h'" in err and "supported: llama" in err and "/tmp" not in err, err)
        refused(c, "... also by its tag", "'nemotron_h'", "org/m:Q2_K")
        refused(c, "... and by its name", "'nemotron_h'", "org/m/m-Q2_K.gguf")
        for kind, name in ((35, "TQ2_0"), (34, "TQ1_0"), (99, "unknown")):
            offer(tensors=[[n, s, kind if n == "blk.1.ffn_up.weight" else k, d] for n, s, k, d in gguf.tensors])
            err = refused(c, "tensors of type %s are refused" % name, "tensor 'blk.1.ffn_up.weight': type %s (%d) is not supported (supported: " % (name, kind))
            check("... with those that are", "Q4_K" in err and "BF16" in err, err)
        offer(without=("qwen3.block_count",))
        refused(c, "a key that is missing is named", "qwen3.block_count")
        offer(tensors=[t for t in gguf.tensors if t[0] != "blk.1.ffn_up.weight"])
        refused(c, "a tensor that is missing is named", "blk.1.ffn_up.weight")
        offer(cut=-5000)
        refused(c, "a file that was uploaded in part", "an incomplete download")
        offer(cut=100)
        refused(c, "... hardly at all", "m-Q2_K.gguf: ")
        c.hub.repos["org/m"] = {"m-Q2_K.gguf": b"version https://git-lfs.github.com/spec/v1\n"}
        refused(c, "what is no GGUF file", "no GGUF file")
        parts = gguf.parts(3)
        c.hub.repos["org/m"] = {"m-0000%d-of-00003.gguf" % (i + 1): part for i, part in enumerate(parts) if i != 1}
        refused(c, "a part that is missing", "is one of 3 parts, of which org/m has 2")
        c.hub.repos["org/m"] = {"m-0000%d-of-00003.gguf" % (i + 1): parts[0] for i in range(3)}
        refused(c, "parts of other files", "split.no")
        other = [[n, s, 35 if n == gguf.tensors[-1][0] else k, d] for n, s, k, d in gguf.tensors]
        c.hub.repos["org/m"] = {"m-0000%d-of-00003.gguf" % (i + 1): part for i, part in enumerate(Gguf(gguf.bytes(tensors=other)).parts(3))}
        refused(c, "a type in the last part", "type TQ2_0 (35) is not supported")
        long = offer({"a.long.key": string("x" * (5 << 20))})
        c.hub.log.clear()
        code, out, err = c.run("pull", "org/m")
        asked = [h.get("Range") for w, _, h in c.hub.log if w == "store"]
        check("a header is read as far as it goes", code == 0 and asked[:-1] == ["bytes=0-1048575", "bytes=1048576-2097151",
              "bytes=2097152-4194303", "bytes=4194304-%d" % (len(long) - 1)] and asked[-1] is None, (code, asked, err))
        check("... and the file is whole", read(out.strip()) == long)
        shutil.rmtree(c.cache)
        c.hub.ranges = False
        code, out, err = c.run("pull", "org/m")
        check("... also from a server that knows no ranges", code == 0 and read(out.strip()) == long, (code, err))
        offer({"a.long.key": string("x" * (5 << 20)), "general.architecture": string("nemotron_h")})
        shutil.rmtree(c.cache)
        c.hub.log.clear()
        c.refused("... which is asked no more than without", 4, "'nemotron_h'", "org/m")
        c.hub.ranges = True
        c.hub.cut = [100, 200]
        err = refused(c, "answers that break off in a header are asked again", "'nemotron_h'")
        left = [n for n in os.listdir(os.environ.get("TMPDIR") or "/tmp") if n.startswith("helm-pull-") and
                os.path.exists(os.path.join(os.environ.get("TMPDIR") or "/tmp", n, "m-Q2_K.gguf"))]
        check("nothing is left in the folder for temporary files", left == [], left)


def find_ggufs():
    for folder, _, names in os.walk("tests/data/golden-gguf"):
        for name in names:
            if name.endswith(".gguf"):
                yield os.path.join(folder, name)


def break_tests():
    data = bytes(range(256)) * 4000
    with Case() as c:
        c.hub.add("org/tiny", config_DOT_json=CONFIG, model_DOT_safetensors=data)
        c.hub.cut = [100000, 300000]
        code, out, err = c.run("pull", "org/tiny")
        ranges = [h.get("Range") for w, _, h in c.hub.log if w == "store"]
        check("an answer that breaks off is gone on with", code == 0 and ranges[0] is None and len(ranges) == 3 and
              all(r.startswith("bytes=") for r in ranges[1:]), (code, ranges, err))
        check("... and is whole", read(os.path.join(out.strip(), "model.safetensors")) == data)
    with Case() as c:
        c.hub.add("org/tiny", config_DOT_json=CONFIG, model_DOT_safetensors=data)
        c.hub.cut, c.hub.ranges = [100000], False
        code, out, err = c.run("pull", "org/tiny")
        check("a server without ranges begins again", code == 0 and read(os.path.join(out.strip(), "model.safetensors")) == data, (code, err))
    with Case() as c:
        c.hub.add("org/tiny", config_DOT_json=CONFIG, model_DOT_safetensors=data)
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
        c.hub.add("org/tiny", config_DOT_json=CONFIG, model_DOT_safetensors=data)
        os.makedirs(blobs := os.path.join(c.cache, "models--org--tiny/blobs"))
        with open(os.path.join(blobs, Hub.blob("model.safetensors", data) + ".incomplete"), "wb") as f:
            f.write(b"z" * 500000)
        c.refused("what was left and is not of this file", 4, "checksum", "org/tiny")
        check("... is not kept", c.blobs("org/tiny") == [Hub.blob("config.json", CONFIG)], c.blobs("org/tiny"))
        check("... and the next run has it", c.run("pull", "org/tiny")[0] == 0)
    with Case() as c:
        c.hub.add("org/tiny", config_DOT_json=CONFIG, model_DOT_safetensors=data)
        small = [Hub.blob("config.json", CONFIG)]
        c.hub.wrong["model.safetensors"] = data[::-1]
        c.refused("a wrong checksum", 4, "checksum", "org/tiny")
        check("... leaves nothing of it", c.blobs("org/tiny") == small and not os.path.exists(os.path.join(c.cache, "models--org--tiny/refs")))
        c.hub.wrong, c.hub.etag = {}, "0" * 64
        c.refused("a file that has changed meanwhile", 4, "another one than it listed", "org/tiny")
        check("... leaves nothing of it", c.blobs("org/tiny") == small, c.blobs("org/tiny"))
        c.hub.etag = None
        c.hub.extra = {"siblings": [{"rfilename": "config.json", "size": len(CONFIG), "blobId": small[0]},
                                    {"rfilename": "model.safetensors", "size": 1000, "lfs": {
                                        "sha256": Hub.blob("model.safetensors", data), "size": 1000}}]}
        c.refused("a file that is longer than it was listed", 4, "more than the 1000 bytes", "org/tiny")
    with Case() as c:  # Ctrl-C in the middle
        c.hub.add("org/tiny", config_DOT_json=CONFIG, model_DOT_safetensors=data)
        c.hub.cut = [1000] * 100
        p = subprocess.Popen([os.path.join(BIN, "helm-cli"), "pull", "org/tiny"], env=c.env, stderr=subprocess.PIPE)
        processor.until(lambda: any(b.endswith(".incomplete") for b in c.blobs("org/tiny")))
        time.sleep(0.2)
        p.send_signal(signal.SIGINT)
        err = processor.finish(p, 20)[1]
        check("Ctrl-C ends it", p.returncode == 130, (p.returncode, err))
        left = [b for b in c.blobs("org/tiny") if b.endswith(".incomplete")]
        check("... and leaves what came", len(left) == 1, c.blobs("org/tiny"))


def checksum_tests():
    """Wrong bytes are kept of no file: of none of the sizes, whole or gone on with."""
    tokens = read(os.path.join(MODEL, "tokenizer.json"))
    weights = bytes(range(256)) * 4000
    files = {"config.json": CONFIG, "tokenizer.json": tokens, "model.safetensors": weights, "special_tokens_map.json": b""}

    def wrong(name):
        return CONFIG.replace(b"256", b"512") if name == "config.json" else files[name][:-1] + b"?"
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        blob = Hub.blob(name, files[name])
        check("other bytes of %s are as many" % name, wrong(name) != files[name] and len(wrong(name)) == len(files[name]))
        with Case() as c:
            c.hub.repos["org/tiny"] = files
            c.hub.wrong[name] = wrong(name)
            c.refused("other bytes of %s, as many" % name, 4, "checksum", "org/tiny")
            check("... are not kept", not [b for b in c.blobs("org/tiny") if b.startswith(blob)], c.blobs("org/tiny"))
            del c.hub.wrong[name]
            code, out, err = c.run("pull", "org/tiny")
            check("... and the next run has them", code == 0 and read(os.path.join(out.strip(), name)) == files[name], (code, err))
            check("... the empty file too", read(os.path.join(out.strip(), "special_tokens_map.json")) == b"")
            kept = os.path.join(c.cache, "models--org--tiny/blobs", blob)
            if name == "model.safetensors":  # at most 64 MiB are compared again
                check("its blob is named by its checksum", read(kept) == weights)
            with open(kept, "wb") as f:
                f.write(wrong(name))
            code, out, err = c.run("pull", "org/tiny")
            check("wrong bytes that the cache has are fetched again", code == 0 and read(kept) == files[name] and
                  name + ": the cache has wrong bytes" in err, (code, err))
        for what, left in (("half of it, of zeros", bytes(len(files[name]) // 2)), ("all of it, of zeros", bytes(len(files[name]))),
                           ("its half, with a letter changed", b"?" + files[name][1:len(files[name]) // 2]),
                           ("more than it has", files[name] + b"more")):
            with Case() as c:
                c.hub.repos["org/tiny"] = files
                os.makedirs(blobs := os.path.join(c.cache, "models--org--tiny/blobs"))
                with open(os.path.join(blobs, blob + ".incomplete"), "wb") as f:
                    f.write(left)
                if len(left) <= len(files[name]):
                    c.refused("left of %s: %s" % (name, what), 4, "that an earlier run left were wrong", "org/tiny")
                    check("... is removed", not [b for b in c.blobs("org/tiny") if b.startswith(blob)], c.blobs("org/tiny"))
                code, out, err = c.run("pull", "org/tiny")
                check("... and then %s is whole" % name, code == 0 and read(os.path.join(out.strip(), name)) == files[name] and
                      not [b for b in c.blobs("org/tiny") if "." in b], (code, err))
        with Case() as c:
            c.hub.repos["org/tiny"] = files
            os.makedirs(blobs := os.path.join(c.cache, "models--org--tiny/blobs"))
            with open(os.path.join(blobs, blob + ".incomplete"), "wb") as f:
                f.write(files[name][:100])
            code, out, err = c.run("pull", "org/tiny")
            check("what was left of %s and is right is gone on with" % name, code == 0 and
                  read(os.path.join(out.strip(), name)) == files[name] and
                  "bytes=100-" in [h.get("Range") for _, _, h in c.hub.log], (code, err))


def token_tests():
    with Case() as c:
        c.hub.add("org/secret", model_DOT_safetensors=b"x" * 1000, config_DOT_json=CONFIG)
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
        c.hub.add("org/tiny", config_DOT_json=CONFIG, model_DOT_safetensors=b"x" * 1000)
        for name in ("../../../../evil", "/etc/evil", "a/../../evil", "a\\b", "a\nb", "", "a//b", "x" * 600):
            c.hub.name = lambda _, name=name: name
            c.refused("a file called %r" % name[:20], 4, "the hub's answer", "org/tiny")
        c.hub.name = lambda name: name
        for extra in ({"sha": "../../x"}, {"sha": "main"}, {"sha": None}, {"siblings": {}}, {"siblings": [1]},
                      {"siblings": [{"rfilename": "model.safetensors", "size": -1}]},
                      {"siblings": [{"rfilename": "model.safetensors", "size": 5, "lfs": {"sha256": "../../../x", "size": 5}}]}):
            c.hub.extra = extra
            c.refused("a list with %s" % json.dumps(extra)[:60], 4, "the hub's answer", "org/tiny")
        config = {"rfilename": "config.json", "size": len(CONFIG), "blobId": Hub.blob("config.json", CONFIG)}
        for entry in ({"size": 5}, {"size": 5, "lfs": {"size": 5}}, {"size": 5, "blobId": "0" * 40, "lfs": {"size": 5}}):
            c.hub.extra = {"siblings": [config, dict(entry, rfilename="model.safetensors")]}
            c.refused("a file without a checksum: %s" % entry, 4, "does not say which blob model.safetensors is", "org/tiny")
        c.hub.extra = {"siblings": [config, {"rfilename": "model.safetensors", "size": 1 << 49, "lfs": {"sha256": "0" * 64, "size": 1 << 49}}]}
        c.refused("more than the disk has", 4, "is free", "org/tiny")
        found = [os.path.join(d, n) for d, _, names in os.walk(c.home) for n in names]
        check("... and none of it left a file", found == [], found)


for tests in (layout_tests, place_tests, gguf_tests, tag_tests, fits_tests, break_tests, checksum_tests, token_tests,
              stranger_tests):
    tests()
print("%d passed, %d failed" % (counts[True], counts[False]))
sys.exit(1 if counts[False] else 0)
