"""Nobody is let in but by the site's own hook, and the check says where there is none."""

from __future__ import annotations

import asyncio

import pytest
from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.test import RequestFactory, override_settings

from nexo_django import checks
from nexo_django.contrib import access
from nexo_django.exceptions import ConfigurationError

HOOK = "tests.contrib.test_access.given"
URLS = "tests.contrib.site.urls"


def given(request, agent_name, conversation):
    return ANSWERS[conversation](request)


def refuse(request):
    raise PermissionDenied


async def later(request):
    await asyncio.sleep(0)
    return "later"


ANSWERS = {
    "text": lambda request: "user-1",
    "number": lambda request: 7,
    "none": lambda request: None,
    "false": lambda request: False,
    "empty": lambda request: "",
    "true": lambda request: True,
    "list": lambda request: ["user-1"],
    "refuse": refuse,
    "later": later,
}


def session(conversation, agent="Assistant"):
    return access.session_for(RequestFactory().get("/"), agent, conversation)


@override_settings(NEXO={"ACCESS": HOOK})
def test_the_hook_gives_the_instance_id():
    assert session("text").instance_id == "user-1"
    assert session("number").instance_id == "7"
    assert session("later").instance_id == "later"


@override_settings(NEXO={"ACCESS": HOOK})
@pytest.mark.parametrize(
    ("conversation", "error"),
    [
        ("none", Http404),
        ("false", Http404),
        ("empty", Http404),
        ("refuse", PermissionDenied),
        ("x" * 192, Http404),
        ("nul\x00", Http404),
        # A hook that only says yes does not say whose chat it is.
        ("true", ConfigurationError),
        ("list", ConfigurationError),
    ],
)
def test_anything_else_is_refused(conversation, error):
    with pytest.raises(error):
        session(conversation)


@override_settings(NEXO={"ACCESS": HOOK})
def test_an_agent_that_is_not_there_is_refused_as_one_of_somebody_else():
    with pytest.raises(Http404):
        session("text", "Nobody")


@pytest.mark.parametrize(
    "path", [None, "tests.contrib.test_access.missing", "nowhere.at.all", "django.http.HttpRequest"]
)
def test_without_a_hook_there_is_no_way_in(path):
    with override_settings(NEXO={"ACCESS": path}):
        with pytest.raises(ConfigurationError, match="ACCESS"):
            session("text")
        with override_settings(ROOT_URLCONF=URLS):
            assert [found.id for found in checks.check_access()] == ["nexo_django.E009"]
        assert checks.check_access() == []


def test_chats_must_be_in_the_database():
    with override_settings(ROOT_URLCONF=URLS, NEXO={"ACCESS": HOOK, "SESSION_STORE": "memory"}):
        [found] = checks.check_access()
    assert "SESSION_STORE" in found.msg


def test_the_check_leaves_a_urlconf_that_is_broken_to_django():
    with override_settings(ROOT_URLCONF="nowhere.at.all", NEXO={}):
        assert checks.check_access() == []
    with override_settings(ROOT_URLCONF=URLS, NEXO={"ACCESS": HOOK}):
        assert checks.check_access() == []
