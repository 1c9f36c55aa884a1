"""A Django project in one folder: `manage.py place ORDER` here, `manage.py delay_worker` in another terminal."""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    if sys.argv[1] == "place":
        import django

        django.setup()
        from tasks import place

        print(place(sys.argv[2]))
    else:
        execute_from_command_line(sys.argv)
