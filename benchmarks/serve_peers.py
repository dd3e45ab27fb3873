"""Servers of one sentence-embedding model as their users would best run them: the other side of serve_load.py.

    python benchmarks/serve_peers.py FOLDER PORT [--limit N]

starts the plain one: FastAPI around sentence-transformers. All are asked by POST /v1/embeddings.
"""

import argparse
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from serve_process import HOST, ServerProcess, free_port


@dataclass(frozen=True)
class Way:
    """A server and its settings."""

    server: str  # bertkit, torch, optimum or plain
    threads: int = 0  # of each calculation; 0: as it comes
    batch: int = 32  # of infinity
    better: bool = False  # infinity's BetterTransformer
    at_once: int | None = None  # requests in the plain server's model
    workers: int = 0  # of ours; 0: as it comes
    dtype: str | None = None  # of ours; None: as it comes

    def command(self, folder: Path, port: int, peers: Path | None) -> list[str]:
        """What starts it."""
        if self.server == "bertkit":
            given = [f"minilm={folder}", "--port", str(port)]
            given += ["--dtype", self.dtype] if self.dtype else []
            given += ["--workers", str(self.workers)] if self.workers else []
            return [sys.executable, "-m", "bertkit", "serve", *given]
        if self.server == "plain":
            limit = [] if self.at_once is None else ["--limit", str(self.at_once)]
            return [sys.executable, __file__, str(folder), str(port), *limit]
        if peers is None:
            raise SystemExit("--peers is needed: the Python that infinity-emb is installed for")
        return [
            *(str(peers.parent / "infinity_emb"), "v2", "--model-id", str(folder), "--engine", self.server),
            *("--device", "cpu", "--host", HOST, "--port", str(port), "--url-prefix", "/v1", "--dtype", "float32"),
            *("--served-model-name", "minilm", "--batch-size", str(self.batch), "--log-level", "warning"),
            *("--pooling-method", "mean"),
            *("--bettertransformer" if self.better else "--no-bettertransformer", "--no-compile", "--no-model-warmup"),
        ]


# On a machine that others use, threads that wait for each other cost much; so each peer may go without them, too.
WAYS = {
    "bertkit": Way("bertkit"),
    "bertkit, int8": Way("bertkit", dtype="int8"),
    "bertkit, 1 thread": Way("bertkit", threads=1),
    "bertkit, 1 worker": Way("bertkit", workers=1),
    "infinity torch": Way("torch"),
    "infinity torch, 1 thread": Way("torch", threads=1),
    "infinity torch, better": Way("torch", better=True),
    "infinity torch, better, 1 thread": Way("torch", threads=1, better=True),
    "infinity onnx": Way("optimum"),
    "infinity onnx, 1 thread": Way("optimum", threads=1),
    "infinity onnx, 8, 1 thread": Way("optimum", threads=1, batch=8),
    "plain": Way("plain"),
    "plain, one at a time": Way("plain", at_once=1),
    "plain, two at a time, 1 thread": Way("plain", threads=1, at_once=2),
}


def start(name: str, folder: Path, logs: Path, peers: Path | None) -> ServerProcess:
    """A server of this name, which may still be loading."""
    way, port = WAYS[name], free_port()
    threads = {} if not way.threads else {"OMP_NUM_THREADS": str(way.threads), "MKL_NUM_THREADS": str(way.threads)}
    log = logs / f"{name.replace(' ', '-').replace(',', '')}.log"
    return ServerProcess(way.command(folder, port, peers), port, log, TOKENIZERS_PARALLELISM="false", **threads)


def plain(folder: Path, port: int, limit: int | None) -> None:
    """The server that a careful user writes in an afternoon: the model loaded once, `def` routes, orjson, uvloop."""
    import orjson
    import uvicorn
    from anyio import to_thread
    from fastapi import FastAPI, Response
    from pydantic import BaseModel
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if limit is not None:
            to_thread.current_default_thread_limiter().total_tokens = limit
        yield

    class Asked(BaseModel):
        input: str | list[str]
        model: str = ""

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/embeddings")
    def embeddings(asked: Asked) -> Response:
        texts = [asked.input] if isinstance(asked.input, str) else asked.input
        vectors = model.encode(texts, show_progress_bar=False)
        data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)]
        body = orjson.dumps({"object": "list", "data": data, "model": "minilm"}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(body, media_type="application/json")

    uvicorn.run(app, host=HOST, port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--limit", type=int, help="requests in the model at a time")
    given = parser.parse_args()
    plain(given.folder, given.port, given.limit)
