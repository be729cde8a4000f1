"""The description of the service is complete, and true: schemathesis tries what it allows and what it does not."""

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

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
