#!/usr/bin/python3
"""Requests of llama.cpp's own server tests (tools/server/tests/unit of ggml-org/llama.cpp, read 2026-11-25),
asked of helm-gateway with the demo model. The cases are written anew; what holds of each is the table of
docs/llama-server-tests.md, whose every row must have a case here and whose verdict must be the case's:
`holds`, `otherwise` (another path, name or shape) or `no`.

HELM_BIN, HELM_PYPROTO as in tests/process. Long form: `make test-llama-server`.
"""
import concurrent.futures
import json
import os
import re
import sys
import tempfile

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process"]
import helmd_harness as helmd  # noqa: E402
from gateway_harness import Gateway, check, sum_up, until  # noqa: E402

TABLE = "docs/llama-server-tests.md"
LIFE = "I believe the meaning of life is"
BOOK = [{"role": "system", "content": "Book"}, {"role": "user", "content": "What is the best book"}]
CASES = {}


def case(name, verdict):
    def note(function):
        assert name not in CASES, name
        CASES[name] = verdict, function
        return function
    return note


def complete(g, prompt=LIFE, **fields):
    return g.post("/v1/completions", {"prompt": prompt, "max_tokens": 8, **fields})


def chat(g, messages=None, **fields):
    return g.post("/v1/chat/completions", {"messages": BOOK if messages is None else messages, "max_tokens": 8, **fields})


def text(answer):
    return answer.json["choices"][0].get("text") or answer.json["choices"][0]["message"]["content"]


def refused(answer, status, says=""):
    return answer.status == status and says in answer.json["error"]["message"]


# ---- test_basic.py ----

@case("`/health` is 200", "holds")
def health(g):
    return g.get("/health").status == 200


@case("`/models` lists the one model", "holds")
def models(g):
    return all([m["id"] for m in g.get(path).json["data"]] == ["demo"] for path in ("/models", "/v1/models"))


@case("`/props`; `/slots` lists open requests", "otherwise")
def props(g):
    props = g.get("/props").json
    return props["total_slots"] == 4 and props["default_generation_settings"]["n_ctx"] == 512 and g.get("/slots").json == []


@case("a page at `/`", "holds")
def page(g):
    return b"<!doctype html>" in g.get("/").body


# ---- test_completion.py ----

@case("`/completion` with `n_predict`", "otherwise")
def native(g):
    a = complete(g, ignore_eos=True)
    return (g.post("/completion", {"prompt": LIFE, "n_predict": 8}).status == 404 and a.json["usage"]["completion_tokens"] == 8 and
            a.json["choices"][0]["finish_reason"] == "length" and refused(complete(g, n_predict=8), 400, "n_predict"))


@case("a stream is the same text", "holds")
def streamed(g):
    pieces = [c["text"] for e in complete(g, stream=True, temperature=0).events for c in e["choices"]]
    return len(pieces) > 2 and "".join(pieces) == text(complete(g, temperature=0))


@case("ids, `finish_reason` and usage as OpenAI's library reads them", "holds")
def shape(g):
    a = complete(g, ignore_eos=True).json
    return a["id"].startswith("cmpl-") and a["object"] == "text_completion" and a["usage"]["total_tokens"] == a["usage"]["prompt_tokens"] + 8


@case("`system_fingerprint`", "no")
def fingerprint(g):
    return "system_fingerprint" not in complete(g).json


@case("stop texts across tokens, streamed", "holds")
def stops(g):
    whole = text(complete(g, temperature=0, max_tokens=40))
    stop = whole[9:14]
    pieces = [c["text"] for e in complete(g, temperature=0, max_tokens=40, stop=[stop, "never"], stream=True).events for c in e["choices"]]
    return "".join(pieces) == whole[:whole.index(stop)]


@case("the same seed gives the same text", "holds")
def same_seed(g):
    return len({text(complete(g, seed=42, temperature=t, max_tokens=24)) for t in (1, 1, 1)}) == 1


@case("other seeds give other texts", "holds")
def other_seeds(g):
    return len({text(complete(g, seed=s, temperature=1, max_tokens=24)) for s in range(4)}) == 4


@case("a prompt beyond the context is 400", "holds")
def too_long(g):
    return refused(complete(g, LIFE * 200), 400) and complete(g, LIFE * 200).json["error"]["code"] == "context_length_exceeded"


@case("prompts of token ids, lists of them, texts and ids mixed in a list", "holds")
def token_prompts(g):
    ids = g.post("/tokenize", {"content": LIFE, "add_special": True}).json["tokens"]
    texts = [c["text"] for prompt in (ids, [ids, ids], [ids, LIFE]) for c in complete(g, prompt, temperature=0).json["choices"]]
    return len(texts) == 5 and len(set(texts)) == 1


@case("texts and ids mixed in one prompt", "no")
def mixed_prompt(g):
    return refused(complete(g, [1, 2, LIFE, 3]), 400, "prompt")


@case("more requests than slots", "holds")
def parallel(g):
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda i: complete(g, "Write text %d" % i, max_tokens=40, seed=i, temperature=1, ignore_eos=True), range(12)))
    return all(a.status == 200 and len(text(a)) > 10 for a in answers)


@case("`n_probs`: tokens with their likeliest", "otherwise")
def probabilities(g):
    found = complete(g, logprobs=5, max_tokens=5, temperature=0, ignore_eos=True).json["choices"][0]["logprobs"]
    return (refused(complete(g, n_probs=10), 400, "n_probs") and len(found["tokens"]) == 5 and
            all(p <= 0 for p in found["token_logprobs"]) and all(len(t) >= 5 for t in found["top_logprobs"]))


@case("`logit_bias` by token id", "holds")
def bias(g):
    ids = g.post("/tokenize", {"content": " the and of"}).json["tokens"]
    out = text(complete(g, temperature=0, max_tokens=64, ignore_eos=True, logit_bias={str(i): -100 for i in ids}))
    return out and not re.search(r" (the|and|of)\b", out)


@case("`logit_bias` by text, or as a list of pairs", "no")
def bias_texts(g):
    return refused(complete(g, logit_bias={" the ": -100}), 400, "logit_bias") and refused(complete(g, logit_bias=[[5, -100]]), 400, "logit_bias")


@case("`response_fields`, `return_tokens`, `post_sampling_probs`", "no")
def llama_fields(g):
    return all(refused(complete(g, **{name: value}), 400, name) for name, value in
               (("response_fields", ["content"]), ("return_tokens", True), ("post_sampling_probs", True)))


@case("`cache_prompt`, `timings_per_token`, `return_progress`", "otherwise")
def llama_hints(g):
    return all(answer.status == 200 and name in answer.headers["x-helm-ignored"] for answer, name in
               ((complete(g, cache_prompt=False), "cache_prompt"), (chat(g, timings_per_token=True), "timings_per_token"),
                (chat(g, return_progress=True), "return_progress")))


@case("a client that goes away is cancelled", "holds")
def cancelled(g):
    try:
        g.request("POST", "/v1/completions", {"prompt": LIFE, "max_tokens": 480, "ignore_eos": True}, timeout=0.03)
    except OSError:
        pass
    return until(lambda: g.metric("helm_gateway_generations_open") == 0, 2)


# ---- test_ctx_shift.py, test_ignore_eos.py ----

@case("a context that is full ends the text (`length`); it is not shifted", "holds")
def full_context(g):
    a = complete(g, "Once", max_tokens=500, ignore_eos=True).json
    return a["choices"][0]["finish_reason"] == "length" and refused(complete(g, "Once", max_tokens=600), 400)


@case("`ignore_eos`", "holds")
def ignore_eos(g):
    return complete(g, max_tokens=100, ignore_eos=True).json["usage"]["completion_tokens"] == 100


# ---- test_chat_completion.py ----

@case("a chat with a system message", "holds")
def chats(g):
    a = chat(g, ignore_eos=True).json
    return (a["id"].startswith("chatcmpl-") and a["choices"][0]["message"]["role"] == "assistant" and
            a["choices"][0]["finish_reason"] == "length" and a["usage"]["completion_tokens"] == 8)


@case("any name of a model is taken", "otherwise")
def any_model(g):
    return refused(chat(g, model="gpt-3.5-turbo-instruct"), 404) and chat(g, model="an-alias").status == 200


@case("streamed: the role first and alone, one id, the end without content", "holds")
def chat_stream(g):
    events = chat(g, stream=True, ignore_eos=True).events
    choices = [e["choices"][0] for e in events]
    return (choices[0]["delta"]["role"] == "assistant" and not choices[0]["delta"]["content"] and len({e["id"] for e in events}) == 1 and
            not any("role" in c["delta"] for c in choices[1:]) and choices[-1]["finish_reason"] == "length" and
            not choices[-1]["delta"].get("content") and all(c["finish_reason"] is None for c in choices[:-1]))


@case("content in parts of text", "holds")
def parts(g):
    split = [{"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": " the best book"}]}]
    return text(chat(g, split, temperature=0)) == text(chat(g, [{"role": "user", "content": "What is the best book"}], temperature=0))


@case("a last message of the assistant is gone on with", "no")
def prefill(g):
    asked = [{"role": "user", "content": "test"}, {"role": "assistant", "content": "And it came"}]
    return chat(g, asked).json["usage"]["prompt_tokens"] > chat(g, asked[:1]).json["usage"]["prompt_tokens"] + 3


@case("`/apply-template`", "holds")
def apply_template(g):
    return "What is the best book<|im_end|>" in g.post("/apply-template", {"messages": BOOK}).json["prompt"]


@case("`response_format`: `json_object` with a schema, `json_schema`", "holds")
def formats(g):
    return (json.loads(text(chat(g, response_format={"type": "json_object", "schema": {"const": "42"}}, max_tokens=12))) == "42" and
            json.loads(text(chat(g, response_format={"type": "json_schema", "json_schema": {"schema": {"const": "foooooo"}}}, max_tokens=20)))
            == "foooooo" and text(chat(g, response_format={"type": "json_object"})).lstrip().startswith("{"))


@case("wrong formats and schemas are 400", "holds")
def wrong_formats(g):
    return all(refused(chat(g, response_format=f), 400) for f in (
        {"type": "sound"}, {"type": "json_object", "schema": 123}, {"type": "json_object", "schema": {"type": 123}},
        {"type": "json_object", "schema": {"type": "hiccup"}}))


@case("`json_schema`, `grammar` of a chat", "holds")
def constraints(g):
    return json.loads(text(chat(g, json_schema={"const": "42"}))) == "42" and text(chat(g, grammar='root ::= "a"{5,5}')) == "aaaaa"


@case("wrong `messages` are 400", "holds")
def wrong_messages(g):
    return all(g.post("/v1/chat/completions", {"messages": m}).status == 400 for m in (
        None, "string", [123], [{}], [{"role": 123}], [{"role": "system", "content": 123}], [{"role": "system", "content": "test"}, {}]))


@case("two messages of the assistant at the end are refused", "no")
def two_answers(g):
    return chat(g, [{"role": "user", "content": "test"}] + 2 * [{"role": "assistant", "content": "test"}]).status == 200


@case("`logprobs` spell the text, whole and streamed", "holds")
def logprobs(g):
    a = chat(g, logprobs=True, top_logprobs=10, temperature=0).json["choices"][0]
    whole = a["logprobs"]["content"]
    events = chat(g, logprobs=True, top_logprobs=10, temperature=0, stream=True).events
    streamed = [t for e in events for c in e["choices"] if c["logprobs"] for t in c["logprobs"]["content"]]
    return (b"".join(bytes(t["bytes"]) for t in whole).decode().strip() == a["message"]["content"].strip() and
            [t["token"] for t in whole] == [t["token"] for t in streamed] and
            all(t["logprob"] <= 0 and len(t["top_logprobs"]) == 10 for t in whole))


@case("too long a chat says both numbers", "otherwise")
def chat_too_long(g):
    a = chat(g, BOOK * 100)
    return a.json["error"]["code"] == "context_length_exceeded" and len(re.findall(r"\d+", a.json["error"]["message"])) >= 2 and a.status == 400


@case("`n` answers", "holds")
def several(g):
    return [c["index"] for c in chat(g, n=2).json["choices"]] == [0, 1]


# ---- test_security.py ----

KEYED = {}


@case("no key or a wrong one is 401", "holds")
def wrong_key(_):
    g = KEYED["gateway"]
    return all(refused(g.request("POST", "/v1/completions", {"prompt": LIFE}, headers={"Authorization": k}), 401) for k in ("", "Bearer invalid-key"))


@case("the right key", "holds")
def right_key(_):
    return complete(KEYED["gateway"]).status == 200


@case("the key as `X-Api-Key`", "holds")
def other_header(_):
    return KEYED["gateway"].request("POST", "/v1/completions", {"prompt": LIFE}, headers={"Authorization": "", "X-Api-Key": "sk-right"}).status == 200


@case("`/health` and the page need no key", "holds")
def public(_):
    return all(KEYED["gateway"].request("GET", p, headers={"Authorization": ""}).status == 200 for p in ("/health", "/"))


@case("`/models` needs no key", "no")
def private_models(_):
    return KEYED["gateway"].request("GET", "/v1/models", headers={"Authorization": ""}).status == 401


@case("CORS for any origin", "no")
def cors(g):
    a = g.request("OPTIONS", "/v1/completions", headers={"Origin": "http://web.mydomain.fr", "Access-Control-Request-Method": "POST"})
    return a.status == 403 and "Access-Control-Allow-Origin" not in a.headers


@case("images", "no")
def images(g):
    return refused(chat(g, [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file://test.jpeg"}}]}]), 400, "image_url")


# ---- test_tokenize.py, test_metrics.py ----

@case("`/tokenize` and `/detokenize` there and back", "holds")
def there_and_back(g):
    ids = g.post("/tokenize", {"content": "What is the capital of France ?"}).json["tokens"]
    return len(ids) > 5 and g.post("/detokenize", {"tokens": ids}).json["content"].strip() == "What is the capital of France ?"


@case("`with_pieces`", "no")
def pieces(g):
    return refused(g.post("/tokenize", {"content": "a", "with_pieces": True}), 400, "with_pieces")


@case("`/metrics` for Prometheus", "otherwise")
def metrics(g):
    body = g.get("/metrics").body.decode()
    return "llamacpp:" not in body and re.search(r"^helm_\w+ \d", body, re.M)


# ---- test_embedding.py, test_compat_oai_responses.py, test_compat_anthropic.py, test_tool_call.py and others ----

@case("`/v1/embeddings`: texts, ids, lists; of length 1", "holds")
def embeddings(g):
    a = g.post("/v1/embeddings", {"input": ["string", [12, 34]]}).json
    return len(a["data"]) == 2 and all(abs(sum(x * x for x in d["embedding"]) - 1) < 1e-3 for d in a["data"])


@case("embeddings of nothing are 400", "holds")
def no_embeddings(g):
    return g.post("/v1/embeddings", {"input": []}).status == 400


@case("`/v1/responses`, whole", "holds")
def responses(g):
    a = g.post("/v1/responses", {"input": BOOK, "max_output_tokens": 8}).json
    return a["id"].startswith("resp_") and a["output"][0]["id"].startswith("msg_") and a["output"][0]["content"][0]["text"]


@case("`/v1/messages` (Anthropic's)", "holds")
def anthropic(g):
    a = g.post("/v1/messages", {"messages": BOOK[1:], "system": "Book", "max_tokens": 8}).json
    return a["type"] == "message" and a["content"][0]["text"] and a["usage"]["output_tokens"] == 8


@case("`/rerank` with a model that is no reranker", "holds")
def rerank(g):
    return refused(g.post("/rerank", {"query": "a", "documents": ["b"]}), 400, "no reranker")


@case("tools where the template has none", "no")
def tools(g):
    tool = {"type": "function", "function": {"name": "test", "parameters": {"type": "object"}}}
    return refused(chat(g, tools=[tool]), 400, "template has no tools") and chat(g, tools=[]).status == 200


@case("`/infill`, `/lora-adapters`, `/slots/0?action=save`", "no")
def absent(g):
    return all(g.post(p, {}).status == 404 for p in ("/infill", "/lora-adapters", "/slots/0?action=save"))


def rows():
    with open(TABLE) as f:
        found = re.findall(r"^\| (.*?) \| `test_\w+\.py` \| (holds|otherwise|no)\b", f.read(), re.M)
    return dict(found)


def main():
    table = rows()
    check("each row has its case, each case its row", table.keys() == CASES.keys(), table.keys() ^ CASES.keys())
    with tempfile.NamedTemporaryFile("w") as keys, helmd.running("--ctx", "512", "--parallel", "4", real=True) as daemon:
        keys.write("sk-right\n")
        keys.flush()
        os.chmod(keys.name, 0o600)
        with Gateway(daemon.endpoint, "--alias", "an-alias") as g, Gateway(daemon.endpoint, "--api-keys", keys.name, key="sk-right") as keyed:
            KEYED["gateway"] = keyed
            for name, (verdict, function) in CASES.items():
                try:
                    found = bool(function(g))
                except (KeyError, ValueError, IndexError, TypeError, AssertionError, OSError) as error:
                    found = False
                    name += " (%r)" % error
                check("%s: %s" % (name, verdict), found and table.get(name) == verdict, (found, table.get(name)))
    counts = {v: sum(w == v for w in table.values()) for v in ("holds", "otherwise", "no")}
    print("      of %d rows %d hold, %d are otherwise, %d are not there" % (len(table), counts["holds"], counts["otherwise"], counts["no"]))
    sum_up()


main()
