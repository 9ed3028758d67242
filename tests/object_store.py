"""A fake object store: the part of Google Cloud Storage that is asked for here, served on this machine.

TensorStore, which writes the arrays of a checkpoint, talks to it by HTTP as to the real one; `Objects`, a
file system of fsspec on the same objects, stands for gcsfs. As in the real store there are no folders,
nothing is appended to or renamed, and an object is written whole or not at all. Requests may be made on the
condition that an object is still of a generation, or, by 0, that there is none.
"""

import base64
import contextlib
import hashlib
import http.server
import io
import json
import re
import sys
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
        self.writes = []  # The names that were written, in order.

    def put(self, name, data):
        with self.lock:
            self.generation += 1
            self.objects[name] = bytes(data), self.generation
            self.writes.append(name)

    def describe(self, name):
        data, generation = self.objects[name]
        bucket, _, key = name.partition("/")
        return {
            "kind": "storage#object",
            "id": f"{name}/{generation}",
            "bucket": bucket,
            "name": key,
            "size": str(len(data)),
            "generation": str(generation),
            "metageneration": "1",
            "timeCreated": "2026-01-01T00:00:00.000Z",
            "updated": "2026-01-01T00:00:00.000Z",
            "contentType": "application/octet-stream",
            "md5Hash": base64.b64encode(hashlib.md5(data).digest()).decode(),
        }


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Store

    def log_message(self, *_):
        """Says nothing."""

    def answer(self, status, body=b"", **headers):
        body = json.dumps(body).encode() if isinstance(body, dict) else body
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def read(self):
        self.url = urllib.parse.urlsplit(self.path)
        self.query = {
            k: v[-1] for k, v in urllib.parse.parse_qs(self.url.query, keep_blank_values=True).items()
        }
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def named(self):
        """bucket/name of the path, or None."""
        match = re.fullmatch(r"(?:/download)?/storage/v1/b/([^/]+)/o/(.+)", self.url.path)
        return match and f"{match[1]}/{urllib.parse.unquote(match[2])}"

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

    def missing(self):
        self.answer(404, {"error": {"code": 404, "message": "No such object", "errors": []}})

    def do_GET(self):
        self.read()
        with self.store.lock:
            if (name := self.named()) is not None:
                return self.get(name)
            if match := re.fullmatch(r"/storage/v1/b/([^/]+)/o/?", self.url.path):
                return self.list(match[1])
            if match := re.fullmatch(r"/storage/v1/b/([^/]+)(/storageLayout)?", self.url.path):
                return self.answer(200, {"kind": "storage#bucket", "name": match[1], "location": "HERE"})
        self.answer(501, f"GET {self.path}".encode())

    def get(self, name):
        if name not in self.store.objects:
            return self.missing()
        if self.stale(name):
            return None
        if self.query.get("alt") != "media":
            return self.answer(200, self.store.describe(name), Content_Type="application/json")
        data, generation = self.store.objects[name]
        headers = {"x_goog_generation": generation, "Content_Type": "application/octet-stream"}
        if match := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")):
            first = int(match[1]) if match[1] else len(data) - int(match[2])
            last = min(int(match[2]) if match[1] and match[2] else len(data) - 1, len(data) - 1)
            if first >= len(data):
                return self.answer(416)
            headers["Content_Range"] = f"bytes {first}-{last}/{len(data)}"
            return self.answer(206, data[first : last + 1], **headers)
        return self.answer(200, data, **headers)

    def list(self, bucket):
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter")
        items, prefixes = [], set()
        for name in sorted(self.store.objects):
            own, _, key = name.partition("/")
            if own != bucket or not key.startswith(prefix):
                continue
            if key < self.query.get("startOffset", "") or key >= self.query.get("endOffset", "\uffff"):
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                prefixes.add(prefix + rest.partition(delimiter)[0] + delimiter)
            else:
                items.append(self.store.describe(name))
        self.answer(200, {"kind": "storage#objects", "items": items, "prefixes": sorted(prefixes)})

    def do_POST(self):
        body = self.read()
        match = re.fullmatch(r"/upload/storage/v1/b/([^/]+)/o", self.url.path)
        if not match or self.query["uploadType"] != "media":
            return self.answer(501, f"POST {self.path}".encode())
        with self.store.lock:
            name = f"{match[1]}/{self.query['name']}"
            if not self.stale(name):
                self.store.put(name, body)
                self.answer(200, self.store.describe(name), Content_Type="application/json")

    def do_DELETE(self):
        self.read()
        with self.store.lock:
            name = self.named()
            if name not in self.store.objects:
                return self.missing()
            if not self.stale(name):
                del self.store.objects[name]
                self.answer(204)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """Says nothing of clients that do not wait for their answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def serve():
    """Yields a new store and its address."""
    store = Store()
    handler = type("Handler", (_Handler,), {"store": store})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield store, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def file_system_of(store):
    """A file system of fsspec on the objects of a store."""

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

        def mkdir(self, path, create_parents=True, **_):
            """Folders are names of objects alone."""

        def makedirs(self, path, exist_ok=False):
            """See `mkdir`."""

        def rmdir(self, path):
            """See `mkdir`."""

        def rm_file(self, path):
            with store.lock:
                if store.objects.pop(self._strip_protocol(path), None) is None:
                    raise FileNotFoundError(path)

        def rm(self, path, recursive=False, maxdepth=None):
            if not recursive:
                return self.rm_file(path)
            path = self._strip_protocol(path)
            with store.lock:
                names = [name for name in store.objects if name == path or name.startswith(path + "/")]
                if not names:
                    raise FileNotFoundError(path)
                for name in names:
                    del store.objects[name]

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
    """An object that is there once it is closed."""

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
    with serve() as (store, url), pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORSTORE_GCS_HTTP_URL", url)
        patch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "token")
        yield store


@pytest.fixture
def bucket(store, monkeypatch):
    """The objects behind gs://bucket."""
    store.objects.clear()
    # It would ask Google whether the bucket has real folders.
    monkeypatch.setattr(gcs_utils, "get_bucket", lambda name: None)
    monkeypatch.setitem(file_systems, "gcs", file_system_of(store))
    backend.fsspec_backend._get_filesystem.cache_clear()
    yield store.objects
    backend.fsspec_backend._get_filesystem.cache_clear()
