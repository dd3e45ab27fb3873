"""Prometheus metrics."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from bertkit.serve.worker import BatchDone

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
FILL_SHARES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


class Metrics:
    """Requests, latency, queue, batches, tokens, padding and cut texts of one server."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._by_status: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "bertkit_requests", "Requests by route and status.", ["route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "bertkit_request_seconds",
            "From the whole request to the reply.",
            ["route"],
            buckets=SECONDS,
            registry=registry,
        )
        self._tokens = Counter("bertkit_tokens", "Tokens through the model.", registry=registry)
        self._texts = Counter("bertkit_sequences", "Sequences through the model.", registry=registry)
        self._saved = Counter(
            "bertkit_padding_saved_tokens", "Tokens that padding to the longest would add.", registry=registry
        )
        self._busy = Counter("bertkit_compute_seconds", "Seconds that the model computed.", registry=registry)
        self._fill = Histogram(
            "bertkit_batch_fill", "Share of the token budget.", buckets=FILL_SHARES, registry=registry
        )
        self._shared = Histogram(
            "bertkit_batch_requests",
            "Requests in a batch.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=registry,
        )
        self._cut = Counter(
            "bertkit_long_texts", "Texts over the limit, by what was done.", ["policy"], registry=registry
        )
        self._gone = Counter("bertkit_cancelled", "Requests whose client went away.", registry=registry)

    def watch(self, inside: Callable[[], int], depth: Callable[[], tuple[int, int]]) -> None:
        """Functions that are called for the gauges whenever the metrics are read."""
        registry = self.registry
        Gauge("bertkit_requests_inside", "Requests being answered.", registry=registry).set_function(inside)
        Gauge("bertkit_queue_requests", "Requests in the queue.", registry=registry).set_function(lambda: depth()[0])
        Gauge("bertkit_queue_tokens", "Tokens in the queue.", registry=registry).set_function(lambda: depth()[1])

    def request_done(self, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        count, latency = self._by_status.get((route, status)) or self._labeled(route, status)
        count.inc()
        latency.observe(seconds)

    def _labeled(self, route: str, status: int) -> tuple[Counter, Histogram]:
        """The metrics of a route and status, looked up by their labels once: a lookup costs more than a count."""
        labeled = self._requests.labels(route, str(status)), self._seconds.labels(route)
        return self._by_status.setdefault((route, status), labeled)

    def batch_done(self, batch: BatchDone) -> None:
        """Count one batch."""
        self._tokens.inc(batch.tokens)
        self._texts.inc(batch.sequences)
        self._saved.inc(batch.sequences * batch.longest - batch.tokens)
        self._busy.inc(batch.seconds)
        self._fill.observe(batch.tokens / self._budget)
        self._shared.observe(batch.requests)

    def texts_cut(self, policy: str, count: int) -> None:
        """Count texts that were over a model's limit."""
        self._cut.labels(policy).inc(count)

    def client_gone(self) -> None:
        """Count a request whose client disconnected."""
        self._gone.inc()

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)
