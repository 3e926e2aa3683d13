#!/usr/bin/python3
"""helm-cli chat on a terminal against a stand-in daemon: what is typed, what is shown, its commands and its editor.

HELM_BIN: folder of the programs; HELM_PYPROTO: where protoc's Python output lies. Run from the repository's root.
"""
import json
import os
import shutil
import sys

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "client/python", "tests/process"]
from cli_harness import MODEL, TEMPLATE, Terminal, check, check_exit, cli, run_in_folder  # noqa: E402
from fake_helmd import FakeDaemon  # noqa: E402


def chat_tests(folder):
    endpoint = "ipc://%s/chat.sock" % folder
    at = ("--connect", endpoint)
    model = os.path.join(folder, "chat-model")
    os.mkdir(model)
    shutil.copy(MODEL + "/tokenizer.json", model)
    with open(os.path.join(model, "tokenizer_config.json"), "w") as f:
        json.dump({"chat_template": TEMPLATE, "eos_token": "<|eos|>"}, f)
    answer = json.loads(cli("--model", MODEL, "tokenize", "--json", "--no-special", " fine thanks")[1])
    daemon = FakeDaemon(endpoint, model, token_seconds=0.05)
    prompts = []
    handle = daemon.handle

    def rewrite(client, request):
        if request.WhichOneof("body") == "generate":
            prompts.append(list(request.generate.prompt))
            stops = list(request.generate.stop_token_ids)
            request.generate.prompt[:] = [daemon.how] + answer
            daemon.stops, daemon.ignore_eos = stops, request.generate.ignore_eos
        handle(client, request)
    daemon.handle = rewrite
    daemon.how = 11
    daemon.start()

    def text_of(i):
        return json.loads(cli("--model", MODEL, "detokenize", "--jsonl", stdin=json.dumps(prompts[i]).encode())[1])

    check_exit("run --chat", 0, *at, "run", "--chat", "--system", "Be brief.", "Hi", text=" fine thanks\n")
    check("... renders the template", text_of(-1) == "[system]Be brief.\n[user]Hi\n[assistant]", text_of(-1))
    check("... stops at the tokenizer's end token", daemon.stops == [1] and not daemon.ignore_eos, daemon.stops)
    check_exit("run --chat --ignore-eos", 0, *at, "run", "--chat", "--ignore-eos", "Hi", text=" fine thanks\n")
    check("... does not stop at it", daemon.stops == [] and daemon.ignore_eos, daemon.stops)
    check_exit("chat --ignore-eos", 0, *at, "chat", "--ignore-eos", stdin=b"Hi\n", text=" fine thanks\n")
    check("... does not either", daemon.stops == [] and daemon.ignore_eos, daemon.stops)
    out = check_exit("chat from a pipe", 0, *at, "chat", stdin=b"Hi\n\nAnd you?\n/reset\nNew")
    check("... stops at it again", daemon.stops == [1], daemon.stops)
    check("... answers each line", out == " fine thanks\n" * 3, out)
    check("... with the history", text_of(-2) == "[user]Hi\n[assistant] fine thanks\n[user]And you?\n[assistant]",
          text_of(-2))
    check("... until /reset", text_of(-1) == "[user]New\n[assistant]", text_of(-1))

    t = Terminal(*at, "chat")
    check("chat on a terminal begins with the model's name and /help", t.expect("%s: /help lists" % os.path.basename(model)), t.all)
    check("... and prompts", t.expect("> "))
    t.type(b"Hello\n")
    check("... answers", t.expect(" fine thanks") and t.expect("> "), t.seen)
    t.type(b"one\ntwo\n")
    check("... takes a paste as one message", t.expect(" fine thanks") and t.expect("> ") and
          text_of(-1).endswith("[user]one\ntwo\n[assistant]"), text_of(-1))
    t.type(b"/help\n")
    check("... /help", t.expect("/clear") and t.expect("> "), t.seen)
    daemon.how = 12
    t.type(b"/reset\nx\n")
    check("... a pasted command is a message", t.expect(" fine"), t.seen)
    begin = len(daemon.cancelled)
    t.type(b"\x03")
    check("... Ctrl-C stops the answer", t.expect("> ") and len(daemon.cancelled) == begin + 1, t.seen)
    daemon.how = 11
    t.type(b"again\n")
    check("... and the conversation goes on", t.expect(" fine thanks") and t.expect("> ") and
          "[assistant] fine" in text_of(-1), text_of(-1))
    t.type(b"\x03")
    check("... Ctrl-C at the prompt says how to leave", t.expect("/exit") and t.expect("> "), t.seen)
    daemon.how = 14
    t.type(b"more\n")
    check("... a full context is explained", t.expect("/clear begins") and t.expect("> "), t.seen)
    t.type(b"\x04")
    check("... Ctrl-D leaves with 0", t.wait() == 0)
    editor_tests(at, daemon, prompts, text_of, folder)
    daemon.stop()
    with open(os.path.join(model, "tokenizer_config.json"), "w") as f:
        f.write("{}")
    daemon = FakeDaemon(endpoint, model)
    daemon.start()
    check_exit("chat without a template is refused", 4, *at, "chat", stdin=b"Hi\n", text="template")
    daemon.stop()


def editor_tests(at, daemon, prompts, text_of, folder):
    """The line editor: what is sent of what is typed and pasted, commands, how answers are shown."""
    def last():
        return text_of(-1).rsplit("[user]", 1)[1][:-len("\n[assistant]")]

    def ask(t, keys):
        t.type(keys)
        return t.expect(" fine thanks") and t.expect("> ")

    daemon.how = 11
    t = Terminal(*at, "chat", "-n", "500", env={"TERM": "xterm"})
    check("a terminal's chat asks for brackets around pastes", t.expect("\x1b[?2004h"))
    long = b"".join(b"word%d " % i for i in range(1400))[:9349]
    check("a line of 9,349 bytes", ask(t, long + b"\n") and last().encode() == long, (len(last()), t.seen[-200:]))
    lines = b"".join(b"line %d with some words in it\n" % i for i in range(1500))
    check("a bracketed paste of 43 KB and 1,500 lines", ask(t, b"see: \x1b[200~" + lines.replace(b"\n", b"\r") + b"\x1b[201~ (end)\r") and
          last().encode() == b"see: " + lines + b" (end)", (len(last()), last()[:80]))
    check("... is shown as a word", "[paste 1: 1501 lines, " in t.all, t.all[-300:])
    check("a short paste is the line's own", ask(t, b"\x1b[200~one word\x1b[201~\r") and last() == "one word", last())
    check("... an unbracketed one of many lines", ask(t, lines) and last().encode() == lines.rstrip(b"\n"), len(last()))
    check("keys edit", ask(t, b"Hxllo\x01\x1b[C\x1b[C\x7fe\r") and last() == "Hello", last())
    check("... and letters of other scripts are whole", ask(t, "na\u00efve \u4f60\u597d\u597d\x7f\r".encode()) and
          last() == "na\u00efve \u4f60\u597d", last())
    check("Up brings the line before", ask(t, b"\x1b[A\r") and last() == "na\u00efve \u4f60\u597d", last())
    sent = len(prompts)
    for keys, answer in ((b"/hlep\r", "no command /hlep (/help?)"), (b"/nothing at all\r", "no command /nothing"),
                         (b"/set temprature 1\r", "(temperature?)"), (b"/set temperature hot\r", "not a number"),
                         (b"/set temperature 0.7\r", "> "), (b"/set seed 7\r", "> "), (b"/set\r", "temperature          0.7"),
                         (b"/system Be brief.\r", "> "), (b"/system\r", "Be brief."), (b"/stats\r", "tokens at 307.7 token/s"),
                         (b"/load /nowhere\r", "no such file"), (b"/save\r", "no file named")):
        t.type(keys)
        check("... %s" % keys.decode().strip(), t.expect(answer) and (answer == "> " or t.expect("> ")), t.seen)
    check("... none of which was sent", len(prompts) == sent)
    check("a message with a blank before its slash is one", ask(t, b" /nothing\r") and last() == " /nothing", last())
    check("... so is a path", ask(t, b"/usr/bin/env is\r") and last() == "/usr/bin/env is", last())
    check("... with what was set", abs(daemon.generated[-1].sampling.temperature - 0.7) < 1e-6 and daemon.generated[-1].sampling.seed == 7 and
          text_of(-1).startswith("[system]Be brief."), (daemon.generated[-1], text_of(-1)[:40]))
    path = os.path.join(folder, "talk.json")
    t.type(b"/save %s\r" % path.encode())
    check("/save writes it", t.expect("messages in") and t.expect("> "), t.seen)
    saved = json.load(open(path))["messages"]
    check("... for its owner alone", os.stat(path).st_mode & 0o777 == 0o600 and saved[0] == {"role": "system", "content": "Be brief."} and
          saved[-1]["role"] == "assistant", saved[-2:])
    t.type(b"/clear\r")
    check("/clear forgets all but the system message", t.expect("> ") and ask(t, b"A\r") and
          text_of(-1) == "[system]Be brief.\n[user]A\n[assistant]", text_of(-1))
    t.type(b"/load %s\r" % path.encode())
    check("/load brings it back", t.expect("%d messages from" % len(saved)) and t.expect("> ") and ask(t, b"B\r") and
          "/usr/bin/env is" in text_of(-1), text_of(-1)[-200:])
    with open(path, "w") as f:
        json.dump({"messages": [{"role": "robot", "content": "x"}]}, f)
    t.type(b"/load %s\r" % path.encode())
    check("... a file that is none changes nothing", t.expect("'robot' is none of") and t.expect("> ") and ask(t, b"C\r") and
          "/usr/bin/env is" in text_of(-1), t.seen)
    t.type(b"/bye\r")
    check("/bye leaves with 0", t.wait() == 0)

    words = "The quick brown fox jumps over the lazy dog again and again"
    ids = [json.loads(cli("--model", MODEL, "tokenize", "--json", "--no-special", text)[1]) for text in
           ("<think>\nLet me see\n</think>\n" + words + "\n```\n" + words + "\n```\n", words)]
    show = daemon.handle

    def answer_with(which):
        def handle(client, request):
            if request.WhichOneof("body") == "generate":
                request.generate.prompt[:] = [11] + ids[which]
            FakeDaemon.handle(daemon, client, request)
        daemon.handle = handle
    hostile = "a\tb\x1b]52;c;ZXZpbA==\x07\x1b[2J\rc\x7f\u009b31md\u0085 na\u00efve\n"
    shown = "a\tb\\x1b]52;c;ZXZpbA==\\x07\\x1b[2J\\x0dc\\x7f\\xc2\\x9b31md\\xc2\\x85 na\u00efve\r\n"
    ids.append(json.loads(cli("--model", MODEL, "tokenize", "--json", "--no-special", "-", stdin=hostile.encode())[1]))
    answer_with(2)
    for command, more in ((("run", "x"), ()), (("run", "--chat", "x"), ()), (("generate", "--prompt", "x", "-n", "99"), ()),
                          (("detokenize", ",".join(map(str, ids[2]))), ())):
        t = Terminal(*at, *command)
        check("%s: control characters are shown to a terminal, not obeyed" % " ".join(command[:2]), t.expect(shown), t.all)
        check("... and the end is well", t.wait() == 0)
        t = Terminal(*at, *command, "--raw")
        check("... --raw passes them", t.expect(hostile.replace("\n", "\r\n")), t.all)
        t.wait()
        status, out, err = cli(*at, *command)
        check("... and so does a pipe", status == 0 and out.startswith(hostile), (status, out, err))
    status, out, err = cli(*at, "generate", "--prompt", "x", "-n", "99", "--json")
    check("JSON escapes them", json.loads(out)["text"] == hostile and not any(c < " " and c != "\n" or "\x7f" <= c < "\xa0" for c in out), out)
    t = Terminal(*at, "chat", env={"TERM": "xterm"})
    t.expect("> ")
    t.type(b"x\r")
    check("chat: control characters are shown, not obeyed", t.expect(shown), t.all)
    t.type(b"\x04")
    t.wait()
    answer_with(0)
    t = Terminal(*at, "chat", env={"TERM": "xterm"}, columns=30)
    t.expect("> ")
    t.type(b"x\r")
    check("thinking is dimmed", t.expect("\x1b[2m<think>\r\nLet me see\r\n</think>\x1b[0m\r\n"), t.seen)
    check("... lines are broken between words", t.expect("The quick brown fox jumps over\r\nthe lazy dog again and again\r\n```\r\n"), t.seen)
    check("... code is not", t.expect(words + "\r\n```\r\n"), t.seen)
    t.type(b"\x04")
    t.wait()
    daemon.handle = show
    daemon.how = 10
    t = Terminal(*at, "chat")
    t.expect("> ")
    t.type(b"x\r")
    check("an answer that fills the context says so", t.expect("the context is full: /clear begins"), t.seen)
    t.type(b"\x04")
    t.wait()
    daemon.how = 11


if __name__ == "__main__":
    run_in_folder(chat_tests)
