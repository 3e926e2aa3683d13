#!/usr/bin/python3
"""The gateway's page: its modules under node, then all of it in headless Chromium, with the demo model and with a stand-in
daemon. Without Chromium or node a part is skipped, and the test says so.

HELM_BIN, HELM_PYPROTO as in test_gateway.py. Run from the repository's root.
"""
import os
import shutil
import subprocess
import sys
import tempfile

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process"]
import helmd_harness as helmd  # noqa: E402
from gateway_harness import Gateway, check, missing_node, sum_up, until  # noqa: E402
from page_daemon import open_page  # noqa: E402

MARKDOWN = """# A title

Some **bold** and *other* words, and [a link](https://example.org/a).

1. one
2. two

| a | b |
|---|--:|
| 1 | 2 |

> a quote

```python
for i in range(3):
    print("<b>", i)
```
"""
HOSTILE = """<script>globalThis.hacked = 1</script> <img src=x onerror=globalThis.hacked=1>

[a](javascript:globalThis.hacked=1) <svg onload=globalThis.hacked=1> <a href="javascript:globalThis.hacked=1">b</a>
![c](http://127.0.0.1:9/pixel.png) <iframe src="http://127.0.0.1:9/"></iframe> <form action="http://127.0.0.1:9/"></form>

| <style>*{display:none}</style> | b |
|---|---|
| <p onclick=globalThis.hacked=1>x</p> | [d](data:text/html,x) |

```html
<script>globalThis.hacked = 1</script> is never closed
"""


def node(script, *arguments, seconds=120):
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        run = subprocess.Popen(["node", "--experimental-websocket", "tests/process/" + script, *arguments], stdout=said, stderr=errors)
        if not until(lambda: run.poll() is not None, seconds):
            run.kill()
        code = run.wait()
        said.seek(0)
        errors.seek(0)
        for line in said.read().splitlines():
            check(line[5:], line.startswith("ok  "))
        check("node's script %s comes to its end" % script, code == 0, (code, errors.read()[-1000:]))


def file_tests(g):
    page = g.get("/")
    policy = page.headers["Content-Security-Policy"]
    check("the page's policy allows its own files only", "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy and "*" not in policy, policy)
    names = [n for n in os.listdir("client/gateway/page") if n != "index.html"]
    for name in names:
        a = g.get("/page/" + name)
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        with open("client/gateway/page/" + name, "rb") as f:
            check("file " + name, a.status == 200 and a.body == f.read() and a.headers["Content-Type"].startswith(kind), (a.status, a.headers))
    for path in ("/page/", "/page/none.js", "/page/../info.c", "/page/style.css/", "/page"):
        a = g.get(path)
        check("no file " + path, a.status == (200 if path == "/page/" else 404), a.status)
    check("a file has a method", g.post("/page/style.css", {}).status == 405)


def main():
    why = missing_node()
    if why:
        print("the gateway's page skipped: %s" % why)
        sum_up(skipped=1)
    node("gateway_page_pure.mjs")
    gateway, daemon, model = open_page()
    with gateway as scripted:
        file_tests(scripted)
        browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        if not browser:
            print("the gateway's page in a browser skipped: there is no Chromium here")
        else:
            daemon.when(" quick", "A quick answer.")
            daemon.when(" markdown", MARKDOWN)
            daemon.when(" hostile", HOSTILE)
            daemon.when(" slow", " ".join("slow%d" % i for i in range(30)), pace=0.002, until=" release")
            daemon.when(" release", "Released.")
            daemon.when(" endless", "endless ", pace=0.02, how=12)
            daemon.when(" thinking", "<think>\nTwo and two.\n</think>\n\nIt is four.")
            daemon.when(" reading", "It was read.", looks=8)
            daemon.when(" failing", "This fails.", how=15)
            with helmd.running(real=True) as real, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                with Gateway(real.endpoint) as demo:
                    node("gateway_page.mjs", browser, folder, demo.url, scripted.url)
    daemon.stop()
    shutil.rmtree(model)
    sum_up(skipped=0 if browser else 1)


if __name__ == "__main__":
    main()
