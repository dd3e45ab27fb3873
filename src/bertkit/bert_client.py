"""A drop-in replacement for bert-as-a-service's client, over bertkit's."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from bertkit.client import Client
from bertkit.connection import ClosedAtExit, Json
from bertkit.errors import RequestError

# bert-as-a-service's names of poolings.
POOLING_STRATEGIES = {
    "NONE": "none",
    "REDUCE_MEAN": "mean",
    "REDUCE_MAX": "max",
    "REDUCE_MEAN_MAX": "mean-max",
    "CLS_TOKEN": "cls",
    "FIRST_TOKEN": "first",
    "SEP_TOKEN": "last",
    "LAST_TOKEN": "last",
}


class BertClient(ClosedAtExit):
    """bert-as-a-service's client: programs written for it change only the import and the port.

    `pooling_strategy` and `pooling_layer`, options of its server, are options here, with the same defaults.
    """

    def __init__(
        self,
        ip: str = "localhost",
        port: int = 8000,
        port_out: int | None = None,
        output_fmt: str = "ndarray",
        *,
        pooling_strategy: str = "REDUCE_MEAN",
        pooling_layer: Sequence[int] = (-2,),
        timeout: float = -1,
        **options: Any,
    ) -> None:
        if pooling_strategy not in POOLING_STRATEGIES:
            raise RequestError(
                f"unknown pooling_strategy '{pooling_strategy}'; choose from: {', '.join(POOLING_STRATEGIES)}"
            )
        if output_fmt not in ("ndarray", "list"):
            raise RequestError(f"unknown output_fmt '{output_fmt}'; choose from: ndarray, list")
        client_options = {name: options[name] for name in ("key", "model", "retries") if name in options}
        seconds = timeout / 1000 if timeout > 0 else 70.0  # the original's are milliseconds; -1 is no timeout
        self._client = Client(f"http://{f'[{ip}]' if ':' in ip else ip}:{port}", timeout=seconds, **client_options)
        self._embed_options: dict[str, Any] = {
            "pooling": POOLING_STRATEGIES[pooling_strategy],
            "layers": list(pooling_layer),
        }
        self._as_list = output_fmt == "list"

    def encode(
        self, texts: Sequence[object], blocking: bool = True, is_tokenized: bool = False, show_tokens: bool = False
    ) -> object:
        """Embeddings, [texts, width]; a text with ||| is a pair; with `show_tokens` the tokens too."""
        checked = self._checked(texts, is_tokenized)
        if not blocking:
            raise RequestError("blocking=False, which fetches the vectors later, is not supported; use encode_async")
        array = self._client.embed(checked, pairs=True, normalize=False, **self._embed_options)
        vectors = [row.tolist() for row in array] if self._as_list else array
        return (vectors, self._tokens(checked)) if show_tokens else vectors

    def encode_async(
        self,
        batch_generator: Iterable[Sequence[object]],
        max_num_batch: int | None = None,
        delay: float = 0.1,
        **how: Any,
    ) -> Iterator[object]:
        """Embeddings of each batch in turn; the next batches are requested meanwhile."""
        with ThreadPoolExecutor(4) as threads:
            waiting = []
            for number, batch in enumerate(batch_generator):
                if max_num_batch is not None and number >= max_num_batch:
                    break
                waiting.append(threads.submit(self.encode, batch, **how))
                if len(waiting) >= 4:
                    yield waiting.pop(0).result()
            for future in waiting:
                yield future.result()

    @property
    def status(self) -> dict[str, Json]:
        """The server's address and the client's options."""
        return {"url": self._client.url, **self._embed_options}

    @property
    def server_status(self) -> dict[str, Json]:
        """The server's model, limits and version."""
        info = self._client.get("/info")
        assert isinstance(info, dict)
        return info

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _checked(self, texts: Sequence[Any], is_tokenized: bool) -> list[str]:
        checked = [] if isinstance(texts, str) else [" ".join(words) if is_tokenized else words for words in texts]
        if not checked:
            raise RequestError("texts must be a list of one text at least")
        for number, text in enumerate(checked):
            if not isinstance(text, str) or not text.strip():
                raise RequestError(f"texts[{number}] is empty or no text; leave it out")
        return checked

    def _tokens(self, texts: list[str]) -> list[list[str]]:
        rows = self._client.post("/tokenize", {"inputs": texts, "pairs": True, "model": self._client.model})
        return [[token["text"] for token in row] for row in cast("list[list[dict[str, str]]]", rows)]
