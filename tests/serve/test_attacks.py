"""The attacks on the store and the service, a small instance of each; and that they find what they should find.

What is counted is checked, not how fast the machine is.
"""

import pytest
from benchmarks.attack import fuzz, heavy, overload, restores, server_kills, silent, store_power

import paml

pytestmark = pytest.mark.attack


def power(*options: str) -> int:
    try:
        return store_power.main([*options])
    except LookupError as error:
        pytest.skip(str(error))


def test_a_killed_service_has_lost_nothing() -> None:
    assert server_kills.main(["--count", "2", "--seed", "7"]) == 0


def test_a_restoration_brings_back_what_was_acknowledged() -> None:
    assert restores.main(["--count", "6", "--seed", "7"]) == 0


def test_drills_find_what_copying_does() -> None:
    assert restores.main(["--count", "1", "--seed", "7", "--by-copying"]) == 1


@pytest.mark.parametrize("scenario", ["writing", "restoring"])
def test_a_lost_power_takes_nothing_acknowledged(scenario: str) -> None:
    assert power("--count", "20", "--seed", "7", "--scenario", scenario) == 0


def test_the_simulation_finds_a_store_that_does_not_sync() -> None:
    assert power("--count", "10", "--seed", "7", "--without-sync") == 1


def test_silent_connections_keep_nobody_out(trained: paml.Run) -> None:
    found = silent.main(["--run", str(trained.path), "--count", "300", "--seconds", "2"])
    assert len(found) == 5
    for name, waits in found.items():
        assert waits.seconds, name
        assert not waits.failures, name


def test_fuzzed_requests_meet_no_server_error(trained: paml.Run) -> None:
    statuses, errors, memory, files = fuzz.main(["--run", str(trained.path), "--count", "1500", "--seed", "3"])
    assert not errors
    assert {200, 400, 404, 405, 422} <= set(statuses), "not all are refused at the same door"
    assert statuses[0] < 75, "nearly all are answered"
    assert memory < 100
    assert files < 30


def test_overload_is_shed_in_good_order(trained: paml.Run) -> None:
    found = overload.main(["--run", str(trained.path), "--clients", "80", "--seconds", "4", "--max-wait", "0.01"])
    ((answered, shed, statuses),) = found.values()
    assert set(statuses) == {200, 503}
    assert answered.seconds
    assert shed.seconds


def test_light_clients_are_answered_beside_heavy_ones(trained: paml.Run) -> None:
    assert heavy.main(["--run", str(trained.path), "--seconds", "3"]) > 0
