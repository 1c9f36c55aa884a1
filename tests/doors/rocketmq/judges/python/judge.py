"""The official Python client, told what to do by lines on its standard input, as support/judges.py says."""

import sys
import threading
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
)  # fmt: skip

OUT = threading.Lock()


def say(*fields):
    with OUT:
        sys.stdout.write("\t".join(map(str, fields)) + "\n")
        sys.stdout.flush()


def received(message):
    properties = ",".join(f"{name}={value}" for name, value in sorted((message.properties or {}).items()))
    say(
        "received", message.body.decode(), message.message_id, message.tag or "", ",".join(sorted(message.keys or ())),
        message.delivery_attempt, message.delivery_timestamp or 0, int(time.time() * 1000), properties,
    )  # fmt: skip


class Listener(MessageListener):
    def consume(self, message):
        received(message)
        body = message.body.decode()
        if body.startswith("slow"):
            time.sleep(float(body.split()[1]))
        fails = body.startswith("fail") and message.delivery_attempt < 2
        return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS


def main():
    endpoint, key, secret, _token, tls = sys.argv[1:6]
    configuration = ClientConfiguration(endpoint, Credentials(key, secret))
    producer, simple, clients, held = None, None, [], {}
    for line in sys.stdin:
        command, *args = line.rstrip("\n").split("\t")
        try:
            if command == "producer":
                producer = Producer(configuration, args, tls_enable=bool(tls))
                producer.startup()
                clients.append(producer)
                say("ready")
            elif command == "send":
                topic, body, at_ms, tag, keys, name, value = args
                message = Message()
                message.topic, message.body = topic, body.encode()
                if tag:
                    message.tag = tag
                for key in filter(None, keys.split(",")):
                    message.keys = key  # it adds one
                if name:
                    message.add_property(name, value)
                if at_ms:
                    message.delivery_timestamp = int(at_ms) // 1000
                receipt = producer.send(message)
                say("stored", receipt.message_id, getattr(receipt, "recall_handle", "") or "")
            elif command == "recall":
                say("recalled", producer.recall_message(*args))
            elif command == "push":
                topic, group, tags = args
                consumer = PushConsumer(
                    configuration, group, Listener(), {topic: FilterExpression(tags)}, tls_enable=bool(tls)
                )
                consumer.startup()
                clients.append(consumer)
                say("ready")
            elif command == "simple":
                topic, group, tags, wait_s = args
                wanted = {topic: FilterExpression(tags)}
                simple = SimpleConsumer(configuration, group, wanted, int(wait_s), tls_enable=bool(tls))
                simple.startup()
                clients.append(simple)
                say("ready")
            elif command == "receive":
                found = simple.receive(int(args[0]), int(args[1]))
                for message in found or []:
                    held[message.message_id] = message
                    received(message)
                say("polled", len(found or []))
            elif command == "ack":
                simple.ack(held[args[0]])
                say("acked")
            elif command == "change":
                simple.change_invisible_duration(held[args[0]], int(args[1]))
                say("changed")
        except Exception as error:
            say("refused", f"{type(error).__name__}: {error}".replace("\n", " ").replace("\t", " "))
    for client in clients:
        client.shutdown()
    say("ended")


main()
