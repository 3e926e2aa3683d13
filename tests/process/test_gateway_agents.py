#!/usr/bin/python3
"""Claude Code, Codex, opencode and Cline from npm, unmodified, run a task of two steps against helm-gateway before a stand-in
daemon: a command that the "model" calls, and an answer once its output is in the prompt.

The packages are fetched once into the build folder (HELM_BIN's parent). Where npm cannot fetch them the test is skipped, and
says so. HELM_BIN, HELM_PYPROTO as in test_gateway.py. Run from the repository's root.
"""
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process"]
import processor  # noqa: E402
from gateway_harness import BIN, Gateway, SLOW, Scripted, check, fetch_packages, ids_of, missing_node, model_folder, sum_up  # noqa: E402

KEY = "sk-of-the-test"
MACHINE = "linux-" + {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
COMMAND = "echo step-$((40+2))"
CODEX, CODEX_PROGRAM = "@openai/codex@0.171.0", "@openai/codex/bin/codex.js"
CODEX_WORDS = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "Run the command.")
CODEX_CONFIG = """model = "demo"
model_provider = "helm"
[model_providers.helm]
name = "helm"
base_url = "%s/v1"
env_key = "HELM_KEY"
wire_api = "responses"
"""
OPENCODE, CLINE = "opencode-%s" % MACHINE, "@cline/cli-%s" % MACHINE  # the programs alone, without what their npm packages add


class Agent(Scripted):
    """Calls a tool, and answers once its result is in the prompt."""

    def handle(self, client, request):
        if request.WhichOneof("body") == "generate":
            prompt, mark = " %s " % " ".join(map(str, request.generate.prompt)), " %s " % " ".join(map(str, self.mark))
            self.script = self.answer if mark in prompt else self.call
        super().handle(client, request)


def run_agent(name, tool, arguments, command, set_up):
    model = model_folder("qwen3.jinja")
    daemon = Agent("ipc://%s/helmd.sock" % model, model)
    daemon.context_tokens = 1 << 18
    daemon.call = ids_of('<think>I look.</think>\n<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>' % (tool, json.dumps(arguments)), model)
    daemon.answer, daemon.mark = ids_of("It is written: done.", model), ids_of("step-42", model)
    daemon.start()
    with tempfile.TemporaryDirectory() as home, tempfile.NamedTemporaryFile("w") as keys:
        keys.write("test %s\n" % KEY)
        keys.flush()
        with Gateway(daemon.endpoint, "--name", "demo", *(("--api-keys", keys.name) if set_up is not codex_oss else ())) as g:
            environment = {"HOME": home, "PATH": os.environ["PATH"], "TERM": "dumb", **set_up(home, g.url)}
            try:
                run = processor.run(command, cwd=home, env=environment, capture_output=True, stdin=subprocess.DEVNULL, timeout=60 * SLOW)
            except subprocess.TimeoutExpired as late:
                run = subprocess.CompletedProcess(command, "no end", late.stdout or b"", late.stderr or b"")
            check("%s: a call and an answer" % name, run.returncode == 0 and b"It is written: done." in run.stdout and len(daemon.prompts) == 2,
                  (run.returncode, run.stdout[-500:], run.stderr[-500:], len(daemon.prompts), g.log()[-500:]))
            first, second = (daemon.prompts + [[0], []])[:2]
            check("... the second prompt goes on with the first, which the prefix cache has", first == second[:len(first)], (len(first), len(second)))
    daemon.stop()
    shutil.rmtree(model)


def claude(home, url):
    return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": KEY, "ANTHROPIC_MODEL": "demo", "ANTHROPIC_DEFAULT_HAIKU_MODEL": "demo",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1"}


def codex(home, url):
    with open(home + "/config.toml", "w") as f:
        f.write(CODEX_CONFIG % url)
    return {"CODEX_HOME": home, "HELM_KEY": KEY}


def codex_oss(home, url):
    """As one that looks for an Ollama: it asks for the version, the tags, and pulls. It sends no key."""
    return {"CODEX_HOME": home, "CODEX_OSS_BASE_URL": url + "/v1"}


def opencode(home, url):
    """Its list of models and a newer version of itself are on the network: it asks for neither."""
    models = {"demo": {"name": "demo", "tool_call": True, "limit": {"context": 100000, "output": 8000}}}
    helm = {"npm": "@ai-sdk/openai-compatible", "name": "helm", "options": {"baseURL": url + "/v1", "apiKey": KEY}, "models": models}
    return {"OPENCODE_CONFIG_CONTENT": json.dumps({"model": "helm/demo", "provider": {"helm": helm}, "autoupdate": False}),
            "OPENCODE_DISABLE_MODELS_FETCH": "1"}


def cline(home, url):
    """Writes the files of `cline auth`. A session in the program itself leaves no process that outlives it."""
    os.makedirs(home + "/.cline/data/settings")
    settings = {"provider": "openai-compatible", "apiKey": KEY, "model": "demo", "baseUrl": url + "/v1"}
    entry = {"settings": settings, "updatedAt": "2026-11-28T12:00:00.000Z", "tokenSource": "manual"}
    with open(home + "/.cline/data/settings/providers.json", "w") as f:
        json.dump({"version": 1, "lastUsedProvider": "openai-compatible", "modes": {}, "providers": {"openai-compatible": entry}}, f)
    return {"CLINE_SESSION_BACKEND_MODE": "local", "CLINE_NO_AUTO_UPDATE": "1", "DO_NOT_TRACK": "1"}


def main():
    skipped = 0
    agents = (("Claude Code", "Bash", {"command": COMMAND}, claude, "@anthropic-ai/claude-code@2.1.197", "@anthropic-ai/claude-code-%s/claude" % MACHINE,
               ("-p", "Run the command.", "--model", "demo", "--allowedTools", "Bash", "--max-turns", "4")),
              ("Codex with --oss", "exec_command", {"cmd": COMMAND}, codex_oss, CODEX, CODEX_PROGRAM, ("exec", "--oss", "--local-provider", "ollama", "-m", "demo", *CODEX_WORDS)),
              ("Codex", "exec_command", {"cmd": COMMAND}, codex, CODEX, CODEX_PROGRAM, ("exec", *CODEX_WORDS)),
              ("opencode", "bash", {"command": COMMAND, "description": "say it"}, opencode, OPENCODE + "@1.18.33", OPENCODE + "/bin/opencode",
               ("run", "--auto", "--title", "task", "Run the command.")),
              ("Cline", "run_commands", {"commands": [COMMAND]}, cline, CLINE + "@3.0.65", CLINE + "/bin/cline", ("Run the command.",)))
    for name, tool, arguments, set_up, package, program, words in agents:
        folder = os.path.join(os.path.dirname(BIN), "npm", package.replace("/", "-"))
        why = missing_node() or fetch_packages(folder, [package], (program,))
        if why:
            print("%s skipped: %s" % (name, why))
            skipped += 1
            continue
        run_agent(name, tool, arguments, [os.path.join(folder, "node_modules", program), *words], set_up)
    sum_up(skipped)


if __name__ == "__main__":
    main()
