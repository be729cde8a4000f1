"""What operators see: Prometheus metrics and an access log, without ids, profiles, ratings or queries."""

import logging
import traceback

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

access_log = logging.getLogger("paml.access")
error_log = logging.getLogger("paml.error")

SECONDS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
BATCHES = (1, 2, 4, 8, 16, 32)


class Metrics:
    """Counters of one service."""

    def __init__(self) -> None:
        # The creation times of counters would double the lines, and nobody asks for them.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = self._registry = CollectorRegistry()
        self._requests = Counter(
            "paml_requests", "Requests answered.", ["route", "method", "status"], registry=registry
        )
        self._seconds = Histogram(
            "paml_request_seconds", "Time to answer.", ["route"], buckets=SECONDS, registry=registry
        )
        self.under_way = Gauge("paml_requests_under_way", "Requests not yet answered.", registry=registry)
        self.batch = Histogram("paml_batch_users", "Users adapted together.", buckets=BATCHES, registry=registry)
        self._cache = Counter("paml_cache", "Adapted users looked up.", ["result"], registry=registry)
        self.cache_hit, self.cache_miss = self._cache.labels("hit"), self._cache.labels("miss")
        self.cached = Gauge("paml_cached_users", "Adapted users kept.", registry=registry)
        self.cached_bytes = Gauge("paml_cached_bytes", "Memory of adapted users kept.", registry=registry)
        self.store_errors = Counter("paml_store_errors", "Calls that the store could not serve.", registry=registry)
        ProcessCollector(registry=registry)

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request and log it: the route's pattern, never the path."""
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
        access_log.info("%s %s %d %.1f ms", method, route, status, 1000 * seconds)

    def text(self) -> bytes:
        """All metrics in Prometheus' format."""
        return generate_latest(self._registry)


def log_error(error: BaseException, route: str) -> None:
    """Log where an unexpected error happened, without its message, which may contain what the user sent."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    error_log.error("%s on %s\n%s", type(error).__name__, route, frames)
