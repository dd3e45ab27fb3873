"""One request for embeddings passes through few files: what a reader opens to follow it."""

import json
import subprocess
import sys

MAX_FILES = 20  # of src that POST /v1/embeddings enters

# Sends two requests to the ASGI application and prints the files whose functions the second one called, in all threads.
TRACED = """
import asyncio, json, sys, threading
from pathlib import Path
import torch
import bertkit

ROOT = str(Path(bertkit.__file__).parent) + "/"
BODY = json.dumps({"input": ["A cat sat on the mat."]}).encode()
HEADERS = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]
SCOPE = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/v1/embeddings", "query_string": b"",
         "headers": HEADERS, "root_path": ""}
INLINE = ("<module>", "<genexpr>", "<listcomp>", "<dictcomp>", "<lambda>")  # part of the function around them
entered, tracing = set(), False

def record(frame, event, _):
    code = frame.f_code
    if tracing and event == "call" and code.co_filename.startswith(ROOT) and code.co_name not in INLINE:
        entered.add(code.co_filename.removeprefix(ROOT))

torch.set_num_threads(1)
threading.setprofile(record)
sys.setprofile(record)

from bertkit.serve.app import create_app
from bertkit.serve.models import load_models

app = create_app(load_models(["sentences"], torch.device("cpu")))

async def request():
    body, sent = [{"type": "http.request", "body": BODY, "more_body": False}], []
    async def receive():
        return body.pop() if body else await asyncio.Event().wait()
    async def send(message):
        sent.append(message)
    await app(dict(SCOPE), receive, send)
    return sent

async def main():
    global tracing
    received, sent = asyncio.Queue(), asyncio.Queue()
    lifespan = asyncio.create_task(app({"type": "lifespan"}, received.get, sent.put))
    await received.put({"type": "lifespan.startup"})
    await sent.get()
    await request()
    tracing = True
    start, reply = await request()
    tracing = False
    await received.put({"type": "lifespan.shutdown"})
    await lifespan
    [row] = json.loads(reply["body"])["data"]
    print(json.dumps({"status": start["status"], "width": len(row["embedding"]), "files": sorted(entered)}))

asyncio.run(main())
"""


def test_a_request_for_embeddings_enters_few_files():
    done = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["status"] == 200
    assert seen["width"] > 1
    assert {"serve/http/middleware.py", "serve/routes/embeddings.py", "serve/worker.py"} <= set(seen["files"])
    assert len(seen["files"]) <= MAX_FILES, seen["files"]
