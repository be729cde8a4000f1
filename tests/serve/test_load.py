"""Many at once: nothing acknowledged is missing, and everybody gets their own answer."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import paml
from paml.recommend.requests import Rating
from serve.serving import Server
from waiting import PATIENCE

CLIENTS = 50
ROUNDS = 3


@pytest.mark.slow
def test_fifty_clients_writing_and_reading(server: Server, trained: paml.Run) -> None:
    ids = trained.predictor.catalogue.ids
    barrier = threading.Barrier(CLIENTS)

    def live(k: int) -> tuple[dict[str, float], list[float]]:
        """One client, and a user whom every client writes to as well."""
        draw = random.Random(k)
        own: dict[str, float] = {}
        path = f"/v1/users/crowd-{k}"
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            assert client.put(path, json={"profile": {}}).status_code == 201
            barrier.wait(PATIENCE)
            for _ in range(ROUNDS):
                new = {item: float(draw.randint(1, 5)) for item in draw.sample(ids, 2)}
                body = {"ratings": [{"item": item, "value": value} for item, value in new.items()]}
                assert client.post(f"{path}/ratings", json=body).status_code == 200
                own |= new
                shared = {"ratings": [{"item": ids[k], "value": float(1 + k % 5)}]}
                assert client.post("/v1/users/crowd/ratings", json=shared).status_code == 200
                found = client.get(f"{path}/predictions", params={"item": ids}).json()["predictions"]
                scores = [entry["score"] for entry in found]
                assert client.get(f"{path}/recommendations").status_code == 200
        return own, scores

    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client, ThreadPoolExecutor(CLIENTS) as clients:
        client.put("/v1/users/crowd", json={"profile": {}})
        for k, (own, scores) in enumerate(clients.map(live, range(CLIENTS))):
            stored = {entry["item"]: entry["value"] for entry in client.get(f"/v1/users/crowd-{k}").json()["ratings"]}
            assert stored == own, "every acknowledged rating is there, and no other"
            alone = trained.adapt({}, [Rating(item, value) for item, value in own.items()]).predict(ids)
            assert scores == pytest.approx(alone.tolist(), abs=1e-5)
        everybody = {entry["item"]: entry["value"] for entry in client.get("/v1/users/crowd").json()["ratings"]}
        assert everybody == {ids[k]: 1 + k % 5 for k in range(CLIENTS)}
        metrics = client.get("/metrics").text
        count, total = (_value(metrics, f"paml_batch_users_{name}") for name in ("count", "sum"))
        assert total / count > 1.05, "some were adapted together"


def _value(metrics: str, name: str) -> float:
    return next(float(line.split()[1]) for line in metrics.splitlines() if line.startswith(f"{name} "))
