#!/usr/bin/python3
"""The Python package: built as it is installed, then text, chats and asyncio against a real daemon on the demo model.
HELM_BIN: folder of the release build's programs. Run from the repository's root."""
import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import processor

BIN = os.path.abspath(os.environ["HELM_BIN"])
DEMO = os.path.abspath("tools/models/demo")
PROMPT = "And it came to pass"
counts = {True: 0, False: 0}


def check(name, ok, detail=""):
    counts[bool(ok)] += 1
    print("%s %s%s" % ("ok  " if ok else "FAIL", name, "" if ok else ("  [%s]" % (detail,))[:1500]), flush=True)


def refused(call, *words):
    import helm_client
    try:
        call()
    except helm_client.HelmError as e:
        return all(word in str(e) for word in words) or str(e)
    return "no error"


def cli(endpoint, *arguments):
    return processor.run([BIN + "/helm-cli", "--connect", endpoint, *arguments], capture_output=True, text=True,
                          timeout=60, stdin=subprocess.DEVNULL)


def wait_ready(daemon, endpoint):
    import helm_client
    until = processor.clock() + 60
    while processor.clock() < until and daemon.poll() is None:
        try:
            with helm_client.Client(endpoint) as client:
                if client.status().state == "ready":
                    return True
        except helm_client.HelmError:
            pass
        time.sleep(0.1)
    return False


def text_tests(folder):
    from helm_client import Chat, Detokenizer, Tokenizer
    tokenizer = Tokenizer(DEMO)
    for text in (PROMPT, "", "Ünïcode 😀 \n\t mixed"):
        ids = tokenizer.encode(text, add_special=False)
        check("ids to text and back: %r" % text, tokenizer.decode(ids) == text, tokenizer.decode(ids))
    ids = tokenizer.encode("😀 and the 7th day", add_special=False)
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(i) for i in ids] + [detokenizer.finish()]
    check("pieces put together", "".join(pieces) == "😀 and the 7th day", pieces)
    check("the vocabulary's size", 0 < tokenizer.vocab_size <= 1 << 24, tokenizer.vocab_size)
    said = refused(lambda: Tokenizer(folder + "/nothing"), "nothing")
    check("a folder that is not there is named", said is True, said)
    shutil.copytree(DEMO, folder + "/plain", ignore=shutil.ignore_patterns("*.safetensors", "tokenizer_config.json"))
    said = refused(lambda: Chat(folder + "/plain"), "template")
    check("a model without a chat template is refused", said is True, said)
    shutil.copytree(DEMO, folder + "/chat", ignore=shutil.ignore_patterns("*.safetensors"))
    with open(folder + "/chat/chat_template.jinja", "w") as f:
        f.write("{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if loud %}!{% endif %}"
                "{% if add_generation_prompt %}<assistant>{% endif %}")
    chat = Chat(folder + "/chat")
    check("a chat is rendered", chat.render([{"role": "user", "content": "Hi"}], loud=True) == "<user>Hi\n!<assistant>",
          chat.render([{"role": "user", "content": "Hi"}], loud=True))
    tokenizer = Tokenizer(DEMO)
    demo, end = Chat(DEMO), tokenizer.encode("<|im_end|>", parse_added=True, add_special=False)
    counts_of = [demo.encode(tokenizer, [{"role": "user", "content": text}], allow_special=allow).count(end[0]) for text, allow in
                 (("a", False), ("a<|im_end|>", False), ("a<|im_end|>", True))]
    check("a message that spells a control token is text", len(end) == 1 and counts_of == [1, 1, 2], (end, counts_of))


def model_tests(folder, endpoint):
    from helm_client import Client, Model
    with Client(endpoint) as client, Model(client) as model:
        pieces = list(model.stream(PROMPT, max_tokens=24, seed=7, temperature=0))
        said = cli(endpoint, "run", PROMPT, "-n", "24", "--seed", "7", "--temperature", "0")
        check("streamed text is helm-cli's", "".join(pieces) == said.stdout.rstrip("\n") or
              "".join(pieces).rstrip("\n") == said.stdout.rstrip("\n"), ("".join(pieces), said.stdout, said.stderr))
        check("several pieces", len(pieces) > 3, len(pieces))
        answer = model.complete(PROMPT, max_tokens=24, seed=7)
        check("the same again, whole", answer.text == "".join(pieces), answer)
        check("what it says of itself", answer.finish_reason == "length" and answer.seed == 7 and len(answer.tokens) == 24
              and answer.prompt_tokens > 0 and answer.decode_tok_s > 0, answer)
        said = refused(lambda: model.complete(PROMPT, max_tokens=1 << 20), "max_tokens")
        check("what does not fit is refused by name", said is True, said)
        stream = model.stream(PROMPT, max_tokens=400, ignore_eos=True)
        next(stream)
        stream.close()
        check("a stream that is left is cancelled", processor.until(lambda: not client.list()), client.list())
    with Client(endpoint) as client, Model(client, folder + "/chat") as model:
        answer = model.chat([{"role": "user", "content": "Hi"}], max_tokens=8, template={"loud": True})
        check("a chat is answered", len(answer.tokens) == 8, answer)


async def async_tests(endpoint):
    from helm_client.aio import AsyncClient, AsyncModel
    from helm_client import HelmError
    async with AsyncClient(endpoint) as client:
        check("asyncio: status", (await client.status()).state == "ready")
        model = await AsyncModel.open(client)
        prompts = [PROMPT, "In the beginning", "And the LORD said", PROMPT]
        answers = await asyncio.gather(*[model.complete(p, max_tokens=16) for p in prompts])
        check("asyncio: four at once", all(len(a.tokens) == 16 for a in answers), answers)
        check("asyncio: the same prompt, the same answer", answers[0].tokens == answers[3].tokens, answers)
        try:
            await model.complete(PROMPT, max_tokens=1 << 20)
            said = "no error"
        except HelmError as e:
            said = str(e)
        check("asyncio: what does not fit is refused", "max_tokens" in said, said)
        async with contextlib.aclosing(model.stream(PROMPT, max_tokens=400, ignore_eos=True)) as stream:
            async for _ in stream:
                break
        until = processor.clock() + 30
        while await client.list() and processor.clock() < until:
            await asyncio.sleep(0.02)
        check("asyncio: a stream that is left is cancelled", not await client.list())
    async with AsyncClient("ipc://%s.nobody" % endpoint[len("ipc://"):], timeout_s=0.2) as client:
        try:
            await client.status()
            said = "no error"
        except HelmError as e:
            said = str(e)
        check("asyncio: nobody there", "no answer from" in said, said)


def main():
    folder = tempfile.mkdtemp(prefix="helm-python-")
    built = subprocess.run(["/usr/bin/python3", "setup.py", "-q", "build", "--build-base",
                            folder + "/build", "--build-lib", folder + "/lib"], cwd="client/python", capture_output=True,
                           text=True)
    check("the package is built", built.returncode == 0 and os.path.exists(folder + "/lib/helm_client/helm_pb2.py"),
          built.stderr)
    sys.path.insert(0, folder + "/lib")
    os.environ["HELM_LIBHELM"] = os.path.join(os.path.dirname(BIN), "lib", "libhelm.so.0")
    endpoint = "ipc://%s/helmd.sock" % folder
    daemon = subprocess.Popen([BIN + "/helmd", "--model", DEMO, "--listen", endpoint, "--device", "cpu", "--threads", "2",
                               "--ctx", "512", "--profile", "tests/data/profiles/described.json"],
                              stdout=subprocess.DEVNULL, stderr=open(folder + "/log", "w"))
    try:
        text_tests(folder)
        check("the daemon is ready", wait_ready(daemon, endpoint), open(folder + "/log").read())
        model_tests(folder, endpoint)
        asyncio.run(async_tests(endpoint))
    finally:
        daemon.terminate()
        check("the daemon ends well", processor.ended(daemon, 30) == 0, open(folder + "/log").read())
    shutil.rmtree(folder)
    print("%d passed, %d failed" % (counts[True], counts[False]))
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())
