"""A fake object store: the part of Google Cloud Storage that is asked for here, served on this machine.

TensorStore, which writes the arrays of a checkpoint, talks to it by HTTP as to the real one; `Objects`, a
file system of fsspec on the same objects, stands for gcsfs. As in the real store there are no folders,
nothing is appended to or renamed, and an object is written whole or not at all. Requests may be made on the
condition that an object is still of a generation, or, by 0, that there is none.
"""

import http.server
import io
import json
import re
import threading
import urllib.parse

import fsspec
import pytest
from etils.epath import backend
from fsspec.registry import _registry as file_systems
from orbax.checkpoint._src.path import gcs_utils


class Store:
    """The objects of all buckets, by "bucket/name"; each has its content and its generation."""

    def __init__(self):
        self.objects, self.generation, self.lock = {}, 0, threading.RLock()

    def put(self, name, data):
        with self.lock:
            self.generation += 1
            self.objects[name] = bytes(data), self.generation

    def describe(self, name):
        data, generation = self.objects[name]
        return {"name": name.partition("/")[2], "size": str(len(data)), "generation": str(generation)}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Store

    def log_message(self, *_):
        """Says nothing."""

    def answer(self, status, body=b"", **headers):
        body = json.dumps(body).encode() if isinstance(body, dict) else body
        self.send_response(status)
        for name, value in {**headers, "Content_Length": len(body)}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body)

    def respond(self):
        """Answers by the first method whose pattern is that of the request."""
        url = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        bucket = "/storage/v1/b/([^/]+)"
        routes = {
            f"GET (?:/download)?{bucket}/o/(.+)": self.get,
            f"GET {bucket}/o/?": self.list,
            f"GET {bucket}(?:/storageLayout)?": lambda name: self.answer(200, {"name": name, "location": ""}),
            f"POST /upload{bucket}/o": lambda bucket: self.upload(f"{bucket}/{self.query['name']}", body),
            f"DELETE {bucket}/o/(.+)": self.delete,
        }
        for pattern, method in routes.items():
            if match := re.fullmatch(pattern, f"{self.command} {url.path}"):
                with self.store.lock:
                    return method("/".join(map(urllib.parse.unquote, match.groups())))
        self.answer(501, f"{self.command} {self.path}".encode())

    do_GET = do_POST = do_DELETE = respond

    def stale(self, name):
        """Whether a condition on the generation does not hold; it was answered then."""
        there = str(self.store.objects.get(name, (b"", 0))[1])  # 0: there is no such object
        wanted, other = self.query.get("ifGenerationMatch", there), self.query.get("ifGenerationNotMatch")
        if wanted == there and other != there:
            return False
        if self.command == "GET" and wanted == there:
            self.answer(304)
        else:
            self.answer(412, {"error": {"code": 412, "message": "conditionNotMet"}})
        return True

    def missing(self, name):
        if name not in self.store.objects:
            self.answer(404, {"error": {"code": 404, "message": "No such object", "errors": []}})
        return name not in self.store.objects

    def get(self, name):
        if self.missing(name) or self.stale(name):
            return
        if self.query.get("alt") != "media":
            return self.answer(200, self.store.describe(name))
        data, generation = self.store.objects[name]
        status, headers = 200, {"x_goog_generation": generation}
        if match := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")):
            first = int(match[1]) if match[1] else len(data) - int(match[2])
            last = min(int(match[2]) if match[1] and match[2] else len(data) - 1, len(data) - 1)
            if first >= len(data):
                return self.answer(416)
            status, headers["Content_Range"] = 206, f"bytes {first}-{last}/{len(data)}"
            data = data[first : last + 1]
        self.answer(status, data, **headers)

    def list(self, bucket):
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter")
        first, last = self.query.get("startOffset", ""), self.query.get("endOffset", "\uffff")
        items, prefixes = [], set()
        for name in sorted(self.store.objects):
            own, _, key = name.partition("/")
            if own == bucket and key.startswith(prefix) and first <= key < last:
                inner, found, _ = key[len(prefix) :].partition(delimiter or "\0")
                if found:
                    prefixes.add(prefix + inner + delimiter)
                else:
                    items.append(self.store.describe(name))
        self.answer(200, {"items": items, "prefixes": sorted(prefixes)})

    def upload(self, name, body):
        if not self.stale(name):
            self.store.put(name, body)
            self.answer(200, self.store.describe(name))

    def delete(self, name):
        if not self.missing(name) and not self.stale(name):
            del self.store.objects[name]
            self.answer(204)


def file_system_of(store):
    class Objects(fsspec.AbstractFileSystem):
        protocol, cachable = ("gcs", "gs"), False

        def ls(self, path, detail=True, **_):
            path = self._strip_protocol(path).rstrip("/")
            found = {}
            with store.lock:
                for name, (data, generation) in store.objects.items():
                    if name == path:
                        child, deeper = name, False
                    elif name.startswith(path + "/"):
                        first, slash, _ = name[len(path) + 1 :].partition("/")
                        child, deeper = f"{path}/{first}", bool(slash)
                    else:
                        continue
                    file = {"size": len(data), "type": "file", "generation": str(generation)}
                    found[child] = {"name": child, **({"size": 0, "type": "directory"} if deeper else file)}
            if not found:
                raise FileNotFoundError(path)
            return [found[name] if detail else name for name in sorted(found)]

        def rm(self, path, recursive=False, maxdepth=None):
            path = self._strip_protocol(path)
            with store.lock:
                every = [name for name in store.objects if name.startswith(path + "/")] if recursive else []
                names = [*every, *({path} & store.objects.keys())]
                if not names:
                    raise FileNotFoundError(path)
                for name in names:
                    del store.objects[name]

        def rm_file(self, path):
            self.rm(path)

        def cp_file(self, path1, path2, **_):
            with store.lock:
                if not self.isdir(path1):  # A copy of a folder asks for it, too.
                    store.put(self._strip_protocol(path2), store.objects[self._strip_protocol(path1)][0])

        def _open(self, path, mode="rb", **_):
            path = self._strip_protocol(path)
            if mode == "rb":
                with store.lock:
                    if path not in store.objects:
                        raise FileNotFoundError(path)
                    return io.BytesIO(store.objects[path][0])
            if mode != "wb":
                raise NotImplementedError(f"an object store has no mode {mode!r}")
            return _Upload(store, path)

    return Objects


class _Upload(io.BytesIO):
    def __init__(self, store, name):
        super().__init__()
        self._store, self._name = store, name

    def close(self):
        if not self.closed:
            self._store.put(self._name, self.getvalue())
        super().close()


@pytest.fixture(scope="session")
def store():
    """A store that TensorStore takes for Google's."""
    store = Store()
    handler = type("Handler", (_Handler,), {"store": store})
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        patch.setenv("TENSORSTORE_GCS_HTTP_URL", f"http://127.0.0.1:{server.server_port}")
        patch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "token")
        yield store
        server.shutdown()


@pytest.fixture
def bucket(store, monkeypatch):
    store.objects.clear()
    # It would ask Google whether the bucket has real folders.
    monkeypatch.setattr(gcs_utils, "get_bucket", lambda name: None)
    monkeypatch.setitem(file_systems, "gcs", file_system_of(store))
    backend.fsspec_backend._get_filesystem.cache_clear()
    yield store.objects
    backend.fsspec_backend._get_filesystem.cache_clear()
