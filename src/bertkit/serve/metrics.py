"""Prometheus metrics."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from bertkit.serve.worker import BatchDone

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
BATCH_FILL_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


class Metrics:
    """Requests, latency, queue, batches, tokens, padding and long texts of one server."""

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
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self._tokens = Counter("bertkit_tokens", "Tokens through the model.", registry=registry)
        self._sequences = Counter("bertkit_sequences", "Sequences through the model.", registry=registry)
        self._padding_saved = Counter(
            "bertkit_padding_saved_tokens", "Tokens that padding to the longest would add.", registry=registry
        )
        self._compute_seconds = Counter(
            "bertkit_compute_seconds", "Seconds that the model computed.", registry=registry
        )
        self._batch_fill = Histogram(
            "bertkit_batch_fill", "Share of the token budget.", buckets=BATCH_FILL_BUCKETS, registry=registry
        )
        self._batch_requests = Histogram(
            "bertkit_batch_requests",
            "Requests in a batch.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=registry,
        )
        self._long_texts = Counter(
            "bertkit_long_texts", "Texts over the limit, by what was done.", ["policy"], registry=registry
        )
        self._cancelled = Counter("bertkit_cancelled", "Requests whose client disconnected.", registry=registry)

    def watch(self, in_progress: Callable[[], int], depth: Callable[[], tuple[int, int]]) -> None:
        """Add gauges, whose values these functions give whenever the metrics are read."""
        registry = self.registry
        Gauge("bertkit_requests_inside", "Requests being answered.", registry=registry).set_function(in_progress)
        Gauge("bertkit_queue_requests", "Requests in the queue.", registry=registry).set_function(lambda: depth()[0])
        Gauge("bertkit_queue_tokens", "Tokens in the queue.", registry=registry).set_function(lambda: depth()[1])

    def request_done(self, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        count, latency = self._by_status.get((route, status)) or self._labeled(route, status)
        count.inc()
        latency.observe(seconds)

    def _labeled(self, route: str, status: int) -> tuple[Counter, Histogram]:
        """The metrics of a route and status, cached: looking them up by labels takes longer than counting."""
        labeled = self._requests.labels(route, str(status)), self._seconds.labels(route)
        return self._by_status.setdefault((route, status), labeled)

    def batch_done(self, batch: BatchDone) -> None:
        """Count one batch."""
        self._tokens.inc(batch.tokens)
        self._sequences.inc(batch.sequences)
        self._padding_saved.inc(batch.sequences * batch.longest - batch.tokens)
        self._compute_seconds.inc(batch.seconds)
        self._batch_fill.observe(batch.tokens / self._budget)
        self._batch_requests.observe(batch.requests)

    def long_texts(self, policy: str, count: int) -> None:
        """Count texts that were over a model's limit."""
        self._long_texts.labels(policy).inc(count)

    def client_disconnected(self) -> None:
        """Count a request whose client disconnected."""
        self._cancelled.inc()

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)
