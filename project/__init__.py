"""A site that uses nexo_django."""

try:
    # Every process that queues a task must know the app.
    from project.celery import app as celery_app
except ModuleNotFoundError as error:
    if error.name != "celery":
        raise
else:
    __all__ = ["celery_app"]
