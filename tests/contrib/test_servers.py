"""uvicorn and gunicorn, as processes of their own: the same scenarios pass on each."""

from __future__ import annotations

import pytest

from tests.contrib import scenarios, workers
from tests.contrib.servers import COMMANDS, served
from tests.durability.redelivery import BROKERS, reachable

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]


def play(site, log, left_out=()):
    for scenario in scenarios.SCENARIOS:
        if scenario in left_out:
            continue
        try:
            scenario(site)
        except BaseException as error:
            error.add_note(f"in {scenario.__name__}")
            error.add_note(log.read_text()[-6000:])
            raise


@pytest.mark.parametrize("kind", COMMANDS)
def test_scenarios(kind, tmp_path):
    log = tmp_path / f"{kind}.log"
    with served(kind, tmp_path) as site:
        play(site, log)
    # Django warns of an iterator of the wrong kind.
    assert "Warning" not in log.read_text()


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
@pytest.mark.parametrize("kind", ["uvicorn", "gunicorn-threads"])
def test_scenarios_with_celery_workers(kind, broker, tmp_path, monkeypatch):
    pytest.importorskip("celery")
    if not reachable(BROKERS[broker]):
        pytest.skip(f"nothing answers on {broker}'s port")
    environ = {"NEXO_TEST_BACKGROUND": "celery"}
    pool = ("-P", "threads", "-c", "4")
    settings = {"DJANGO_SETTINGS_MODULE": "tests.contrib.site.settings"}
    with (
        workers.queue(broker, tmp_path, monkeypatch),
        served(kind, tmp_path, **environ) as site,
        workers.worker(tmp_path, *pool, **environ, **settings),
    ):
        play(site, tmp_path / f"{kind}.log", left_out=scenarios.HERE)
