"""Settings of the site that the servers of the tests run."""

from __future__ import annotations

from project.settings import DEFAULT_AUTO_FIELD as DEFAULT_AUTO_FIELD
from project.settings import TEMPLATES as TEMPLATES
from project.settings import USE_TZ as USE_TZ
from project.settings import database, env

SECRET_KEY = "only-for-tests"
ALLOWED_HOSTS = ["127.0.0.1", "testserver"]
DATABASES = {"default": database()}
if POOL := env.int("NEXO_TEST_POOL", default=0):
    # Django's pool: every thread of a process shares these connections.
    DATABASES["default"]["OPTIONS"]["pool"] = {"min_size": 1, "max_size": POOL, "timeout": 60}
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "nexo_django",
    "tests.contrib.site",
]
MIDDLEWARE = [
    # The usual suspect where a stream comes all at once.
    "django.middleware.gzip.GZipMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
ROOT_URLCONF = "tests.contrib.site.urls"
ASGI_APPLICATION = "project.asgi.application"
WSGI_APPLICATION = "project.wsgi.application"

NEXO = {
    "ACCESS": "tests.contrib.site.urls.access",
    "LEASE_SECONDS": env.float("NEXO_TEST_LEASE_SECONDS", default=30.0),
    "MAX_IN_FLIGHT": env.int("NEXO_TEST_MAX_IN_FLIGHT", default=64),
    "RELAY": env.str("NEXO_TEST_RELAY", default="") or None,
    "BACKGROUND": env.str("NEXO_TEST_BACKGROUND", default="") or None,
}
