"""tools/deploy/nginx.conf, started before a gateway of a test: for test_nginx.py and tests/process/test_gateway.py."""
import subprocess

from gateway_harness import check
from ports import free_port

NAME = "helm.example"


def start_nginx(folder, gateway_port):
    """The example as it is, but for its addresses and where files lie."""
    port = free_port()
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=" + NAME, "-addext",
                    "subjectAltName=DNS:" + NAME, "-keyout", folder + "/helm.key", "-out", folder + "/helm.pem"],
                   check=True, capture_output=True)
    with open("tools/deploy/nginx.conf") as f:
        site = f.read()
    for old, new in (("127.0.0.1:8080", "127.0.0.1:%d" % gateway_port), ("listen 443", "listen 127.0.0.1:%d" % port),
                     ("/etc/ssl/", folder + "/")):
        assert old in site, old
        site = site.replace(old, new)
    with open(folder + "/nginx.conf", "w") as f:
        f.write("daemon off; master_process off; pid %s/pid; error_log %s/error.log;\nevents {}\nhttp {\naccess_log off;\n" % (folder, folder))
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"):
            f.write("%s_temp_path %s/%s;\n" % (kind, folder, kind))
        f.write(site + "}\n")
    tested = subprocess.run(["nginx", "-t", "-c", folder + "/nginx.conf"], capture_output=True, text=True)
    check("nginx takes the example", tested.returncode == 0 and "warn" not in tested.stderr, tested.stderr)
    return subprocess.Popen(["nginx", "-c", folder + "/nginx.conf"], stderr=subprocess.DEVNULL), port
