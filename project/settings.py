"""Settings of the example project; the only place that reads the environment."""

from pathlib import Path

import environ

BASE_DIR = Path(__file__).resolve().parent.parent
env = environ.Env()
SECRET_KEY = env("SECRET_KEY", default="not-secret")
DEBUG = env.bool("DEBUG", default=False)
DATABASES = {"default": env.db_url("DATABASE_URL", default=f"sqlite:///{BASE_DIR / 'db.sqlite3'}")}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "nexo_django",
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
NEXO = {"DEFAULT_MODEL": env("NEXO_MODEL", default="nexo/offline")}
