"""The Django project of djangoworld.py: the options of its tasks are JSON in OPTIONS, and each queue may be used."""

import json
import os

SECRET_KEY = "a test"
USE_TZ = True
INSTALLED_APPS = ["delayclient.django"]
DATABASES: dict[str, dict[str, str]] = {}
TASKS = {
    "default": {
        "BACKEND": "delayclient.django.backend.DelayBackend",
        "QUEUES": [],
        "OPTIONS": json.loads(os.environ.get("OPTIONS", "{}")),
    }
}
