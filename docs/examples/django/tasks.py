"""An order that is not paid in time is cancelled."""

import os
from datetime import timedelta

from django.utils import timezone

try:  # Django 6
    from django.tasks import task
except ImportError:
    from django_tasks import task

PAYMENT_TIMEOUT = timedelta(seconds=float(os.environ.get("PAYMENT_TIMEOUT_S", "1800")))


@task(queue_name="shop-tasks")
def cancel_unpaid(order: str) -> None:
    """May run twice after a crash: cancelling an order that is cancelled must change nothing."""
    if not order.startswith("order-"):
        raise ValueError(f"{order!r} is not an order")
    print(f"cancelled {order}", flush=True)


def place(order: str) -> str:
    return cancel_unpaid.using(run_after=timezone.now() + PAYMENT_TIMEOUT).enqueue(order).id
