"""A report for each office, at half past two in its night: python report.py [HOST:PORT] [--now].

The schedules are put again at each start: that changes nothing. --now: do each once, now, and end.
"""

from __future__ import annotations

import json
import sys

from delayclient import Schedule
from delayclient.sync import Admin, Consumer

OFFICES = {"Berlin": "Europe/Berlin", "New York": "America/New_York", "Tokyo": "Asia/Tokyo"}
ONCE = "--now" in sys.argv
ENDPOINT = next((it for it in sys.argv[1:] if it != "--now"), "127.0.0.1:7070")

with Admin(ENDPOINT) as admin, Consumer(ENDPOINT, "reports", "reporter") as consumer:
    for office, zone in OFFICES.items():
        body = json.dumps({"office": office})
        admin.schedules.put(
            Schedule("reports", f"nightly-{office}", body, cron=["30 2 * * 2-6"], zone=zone, overlap_group="reporter")
        )
        if ONCE:
            admin.schedules.trigger("reports", f"nightly-{office}")
    done: set[str] = set()  # a real one keeps it where the report goes
    while not ONCE or len(done) < len(OFFICES):
        message = consumer.receive()
        assert message is not None
        if message.handle not in done:  # delivery is at least once, and each attempt has the same handle
            print(
                f"report of {json.loads(message.body)['office']} for {message.properties['schedule-time']}", flush=True
            )
            done.add(message.handle)
        consumer.ack(message)
