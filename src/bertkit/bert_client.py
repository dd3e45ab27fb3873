"""bert-as-a-service's client over bertkit's: the same class, the same words."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bertkit.client import Client
from bertkit.errors import RequestError

# bert-as-a-service's names for what is done with the tokens of a text.
STRATEGIES = {
    "NONE": "none",
    "REDUCE_MEAN": "mean",
    "REDUCE_MAX": "max",
    "REDUCE_MEAN_MAX": "mean-max",
    "CLS_TOKEN": "cls",
    "FIRST_TOKEN": "first",
    "SEP_TOKEN": "last",
    "LAST_TOKEN": "last",
}


class BertClient:
    """bert-as-a-service's client: programs written for it need only another import and port.

    The server's old options `pooling_strategy` and `pooling_layer` are given here, with their old defaults.
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
        if pooling_strategy not in STRATEGIES:
            raise RequestError(f"unknown pooling_strategy '{pooling_strategy}'; choose from: {', '.join(STRATEGIES)}")
        if output_fmt not in ("ndarray", "list"):
            raise RequestError(f"unknown output_fmt '{output_fmt}'; choose from: ndarray, list")
        known = {name: options[name] for name in ("key", "model", "retries") if name in options}
        patience = timeout / 1000 if timeout > 0 else 70.0  # the original counts milliseconds; -1 is without end
        self._client = Client(f"http://{f'[{ip}]' if ':' in ip else ip}:{port}", timeout=patience, **known)
        self._asked: dict[str, Any] = {"pooling": STRATEGIES[pooling_strategy], "layers": list(pooling_layer)}
        self._as_list = output_fmt == "list"

    def encode(
        self, texts: Sequence[Any], blocking: bool = True, is_tokenized: bool = False, show_tokens: bool = False
    ) -> object:
        """Vectors of the texts, [texts, width]; a text with ||| is a pair; with `show_tokens` their tokens too."""
        given = self._checked(texts, is_tokenized)
        if not blocking:
            raise RequestError("blocking=False leaves vectors where nobody finds them; use encode_async")
        found = self._client.embed(given, pairs=True, normalize=False, **self._asked)
        vectors = [row.tolist() for row in found] if self._as_list else found
        return (vectors, self._tokens(given)) if show_tokens else vectors

    def encode_async(
        self, batch_generator: Iterable[Sequence[Any]], max_num_batch: int | None = None, delay: float = 0.1, **how: Any
    ) -> Iterator[Any]:
        """Vectors of each batch in turn, while the next are on their way."""
        with ThreadPoolExecutor(4) as threads:
            waiting = []
            for number, batch in enumerate(batch_generator):
                if max_num_batch is not None and number >= max_num_batch:
                    break
                waiting.append(threads.submit(self.encode, batch, **how))
                if len(waiting) >= 4:
                    yield waiting.pop(0).result()
            for each in waiting:
                yield each.result()

    @property
    def status(self) -> dict[str, Any]:
        """What the client asks for."""
        return {"url": self._client.url, **self._asked}

    @property
    def server_status(self) -> dict[str, Any]:
        """What the server is."""
        found = self._client.get("/info")
        assert isinstance(found, dict)
        return found

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def __enter__(self) -> "BertClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _checked(self, texts: Sequence[Any], is_tokenized: bool) -> list[str]:
        given = [] if isinstance(texts, str) else [" ".join(words) if is_tokenized else words for words in texts]
        if not given:
            raise RequestError("texts must be a list of one text at least")
        for number, text in enumerate(given):
            if not isinstance(text, str) or not text.strip():
                raise RequestError(f"texts[{number}] is empty or no text; leave it out")
        return given

    def _tokens(self, texts: list[str]) -> list[list[str]]:
        found = self._client.post("/tokenize", {"inputs": texts, "pairs": True, "model": self._client.model})
        assert isinstance(found, list)
        return [[token["text"] for token in row] for row in found]
