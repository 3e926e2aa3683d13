"""A stand-in for the hub on this machine: its list of files, its redirects to another host, ranges, tokens, and what may
go wrong with each. Two servers: the hub itself, and the store that large files are redirected to."""
import hashlib
import http.server
import json
import re
import threading
import urllib.parse


class Hub:
    def __init__(self):
        self.repos = {}        # "ORG/NAME" -> {file: bytes}
        self.private = {}      # "ORG/NAME" -> token
        self.log = []          # (server, method and path, headers)
        self.cut = []          # of the next answers of the store: bytes after which each breaks off
        self.ranges = True     # both servers know them
        self.wrong = {}        # file -> bytes that are sent in its place
        self.etag = None       # what the hub's headers call every file
        self.location = None   # where large files are redirected to
        self.extra = {}        # members of the list of files
        self.name = lambda name: name  # of a file, in the list
        self.hub, self.store = self.serve("hub"), self.serve("store")
        self.url = "http://127.0.0.1:%d" % self.hub.server_port
        self.store_url = "http://localhost:%d" % self.store.server_port

    def serve(self, which):
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                outer.log.append((which, self.path, dict(self.headers)))
                getattr(outer, "answer_" + which)(self)

            def log_message(self, *_):
                pass
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # a client that went away
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def close(self):
        for server in (self.hub, self.store):
            server.shutdown()
            server.server_close()

    @staticmethod
    def is_large(name):
        return name.endswith((".safetensors", ".gguf"))

    @staticmethod
    def blob(name, data):
        if Hub.is_large(name):
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    @staticmethod
    def commit(repo):
        return hashlib.sha1(repo.encode()).hexdigest()

    def add(self, repo, **files):
        self.repos[repo] = {name.replace("__", "/").replace("_DOT_", "."): data for name, data in files.items()}

    def send(self, handler, status, body=b"", **headers):
        handler.send_response(status)
        for key, value in headers.items():
            handler.send_header(key.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def refuse(self, handler, repo):
        """As the hub: no such repository and no token are the same answer."""
        token = self.private.get(repo)
        if repo in self.repos and (not token or handler.headers.get("Authorization") == "Bearer " + token):
            return False
        self.send(handler, 401, b"Invalid username or password.", X_Error_Message="Invalid credentials")
        return True

    def answer_hub(self, handler):
        path = urllib.parse.unquote(handler.path)
        api = re.match(r"/api/models/([^/]+/[^/]+)/revision/([^?]+)\?blobs=true$", path)
        resolve = re.match(r"/([^/]+/[^/]+)/resolve/([0-9a-f]{40})/(.+)$", path)
        repo = (api or resolve).group(1) if api or resolve else ""
        if self.refuse(handler, repo):
            return
        files = self.repos[repo]
        if api:
            if api.group(2) != "main":
                self.send(handler, 404, b"{}", X_Error_Message="Invalid rev id")
                return
            siblings = []
            for name, data in files.items():
                entry = {"rfilename": self.name(name), "size": len(data), "blobId": hashlib.sha1(data).hexdigest()}
                if self.is_large(name):
                    entry["lfs"] = {"sha256": self.blob(name, data), "size": len(data), "pointerSize": 135}
                else:
                    entry["blobId"] = self.blob(name, data)
                siblings.append(entry)
            body = {"id": repo, "sha": self.commit(repo), "siblings": siblings, **self.extra}
            self.send(handler, 200, json.dumps(body).encode())
            return
        name = resolve.group(3)
        if name not in files or resolve.group(2) != self.commit(repo):
            self.send(handler, 404, X_Error_Message="Entry not found")
        elif self.is_large(name):
            self.send(handler, 302, Location=self.location or self.store_url + "/" + repo + "/" + name + "?signed=1",
                      X_Linked_Etag='"%s"' % (self.etag or self.blob(name, files[name])), X_Linked_Size=str(len(files[name])))
        else:
            self.send_file(handler, name, files[name], ETag='"%s"' % (self.etag or self.blob(name, files[name])))

    def answer_store(self, handler):
        repo, name = re.match(r"/([^/]+/[^/]+)/(.+)\?signed=1$", urllib.parse.unquote(handler.path)).groups()
        self.send_file(handler, name, self.repos[repo][name], self.cut.pop(0) if self.cut else None)

    def send_file(self, handler, name, data, cut=None, **headers):
        data = self.wrong.get(name, data)
        asked = re.match(r"bytes=(\d+)-(\d*)$", handler.headers.get("Range", "")) if self.ranges else None
        at = int(asked.group(1)) if asked else 0
        end = min(int(asked.group(2)) + 1, len(data)) if asked and asked.group(2) else len(data)
        handler.send_response(206 if asked else 200)
        if asked:
            handler.send_header("Content-Range", "bytes %d-%d/%d" % (at, end - 1, len(data)))
        for key, value in headers.items():
            handler.send_header(key.replace("_", "-"), value)
        handler.send_header("Content-Length", str(end - at))
        handler.end_headers()
        if cut is None:
            handler.wfile.write(data[at:end])
            return
        handler.wfile.write(data[at:min(at + cut, end)])
        handler.wfile.flush()
        handler.close_connection = True
        handler.connection.shutdown(2)
