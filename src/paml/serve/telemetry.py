"""What operators see: Prometheus metrics and an access log, without ids, profiles, ratings or queries."""

import logging
import math
import os
import threading
import time
import traceback
from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
    multiprocess,
    values,
)

from paml.serve.current import request_id

access_log = logging.getLogger("paml.access")
error_log = logging.getLogger("paml.error")

SECONDS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
TROUBLE_SECONDS = 10.0
TROUBLE_REASONS = 100
BATCHES = (1, 2, 4, 8, 16, 32)
FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client's variable: where the workers' metrics are


def share_metrics(folder: str) -> None:
    """From now on metrics are kept in files, so that each worker can tell those of all together."""
    os.environ[FOLDER] = folder
    values.ValueClass = values.get_value_class()  # type: ignore[no-untyped-call]


def forget_process(folder: str, number: int) -> None:
    """A worker has ended: what it had at that moment (connections, cached users) is no more; its counts stay."""
    multiprocess.mark_process_dead(number, folder)  # type: ignore[no-untyped-call]


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
        self.under_way = Gauge(
            "paml_requests_under_way", "Requests not yet answered.", registry=registry, multiprocess_mode="livesum"
        )
        self.batch = Histogram("paml_batch_users", "Users adapted together.", buckets=BATCHES, registry=registry)
        self._cache = Counter("paml_cache", "Adapted users looked up.", ["result"], registry=registry)
        self.cache_hit, self.cache_miss = self._cache.labels("hit"), self._cache.labels("miss")
        self.cached = Gauge("paml_cached_users", "Adapted users kept.", registry=registry, multiprocess_mode="livesum")
        self.cached_bytes = Gauge(
            "paml_cached_bytes", "Memory of adapted users kept.", registry=registry, multiprocess_mode="livesum"
        )
        self.index_recall = Gauge(
            "paml_index_recall",
            "Share of exact lists' ten best that the catalogue's index finds, measured at load; 1 if all are scored.",
            registry=registry,
            multiprocess_mode="livemin",
        )
        self.index_recall.set(1)
        self.index_candidates = Gauge(
            "paml_index_candidates",
            "Items that the index proposes and that are scored; 0 if all are.",
            registry=registry,
            multiprocess_mode="livemin",
        )
        self.connections = Gauge(
            "paml_connections", "Open connections.", registry=registry, multiprocess_mode="livesum"
        )
        self.connections_closed = Counter(
            "paml_connections_closed", "Connections that the server closed, and why.", ["reason"], registry=registry
        )
        self.store_errors = Counter("paml_store_errors", "Calls that the store could not serve.", registry=registry)
        self.store_writable = Gauge(
            "paml_store_writable",
            "1 if the last attempt to write into the store succeeded.",
            registry=registry,
            multiprocess_mode="livemin",
        )
        self.store_writable.set(1)
        ProcessCollector(registry=registry)

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request and log it: the route's pattern, never the path."""
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
        access_log.info("%s %s %d %.1f ms %s", method, route, status, 1000 * seconds, request_id.get() or "-")

    def text(self) -> bytes:
        """All metrics in Prometheus' format."""
        if FOLDER not in os.environ:
            return generate_latest(self._registry)
        together = CollectorRegistry()
        multiprocess.MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return generate_latest(together)


class TroubleLog:
    """Logs why the store fails, and when that is over; each reason at most once in some seconds, with its count."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._reasons: dict[str, tuple[float, int]] = {}  # when it was logged, and how often it was met since

    def failed(self, reason: str) -> None:
        """A call failed."""
        with self._lock:
            logged, more = self._reasons.get(reason, (-math.inf, 0))
            if self._clock() - logged < TROUBLE_SECONDS:
                self._reasons[reason] = (logged, more + 1)
                return
            if len(self._reasons) >= TROUBLE_REASONS:
                self._reasons.clear()
            self._reasons[reason] = (self._clock(), 0)
        error_log.error("%s%s", reason, f" ({more:,} more times since it was logged)" if more else "")

    def answered(self) -> None:
        """A call succeeded: if the last ones failed, that is over, once all of them are some time ago."""
        if not self._reasons:
            return
        with self._lock:
            if not all(self._clock() - logged >= TROUBLE_SECONDS for logged, _ in self._reasons.values()):
                return
            more = sum(more for _, more in self._reasons.values())
            self._reasons.clear()
        error_log.warning("the store answers again%s", f" ({more:,} more failures were not logged)" if more else "")


def log_error(error: BaseException, route: str) -> None:
    """Log where an unexpected error happened, without its message, which may contain what the user sent."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    error_log.error("%s on %s, request %s\n%s", type(error).__name__, route, request_id.get() or "-", frames)
