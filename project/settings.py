"""Settings of the example project; the only place that reads the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import environ

BASE_DIR = Path(__file__).resolve().parent.parent

env = environ.Env()

SECRET_KEY = env.str("SECRET_KEY", default="only-for-the-example-project")
DEBUG = env.bool("DEBUG", default=False)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])


def database() -> dict[str, Any]:
    """Read DATABASE_URL, and give each vendor the options that turns need of it."""
    config: dict[str, Any] = env.db_url(
        "DATABASE_URL", default=f"sqlite:///{BASE_DIR / 'db.sqlite3'}"
    )
    options: dict[str, Any] = config.setdefault("OPTIONS", {})
    if config["ENGINE"].endswith("sqlite3"):
        # Without IMMEDIATE a transaction that reads first fails at once when another writes.
        options.setdefault("transaction_mode", "IMMEDIATE")
        options.setdefault("init_command", "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL")
        options.setdefault("timeout", 30)
    elif config["ENGINE"].endswith("mysql"):
        options.setdefault("charset", "utf8mb4")
        options.setdefault("init_command", "SET sql_mode='STRICT_TRANS_TABLES'")
    config["ATOMIC_REQUESTS"] = env.bool("ATOMIC_REQUESTS", default=False)
    # A file on SQLite too: threads and other processes can't share one in memory.
    name = f"test_nexo{env.str('TEST_DB_SUFFIX', default='')}"
    on_disk = config["ENGINE"].endswith("sqlite3")
    config["TEST"] = {"NAME": str(BASE_DIR / f"{name}.sqlite3") if on_disk else name}
    return config


DATABASES = {"default": database()}

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "nexo_django",
    "project",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LANGUAGE_CODE = "en"
USE_TZ = True
STATIC_URL = "static/"

# NEXO_MODEL is a litellm id, such as openai/gpt-4o-mini; the offline model needs no key.
NEXO = {"DEFAULT_MODEL": env.str("NEXO_MODEL", default="nexo/offline")}

CELERY_BROKER_URL = env.str("CELERY_BROKER_URL", default="redis://127.0.0.1:6379/0")
CELERY_TASK_IGNORE_RESULT = True
