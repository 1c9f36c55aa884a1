"""A backend for Django's tasks, and the command that runs them: docs/django.md."""
