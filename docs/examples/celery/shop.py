"""An order that is not paid in time is cancelled, by a Celery task with a countdown.

    celery -A shop worker      works
    python shop.py ORDER       places an order and prints its task's id
    python shop.py --paid ID   the customer has paid: the task is called off

Settings (environment): BROKER, PAYMENT_TIMEOUT_S.
"""

from __future__ import annotations

import os
import sys

import delayclient.celery  # makes delaycluster:// known  # noqa: F401
from celery import Celery

app = Celery("shop", broker=os.environ.get("BROKER", "delaycluster://127.0.0.1:7070"))
app.conf.task_ignore_result = True
app.conf.task_default_queue = "shop-tasks"  # a topic of the cluster
app.conf.broker_connection_retry_on_startup = True


@app.task(bind=True, acks_late=True, max_retries=5)
def cancel_unpaid(self, order: str) -> None:
    """May run twice after a crash: cancelling an order that is cancelled must change nothing."""
    try:
        print(f"cancelled {order}", flush=True)  # a real shop asks its database here
    except ConnectionError as error:
        raise self.retry(countdown=60, exc=error) from error  # this minute is waited on the cluster's disks too


def place(order: str) -> str:
    return cancel_unpaid.apply_async((order,), countdown=float(os.environ.get("PAYMENT_TIMEOUT_S", "1800"))).id


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--paid":
        app.control.revoke(sys.argv[2])
    else:
        print(place(sys.argv[1]))
