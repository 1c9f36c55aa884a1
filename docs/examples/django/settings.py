"""As little as a project needs."""

import os

SECRET_KEY = "an example"
USE_TZ = True
INSTALLED_APPS = ["delayclient.django"]
DATABASES: dict[str, dict[str, str]] = {}
TASKS = {
    "default": {
        "BACKEND": "delayclient.django.backend.DelayBackend",
        "QUEUES": ["shop-tasks"],  # topics of the cluster
        "OPTIONS": {"endpoints": [os.environ.get("DELAY_ENDPOINT", "127.0.0.1:7070")]},
    }
}
