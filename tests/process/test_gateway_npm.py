#!/usr/bin/python3
"""The official openai and ollama packages from npm, unmodified, against helm-gateway: chat, streaming, tools, logprobs,
errors, abort.

The packages are fetched once into the build folder (HELM_BIN's parent). Without node, npm or the registry the test is
skipped, and says so. HELM_BIN, HELM_PYPROTO as in test_gateway.py. Run from the repository's root.
"""
import os
import shutil
import sys
import tempfile

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process"]
import helmd_harness as helmd  # noqa: E402
import processor  # noqa: E402
from gateway_harness import BIN, Gateway, SLOW, Scripted, check, fetch_packages, missing_node, model_folder, sum_up, until  # noqa: E402

PACKAGES = ["openai@6.49.0", "ollama@0.6.4"]
KEY = "sk-of-the-test"


def run_script(folder, what, url):
    run = processor.run(["node", "tests/process/gateway_npm.mjs", folder, what, url, KEY], capture_output=True,
                         timeout=120 * SLOW)
    for line in run.stdout.decode().splitlines():
        check(line[5:], line.startswith("ok  "))
    check("node's script for %s comes to its end" % what, run.returncode == 0, run.stderr.decode()[-1000:])


class Caller(Scripted):
    """Answers a question, and whatever is to be a call, with a call, a result with a text."""

    def handle(self, client, request):
        if request.WhichOneof("body") == "generate":
            answers = len(request.generate.prompt) > self.longest and not request.generate.HasField("mask")
            self.script = self.answer if answers else self.call
        super().handle(client, request)


def tools_tests(folder):
    model = model_folder("qwen3.jinja")
    daemon = Caller("ipc://%s/helmd.sock" % model, model)
    daemon.longest = 0
    daemon.say('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>')
    daemon.call = daemon.answer = daemon.script
    daemon.say("It rains.")
    daemon.answer = daemon.script
    daemon.longest = 1 << 20
    daemon.start()
    with Gateway(daemon.endpoint, "--alias", "any") as g:
        tool = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}}}}
        g.chat("What is the weather in Bern?", tools=[tool])
        daemon.longest = len(daemon.prompts[-1]) + 10  # a longer prompt has a result in it
        run_script(folder, "tools", g.url)
        daemon.how, daemon.longest = 12, 0
        run_script(folder, "abort", g.url)
        check("... at the daemon", until(lambda: len(daemon.cancelled) == 3 and not daemon.going), (daemon.cancelled, daemon.going))
    daemon.stop()
    shutil.rmtree(model)


def main():
    folder = os.path.join(os.path.dirname(BIN), "npm", "-".join(PACKAGES))
    why = missing_node() or fetch_packages(folder, PACKAGES, ("openai/index.mjs", "ollama/dist/index.mjs"))
    if why:
        print("the openai and ollama packages skipped: %s" % why)
        sum_up(skipped=1)
    with helmd.running("--parallel", "8", real=True) as daemon, tempfile.NamedTemporaryFile("w") as keys:
        keys.write("test %s\n" % KEY)
        keys.flush()
        with Gateway(daemon.endpoint, "--api-keys", keys.name, key=KEY) as g:
            run_script(folder, "demo", g.url)
            run_script(folder, "ollama", g.url)
    tools_tests(folder)
    sum_up()


if __name__ == "__main__":
    main()
