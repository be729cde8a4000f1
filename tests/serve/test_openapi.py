"""The description of the service is complete, and true: schemathesis tries what it allows and what it does not."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

import paml
from paml.data.schema import Target
from paml.recommend.predictor import Predictor
from paml.serve.description import value_schema
from serve.serving import Server
from waiting import PATIENCE

OPERATIONS = {
    "/v1/users/{user_id}": {"get", "put", "delete"},
    "/v1/users/{user_id}/ratings": {"post"},
    "/v1/users/{user_id}/ratings/{item}": {"delete"},
    "/v1/users/{user_id}/recommendations": {"get"},
    "/v1/users/{user_id}/predictions": {"get"},
    "/v1/users/{user_id}/next-question": {"get"},
    "/v1/users/{user_id}/rate-profile": {"get"},
    "/v1/recommend": {"post"},
    "/v1/items": {"get"},
    "/v1/model": {"get"},
    "/v1/audit": {"get"},
    "/healthz": {"get"},
    "/readyz": {"get"},
    "/metrics": {"get"},
}


@pytest.fixture(scope="module")
def api(server: Server) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


@pytest.mark.parametrize(
    ("path", "method"), [(path, method) for path in OPERATIONS for method in sorted(OPERATIONS[path])]
)
def test_answers_are_as_described(api: Any, path: str, method: str) -> None:
    @settings(
        max_examples=15,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=True,
    )
    @given(case=api[path][method.upper()].as_strategy())
    def call(case: Any) -> None:
        # What is well formed may still name an item or a field that the model does not know.
        case.call_and_validate(timeout=PATIENCE, excluded_checks=[positive_data_acceptance])

    call()


@pytest.mark.slow
def test_schemathesis_finds_nothing(server: Server, tmp_path: Path) -> None:
    """All its phases and checks: methods that are not declared, the Allow header, valid and invalid requests, ..."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--no-color"]
    command += ["--seed", "1", "--max-examples", "30", "--generation-database", "none"]
    command += ["--exclude-checks", "positive_data_acceptance", "--suppress-health-check", "all"]
    hooks = {"SCHEMATHESIS_HOOKS": "openapi_hooks", "PYTHONPATH": str(Path(__file__).parent)}
    found = subprocess.run(command, cwd=tmp_path, env={**os.environ, **hooks}, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
    assert "✅ Stateful" in found.stdout, "all phases were run"


def test_a_path_names_all_methods_that_it_takes(client: httpx.Client) -> None:
    for path, methods in OPERATIONS.items():
        for method in {"GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "HEAD"} - {
            m.upper() for m in methods
        }:
            # neither type nor body: what the path does not take is not read
            answer = client.request(method, path.format(user_id="anna", item="1"))
            assert answer.status_code == 405, (method, path)
            assert answer.headers["allow"] == ", ".join(sorted(m.upper() for m in methods))


def test_the_description_is_that_of_the_model(client: httpx.Client, trained: paml.Run) -> None:
    models = client.get("/openapi.json").json()["components"]["schemas"]
    profile = models["ProfileIn"]["properties"]["profile"]
    assert set(profile["properties"]) == {field.name for field in trained.predictor.fields}
    assert profile["additionalProperties"] is False
    assert models["RatingIn"]["properties"]["value"]["enum"] == [1, 2, 3, 4, 5]
    example = models["RecommendIn"]["examples"][0]
    assert client.post("/v1/recommend", json=example).status_code == 200, "examples work as they are"


def value_of(**target: Any) -> dict[str, Any]:
    """How the ratings of a model with this target are described."""
    return value_schema(cast(Predictor, SimpleNamespace(target=Target(**target))))


def test_ratings_are_described_as_people_write_them_and_none_that_is_refused() -> None:
    assert value_of(kind="choice")["enum"] == [1]
    assert value_of(kind="choice", high=3)["enum"] == [1, 2, 3]
    tenths = value_of(kind="rating", low=0, high=1, step=0.1)["enum"]
    assert tenths == [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1]
    many = value_of(kind="rating", low=-5, high=100, step=0.25)
    assert many == {"type": "number", "minimum": -5, "maximum": 100, "multipleOf": 0.25, "title": "Value"}
    odd = value_of(kind="rating", low=0.1, high=100.1, step=0.25)["enum"]
    assert (len(odd), odd[:2]) == (401, [0.1, 0.35]), "not multiples of the step"


def test_every_operation_is_described_with_examples(client: httpx.Client) -> None:
    found: dict[str, Any] = client.get("/openapi.json").json()
    assert {path: set(operations) for path, operations in found["paths"].items()} == OPERATIONS
    schemas = found["components"]["schemas"]
    for path, operations in found["paths"].items():
        for operation in operations.values():
            assert operation["summary"]
            for status, answer in operation["responses"].items():
                assert answer["description"]
                for kind, content in answer.get("content", {}).items():
                    assert (kind == "application/problem+json") == (int(status) >= 400)
                    if path.startswith("/v1/") or int(status) >= 400:
                        assert schemas[content["schema"]["$ref"].rpartition("/")[2]]["examples"]
            if "requestBody" in operation:
                reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
                assert schemas[reference.rpartition("/")[2]]["examples"]
