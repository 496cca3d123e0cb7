from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest

from nexo_django import conf
from nexo_django.conf import NEXO
from nexo_django.exceptions import ConfigurationError
from nexo_django.permissions import Permissions

GOOD = [
    ("DEFAULT_MODEL", "openai/gpt-4o-mini"),
    ("SESSION_CHAT_MODEL", "nexo_django.Chat"),
    ("SESSION_STORE", "memory"),
    ("SESSION_STORE", "jsonl:/var/lib/chats"),
    ("SESSION_STORE", None),
    ("DEFAULT_SANDBOX", "virtual"),
    ("SANDBOX_ROOT", "/srv/workspaces"),
    ("DEFAULT_PERMISSIONS", "auto"),
    ("DEFAULT_PERMISSIONS", Permissions("approve")),
    ("TIMEOUT", 0.5),
    ("TURN_DEADLINE", None),
    ("TURN_DEADLINE", 90),
    ("TURN_WAIT", 0),
    ("LEASE_SECONDS", 1.5),
    ("MAX_IN_FLIGHT", 1),
    ("COMPACT_AT", 0.9),
    ("COMPACT_AT", 1),
    ("TRUNCATE_LINES", 1),
    ("OUTPUT_RETENTION", timedelta(hours=1)),
    ("OUTPUT_RETENTION", None),
    ("REDACT", None),
]
BAD = [
    ("DEFAULT_MODEL", ""),
    ("DEFAULT_MODEL", None),
    ("SESSION_CHAT_MODEL", "Chat"),
    ("SESSION_CHAT_MODEL", "my app.Chat"),
    ("SESSION_STORE", "redis"),
    ("SESSION_STORE", "jsonl:"),
    ("SESSION_STORE", 3),
    ("DEFAULT_SANDBOX", ""),
    ("SANDBOX_ROOT", ""),
    ("DEFAULT_SANDBOX", None),
    ("DEFAULT_PERMISSIONS", "root"),
    ("DEFAULT_PERMISSIONS", None),
    ("SKILLS_PATH", ""),
    ("SKILLS_PATH", 5),
    ("SKILLS_PATH", ["/skills", None]),
    ("TIMEOUT", 0),
    ("TIMEOUT", None),
    ("TIMEOUT", "60"),
    ("TIMEOUT", True),
    ("TIMEOUT", float("nan")),
    ("TIMEOUT", float("inf")),
    ("TURN_DEADLINE", 0),
    ("TURN_WAIT", -1),
    ("LEASE_SECONDS", 0),
    ("MAX_IN_FLIGHT", 0),
    ("MAX_IN_FLIGHT", 2.5),
    ("COMPACT_AT", 70),
    ("COMPACT_TO", 0),
    ("COMPACT_TO", "0.4"),
    ("TRUNCATE_BYTES", -1),
    ("OUTPUT_RETENTION", 7),
    ("OUTPUT_RETENTION", timedelta(0)),
    ("RETENTION", timedelta(days=90)),
    ("ACCESS", "access"),
    ("ACCESS", 3),
    ("RELAY", "127.0.0.1:6379"),
    ("BACKGROUND", "threads"),
]


def test_defaults_hold_without_a_setting(settings):
    del settings.NEXO
    assert {key: conf.get(key) for key in conf.DEFAULTS} == conf.DEFAULTS
    assert NEXO.DEFAULT_MODEL == "nexo/offline"
    assert conf.problems() == []


def test_every_default_keeps_its_own_rule(settings):
    settings.NEXO = dict(conf.DEFAULTS)
    assert conf.problems() == []


def test_a_setting_is_read_live(settings):
    settings.NEXO = {"TIMEOUT": 5}
    assert (NEXO.TIMEOUT, conf.get("TIMEOUT")) == (5, 5)
    settings.NEXO["TIMEOUT"] = 6
    assert NEXO.TIMEOUT == 6
    settings.NEXO = {}
    assert NEXO.TIMEOUT == 60


@pytest.mark.parametrize(("key", "value"), GOOD)
def test_what_fits_is_given(settings, key, value):
    settings.NEXO = {key: value}
    assert conf.get(key) == value
    assert conf.problems() == []


@pytest.mark.parametrize(("key", "value"), BAD)
def test_what_can_not_be_right_is_refused_at_first_use_and_by_the_check(settings, key, value):
    settings.NEXO = {key: value}
    with pytest.raises(ConfigurationError, match="It must be ") as caught:
        conf.get(key)
    assert f'NEXO["{key}"]' in str(caught.value)
    assert conf.problems() == [str(caught.value)]


def test_another_keys_mistake_does_not_stop_a_use(settings):
    settings.NEXO = {"TIMEOUT": 0, "TURN_WAIT": 3}
    assert NEXO.TURN_WAIT == 3


@pytest.mark.parametrize("key", ["TIMEOUTS", "timeout", "TIME_OUT"])
def test_an_unknown_key_is_refused_with_the_nearest(settings, key):
    settings.NEXO = {key: 60}
    with pytest.raises(ConfigurationError, match=f"'{key}'.*Did you mean \"TIMEOUT\"") as caught:
        conf.get("TURN_WAIT")
    assert conf.problems() == [str(caught.value)]


def test_a_key_like_no_other_is_refused_with_all(settings):
    settings.NEXO = {"QQQ": 1, 7: 2}
    first, second = conf.problems()
    assert "'QQQ'" in first
    assert "LEASE_SECONDS" in first
    assert "no key 7" in second


@pytest.mark.parametrize("key", ["NOPE", "TIMEOU"])
def test_the_package_can_not_ask_for_a_key_that_is_not_there(settings, key):
    settings.NEXO = {}
    with pytest.raises(ConfigurationError, match=key):
        conf.get(key)
    with pytest.raises(ConfigurationError, match=key):
        getattr(NEXO, key)


@pytest.mark.parametrize("value", [None, [("TIMEOUT", 5)], "TIMEOUT"])
def test_what_is_no_dict_is_refused(settings, value):
    settings.NEXO = value
    with pytest.raises(ConfigurationError, match=r"NEXO is a \w+"):
        conf.get("TIMEOUT")
    assert len(conf.problems()) == 1


@pytest.mark.parametrize(
    "given",
    [{"COMPACT_AT": 0.3}, {"COMPACT_TO": 0.7}, {"COMPACT_AT": 0.5, "COMPACT_TO": 0.5}],
)
def test_compaction_must_free_room(settings, given):
    settings.NEXO = given
    with pytest.raises(ConfigurationError, match="COMPACT_TO must be the smaller one"):
        conf.get("COMPACT_AT")
    assert len(conf.problems()) == 1
    assert conf.get("TIMEOUT") == 60


@pytest.mark.parametrize("key", ["REDACT", "ENCRYPTION_KEYS"])
def test_a_protection_that_is_not_there_is_refused_without_showing_it(settings, key):
    settings.NEXO = {key: ["the-secret-value"]}
    with pytest.raises(ConfigurationError, match="does not honour it") as caught:
        conf.get(key)
    assert "secret" not in str(caught.value)


def test_all_mistakes_are_listed_at_once(settings):
    settings.NEXO = {"TIMEOUT": 0, "TURN_WAIT": "x", "NOPE": 1}
    assert len(conf.problems()) == 3


def test_a_name_in_small_letters_is_no_setting():
    assert not hasattr(NEXO, "timeout")
    assert set(dir(NEXO)) == set(conf.DEFAULTS)


ALONE = """
import sys
import os
os.environ.pop("DJANGO_SETTINGS_MODULE", None)
from nexo_django import conf
assert not conf.configured()
assert {key: conf.get(key) for key in conf.DEFAULTS} == conf.DEFAULTS
assert conf.problems() == []
from django.conf import settings
settings.configure(NEXO={"TIMEOUT": 7})
assert conf.configured() and conf.NEXO.TIMEOUT == 7
"""
BROKEN = """
import os, sys
from pathlib import Path
from django.core.exceptions import ImproperlyConfigured
os.environ["DJANGO_SETTINGS_MODULE"] = "broken_settings"
from nexo_django import conf
try:
    conf.get("TIMEOUT")
except ImproperlyConfigured as error:
    assert "SECRET" in str(error), error
else:
    raise SystemExit("a broken settings module passed as none")
"""


def test_without_settings_every_key_has_its_default():
    subprocess.run([sys.executable, "-c", ALONE], check=True, timeout=120)


def test_a_settings_module_that_fails_is_not_taken_for_none(tmp_path):
    (tmp_path / "broken_settings.py").write_text(
        "from django.core.exceptions import ImproperlyConfigured\n"
        "raise ImproperlyConfigured('Set the SECRET environment variable')\n"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{BROKEN}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_check_tells_every_mistake_at_once(settings):
    settings.NEXO = {"TIMEOUT": 0, "ACCESS": "ab", "NOPE": 1}
    with pytest.raises(ConfigurationError) as caught:
        conf.check()
    assert all(text in str(caught.value) for text in conf.problems())
    settings.NEXO["TIMEOUT"] = 5
    with pytest.raises(ConfigurationError, match="ACCESS"):
        conf.check()
    settings.NEXO = {"TIMEOUT": 5}
    conf.check()


def test_a_relay_is_not_shown_since_it_may_hold_a_password(settings):
    settings.NEXO = {"RELAY": "https://:hunter2@example.com"}
    with pytest.raises(ConfigurationError, match=r"RELAY.*is set") as caught:
        conf.get("RELAY")
    assert "hunter2" not in str(caught.value)
