"""Parts that a project takes by importing them: pages, Celery, django.tasks."""
