"""A fake object store: the part of Google Cloud Storage that is asked for here, served on this machine.

TensorStore, which writes locks and the arrays of a checkpoint, talks to it by HTTP as to the real one, and
`file_system_of` stands for gcsfs on the same objects. As in the real store there are no folders, nothing is
appended to or renamed, and an object is written whole or not at all. Requests may be made on the condition
that an object is still of a generation, or, by 0, that there is none.
"""

import contextlib
import functools
import http.server
import importlib
import io
import json
import re
import threading
import urllib.parse

import fsspec
import pytest
from etils.epath import backend
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
        key = name.partition("/")[2]
        return {"name": key, "size": str(len(data)), "generation": str(generation)}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, store, *args):
        self.store = store
        super().__init__(*args)

    def log_message(self, *_):
        """Says nothing."""

    def answer(self, status, body=b"", **headers):
        body = json.dumps(body).encode() if isinstance(body, dict) else body
        self.send_response(status)
        for name, value in {**headers, "Content_Length": len(body)}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body)

    def handle_request(self):
        """Each request is for the objects of a bucket, or for one of them."""
        url = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        bucket, key = re.fullmatch(r"(?:/upload)?/storage/v1/b/([^/]+)/o/?(.*)", url.path).groups()
        key = urllib.parse.unquote(key) or self.query.get("name", "")
        with self.store.lock:
            if not key:
                return self.list(bucket)
            name = f"{bucket}/{key}"
            if self.command != "POST" and name not in self.store.objects:
                return self.answer(404)
            if self.stale(name):
                return self.answer(304 if self.command == "GET" else 412)
            return getattr(self, self.command.lower())(name, body)

    do_GET = do_POST = do_DELETE = handle_request

    def stale(self, name):
        """Whether a condition on the generation does not hold."""
        there = str(self.store.objects.get(name, (b"", 0))[1])  # 0: there is no such object
        wanted, other = self.query.get("ifGenerationMatch", there), self.query.get("ifGenerationNotMatch")
        return wanted != there or other == there

    def get(self, name, _):
        if self.query.get("alt") != "media":
            return self.answer(200, self.store.describe(name))
        data, generation = self.store.objects[name]
        headers, status = {"x_goog_generation": generation}, 200
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, size = int(match[1]), len(data)
            last = min(int(match[2] or size), size - 1)
            headers["Content_Range"] = f"bytes {first}-{last}/{size}"
            data, status = data[first : last + 1], 206
        return self.answer(status, data, **headers)

    def list(self, bucket):
        first, end = self.query.get("startOffset", ""), self.query.get("endOffset", "\uffff")
        names = sorted(name for name in self.store.objects if name.startswith(f"{bucket}/"))
        items = [self.store.describe(name) for name in names]
        self.answer(200, {"items": [item for item in items if first <= item["name"] < end]})

    def post(self, name, body):
        self.store.put(name, body)
        self.answer(200, self.store.describe(name))

    def delete(self, name, _):
        del self.store.objects[name]
        self.answer(204)


@contextlib.contextmanager
def serve():
    """Yields a new store and its address."""
    store = Store()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, store))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield store, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def file_system_of(store):
    """A file system of fsspec on the objects of a store, in which folders are names of objects alone."""

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

        def rm_file(self, path):
            with store.lock:
                if store.objects.pop(self._strip_protocol(path), None) is None:
                    raise FileNotFoundError(path)

        def rm(self, path, recursive=False, maxdepth=None):
            with store.lock:
                for name in (recursive and self.find(path)) or [path]:
                    self.rm_file(name)

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
    known = importlib.import_module("fsspec.registry")._registry
    monkeypatch.setitem(known, "gcs", file_system_of(store))
    backend.fsspec_backend._get_filesystem.cache_clear()
    yield store.objects
    backend.fsspec_backend._get_filesystem.cache_clear()
