"""For schemathesis: valid requests are accepted, except for the two reasons that OpenAPI cannot say."""

import schemathesis
from schemathesis.core.failures import Failure

REASONS = {"urn:paml:unknown-item", "urn:paml:rated-twice"}


class Refused(Failure):
    """A request that the description allows was refused."""


@schemathesis.check
def refused_for_a_reason(ctx, response, case):  # type: ignore[no-untyped-def]
    """A valid request may only name an item that does not exist, or the same one twice."""
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code not in (400, 415, 422):
        return
    problem = response.json()
    if problem["type"] not in REASONS:
        raise Refused(operation=case.operation.label, title="Valid request refused", message=problem["detail"])
